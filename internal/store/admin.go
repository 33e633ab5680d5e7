package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// CreateTable creates the table, if it does not exist, and its high-water row.
func (s *Store) CreateTable(ctx context.Context) error {
	const head = "CREATE TABLE IF NOT EXISTS "
	schema := strings.Replace(s.schema, head+"mysqllock", head+s.name, 1)
	return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := s.retryDeadlocks(ctx, conn, schema); err != nil {
			return err
		}
		return s.retryDeadlocks(ctx, conn, s.query(sqlAddHighWater))
	})
}

// retryDeadlocks executes a statement, again after a deadlock.
func (s *Store) retryDeadlocks(ctx context.Context, conn *sqlx.Conn, query string) error {
	for try := 1; ; try++ {
		s.statements.Add(1)
		_, err := conn.ExecContext(ctx, query)
		if !Contended(err) || try == 10 {
			return err
		}
	}
}

// readInfos reads rows in the order of their keys. The row of a wait queue comes before those
// of the shared holds or permits for which the processes in it wait.
func (s *Store) readInfos(ctx context.Context, statement string, pairs ...string) ([]Info, error) {
	var found []struct {
		Name, Owner, Holder       string
		Mode, Holds               int
		Token                     uint64
		Acquired, Expires, Micros int64
		Waiters                   int
	}
	err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(1)
		return conn.SelectContext(ctx, &found, s.query(statement, pairs...))
	})
	infos := make([]Info, 0, len(found))
	queue, waiters := "", 0
	for _, f := range found {
		if f.Name == QueueOf(f.Name) {
			queue, waiters = f.Name, f.Waiters
		}
		info := Info{Name: NameOf(f.Name), Shared: ModeOf(f.Name) == Shared, Slot: SlotOf(f.Name), Token: f.Token}
		if QueueOf(f.Name) == queue {
			info.Waiters = waiters
		}
		// A lock that is open to shared holds has an owner while a request claims it.
		claimed := ModeOf(f.Name) == Exclusive && f.Mode == 1
		if f.Micros > 0 && !claimed && !isSemaphore(f.Name) {
			info.Held = true
			info.Holder, info.Owner, info.Holds = f.Holder, f.Owner, f.Holds
			info.AcquiredAt = time.UnixMicro(f.Acquired).UTC()
			info.ExpiresAt = time.UnixMicro(f.Expires).UTC()
			info.ExpiresIn = duration(f.Micros)
		}
		infos = append(infos, info)
	}
	return infos, err
}

// held returns those infos whose rows are held.
func held(infos []Info) []Info {
	return slices.DeleteFunc(infos, func(i Info) bool { return !i.Held })
}

// Inspect returns the state of one lock. If it is held shared, the times are those of the
// process that acquired it first, and of the hold that ends last.
func (s *Store) Inspect(ctx context.Context, name string) (Info, error) {
	infos, err := s.readInfos(ctx, sqlInspect, "name", literal(name), "first", literal(name+sharedSuffix), "last", literal(name+semaphoreSuffix))
	lock := Info{Name: name}
	for _, i := range infos {
		if !i.Shared {
			lock = i
			continue
		}
		if !lock.Shared {
			lock.Held, lock.Shared, lock.AcquiredAt = true, true, i.AcquiredAt
		}
		if i.AcquiredAt.Before(lock.AcquiredAt) {
			lock.AcquiredAt = i.AcquiredAt
		}
		if i.ExpiresAt.After(lock.ExpiresAt) {
			lock.ExpiresAt, lock.ExpiresIn = i.ExpiresAt, i.ExpiresIn
		}
		lock.Holds += i.Holds
		lock.Token = max(lock.Token, i.Token)
		lock.Holders = append(lock.Holders, i)
	}
	return lock, err
}

// List returns every exclusive lock, shared hold and permit that is held, in order of names.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	infos, err := s.readInfos(ctx, sqlList)
	return held(infos), err
}

// Permits returns the permits of a semaphore that are held, by slot.
func (s *Store) Permits(ctx context.Context, name string) ([]Info, error) {
	infos, err := s.readInfos(ctx, sqlPermits, "name", literal(QueueName(Permit, name)), "last", literal(SlotKey(name, MaxPermits)))
	return held(infos), err
}

// ForceUnlock frees the row of a lock, a shared hold or a permit, whatever its owner, and returns
// that owner, "" if the row was free. It waits, until ctx ends, while a transaction has the row locked.
func (s *Store) ForceUnlock(ctx context.Context, name string) (owner string, next Process, err error) {
	for pause := time.Millisecond; ; {
		owner, next, err = s.forceOnce(ctx, name)
		switch {
		case err == nil:
			return owner, next, nil
		case ctx.Err() != nil:
			return "", 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case err == errMoved:
			// Under READ UNCOMMITTED the next owner may be waiting for the same guard.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, 100*time.Millisecond)
		case err == errGuarded:
		case errorNumber(err) == 1969, errorNumber(err) == 3024: // the session's time limit, on a busy server
		default:
			return "", 0, err
		}
	}
}

func (s *Store) forceOnce(ctx context.Context, name string) (owner string, next Process, err error) {
	// Not in the transaction, where SERIALIZABLE would lock the row.
	var holder struct {
		Owner string
		Token uint64
	}
	pairs := []string{"name", literal(name)}
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return s.get(ctx, conn, &holder, sqlHolder, pairs...)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	} else if err != nil {
		return "", 0, err
	}
	// Marked before, in case this process ends right after the commit, and after it, because
	// the holder may look in between.
	process := processOf(holder.Owner)
	if err := s.markForced(ctx, process); Contended(err) {
		return "", 0, errGuarded
	} else if err != nil {
		return "", 0, err
	}
	pairs = append(pairs, "token", strconv.FormatUint(holder.Token, 10))
	err = s.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(2)
		var seized uint64
		err := conn.GetContext(ctx, &seized, s.query(sqlSeize, pairs...))
		switch errorNumber(err) {
		case 1205, 1969, 3024: // lock wait, or the statement, took too long
			return errGuarded
		}
		if errors.Is(err, sql.ErrNoRows) {
			return errMoved
		} else if err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, s.query(sqlForce, pairs...))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // the lease has expired
		}
		owner = holder.Owner
		first, err := res.LastInsertId()
		next = Process(first)
		return err
	})
	if err == nil && owner != "" && process != 0 && process != s.self && s.markForced(ctx, process) == nil {
		s.Signal(ctx, process) // if it does not listen, it notices at its next renewal
	}
	if err == nil && owner != "" && next == 0 {
		next = s.headOfParts(ctx, []Claim{{Name: name}})
	}
	return owner, next, err
}

var (
	errMoved   = errors.New("another owner has it by now")
	errGuarded = errors.New("a transaction has the lock under Guard, or its row locked")
)
