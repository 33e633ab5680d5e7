package mysqllock

import (
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
	"unicode"
	"unicode/utf8"

	"github.com/mysqllock/mysqllock/internal/store"
)

// The errors to test for with [errors.Is]. Operations wrap them with the name of
// the lock; [Lock.Err] and the cause of [Lock.Context] are these values.
var (
	ErrNotAcquired  = errors.New("not acquired")  // another owner held the lock for the whole wait, or a transaction had its row locked
	ErrUnavailable  = errors.New("unavailable")   // the database could not be asked, or did not answer, until the wait ran out
	ErrLost         = errors.New("lock lost")     // the lease ended, or was taken away, before Unlock
	ErrNotHeld      = errors.New("lock not held") // this handle was unlocked before
	ErrClosed       = errors.New("locker closed") // Locker.Close was called
	ErrInvalidName  = errors.New("invalid name")  // not 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidLease = errors.New("invalid lease") // negative, or shorter than 10 ms
	ErrNoTable      = store.ErrNoTable            // the table was not created
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
	// An attempt without a reply is probed after probeAfter, and then each probeInterval. A
	// call that ends sooner starts the first probe if the attempt is probeSoon old, and waits
	// for it for probeWait.
	probeSoon     = 15 * time.Millisecond
	probeAfter    = 400 * time.Millisecond
	probeInterval = time.Second
	probeWait     = 50 * time.Millisecond
	// overrun is how much a wait may be exceeded.
	overrun = 95 * time.Millisecond
	// unlockBound limits Unlock, confirmBound its look before a handoff, closeBound each step
	// of Close.
	unlockBound  = 3 * time.Second
	confirmBound = 500 * time.Millisecond
	closeBound   = 3 * time.Second
)

// An Option changes a default of [New].
type Option func(*config) error

type config struct {
	table     string
	lease     time.Duration
	poll      time.Duration
	log       *slog.Logger
	identity  string
	notifier  Notifier
	signal    bool
	handoff   bool
	observers observers
}

// WithTable sets the table: "table" or "db.table", of letters, digits, _, $ and
// -. The default is "mysqllock" in the database of the connection.
func WithTable(name string) Option {
	return func(c *config) error {
		if _, err := store.QuoteTable(name); err != nil {
			return fmt.Errorf("WithTable: %w", err)
		}
		c.table = name
		return nil
	}
}

// WithLease sets the lease that the watchdog keeps for [AutoRenew]; it is
// renewed each third of it. The default is [DefaultLease], the least 1 s. A
// longer one survives longer outages of the database, a shorter one frees the
// locks of a process that died sooner.
func WithLease(d time.Duration) Option {
	return func(c *config) error {
		if d < minAutoLease {
			return fmt.Errorf("WithLease: %v is shorter than %v", d, minAutoLease)
		}
		c.lease = d
		return nil
	}
}

// WithPollInterval sets how often the process looks whether the rows that its
// waiters wait for are free, all in one statement. The default is 1 s, the least
// 10 ms.
func WithPollInterval(d time.Duration) Option {
	return func(c *config) error {
		if d < minPoll {
			return fmt.Errorf("WithPollInterval: %v is shorter than %v", d, minPoll)
		}
		c.poll = d
		return nil
	}
}

// WithLogger sets where losses (level error), failing renewals (warn) and the
// failures of background work go; the package documentation has a table of the
// records. The default discards them.
func WithLogger(log *slog.Logger) Option {
	return func(c *config) error {
		if log == nil {
			return errors.New("WithLogger: nil logger")
		}
		c.log = log
		return nil
	}
}

// WithIdentity sets what operators see as the holder of this process' locks: 1
// to 255 bytes of UTF-8 without control characters. The default is "host:pid".
func WithIdentity(label string) Option {
	return func(c *config) error {
		if err := checkText(label); err != nil {
			return fmt.Errorf("WithIdentity: %w", err)
		}
		c.identity = label
		return nil
	}
}

// WithNotifier adds a message queue that tells waiters in other processes of a
// release before their next poll. The default is none.
func WithNotifier(n Notifier) Option {
	return func(c *config) error {
		if n == nil {
			return errors.New("WithNotifier: nil notifier")
		}
		c.notifier = n
		return nil
	}
}

// WithoutSignal keeps waiters in different processes from waking each other
// through the database, by KILL QUERY on a statement that sleeps: they poll. It
// saves a process that waits its further connection, and is for proxies that
// mistake such a statement, or where a [Notifier] does the waking. Processes that
// share a table should agree on it: those that can be rung go first.
func WithoutSignal() Option {
	return func(c *config) error { c.signal = false; return nil }
}

// WithoutHandoff keeps a lock from passing on to the next waiter of the same
// process without a write to the database: each holder then takes the row anew,
// and the table always tells the present token. With handoffs, the row is looked at
// if no statement has shown it as this process's own in the last 2 ms.
func WithoutHandoff() Option {
	return func(c *config) error { c.handoff = false; return nil }
}

// A Locker takes and keeps locks in one table. It is safe for concurrent use; a
// process needs one per table.
type Locker struct {
	repo     repository
	table    *store.Store
	registry *registry
	watchdog *watchdog
	releaser *releaser
	log      *slog.Logger
	lease    time.Duration
	handoff  bool          // locks may be handed over inside the process
	process  store.Process // random, the first half of every owner id
	dbIsFast atomic.Bool   // the last attempt had its reply within fastReply

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

	mu     sync.Mutex // protects following fields, and those of every hold and Lock; locked before those of watchdog and releaser, never with registry.mu
	closed bool
	holds  map[holdKey]*hold // until the last handle is unlocked, also once lost
	held   int               // holds that have not ended
}

type holdKey struct {
	owner *owner
	name  string
}

// A hold is one owner's tenure of a lock: from the grant, or a handoff, until it is released
// or lost.
type hold struct {
	key      holdKey
	token    uint64
	tokens   tokenRange
	lease    *lease
	waiter   *waiter // the head of the name's queue
	handles  []*Lock
	observed *observed // may be nil
	guarded  bool      // a transaction may be under Guard
	ended    error     // nil at first; then ErrLost, ErrNotHeld or ErrClosed
}

