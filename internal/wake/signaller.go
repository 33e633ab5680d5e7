package wake

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// signalTimeout limits each statement of a signaller, and the listener's read of grants.
	signalTimeout = 2 * time.Second
	// maxContended limits the names in signaller.contended.
	maxContended = 1024
)

// removeBackoff has the delays between attempts to leave wait queues or to give back a grant.
var removeBackoff = background.Backoff{Delay: 10 * time.Millisecond, Max: time.Second}

type signalStore interface {
	looker
	Signal(ctx context.Context, p store.Process) (alive bool, err error)
	ReleaseToNext(ctx context.Context, c store.Claim, grant string) (freed bool, next store.Process, err error)
	HoldEnded()
	RemoveWaiter(ctx context.Context, names []string, p store.Process) (next store.Process, all bool, err error)
}

// A signaller signals the processes that are next for released rows. It also removes this process
// from wait queues in which it no longer waits, and gives back grants that no head takes.
type signaller struct {
	repo     signalStore
	queues   Queues
	self     store.Process
	listener *listener
	grants   *grants
	log      *slog.Logger
	group    *background.Group
	ctx      context.Context // of statements; ended by Waker.Close

	mu        sync.Mutex          // protects following fields
	contended map[string]struct{} // names for which a statement was refused recently
	listed    map[string]bool     // names whose rows may list this process; true while a statement that lists it is in flight
	direct    map[string]struct{} // the names in listed whose rows a release may grant to this process
	expected  bool                // expectGrant was called at least once
	leaving   map[string]struct{} // names whose rows list this process although it has no waiters for them
	removing  bool                // removeWaiters is running
}

// enlist implements Waker.Enlist. It returns 0 unless an earlier statement was refused, or the name
// was contended recently.
func (s *signaller) enlist(name string, again bool) store.Process {
	as := s.self
	if !s.listener.canListen() || s.listener.repo.PoolTooSmall() {
		as = s.self.Polling()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, contended := s.contended[name]; !again && !contended {
		return 0
	}
	s.listed[name] = true
	return as
}

// unlist records that the row does not list this process, because the row was granted to it.
func (s *signaller) unlist(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listed, name)
	delete(s.direct, name)
}

// expectGrant records that a release may from now on grant the row to this process.
func (s *signaller) expectGrant(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.direct[name] = struct{}{}
	s.expected = true
}

// expectsGrant reports whether a release may grant one of the names to this process.
func (s *signaller) expectsGrant(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(names, func(name string) bool {
		_, ok := s.direct[name]
		return ok
	})
}

// answered implements Waker.Answered.
func (s *signaller) answered(name string, granted, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !granted:
		if len(s.contended) == maxContended {
			clear(s.contended)
		}
		s.contended[name] = struct{}{}
		if s.listed[name] {
			s.listed[name] = false
		}
	case !again:
		delete(s.contended, name)
	}
}

// isContended implements Waker.Contended.
func (s *signaller) isContended(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, contended := s.contended[name]
	return contended
}

// wakeRequesting wakes the heads that have a statement in flight that may join a wait queue: the
// signal may have been for one of them.
func (s *signaller) wakeRequesting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, inFlight := range s.listed {
		if inFlight {
			s.queues.Wake(name)
		}
	}
}

// leave implements Waker.Leave.
func (s *signaller) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.listed[name]; ok {
		s.leaveWaitQueue(name)
	}
	if g, ok := s.grants.take(name); ok {
		s.group.Go(func() { s.giveBackGrant(g) })
	}
}

// stillWaiting reports whether this process has waiters for a name. If it has, stillWaiting records
// that the row may list it. The caller holds mu.
func (s *signaller) stillWaiting(name string) bool {
	if !s.queues.Has(name) {
		return false
	}
	if _, ok := s.listed[name]; !ok {
		s.listed[name] = false // so that leave removes it: the head may be a holder that is about to leave
	}
	return true
}

