// Package leader elects one of several processes as leader, by means of a lock of mysqllock.
//
// Candidates wait for the lock in order of arrival. The holder of the lock leads until its function
// returns, its context ends, or the lock is lost. Then the next candidate leads:
//
//   - within a few milliseconds, if the leader stepped down by itself;
//   - when the lease has ended, which takes 20 to 30 seconds with the default of
//     [mysqllock.WithLease], if the leader died, was paused, or cannot reach the database.
//
// The context of a leader that loses its lock ends before another process can lead, if the
// leader is running. A leader that was paused meanwhile (SIGSTOP, a virtual machine that migrates) finds
// its context ended when it continues; but if it had checked the context just before the pause, it acts
// late. Use [mysqllock.Lock.Guard] for work that a stale leader must not do, or [mysqllock.Lock.Token]
// where the resource refuses a token below the highest that it has seen.
package leader

import (
	"context"
	"errors"

	"github.com/mysqllock/mysqllock"
)

// Elect makes this process a candidate for the lock called name until ctx ends. When the process
// becomes the leader, Elect calls lead with the context of the lock, which ends when ctx ends or the
// lock is lost. lead must return soon after that, must leave no goroutines behind, and must not unlock
// the lock. Unless the lock is lost, no other process leads before lead has returned.
//
// If the lock is lost, Elect waits until lead has returned, and then becomes a candidate again. If lead
// returns before that, Elect steps down and returns nil; call it again to become a candidate again. If
// lead panics, Elect steps down, too.
//
// When ctx ends, Elect returns its cause. Otherwise it returns the error of [mysqllock.Locker.Lock] or
// [mysqllock.Lock.Unlock]: for example [mysqllock.ErrClosed], an error about name or the table, or that
// the server is read-only, as after a failover. With rejectReadOnly=true in the DSN, Elect instead waits
// until the server is writable, just as it waits while the database is unreachable.
//
// Several candidates in one process compete like those in different processes, even if their contexts
// have the same owner.
func Elect(ctx context.Context, locker *mysqllock.Locker, name string, lead func(ctx context.Context, lock *mysqllock.Lock)) error {
	for {
		lock, err := locker.Lock(mysqllock.WithOwner(ctx), name, mysqllock.AutoRenew)
		if err == nil {
			err = serve(lock, lead)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, mysqllock.ErrLost):
			return err
		}
	}
}

// serve calls lead and unlocks. It returns [mysqllock.ErrLost] if the lock was lost before lead returned.
func serve(lock *mysqllock.Lock, lead func(context.Context, *mysqllock.Lock)) (err error) {
	defer func() { err = lock.Unlock() }()
	lead(lock.Context(), lock)
	return nil
}