// A tokenRange is shared by holds that follow each other by handoffs.
type tokenRange struct {
	token uint64    // of the row; the tokens of the holds count from it
	since time.Time // the first handoff; zero if there was none
}

// A handoff transfers a live lease to the next local waiter.
type handoff struct {
	tokenRange
	last  uint64 // the last token that was used
	lease *lease
}

// maxHandoffTime is how long a lock is handed over inside the process before others may
// have it.
const maxHandoffTime = 100 * time.Millisecond

// handoffTrust is how long after a statement that found the row to be ours a handoff needs no
// look. A holder that lost its row earlier hands nothing over, and reports the loss.
const handoffTrust = 2 * time.Millisecond

// A Lock is a handle: one acquisition, which needs one [Lock.Unlock]. It is safe for
// concurrent use.
type Lock struct {
	locker    *Locker
	hold      *hold
	requested request
	ctx       context.Context
	cancel    context.CancelCauseFunc
	ended     error // nil at first; then ErrLost, ErrNotHeld or ErrClosed

	reentered bool // the owner held the lock already
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

// New returns a Locker on db. It checks the options and sends nothing. The
// Locker uses db's pool as it is and never closes it; call [Locker.Close] to end
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
		signal: true, handoff: true,
	}
	for _, opt := range opts {
		if err := opt(&c); err != nil {
			return nil, fmt.Errorf("mysqllock: New: %w", err)
		}
	}
	self := store.NewProcess()
	table, err := store.New(db, Schema, c.table, c.identity, self, c.lease)
	if err != nil {
		return nil, fmt.Errorf("mysqllock: New: %w", err)
	}
	l := newLocker(table, self, c)
	l.table = table
	return l, nil
}

func newLocker(repo repository, self store.Process, c config) *Locker {
	l := &Locker{
		repo: repo, log: c.log, observers: c.observers, lease: c.lease, handoff: c.handoff, process: self,
		done: make(chan struct{}), holds: map[holdKey]*hold{},
	}
	l.background, l.stop = context.WithCancel(context.Background())
	l.registry = newRegistry(repo, self, c.poll, c.signal, c.notifier, c.log)
	l.releaser = newReleaser(repo, min(c.lease/4, 5*time.Second), l.registry.freed, c.log)
	l.watchdog = newWatchdog(repo, c.lease, l.releaser, c.log, c.observers)
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
// ctx. It returns [ErrLost] if the owner's hold on name was lost; [ErrClosed],
// [ErrInvalidName], [ErrInvalidLease], [ErrNoTable]; otherwise the database's
// error. Deadlocks, lock wait timeouts and broken connections are retried within
// the wait. An error leaves no lock behind: an attempt with unknown outcome is
// undone in the background.
func (l *Locker) TryLock(ctx context.Context, name string, wait, lease time.Duration) (*Lock, error) {
	o := l.observers.acquireStart(ctx, name)
	k, err := l.tryLock(ctx, name, wait, lease, o)
	if err != nil {
		switch {
		case errors.Is(err, ErrNotAcquired):
			l.notAcquired.Add(1)
		case errors.Is(err, ErrUnavailable):
			l.unavailable.Add(1)
		}
		err = opError("acquire", name, err)
	}
	l.observers.acquireEnd(o, name, k, err)
	return k, err
}

// Lock is TryLock with [WaitForever]. Like a sync.Mutex, it waits for ever for a lock that
// the caller holds, unless the owner in ctx holds it.
func (l *Locker) Lock(ctx context.Context, name string, lease time.Duration) (*Lock, error) {
	return l.TryLock(ctx, name, WaitForever, lease)
}

// Do calls fn under the lock, with the context of the handle, and unlocks even if fn panics.
// It returns the error of TryLock, without having called fn, or that of fn, joined with
// [ErrLost] if the lock was lost meanwhile, or with [ErrClosed] if Close released it. If fn
// acquires locks itself, an [ErrNotAcquired] may be from there.
func (l *Locker) Do(ctx context.Context, name string, wait, lease time.Duration, fn func(ctx context.Context) error) (err error) {
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
	return fn(k.Context())
}

func opError(op, name string, err error) error {
	return fmt.Errorf("mysqllock: %s %q: %w", op, store.Shorten(name), err)
}

func (l *Locker) tryLock(ctx context.Context, name string, wait, lease time.Duration, o *observed) (*Lock, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if lease != AutoRenew && lease < minLease {
		return nil, fmt.Errorf("%w: %v; want AutoRenew or at least %v", ErrInvalidLease, lease, minLease)
	}
	c := &call{l: l, ctx: ctx, name: name, lease: lease, wait: wait, noWait: wait <= 0, observed: o}
	if c.noWait {
		c.wait = noWaitTimeout
	}
	c.owner, c.shared = ctx.Value(ownerKey{}).(*owner)
	if !c.shared {
		c.owner = new(owner)
	}
	if k, err := c.reenter(); k != nil || err != nil {
		return k, err
	}
	if ctx.Err() != nil {
		return nil, c.canceled()
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.working.Done()
	if wait != WaitForever {
		// Closed rather than sent to, because they are received from more than once.
		timeout := make(chan struct{})
		c.timeout = timeout
		defer time.AfterFunc(c.wait, func() { close(timeout) }).Stop()
		if c.cutoff = timeout; c.wait < minTimeout {
			cut := make(chan struct{})
			c.cutoff = cut
			defer time.AfterFunc(minTimeout, func() { close(cut) }).Stop()
		}
		c.cutoffTime = time.Now().Add(max(c.wait, minTimeout))
	}
	return c.acquire()
}

// enter counts a call for which Close waits. It returns false after Close.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.working.Add(1)
	}
	return !l.closed
}

// A call is one TryLock in progress.
type call struct {
	l          *Locker
	ctx        context.Context
	name       string
	lease      time.Duration
	owner      *owner
	shared     bool            // the owner is from ctx, so other calls may acquire for it
	wait       time.Duration   // the time limit of the call
	noWait     bool            // one attempt
	timeout    <-chan struct{} // closed when the wait runs out; nil if it does not
	cutoff     <-chan struct{} // the same for a statement in flight
	cutoffTime time.Time       // when cutoff is closed; zero if it is not
	waiter     *waiter
	contention error // of the last attempt, if another statement on the row was in the way
	observed   *observed
}

