package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// Info is what operators see of a lock, of one shared hold of it, or of a permit.
type Info struct {
	Name                  string // of the lock or the semaphore
	Held                  bool
	Shared                bool // held shared
	Slot                  int  // of a permit; otherwise 0
	Holder, Owner         string
	Holds                 int
	Token                 uint64
	AcquiredAt, ExpiresAt time.Time
	ExpiresIn             time.Duration
	Waiters               int
	Holders               []Info // from Inspect: one for each process that holds the lock shared
}

// CreateTable creates the table and its high-water row, unless they exist. It reads first, because even
// CREATE TABLE IF NOT EXISTS waits for the end of a backup. An account that may only create tables leaves
// the row to Purge, which needs it.
func (s *Store) CreateTable(ctx context.Context) error {
	const head = "CREATE TABLE IF NOT EXISTS "
	schema := strings.Replace(s.schema, head+"mysqllock", head+s.name, 1)
	return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var n int
		if s.get(ctx, conn, &n, "has_high_water") != nil {
			if err := s.retryDeadlocks(ctx, conn, schema); err != nil {
				return err
			}
		}
		if n > 0 {
			return nil
		}
		err := s.retryDeadlocks(ctx, conn, s.query("add_high_water"))
		if errorNumber(err) == 1142 { // the account may not INSERT
			return nil
		}
		return err
	})
}

// retryDeadlocks executes a statement, and repeats it after a deadlock.
func (s *Store) retryDeadlocks(ctx context.Context, conn *sqlx.Conn, query string) error {
	return retryContended(func() error {
		_, err := s.exec(ctx, conn, command{text: func() string { return query }})
		return err
	})
}

// retryContended calls fn, and calls it again, a few times, while it contends with other statements.
func retryContended(fn func() error) error {
	for try := 1; ; try++ {
		if err := fn(); !Contended(err) || try == 10 {
			return err
		}
	}
}

// readInfos reads rows in the order of their keys. The row of a wait queue precedes the rows of the
// shared holds or permits for which the processes in the queue wait.
func (s *Store) readInfos(ctx context.Context, statement string, pairs ...string) ([]Info, error) {
	var found []struct {
		Name, Owner, Holder       string
		Mode, Holds               int
		Token                     uint64
		Acquired, Expires, Micros int64
		Waiters                   int
	}
	err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return s.selectAll(ctx, conn, &found, statement, pairs...)
	})
	infos := make([]Info, 0, len(found))
	queue, waiters, exclusive := "", 0, false // of the last row with a wait queue: its key, the processes that wait, whether it is held
	for _, f := range found {
		if f.Name == QueueOf(f.Name) {
			queue, waiters, exclusive = f.Name, f.Waiters, false
		}
		info := Info{Name: NameOf(f.Name), Shared: ModeOf(f.Name) == Shared, Slot: SlotOf(f.Name), Token: f.Token}
		if QueueOf(f.Name) == queue {
			info.Waiters = waiters
		}
		// While a request claims a name that may be held shared, the name's row has an owner. While
		// an exclusive hold is downgraded, its process also has a row of a shared hold.
		claimed := ModeOf(f.Name) == Exclusive && f.Mode == 1
		hidden := info.Shared && exclusive && QueueOf(f.Name) == queue
		if f.Micros > 0 && !claimed && !hidden && !isSemaphore(f.Name) {
			info.Held = true
			exclusive = exclusive || f.Name == queue
			info.Holder, info.Owner, info.Holds = f.Holder, f.Owner, f.Holds
			info.AcquiredAt = time.UnixMicro(f.Acquired).UTC()
			info.ExpiresAt = time.UnixMicro(f.Expires).UTC()
			info.ExpiresIn = duration(f.Micros)
		}
		infos = append(infos, info)
	}
	return infos, err
}

// held returns the infos whose rows are held.
func held(infos []Info) []Info {
	return slices.DeleteFunc(infos, func(i Info) bool { return !i.Held })
}

// Inspect returns the state of one lock. If it is held shared, AcquiredAt is that of the first
// process, and ExpiresAt that of the hold that ends last.
func (s *Store) Inspect(ctx context.Context, name string) (Info, error) {
	infos, err := s.readInfos(ctx, "inspect", append(sharedKeys(name), "name", literal(name))...)
	lock := Info{Name: name}
	if len(infos) > 0 && !infos[0].Shared {
		lock, infos = infos[0], infos[1:]
	}
	return SumUp(lock, held(infos)), err
}

// SumUp returns the state of a lock, given that of its own row and its shared holds.
func SumUp(lock Info, holders []Info) Info {
	if len(holders) == 0 {
		return lock
	}
	lock.Held, lock.Shared, lock.Holders, lock.AcquiredAt = true, true, holders, holders[0].AcquiredAt
	for _, h := range holders {
		if h.AcquiredAt.Before(lock.AcquiredAt) {
			lock.AcquiredAt = h.AcquiredAt
		}
		if h.ExpiresAt.After(lock.ExpiresAt) {
			lock.ExpiresAt, lock.ExpiresIn = h.ExpiresAt, h.ExpiresIn
		}
		lock.Holds += h.Holds
		lock.Token = max(lock.Token, h.Token)
	}
	return lock
}

// List returns every exclusive lock, shared hold and permit that is held, in order of names.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	infos, err := s.readInfos(ctx, "list")
	return held(infos), err
}

// Permits returns the permits of a semaphore that are held, by slot.
func (s *Store) Permits(ctx context.Context, name string) ([]Info, error) {
	infos, err := s.readInfos(ctx, "permits", "name", literal(QueueName(Permit, name)), "last", literal(SlotKey(name, MaxPermits)))
	return held(infos), err
}
