package mysqllock

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mysqllock/mysqllock/internal/store"
)

// An Option changes a default of [New].
type Option func(*config) error

type config struct {
	table     string
	lease     time.Duration
	poll      time.Duration
	log       *slog.Logger
	identity  string
	notifier  Notifier
	signal    bool
	handoff   bool      // locks may be handed over inside the process
	direct    bool      // releases may grant rows to other processes
	observers observers // may be nil
}

// WithTable sets the name of the table: "table" or "db.table", of letters, digits, _, $
// and -. The default is "mysqllock" in the database of the connection.
func WithTable(name string) Option {
	return func(c *config) error {
		if _, err := store.QuoteTable(name); err != nil {
			return fmt.Errorf("WithTable: %w", err)
		}
		c.table = name
		return nil
	}
}

// WithLease sets the lease of locks with [AutoRenew]. The watchdog renews it every third of
// that time, with one statement however many locks the Locker holds. The default is
// [DefaultLease], the minimum 1 s. A longer lease survives longer outages of the database; a
// shorter one frees the locks of a crashed process sooner.
func WithLease(d time.Duration) Option {
	return func(c *config) error {
		if d < minAutoLease {
			return fmt.Errorf("WithLease: %v is shorter than %v", d, minAutoLease)
		}
		c.lease = d
		return nil
	}
}

// WithPollInterval sets how often the process checks whether the locks that its callers wait
// for are free. One statement checks them all. The default is 1 s, the minimum 10 ms.
func WithPollInterval(d time.Duration) Option {
	return func(c *config) error {
		if d < minPoll {
			return fmt.Errorf("WithPollInterval: %v is shorter than %v", d, minPoll)
		}
		c.poll = d
		return nil
	}
}

// WithLogger sets the logger, which gets lost locks (level error), failing renewals (warn) and
// failures of background work; docs/operations.md has a table of the records. The default
// discards them.
func WithLogger(log *slog.Logger) Option {
	return func(c *config) error {
		if log == nil {
			return errors.New("WithLogger: nil logger")
		}
		c.log = log
		return nil
	}
}

// WithIdentity sets the label that operators see as the holder of the Locker's locks: 1 to 255
// bytes of UTF-8 without control characters. The default is "host:pid".
func WithIdentity(label string) Option {
	return func(c *config) error {
		if err := checkText(label); err != nil {
			return fmt.Errorf("WithIdentity: %w", err)
		}
		c.identity = label
		return nil
	}
}

// WithNotifier adds a message queue that announces releases to other processes, whose waiters
// then need not wait for their next poll. The default is none.
func WithNotifier(n Notifier) Option {
	return func(c *config) error {
		if n == nil {
			return errors.New("WithNotifier: nil notifier")
		}
		c.notifier = n
		return nil
	}
}

// WithoutSignal disables signals through the database, that is, KILL QUERY on a statement in
// which another process sleeps: waiters only poll. It saves the connection on which a process
// listens. Use it behind proxies that mishandle such statements, or where a [Notifier] wakes
// the waiters. All processes that share a table should use it, or none: those that can be
// signalled are served first.
func WithoutSignal() Option {
	return func(c *config) error { c.signal = false; return nil }
}

// WithoutHandoff disables local handoffs, in which the next waiter of the same process gets the
// lock without a write to the database. Each holder then acquires the row again, so the table
// always shows the current token. Before a handoff, the process checks that it still owns the
// row, unless a reply in the last 2 ms has shown that.
func WithoutHandoff() Option {
	return func(c *config) error { c.handoff = false; return nil }
}

// checkText returns an error for an invalid name or label.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > 255:
		return fmt.Errorf("it has %d bytes; the limit is 255", len(s))
	case !utf8.ValidString(s):
		return errors.New("it is not valid UTF-8")
	}
	for i, c := range s {
		if unicode.IsControl(c) {
			return fmt.Errorf("it has the control character %U at byte %d", c, i)
		}
	}
	return nil
}
