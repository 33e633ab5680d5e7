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

// The errors to test for with [errors.Is]. Operations wrap them with the name of
// the lock; [Lock.Err] and the cause of [Lock.Context] are these values.
var (
	ErrNotAcquired  = errors.New("not acquired")          // another owner held the lock for the whole wait, or a transaction had its row locked
	ErrUnavailable  = errors.New("unavailable")           // the database could not be asked, or did not answer, until the wait ran out
	ErrLost         = errors.New("lock lost")             // the lease ended, or was taken away, before Unlock
	ErrNotHeld      = errors.New("lock not held")         // this handle was unlocked before
	ErrClosed       = errors.New("locker closed")         // Locker.Close was called
	ErrInvalidName  = errors.New("invalid name")          // not 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidLease = errors.New("invalid lease")         // negative, or shorter than 10 ms
	ErrInvalidLimit = errors.New("invalid limit")         // of a semaphore: not 1 to 10,000
	ErrUpgrade      = errors.New("owner holds it shared") // TryLock for an owner that holds the lock only shared
	ErrNoTable      = store.ErrNoTable                    // the table was not created
)

const (
	// AutoRenew, as a lease, keeps the lock until Unlock: the watchdog renews it.
	AutoRenew time.Duration = 0
	// WaitForever, as a wait, waits until the context ends.
	WaitForever time.Duration = math.MaxInt64
	// DefaultLease is the lease of AutoRenew, unless [WithLease] sets another. It is also how
	// long others wait for a lock whose holder crashed.
	DefaultLease = 30 * time.Second

	minLease     = 10 * time.Millisecond
	minAutoLease = time.Second
	minPoll      = 10 * time.Millisecond

	// noWaitTimeout limits the statement of a call that does not wait, minTimeout that of a
	// call that waits for less. An attempt whose caller has returned may go on for
	// detachedTimeout, or while a transaction has the row locked.
	noWaitTimeout   = 700 * time.Millisecond
	minTimeout      = 40 * time.Millisecond
	detachedTimeout = 2 * time.Second
	// After a reply within fastReply, the next attempt runs on the caller's goroutine. A
	// cancelled call waits up to cancelGrace for its reply, and is then cut off. A wait may
	// be exceeded by minTimeout and cancelGrace together, less than 100 ms.
	fastReply   = 20 * time.Millisecond
	cancelGrace = 40 * time.Millisecond
	// probeWait is how long a call that ends waits for a probe.
	probeWait = 50 * time.Millisecond
	// overrun is how much a wait may be exceeded.
	overrun = 95 * time.Millisecond
	// unlockTimeout limits Unlock, confirmTimeout its look before a handoff, closeTimeout each
	// step of Close.
	unlockTimeout  = 3 * time.Second
	confirmTimeout = 500 * time.Millisecond
	closeTimeout   = 3 * time.Second
)

// A Locker takes and keeps locks in one table. It is safe for concurrent use; a
// process needs one per table.
type Locker struct {
	repo     repository
	table    table
	db       *sql.DB // on which DoTx begins transactions
	queues   *queue.Queues[outage.Evidence, *handoff]
	outages  *outage.Detector
	waker    *wake.Waker
	watchdog *lease.Watchdog
	releaser *undo.Releaser
	log      *slog.Logger
	lease    time.Duration
	handoff  bool          // locks may be handed over inside the process
	direct   bool          // releases may grant rows to other processes
	process  store.Process // random, the first half of every owner id
	dbIsFast atomic.Bool   // the last attempt had its reply within fastReply

	confirming atomic.Pointer[lease.Lease] // whose row is checked in the background; nil if there is none

	observers observers // may be nil

	waiting                            atomic.Int64
	acquired, notAcquired, unavailable atomic.Int64
	reentered, released, lost          atomic.Int64

	background context.Context // of statements that outlive their caller; ends with Close
	stop       context.CancelFunc
	done       chan struct{}  // closed by Close
	working    sync.WaitGroup // calls and attempts; none begins after done
	result     error          // of Close
	closeOnce  sync.Once

	mu     sync.Mutex // protects following fields, and those of every hold and Lock; locked before those of watchdog and releaser
	closed bool
	holds  map[holdKey]*hold // a lost hold stays until its last handle is unlocked
	held   int               // holds that have not ended
	shares map[string]*share // by name; those that further holds may join
}

// A Lock is a handle: one acquisition, which needs one [Lock.Unlock]. It is safe for
// concurrent use.
type Lock struct {
	locker    *Locker
	hold      *hold
	requested lease.Request
	trusted   time.Time       // the end of trust in a fixed lease
	shared    bool            // acquired by TryRLock or RLock
	reentered bool            // the owner held the lock already
	parent    context.Context // of ctx, without the owner
	open      atomic.Bool     // ended is nil
	set       *LockSet        // which ends with the handle; may be nil
	ended     error           // nil at first; then ErrLost, ErrNotHeld or ErrClosed

	ctxMu  sync.Mutex      // protects following fields
	ctx    context.Context // nil until Context is called
	cancel context.CancelCauseFunc
	cause  error // what ended the handle first
}

