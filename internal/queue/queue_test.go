package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type (
	queues = Queues[int, string]
	waiter = Waiter[int, string]
)

// join joins a queue in which there is a place.
func join(t *testing.T, s *queues, owner any, noWait bool) *waiter {
	t.Helper()
	w, _ := s.Join(Request{Name: "x", Owner: owner, NoWait: noWait})
	require.NotNil(t, w)
	return w
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// woken reports whether a waiter was woken since the last call.
func woken(w *waiter) bool { return isClosed(w.Woken) }

func TestFirstInFirstOut(t *testing.T) {
	s := New[int, string]()
	a, b, c, d := join(t, s, 1, false), join(t, s, 2, false), join(t, s, 3, false), join(t, s, 4, false)
	other, _ := s.Join(Request{Name: "y", Owner: 1})
	require.True(t, isClosed(a.Head))
	require.True(t, isClosed(other.Head))
	require.False(t, isClosed(b.Head))
	require.Same(t, a.State, d.State)
	require.NotSame(t, a.State, other.State)

	offer, last := c.Leave() // before its turn
	require.Equal(t, "", offer)
	require.False(t, last)
	a.Leave()
	require.True(t, isClosed(b.Head))
	require.False(t, isClosed(d.Head))
	b.Leave()
	require.True(t, isClosed(d.Head))
	require.False(t, d.CanOffer())
	require.Equal(t, 2, s.Len())
	_, last = d.Leave()
	require.True(t, last)
	_, last = d.Leave() // again
	require.False(t, last)
	require.False(t, s.Has("x"))
}

// An offer that a head leaves belongs to the next waiter that takes it.
func TestOffers(t *testing.T) {
	s := New[int, string]()
	a := join(t, s, 1, false)
	require.False(t, a.Offer("nobody is there"))
	b, c := join(t, s, 2, false), join(t, s, 3, false)
	require.True(t, a.Offer("x"))
	require.False(t, a.Offer("a second one"))
	b.Leave() // it does not take it
	require.Equal(t, "x", c.TakeOffer())
	require.Equal(t, "", c.TakeOffer())
	offer, last := c.Leave()
	require.Equal(t, "", offer)
	require.True(t, last)

	a = join(t, s, 1, false)
	b = join(t, s, 2, false)
	require.True(t, a.Offer("y"))
	offer, _ = b.Leave()
	require.Equal(t, "y", offer)
}

// A waiter with noWait joins while the head may fail, and is refused once it has not.
func TestNoWait(t *testing.T) {
	s := New[int, string]()
	a, b, c := join(t, s, 1, false), join(t, s, 2, true), join(t, s, 3, false)
	a.Refuse()
	require.True(t, isClosed(b.Refused))
	require.Nil(t, c.Refused)
	d := join(t, s, 4, true)
	a.Admit(false)
	require.True(t, isClosed(d.Refused))
	w, state := s.Join(Request{Name: "x", Owner: 5, NoWait: true})
	require.Nil(t, w)
	require.Same(t, a.State, state)
	a.Admit(true)
	e := join(t, s, 5, true)
	b.Leave()
	c.Admit(false) // it is not the head
	require.False(t, isClosed(e.Refused))
	a.Leave()
	require.True(t, isClosed(c.Head))
	join(t, s, 6, true) // the new head may fail, too
}

func TestWake(t *testing.T) {
	s := New[int, string]()
	a, b, c := join(t, s, 1, false), join(t, s, 2, false), join(t, s, 1, false)
	s.Wake("x")
	s.Wake("x")
	s.Wake("y")
	require.True(t, woken(a))
	require.False(t, woken(a))
	require.False(t, woken(b))
	s.WakeOwner("x", 1)
	require.False(t, woken(a)) // the head
	require.False(t, woken(b))
	require.True(t, woken(c))
}

// joinShared joins a queue as a waiter for a shared hold.
func joinShared(t *testing.T, s *queues, noWait bool) *waiter {
	t.Helper()
	w, _ := s.Join(Request{Name: "x", NoWait: noWait, Shared: true})
	require.NotNil(t, w)
	return w
}

// An offer is not made to a waiter for a shared hold.
func TestOffersAndSharedWaiters(t *testing.T) {
	s := New[int, string]()
	a := join(t, s, 1, false)
	b, c := joinShared(t, s, false), join(t, s, 2, false)
	require.False(t, a.CanOffer())
	require.False(t, a.Offer("x"))
	a.Leave()
	require.True(t, isClosed(b.Head))
	require.True(t, b.CanOffer())
	b.Leave()
	require.Equal(t, "", c.TakeOffer())
}

// A waiter for a shared hold with noWait is refused unless the head that fails is an exclusive
// call with noWait: that one leaves, and shared holders do not exclude the waiter.
func TestNoWaitAndSharedWaiters(t *testing.T) {
	for _, c := range []struct {
		shared, noWait, refused bool // head; waiter
	}{
		{false, false, true}, {false, true, false}, {true, false, true}, {true, true, true},
	} {
		s := New[int, string]()
		head, _ := s.Join(Request{Name: "x", NoWait: c.noWait, Shared: c.shared})
		w, exclusive := joinShared(t, s, true), join(t, s, 1, true)
		head.Refuse()
		require.Equal(t, c.refused, isClosed(w.Refused), "%+v", c)
		require.True(t, isClosed(exclusive.Refused))
	}
}

// A waiter for a shared hold with noWait is refused behind an exclusive call with noWait that has the
// lock.
func TestNoWaitBehindAGrant(t *testing.T) {
	s := New[int, string]()
	head, w := join(t, s, 1, true), joinShared(t, s, true)
	head.Admit(false)
	require.True(t, isClosed(w.Refused))
}

// An offer that the head has not taken is not passed on to a waiter that takes none.
func TestOfferNotTakenBeforeASharedWaiter(t *testing.T) {
	s := New[int, string]()
	a, b := join(t, s, 1, false), join(t, s, 2, false)
	c, _ := s.Join(Request{Name: "x", Owner: 3, Shared: true})
	require.True(t, a.Offer("lease"))
	offer, last := b.Leave()
	require.Equal(t, "lease", offer)
	require.False(t, last)
	require.True(t, isClosed(c.Head))
	require.Empty(t, c.TakeOffer())
}
