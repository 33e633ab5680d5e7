package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mysqllock/mysqllock"
)

// A lock is how --json tells of one. Times are the database's, in UTC.
type lock struct {
	Name       string     `json:"name"`
	Held       bool       `json:"held"`
	Holder     string     `json:"holder,omitempty"`
	Owner      string     `json:"owner,omitempty"`
	AcquiredAt *time.Time `json:"acquired_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	ExpiresIn  float64    `json:"expires_in_seconds,omitempty"`
	Holds      int        `json:"holds"`
	Token      uint64     `json:"token"`
	Waiters    int        `json:"waiters"`
	Last       *lastHold  `json:"last,omitempty"` // of a lock that is not held; only show has it
}

// A lastHold is the latest hold of a lock that nobody holds now.
type lastHold struct {
	Holder     string     `json:"holder"`
	AcquiredAt time.Time  `json:"acquired_at"`
	ReleasedAt *time.Time `json:"released_at,omitempty"` // by Unlock or by force
	ExpiredAt  *time.Time `json:"expired_at,omitempty"`  // the lease ended without a release
}

func lockOf(i mysqllock.Info) lock {
	l := lock{Name: i.Name, Held: i.Held, Token: i.Token, Waiters: i.Waiters}
	if i.Held {
		l.Holder, l.Owner, l.Holds = i.Holder, i.Owner, i.Holds
		l.AcquiredAt, l.ExpiresAt, l.ExpiresIn = &i.AcquiredAt, &i.ExpiresAt, i.ExpiresIn.Seconds()
	}
	return l
}

func newLs(from *source) *cobra.Command {
	var watch, asJSON bool
	var prefix string
	interval := period{Duration: 2 * time.Second}
	c := &cobra.Command{
		Use:     "ls [--prefix order:] [--watch] [--json]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held",
		Long: `List the locks that are held: the holder, since when, how long the lock lasts without
a renewal, the number of handles as of the last write to the row, the token, and how
many processes wait. Times are UTC by the clock of the database. Names and holders that hold anything but
plain text are shown between quotes, with escapes.`,
		Example: `  mysqllock ls
  mysqllock ls --prefix order:
  mysqllock ls --watch --interval 5s
  mysqllock ls --json | jq -r '.[] | select(.waiters > 0) | .name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if interval.Duration < 100*time.Millisecond {
				return usage("--interval: %v is shorter than 100ms", interval.Duration)
			}
			l, done, err := from.locker()
			if err != nil {
				return err
			}
			defer done()
			list := func(ctx context.Context) ([]mysqllock.Info, error) {
				ctx, cancel := context.WithTimeout(ctx, operationBound)
				defer cancel()
				infos, err := l.List(ctx)
				return slices.DeleteFunc(infos, func(i mysqllock.Info) bool { return !strings.HasPrefix(i.Name, prefix) }), err
			}
			if watch {
				return watchLocks(c.OutOrStdout(), list, interval.Duration, asJSON)
			}
			infos, err := list(c.Context())
			if err != nil {
				return err
			}
			if len(infos) == 0 && !asJSON {
				if prefix != "" {
					fmt.Fprintf(c.ErrOrStderr(), "no lock with the prefix %s is held\n", shown(prefix))
				} else {
					fmt.Fprintln(c.ErrOrStderr(), "no lock is held")
				}
				return nil
			}
			return writeLocks(c.OutOrStdout(), infos, asJSON)
		},
	}
	c.Flags().StringVarP(&prefix, "prefix", "p", "", "only names that begin with this `text`, byte by byte")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "list again and again, until interrupted")
	c.Flags().Var(&interval, "interval", "how often, with --watch")
	c.Flags().BoolVar(&asJSON, "json", false, "write one JSON array, with --watch one a line")
	return c
}

// watchLocks lists until a signal ends it. Once it has listed, it goes on through
// failures of the database.
func watchLocks(w io.Writer, list func(context.Context) ([]mysqllock.Info, error), interval time.Duration, asJSON bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	file, _ := w.(*os.File)
	redraw := file != nil && term.IsTerminal(int(file.Fd())) && !asJSON
	for first := true; ; first = false {
		infos, err := list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case redraw:
			fmt.Fprint(w, "\x1b[H\x1b[2J")
		case !first && !asJSON:
			fmt.Fprintln(w)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "mysqllock:", plain(err))
		} else if err := writeLocks(w, infos, asJSON); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

