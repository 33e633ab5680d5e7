package store

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

const (
	// permitTries limits how many slots one request tries to take. Each try fails if another process
	// is faster. Of 150 processes that acquire their first permits at the same time, some need 8 tries.
	permitTries = 20
	// firstSlots is how many slots are read at first, which takes 1 to 2 ms. All 10,000 take 30 ms. They
	// are those among which this process last found a slot, since others may all be held.
	firstSlots = 512
	// firstTakes is the number of slots without a row from which a request picks one. It is small, so
	// that there are few more rows than permits that were held at the same time.
	firstTakes = 32
	// afterFirstWaiter is the delay after which a request that has added the row of the wait queue
	// reads again: a release that did not find that row may have been uncommitted at the last read.
	afterFirstWaiter = 20 * time.Millisecond
)

// acquirePermit acquires a free slot of a semaphore. It reads the slots, and takes a free one with a
// statement that fails if another process was faster. Without contention, these are two statements. A
// request that has waited sends a third to leave the wait queue, and a fourth if other processes wait.
//
// A refused request joins the wait queue before its last read. So either that read finds a slot that
// was released meanwhile, or the release finds the waiter.
func (s *Store) acquirePermit(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	var locked slotSet // slots that transactions have locked
	joined := false
	var pause time.Duration // limits the pause after a refusal; 0 means no limit
	var next Process        // the process to signal for a slot that was given back
	for tries := 0; ; {
		sem, err := s.readSemaphore(ctx, req, locked)
		if err != nil {
			return Grant{}, NotSent{err}
		}
		switch {
		case sem.slot != 0 && tries < permitTries:
			tries++
			g, err := s.takeSlot(ctx, req, sem)
			if g.Token > 0 || err != nil && (OutcomeUnknown(err) || !Contended(err)) {
				return g, err
			}
			if g.Locked {
				locked = locked.with(sem.slot)
			}
			next = cmp.Or(g.Next, next)
		case req.EnlistAs != 0 && !sem.listed && !sem.full && !joined:
			joined = true
			created, err := s.joinSemaphore(ctx, req)
			if err != nil {
				return Grant{}, NotSent{err}
			}
			if created {
				pause = afterFirstWaiter
			}
		default:
			if req.EnlistAs != 0 {
				s.waits.set(req.Name, req.Limit)
			}
			g = sem.refusal(req, locked, pause)
			g.Next = next
			return g, nil
		}
	}
}

// takeSlot acquires the slot that a read has picked.
func (s *Store) takeSlot(ctx context.Context, req AcquireRequest, sem semaphore) (Grant, error) {
	slot := req
	slot.Name, slot.EnlistAs = SlotKey(NameOf(req.Name), sem.slot), 0
	slot.absent, slot.skipLocked = !sem.present.has(sem.slot), true
	g, err := s.acquireRow(ctx, slot)
	if err != nil || g.Token == 0 {
		return g, err
	}
	if sem.beyond {
		if now, err := s.readSlots(ctx, req, slotWindow{1, req.Limit}); err != nil || now.live.count() > req.Limit {
			return s.giveBack(ctx, g.Claim)
		}
	}
	s.waits.remove(req.Name)
	g.Next = s.nextForPermit(ctx, req, sem)
	return g, nil
}

// giveBack releases a permit that exceeds the limit of the request, because processes with a higher
// limit have taken others since the read.
func (s *Store) giveBack(ctx context.Context, c Claim) (Grant, error) {
	defer s.HoldEnded()
	_, next, err := s.Release(NotHeld(ctx), c)
	if err != nil {
		return Grant{Claim: c}, fmt.Errorf("a permit beyond the limit is not released yet: %v", err) // so that the caller undoes it
	}
	return Grant{Next: next}, nil
}

// nextForPermit removes this process, which has just acquired a permit, from the wait queue. If another
// slot is free, it returns the process that is then next. It reads the slots again to find out,
// because a release before this process left the queue has signalled only this process.
func (s *Store) nextForPermit(ctx context.Context, req AcquireRequest, sem semaphore) (next Process) {
	next = sem.next
	if overdue := next != 0 && !sem.headed && sem.present.has(sem.slot); sem.listed || overdue {
		// The new holder must not wait here for long; after that, the next process finds the slot
		// when it polls.
		ctx, cancel := context.WithTimeout(ctx, min(req.Lease/4, time.Second))
		defer cancel()
		head := "x''"
		if overdue {
			head = next.literal()
		}
		answer, err := s.changeQueue(ctx, req, s.command("leave_semaphore", "name", literal(req.Name), "owner", literal(req.Owner), "overdue", head))
		if err != nil {
			return 0
		}
		next = 0
		if answer > 1 { // 1 means that no process is left
			next = Process(answer)
		}
	}
	if next != 0 {
		if now, err := s.readSlots(ctx, req, slotWindow{1, req.Limit}); err != nil || now.live.count() >= req.Limit {
			return 0
		}
	}
	return next
}

// joinSemaphore joins the wait queue of a semaphore. created means that the queue had no row before.
func (s *Store) joinSemaphore(ctx context.Context, req AcquireRequest) (created bool, err error) {
	answer, err := s.changeQueue(ctx, req, s.acquireCommand(req, "join_semaphore", s.name+"."))
	switch {
	case err != nil:
		return false, err
	case answer == 0:
		return false, ErrAutocommit
	}
	return answer == 1, nil
}

// changeQueue executes a command on the row of a semaphore's wait queue. It waits while the row is
// locked, but returns ErrRowLocked if a statement of this process already waits for it. The end of ctx
// ends the call, but not the statement.
func (s *Store) changeQueue(ctx context.Context, req AcquireRequest, c command) (answer int64, err error) {
	r, err := s.runFirst(ctx, req.Name, req.Owner, func(ctx context.Context, conn *sqlx.Conn) (reply, error) {
		return s.execForAnswer(ctx, conn, c)
	})
	if r.answer == answerLocked {
		err = ErrRowLocked
	}
	return r.answer, err
}

