package mysqllock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Close ends waiting calls with [ErrClosed], releases every lock still held and
// ends their contexts (cause [ErrClosed]). It waits for the goroutines of the
// Locker, at most 10 s, and returns an error if locks could not be released: those
// end with their leases, since Close also ends the session that would keep them. A statement that waits in the server for a locked row is cut
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
	if err := l.watchdog.endSession(ctx); err != nil {
		l.log.Debug("mysqllock: session not ended, it expires", "err", err)
	}
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