// leaveWaitQueue removes this process, in the background, from the wait queue of a name's row.
// The caller holds mu.
func (s *signaller) leaveWaitQueue(name string) {
	delete(s.listed, name)
	delete(s.direct, name)
	s.leaving[name] = struct{}{}
	if !s.removing {
		s.removing = true
		s.group.Go(s.removeWaiters)
	}
}

// signalNext signals the processes that are next for the rows. One of them is known already: next.
func (s *signaller) signalNext(names []string, next store.Process) {
	if len(names) == 1 || !s.signalFree(names) {
		s.signalWaiters(names, next)
	}
}

// signalFree reads rows, and signals the processes that are next for those that are free, and those
// to which releases have granted a row. It returns false if it cannot read the rows.
func (s *signaller) signalFree(names []string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, signalTimeout)
	rows, _, err := s.repo.Look(ctx, names)
	cancel()
	if err != nil {
		s.log.Debug("mysqllock: not all waiters are known to be signalled, the others poll", "first", store.NameOf(names[0]), "err", err)
		return false
	}
	byProcess := map[store.Process][]string{}
	for name, row := range rows {
		next := row.Next
		if row.Grantee != 0 {
			next = row.Grantee.Direct() // perhaps it was not signalled yet
		}
		if row.Remaining <= 0 || row.Grantee != 0 {
			byProcess[next] = append(byProcess[next], name)
		}
	}
	for next, names := range byProcess {
		s.signalWaiters(names, next)
	}
	return true
}

// signalWaiters signals p, the head of the rows' wait queues. If p does not listen, signalWaiters
// removes p from the queues and signals the next process; but not if the rows were granted to p,
// which may have found that already.
func (s *signaller) signalWaiters(names []string, p store.Process) {
	switch {
	case p == 0:
		return
	case s.self.Is(p):
		s.wakeSelf(names)
		return
	case !p.CanListen():
		return // it polls
	}
	ctx, cancel := context.WithTimeout(s.ctx, signalTimeout)
	defer cancel()
	alive, err := s.repo.Signal(ctx, p)
	var next store.Process
	if p.TakesGrants() {
		alive = true
	}
	for pause := 2 * time.Millisecond; err == nil && !alive && pause < 20*time.Millisecond; pause *= 2 {
		var all bool
		if next, all, err = s.repo.RemoveWaiter(ctx, names, p); all || next != 0 {
			break
		}
		time.Sleep(pause) // the row was locked
	}
	if err != nil {
		s.log.Debug("mysqllock: waiter not signalled, it polls", "first", store.NameOf(names[0]), "err", err)
	} else if next != 0 {
		s.signalNext(names, next)
	}
}

// wakeSelf wakes the heads in this process, which is next for the rows. It leaves the wait queues of
// rows for which it has no waiters.
func (s *signaller) wakeSelf(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.stillWaiting(name) {
			s.queues.Wake(name)
		} else {
			s.leaveWaitQueue(name)
		}
	}
}

// removeWaiters removes this process from the wait queues of the names in leaving, until none is
// left. Its statements skip locked rows and are repeated, because a statement that waits for a row
// would stay in the server.
func (s *signaller) removeWaiters() {
	pause := removeBackoff
	for {
		names := s.abandoned()
		if len(names) == 0 {
			return
		}
		left, err := s.remove(names)
		if len(left) == 0 {
			pause = removeBackoff
			continue
		}
		if err != nil {
			s.log.Debug("mysqllock: not removed from the wait lists, trying again", "locks", len(left), "first", store.NameOf(left[0]), "err", err)
			pause.Delay = pause.Max
		}
		s.mu.Lock()
		for _, name := range left {
			s.leaving[name] = struct{}{}
		}
		s.mu.Unlock()
		if !pause.Wait(s.group.Ctx) {
			return // removing stays set: the group has stopped
		}
	}
}

// abandoned returns up to a batch of names whose rows list this process although it has no waiters
// for them. If there are none, removeWaiters must end.
func (s *signaller) abandoned() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.leaving {
		if len(names) == store.BatchSize {
			break
		}
		delete(s.leaving, name)
		if !s.stillWaiting(name) {
			names = append(names, name)
		}
	}
	s.removing = len(names) > 0
	return names
}

