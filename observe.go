package mysqllock

import (
	"context"
	"errors"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// An Observer is told of each acquire, hold and renewal of a [Locker], by
// [WithObserver]; metrics and traces are made of that (modules metrics/prometheus
// and metrics/otel). What can be counted is in [Stats]. Functions that are nil are
// not called.
//
// The functions are called without locks, and may use the Locker, but not close it.
// They run where it happens, as said of each, so they should be quick; the Locker
// does not recover their panics.
type Observer struct {
	// AcquireStart is called as a method that acquires (TryLock, TryRLock, TryAcquire,
	// those made of them, and Attach) begins, by its goroutine and with its context. The
	// context that it returns, which must come from ctx, is given to AcquireEnd and
	// HoldEnd of the same acquisition, and its values are those of the context of the
	// acquiring statements: a span in it is their parent where the database is traced
	// too. The context of the caller, and Lock.Context, do not change. TryLockAll counts
	// as an acquire of each name; the context of its statements is that of none.
	AcquireStart func(ctx context.Context, name string) context.Context
	// AcquireEnd is called before that call returns, by the same goroutine.
	AcquireEnd func(ctx context.Context, info AcquireInfo)
	// HoldEnd is called once for each acquire that succeeded and did not re-enter:
	// within the last Unlock or within Close, or, if the lock was lost, by the goroutine that
	// finds that first: a goroutine of the Locker, or any call that asks for the
	// lock. ctx may have ended. A hold that Close or a loss ends at once may be told
	// before its AcquireEnd.
	HoldEnd func(ctx context.Context, info HoldInfo)
	// Renewal is called for each statement that renews leases, by the goroutine that
	// sent it; several may call it at once.
	Renewal func(info RenewalInfo)
}

// AcquireInfo tells how a TryLock, TryRLock, TryAcquire or Attach ended.
type AcquireInfo struct {
	Name      string        // of the lock or semaphore
	Mode      string        // what was requested: "exclusive", "shared" or "permit"
	Err       error         // what the call returned
	Waited    time.Duration // from the call to its answer
	Token     uint64        // zero if Err is not nil
	Reentered bool          // the owner held the lock already
	PassedOn  bool          // taken over from a goroutine of this process, without a statement
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

// HoldInfo tells how a hold ended: the time from the grant until the last of its
// handles was unlocked or detached.
type HoldInfo struct {
	Name  string // of the lock or semaphore
	Mode  string // that of the acquire that began the hold
	Token uint64
	Held  time.Duration // until the release was answered, or the loss found
	Err   error         // nil: released; ErrLost; ErrClosed; else what Unlock returned, with the outcome unknown
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

// RenewalInfo tells how a statement that renews leases ended.
type RenewalInfo struct {
	Locks   int   // whose leases it was to renew
	Renewed int   // the others were lost, or are tried again soon
	Err     error // of the database, or that the rows are locked; nothing was renewed, as far as is known
}

// WithObserver adds an [Observer]. Of several, each is called in the order of the
// options, with the context that the AcquireStart of the one before returned. The
// default is none, which costs nothing.
func WithObserver(o Observer) Option {
	return func(c *config) error { c.observers = append(c.observers, o); return nil }
}

type observers []Observer

// An observed is one call, and the hold that it began.
type observed struct {
	ctx     context.Context // of AcquireStart
	mode    store.Mode
	began   time.Time
	granted time.Time // set before other goroutines see the hold
}

// acquireStart returns nil if nobody observes.
func (all observers) acquireStart(ctx context.Context, name string, mode store.Mode) *observed {
	if all == nil {
		return nil
	}
	began := time.Now()
	for _, o := range all {
		if o.AcquireStart != nil {
			ctx = o.AcquireStart(ctx, name)
		}
	}
	return &observed{ctx: ctx, mode: mode, began: began}
}

// over returns background with the values of the observers' context.
func (seen *observed) over(background context.Context) context.Context {
	if seen == nil {
		return background
	}
	return overlaid{background, seen.ctx}
}

type overlaid struct {
	context.Context
	values context.Context
}

func (o overlaid) Value(key any) any {
	if v := o.Context.Value(key); v != nil { // how package context finds the cancellation
		return v
	}
	return o.values.Value(key)
}

func (all observers) acquireEnd(seen *observed, name string, k *Lock, err error) {
	if seen == nil {
		return
	}
	info := AcquireInfo{Name: name, Mode: seen.mode.String(), Err: err, Waited: time.Since(seen.began)}
	if k != nil {
		info.Token, info.Reentered = k.Token(), k.reentered
		info.PassedOn = seen.mode == store.Exclusive && !k.reentered && k.hold.handedOver
	}
	for _, o := range all {
		if o.AcquireEnd != nil {
			o.AcquireEnd(seen.ctx, info)
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