// An owner is compared by its address.
type owner struct{ _ byte }

type ownerKey struct{}

// WithOwner returns a context with a new owner. Locks acquired under that context, or under
// one derived from it, belong to the owner, which re-enters its own locks. A middleware
// calls it once a request. Goroutines that share an owner share its locks: these do not
// exclude them from each other.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, new(owner))
}

// New returns a Locker on db, or an error if db is nil or an option is invalid. It sends
// nothing. The Locker uses db's pool as it is and never closes it; call [Locker.Close] to end
// the Locker.
//
// While it holds locks, the Locker reserves one connection of a pool of two or more, so that
// an application that exhausts the pool cannot starve the renewals. If goroutines acquire
// locks while they hold connections (a lock within a transaction), the pool must be large
// enough for both; otherwise give the Locker a pool of its own, of two connections or more.
//
// Sessions in which a lock would be wrong are refused with an error: with autocommit off,
// with a fixed timestamp, or with a transaction that the application left open on a
// connection of the pool, if the pool has no other connection. The last is noticed only if
// the driver is go-sql-driver/mysql, or a wrapper of it with a method Raw() driver.Conn.
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
		repo: repo, log: c.log, observers: c.observers, lease: c.lease, handoff: c.handoff, direct: c.direct, process: self,
		done: make(chan struct{}), holds: map[holdKey]*hold{}, shares: map[string]*share{},
	}
	l.background, l.stop = context.WithCancel(context.Background())
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

// TryLock acquires the lock name and returns a handle that must be unlocked.
//
// It waits up to wait for the lock to be free; with wait <= 0 it makes one attempt (at most
// 1 s while a transaction has the row locked), with [WaitForever] it waits until ctx ends.
// Waiters of one process are served in order of arrival. With lease [AutoRenew] the lock is
// kept until Unlock; a fixed lease (at least 10 ms) ends by itself unless [Lock.Extend]
// prolongs it. If the owner in ctx (see [WithOwner], [Lock.Context]) holds the lock already,
// TryLock re-enters it and sends nothing.
//
// ctx limits the wait; once the lock is acquired, the end of ctx ends [Lock.Context] but not
// the lock. A cancelled call may wait up to 100 ms for the reply to its statement.
//
// If the wait runs out or ctx ends, TryLock returns [ErrNotAcquired] if another
// owner held the lock or a transaction had its row locked, and [ErrUnavailable]
// with the cause if the database could not be asked or did not reply, or the pool had
// no free connection. If ctx ended, the error also matches [context.Cause] of
// ctx. It returns [ErrLost] if the owner's hold on name was lost; [ErrUpgrade] if the owner
// holds it only shared (see [Locker.TryRLock]); [ErrClosed],
// [ErrInvalidName], [ErrInvalidLease], [ErrNoTable]; otherwise the database's
// error. Deadlocks, lock wait timeouts and broken connections are retried within
// the wait. An error leaves no lock behind: an attempt with unknown outcome is
// undone in the background.
func (l *Locker) TryLock(ctx context.Context, name string, wait, lease time.Duration) (*Lock, error) {
	return l.acquire(ctx, request{name: name, mode: store.Exclusive, wait: wait, lease: lease})
}

// acquire serves a request, which observers see, and counts failures.
func (l *Locker) acquire(ctx context.Context, r request) (*Lock, error) {
	name := r.name
	o := l.observers.acquireStart(ctx, name, r.mode)
	k, err := l.tryAcquire(ctx, r, o)
	return l.acquireEnded("acquire", name, k, err, o)
}

