package wake

import (
	"context"
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

// A signaller signals the processes that are next for released rows. It also removes this process
// from wait queues in which it no longer waits, and gives back grants that no head takes.
type signaller struct {
	env
	listener *listener
	grants   *grants

	mu        sync.Mutex         // protects following fields
	contended map[string]bool    // names for which a statement was refused recently
	listed    map[string]listing // names whose rows may list this process
	expected  bool               // ExpectGrant was called at least once
	leaving   map[string]bool    // names whose rows list this process although it has no waiters for them
	removing  bool               // removeWaiters is running
}

// A listing is what is known of a row that may list this process in its wait queue.
type listing struct {
	requesting bool // a statement that lists this process is in flight
	direct     bool // a release may grant the row to this process
}

// Enlist returns the id under which the next statement of name's head joins the row's wait queue if
// the statement is refused, or 0 if it must not join: that is, unless an earlier statement of the head
// was refused, as again says, or the name was contended recently.
func (s *signaller) Enlist(name string, again bool) store.Process {
	if !s.Signal {
		return 0
	}
	as := s.Self
	if !s.listener.canListen() || s.repo.PoolTooSmall() {
		as = s.Self.Polling()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !again && !s.contended[name] {
		return 0
	}
	s.listed[name] = listing{requesting: true, direct: s.listed[name].direct}
	return as
}

// Granted records that the head was granted the row, which therefore does not list this process. It
// must be called before name can have another head.
func (s *signaller) Granted(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listed, name)
}

// ExpectGrant must be called before name's head sends a statement that joins the wait queue under an
// id that takes grants (see Process.Direct in package store).
func (s *signaller) ExpectGrant(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[name] = listing{requesting: true, direct: true}
	s.expected = true
}

// TakeGrant returns the grant that a release of another process has made to this one for name, if the
// listener has found one. The caller must turn it into a hold, or give it back. If the grant's lease
// still runs, it must also call Granted; otherwise the row may list this process again.
func (s *signaller) TakeGrant(name string) (store.Grant, bool) { return s.grants.take(name) }

// ClaimGrant is TakeGrant for a grant that the head itself has found in the row. It returns false if
// the grant was taken before. Otherwise the caller must replace the owner in the row, or call
// GiveBack.
func (s *signaller) ClaimGrant(c store.Claim) bool {
	mine := s.grants.claim(c)
	if mine {
		s.Granted(c.Name)
	}
	return mine
}

// GiveBack releases, in the background, the row of a grant that TakeGrant or ClaimGrant has returned.
func (s *signaller) GiveBack(c store.Claim) {
	s.group.Go(func() { s.release(c) })
}

// expectsGrant reports whether a release may grant one of the names to this process.
func (s *signaller) expectsGrant(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(names, func(name string) bool { return s.listed[name].direct })
}

// Answered records that a statement of name's head was granted or refused. again means that an
// earlier one was refused.
func (s *signaller) Answered(name string, granted, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if granted {
		s.listener.falseWakes.Store(0) // the wake-ups before were not all false
		if !again {
			delete(s.contended, name)
		}
		return
	}
	if len(s.contended) == maxContended {
		clear(s.contended)
	}
	s.contended[name] = true
	if l, ok := s.listed[name]; ok {
		s.listed[name] = listing{direct: l.direct}
	}
}

// Contended reports whether a statement of this process for name was refused recently.
func (s *signaller) Contended(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contended[name]
}

// wakeRequesting wakes the heads that have a statement in flight that may join a wait queue: the
// signal may have been for one of them.
func (s *signaller) wakeRequesting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.listed {
		if l.requesting {
			s.queues.Wake(name)
		}
	}
}

// Leave must be called when the last waiter for a name has left its queue.
func (s *signaller) Leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.listed[name]; ok {
		s.leaveWaitQueue(name)
	}
	if g, ok := s.grants.take(name); ok {
		s.GiveBack(g.Claim)
	}
}

