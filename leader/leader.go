// Package leader lets one of several processes lead, by a lock of mysqllock.
//
// Candidates wait for the lock in order of arrival. Its holder leads
// until its function returns, its context ends, or the lock is lost; then the next
// one leads:
//
//   - at once, in a few milliseconds, after a leader that stepped down by itself;
//   - when the lease has ended, which is 20 to 30 seconds with the default of
//     [mysqllock.WithLease], after a leader that died, stands still, or cannot reach
//     the database.
//
// The context of a leader that loses its lock ends before another process can lead, if the
// leader is running. A leader that was paused meanwhile (SIGSTOP, a virtual machine that
// migrates) finds its context ended when it continues, but may already have checked it: then
// it acts late. Use [mysqllock.Lock.Guard] for work that a stale leader must not do, or
// [mysqllock.Lock.Token] where the resource refuses a token below the highest that it has seen.
package leader

import (
	"context"
	"errors"

	"github.com/mysqllock/mysqllock"
)

// Elect is a candidate for name until ctx ends, and calls lead whenever this
// process leads. The context of lead is that of the lock: it ends with ctx, and when
// the lock is lost. Nobody follows a leader that runs before its lead has returned,
// unless the lock was lost: lead has to return soon when its context ends, and not
// to leave goroutines behind. It must not unlock the lock.
//
// If the lock was lost, Elect waits until lead has returned, and is a candidate
// again. If lead returns while it leads, Elect steps down and returns nil: call it
// again to be a candidate again. If lead panics, Elect steps down.
//
// Elect returns the cause of ctx when that ends; otherwise the error of
// [mysqllock.Locker.Lock] or [mysqllock.Lock.Unlock]: [mysqllock.ErrClosed], what is
// wrong with name or the table, or that the server is read-only, as after a
// failover. (With rejectReadOnly=true in the DSN that is waited out, like a database
// that cannot be reached.)
//
// Candidates of one process are candidates like others, whatever owner ctx brings.
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

// serve leads for one term, and returns [mysqllock.ErrLost] if lead outlasted it.
func serve(lock *mysqllock.Lock, lead func(context.Context, *mysqllock.Lock)) (err error) {
	defer func() { err = lock.Unlock() }()
	lead(lock.Context(), lock)
	return nil
}
