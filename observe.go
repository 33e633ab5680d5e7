package mysqllock

import (
	"context"
	"errors"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// An Observer has functions that a [Locker] calls for each acquire, hold and renewal: see
// [WithObserver]. Metrics and traces can be built on it, as in the modules metrics/prometheus
// and metrics/otel; for mere counters, use [Stats]. A nil function is not called.
//
// The Locker holds no mutex while it calls them, so they may use the Locker, but must not close
// it. They run on the goroutine that each comment names, and so delay it; the Locker does not
// recover their panics.
type Observer struct {
	// AcquireStart is called when a method that acquires begins (TryLock, TryRLock,
	// TryAcquire, methods that call them, and Attach), on the goroutine and with the context
	// of the caller. It must return ctx or a context derived from it, which AcquireEnd and
	// HoldEnd of the same acquisition get. The contexts of the acquiring statements have its
	// values, so if the driver is traced, a span in it is the parent of theirs. The caller's
	// context and Lock.Context do not change. TryLockAll counts as one acquire for each name,
	// but its statements that acquire several names have none of these values.
	AcquireStart func(ctx context.Context, name string) context.Context
	// AcquireEnd is called before that method returns, on the same goroutine.
	AcquireEnd func(ctx context.Context, info AcquireInfo)
	// HoldEnd is called once for each acquire that succeeded and did not re-enter: by the
	// last Unlock, by Close, or, if the lock was lost, by the goroutine that first finds the
	// loss, which is one of the Locker's or that of any call that uses the lock. ctx may have
	// ended. If Close or a loss ends the hold at once, HoldEnd may precede AcquireEnd.
	HoldEnd func(ctx context.Context, info HoldInfo)
	// Renewal is called for each statement that renews leases, on the goroutine that sent it.
	// Several calls may run concurrently.
	Renewal func(info RenewalInfo)
}

// AcquireInfo describes how a TryLock, TryRLock, TryAcquire or Attach ended.
type AcquireInfo struct {
	Name       string        // of the lock or semaphore
	Mode       string        // what was requested: "exclusive", "shared" or "permit"
	Err        error         // what the call returned
	Waited     time.Duration // the duration of the call
	Token      uint64        // zero if Err is not nil
	Reentered  bool          // the owner held the lock already
	HandedOver bool          // by another goroutine of this process, without a statement
}

// Outcome is "acquired", "reentered", "not_acquired" ([ErrNotAcquired]), "unavailable"
// ([ErrUnavailable]) or "error".
func (i AcquireInfo) Outcome() string {
	switch {
	case errors.Is(i.Err, ErrNotAcquired):
		return "not_acquired"
	case errors.Is(i.Err, ErrUnavailable):
		return "unavailable"
	case i.Err != nil:
		return "error"
	case i.Reentered:
		return "reentered"
	default:
		return "acquired"
	}
}

// HoldInfo describes how a hold ended. A hold lasts from the grant until its last handle is
// unlocked or detached, or the lock is lost.
type HoldInfo struct {
	Name  string // of the lock or semaphore
	Mode  string // of the acquire that began the hold: "exclusive", "shared" or "permit"
	Token uint64
	Held  time.Duration // until the reply to the release, or until the loss was found
	Err   error         // nil if released, ErrLost, ErrClosed, or the error of an Unlock whose outcome is unknown
}

// Outcome is "released", "lost", "closed" or "error".
func (i HoldInfo) Outcome() string {
	switch {
	case i.Err == nil:
		return "released"
	case errors.Is(i.Err, ErrLost):
		return "lost"
	case errors.Is(i.Err, ErrClosed):
		return "closed"
	default:
		return "error"
	}
}

// RenewalInfo describes how a statement that renews leases ended.
type RenewalInfo struct {
	Locks   int   // locks whose leases the statement should renew
	Renewed int   // those renewed; the others were lost, or are tried again soon
	Err     error // if not nil, no lease is known to be renewed: the database failed, or the rows are locked
}

// WithObserver adds an [Observer]. Several observers are called in the order of their options;
// each AcquireStart gets the context that the previous one returned. The default is none, which
// costs nothing.
func WithObserver(o Observer) Option {
	return func(c *config) error { c.observers = append(c.observers, o); return nil }
}

type observers []Observer

// An observation is what the observers need to know of one call and of the hold that it began.
type observation struct {
	ctx     context.Context // from the last AcquireStart
	mode    store.Mode
	began   time.Time
	granted time.Time // set before other goroutines see the hold
}

// acquireStart calls the observers' AcquireStart. It returns nil if there is no observer.
func (all observers) acquireStart(ctx context.Context, name string, mode store.Mode) *observation {
	if all == nil {
		return nil
	}
	began := time.Now()
	for _, o := range all {
		if o.AcquireStart != nil {
			ctx = o.AcquireStart(ctx, name)
		}
	}
	return &observation{ctx: ctx, mode: mode, began: began}
}

// addValues returns background with the values of the context from AcquireStart.
func (call *observation) addValues(background context.Context) context.Context {
	if call == nil {
		return background
	}
	return contextWithValues{background, call.ctx}
}

type contextWithValues struct {
	context.Context
	values context.Context
}

func (c contextWithValues) Value(key any) any {
	if v := c.Context.Value(key); v != nil { // first, because package context finds the parent to cancel by it
		return v
	}
	return c.values.Value(key)
}

func (all observers) acquireEnd(call *observation, name string, k *Lock, err error) {
	if call == nil {
		return
	}
	info := AcquireInfo{Name: name, Mode: call.mode.String(), Err: err, Waited: time.Since(call.began)}
	if k != nil {
		info.Token, info.Reentered = k.Token(), k.reentered
		info.HandedOver = call.mode == store.Exclusive && !k.reentered && k.hold.handedOver
	}
	for _, o := range all {
		if o.AcquireEnd != nil {
			o.AcquireEnd(call.ctx, info)
		}
	}
}

func (all observers) holdEnd(h *hold, err error) {
	if h.observed == nil {
		return
	}
	info := HoldInfo{
		Name: store.NameOf(h.key.name), Mode: h.observed.mode.String(), Token: h.token,
		Held: time.Since(h.observed.granted), Err: err,
	}
	for _, o := range all {
		if o.HoldEnd != nil {
			o.HoldEnd(h.observed.ctx, info)
		}
	}
}

func (all observers) renewal(info RenewalInfo) {
	for _, o := range all {
		if o.Renewal != nil {
			o.Renewal(info)
		}
	}
}