// stillWaiting reports whether this process has waiters for a name. If it has, stillWaiting records
// that the row may list it. The caller holds mu.
func (s *signaller) stillWaiting(name string) bool {
	if !s.queues.Has(name) {
		return false
	}
	if _, ok := s.listed[name]; !ok {
		s.listed[name] = listing{} // so that Leave removes it: the head may be a holder that is about to leave
	}
	return true
}

// leaveWaitQueue removes this process, in the background, from the wait queue of a name's row.
// The caller holds mu.
func (s *signaller) leaveWaitQueue(name string) {
	delete(s.listed, name)
	s.leaving[name] = true
	if !s.removing {
		s.removing = true
		s.group.Go(func() { s.removeWaiters(s.group.Ctx) })
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
	ctx, cancel := context.WithTimeout(s.sending, signalTimeout)
	rows, _, err := s.repo.Look(ctx, names)
	cancel()
	if err != nil {
		s.Log.Debug("mysqllock: not all waiters are known to be signalled, the others poll", "first", store.NameOf(names[0]), "err", err)
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
	case s.Self.Is(p):
		s.wakeSelf(names)
		return
	case !p.CanListen():
		return // it polls
	}
	ctx, cancel := context.WithTimeout(s.sending, signalTimeout)
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
		s.Log.Debug("mysqllock: waiter not signalled, it polls", "first", store.NameOf(names[0]), "err", err)
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
// left. Its statements skip locked rows and are repeated until ctx ends, because a statement that waits
// for a row would stay in the server.
func (s *signaller) removeWaiters(ctx context.Context) {
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
			s.Log.Debug("mysqllock: not removed from the wait lists, trying again", "locks", len(left), "first", store.NameOf(left[0]), "err", err)
		}
		s.mu.Lock()
		for _, name := range left {
			s.leaving[name] = true
		}
		s.mu.Unlock()
		if !pause.Wait(ctx) {
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
	ctx, cancel := context.WithTimeout(s.sending, signalTimeout)
	defer cancel()
	next, all, err := s.repo.RemoveWaiter(ctx, names, s.Self)
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
		if row := rows[name]; row.Grantee == s.Self {
			s.giveBack(store.Claim{Name: name, Owner: row.Owner})
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !rows[name].Listed }), next, nil
}

// drainTimeout is how long Close tries again to leave the wait queues of locked rows.
const drainTimeout = 500 * time.Millisecond

// drain removes this process from the wait queues that still list it, and gives back the rows that
// were granted to it. The listener is closed, so no release grants it more.
func (s *signaller) drain() {
	s.mu.Lock()
	for name := range s.listed {
		s.leaving[name] = true
	}
	expected := s.expected
	s.mu.Unlock()
	if !expected {
		return // other processes remove it from the queues when they cannot signal it
	}
	for _, g := range s.grants.takeAll() {
		s.release(g.Claim)
	}
	ctx, cancel := context.WithTimeout(s.sending, drainTimeout)
	defer cancel()
	s.removeWaiters(ctx)
}

// giveBack releases a row that was granted to this process after its last waiter had left. But if a
// waiter has joined since, that one takes the grant. If it leaves before it has found the grant, such
// as a call without a wait, Leave serves the row again.
func (s *signaller) giveBack(c store.Claim) {
	s.mu.Lock()
	waits := s.stillWaiting(c.Name)
	s.mu.Unlock()
	if waits {
		s.queues.Wake(c.Name)
		return
	}
	if s.grants.claim(c) {
		s.release(c)
	}
}

// release releases a row that was granted to this process, and that no hold uses. It retries for
// GrantLease.
func (s *signaller) release(c store.Claim) {
	ctx, cancel := context.WithTimeout(store.NotHeld(s.sending), store.GrantLease)
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
		s.Log.Debug("mysqllock: a grant that nobody waits for is not released yet", "name", c.Name, "err", err)
		if !pause.Wait(ctx) {
			return
		}
	}
}
