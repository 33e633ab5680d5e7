package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// ended returns why the call must end, or nil if it may continue.
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

// canceled returns the error of a call whose context has ended.
func (c *call) canceled() error {
	if err, outage := c.lastErr(); outage && !c.l.isClosed() {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, causeOf(c.ctx), err)
	}
	return c.l.canceled(c.ctx)
}

// canceled returns the error of a call whose context has ended without an outage. Close ends the
// contexts of locks, under which calls may wait for others.
func (l *Locker) canceled(ctx context.Context) error {
	if l.isClosed() {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrNotAcquired, causeOf(ctx))
}

// causeOf returns the cause of ctx, which also matches ctx.Err(), or nil if ctx has not ended.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if err := ctx.Err(); !errors.Is(cause, err) {
		cause = fmt.Errorf("%w (%w)", cause, err)
	}
	return cause
}

// timedOut returns the error of a call whose wait has run out.
func (c *call) timedOut() error {
	err, outage := c.lastErr()
	if err == nil {
		err = c.contention
	}
	switch {
	case outage:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotAcquired, err)
	}
	return ErrNotAcquired
}

// lastErr returns why the holder of the lock is unknown, or nil if it is known. outage is false if
// the error means only that the database, which replies, was slow.
func (c *call) lastErr() (err error, outage bool) {
	if c.waiter == nil {
		return nil, false
	}
	v := c.l.outages.Verdict(c.waiter.State)
	end := time.Now().Add(probeWait)
	if latest := c.cutoffTime.Add(min(c.wait-minTimeout, 0) + maxOverrun); latest.After(end) && c.ctx.Err() == nil {
		end = latest
	}
	for v.Probing && time.Now().Before(end) {
		time.Sleep(probeWait / 20)
		v = c.l.outages.Verdict(c.waiter.State)
	}
	return v.Err, v.Err != nil && !v.Slow
}

// failed records an attempt that failed with a transient error.
func (c *call) failed(err error) {
	c.contention = nil
	if store.Contended(err) {
		c.contention = err
	}
	c.waiter.State.Failed(err)
}
