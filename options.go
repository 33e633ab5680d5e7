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
	handoff   bool // inside the process
	direct    bool // to other processes, by the release
	observers observers
}

// WithTable sets the table: "table" or "db.table", of letters, digits, _, $ and
// -. The default is "mysqllock" in the database of the connection.
func WithTable(name string) Option {
	return func(c *config) error {
		if _, err := store.QuoteTable(name); err != nil {
			return fmt.Errorf("WithTable: %w", err)
		}
		c.table = name
		return nil
	}
}

// WithLease sets the lease that the watchdog keeps for [AutoRenew], by one statement each
// third of it, whatever the Locker holds. The default is [DefaultLease], the least 1 s. A
// longer lease survives longer outages of the database; a shorter one frees the locks of a
// crashed process sooner.
func WithLease(d time.Duration) Option {
	return func(c *config) error {
		if d < minAutoLease {
			return fmt.Errorf("WithLease: %v is shorter than %v", d, minAutoLease)
		}
		c.lease = d
		return nil
	}
}

// WithPollInterval sets how often the process looks whether the rows that its
// waiters wait for are free, all in one statement. The default is 1 s, the least
// 10 ms.
func WithPollInterval(d time.Duration) Option {
	return func(c *config) error {
		if d < minPoll {
			return fmt.Errorf("WithPollInterval: %v is shorter than %v", d, minPoll)
		}
		c.poll = d
		return nil
	}
}

// WithLogger sets where losses (level error), failing renewals (warn) and the
// failures of background work go; docs/operations.md has a table of the records.
// The default discards them.
func WithLogger(log *slog.Logger) Option {
	return func(c *config) error {
		if log == nil {
			return errors.New("WithLogger: nil logger")
		}
		c.log = log
		return nil
	}
}

// WithIdentity sets what operators see as the holder of this process' locks: 1
// to 255 bytes of UTF-8 without control characters. The default is "host:pid".
func WithIdentity(label string) Option {
	return func(c *config) error {
		if err := checkText(label); err != nil {
			return fmt.Errorf("WithIdentity: %w", err)
		}
		c.identity = label
		return nil
	}
}

// WithNotifier adds a message queue that tells waiters in other processes of a
// release before their next poll. The default is none.
func WithNotifier(n Notifier) Option {
	return func(c *config) error {
		if n == nil {
			return errors.New("WithNotifier: nil notifier")
		}
		c.notifier = n
		return nil
	}
}

// WithoutSignal keeps waiters in different processes from waking each other
// through the database, by KILL QUERY on a statement that sleeps: they poll. It
// saves a process that waits its further connection, and is for proxies that
// mistake such a statement, or where a [Notifier] does the waking. Processes that
// share a table should agree on it: those that can be signalled go first.
func WithoutSignal() Option {
	return func(c *config) error { c.signal = false; return nil }
}

// WithoutHandoff keeps a lock from passing on to the next waiter of the same
// process without a write to the database: each holder then takes the row anew,
// and the table always tells the present token. With handoffs, the row is looked at
// if no statement has shown it as this process's own in the last 2 ms.
func WithoutHandoff() Option {
	return func(c *config) error { c.handoff = false; return nil }
}

// checkText returns an error for an invalid name or label.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > 255:
		return fmt.Errorf("it has %d bytes; 255 are the limit", len(s))
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
