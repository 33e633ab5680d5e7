// Package queue implements the wait queues of one process: a FIFO of waiters for each name.
package queue

import (
	"container/list"
	"sync"

	"github.com/mysqllock/mysqllock/internal/background"
)

// Queues has one wait queue for each name. A queue exists while it has a head. Only the head may
// send statements for the name; it stays the head until its hold has ended. S is the state that the
// waiters of a queue share. H is the type of an offer, which a head that leaves can make to the next
// waiter.
//
// The methods of Queues and Waiter do not block, and call no callbacks.
type Queues[S, H any] struct {
	mu     sync.Mutex // protects following fields, and those of every queue and Waiter
	queues map[string]*queue[S, H]
}

type queue[S, H any] struct {
	head        *Waiter[S, H]
	open        bool      // waiters with NoWait may join
	next        list.List // of *Waiter: those behind the head, in order of arrival
	noWaitCount int       // how many of those have NoWait
	state       S
}

// A Waiter is a place in a queue.
type Waiter[S, H any] struct {
	Request
	State   *S            // shared by the waiters of the queue, which must protect it themselves
	Head    chan struct{} // closed by the package when the waiter becomes the head
	Woken   chan struct{} // capacity 1: receives wake-ups, which may be false
	Refused chan struct{} // closed when a waiter with NoWait must give up; nil for other waiters

	queues *Queues[S, H]
	elem   *list.Element // in queue.next; nil for the head
	left   bool          // no longer in the queue
	offer  H             // from the last head to this one
}

// A Request describes what a waiter waits for.
type Request struct {
	Name   string
	Owner  any  // compared by WakeOwner
	NoWait bool // the waiter is refused if the head holds the lock or waits for it
	Shared bool // the waiter takes no offer
}

// New returns queues without waiters.
func New[S, H any]() *Queues[S, H] { return &Queues[S, H]{queues: map[string]*queue[S, H]{}} }

// Join appends a waiter to the queue of a name. A waiter with NoWait may join only if there is no
// head, or if the head admits such waiters. Otherwise Join returns nil and the state of the queue.
func (qs *Queues[S, H]) Join(r Request) (*Waiter[S, H], *S) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.queues[r.Name]
	if r.NoWait && q != nil && !q.open {
		return nil, &q.state
	}
	w := &Waiter[S, H]{Request: r, Head: make(chan struct{}), Woken: make(chan struct{}, 1), queues: qs}
	if r.NoWait {
		w.Refused = make(chan struct{})
	}
	if q == nil {
		q = &queue[S, H]{head: w, open: true}
		qs.queues[r.Name] = q
		close(w.Head)
	} else {
		w.elem = q.next.PushBack(w)
		if r.NoWait {
			q.noWaitCount++
		}
	}
	w.State = &q.state
	return w, w.State
}

// Admit sets whether waiters with NoWait may join behind w, the head. If admit is false, because w
// holds the lock or waits for it, those that have already joined are refused.
func (w *Waiter[S, H]) Admit(admit bool) {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if q := w.queues.queues[w.Name]; q != nil && q.head == w {
		if q.open = admit; !admit {
			q.refuse(false)
		}
	}
}

// Refuse refuses the waiters with NoWait that have joined behind w, the head.
func (w *Waiter[S, H]) Refuse() {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if q := w.queues.queues[w.Name]; q != nil && q.head == w {
		q.refuse(true)
	}
}

// refuse refuses the waiters with NoWait. mayFail means that the head may yet leave without a hold.
func (q *queue[S, H]) refuse(mayFail bool) {
	for e := q.next.Front(); e != nil && q.noWaitCount > 0; e = e.Next() {
		w := e.Value.(*Waiter[S, H])
		spared := mayFail && w.Shared && !q.head.Shared && q.head.NoWait // the head will leave, and w may then join shared holders
		if w.Refused != nil && !spared {
			select {
			case <-w.Refused:
			default:
				close(w.Refused)
			}
		}
	}
}

// Leave removes w from its queue. If w was the head, the next waiter becomes the head, and gets the
// offer that w has not taken. If there is no next waiter, or it takes no offers, Leave returns that
// offer. last is true if w was the last waiter.
func (w *Waiter[S, H]) Leave() (offer H, last bool) {
	qs := w.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var none H
	if w.left {
		return none, false
	}
	w.left = true
	q := qs.queues[w.Name]
	if w.elem != nil {
		q.remove(w.elem)
		return none, false
	}
	offer, w.offer = w.offer, none
	switch {
	case q.next.Len() == 0:
		delete(qs.queues, w.Name)
		return offer, true
	case q.takesOffer():
		q.pass(offer)
		return none, false
	default:
		q.pass(none)
		return offer, false
	}
}

// Offer is Leave for a head that makes an offer to the next waiter. It returns false, and changes
// nothing, if there is no next waiter, or it takes no offers.
func (w *Waiter[S, H]) Offer(offer H) bool {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if !w.canOffer() {
		return false
	}
	w.queues.queues[w.Name].pass(offer)
	w.left = true
	return true
}

// CanOffer reports whether there is a waiter behind w, the head, that takes offers.
func (w *Waiter[S, H]) CanOffer() bool {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	return w.canOffer()
}

// canOffer is CanOffer for a caller that holds mu.
func (w *Waiter[S, H]) canOffer() bool {
	return !w.left && w.queues.queues[w.Name].takesOffer()
}

// takesOffer reports whether there is a waiter behind the head that takes offers.
func (q *queue[S, H]) takesOffer() bool {
	next := q.next.Front()
	return next != nil && !next.Value.(*Waiter[S, H]).Shared
}

// TakeOffer returns the offer that was made to w, the head, or the zero value.
func (w *Waiter[S, H]) TakeOffer() (offer H) {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	var none H
	offer, w.offer = w.offer, none
	return offer
}

// pass makes the next waiter, which must exist, the head with an offer.
func (q *queue[S, H]) pass(offer H) {
	q.head = q.remove(q.next.Front())
	q.head.elem, q.head.offer = nil, offer
	q.open = true
	close(q.head.Head)
}

func (q *queue[S, H]) remove(elem *list.Element) *Waiter[S, H] {
	w := q.next.Remove(elem).(*Waiter[S, H])
	if w.Refused != nil {
		q.noWaitCount--
	}
	return w
}

// Wake wakes w.
func (w *Waiter[S, H]) Wake() { background.Notify(w.Woken) }

// Wake wakes the head of name's queue.
func (qs *Queues[S, H]) Wake(name string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.queues[name]; q != nil {
		q.head.Wake()
	}
}

// WakeOwner wakes those waiters behind the head that have the given owner.
func (qs *Queues[S, H]) WakeOwner(name string, owner any) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.queues[name]; q != nil {
		for e := q.next.Front(); e != nil; e = e.Next() {
			if w := e.Value.(*Waiter[S, H]); w.Owner == owner {
				w.Wake()
			}
		}
	}
}

// Has reports whether there is a queue for name.
func (qs *Queues[S, H]) Has(name string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.queues[name] != nil
}

// Len returns how many queues there are.
func (qs *Queues[S, H]) Len() int {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return len(qs.queues)
}
