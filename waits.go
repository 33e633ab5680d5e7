package mysqllock

import "sync"

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
}

// A waitClass has places of its own, so that attempts to acquire cannot use up
// those of the locks that are held.
type waitClass int

const (
	acquireWaits waitClass = iota // statements that acquire
	holdWaits                     // statements that renew, extend or release
	waitClasses
)

// enter reserves a place for a statement that may wait for the row of name. It
// returns false if a statement of this process may already wait for that row, or
// if most of the class may wait for other rows. Each success is followed by one
// leave, when the statement is answered.
func (w *rowWaits) enter(class waitClass, name string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
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

func (w *rowWaits) leave(class waitClass, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rows, name)
	w.count[class]--
}
