package mysqllock

import (
	"context"
	"slices"
	"sync"
)

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
