package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
)

// Close makes waiting calls return [ErrClosed], releases all locks that are still held, and ends
// their contexts (cause [ErrClosed]). It waits for the goroutines of the Locker, at most 10 s.
//
// Close returns an error if locks could not be released. These are free when their leases have
// ended, because Close also ends the session that would keep them. A statement that waits in the
// server for a locked row is cut off; the server ends it within innodb_lock_wait_timeout. Further
// calls return the result of the first.
func (l *Locker) Close() error { return l.closeOnce() }

func (l *Locker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := l.releaseHolds(ctx)
	cut := l.endCalls()
	l.watchdog.Close()
	mayBeGranted, drainErr := l.releaser.Drain(ctx)
	if err := l.watchdog.EndSession(ctx); err != nil {
		l.log.Debug("mysqllock: session not ended, it expires", "err", err)
	}
	l.outages.Close()
	l.waker.Close()
	if l.table != nil {
		l.table.Close()
	}
	if drainErr == nil && cut && mayBeGranted != "" {
		drainErr = fmt.Errorf("a statement for %q was cut off and may yet be granted", store.NameOf(mayBeGranted))
	}
	if err == nil {
		err = drainErr
	}
	if err != nil {
		return fmt.Errorf("mysqllock: close: locks may stay held until their leases end: %w", outage.Describe(err))
	}
	return nil
}

// releaseHolds ends all holds and releases their rows. It retries transient errors, and those of a
// read-only server, until ctx ends.
func (l *Locker) releaseHolds(ctx context.Context) error {
	var held []*hold
	var claims []store.Claim
	ended := 0 // rows
	l.mu.Lock()
	close(l.done)
	for _, h := range l.holds {
		if l.checkLoss(h); h.ended == nil {
			l.endHold(h, ErrClosed)
			held = append(held, h)
			if l.leaveShareLocked(h) {
				l.released.Add(1)
				continue
			}
			ls := h.lease.Load()
			l.watchdog.Stop(ls)
			ended++
			if m := h.rowMinimum(); m != (store.MinHold{}) {
				l.releaser.AddAfter(ls.Claim, m, time.Now())
			} else {
				claims = append(claims, ls.Claim)
			}
		}
	}
	clear(l.holds)
	losses := l.losses
	l.losses = nil
	l.mu.Unlock()

	freed, _, err := undo.ReleaseAll(ctx, l.repo, claims, l.waker.Released)
	l.released.Add(freed)
	for range ended {
		l.repo.HoldEnded()
	}
	for _, h := range held {
		l.serveNext(h)
		l.observers.holdEnd(h, ErrClosed)
	}
	for _, h := range losses { // last: observers must not delay the releases
		l.finishLoss(h)
	}
	return err
}

// endCalls waits for calls and attempts in flight, which are then undone. It cuts off statements
// that have no reply within a second, and reports whether there were any.
func (l *Locker) endCalls() (cut bool) {
	answered := make(chan struct{})
	go func() {
		l.working.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(time.Second):
		cut = true
	}
	l.stop()
	<-answered // every statement ends with its context
	return cut
}

// isClosed reports whether Close was called. That does not change while the caller holds mu.
func (l *Locker) isClosed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}
