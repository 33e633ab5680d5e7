package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/queue"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
	"github.com/mysqllock/mysqllock/internal/wake"
)

// The errors that callers can test for with [errors.Is]. Most methods wrap them in an error that
// names the lock. [Lock.Err] and the cause of [Lock.Context] are these values themselves.
var (
	ErrNotAcquired  = errors.New("not acquired")          // another owner held the lock for the whole wait, or a transaction had its row locked
	ErrUnavailable  = errors.New("unavailable")           // until the wait ran out, the database was unreachable or did not reply, or the pool had no free connection
	ErrLost         = errors.New("lock lost")             // the lease ended, or was taken away, before Unlock
	ErrNotHeld      = errors.New("lock not held")         // this handle was unlocked before
	ErrClosed       = errors.New("locker closed")         // Locker.Close was called
	ErrInvalidName  = errors.New("invalid name")          // not 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidLease = errors.New("invalid lease")         // negative, or shorter than 10 ms
	ErrInvalidLimit = errors.New("invalid limit")         // of a semaphore, or a slot: not 1 to 10,000
	ErrUpgrade      = errors.New("owner holds it shared") // TryLock was called by an owner that holds the lock only shared
	ErrNoTable      = store.ErrNoTable                    // the table was not created

	// ErrCommitUnknown is the error of DoTx if the database did not reply to the commit.
	ErrCommitUnknown = errors.New("the outcome of the commit is unknown")
)

const (
	// AutoRenew, as a lease, keeps the lock until Unlock: the watchdog renews it.
	AutoRenew time.Duration = 0
	// WaitForever, as a wait, waits until the context ends.
	WaitForever time.Duration = math.MaxInt64
	// DefaultLease is the lease of AutoRenew unless [WithLease] sets another. It is also how
	// long others wait, at most, for a lock whose holder crashed.
	DefaultLease = 30 * time.Second

	minLease     = 10 * time.Millisecond
	minAutoLease = time.Second
	minPoll      = 10 * time.Millisecond

	// noWaitTimeout limits the statement of a call with wait 0. minTimeout is the least limit
	// for the statement of any other call, however short its wait. After its caller has
	// returned, an attempt may continue for detachedTimeout, or while a transaction has the
	// row locked.
	noWaitTimeout   = 700 * time.Millisecond
	minTimeout      = 40 * time.Millisecond
	detachedTimeout = 2 * time.Second
	// After a reply within fastReply, the next attempt runs on the caller's goroutine. If that
	// call is cancelled, its statement is cut off after cancelGrace. So a call may exceed its
	// wait by minTimeout and cancelGrace together, which is less than 100 ms.
	fastReply   = 20 * time.Millisecond
	cancelGrace = 40 * time.Millisecond
	// probeWait is how long a call waits, before it returns an error, for the probe that shows
	// whether the database replies.
	probeWait = 50 * time.Millisecond
	// maxOverrun limits how much a call may exceed its wait.
	maxOverrun = 95 * time.Millisecond
	// unlockTimeout limits Unlock, Detach and Attach, confirmTimeout the check of a row before a
	// handoff, and closeTimeout each step of Close.
	unlockTimeout  = 3 * time.Second
	confirmTimeout = 500 * time.Millisecond
	closeTimeout   = 3 * time.Second
)