// acquireEnded counts and reports the end of a call that acquires, and describes its error.
func (l *Locker) acquireEnded(op, name string, k *Lock, err error, o *observed) (*Lock, error) {
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

// Lock is TryLock with [WaitForever], and returns its errors. Like a sync.Mutex, it waits for ever
// for a lock that the caller holds, unless the owner in ctx holds it.
func (l *Locker) Lock(ctx context.Context, name string, lease time.Duration) (*Lock, error) {
	return l.TryLock(ctx, name, WaitForever, lease)
}

// Do calls fn under the lock, with the context of the handle, and unlocks even if fn panics.
// It returns the error of TryLock, without having called fn, or that of fn, joined with
// [ErrLost] if the lock was lost meanwhile, or with [ErrClosed] if Close released it. If fn
// acquires locks itself, an [ErrNotAcquired] may be from there.
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

func opError(op, name string, err error) error {
	return fmt.Errorf("mysqllock: %s %q: %w", op, store.Shorten(name), err)
}

// Name returns the name of the lock.
func (k *Lock) Name() string { return store.NameOf(k.hold.key.name) }

// Token returns the fencing token: it is higher than that of every earlier
// holder of the name, and the same for all handles of one hold. A resource that
// remembers the highest token it has seen can refuse a stale holder.
func (k *Lock) Token() uint64 { return k.hold.token }

// Context returns the context that TryLock was given, with the owner added. It
// ends with that context, and when the lock is lost (cause [ErrLost]), unlocked
// (cause [ErrNotHeld]) or the Locker closed (cause [ErrClosed]).
func (k *Lock) Context() context.Context {
	k.ctxMu.Lock()
	defer k.ctxMu.Unlock()
	if k.ctx == nil {
		ctx := k.parent
		if k.cause != nil {
			ctx = context.WithoutCancel(ctx) // the handle ended first
		}
		if ctx.Value(ownerKey{}) != any(k.hold.owner) {
			ctx = context.WithValue(ctx, ownerKey{}, k.hold.owner)
		}
		k.ctx, k.cancel = context.WithCancelCause(ctx)
		if k.cause != nil {
			k.cancel(k.cause)
		}
	}
	return k.ctx
}

// end ends the handle and its context. The caller holds the Locker's mu.
func (k *Lock) end(why error) {
	k.ended = why
	k.open.Store(false)
	k.ctxMu.Lock()
	defer k.ctxMu.Unlock()
	if k.cause == nil {
		k.cause = why
	}
	if k.cancel != nil {
		k.cancel(why)
	}
	if k.set != nil && why != ErrNotHeld {
		k.set.cancel(why)
	}
}

// Err returns nil if the lease can be trusted at this very moment; else
// [ErrLost], [ErrNotHeld] if the handle was unlocked, or [ErrClosed]. It compares the clock
// of this process, and never blocks on the database.
func (k *Lock) Err() error {
	if k.open.Load() && k.hold.live() {
		return nil
	}
	l := k.locker
	l.mu.Lock()
	lost := l.checkLoss(k.hold)
	err := k.state()
	l.mu.Unlock()
	l.finishLoss(k.hold, lost)
	return err
}

// state returns the error of the handle. The caller holds mu.
func (k *Lock) state() error {
	if k.locker.closed {
		return ErrClosed
	}
	return k.ended
}

// Remaining returns for how long the lease can be trusted without a renewal, 0 if the lock is
// lost or this handle was unlocked. It compares the clock of this process, and never blocks.
func (k *Lock) Remaining() time.Duration {
	if !k.open.Load() {
		return 0
	}
	return k.hold.remaining()
}

// Unlock ends this handle and its Context; with the last handle of its hold, it releases the
// lock. It needs no context, and blocks for one round trip, two if its statement did not
// match the row, and at most 3 s.
//
// It returns nil on success; [ErrNotHeld] if the handle was unlocked before; [ErrLost] if the
// lease had ended before; [ErrClosed] after Close. After any other error the outcome is
// unknown, and the library retries in the background until the release succeeds or the lease
// has ended. Unlock never releases another acquisition.
func (k *Lock) Unlock() error {
	if err := k.unlock(0); err != nil {
		return opError("unlock", k.Name(), err)
	}
	return nil
}

// unlock is Unlock for a lock that stays taken until held after it was acquired.
func (k *Lock) unlock(held time.Duration) error {
	l, h := k.locker, k.hold
	l.lockAfterDowngrade(context.Background(), h)
	lost := l.checkLoss(h)
	defer l.finishLoss(h, lost)
	err := k.state()
	if err == ErrNotHeld || err == ErrClosed {
		l.mu.Unlock()
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
		l.mu.Unlock()
		if downgrade {
			l.downgrade(h, firstBackoff)
		}
		return err
	}
	delete(l.holds, h.key)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	l.endHold(h, ErrNotHeld)
	l.working.Add(1)
	defer l.working.Done()
	l.mu.Unlock()
	err = l.endUnlocked(h)
	l.observers.holdEnd(h, err)
	return err
}

// endUnlocked gives back the row of a hold whose last handle was unlocked.
func (l *Locker) endUnlocked(h *hold) (err error) {
	now := time.Now()
	end := now.Add(unlockTimeout)
	others := false
	if h.share != nil {
		err = l.keepShared(end, h)
		others = l.leaveShare(h)
	}
	if others || h.waiter != nil && !h.guarded.Load() && l.handOff(h, now) {
		l.released.Add(1)
		return err
	}
	switch err = outage.Describe(cmp.Or(l.releaseHold(end, h), err)); err {
	case nil:
		l.released.Add(1)
	case ErrLost:
		l.recordLoss(h, lease.Taken)
	}
	l.repo.HoldEnded()
	l.serveNext(h)
	return err
}

// Stats has the counters of a Locker. All but Held and Waiting only rise.
type Stats struct {
	Held, Waiting                                    int // locks held, goroutines waiting now
	Acquired, NotAcquired, Reentered, Released, Lost int64
	Unavailable                                      int64 // acquires that returned ErrUnavailable
	Renewals, RenewalErrors, Statements              int64 // leases renewed; statements that failed to, or found the row of a lease near its loss locked; all statements sent
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
