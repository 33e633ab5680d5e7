// Package mysqllock provides distributed, reentrant locks, read-write locks and semaphores, kept
// in the MySQL or MariaDB database that a service already uses. It requires MySQL 8.0 or MariaDB
// 10.6, or later, and one table ([Locker.CreateTable], schema.sql).
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
//	err = ship(lock.Context())             // identifies the owner; ends if the lock is lost
//	return errors.Join(err, lock.Unlock()) // ErrLost if the lock was lost
//
// [Locker.Do] does the same around a function, and unlocks even after a panic. [Locker.DoTx]
// also runs the function in a transaction under [Lock.Guard].
//
// # Kinds of locks
//
// Each is a [Lock], with the same wait, lease, loss, token, Guard, Extend and Unlock:
//
//   - [Locker.TryLock]: one owner at a time.
//   - [Locker.TryRLock]: many owners share the name, or one holds it exclusively.
//   - [Semaphore]: up to n permits at a time. Each holds a numbered slot, which no other permit has.
//   - [Locker.TryLockAll]: several names, all or none, without deadlocks between callers.
//   - [Lock.UnlockAfter]: the name stays taken for a minimum time, so that a job runs at most
//     once in that time.
//   - [Lock.Detach] and [Locker.Attach]: one process acquires the lock, another releases it.
//
// The context identifies the owner. A call with the context of a handle, or one derived from it,
// re-enters the lock without a statement. A call with any other context has another owner: if its
// own caller holds the lock, it waits for itself, as with a sync.Mutex. [WithOwner] starts an owner.
//
// # Guarantees
//
//   - At most one owner holds a name, unless all of them share it. Only the database's clock
//     decides.
//   - [Lock.Context] ends before another owner can acquire the lock. That needs no reply from the
//     database: a process counts a lease from before it sent the request, less a margin.
//   - An acquire that returns an error leaves no lock behind.
//   - Tokens rise with every change of owner, and never repeat.
//   - A stale holder cannot commit a transaction under [Lock.Guard].
//   - Unlock never releases another acquisition.
//   - Waiters are served in order of arrival, between processes as far as they can be signalled.
//
// As with every lock that has a lease, a process that is paused after it has checked its lock may
// act when it no longer holds it. Guard and tokens close that gap. After a failover with
// asynchronous replication, a lock may be granted a second time, with a higher token.
//
// While the database is unreachable, locks stay held until their leases can no longer be trusted,
// by default 29 s after the last renewal, and waiters keep waiting. The library retries after
// deadlocks, killed statements and broken connections. A lock whose holder crashed is free when
// its lease has expired.
//
// # How it works
//
// A lock is a row that contains its owner, the end of its lease by the database's clock, the
// fencing token, and the processes that wait. An acquire is one conditional UPDATE, and so is a
// release. After a third of its lease, a lock with [AutoRenew] is bound to the session of its
// Locker, which is another row. From then on a watchdog renews only the session, however many
// locks the Locker holds. A release signals the process that has waited longest: KILL QUERY
// interrupts the statement in which that process sleeps. Where signals do not arrive, waiters
// poll once a second.
//
// # Databases, pools, sessions
//
// The account needs SELECT, INSERT and UPDATE on the table, DELETE for Purge, and CREATE for
// CreateTable. The statements are correct under every time zone, sql_mode, isolation level,
// charset and collation of the connection, and each costs one round trip with every DSN.
//
// Besides the connections that its calls use, a Locker needs up to two: for renewals and for
// signals. Give it a pool of its own, of four connections or more, if calls wait for locks while
// they hold connections of the pool, or if the application exhausts its pool for seconds at a time.
//
// The directory docs has more: choosing.md (wait, lease, pool, errors), a page for each kind of
// lock, guarantees.md, guard.md, how-it-works.md, operations.md (queries, alerts, log records),
// failover.md, troubleshooting.md and sizing.md. Package mysqllocktest is for unit tests.
package mysqllock