// A Locker acquires locks in one table, and keeps them. It is safe for concurrent use; a process
// needs one Locker per table.
type Locker struct {
	config
	repo     repository
	table    table
	db       *sql.DB // where DoTx begins transactions
	queues   *queue.Queues[outage.Evidence, *handoff]
	outages  *outage.Detector
	waker    *wake.Waker
	watchdog *lease.Watchdog
	releaser *undo.Releaser
	process  store.Process // the random id that begins every owner id of this Locker
	dbIsFast atomic.Bool   // the last attempt had its reply within fastReply

	confirming atomic.Bool // a row is being checked in the background

	waiting                            atomic.Int64
	acquired, notAcquired, unavailable atomic.Int64
	reentered, released, lost          atomic.Int64

	background context.Context // of statements that may outlive their caller; cancelled by Close
	stop       context.CancelFunc
	done       chan struct{}  // closed by Close
	working    sync.WaitGroup // calls and attempts in progress; none begins after done is closed
	closeOnce  func() error   // close, called once

	// mu protects following fields, and those of every hold and Lock. It is locked before the
	// mutexes of watchdog and releaser.
	mu     sync.Mutex
	holds  map[holdKey]*hold // a lost hold stays here until its last handle is unlocked
	held   int               // holds that have not ended
	shares map[string]*share // by name; the shares that further holds may join
	losses []*hold           // found by checkLoss; unlockMu reports them
}

// A Lock is a handle for a lock that was acquired. Each handle needs one [Lock.Unlock]. It is safe
// for concurrent use.
type Lock struct {
	locker    *Locker
	hold      *hold
	requested lease.Request
	shared    bool            // acquired by TryRLock or RLock
	reentered bool            // the owner held the lock already
	parent    context.Context // the caller's context, from which Context derives ctx
	open      atomic.Bool     // whether ended is nil
	set       *LockSet        // the set that contains the handle, or nil

	ctxMu  sync.Mutex      // protects following fields
	ended  error           // nil while the handle is open; then ErrLost, ErrNotHeld or ErrClosed. The Locker's mu protects it, too
	ctx    context.Context // nil until Context is called
	cancel context.CancelCauseFunc
}

// An owner is identified by its address, so it must not have size zero.
type owner struct{ _ byte }

type ownerKey struct{}

// WithOwner returns a context with a new owner. Locks acquired with that context, or with one
// derived from it, belong to the owner, which re-enters the locks that it holds. Typically, a
// middleware calls WithOwner once per request. Goroutines that share an owner share its locks, so
// the locks do not exclude these goroutines from each other.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, new(owner))
}

// New returns a Locker on db, or an error if db is nil or an option is invalid. It sends
// nothing. The Locker neither configures nor closes db; call [Locker.Close] to end the Locker.
//
// While it holds locks, the Locker reserves one connection if the pool has two or more, so that
// an application that exhausts the pool cannot starve the renewals. If goroutines acquire locks
// while they hold connections (a lock within a transaction), the pool must be large enough for
// both; otherwise give the Locker a pool of its own, of four connections or more.
//
// Methods of the Locker return an error if locks would be unsafe in the database session: if
// autocommit is off, if the timestamp is fixed, or if the application left a transaction open on
// the connection and the pool has no other. The last is noticed only if the driver is
// go-sql-driver/mysql, or a wrapper of it with a method Raw() driver.Conn.
func New(db *sql.DB, opts ...Option) (*Locker, error) {
	if db == nil {
		return nil, errors.New("mysqllock: New: nil db")
	}
	host, _ := os.Hostname()
	c := config{
		table: "mysqllock", lease: DefaultLease, poll: time.Second,
		log: slog.New(slog.DiscardHandler), identity: fmt.Sprintf("%s:%d", host, os.Getpid()),
		signal: true, handoff: true, direct: true,
	}
	for _, opt := range opts {
		if err := opt(&c); err != nil {
			return nil, fmt.Errorf("mysqllock: New: %w", err)
		}
	}
	self := store.NewProcess()
	opened, db, err := openTable(db, c, self)
	if err != nil {
		return nil, fmt.Errorf("mysqllock: New: %w", err)
	}
	l := newLocker(opened, self, c)
	l.table, l.db = opened, db
	return l, nil
}

