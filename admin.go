package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Info is the state of a lock in the table, of one process's shared hold of it, or of a permit.
type Info struct {
	Name                  string        // of the lock or the semaphore
	Held                  bool          // some owner holds the lock
	Shared                bool          // held shared (TryRLock)
	Slot                  int           // of a permit, from 1 on; 0 for locks
	Holder, Owner         string        // label of the process (WithIdentity); opaque id of the acquisition; empty for a lock with Holders
	Holds                 int           // open handles, as of the last write to the row, which a session does not renew
	Token                 uint64        // of the holder, or of the last one; near it while goroutines of one process hand the lock over
	AcquiredAt, ExpiresAt time.Time     // UTC, by the database's clock; the end of the lease or of the session that keeps the lock, whichever is later
	ExpiresIn             time.Duration // by the database's clock, when it was read
	Waiters               int           // processes in the wait queue of the lock or the semaphore
	Holders               []Info        // from Inspect: one for each process that holds the lock shared
}

// infosOf returns what the store has read.
func infosOf(found []store.Info) (infos []Info) {
	for _, i := range found {
		infos = append(infos, infoOf(i))
	}
	return infos
}

func infoOf(i store.Info) Info {
	return Info{
		Name: i.Name, Held: i.Held, Shared: i.Shared, Slot: i.Slot, Holder: i.Holder, Owner: i.Owner, Holds: i.Holds, Token: i.Token,
		AcquiredAt: i.AcquiredAt, ExpiresAt: i.ExpiresAt, ExpiresIn: i.ExpiresIn, Waiters: i.Waiters, Holders: infosOf(i.Holders),
	}
}

// Inspect returns the state of the lock name; Held is false, without an error,
// for a name that has no row. If the lock is held shared, Holders has an Info for each process
// that does, and the other fields sum them up: the first AcquiredAt, the last ExpiresAt, all
// Holds. It blocks for one round trip. It returns
// [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or the database.
func (l *Locker) Inspect(ctx context.Context, name string) (info Info, err error) {
	err = l.admin(func() (err error) {
		if err = checkName(name); err == nil {
			found, err := l.table.Inspect(ctx, name)
			info = infoOf(found)
			return err
		}
		return err
	})
	if err != nil {
		return Info{}, opError("inspect", name, err)
	}
	return info, nil
}

// List returns an Info for every lock that is held exclusively now, for every process's shared
// hold of a lock, and for every permit of a semaphore that is held, in order of names. It reads
// the whole table. It returns [ErrNoTable], [ErrClosed], or the error of ctx or the database.
func (l *Locker) List(ctx context.Context) (infos []Info, err error) {
	err = l.admin(func() (err error) {
		found, err := l.table.List(ctx)
		infos = infosOf(found)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mysqllock: list: %w", err)
	}
	return infos, nil
}

// CreateTable creates the table if it does not exist. Any number of processes may call it at
// once. It needs the CREATE privilege even if the table exists. It
// returns [ErrClosed], or the error of ctx or the database.
func (l *Locker) CreateTable(ctx context.Context) error {
	if err := l.admin(func() error { return l.table.CreateTable(ctx) }); err != nil {
		return fmt.Errorf("mysqllock: create table: %w", err)
	}
	return nil
}

// ForceUnlock frees name from its holder, and reports whether it was held. A hold of this
// Locker ends at once. A holder with another Locker, in this process or elsewhere, is
// signalled and learns of the loss within milliseconds if that Locker listens, which it does
// while calls wait for locks; otherwise at its next renewal or check, up to a third of its
// lease later. Until then two owners may trust the lock, and only tokens and [Lock.Guard]
// tell them apart. A holder that unlocks notices then, and hands nothing over within its
// process, unless the database had replied to it less than 2 ms before the row was freed
// (see [WithoutHandoff]).
//
// ForceUnlock waits, until ctx ends, for the transactions that the holder has under
// Guard. It returns [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or
// the database; after an error the lock may be held or free.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (held bool, err error) {
	if err = checkName(name); err == nil {
		held, err = l.force(ctx, name)
	}
	if err != nil {
		return false, opError("force unlock", name, err)
	}
	return held, nil
}

// force frees the row of a lock, with those of its shared holds, or of a slot, and reports
// whether it freed a hold.
func (l *Locker) force(ctx context.Context, key string) (held bool, err error) {
	var all []store.Claim
	var next store.Process
	err = l.admin(func() (err error) {
		freed, head, err := l.table.ForceUnlock(ctx, key)
		for _, c := range freed {
			l.watchdog.OwnerChanged(c)
		}
		all = append(all, freed...)
		if head != 0 {
			next = head
		}
		return err
	})
	if len(all) > 0 {
		l.waker.Freed([]string{key}, next)
	}
	return len(all) > 0, err
}

// Purge deletes the rows of locks, shared holds and permits that have been free for at least
// idle, and returns how many. It counts the row of a semaphore's wait queue, too, which it deletes
// 30 days later. Tokens keep rising after it. It also deletes, without counting them, the rows of sessions
// that have been dead for that long. It works in small transactions and skips locked rows; it
// needs the DELETE privilege. It returns [ErrNoTable], [ErrClosed], or the error of ctx or the
// database, together with the number of rows that it had deleted.
func (l *Locker) Purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	err = l.admin(func() error {
		n, err := l.table.Purge(ctx, max(idle, 0))
		deleted += n
		return err
	})
	if err != nil {
		return deleted, fmt.Errorf("mysqllock: purge: %w", err)
	}
	return deleted, nil
}

// admin runs an operation on the table, again after a deadlock.
func (l *Locker) admin(fn func() error) error {
	select {
	case <-l.done:
		return ErrClosed
	default:
	}
	for try := 1; ; try++ {
		if err := fn(); !store.Contended(err) || try == 10 {
			return err
		}
	}
}
