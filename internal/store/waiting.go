package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mysqllock/mysqllock/internal/background"
)

// LockWaitTimeout is the time within which the server must have ended a statement that waits for a row:
// innodb_lock_wait_timeout is 50 s by default. A connection that has no reply by then is dead.
const LockWaitTimeout = 55 * time.Second

// rowWaits limits how many statements of this process wait in the server for rows that transactions
// have locked. Each such statement needs a slot; a caller without one uses a statement that skips
// locked rows.
//
// When the caller of a waiting statement gives up, the driver can close the connection, but the
// statement stays in the server for up to innodb_lock_wait_timeout (50 s), with its thread, its
// connection and its locks. So it is not cut off, and keeps its connection to the end.
type rowWaits struct {
	mu    sync.Mutex         // protects following fields
	rows  map[string]rowWait // by the name of the row
	count [waitClasses]int
	queue []chan struct{} // first grants that wait for a slot; wakeNext closes one for each slot that becomes free
}

// A waitClass has its own slots, so that acquires cannot use up those that held locks need.
type waitClass int

const (
	acquireWaits    waitClass = iota // statements that acquire
	firstGrantWaits                  // statements that acquire a name without a row
	holdWaits                        // statements that renew, extend or release
	waitClasses
)

// enter takes a slot for a statement that may wait for the row of name. It returns false if a statement
// of this process may already wait for that row, or if the class has no slot left; it has most slots in
// all. After each success, the caller must call leave when the statement has ended.
func (w *rowWaits) enter(class waitClass, name string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enterLocked(class, name, most)
}

// enterLocked is enter for a caller that holds mu.
func (w *rowWaits) enterLocked(class waitClass, name string, most int) bool {
	if _, taken := w.rows[name]; taken || w.count[class] >= most {
		return false
	}
	if w.rows == nil {
		w.rows = map[string]rowWait{}
	}
	w.rows[name] = rowWait{class: class}
	w.count[class]++
	return true
}

// enterFirst is enter for a first grant. It blocks while all slots are taken, and returns an error if
// ctx ends.
func (w *rowWaits) enterFirst(ctx context.Context, name string, most int) (bool, error) {
	for {
		w.mu.Lock()
		if _, taken := w.rows[name]; taken || w.count[firstGrantWaits] < most {
			defer w.mu.Unlock()
			if taken {
				w.wakeNext() // if it was woken for a slot, that is still free
			}
			return w.enterLocked(firstGrantWaits, name, most), nil
		}
		left := make(chan struct{})
		w.queue = append(w.queue, left)
		w.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			if i := slices.Index(w.queue, left); i >= 0 {
				w.queue = slices.Delete(w.queue, i, i+1)
			} else {
				w.wakeNext()
			}
			return false, ctx.Err()
		}
	}
}

// wakeNext wakes the first caller in the queue. The caller holds mu.
func (w *rowWaits) wakeNext() {
	if len(w.queue) > 0 {
		close(w.queue[0])
		w.queue = w.queue[1:]
	}
}

func (w *rowWaits) leave(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait, ok := w.rows[name]
	if !ok {
		return
	}
	delete(w.rows, name)
	w.count[wait.class]--
	if wait.class == firstGrantWaits {
		w.wakeNext()
	}
}

// slotLimits has the number of slots of each class: the pool's size divided by share, within bounds.
// Each slot in use occupies a connection.
var slotLimits = [waitClasses]struct{ share, least, most int }{
	acquireWaits:    {4, 0, 8}, // none in a small pool, whose connections the renewals need
	firstGrantWaits: {2, 1, 8},
	holdWaits:       {2, 1, 4},
}

// slots returns how many statements of a class may wait in the server for locked rows.
func (s *Store) slots(class waitClass) int {
	limits, open := slotLimits[class], s.db.Stats().MaxOpenConnections
	if open == 0 {
		return limits.most
	}
	return max(limits.least, min(open/limits.share, limits.most))
}

// A rowWait is a statement that may wait in the server for a locked row.
type rowWait struct {
	class waitClass
	since time.Time
	claim Claim
	end   func() // frees its connection and slot; called if the row is no longer locked, or no longer matters; may be nil
}

// runInSlot runs a statement that may wait in the server for the row of a claim, and for which the
// caller has a slot. The end of ctx ends the call, but not a statement that was sent: if that were cut
// off, it would continue to wait beside its successor. If its connection ends, it may continue in the server, so
// runInSlot frees the slot only after LockWaitTimeout.
func (s *Store) runInSlot(ctx context.Context, c Claim, reserved bool, fn func(context.Context, *sqlx.Conn) (reply, error)) (reply, error) {
	own, cancel := context.WithTimeout(s.lifetime, LockWaitTimeout)
	began := time.Now()
	over := false // protected by the mutex of rowWaits: the row was found unlocked, or with another owner
	s.rowWaits.mu.Lock()
	s.rowWaits.rows[c.Name] = rowWait{holdWaits, began, c, func() { over = true; cancel() }}
	s.rowWaits.mu.Unlock()
	return s.detach(ctx, own, cancel, reserved, fn, func(sent bool, err error) {
		s.rowWaits.mu.Lock()
		left := sent && mayContinue(began, err) && !over
		s.rowWaits.mu.Unlock()
		if rest := LockWaitTimeout - time.Since(began); left && s.lifetime.Err() == nil && rest > 0 {
			time.AfterFunc(rest, func() { s.rowWaits.leave(c.Name) })
		} else {
			s.rowWaits.leave(c.Name)
		}
	})
}

