package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Info is what the table shows of a lock, of one process's shared hold of it, or of a permit.
type Info struct {
	Name       string        // of the lock or semaphore
	Held       bool          // some owner holds it
	Shared     bool          // it is held shared (TryRLock)
	Slot       int           // of a permit, from 1 on; 0 for locks
	Holder     string        // label of the holder (WithIdentity, WithHolder); empty for a lock with Holders
	Owner      string        // opaque id of the acquisition; empty for a lock with Holders
	Holds      int           // open handles when the row was last written; while a session keeps the lock, that may be long ago
	Token      uint64        // of the present or last holder; may differ from the holder's while goroutines of one process hand the lock over
	AcquiredAt time.Time     // UTC, by the database's clock
	ExpiresAt  time.Time     // UTC, by the database's clock: the end of the lease or of the session that keeps the lock, whichever is later
	ExpiresIn  time.Duration // until ExpiresAt, when the row was read
	Waiters    int           // processes in the wait queue of the lock or semaphore
	Holders    []Info        // from Inspect: one for each process that holds the lock shared
}

// infosOf converts what the store has read.
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

// Inspect returns the state of the lock called name. If the name has no row, Held is false and
// there is no error. If the lock is held shared, Holders has an Info for each process that shares
// it, and the other fields combine them: the earliest AcquiredAt, the latest ExpiresAt, the sum of
// Holds. Inspect blocks for one round trip. It returns [ErrInvalidName], [ErrNoTable],
// [ErrClosed], or the error of ctx or the database.
func (l *Locker) Inspect(ctx context.Context, name string) (info Info, err error) {
	err = l.admin(func() error {
		if err := checkName(name); err != nil {
			return err
		}
		found, err := l.table.Inspect(ctx, name)
		if err == nil {
			info = infoOf(found)
		}
		return err
	})
	return info, opError("inspect", name, err)
}

// List returns an Info for everything that is held now, sorted by name: each exclusive lock, each
// process's shared hold of a lock, and each permit of a semaphore. It reads the whole table. It
// returns [ErrNoTable], [ErrClosed], or the error of ctx or the database.
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
// once. It needs the CREATE privilege, or SELECT if the table exists. It returns [ErrClosed], or the
// error of ctx or the database.
func (l *Locker) CreateTable(ctx context.Context) error {
	if err := l.admin(func() error { return l.table.CreateTable(ctx) }); err != nil {
		return fmt.Errorf("mysqllock: create table: %w", err)
	}
	return nil
}

// ForceUnlock takes the lock called name away from all its holders, and reports whether it was
// held. A hold of this Locker is lost at once. Another Locker, in this process or elsewhere, is
// signalled: it finds the loss within milliseconds if it listens, which it does while its calls
// wait for locks; otherwise at its next renewal or check, up to a third of its lease later. Until
// then two owners may trust the lock, and only tokens and [Lock.Guard] distinguish them. A holder
// that calls Unlock finds the loss, and does not hand the lock over inside its process, unless the
// database had replied to it less than 2 ms before the row was freed (see [WithoutHandoff]). Of
// several handles, or shared holds of one process, only the last one to be unlocked finds it.
//
// ForceUnlock waits, until ctx ends, for the transactions that holders have under Guard. It
// returns [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or the database. After
// an error the lock may be held or free.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (held bool, err error) {
	if err = checkName(name); err == nil {
		held, err = l.force(ctx, name)
	}
	return held, opError("force unlock", name, err)
}

// force frees the row of a lock and those of its shared holds, or the row of a slot. It reports
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
	if err != nil { // it may have freed holds of this Locker
		l.watchdog.Audit()
	}
	if len(all) > 0 {
		l.waker.Freed([]string{key}, next)
	}
	return len(all) > 0 && err == nil, err
}

// Purge deletes the rows of locks, shared holds and permits that have been free for at least
// idle, and returns their number. Tokens continue to rise after a Purge. The row of a semaphore's
// wait queue also counts; it is deleted 30 days later. Purge also deletes the rows of sessions that
// have been dead for at least idle, and does not count them. It works in small transactions, skips
// locked rows, and needs the DELETE privilege. It returns [ErrNoTable], [ErrClosed], or the error
// of ctx or the database, together with the number of rows that it had deleted before.
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

// admin runs an operation on the table, and repeats it after a deadlock.
func (l *Locker) admin(fn func() error) error {
	if l.isClosed() {
		return ErrClosed
	}
	for try := 1; ; try++ {
		if err := fn(); !store.Contended(err) || try == 10 {
			return err
		}
	}
}