func newLocker(repo repository, self store.Process, c config) *Locker {
	l := &Locker{
		config: c, repo: repo, process: self,
		done: make(chan struct{}), holds: map[holdKey]*hold{}, shares: map[string]*share{},
	}
	l.background, l.stop = context.WithCancel(context.Background())
	l.closeOnce = sync.OnceValue(l.close)
	l.queues = queue.New[outage.Evidence, *handoff]()
	l.outages = outage.NewDetector(repo)
	l.waker = wake.New(repo, l.queues, wake.Config{
		Self: self, Interval: c.poll, Signal: c.signal, Notifier: c.notifier, Log: c.log,
		Forced: func() { l.watchdog.Audit() },
	})
	l.releaser = undo.New(repo, min(c.lease/4, 5*time.Second), l.waker.Freed, c.log)
	l.watchdog = lease.New(repo, lease.Config{
		Self: self, Length: c.lease, Releaser: l.releaser, Log: c.log,
		Reported: func(locks, renewed int, err error) {
			c.observers.renewal(RenewalInfo{Locks: locks, Renewed: renewed, Err: err})
		},
	})
	return l
}

// TryLock acquires the lock called name and returns a handle, which must be unlocked.
//
// It waits for up to wait until the lock is free. With wait <= 0 it makes one attempt, which
// takes at most 1 s even if a transaction has the row locked; with [WaitForever] it waits until
// ctx ends. Waiters in one process are served in order of arrival. With lease [AutoRenew] the
// lock is kept until Unlock; a fixed lease (at least 10 ms) expires by itself unless
// [Lock.Extend] prolongs it. If the owner in ctx (see [WithOwner], [Lock.Context]) holds the
// lock already, TryLock re-enters it and sends nothing.
//
// ctx limits the wait. Once the lock is acquired, the end of ctx ends [Lock.Context] but not the
// lock. A cancelled call may wait up to 100 ms for the reply to its statement.
//
// If the wait runs out or ctx ends, TryLock returns [ErrNotAcquired] if another owner held the
// lock or a transaction had its row locked. It returns [ErrUnavailable], with the cause, if the
// database was unreachable or did not reply, or if the pool had no free connection. If ctx ended,
// the error also matches [context.Cause] of ctx.
//
// TryLock returns [ErrLost] if the owner has lost the lock and not unlocked it yet; [ErrUpgrade]
// if the owner holds it only shared (see [Locker.TryRLock]); [ErrClosed], [ErrInvalidName],
// [ErrInvalidLease], [ErrNoTable]; otherwise the database's error. Deadlocks, lock wait timeouts
// and broken connections are retried within the wait. An error leaves no lock behind: an attempt
// whose outcome is unknown is undone in the background.
func (l *Locker) TryLock(ctx context.Context, name string, wait, lease time.Duration) (*Lock, error) {
	return l.acquire(ctx, request{name: name, mode: store.Exclusive, wait: wait, lease: lease})
}

// acquire serves a request, reports it to the observers, and counts failures.
func (l *Locker) acquire(ctx context.Context, r request) (*Lock, error) {
	name := r.name
	o := l.observers.acquireStart(ctx, name, r.mode)
	k, err := l.tryAcquire(ctx, r, o)
	return l.acquireEnded("acquire", name, k, err, o)
}

// acquireEnded counts and reports the end of a call that acquires. It adds op and name to the error.
func (l *Locker) acquireEnded(op, name string, k *Lock, err error, o *observation) (*Lock, error) {
	if err != nil {
		switch {
		case errors.Is(err, ErrNotAcquired):
			l.notAcquired.Add(1)
		case errors.Is(err, ErrUnavailable):
			l.unavailable.Add(1)
		}
		err = opError(op, name, err)
	}
	l.observers.acquireEnd(o, name, k, err)
	return k, err
}

// Lock is TryLock with [WaitForever], and returns its errors. Like the Lock method of a
// sync.Mutex, it blocks forever if the caller holds the lock already, unless ctx identifies the
// owner that holds it.
func (l *Locker) Lock(ctx context.Context, name string, lease time.Duration) (*Lock, error) {
	return l.TryLock(ctx, name, WaitForever, lease)
}

