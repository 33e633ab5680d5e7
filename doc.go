// Package mysqllock gives services distributed, reentrant locks, read-write locks and semaphores
// that are kept in the MySQL or MariaDB they already run. It needs MySQL 8.0 or MariaDB 10.6, or
// later, and one table ([Locker.CreateTable], schema.sql).
//
//	locker, err := mysqllock.New(db) // the service's own *sql.DB
//	...
//	lock, err := locker.TryLock(ctx, "order:42", 3*time.Second, mysqllock.AutoRenew)
//	if errors.Is(err, mysqllock.ErrNotAcquired) {
//		return errBusy // another owner held it for the whole wait
//	}
//	if err != nil {
//		return err // ErrUnavailable: the database did not answer
//	}
//	err = ship(lock.Context())             // carries the ownership; ends if the lock is lost
//	return errors.Join(err, lock.Unlock()) // ErrLost if the lock was lost
//
// [Locker.Do] does the same around a function, and also unlocks after a panic. [Locker.DoTx]
// also begins a transaction, and puts it under [Lock.Guard].
//
// # Kinds of locks
//
// Each is a [Lock], with the same wait, lease, loss, token, Guard, Extend and Unlock:
//
//   - [Locker.TryLock]: one owner at a time.
//   - [Locker.TryRLock]: many owners share the name, or one holds it exclusively.
//   - [Semaphore]: up to a number of owners. Each has a slot, whose number is its own.
//   - [Locker.TryLockAll]: several names, all or none, without deadlocks between callers.
//   - [Lock.UnlockAfter]: the name stays taken for a minimum time, so a job runs once in it.
//   - [Lock.Detach] and [Locker.Attach]: one process acquires, another one releases.
//
// An owner travels in a context. A call with the context of a handle, or one derived from it,
// re-enters the lock without a statement. A call without it waits for the lock of its own caller,
// as with a sync.Mutex. [WithOwner] starts an owner.
//
// # Guarantees
//
//   - At most one owner holds a name, unless all share it, by the database's clock alone.
//   - [Lock.Context] ends before another owner can have the lock. That needs no answer from the
//     database: a process trusts a lease from before its request was sent, less a margin.
//   - An acquire that returns an error leaves no lock behind.
//   - Tokens rise with every change of owner, and never repeat.
//   - A stale holder cannot commit a transaction under [Lock.Guard].
//   - Unlock never releases another acquisition.
//   - Waiters are served in order of arrival, between processes as far as they can be signalled.
//
// Not guaranteed, as with every lock that has a lease: a process that is paused between looking
// at its lock and acting acts without it. Guard and tokens close that gap. A failover with
// asynchronous replication can grant a lock twice, the second time with a higher token.
//
// While the database cannot be reached, locks are kept until trust in their leases ends, 29 s
// after the last renewal by default, and waiters keep waiting. Deadlocks, killed statements and
// broken connections are retried. A lock whose holder died is free when its lease has ended.
//
// # How it works
//
// A lock is a row: its owner, until when by the database's clock, the fencing token, and the
// processes that wait. An acquire is one conditional UPDATE, and so is a release. A lock with
// [AutoRenew] that is a third of a lease old is bound to the session of its Locker, one more row,
// and from then on a watchdog renews that row alone, whatever the Locker holds. A release signals the
// process that has waited longest: it interrupts, by KILL QUERY, the statement in which that one
// sleeps. Where signals do not arrive, waiters poll, once a second.
//
// # Databases, pools, sessions
//
// The least privileges are SELECT, INSERT and UPDATE on the table; DELETE for Purge, CREATE for
// CreateTable. Statements are right under every time zone, sql_mode, isolation level, charset and
// collation of the connection, and cost one round trip on every DSN.
//
// A Locker uses up to two connections more than its calls do, for renewals and for signals. Give it a
// pool of its own, of four connections or more, if calls wait for locks while they hold
// connections of the pool, or if the application uses up its pool for seconds at a time.
//
// The directory docs has more: choosing.md (wait, lease, pool, errors), a page for each kind of lock, guarantees.md,
// guard.md, how-it-works.md, operations.md (queries, alerts, log records), failover.md,
// troubleshooting.md, sizing.md. Package mysqllocktest is for unit tests.
package mysqllock