// canceled is the error of a call whose context has ended.
func (c *call) canceled() error {
	cause := context.Cause(c.ctx)
	if err := c.ctx.Err(); !errors.Is(cause, err) {
		cause = fmt.Errorf("%w (%w)", cause, err)
	}
	if trouble, outage := c.lastErr(); outage {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, cause, trouble)
	}
	return fmt.Errorf("%w: %w", ErrNotAcquired, cause)
}

// timedOut is the error of a call whose wait has run out.
func (c *call) timedOut() error {
	trouble, outage := c.lastErr()
	if trouble == nil {
		trouble = c.contention
	}
	switch {
	case outage:
		return fmt.Errorf("%w: %w", ErrUnavailable, trouble)
	case trouble != nil:
		return fmt.Errorf("%w: %w", ErrNotAcquired, trouble)
	}
	return ErrNotAcquired
}

// lastErr returns why the database has not reported who holds the lock; nil if it has. That
// is an outage, unless the database replies, but slowly.
func (c *call) lastErr() (err error, outage bool) {
	if c.waiter == nil {
		return nil, false
	}
	v := c.l.registry.lastErr(c.waiter)
	end := time.Now().Add(probeWait)
	if latest := c.cutoffTime.Add(min(c.wait-minTimeout, 0) + overrun); latest.After(end) && c.ctx.Err() == nil {
		end = latest
	}
	for v.probing && time.Now().Before(end) {
		time.Sleep(probeWait / 20)
		v = c.l.registry.lastErr(c.waiter)
	}
	return v.err, v.err != nil && !v.slow
}

// failed records an attempt that failed with a transient error.
func (c *call) failed(err error) {
	c.contention = nil
	if store.Contended(err) {
		c.contention = err
	}
	c.l.registry.failed(c.waiter, err)
}

// reenter returns another handle if the owner of the call holds the lock, and an error if it
// has lost it; otherwise nil and nil.
func (c *call) reenter() (*Lock, error) {
	if !c.shared {
		return nil, nil
	}
	l := c.l
	l.mu.Lock()
	t := l.holds[holdKey{c.owner, c.name}]
	if t == nil {
		l.mu.Unlock()
		return nil, nil
	}
	if lost := l.checkLoss(t); lost || t.ended != nil {
		err := t.ended
		l.mu.Unlock()
		l.finishLoss(t, lost)
		return nil, err
	}
	defer l.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, c.canceled()
	}
	var now time.Time
	if c.lease != AutoRenew {
		now = time.Now()
	}
	k := l.addHandle(c, t, now)
	k.reentered = true
	l.watchdog.request(t.lease, t.request(), len(t.handles))
	l.reentered.Add(1)
	return k, nil
}

// acquire waits to be the head of the name's queue, and then sends attempts until one is
// granted or the call ends.
func (c *call) acquire() (*Lock, error) {
	names := c.l.registry
	place, ok := names.join(c.name, c.owner, c.noWait)
	if !ok {
		// The head may have acquired the lock for our owner just now.
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		return nil, names.refusal(c.name)
	}
	c.waiter = place
	c.l.waiting.Add(1)
	defer c.l.waiting.Add(-1)
	if k, err := c.queue(); k != nil || err != nil {
		c.l.leaveQueue(place)
		return k, err
	}
	left := names.takeOffer(place)
	for pause, again := firstPause, false; ; {
		// An earlier hold of the owner may be lost, but not unlocked yet.
		if k, err := c.reenter(); k != nil || err != nil {
			c.l.releaseHandoff(left)
			c.l.leaveQueue(place)
			return k, err
		}
		if left != nil {
			if k := c.adopt(left); k != nil {
				return k, nil
			}
		}
		a := c.attempt(left, again)
		left = nil
		err := c.run(a)
		if err != nil {
			return nil, err
		}
		switch {
		case a.err != nil:
			a.undoUnknown()
			if !store.Transient(a.err) {
				c.l.leaveQueue(place)
				return nil, a.err
			}
			c.failed(a.err)
			if c.noWait && !store.Contended(a.err) && (store.OutcomeUnknown(a.err) || pause > 4*firstPause) {
				c.l.leaveQueue(place)
				return nil, fmt.Errorf("%w: %w", ErrUnavailable, a.err)
			}
			err = await(c, time.After(pause), c.timeout)
			pause = min(2*pause, 50*firstPause)
		case a.grant.Token > 0:
			if k, err := c.beginHold(a); k != nil || err != nil {
				return k, err
			}
			err = await(c, time.After(pause), c.timeout)
		case a.request.Replaces != "":
			// The row has another owner by now.
		case c.noWait && a.grant.Reserved:
			// The process for which the row is reserved takes it, or not, very soon.
			err = await(c, time.After(pause), c.timeout)
			pause = min(2*pause, store.ReservedFor)
		case c.noWait:
			err = ErrNotAcquired
		case a.grant.Locked:
			c.contention, again = nil, true
			names.answered(place, false)
			err = c.pauseOrWake(pause)
			pause = min(2*pause, 50*firstPause)
		case a.request.EnlistAs == 0 && names.enlists(place):
			again = true // and join the wait queue
		default:
			c.contention, pause, again = nil, firstPause, true
			err = c.sleep(a)
		}
		if err != nil {
			c.l.leaveQueue(place)
			return nil, err
		}
	}
}

// errNoAnswer is the error of a statement that was cut off, or had no reply when its call
// ended. It hides context.DeadlineExceeded, because the time limit is the library's, not the
// caller's.
var (
	errNoAnswer     = errors.New("the database did not answer in time")
	errNoConnection = errors.New("the pool had no connection to the database in time")
)

// firstPause is the delay before a failed statement is sent again; each further failure
// doubles it.
const firstPause = 10 * time.Millisecond

// queue waits to be the head, unless the owner acquires the lock by another call.
func (c *call) queue() (*Lock, error) {
	for {
		select {
		case <-c.waiter.isHead:
			return nil, nil
		default:
		}
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		select {
		case <-c.waiter.isHead:
		case <-c.waiter.wake:
		case <-c.waiter.refused:
			// Unless the head acquired it for our owner.
			if k, err := c.reenter(); k != nil || err != nil {
				return k, err
			}
			return nil, ErrNotAcquired
		case <-c.ctx.Done():
			return nil, c.canceled()
		case <-c.timeout:
			return nil, c.timedOut()
		case <-c.l.done:
			return nil, ErrClosed
		}
	}
}

