package mysqllock

import (
	"container/list"
	"errors"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A queue has the waiters of one name in this process, in order of arrival. It exists
// while it has a head.
type queue struct {
	head      *waiter
	asking    bool        // the head's statement is in flight, or about to be sent
	asked     time.Time   // when it was sent, or last known to wait for other statements
	known     bool        // by the last reply the lock is held, or its row locked
	granted   bool        // that reply was a grant to this process, which may have ended
	failed    error       // the last reply was an error
	claim     store.Claim // of that statement
	probing   bool        // a probe was sent
	probed    bool        // and has been answered
	next      list.List   // of *waiter; the others
	noWaiting int         // how many of them have noWait
}

// A waiter is one acquire call in a queue.
type waiter struct {
	name    string
	owner   *owner
	noWait  bool          // refused rather than queued behind a head that holds or sleeps
	isHead  chan struct{} // closed by the registry when it becomes the head
	wake    chan struct{} // capacity 1: look again; it may be a false alarm
	refused chan struct{} // closed when a waiter with noWait cannot become the head; else nil
	handoff *handoff      // of the head: what the last holder left; may be nil

	elem   *list.Element // in queue.next; nil for the head
	left   bool          // not in the queue any more
	waited bool          // was refused by the database
	listed bool          // the row's wait queue may have this process
	expiry *time.Timer   // while watched: fires when the holder's lease ends
	failed error         // of the poller's last look for this name
}

// join appends a waiter to the queue of name. A waiter with noWait joins only if there is
// no head, or a statement in flight may fail and leave it.
func (r *registry) join(name string, own *owner, noWait bool) (*waiter, bool) {
	w := &waiter{name: name, owner: own, noWait: noWait, isHead: make(chan struct{}), wake: make(chan struct{}, 1)}
	if noWait {
		w.refused = make(chan struct{})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[name]
	switch {
	case q == nil:
		r.queues[name] = &queue{head: w, asking: true, asked: time.Now()}
		close(w.isHead)
	case noWait && !q.asking:
		return nil, false
	default:
		w.elem = q.next.PushBack(w)
		if noWait {
			q.noWaiting++
		}
	}
	return w, true
}

// asking records that the head's statement is about to be sent. It returns the process
// that joins the row's wait queue if the statement is refused: 0, unless it was refused
// before, or the name was contended recently.
func (r *registry) asking(w *waiter, again bool) (list store.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w {
		q.asking, q.asked = true, time.Now()
	}
	_, contended := r.contended[w.name]
	switch {
	case !r.enlists(w) || !again && !contended:
		return 0
	case r.canListen():
		list = r.self
	default:
		list = r.self.Polling()
	}
	w.listed = true
	return list
}

// enlists reports whether w joins the row's wait queue if it is refused.
func (r *registry) enlists(w *waiter) bool { return r.signalling && !w.noWait }

// canListen reports whether this process expects signals. The caller holds mu.
func (r *registry) canListen() bool { return r.signalling && !time.Now().Before(r.retryListenAt) }

// sending records the claim of the head's statement.
func (r *registry) sending(w *waiter, c store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w {
		q.claim, q.probing, q.probed = c, false, false
	}
}

// answered records the reply to the head's statement, and refuses waiters with noWait.
func (r *registry) answered(w *waiter, granted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if granted {
		if !w.waited {
			delete(r.contended, w.name)
		}
		w.listed = false
		r.falseWakes = 0
	} else {
		if len(r.contended) == maxContended {
			clear(r.contended)
		}
		r.contended[w.name] = struct{}{}
		w.waited = true
	}
	w.failed = nil
	r.answeredAt = time.Now()
	q := r.queues[w.name]
	if q == nil || q.head != w {
		return // its hold has ended already
	}
	q.asking, q.known, q.granted, q.failed = false, true, granted, nil
	r.refuseNoWait(q)
}

// failed records an error of the head's statement. If it was only cut off, a probe finds
// out why it had no reply.
func (r *registry) failed(w *waiter, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w && !errors.Is(err, errNoAnswer) && !(q.known && !q.granted && errors.Is(err, errNoConnection)) {
		q.known, q.granted, q.failed = store.Contended(err), false, nil
		if !q.known {
			q.failed = err
		}
	}
}

// refuseNoWait ends the queued calls with noWait. The caller holds mu.
func (r *registry) refuseNoWait(q *queue) {
	for e := q.next.Front(); e != nil && q.noWaiting > 0; e = e.Next() {
		if o := e.Value.(*waiter); o.noWait {
			select {
			case <-o.refused:
			default:
				close(o.refused)
			}
		}
	}
}

// leave removes w from its queue. If it was the head, the next waiter becomes the head and
// gets the handoff that w has not used; without one, leave returns the handoff.
func (r *registry) leave(w *waiter) *handoff {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.left {
		return nil
	}
	w.left = true
	r.forget(w)
	q := r.queues[w.name]
	if w.elem != nil {
		q.remove(w.elem)
		return nil
	}
	left := w.handoff
	w.handoff = nil
	if r.passHead(q, left) {
		return nil
	}
	delete(r.queues, w.name)
	if w.listed {
		r.leaveWaitQueue(w.name)
	}
	return left
}

// offer is leave for a holder that hands its row over as it is. It returns false, and has
// done nothing, if no other waiter is queued.
func (r *registry) offer(w *waiter, left *handoff) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.left || !r.passHead(r.queues[w.name], left) {
		return false
	}
	w.left = true
	return true
}

// queued reports whether a waiter is queued behind w, the head.
func (r *registry) queued(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	return !w.left && q != nil && q.next.Len() > 0
}

// passHead makes the next waiter the head, if there is one. The caller holds mu.
func (r *registry) passHead(q *queue, left *handoff) bool {
	first := q.next.Front()
	if first == nil {
		return false
	}
	next := q.remove(first)
	next.elem, next.handoff, next.listed = nil, left, q.head.listed
	q.head, q.asking, q.asked = next, true, time.Now()
	close(next.isHead)
	return true
}

func (q *queue) remove(elem *list.Element) *waiter {
	w := q.next.Remove(elem).(*waiter)
	if w.noWait {
		q.noWaiting--
	}
	return w
}

// takeOffer returns the handoff that w, the head, was offered, or nil.
func (r *registry) takeOffer(w *waiter) *handoff {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := w.handoff
	w.handoff = nil
	return left
}

// wakeOwner wakes the waiters of an owner that has just acquired the name: they re-enter.
func (r *registry) wakeOwner(name string, own *owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		for e := q.next.Front(); e != nil; e = e.Next() {
			if o := e.Value.(*waiter); o.owner == own {
				o.signal()
			}
		}
	}
}

// wakeHead makes the head of name's queue look again.
func (r *registry) wakeHead(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		q.head.signal()
	}
}

func (w *waiter) signal() { notify(w.wake) }

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