func writeLocks(w io.Writer, infos []mysqllock.Info, asJSON bool) error {
	if asJSON {
		locks := make([]lock, len(infos))
		for i, info := range infos {
			locks[i] = lockOf(info)
		}
		return writeJSON(w, locks)
	}
	rows := [][]string{{"NAME", "HOLDER", "HELD SINCE", "EXPIRES IN", "HOLDS", "TOKEN", "WAITERS"}}
	for _, i := range infos {
		rows = append(rows, []string{
			shown(i.Name), shown(i.Holder), i.AcquiredAt.Format("2006-01-02 15:04:05Z"), rounded(i.ExpiresIn),
			strconv.Itoa(i.Holds), strconv.FormatUint(i.Token, 10), strconv.Itoa(i.Waiters),
		})
	}
	return writeTable(w, rows...)
}

func newShow(from *source) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show NAME [--json]",
		Short: "Show one lock, held or not",
		Long: `Show one lock. If nobody holds it, show who held it last, and whether that hold was
released or its lease ended. Times are UTC by the clock of the database.`,
		Example: `  mysqllock show nightly-report
  mysqllock show nightly-report --json | jq .held`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: from.completeNames,
		RunE: func(c *cobra.Command, args []string) error {
			l, done, err := from.locker()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(c.Context(), operationBound)
			defer cancel()
			i, err := l.Inspect(ctx, args[0])
			if err != nil {
				return err
			}
			shownLock := lockOf(i)
			if !i.Held && i.Token > 0 {
				if shownLock.Last, err = from.lastHold(ctx, i.Name); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), shownLock)
			}
			return writeLock(c.OutOrStdout(), i, shownLock.Last)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write a JSON object")
	return c
}

// lastHold reads the row of a lock that is not held, of which Inspect returns only the
// token. It returns nil if the lock was taken or its row purged meanwhile.
func (s *source) lastHold(ctx context.Context, name string) (*lastHold, error) {
	table, err := quoteTable(s.table)
	if err != nil {
		return nil, err
	}
	db, err := s.open()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	var last lastHold
	var acquired, expires, released int64
	err = db.QueryRowContext(ctx, `SELECT l.holder,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at))),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.released_at)
FROM `+table+` AS l LEFT JOIN `+table+` AS s ON s.name = CONCAT(x'00', LEFT(l.owner, 19)) AND s.session = l.session
WHERE l.name = ? AND l.expires_at <= UTC_TIMESTAMP(6) AND COALESCE(s.expires_at <= UTC_TIMESTAMP(6), TRUE)`, []byte(name)).Scan(&last.Holder, &acquired, &expires, &released)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	last.AcquiredAt = time.UnixMicro(acquired).UTC()
	if expires > 0 { // a release sets it to 1970
		at := time.UnixMicro(expires).UTC()
		last.ExpiredAt = &at
	} else if released > 0 {
		at := time.UnixMicro(released).UTC()
		last.ReleasedAt = &at
	}
	return &last, nil
}

func writeLock(w io.Writer, i mysqllock.Info, last *lastHold) error {
	const layout = "2006-01-02 15:04:05.000000Z"
	rows := [][]string{{"name", shown(i.Name)}}
	if i.Held {
		rows = append(rows,
			[]string{"held", "yes"},
			[]string{"holder", shown(i.Holder)},
			[]string{"held since", i.AcquiredAt.Format(layout)},
			[]string{"expires at", i.ExpiresAt.Format(layout) + ", in " + rounded(i.ExpiresIn)},
			[]string{"holds", strconv.Itoa(i.Holds)},
			[]string{"token", strconv.FormatUint(i.Token, 10)},
			[]string{"owner", shown(i.Owner)})
	} else {
		rows = append(rows, []string{"held", "no"})
		if last != nil {
			rows = append(rows,
				[]string{"last holder", shown(last.Holder)},
				[]string{"acquired at", last.AcquiredAt.Format(layout)})
			if last.ReleasedAt != nil {
				rows = append(rows, []string{"released at", last.ReleasedAt.Format(layout)})
			}
			if last.ExpiredAt != nil {
				rows = append(rows, []string{"expired at", last.ExpiredAt.Format(layout)})
			}
		}
		if i.Token > 0 {
			rows = append(rows, []string{"last token", strconv.FormatUint(i.Token, 10)})
		}
	}
	return writeTable(w, append(rows, []string{"waiters", strconv.Itoa(i.Waiters)})...)
}

// completable are names that a shell takes as they are. Shells insert others
// without quotes, and would execute what is in them.
var completable = regexp.MustCompile(`^[A-Za-z0-9_.:/@=,+%-]+$`)

// completeNames offers the names of the locks that are held.
func (s *source) completeNames(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	l, done, err := s.locker()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	infos, _ := l.List(ctx)
	var names []cobra.Completion
	for _, i := range infos {
		if completable.MatchString(i.Name) && i.Name[0] != '-' {
			names = append(names, i.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