// await waits for ready, or returns why the call must end before.
func await[T any](c *call, ready <-chan T, timeout <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-c.ctx.Done():
		return c.canceled()
	case <-timeout:
		return c.timedOut()
	case <-c.l.done:
		return ErrClosed
	}
}

// pauseOrWake waits before the next attempt, unless the waiter is woken.
func (c *call) pauseOrWake(pause time.Duration) error {
	defer time.AfterFunc(pause, c.waiter.signal).Stop()
	return await(c, c.waiter.wake, c.timeout)
}

// sleep waits, as the head, until the row may be free.
func (c *call) sleep(a *attempt) error {
	left := a.grant.Remaining
	if a.grant.Reserved && a.request.EnlistAs != 0 {
		left = DefaultLease // the next holder's lease is unknown; a signal will come
	}
	c.l.registry.answered(c.waiter, false)
	c.l.registry.watch(c.waiter, left)
	defer c.l.registry.unwatch(c.waiter)
	return await(c, c.waiter.wake, c.timeout)
}

// An attempt is one acquiring statement, with a context of its own: a statement that is cut
// off can still be granted, so an attempt whose caller has returned is undone when its reply
// arrives. While there is no reply, probes find out whether the database replies at all, and
// what is in the way. An attempt that waits in the server for a locked row is not cut off,
// because it would go on waiting there.
type attempt struct {
	l       *Locker
	inline  bool // on the caller's goroutine
	request store.AcquireRequest
	handoff *handoff // whose row it replaces; may be nil
	waiter  *waiter
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed by run after the reply; nil if inline
	grant   store.Grant
	err     error

	probing *time.Timer // the next probe
	locked  atomic.Bool // a transaction has the row locked, by the last probe

	mu       sync.Mutex // protects following fields
	answered bool
	detached *time.Timer // cuts it off; not nil if the caller has returned
}

// attempt returns a new attempt, which replaces the handoff, if any. again is set if an
// earlier one was refused.
func (c *call) attempt(left *handoff, again bool) *attempt {
	l := c.l
	lease := c.lease
	if lease == AutoRenew {
		lease = l.lease
	}
	a := &attempt{
		l: l, handoff: left, waiter: c.waiter,
		request: store.AcquireRequest{Claim: store.Claim{Name: c.name, Owner: store.NewOwnerID(l.process)}, Lease: lease},
	}
	if left != nil {
		a.request.Replaces = left.lease.claim.Owner
	}
	background := c.observed.over(l.background)
	a.inline = l.dbIsFast.Load() && left == nil && !again
	// A grant that arrives when its lease has nearly ended is useless. That limits the
	// statement, which may wait for a locked row or on a dead connection, unless the caller
	// returns sooner.
	bound := min(max(lease*2/3, time.Second), 10*time.Second)
	if left := time.Until(c.cutoffTime); a.inline && !c.cutoffTime.IsZero() && left < bound {
		bound = min(bound, left+cancelGrace)
	}
	if a.inline {
		a.ctx, a.cancel = context.WithTimeout(background, bound)
	} else {
		a.ctx, a.cancel = context.WithCancel(background)
		if c.wait > bound {
			a.cutAfter(bound)
		}
	}
	a.probing = time.AfterFunc(probeAfter, a.probe)
	l.registry.sending(c.waiter, a.request.Claim)
	select {
	case <-c.waiter.wake: // this attempt will see its reason
	default:
	}
	a.request.EnlistAs = l.registry.asking(c.waiter, again)
	return a
}

// run runs an attempt until its reply. If the call must end before, it returns why, and the
// attempt leaves the queue when its reply arrives.
//
// On a goroutine of its own, an attempt need not be cut off, but switching goroutines costs
// 10 % of an uncontended acquire and release.
func (c *call) run(a *attempt) error {
	var err error
	if a.inline {
		c.runInline(a)
		c.report(a)
		if err = c.ended(); err == nil || a.err != nil && !store.Transient(a.err) {
			return nil
		}
		a.l.working.Go(a.undo)
	} else {
		a.done = make(chan struct{})
		a.l.working.Go(a.run)
		if err = await(c, a.done, c.cutoff); err == nil || !a.detach() {
			return nil
		}
	}
	return err
}

// report records the reply to an attempt before its call ends.
func (c *call) report(a *attempt) {
	switch {
	case a.err != nil:
		c.failed(a.err)
	case a.grant.Token == 0:
		c.l.registry.probed(c.waiter, store.RowHeld, nil)
	}
}

// cutAfter cuts the attempt off after d without a reply, unless it waits for a locked row.
// Stopping the timer prevents that.
func (a *attempt) cutAfter(d time.Duration) *time.Timer {
	began := time.Now()
	var mu sync.Mutex // protects timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(d, func() {
		mu.Lock()
		defer mu.Unlock()
		if a.locked.Load() && time.Since(began) < store.LockWaitTimeout && a.ctx.Err() == nil {
			timer.Reset(probeInterval)
		} else {
			a.cancel()
		}
	})
	return timer
}

// probe finds out what is in the way of an attempt without a reply, again and again.
func (a *attempt) probe() {
	if a.ctx.Err() != nil || !a.l.enter() {
		return
	}
	defer a.l.working.Done()
	a.locked.Store(a.l.registry.probe(a.l.background, a.waiter, a.request.Claim) == store.RowLocked)
	if a.ctx.Err() == nil {
		a.probing.Reset(probeInterval)
	}
}

// runInline runs the attempt on the caller's goroutine.
func (c *call) runInline(a *attempt) {
	if c.ctx.Done() != nil {
		defer context.AfterFunc(c.ctx, func() { time.AfterFunc(cancelGrace, a.cancel) })()
	}
	a.err = store.ErrPanic
	defer func() {
		if a.err == store.ErrPanic {
			a.undo()
		}
	}()
	a.send()
}