// Do acquires the lock as TryLock does, calls fn with the context of the handle, and unlocks even
// if fn panics. If TryLock fails, Do returns its error and does not call fn. Otherwise it returns
// the error of fn, joined with [ErrLost] if the lock was lost before Unlock, or with [ErrClosed]
// if Close released it. If fn acquires locks itself, an [ErrNotAcquired] may come from fn.
func (l *Locker) Do(ctx context.Context, name string, wait, lease time.Duration, fn func(ctx context.Context) error) error {
	return l.do(ctx, name, wait, lease, func(k *Lock) error { return fn(k.Context()) })
}

func (l *Locker) do(ctx context.Context, name string, wait, lease time.Duration, fn func(k *Lock) error) (err error) {
	k, err := l.TryLock(ctx, name, wait, lease)
	if err != nil {
		return err
	}
	defer func() {
		if unlockErr := k.Unlock(); errors.Is(unlockErr, ErrLost) || errors.Is(unlockErr, ErrClosed) {
			err = errors.Join(err, unlockErr)
		} else if unlockErr != nil {
			l.log.Warn("mysqllock: release", "name", name, "err", unlockErr)
		}
	}()
	return fn(k)
}

// opError adds an operation and the name of its lock to an error. It returns nil if err is nil.
func opError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mysqllock: %s %q: %w", op, store.Shorten(name), err)
}

// Name returns the name of the lock.
func (k *Lock) Name() string { return store.NameOf(k.hold.key.name) }

// Token returns the fencing token. It is higher than that of every earlier holder of the name,
// except that holders who share the name may have the same one; see also [Lock.Slot]. All handles
// of one hold have the same token. A resource that remembers the highest token it has seen can
// refuse a stale holder.
func (k *Lock) Token() uint64 { return k.hold.token }

// Context returns the context that was passed to TryLock, with the owner added. It ends when that
// context ends, when the lock is lost (cause [ErrLost]), when this handle is unlocked (cause
// [ErrNotHeld]), or when the Locker is closed (cause [ErrClosed]).
func (k *Lock) Context() context.Context {
	k.ctxMu.Lock()
	defer k.ctxMu.Unlock()
	if k.ctx == nil {
		ctx := k.parent
		if k.ended != nil {
			ctx = context.WithoutCancel(ctx) // its cause must be ended
		}
		if ctx.Value(ownerKey{}) != any(k.hold.owner) {
			ctx = context.WithValue(ctx, ownerKey{}, k.hold.owner)
		}
		k.ctx, k.cancel = context.WithCancelCause(ctx)
		if k.ended != nil {
			k.cancel(k.ended)
		}
	}
	return k.ctx
}

// end ends the handle and its context. The caller holds the Locker's mu.
func (k *Lock) end(why error) {
	k.open.Store(false)
	k.ctxMu.Lock()
	defer k.ctxMu.Unlock()
	k.ended = why
	if k.cancel != nil {
		k.cancel(why)
	}
	if k.set != nil && why != ErrNotHeld {
		k.set.cancel(why)
	}
}

// Err returns nil if the lease can be trusted at this moment. Otherwise it returns [ErrLost],
// [ErrNotHeld] if this handle was unlocked, or [ErrClosed]. It only reads the clock of this
// process, and never blocks on the database.
func (k *Lock) Err() error {
	if k.open.Load() && k.hold.live() {
		return nil
	}
	l := k.locker
	l.mu.Lock()
	defer l.unlockMu()
	l.checkLoss(k.hold)
	return k.state()
}

// state returns why the handle has ended, or nil if it is open. The caller holds mu.
func (k *Lock) state() error {
	if k.locker.isClosed() {
		return ErrClosed
	}
	return k.ended
}

// Remaining returns how long the lease can be trusted without another renewal, or 0 if the lock
// is lost or this handle was unlocked. It only reads the clock of this process, and never blocks.
func (k *Lock) Remaining() time.Duration {
	if !k.open.Load() {
		return 0
	}
	return k.hold.remaining()
}