// A semaphore is the state of a semaphore as a request has read it.
type semaphore struct {
	present slotSet       // slots that have a row
	live    slotSet       // slots that are held
	open    slotSet       // slots with a row that this process may take
	slot    int           // the one to take; 0 if there is none
	left    time.Duration // until the first live slot may be free
	beyond  bool          // another process has a greater limit
	next    Process       // head of the wait queue
	headed  bool          // this process is the head
	listed  bool          // this process is in the wait queue
	full    bool          // the wait queue has no room
}

// readSemaphore reads the state of a semaphore and picks a slot. It reads all slots only if none of the
// first ones can be taken, or if processes disagree about the limit.
func (s *Store) readSemaphore(ctx context.Context, req AcquireRequest, locked slotSet) (sem semaphore, err error) {
	all := slotWindow{1, req.Limit}
	for _, w := range []slotWindow{s.firstWindow(req), all} {
		sem, err = s.readSlots(ctx, req, w)
		if err != nil {
			return sem, err
		}
		sem.slot = sem.pick(w, locked)
		if w == all || sem.slot != 0 && !sem.beyond {
			break
		}
	}
	if sem.live.count() >= req.Limit {
		sem.slot = 0
	}
	if sem.slot != 0 {
		s.lastSlots.set(req.Name, sem.slot)
	}
	return sem, nil
}

// readSlots reads the slots of a window, and the slots above the limit.
func (s *Store) readSlots(ctx context.Context, req AcquireRequest, w slotWindow) (sem semaphore, err error) {
	var words []struct {
		Word                int
		Present, Live, Open uint32
		Until               int64
		Beyond              bool
		Next                Process
		Listed, Full        bool
		Demoted             bool
	}
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		err := s.selectAll(ctx, conn, &words, "semaphore", slotRange(req.Name, w, req.Limit)...)
		if err == nil && len(words) > 0 && words[0].Demoted {
			err = ErrDemoted
		}
		return err
	})
	for _, w := range words {
		sem.present = sem.present.withWord(w.Word, w.Present)
		sem.live = sem.live.withWord(w.Word, w.Live)
		sem.open = sem.open.withWord(w.Word, w.Open)
		if left := duration(w.Until); w.Live != 0 && (sem.left == 0 || left < sem.left) {
			sem.left = left
		}
		sem.beyond = sem.beyond || w.Beyond
		sem.next, sem.listed, sem.full = w.Next, w.Listed, w.Full
	}
	sem.headed = sem.next != 0 && s.self.Is(sem.next)
	return sem, err
}

// slotRange returns the placeholders of slots.sql.
func slotRange(queue string, w slotWindow, limit int) []string {
	name := NameOf(queue)
	return []string{
		"r", "r.", "queue", literal(queue), "digits", strconv.Itoa(len(queue) + 1), "permits", strconv.Itoa(limit),
		"first", literal(SlotKey(name, w.first)), "window", literal(SlotKey(name, w.last)), "limit", literal(SlotKey(name, limit)), "last", literal(SlotKey(name, MaxPermits)),
	}
}

// pick returns a slot that may be taken, or 0. It prefers slots that have a row, and picks a random one,
// so that concurrent requests rarely pick the same slot.
func (sem *semaphore) pick(w slotWindow, locked slotSet) int {
	var open, missing []int
	for i := w.first; i <= w.last; i++ {
		switch {
		case locked.has(i):
		case sem.open.has(i):
			open = append(open, i)
		case !sem.present.has(i) && len(missing) < firstTakes:
			missing = append(missing, i)
		}
	}
	if len(open) == 0 {
		open = missing
	}
	if len(open) == 0 {
		return 0
	}
	return open[rand.IntN(len(open))]
}

// A slotWindow is a range of slots, including the last.
type slotWindow struct{ first, last int }

// firstWindow returns the slots that a request reads first.
func (s *Store) firstWindow(req AcquireRequest) slotWindow {
	last := max(1, s.lastSlots.get(req.Name))
	first := last - (last-1)%firstSlots
	if first > req.Limit {
		first = 1
	}
	return slotWindow{first, min(first+firstSlots-1, req.Limit)}
}

// refusal returns the answer to a request that acquires no slot.
func (sem *semaphore) refusal(req AcquireRequest, locked slotSet, limit time.Duration) (g Grant) {
	switch {
	case sem.live.count() >= req.Limit:
		g.Remaining = sem.left
	case sem.slot != 0: // other processes were faster each time
		g.Remaining = time.Millisecond
	case len(locked) > 0:
		g.Locked = true
	default:
		g.Remaining, g.Reserved = ReservedFor, true
	}
	if limit > 0 {
		g.Remaining = min(g.Remaining, limit)
	}
	return g
}

// A slotSet is a bit set of slots, with words of wordSize bits, as in semaphore.sql.
type slotSet []uint32

const wordSize = 32

func (set slotSet) has(slot int) bool {
	return slot/wordSize < len(set) && set[slot/wordSize]&(1<<(slot%wordSize)) != 0
}

func (set slotSet) with(slot int) slotSet { return set.withWord(slot/wordSize, 1<<(slot%wordSize)) }

// withWord adds the slots of a word.
func (set slotSet) withWord(i int, word uint32) slotSet {
	if more := i + 1 - len(set); more > 0 {
		set = append(slices.Clip(set), make([]uint32, more)...)
	}
	set[i] |= word
	return set
}

func (set slotSet) count() (n int) {
	for _, word := range set {
		n += bits.OnesCount32(word)
	}
	return n
}