// ended returns why the call must end, or nil.
func (c *call) ended() error {
	select {
	case <-c.ctx.Done():
		return c.canceled()
	case <-c.cutoff:
		return c.timedOut()
	case <-c.l.done:
		return ErrClosed
	default:
		return nil
	}
}

func (a *attempt) run() {
	a.send()
	a.mu.Lock()
	a.answered = true
	gone := a.detached
	a.mu.Unlock()
	close(a.done)
	if gone != nil {
		gone.Stop()
		a.undo()
	}
}

// send sends the statement and waits for the reply.
func (a *attempt) send() {
	defer a.cancel()
	defer a.probing.Stop()
	start := time.Now()
	a.grant, a.err = a.l.repo.Acquire(a.ctx, a.request)
	if errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, context.Canceled) {
		a.err = unanswered(a.err)
	}
	if swift := a.err == nil && time.Since(start) < fastReply; swift != a.l.dbIsFast.Load() {
		a.l.dbIsFast.Store(swift)
	}
	if a.handoff != nil {
		span := a.l.watchdog.stop(a.handoff.lease)
		a.l.repo.HoldEnded()
		if a.err != nil {
			a.l.releaser.add(a.handoff.lease.claim, span, false, time.Now())
		}
	}
}

// unanswered returns the error of a statement whose time limit passed before its reply.
func unanswered(err error) error {
	switch {
	case errors.As(err, new(store.PoolExhausted)):
		return store.NotSent{Err: errNoConnection}
	case errors.As(err, new(store.NotSent)):
		return store.NotSent{Err: errNoAnswer}
	case err == context.DeadlineExceeded || err == context.Canceled:
		return errNoAnswer
	default:
		return fmt.Errorf("%w (%v)", errNoAnswer, err)
	}
}

// undo releases what the attempt may have acquired, and leaves the queue.
func (a *attempt) undo() {
	if a.err != nil {
		a.undoUnknown()
	} else if a.grant.Token > 0 {
		a.release()
	}
	a.l.leaveQueue(a.waiter)
}

// detach lets the attempt go on without its caller. It returns false if it has its reply.
func (a *attempt) detach() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answered {
		return false
	}
	a.detached = a.cutAfter(detachedTimeout)
	return true
}

// undoUnknown makes sure that a failed attempt holds nothing.
func (a *attempt) undoUnknown() {
	if store.OutcomeUnknown(a.err) {
		a.l.releaser.add(a.request.Claim, a.request.Lease, true, time.Now())
	}
}

// release releases an unwanted grant, and wakes the next waiter.
func (a *attempt) release() {
	a.l.registry.answered(a.waiter, true)
	if err := a.l.release(a.request.Claim, a.request.Lease); err != nil {
		a.l.log.Debug("mysqllock: release of an unwanted grant, trying again", "name", a.request.Name, "err", err)
	}
	a.l.repo.HoldEnded()
	a.l.registry.wakeHead(a.request.Name)
}

// beginHold makes a hold of a grant, unless that came too late.
func (c *call) beginHold(a *attempt) (*Lock, error) {
	l := c.l
	l.mu.Lock()
	late := !time.Now().Before(trustedUntil(a.grant.Sent, a.request.Lease))
	if late || l.closed || l.holds[c.key()] != nil {
		closed := l.closed
		l.mu.Unlock()
		l.working.Go(a.release)
		if closed {
			l.leaveQueue(c.waiter)
			return nil, ErrClosed
		}
		return nil, nil
	}
	t := &hold{key: c.key(), token: a.grant.Token, tokens: tokenRange{token: a.grant.Token}, waiter: c.waiter}
	if a.handoff != nil {
		t.tokens.since = a.handoff.since
	}
	k := l.addHandle(c, t, a.grant.Sent)
	t.lease = l.watchdog.start(a.request.Claim, a.grant.Sent, a.request.Lease, k.requested, func() { l.onLoss(t) })
	l.holdBegan(c, t)
	return k, nil
}

// adopt makes a hold of a handoff, if that covers what the call requests. If not, it returns
// nil, and an attempt must replace the row.
func (c *call) adopt(left *handoff) *Lock {
	l := c.l
	if left.last+1 >= left.tokenRange.token+store.TokenRange {
		return nil
	}
	l.mu.Lock()
	if l.closed || l.holds[c.key()] != nil {
		l.mu.Unlock()
		return nil
	}
	t := &hold{key: c.key(), token: left.last + 1, tokens: left.tokenRange, waiter: c.waiter, lease: left.lease}
	k := l.addHandle(c, t, time.Now())
	if !l.watchdog.pass(left.lease, k.requested, c.lease, func() { l.onLoss(t) }) {
		l.mu.Unlock()
		k.cancel(ErrNotHeld)
		return nil
	}
	l.holdBegan(c, t)
	return k
}

// holdBegan records a new hold. The caller holds mu, which holdBegan unlocks.
func (l *Locker) holdBegan(c *call, t *hold) {
	if t.observed = c.observed; t.observed != nil {
		t.observed.granted = time.Now()
	}
	l.holds[t.key] = t
	l.held++
	l.mu.Unlock()
	l.acquired.Add(1)
	l.registry.answered(c.waiter, true)
	if c.shared {
		l.registry.wakeOwner(c.name, c.owner)
	}
}

func (c *call) key() holdKey { return holdKey{c.owner, c.name} }

// leaveQueue removes a waiter from its queue, and releases a handoff that no other waiter
// takes.
func (l *Locker) leaveQueue(w *waiter) { l.releaseHandoff(l.registry.leave(w)) }

// releaseHandoff releases the row of a handoff in the background.
func (l *Locker) releaseHandoff(left *handoff) {
	if left != nil {
		l.releaser.add(left.lease.claim, l.watchdog.stop(left.lease), false, time.Now())
		l.repo.HoldEnded()
	}
}

// addHandle adds a handle to a hold. The caller holds mu.
func (l *Locker) addHandle(c *call, t *hold, from time.Time) *Lock {
	k := &Lock{locker: l, hold: t, requested: request{auto: c.lease == AutoRenew}}
	if !k.requested.auto {
		k.requested.until = from.Add(c.lease)
	}
	ctx := c.ctx
	if !c.shared {
		ctx = context.WithValue(ctx, ownerKey{}, c.owner)
	}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	t.handles = append(t.handles, k)
	return k
}

