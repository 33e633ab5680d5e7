package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mysqllock/mysqllock/internal/background"
)

const (
	// Up to combineFrom acquires and releases in progress, or half as many as the pool has
	// connections if that is less, are sent one by one. Only further ones are combined, because
	// combining a few would be slower.
	combineFrom = 6
	// maxCombined limits the requests that share a statement. More would delay other statements.
	maxCombined = 200
	// slowBatch is how long the next batch waits for the reply to the last one. After that, the
	// connection of the last one may be dead, or may be one that cannot be opened.
	slowBatch = 100 * time.Millisecond
)

// crowded counts an acquire or release that begins, and reports whether it should share a statement with
// others. When it ends, the caller must call s.load.Add(-1).
func (s *Store) crowded() bool {
	n := s.load.Add(1)
	if n == 1 {
		return false
	}
	most := combineFrom
	if open := s.db.Stats().MaxOpenConnections; open > 0 {
		most = min(most, max(1, open/2))
	}
	return n > int64(most)
}

// A combiner collects requests while a statement is in flight, and sends them together in the next one.
//
// A request is pending until a statement has a connection; then it is part of that statement's batch.
// The end of a call's context ends only that call: its request is not sent if it is pending, and has an
// unknown outcome if it is part of a batch. If a batch has no reply, the outcome of each of its requests
// is unknown, and their callers undo or repeat them.
type combiner[R, A any] struct {
	store    *Store
	reserved bool // the statement may use the reserved connection
	name     func(R) string
	// send sends a batch, whose names differ. Requests that it does not answer get the error that it
	// returns; if that is nil, it must answer them later.
	send func(ctx context.Context, conn *sqlx.Conn, batch []*combinedRequest[R, A]) error

	mu      sync.Mutex // protects following fields, and those of requests and batches
	pending []*combinedRequest[R, A]
	busy    bool // a goroutine sends pending requests, and its batch is not slow
}

// A combinedRequest waits to be sent with others, or for the reply to all of them.
type combinedRequest[R, A any] struct {
	request R
	done    chan struct{} // closed when answer and err are set
	answer  A
	err     error
	ended   bool   // answered, or its call has ended
	batch   *batch // nil while the request is pending
}

// A batch is a statement for several requests.
type batch struct {
	calls  int                // the number of calls that wait for its reply
	cancel context.CancelFunc // ends the statement
	filled bool               // its requests were chosen
	slow   bool               // the combiner no longer waits for it, because it is slow or has ended
}

// errAlone is the outcome of a request that must be sent on its own.
var errAlone = errors.New("not combined")

// do sends a request together with others. It returns errAlone, errAbsent or errUnsure if the caller
// must send the request on its own.
func (c *combiner[R, A]) do(ctx context.Context, request R) (answer A, err error) {
	r := &combinedRequest[R, A]{request: request, done: make(chan struct{})}
	c.mu.Lock()
	if c.store.lifetime.Err() != nil {
		c.mu.Unlock()
		return answer, errAlone
	}
	c.pending = append(c.pending, r)
	c.start()
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
	}
	inUse := c.store.PoolInUse()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ended {
		return r.answer, r.err
	}
	r.ended, err = true, ctx.Err()
	if r.batch != nil {
		r.batch.leave()
		return answer, err
	}
	c.pending = slices.DeleteFunc(c.pending, func(p *combinedRequest[R, A]) bool { return p == r })
	if inUse {
		err = PoolExhausted{err}
	}
	return answer, NotSent{err}
}

// leave records that the call of one of the batch's requests has ended. The caller holds the combiner's
// mu.
func (b *batch) leave() {
	if b.calls--; b.calls == 0 {
		b.cancel()
	}
}

// start starts a goroutine for the pending requests, unless one is running. The caller holds mu.
func (c *combiner[R, A]) start() {
	if len(c.pending) > 0 && !c.busy {
		c.busy = true
		c.store.detached.Go(func() {
			for c.sendBatch() {
			}
		})
	}
}

// sendBatch sends pending requests as one batch. It reports whether it must be called again.
func (c *combiner[R, A]) sendBatch() (again bool) {
	ctx, cancel := context.WithCancel(c.store.lifetime)
	defer cancel()
	b := &batch{cancel: cancel}
	watch := background.AfterFunc(slowBatch, func() time.Duration { return c.stalled(b) })
	var requests []*combinedRequest[R, A]
	err := ErrPanic
	defer func() {
		watch.Stop()
		again = c.finish(b, requests, err)
	}()
	err = c.store.run(ctx, c.reserved, func(ctx context.Context, conn *sqlx.Conn) error {
		if !b.filled {
			requests = c.fill(b)
		}
		if len(requests) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, LockWaitTimeout)
		defer cancel()
		return c.send(ctx, conn, requests)
	})
	return again
}

// fill chooses the requests of a batch from those that are pending.
func (c *combiner[R, A]) fill(b *batch) (requests []*combinedRequest[R, A]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]struct{}, len(c.pending))
	var others []*combinedRequest[R, A]
	for _, r := range c.pending {
		name := c.name(r.request)
		if _, found := names[name]; found || len(requests) == maxCombined {
			others = append(others, r)
			continue
		}
		names[name] = struct{}{}
		r.batch = b
		b.calls++
		requests = append(requests, r)
	}
	c.pending, b.filled = others, true
	return requests
}

// stalled lets another batch begin although this one has no reply. It returns the delay before it must
// be called again, or 0.
func (c *combiner[R, A]) stalled(b *batch) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.filled && c.store.PoolInUse() {
		return slowBatch // another batch would also wait for a connection
	}
	if !b.slow {
		b.slow, c.busy = true, false
		c.start()
	}
	return 0
}

// finish records the end of a batch. It reports whether the goroutine must send another one.
func (c *combiner[R, A]) finish(b *batch, requests []*combinedRequest[R, A], err error) (again bool) {
	if !b.filled { // it got no connection
		requests = c.fill(b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range requests {
		if err != nil && !r.ended {
			r.end(r.answer, err)
		}
	}
	if b.slow { // another goroutine has taken over
		return false
	}
	b.slow, c.busy = true, len(c.pending) > 0
	return c.busy
}

// end gives a request its answer. The caller holds the combiner's mu.
func (r *combinedRequest[R, A]) end(answer A, err error) {
	r.answer, r.err, r.ended = answer, err, true
	close(r.done)
}

// answer gives a request its answer. It returns false if its call has ended.
func (c *combiner[R, A]) answer(r *combinedRequest[R, A], answer A, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ended {
		return false
	}
	r.end(answer, err)
	return true
}

// move moves requests that their batch has not answered to a new batch, which cancel ends.
func (c *combiner[R, A]) move(requests []*combinedRequest[R, A], cancel context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &batch{calls: 1, cancel: cancel} // 1 is for the leave below, which cancels if all calls have ended
	for _, r := range requests {
		if r.batch = b; !r.ended {
			b.calls++
		}
	}
	b.leave()
}
