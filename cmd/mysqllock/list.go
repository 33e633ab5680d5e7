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

// A lock is how --json shows a lock, one shared hold, or a permit. Times are by the database's
// clock, in UTC.
type lock struct {
	Name       string     `json:"name"`
	Held       bool       `json:"held"`
	Mode       string     `json:"mode,omitempty"` // exclusive, shared or permit; of what is held
	Slot       int        `json:"slot,omitempty"` // of a permit
	Holder     string     `json:"holder,omitempty"`
	Owner      string     `json:"owner,omitempty"`
	AcquiredAt *time.Time `json:"acquired_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	ExpiresIn  float64    `json:"expires_in_seconds,omitempty"`
	Holds      int        `json:"holds"`
	Token      uint64     `json:"token"`
	Waiters    int        `json:"waiters"`

	// Only show has the following.
	Holders []lock    `json:"holders,omitempty"` // of a lock that is held shared
	Last    *lastHold `json:"last,omitempty"`    // of a lock that is not held
	Claimed string    `json:"claimed,omitempty"` // holder label of the exclusive request that keeps others out
	Permits []lock    `json:"permits,omitempty"` // of the semaphore of that name
}

// A lastHold is the latest hold of a lock that nobody holds now.
type lastHold struct {
	Holder     string     `json:"holder"`
	AcquiredAt time.Time  `json:"acquired_at"`
	ReleasedAt *time.Time `json:"released_at,omitempty"` // by Unlock or by force
	ExpiredAt  *time.Time `json:"expired_at,omitempty"`  // the lease ended without a release
	KeptUntil  *time.Time `json:"kept_until,omitempty"`  // the end of the minimum time of UnlockAfter
}

func lockOf(i mysqllock.Info) lock {
	l := lock{Name: i.Name, Held: i.Held, Slot: i.Slot, Token: i.Token, Waiters: i.Waiters, Holders: locksOf(i.Holders)}
	if i.Held {
		l.Mode = mode(i)
		l.Holder, l.Owner, l.Holds = i.Holder, i.Owner, i.Holds
		l.AcquiredAt, l.ExpiresAt, l.ExpiresIn = &i.AcquiredAt, &i.ExpiresAt, i.ExpiresIn.Seconds()
	}
	return l
}

func locksOf(infos []mysqllock.Info) []lock {
	locks := make([]lock, len(infos))
	for i, info := range infos {
		locks[i] = lockOf(info)
	}
	return locks
}

func mode(i mysqllock.Info) string {
	switch {
	case i.Slot > 0:
		return "permit"
	case i.Shared:
		return "shared"
	}
	return "exclusive"
}

func newLs(from *source) *cobra.Command {
	var watch, asJSON bool
	var prefix string
	interval := period{Duration: 2 * time.Second}
	c := &cobra.Command{
		Use:     "ls [--prefix order:] [--watch] [--json]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held",
		Long: `List the locks that are held, with a line for each process that holds one shared, and
for each permit of a semaphore: the mode, the slot of a permit, the holder, since when,
how long it lasts without a renewal, the number of handles as of the last write to the
row, the token, and how many processes wait for the lock or the semaphore. Times are UTC by the clock of the database. Names and holders that hold anything but
plain text are shown between quotes, with escapes.`,
		Example: `  mysqllock ls
  mysqllock ls --prefix order:
  mysqllock ls --watch --interval 5s
  mysqllock ls --json | jq -r 'map(select(.waiters > 0).name) | unique[]'`,
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
				ctx, cancel := bounded(ctx)
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

// watchLocks lists until a signal ends it. After the first list, it continues when the
// database fails.
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
		return writeJSON(w, locksOf(infos))
	}
	rows := [][]string{{"NAME", "MODE", "SLOT", "HOLDER", "HELD SINCE", "EXPIRES IN", "HOLDS", "TOKEN", "WAITERS"}}
	for _, i := range infos {
		rows = append(rows, []string{
			shown(i.Name), mode(i), slot(i), shown(i.Holder), i.AcquiredAt.Format("2006-01-02 15:04:05Z"), rounded(i.ExpiresIn),
			strconv.Itoa(i.Holds), strconv.FormatUint(i.Token, 10), strconv.Itoa(i.Waiters),
		})
	}
	return writeTable(w, rows...)
}

func slot(i mysqllock.Info) string {
	if i.Slot == 0 {
		return "-"
	}
	return strconv.Itoa(i.Slot)
}

func newShow(from *source) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show NAME [--json]",
		Short: "Show one lock, held or not",
		Long: `Show one lock: its holder, or each process that holds it shared. If nobody holds it,
show who held it last, and how that ended: "released at", by its holder or by force;
"expired at", its lease ended; or "kept until", it was unlocked before (run --at-least,
UnlockAfter). The token is the highest of the name. If permits
of a semaphore of that name are held, show these, too. While an exclusive request waits
for the processes that hold a lock shared, it has claimed the lock: nobody else is let in.
Times are UTC by the clock of the database.`,
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
			ctx, cancel := bounded(c.Context())
			defer cancel()
			i, err := inspect(ctx, l, args[0])
			if err != nil {
				return err
			}
			permits, err := l.Semaphore(args[0], 1).Holders(ctx)
			if err != nil {
				return err
			}
			shownLock := lockOf(i)
			shownLock.Permits = locksOf(permits)
			if shownLock.Last, shownLock.Claimed, err = from.row(ctx, i); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), shownLock)
			}
			return writeShown(c.OutOrStdout(), i, permits, shownLock)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write a JSON object")
	return c
}

// row reads of a lock's row what Inspect does not return: the last hold, if the lock is not
// held, and the holder label of a request that has claimed it. They are nil and "" also if the
// row has changed or was purged meanwhile.
func (s *source) row(ctx context.Context, i mysqllock.Info) (last *lastHold, claimed string, err error) {
	if i.Held && !i.Shared || i.Token == 0 {
		return nil, "", nil
	}
	table, err := quoteTable(s.table)
	if err != nil {
		return nil, "", err
	}
	db, err := s.open()
	if err != nil {
		return nil, "", err
	}
	defer db.Close()
	var hold lastHold
	var acquired, expires, released int64
	var phase, current, finished bool
	err = db.QueryRowContext(ctx, `SELECT l.holder, l.mode = 1, l.owner LIKE '+%',
  l.expires_at > UTC_TIMESTAMP(6) OR COALESCE(s.expires_at > UTC_TIMESTAMP(6), FALSE),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at))),
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.released_at)
FROM `+table+` AS l LEFT JOIN `+table+` AS s ON s.name = CONCAT(x'00', LEFT(l.owner, 19)) AND s.session = l.session
WHERE l.name = ?`, []byte(i.Name)).Scan(&hold.Holder, &phase, &finished, &current, &acquired, &expires, &released)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	case phase && current:
		return nil, hold.Holder, nil
	case phase || current || i.Held:
		return nil, "", nil // the holders of a shared lock leave nothing in its row
	}
	hold.AcquiredAt = time.UnixMicro(acquired).UTC()
	expiredAt, releasedAt := time.UnixMicro(expires).UTC(), time.UnixMicro(released).UTC()
	switch {
	case finished:
		hold.KeptUntil = &expiredAt
	case expires > 0: // a release sets it to 1970
		hold.ExpiredAt = &expiredAt
	case released > 0:
		hold.ReleasedAt = &releasedAt
	}
	return &hold, "", nil
}

const exactly = "2006-01-02 15:04:05.000000Z"

// writeShown writes a lock, and the permits of the semaphore of its name. Of a semaphore whose
// name no lock ever had, it writes only those.
func writeShown(w io.Writer, i mysqllock.Info, permits []mysqllock.Info, shownLock lock) error {
	if len(permits) == 0 || i.Token > 0 {
		if err := writeLock(w, i, shownLock); err != nil {
			return err
		}
	}
	if len(permits) == 0 {
		return nil
	}
	if i.Token > 0 {
		fmt.Fprintln(w)
	}
	err := writeTable(w, []string{"semaphore", shown(i.Name)}, []string{"permits held", strconv.Itoa(len(permits))},
		[]string{"waiters", strconv.Itoa(permits[0].Waiters)})
	if err != nil {
		return err
	}
	return writeHolders(w, permits)
}

// writeHolders writes the holders of one shared lock, or of the permits of one semaphore.
func writeHolders(w io.Writer, infos []mysqllock.Info) error {
	rows := [][]string{{"SLOT", "HOLDER", "HELD SINCE", "EXPIRES IN", "HOLDS", "TOKEN", "OWNER"}}
	for _, i := range infos {
		rows = append(rows, []string{
			slot(i), shown(i.Holder), i.AcquiredAt.Format(exactly), rounded(i.ExpiresIn),
			strconv.Itoa(i.Holds), strconv.FormatUint(i.Token, 10), shown(i.Owner),
		})
	}
	fmt.Fprintln(w)
	if infos[0].Slot == 0 {
		for n := range rows {
			rows[n] = rows[n][1:]
		}
	}
	return writeTable(w, rows...)
}

func writeLock(w io.Writer, i mysqllock.Info, l lock) error {
	rows := [][]string{{"name", shown(i.Name)}}
	if !i.Held {
		rows = append(rows, []string{"held", "no"})
		if l.Last != nil {
			rows = append(rows,
				[]string{"last holder", shown(l.Last.Holder)},
				[]string{"acquired at", l.Last.AcquiredAt.Format(exactly)})
			if l.Last.ReleasedAt != nil {
				rows = append(rows, []string{"released at", l.Last.ReleasedAt.Format(exactly)})
			}
			if l.Last.ExpiredAt != nil {
				rows = append(rows, []string{"expired at", l.Last.ExpiredAt.Format(exactly)})
			}
			if l.Last.KeptUntil != nil {
				rows = append(rows, []string{"kept until", l.Last.KeptUntil.Format(exactly)})
			}
		}
		if i.Token > 0 {
			rows = append(rows, []string{"token", strconv.FormatUint(i.Token, 10)})
		}
	} else {
		rows = append(rows, []string{"held", "yes"}, []string{"mode", mode(i)})
		if !i.Shared {
			rows = append(rows, []string{"holder", shown(i.Holder)})
		}
		end := "expires at"
		if kept(i) {
			end = "kept until"
		}
		rows = append(rows,
			[]string{"held since", i.AcquiredAt.Format(exactly)},
			[]string{end, i.ExpiresAt.Format(exactly) + ", in " + rounded(i.ExpiresIn)},
			[]string{"holds", strconv.Itoa(i.Holds)},
			[]string{"token", strconv.FormatUint(i.Token, 10)})
		if !i.Shared {
			rows = append(rows, []string{"owner", shown(i.Owner)})
		}
	}
	if l.Claimed != "" {
		rows = append(rows, []string{"claimed by", shown(l.Claimed)})
	}
	if err := writeTable(w, append(rows, []string{"waiters", strconv.Itoa(i.Waiters)})...); err != nil || !i.Shared {
		return err
	}
	return writeHolders(w, i.Holders)
}

// completable matches names that need no quotes in a shell. Shells insert other names
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
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