// request is what the open handles of the hold ask together. The caller holds mu.
func (t *hold) request() request {
	var all request
	for _, k := range t.handles {
		all.auto = all.auto || k.requested.auto
		if k.requested.until.After(all.until) {
			all.until = k.requested.until
		}
	}
	return all
}

// endHold ends a hold and the contexts of its handles. The caller holds mu.
func (l *Locker) endHold(t *hold, why error) {
	t.ended = why
	l.held--
	for _, k := range t.handles {
		k.ended = why
		k.cancel(why)
	}
}

// checkLoss ends the hold if its lease has ended. Then the caller, which holds mu, must call
// finishLoss after unlocking mu.
func (l *Locker) checkLoss(t *hold) (lost bool) {
	if t.ended != nil || l.watchdog.alive(t.lease) {
		return false
	}
	l.endHold(t, ErrLost)
	return true
}

// onLoss is called by the watchdog when the lease cannot be trusted any more.
func (l *Locker) onLoss(t *hold) {
	l.mu.Lock()
	lost := l.checkLoss(t)
	l.mu.Unlock()
	l.finishLoss(t, lost)
}

// finishLoss reports a loss, and leaves the queue.
func (l *Locker) finishLoss(t *hold, lost bool) {
	if !lost {
		return
	}
	l.recordLoss(t, l.watchdog.reason(t.lease))
	l.repo.HoldEnded()
	l.leaveQueue(t.waiter)
	l.observers.holdEnd(t, ErrLost)
}

// recordLoss counts and logs a loss.
func (l *Locker) recordLoss(t *hold, reason string) {
	l.lost.Add(1)
	l.log.Error("mysqllock: lock lost", "name", t.key.name, "token", t.token, "reason", reason)
}

// Name returns the name of the lock.
func (k *Lock) Name() string { return k.hold.key.name }

// Token returns the fencing token: it is higher than that of every earlier
// holder of the name, and the same for all handles of one hold. A resource that
// remembers the highest token it has seen can refuse a stale holder.
func (k *Lock) Token() uint64 { return k.hold.token }

// Context returns the context that TryLock was given, with the owner added. It
// ends with that context, and when the lock is lost (cause [ErrLost]), unlocked
// (cause [ErrNotHeld]) or the Locker closed (cause [ErrClosed]).
func (k *Lock) Context() context.Context { return k.ctx }