// writeOwned writes the row of a claim. It runs waiting, whose statement waits while a transaction has the row
// locked. If the statement gets no slot, or if only the reserved connection is free, writeOwned first runs
// skipping, whose statement skips a locked row, and if that matches no row and there still is no slot, returns
// ErrRowLocked.
//
// waiting runs on the caller's goroutine, because switching goroutines would cost 10 % of an uncontended
// acquire and release. The end of ctx cuts its statement off, which then keeps its connection and slot while it
// may wait in the server.
func (s *Store) writeOwned(ctx context.Context, c Claim, reserved bool, skipping func() (matched bool, err error), waiting func(context.Context, *sqlx.Conn) error) error {
	// Renewals need the only connection of a pool, so that one must not wait for a row.
	only := s.db.Stats().MaxOpenConnections == 1
	if only || s.poolShort() || !s.rowWaits.enter(holdWaits, c.Name, s.slots(holdWaits)) {
		if matched, err := skipping(); matched || err != nil {
			return err
		}
		if only || !s.rowWaits.enter(holdWaits, c.Name, s.slots(holdWaits)) {
			return NotSent{ErrRowLocked}
		}
	}
	left := false
	err := s.run(ctx, reserved, func(ctx context.Context, conn *sqlx.Conn) error {
		began := time.Now()
		err := waiting(ctx, conn)
		if left = err != nil && (ctx.Err() != nil || mayContinue(began, err)) && !errors.Is(err, driver.ErrBadConn); left {
			err = &abandonedWait{err, c, holdWaits}
		}
		return err
	})
	if !left {
		s.rowWaits.leave(c.Name)
	}
	return err
}

// mayContinue reports whether a statement may continue to wait in the server, although its caller has the
// error err: it was cut off, or its connection has ended after a wait, perhaps because of readTimeout in
// the DSN.
func mayContinue(began time.Time, err error) bool {
	return isTimeout(err) || !Answered(err) && time.Since(began) >= waitCheckInterval
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// An abandonedWait is the error of a statement that was cut off, and may continue to wait in the server
// for the row of the claim.
type abandonedWait struct {
	error
	claim Claim
	class waitClass
}

func (e *abandonedWait) Unwrap() error { return e.error }

// waitCheckInterval is how often a statement that may wait in the server is checked.
const waitCheckInterval = time.Second

// keepUntilUnlocked keeps a connection out of the pool, and the slot of its statement taken, while that
// statement, which was cut off, may wait in the server. Otherwise the pool would open another connection
// in its place.
func (s *Store) keepUntilUnlocked(conn *sqlx.Conn, left *abandonedWait) {
	name, since := left.claim.Name, time.Now()
	end := sync.OnceFunc(func() {
		conn.Close()
		s.rowWaits.leave(name)
	})
	if s.lifetime.Err() != nil {
		end()
		return
	}
	s.rowWaits.mu.Lock()
	defer s.rowWaits.mu.Unlock()
	timer := background.AfterFunc(waitCheckInterval, func() time.Duration {
		ctx, cancel := context.WithTimeout(s.lifetime, waitCheckInterval)
		defer cancel()
		state, err := s.Probe(ctx, left.claim)
		if s.lifetime.Err() == nil && (err != nil || state >= RowLocked) && time.Since(since) < LockWaitTimeout {
			return waitCheckInterval
		}
		end()
		return 0
	})
	s.rowWaits.rows[name] = rowWait{left.class, since, left.claim, func() { timer.Stop(); go end() }}
}

// endWaits ends statements that still wait for the rows of claims, although another statement has found
// these rows unlocked: the connections of the waiting statements are cut or dead. If the claims have
// lost their rows, endWaits ends only statements of the claims themselves, because an acquire may still
// wait for the new owner.
func (s *Store) endWaits(cs []Claim, lost bool) {
	s.rowWaits.mu.Lock()
	defer s.rowWaits.mu.Unlock()
	for _, c := range cs {
		w := s.rowWaits.rows[c.Name]
		if w.end != nil && time.Since(w.since) > time.Second && (!lost || w.class == holdWaits && w.claim == c) {
			w.end()
		}
	}
}

// detach runs fn on its own goroutine, with the context own, which cancel ends. The end of ctx ends the
// call, but ends fn only if nothing was sent yet. detach calls done when fn has ended.
func (s *Store) detach(ctx, own context.Context, cancel context.CancelFunc, reserved bool,
	fn func(context.Context, *sqlx.Conn) (reply, error), done func(sent bool, err error),
) (reply, error) {
	type answer struct {
		reply
		err error
	}
	answers := make(chan answer, 1)
	var begun atomic.Bool // fn has begun, or must not begin, because the call has ended
	s.detached.Go(func() {
		defer cancel()
		a, sent := answer{err: ErrPanic}, false
		defer func() {
			done(sent, a.err)
			answers <- a
		}()
		a.err = s.run(own, reserved, func(ctx context.Context, conn *sqlx.Conn) (err error) {
			if err = own.Err(); err != nil {
				return err
			}
			if !sent && !begun.CompareAndSwap(false, true) {
				return context.Canceled
			}
			sent = true
			a.reply, err = fn(ctx, conn)
			return err
		})
	})
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
	}
	if !begun.CompareAndSwap(false, true) {
		return reply{}, ctx.Err()
	}
	cancel()
	a := <-answers
	return a.reply, a.err
}
