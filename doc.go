// Package mysqllock gives services distributed, reentrant locks that are kept in
// the MySQL or MariaDB they already run. It needs MySQL 8.0 or MariaDB 10.6, or
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
// # Other kinds of locks
//
// Each is a [Lock], with the wait, lease, loss, token, Guard, Extend and Unlock of an exclusive
// one. The page docs/choosing.md helps to choose.
//
// [Locker.TryRLock] shares a lock: any number of owners hold the name shared, or one holds it
// exclusively. Requests of both modes are served in order of arrival, so neither starves the
// other.
//
// A [Semaphore] admits up to a number of owners. Each permit is a slot, whose number no other
// permit has at the same time.
//
// [Locker.TryLockAll] acquires several locks, or none. Its callers never deadlock with each
// other, in whatever order they list the names.
//
// [Lock.UnlockAfter] gives a lock back, but keeps the name taken until a time after it was
// acquired: a job runs at most once in that time across a fleet.
//
// [Lock.Detach] turns a handle into a [Ticket], and [Locker.Attach], in any process, the ticket
// into a handle, with the same token: a request acquires, and a worker releases.
//
// # How it works
//
// A lock is a row: its holder (owner), until when by the database's clock (lease), the
// fencing token, and the processes that wait for it, in order of arrival. An acquire is
// one conditional UPDATE, which also returns what is left of the holder's lease if it is
// refused.
//
// A lock acquired with [AutoRenew] that is a third of a lease old is bound to the session
// of its Locker, one more row, which says until when the process counts as alive. From
// then on a watchdog renews that row alone, at each third of the lease, whatever the
// Locker holds. A session that has expired is dead for good: the next owner marks it so
// before it takes the lock of a process that has died.
//
// Waiters of one process queue in order; only the first asks the database. The
// process that releases a lock signals the one that has waited longest, through the
// database: it interrupts, by KILL QUERY, the statement in which that one sleeps.
// The row is kept for it for a quarter of a second. A signal is only a hint: a waiter
// looks also when the holder's lease ends, at the word of a [Notifier], and in any
// case once a second. Where signals do not arrive (a proxy, another account, a pool of
// less than four connections), that is what remains.
//
// When a lock is unlocked while other goroutines of the process wait for it, it is handed
// over to them for up to 100 ms, mostly without a statement.
//
// A hold is the time for which one owner has a lock, with one token:
//
//	          granted               bound, then kept by the session
//	TryLock ──────────► held ◄───────────────────────────────────┐
//	   ▲ refused: wait   │  │ └────────────────────────────────────┘
//	   └─────────────────┘  ├─ last Unlock ──────────────────────► released
//	                        ├─ end of trust, row taken or gone ──► lost
//	                        └─ Close ────────────────────────────► closed
//
// # What is guaranteed
//
// Mutual exclusion, by the database's clock: of all holds of a name, at most one
// has a lease that runs or a session that is alive, unless all of them are shared. Of the
// permits of a semaphore, at most as many as its limit. No clock of a client counts: both
// are written and judged by the statement's own UTC_TIMESTAMP(6).
//
// A lease that cannot be renewed is reported as lost before another owner can take
// the lock over: a process trusts a lease, and its session, from before the request was
// sent, by its monotonic clock, less a margin: a tenth of a lease of up to 10 seconds, a
// second, a thousandth of one over 1,000 seconds. A timer ends [Lock.Context] then; that
// needs no answer from the database. [Lock.Err] and [Lock.Guard] compare the clock
// themselves, so that a process that was paused finds the loss at its first call.
//
// A lock taken away by [Locker.ForceUnlock] is reported within milliseconds if its
// holder's process listens for signals, because some call there waits for a lock;
// otherwise at its next renewal, a third of its lease later at most. A row deleted
// by hand is found when its holder next compares the table with its locks, once per lease.
//
// No error leaves a lock behind: a statement whose outcome is not known (the
// context ended in the middle, the connection broke) is undone in the background,
// by an id that is unique to that attempt, and so is a grant that comes too late.
//
// Tokens rise with every change of owner of a name and never repeat: not after
// Purge, ForceUnlock, a deleted row, a truncated table, a failover to a replica
// that missed the last grants (and whose clock has reached the time of these), nor
// when the database's clock is set back while the row, or the row that Purge keeps
// for this, stands. Shared holds between two exclusive ones may have the same token; each slot of
// a semaphore has tokens of its own.
//
// A transaction under [Lock.Guard] cannot be committed by a stale holder: nobody
// takes the lock over before the transaction has ended, however long it lasts. Under a shared
// lock: nobody takes it exclusively.
//
// Unlock cannot release somebody else's acquisition: every statement after the
// grant is conditional on the id of its acquisition.
//
// A name that was unlocked by [Lock.UnlockAfter] stays taken until the time that was given, by the
// database's clock: nothing of this process keeps it, and only ForceUnlock ends it. A lock that
// was detached by [Lock.Detach] stays held for the lease that was given, with its token, until
// it is attached or that has ended.
//
// # What is not guaranteed
//
// Asynchronous replication loses committed writes on failover: a lock granted
// just before may be granted again by the new primary. The second has a higher
// token. Guard protects what is in the same database; elsewhere, let the resource
// refuse lower tokens, or use semi-synchronous replication, Group Replication or
// Galera. On a Galera cluster of which several nodes are written to, a transaction
// under Guard can be committed after the lock was taken over on another node: there
// the protected row itself must refuse lower tokens (docs/failover.md).
//
// A process that is paused between looking at its lock and acting on the world
// (a page fault, SIGSTOP, a virtual machine that migrates) acts without the lock,
// as with every lock that has a lease. Guard and tokens close that gap, Err and
// Context narrow it. A monotonic clock that stands still while the machine is
// suspended widens it.
//
// A database clock that jumps forward ends leases and sessions early; set back, it makes
// those of crashed holders last longer by as much, a session's also for the locks that are
// bound to it later. Clocks that are slewed (NTP: by
// 500 ppm at most) do no harm: the margin covers twice that.
//
// Goroutines that share an owner share its locks. They do not exclude each other.
//
// Waiting processes get a lock in the order in which they began to wait, as far as
// the row can tell: one that does not come within a quarter of a second of its
// turn is passed over, and after a lease that ended without a release, or if more
// than 50 processes wait, the first to ask may have it. A process that cannot be
// signalled is given a second and a half, in which it looks; one made with
// [WithoutSignal] gets a lock that others always want only by chance.
//
// While a lock passes on inside a process, the row says what it said when it was
// last written: the token of the first of these holders, and a lease that may
// last longer than the present one asked. If the process dies then, others wait
// for that lease, or the session, to end, never longer than [WithLease] or what was
// asked.
//
// A caller that holds a lock and calls TryLock for it again without its context
// waits for himself, as with a sync.Mutex: pass [Lock.Context] down, or start an
// owner with [WithOwner].
//
// # When something fails
//
// While the database cannot be reached, locks are kept until the end of trust: 29 s
// after the last renewal, with the default lease of 30 s. Renewals are tried again and
// again; if one succeeds in time, nothing was lost. Waiters go on waiting, and get the
// lock without help when the database is back. A call whose wait runs out before that,
// or that does not wait, returns [ErrUnavailable] and the database's error.
//
// Deadlocks, lock wait timeouts, killed statements and broken connections are
// retried within the caller's time. A read-only server, a missing table or
// privilege, a session in which locks would be wrong (autocommit=0, a fixed
// timestamp) are told at once.
//
// A lock whose holder died is free when its lease, or the session that keeps it, has
// ended.
//
// # Logs, metrics, traces
//
// [WithLogger] takes these records. Their messages, after "mysqllock: ", and keys
// are stable; further ones at level debug are not, but use the same keys. Nothing
// is said of an operation that succeeds.
//
//	level  message                       keys                 when
//	error  lock lost                     name, token, reason  once for each loss; reason is "taken", "not renewed" or "lease ended"
//	warn   renewal failed, trying again  locks, first, err    when locks of a statement begin to fail, or stay locked by others with a third of their lease left; each repetition is debug
//	info   renewals succeed again        locks, first         when those locks are renewed after all
//	warn   release                       name, err            Do or DoTx could not unlock
//	warn   a row that nobody holds is released  name          a failover lost its release, or it was changed by hand
//	warn   notifier: subscribe           err                  once a minute at most, otherwise debug
//	warn   notifier: publish             name, err            once a minute at most, otherwise debug
//
// name is that of one lock, locks how many a statement was for, first the name of
// one of them; token is the fencing token, err the error.
//
// [Locker.Stats] counts. [WithObserver] tells of each acquire, hold and renewal;
// the modules metrics/prometheus and metrics/otel make metrics and spans of both.
//
// # Sessions and pools
//
// Statements are right under every time zone, sql_mode, isolation level, charset
// and collation of the connection, and cost one round trip on every DSN: values
// are written as literals that no session can misread. Only on a connection that
// was asked for them a hundred times, the two statements of an uncontended lock are
// prepared, which spares the server a third of its work. Close ends them, but on a
// connection that is in use for longer than a fifth of a second: there they end
// with the connection.
//
// A Locker works on a pool of one connection. While it holds locks, it keeps one
// connection of a larger pool to itself for renewals (in an unlimited pool, from
// the first renewal on), so that an application that uses up its pool does not
// lose its locks. Give the Locker a pool of its own, of four connections or more,
// if calls wait for locks while they hold connections of the pool, or if the
// application uses up its pool for seconds at a time.
//
// The least privileges are
//
//	GRANT SELECT, INSERT, UPDATE ON db.mysqllock TO service
//
// and DELETE for Purge, CREATE for CreateTable.
//
// The directory docs has more: choosing wait and lease, Guard and tokens worked
// out, how it works in detail, operations, failover.
package mysqllock