// Err returns nil if the lease can be trusted at this very moment; else
// [ErrLost], [ErrNotHeld] if the handle was unlocked, or [ErrClosed]. It compares the clock
// of this process, and never blocks on the database.
func (k *Lock) Err() error {
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

// Extend makes the lease last for at least the given time from now, at least 10
// ms; also for a handle with [AutoRenew]. It blocks for one round trip, or until ctx ends if
// a transaction has the row locked, and retries transient errors within ctx. It returns
// [ErrInvalidLease], [ErrLost], [ErrNotHeld], [ErrClosed], the cause of ctx, or the
// database's error; then the lease is unchanged, or longer.
func (k *Lock) Extend(ctx context.Context, lease time.Duration) error {
	if lease < minLease {
		return opError("extend", k.Name(), fmt.Errorf("%w: %v; want at least %v", ErrInvalidLease, lease, minLease))
	}
	if err := k.extend(ctx, lease); err != nil {
		return opError("extend", k.Name(), err)
	}
	return nil
}

func (k *Lock) extend(ctx context.Context, lease time.Duration) error {
	l, t := k.locker, k.hold
	unmatched := 0
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if err := k.Err(); err != nil {
			return err
		}
		l.mu.Lock()
		holds := len(t.handles)
		l.mu.Unlock()
		if !l.watchdog.extending(t.lease, lease) {
			continue
		}
		tryCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		mine, sent, err := l.repo.Extend(tryCtx, t.lease.claim, lease, holds)
		lost := false
		if err == nil && !mine || errors.Is(err, store.ErrRowLocked) {
			if lost, err = l.notMatched(tryCtx, t.lease.claim, err); err == errNotMatched {
				unmatched++
			}
		}
		cancel()
		switch {
		case err == nil && mine:
			l.mu.Lock()
			if until := sent.Add(lease); until.After(k.requested.until) {
				k.requested.until = until
			}
			if t.ended == nil { // else the lease may be the next holder's by now
				l.watchdog.request(t.lease, t.request(), len(t.handles))
			}
			// Several may be under way: which holds was written last is not known.
			l.watchdog.extended(t.lease, sent, promise{length: lease})
			l.mu.Unlock()
			return k.Err()
		case lost:
			l.watchdog.ownerChanged(t.lease.claim)
			if err := k.Err(); err != nil {
				return err
			}
			return ErrLost
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case !store.Transient(err) || unmatched == 5:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// errNotMatched is the error of a statement that matched no row although the claim owns it:
// MariaDB 11.8 may reply so to an UPDATE that was killed.
var errNotMatched = errors.New("the statement matched nothing, although the row is this lock's")

// notMatched finds out why a statement has not matched the row of a claim: the claim has lost
// it; or the statement skipped it, and returned skipped; or errNotMatched.
func (l *Locker) notMatched(ctx context.Context, c store.Claim, skipped error) (lost bool, err error) {
	mine, err := l.repo.Owned(ctx, []store.Claim{c})
	if err == nil && len(mine) > 0 {
		if err = skipped; err == nil {
			err = errNotMatched
		}
	}
	return err == nil, err
}

// A Queryer is an open transaction: a [*sql.Tx], a *sqlx.Tx, the [*sql.Conn] on
// which one was begun, or a wrapper of one of them.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Guard puts the caller's transaction, which must be on the server of the
// Locker's table, under the lock: if it returns nil, no other owner can take the lock over
// until tx ends, whatever happens to the lease, to this process or at Unlock. A stale holder
// cannot commit a transaction that it guarded. Guard delays no renewal, and a transaction may
// last longer than the lease.
//
// It blocks for one round trip, or three if tx is not a [*sql.Tx] or *sqlx.Tx, and
// for up to 1 s more while a [Locker.ForceUnlock] waits. It returns [ErrLost] if the
// lock is no longer this handle's: then the hold is lost, and its Context has ended.
// It also returns [ErrNotHeld], [ErrClosed], an error if tx is not an open transaction or does
// not find the table, the error of ctx, or the database's error; these leave the hold as it is.
//
// Call Guard first in the transaction. Under REPEATABLE READ, nonlocking reads see the
// database as of the first read, which is then Guard. MariaDB 11.6 and later also refuses,
// with error 1020, to lock or change rows that others have changed since the first read; so
// a later Guard may fail.
func (k *Lock) Guard(ctx context.Context, tx Queryer) error {
	l, t := k.locker, k.hold
	l.mu.Lock()
	t.guarded = true // before Unlock could hand the lock over
	l.mu.Unlock()
	err := k.Err()
	if err == nil {
		err = l.table.Guard(ctx, tx, t.lease.claim, t.tokens.token)
	}
	if errors.Is(err, store.ErrNotOwned) {
		l.watchdog.ownerChanged(t.lease.claim)
		err = ErrLost
		if now := k.Err(); now != nil {
			err = now // it may have been unlocked meanwhile
		}
	}
	if err != nil {
		return opError("guard", k.Name(), err)
	}
	return nil
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
	if err := k.unlock(); err != nil {
		return opError("unlock", k.Name(), err)
	}
	return nil
}

func (k *Lock) unlock() error {
	l, t := k.locker, k.hold
	l.mu.Lock()
	lost := l.checkLoss(t)
	defer l.finishLoss(t, lost)
	err := k.state()
	if err == ErrNotHeld || err == ErrClosed {
		l.mu.Unlock()
		return err
	}
	k.ended = ErrNotHeld
	k.cancel(ErrNotHeld)
	i := slices.Index(t.handles, k)
	t.handles = slices.Delete(t.handles, i, i+1)
	if len(t.handles) > 0 {
		if err == nil {
			l.watchdog.request(t.lease, t.request(), len(t.handles))
		}
		l.mu.Unlock()
		return err
	}
	delete(l.holds, t.key)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	l.endHold(t, ErrNotHeld)
	guarded := t.guarded
	l.working.Add(1) // Close would have ended this handle
	defer l.working.Done()
	l.mu.Unlock()

	end := time.Now().Add(unlockBound)
	if !guarded && l.handOff(t) {
		l.released.Add(1)
		l.observers.holdEnd(t, nil)
		return nil
	}
	switch err = l.releaseBy(end, t.lease.claim, l.watchdog.stop(t.lease)); err {
	case nil:
		l.released.Add(1)
	case ErrLost:
		l.recordLoss(t, lostTaken)
	}
	l.repo.HoldEnded()
	l.leaveQueue(t.waiter)
	l.observers.holdEnd(t, err)
	return err
}

// handOff hands a lock over to the next waiter of the process, if there is one and other
// processes have not waited for too long. The row is not written, so the lease must be live,
// and no transaction under Guard.
func (l *Locker) handOff(t *hold) bool {
	left := &handoff{tokenRange: t.tokens, last: t.token, lease: t.lease}
	switch {
	case !l.handoff:
		return false
	case left.since.IsZero():
		left.since = time.Now()
	case time.Since(left.since) > maxHandoffTime:
		return false
	}
	return l.registry.queued(t.waiter) && l.confirmed(t.lease) && l.registry.offer(t.waiter, left)
}

// confirmed reports whether the lease owned its row a moment ago. If not, or if the database
// does not reply, a statement must release the row, or find it lost.
func (l *Locker) confirmed(ls *lease) bool {
	if l.watchdog.confirmed(ls) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmBound)
	defer cancel()
	mine, sent, err := l.repo.Confirm(ctx, ls.claim)
	if err == nil && mine {
		l.watchdog.confirm(ls, sent)
	}
	return err == nil && mine
}

// release frees a row. If that fails, it retries in the background until a lease of the
// given length has ended.
func (l *Locker) release(c store.Claim, lease time.Duration) error {
	return l.releaseBy(time.Now().Add(unlockBound), c, lease)
}

// releaseBy is release with another time limit.
func (l *Locker) releaseBy(end time.Time, c store.Claim, lease time.Duration) error {
	maybe := false // an earlier try may have freed the row
	for pause := 10 * time.Millisecond; ; {
		ctx, cancel := context.WithTimeout(context.Background(), min(unlockBound/2, time.Until(end)))
		freed, next, err := l.repo.Release(ctx, c)
		maybe = maybe || store.OutcomeUnknown(err)
		if err == nil && !freed || errors.Is(err, store.ErrRowLocked) {
			_, err = l.notMatched(ctx, c, err)
		}
		cancel()
		switch {
		case err == nil && (freed || maybe):
			l.registry.released([]string{c.Name}, next)
			return nil
		case err == nil:
			return ErrLost
		case !store.Transient(err) || time.Until(end) <= pause:
			l.releaser.add(c, lease, false, time.Now())
			return err
		}
		time.Sleep(pause)
		if pause *= 2; errors.Is(err, store.ErrRowLocked) { // perhaps only for a moment
			pause = min(pause, 200*time.Millisecond)
		}
	}
}

// Info is the state of a lock in the table.
type Info struct {
	Name                  string
	Held                  bool          // some owner holds the lock
	Holder, Owner         string        // label of the process (WithIdentity); opaque id of the acquisition
	Holds                 int           // open handles, as of the last write to the row
	Token                 uint64        // of the holder, or of the last one
	AcquiredAt, ExpiresAt time.Time     // UTC, by the database's clock
	ExpiresIn             time.Duration // by the database's clock, when it was read
	Waiters               int           // processes in the row's wait queue
}

// Inspect returns the state of name; Held is false, without an error,
// for a name that has no row. It blocks for one round trip. It returns
// [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or the database.
func (l *Locker) Inspect(ctx context.Context, name string) (info Info, err error) {
	err = l.admin(func() (err error) {
		if err = checkName(name); err == nil {
			found, err := l.table.Inspect(ctx, name)
			info = Info(found)
			return err
		}
		return err
	})
	if err != nil {
		return Info{}, opError("inspect", name, err)
	}
	return info, nil
}

// List returns every lock that is held now, in order of names. It reads the whole table. It
// returns [ErrNoTable], [ErrClosed], or the error of ctx or the database.
func (l *Locker) List(ctx context.Context) (infos []Info, err error) {
	err = l.admin(func() (err error) {
		found, err := l.table.List(ctx)
		for _, info := range found {
			infos = append(infos, Info(info))
		}
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
// Locker ends at once. A holder with another Locker, in this process or elsewhere, notices
// at its next renewal or check, up to a third of its lease later: until then two owners may
// trust the lock, and only tokens and [Lock.Guard] tell them apart. A holder that unlocks
// notices then, and hands nothing over within its process, unless the database had replied
// to it less than 2 ms before the row was freed (see [WithoutHandoff]).
//
// ForceUnlock waits, until ctx ends, for the transactions that the holder has under
// Guard. It returns [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or
// the database; after an error the lock may be held or free.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (held bool, err error) {
	var owner string
	var next store.Process
	err = l.admin(func() (err error) {
		if err = checkName(name); err == nil {
			owner, next, err = l.table.ForceUnlock(ctx, name)
		}
		return err
	})
	if err != nil {
		return false, opError("force unlock", name, err)
	}
	if owner == "" {
		return false, nil
	}
	l.watchdog.ownerChanged(store.Claim{Name: name, Owner: owner})
	l.registry.freed([]string{name}, next)
	return true, nil
}

// Purge deletes the rows of locks that have been free for at least idle, and returns how many.
// Tokens keep rising after it. It works in small transactions and skips locked rows; it needs
// the DELETE privilege. If it fails midway, it returns how many it had deleted with the error.
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
		Renewals: l.watchdog.renewals.Load(), RenewalErrors: l.watchdog.failures.Load(),
	}
	if l.table != nil {
		s.Statements = l.table.Statements()
	}
	return s
}

// Close ends waiting calls with [ErrClosed], releases every lock still held and
// ends their contexts (cause [ErrClosed]). It waits for the goroutines of the
// Locker, at most 10 s, and returns an error if locks could not be released: those
// end with their leases. A statement that waits in the server for a locked row is cut
// off; the server ends it within innodb_lock_wait_timeout. Further calls return what
// the first returned.
func (l *Locker) Close() error {
	l.closeOnce.Do(func() { l.result = l.close() })
	return l.result
}

func (l *Locker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	var held []*hold
	l.mu.Lock()
	l.closed = true
	close(l.done)
	for _, t := range l.holds {
		if l.checkLoss(t) {
			defer l.finishLoss(t, true)
		} else if t.ended == nil {
			l.endHold(t, ErrClosed)
			l.watchdog.stop(t.lease)
			held = append(held, t)
		}
	}
	clear(l.holds)
	l.mu.Unlock()

	claims := make([]store.Claim, len(held))
	for i, t := range held {
		claims[i] = t.lease.claim
	}
	err := l.releaseAll(ctx, claims)
	for _, t := range held {
		l.repo.HoldEnded()
		l.leaveQueue(t.waiter)
		l.observers.holdEnd(t, ErrClosed)
	}

	// Calls and attempts in flight get a second for their replies, and are undone.
	answered := make(chan struct{})
	go func() {
		l.working.Wait()
		close(answered)
	}()
	cut := false
	select {
	case <-answered:
	case <-time.After(time.Second):
		cut = true
		l.stop()
		<-answered // every statement ends with its context
	}
	l.stop()
	l.watchdog.close()
	l.releaser.close()
	mayBeGranted, drainErr := l.releaser.drain(ctx)
	l.registry.close()
	if l.table != nil {
		l.table.Close()
	}
	if drainErr == nil && cut && mayBeGranted != "" {
		drainErr = fmt.Errorf("a statement for %q was cut off and may yet be granted", mayBeGranted)
	}
	if err == nil {
		err = drainErr
	}
	if err != nil {
		return fmt.Errorf("mysqllock: close: locks may stay held until their leases end: %w", err)
	}
	return nil
}

// releaseAll frees rows in batches. It retries locked rows until ctx ends.
func (l *Locker) releaseAll(ctx context.Context, claims []store.Claim) error {
	var failed error
	for pause := 10 * time.Millisecond; len(claims) > 0; pause *= 2 {
		var still []store.Claim
		for part := range slices.Chunk(claims, store.BatchSize) {
			left, err := l.releaseBatch(ctx, part)
			if err != nil {
				failed = err
			}
			still = append(still, left...)
		}
		claims = still
		if len(claims) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if failed == nil {
				failed = store.ErrRowLocked
			}
			return fmt.Errorf("%d not released, the first %q: %w", len(claims), claims[0].Name, failed)
		case <-time.After(pause):
		}
	}
	return nil
}

// releaseBatch frees rows in one statement, and those that it skips one by one. It returns
// the claims that were not released.
func (l *Locker) releaseBatch(ctx context.Context, claims []store.Claim) ([]store.Claim, error) {
	try, cancel := context.WithTimeout(ctx, closeBound/3)
	defer cancel()
	freed, next, err := l.repo.ReleaseAll(try, claims)
	l.released.Add(freed)
	if freed > 0 {
		l.registry.released(store.Names(claims), next)
	}
	if err != nil {
		return claims, err
	}
	if freed == int64(len(claims)) {
		return nil, nil
	}
	left, err := store.StillOwned(try, l.repo, claims)
	if err != nil {
		return claims, err
	}
	each, cancelEach := context.WithTimeout(ctx, singleBound)
	defer cancelEach()
	var mu sync.Mutex // protects left
	releaseEach(each, l.repo, slices.Clone(left), func(c store.Claim, next store.Process) {
		l.released.Add(1)
		l.registry.released([]string{c.Name}, next)
		mu.Lock()
		defer mu.Unlock()
		left = slices.DeleteFunc(left, func(l store.Claim) bool { return l == c })
	})
	return left, nil
}

func checkName(name string) error {
	if err := checkText(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

// checkText returns an error for an invalid name or label.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > 255:
		return fmt.Errorf("it has %d bytes; 255 are the limit", len(s))
	case !utf8.ValidString(s):
		return errors.New("it is not valid UTF-8")
	}
	for i, c := range s {
		if unicode.IsControl(c) {
			return fmt.Errorf("it has the control character %U at byte %d", c, i)
		}
	}
	return nil
}