// Unlock ends this handle and its Context. If it is the last handle of its hold, Unlock releases
// the lock. It needs no context. It blocks for one round trip, or two if the first statement did
// not match the row, and for at most 3 s.
//
// It returns nil on success; [ErrNotHeld] if the handle was unlocked before; [ErrLost] if the
// lock was lost before; [ErrClosed] after Close. After any other error the outcome is unknown,
// and the library retries in the background until the release succeeds or the lease has ended.
// Unlock never releases another acquisition.
func (k *Lock) Unlock() error { return k.UnlockAfter(0) }

// unlock is Unlock, except that the name stays taken until the time held has passed since the
// lock was acquired.
func (k *Lock) unlock(held time.Duration) error {
	l, h := k.locker, k.hold
	l.lockAfterDowngrade(context.Background(), h)
	l.checkLoss(h)
	err := k.state()
	if err == ErrNotHeld || err == ErrClosed {
		l.unlockMu()
		return err
	}
	k.end(ErrNotHeld)
	h.minHold = max(h.minHold, held)
	i := slices.Index(h.handles, k)
	h.handles = slices.Delete(h.handles, i, i+1)
	if len(h.handles) > 0 {
		if err == nil {
			l.requestsChanged(h)
		}
		downgrade := err == nil && l.startDowngrade(h)
		l.unlockMu()
		if downgrade {
			l.downgrade(h, firstBackoff)
		}
		return err
	}
	delete(l.holds, h.key)
	if err != nil {
		l.unlockMu()
		return err
	}
	l.endHold(h, ErrNotHeld)
	l.working.Add(1)
	defer l.working.Done()
	l.mu.Unlock()
	return l.endUnlocked(h)
}

// endUnlocked hands over or releases the row of a hold whose last handle was unlocked.
func (l *Locker) endUnlocked(h *hold) (err error) {
	now := time.Now()
	end := now.Add(unlockTimeout)
	others := false
	if h.share != nil {
		err = l.keepShared(end, h)
		others = l.leaveShare(h)
	}
	if others || !h.guarded.Load() && l.handOff(h, now) {
		l.released.Add(1)
		l.observers.holdEnd(h, err)
		return err
	}
	err = outage.Describe(cmp.Or(l.releaseHold(end, h), err))
	l.rowReleased(h, err)
	return err
}

// rowReleased records that the row of a hold that has ended was released, or why it was not. It lets
// the next waiter of the process proceed.
func (l *Locker) rowReleased(h *hold, err error) {
	switch err {
	case nil:
		l.released.Add(1)
	case ErrLost:
		l.recordLoss(h, lease.Taken)
	}
	l.repo.HoldEnded()
	l.serveNext(h)
	l.observers.holdEnd(h, err)
}

// Stats has the counters of a Locker. All except Held and Waiting only rise.
type Stats struct {
	Held    int // locks held now
	Waiting int // goroutines that wait for a lock now

	Acquired, NotAcquired, Reentered, Released, Lost int64
	Unavailable                                      int64 // acquires that returned ErrUnavailable
	Renewals                                         int64 // leases renewed
	RenewalErrors                                    int64 // statements that failed to renew, or skipped the locked row of a lease that was about to be lost
	Statements                                       int64 // all statements sent
}

// Stats returns the counters. It never blocks on the database.
func (l *Locker) Stats() Stats {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	s := Stats{
		Held: held, Waiting: int(l.waiting.Load()),
		Acquired: l.acquired.Load(), NotAcquired: l.notAcquired.Load(), Unavailable: l.unavailable.Load(), Reentered: l.reentered.Load(),
		Released: l.released.Load(), Lost: l.lost.Load(),
	}
	s.Renewals, s.RenewalErrors = l.watchdog.Renewals()
	if l.table != nil {
		s.Statements = l.table.Statements()
	}
	return s
}