// remove removes this process from the wait queues of rows, and signals the processes that are then
// next. It returns the names of the rows that may still list this process.
func (s *signaller) remove(names []string) (left []string, err error) {
	left, next, err := s.removeFrom(names)
	for _, name := range names {
		s.queues.Wake(name) // a waiter that joined meanwhile may have been removed
	}
	if next != 0 {
		s.signalNext(names, next)
	}
	return left, err
}

// removeFrom is remove, except that it returns a process that is next, and signals none. It also gives
// back rows that were granted to this process.
func (s *signaller) removeFrom(names []string) (left []string, next store.Process, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, signalTimeout)
	defer cancel()
	next, all, err := s.repo.RemoveWaiter(ctx, names, s.self)
	if err == nil && all {
		return nil, next, nil
	}
	var rows map[string]store.Row
	if err == nil {
		rows, _, err = s.repo.Look(ctx, names)
	}
	if err != nil {
		return names, next, err
	}
	for _, name := range names {
		if row := rows[name]; row.Grantee == s.self {
			s.giveBack(store.Claim{Name: name, Owner: row.Owner})
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !rows[name].Listed }), next, nil
}

// maxDrainPause is the longest pause before drain tries locked rows again.
const maxDrainPause = 200 * time.Millisecond

// drain removes this process from the wait queues that still list it, and gives back the rows that
// were granted to it. The listener is closed, so no release grants it more.
func (s *signaller) drain() {
	s.mu.Lock()
	names := slices.AppendSeq(slices.Collect(maps.Keys(s.leaving)), maps.Keys(s.listed))
	expected := s.expected
	s.mu.Unlock()
	if !expected {
		return // other processes remove it from the queues when they cannot signal it
	}
	for _, g := range s.grants.takeAll() {
		s.giveBackGrant(g)
	}
	for pause := removeBackoff; len(names) > 0; {
		var left []string
		for part := range slices.Chunk(names, store.BatchSize) {
			listed, _ := s.remove(part)
			left = append(left, listed...)
		}
		if names = left; pause.Delay > maxDrainPause || len(names) > 0 && !pause.Wait(s.ctx) {
			return
		}
	}
}

// giveBack releases a row that was granted to this process after its last waiter had left. But if a
// waiter has joined since, that one takes the grant. If it leaves before it has found the grant, such
// as a call without a wait, leave serves the row again.
func (s *signaller) giveBack(c store.Claim) {
	s.mu.Lock()
	waits := s.stillWaiting(c.Name)
	s.mu.Unlock()
	if waits {
		s.queues.Wake(c.Name)
		return
	}
	if mine, wasReady := s.grants.claim(c); wasReady {
		s.giveBackGrant(store.Grant{Claim: c})
	} else if mine {
		s.release(c)
	}
}

// giveBackGrant releases the row of a grant that the listener has found, and that counts as a hold.
func (s *signaller) giveBackGrant(g store.Grant) {
	s.release(g.Claim)
	s.repo.HoldEnded()
}

// release releases a row that was granted to this process. It retries for GrantLease.
func (s *signaller) release(c store.Claim) {
	ctx, cancel := context.WithTimeout(s.ctx, store.GrantLease)
	defer cancel()
	grant := store.NewGrantID()
	for pause := removeBackoff; ; {
		tryCtx, cancel := context.WithTimeout(ctx, signalTimeout)
		freed, next, err := s.repo.ReleaseToNext(tryCtx, c, grant)
		cancel()
		if err == nil {
			s.queues.Wake(c.Name)
			if freed && next != 0 {
				s.signalNext([]string{c.Name}, next)
			}
			return
		}
		s.log.Debug("mysqllock: a grant that nobody waits for is not released yet", "name", c.Name, "err", err)
		if !pause.Wait(ctx) {
			return
		}
	}
}
