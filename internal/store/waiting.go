package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// lockWaitLimit is when a statement that waits for a row must have been ended by
// the server: innodb_lock_wait_timeout is 50 s by default. A connection without an
// answer by then is dead.
const LockWaitTimeout = 55 * time.Second

// A statement that needs a row which a transaction has locked waits in the
// server. When its caller gives up, the driver can close the connection, but the
// statement stays in the server's queue for up to innodb_lock_wait_timeout (50 s):
// with a thread, with a place among the connections, and with the locks that it
// has already. So the library does not cut such a statement off: it runs to its
// end with its connection, and rowWaits bounds how many there are. Whoever gets
// no place uses a statement that passes over locked rows.
type rowWaits struct {
	mu    sync.Mutex // guards the following
	rows  map[string]struct{}
	count [waitClasses]int
	queue []chan struct{} // first grants without a place; each is closed when one is left
}

// A waitClass has places of its own, so that attempts to acquire cannot use up
// those of the locks that are held.
type waitClass int

const (
	acquireWaits    waitClass = iota // statements that acquire
	firstGrantWaits                  // statements that acquire a lock which has no row yet
	holdWaits                        // statements that renew, extend or release
	waitClasses
)

// enter reserves a place for a statement that may wait for the row of name. It
// returns false if a statement of this process may already wait for that row, or
// if most of the class may wait for other rows. Each success is followed by one
// leave, when the statement is answered.
func (w *rowWaits) enter(class waitClass, name string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reserve(class, name, most)
}

// reserve is enter for a caller who holds mu.
func (w *rowWaits) reserve(class waitClass, name string, most int) bool {
	if _, taken := w.rows[name]; taken || w.count[class] >= most {
		return false
	}
	if w.rows == nil {
		w.rows = map[string]struct{}{}
	}
	w.rows[name] = struct{}{}
	w.count[class]++
	return true
}

// enterFirst is enter for a first grant. While as many as may be wait for other
// rows, it blocks, until ctx ends.
func (w *rowWaits) enterFirst(ctx context.Context, name string, most int) (bool, error) {
	for {
		w.mu.Lock()
		if _, taken := w.rows[name]; taken || w.count[firstGrantWaits] < most {
			defer w.mu.Unlock()
			return w.reserve(firstGrantWaits, name, most), nil
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
				w.callNext()
			}
			return false, ctx.Err()
		}
	}
}

// callNext makes the first grant that has come first try again. The caller holds mu.
func (w *rowWaits) callNext() {
	if len(w.queue) > 0 {
		close(w.queue[0])
		w.queue = w.queue[1:]
	}
}

func (w *rowWaits) leave(class waitClass, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rows, name)
	w.count[class]--
	if class == firstGrantWaits {
		w.callNext()
	}
}

// holdPlaces is how many statements that renew, extend or release may wait in
// the server for locked rows. Each has a connection of the pool meanwhile.
func (t *Store) holdSlots() int {
	const most = 4
	limit := t.db.Stats().MaxOpenConnections
	if limit == 0 {
		return most
	}
	return max(1, min(limit/2, most))
}

// A rowWait is a statement that may wait in the server for a locked row.
type rowWait struct {
	since  time.Time
	holder Claim  // for whose row it waits; zero if it is to acquire
	end    func() // gives up what it occupies here: for a statement whose row is not locked, or does not matter any more
}

// inPlace runs a statement that may wait in the server for the row of a claim, for
// which the caller has a place in rowWaits. The end of ctx ends the call, but not
// a statement that was sent: cut off, it would go on to wait, beside the one that
// replaces it.
func runInSlot[T any](ctx context.Context, t *Store, c Claim, fn func(context.Context, *sqlx.Conn) (T, error)) (T, error) {
	own, cancel := context.WithTimeout(t.lifetime, LockWaitTimeout)
	began := time.Now()
	over := false // guarded by mu: the row was found unlocked, or another's
	t.mu.Lock()
	t.rowWaitsByName[c.Name] = rowWait{began, c, func() { over = true; cancel() }}
	t.mu.Unlock()
	return detach(ctx, t, own, cancel, t.holdsOne() && t.poolShort(), fn, func(sent bool, err error) {
		t.mu.Lock()
		delete(t.rowWaitsByName, c.Name)
		left := sent && isTimeout(err) && !over
		t.mu.Unlock()
		t.leaveSlot(holdWaits, c.Name, began, left)
	})
}

