package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mysqllock/mysqllock"
)

func newUnlock(from *source) *cobra.Command {
	var force, yes bool
	var t target
	c := &cobra.Command{
		Use:   "unlock --force NAME [--semaphore|--slot 2] [--yes]",
		Short: "Free a lock, whatever process holds it",
		Long: `Free a lock, whatever process holds it; if it is held shared, from all holders. With
--semaphore, free all permits of the semaphore NAME; with --slot, the one with that
number. The holder learns of it within milliseconds if
its process waits for another lock, and so can be signalled; otherwise at its next
renewal, after a third of its lease at most. Until then it keeps working, beside the
next holder. mysqllock run ends its COMMAND when it learns of the loss. A holder that
is dead needs no unlock: its lock is free when its lease has ended.

While a transaction has the lock under Guard (DoTx), unlock waits for its end, up to 15s.
The exit status is 0 also if nobody held the lock.

The command asks first; without a terminal it requires --yes.`,
		Example: `  mysqllock unlock --force nightly-report
  mysqllock unlock --force nightly-report --yes
  mysqllock unlock --force thumbnails --slot 2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: from.completeNames,
		RunE: func(c *cobra.Command, args []string) error {
			t.name = args[0]
			if slot := c.Flags().Changed("slot"); slot && (t.slot < 1 || t.slot > maxSlots) {
				return usage("--slot %d: want 1 to %d", t.slot, maxSlots)
			} else if slot {
				t.semaphore = true
			}
			if !force {
				return usage("unlock takes a lock away from its holder: add --force to do so")
			}
			if !yes && !term.IsTerminal(int(os.Stdin.Fd())) {
				return usage("there is no terminal on which to ask for confirmation: add --yes to skip the question")
			}
			l, done, err := from.locker()
			if err != nil {
				return err
			}
			defer done()
			return unlock(c, l, t, yes)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "take it away from its holder")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&t.semaphore, "semaphore", false, "free all permits of the semaphore NAME")
	c.Flags().IntVar(&t.slot, "slot", 0, "free only the permit with this `number`")
	return c
}

func unlock(c *cobra.Command, l *mysqllock.Locker, t target, yes bool) error {
	if !yes {
		if err := confirm(c, l, t); err != nil {
			return err
		}
	}
	ctx, cancel := bounded(c.Context())
	defer cancel()
	waits := time.AfterFunc(time.Second, func() {
		fmt.Fprintf(c.ErrOrStderr(), "waiting for a transaction that has %s locked, perhaps under Guard, for up to %s\n", t, operationBound)
	})
	freed, err := t.free(ctx, l)
	waits.Stop()
	switch {
	case err != nil:
		return err
	case freed:
		fmt.Fprintln(c.OutOrStdout(), t, "was freed")
		return nil
	}
	fmt.Fprintln(c.OutOrStdout(), t, "was held by nobody")
	if t.semaphore {
		return nil
	}
	permits, err := target{name: t.name, semaphore: true}.holders(c.Context(), l)
	if err == nil && len(permits) > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "there is a semaphore %s, of which %d permits are held: --semaphore or --slot frees these\n", shown(t.name), len(permits))
	}
	return err
}

// confirm asks for confirmation, if there are holders. It returns an error if that is refused, or if there
// is a new holder when the answer arrives.
func confirm(c *cobra.Command, l *mysqllock.Locker, t target) error {
	held, err := t.holders(c.Context(), l)
	if err != nil || len(held) == 0 {
		return err
	}
	stderr := c.ErrOrStderr()
	if first := held[0]; len(held) == 1 {
		fmt.Fprintf(stderr, "%s is held%s by %s since %s, and for another %s without a renewal; %d processes wait for it.\n",
			t, map[bool]string{true: " shared"}[first.Shared], shown(first.Holder), first.AcquiredAt.Format("2006-01-02 15:04:05Z"),
			rounded(first.ExpiresIn), first.Waiters)
	} else {
		fmt.Fprintf(stderr, "%s is held by %s; %d processes wait for it.\n", t, listed(held), first.Waiters)
	}
	fmt.Fprint(stderr, "Take it away? [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return exit{exitFailed, errors.New("not unlocked")}
	}
	now, err := t.holders(c.Context(), l)
	for _, i := range now {
		if !slices.ContainsFunc(held, func(h mysqllock.Info) bool { return h.Owner == i.Owner }) {
			return exit{exitFailed, fmt.Errorf("not unlocked: %s was released meanwhile, and another owner, %s, holds it", t, shown(i.Holder))}
		}
	}
	return err
}

func newInit(from *source) *cobra.Command {
	var printOnly bool
	var account string
	c := &cobra.Command{
		Use:   "init [--print [--grant-to user@host]]",
		Short: "Create the table, or print the statements for it",
		Long: `Create the table if there is none. That needs the privilege CREATE, and no other. With --print,
the statements are printed instead, for an account that has it; no database is asked.
The GRANT is a comment unless --grant-to names the account.`,
		Example: `  mysqllock init
  mysqllock init --print --grant-to 'app@10.0.%' | mysql app`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if printOnly {
				statements, err := ddl(from.table, account)
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(c.OutOrStdout(), statements)
				return err
			}
			if account != "" {
				return usage("--grant-to goes with --print")
			}
			l, done, err := from.locker()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := bounded(c.Context())
			defer cancel()
			if err := l.CreateTable(ctx); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "the table %s is there\n", from.table)
			return nil
		},
	}
	c.Flags().BoolVar(&printOnly, "print", false, "print the CREATE TABLE and the GRANT")
	c.Flags().StringVar(&account, "grant-to", "", "the `account`, user@host, that the printed GRANT is for; it must exist")
	return c
}

// ddl returns the statements that create the table and let an account use it.
func ddl(table, account string) (string, error) {
	quoted, err := quoteTable(table)
	if err != nil {
		return "", err
	}
	comment := ""
	if strings.Contains(account, `\`) || printable(account) != account {
		return "", usage("--grant-to %q: want user@host", account)
	}
	if account == "" {
		comment, account = "-- ", "service@%"
	}
	user, host := account, "%"
	if at := strings.LastIndexByte(account, '@'); at >= 0 {
		user, host = account[:at], account[at+1:]
	}
	const head = "CREATE TABLE IF NOT EXISTS "
	return fmt.Sprintf("%s;\n\n-- mysqllock purge needs DELETE as well.\n%sGRANT SELECT, INSERT, UPDATE ON %s TO %s@%s;\n",
		strings.TrimSpace(strings.Replace(mysqllock.Schema, head+"mysqllock", head+quoted, 1)),
		comment, quoted, quoteText(user), quoteText(host)), nil
}

// quoteText quotes a text without backslashes.
func quoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func newPurge(from *source) *cobra.Command {
	var idle period
	c := &cobra.Command{
		Use:   "purge --idle 30d",
		Short: "Delete the rows of names that nobody has held for a long time",
		Long: `Delete the rows of names that nobody has held for at least --idle. No lock is lost
by it, and tokens go on to rise. It works in small transactions, and can be
interrupted and repeated. It needs the privilege DELETE.`,
		Example: `  mysqllock purge --idle 30d`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("idle") {
				return usage("--idle is missing: for how long nobody has held the names, such as --idle 30d")
			}
			l, done, err := from.locker()
			if err != nil {
				return err
			}
			defer done()
			n, err := purge(c.Context(), l, idle.Duration)
			if err != nil {
				return fmt.Errorf("%w (%d rows deleted)", err, n)
			}
			fmt.Fprintf(c.OutOrStdout(), "%d rows deleted\n", n)
			return nil
		},
	}
	c.Flags().Var(&idle, "idle", "for how long nobody has held them: 12h, 30d, 8w")
	c.Flags().Lookup("idle").DefValue = "" // it has none
	return c
}

// purge continues while it deletes something within each purgeBound.
func purge(ctx context.Context, l *mysqllock.Locker, idle time.Duration) (deleted int64, err error) {
	for {
		limited, cancel := context.WithTimeout(ctx, purgeBound)
		n, err := l.Purge(limited, idle)
		cancel()
		deleted += n
		if n == 0 || !errors.Is(err, context.DeadlineExceeded) {
			return deleted, err
		}
	}
}