// leavePlace gives up the place of a statement that has ended. If it was cut off, as
// in a pool of one, it may go on in the server for what is left of its time.
func (t *Store) leaveSlot(class waitClass, name string, began time.Time, cutOff bool) {
	if rest := LockWaitTimeout - time.Since(began); cutOff && t.lifetime.Err() == nil && rest > 0 {
		time.AfterFunc(rest, func() { t.rowWaits.leave(class, name) })
	} else {
		t.rowWaits.leave(class, name)
	}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// A leftWaiting is the error of a statement that was cut off when its time was
// over, and may go on to wait in the server for the row of the claim.
type abandonedWait struct {
	error
	claim Claim
	class waitClass
}

func (e *abandonedWait) Unwrap() error { return e.error }

// keepWaiting keeps a connection from the pool, and the place of its statement,
// while the statement that was cut off on it may wait in the server: so the server
// has no more connections than the pool allows.
func (t *Store) keepUntilUnlocked(conn *sqlx.Conn, left *abandonedWait) {
	name, since := left.claim.Name, time.Now()
	var once sync.Once
	end := func() {
		once.Do(func() {
			conn.Close()
			t.mu.Lock()
			delete(t.rowWaitsByName, name)
			t.mu.Unlock()
			t.rowWaits.leave(left.class, name)
		})
	}
	if t.lifetime.Err() != nil {
		end()
		return
	}
	var timer *time.Timer
	t.mu.Lock()
	defer t.mu.Unlock()
	timer = time.AfterFunc(waitCheckInterval, func() {
		ctx, cancel := context.WithTimeout(t.lifetime, waitCheckInterval)
		defer cancel()
		state, err := t.Probe(ctx, left.claim)
		if t.lifetime.Err() == nil && (err != nil || state >= RowLocked) && time.Since(since) < LockWaitTimeout {
			timer.Reset(waitCheckInterval)
		} else {
			end()
		}
	})
	held := Claim{}
	if left.class == holdWaits {
		held = left.claim
	}
	t.rowWaitsByName[name] = rowWait{since, held, func() { timer.Stop(); go end() }}
}

// waitOver ends what still waits for rows although another statement met them
// unlocked: the connections are cut or dead. If the rows are lost, only what waits
// for those claims ends; a statement that is to acquire waits for whoever has the row.
func (t *Store) endWaits(cs []Claim, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rowWaitsByName) == 0 {
		return
	}
	for _, c := range cs {
		if w, ok := t.rowWaitsByName[c.Name]; ok && time.Since(w.since) > time.Second && (!lost || w.holder == c) {
			w.end()
		}
	}
}

// detach runs a statement on a goroutine of the table, with the context own, which
// cancel ends. The end of ctx ends the call, and the statement too if it was not
// sent yet. done is called at the statement's end.
func detach[T any](ctx context.Context, t *Store, own context.Context, cancel context.CancelFunc, spare bool,
	fn func(context.Context, *sqlx.Conn) (T, error), done func(sent bool, err error),
) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	var mu sync.Mutex // guards sent
	sent := false
	t.detached.Go(func() {
		defer cancel()
		a := answer{err: ErrPanic}
		defer func() {
			done(sent, a.err)
			answers <- a
		}()
		a.err = t.run(own, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
			mu.Lock()
			err = own.Err() // the call may have ended since the connection was had
			sent = sent || err == nil
			mu.Unlock()
			if err == nil {
				a.result, err = fn(ctx, conn)
			}
			return err
		})
	})
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
	}
	mu.Lock()
	leave := sent
	if !leave {
		cancel()
	}
	mu.Unlock()
	if leave {
		return result, ctx.Err()
	}
	a := <-answers
	return a.result, a.err
}
