// Package fakestore is a store that keeps its table in memory. It passes the suite of package
// storetest, and is behind package mysqllocktest.
package fakestore

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Table is the library's table in memory. It judges by the clock of this process, and is safe
// for concurrent use.
type Table struct {
	mu        sync.Mutex // protects following fields
	rows      map[string]*row
	sessions  map[store.Process]*session
	listeners map[store.Process]chan struct{} // of processes that can be signalled; capacity 1
	highWater uint64                          // the highest token that Purge deleted
	unguarded chan struct{}                   // closed, and replaced, when a transaction ends
	outage    error                           // of every statement; nil while the table is available
	outages   int                             // how many began
	committed []Statement                     // see Committed
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{
		rows: map[string]*row{}, sessions: map[store.Process]*session{}, listeners: map[store.Process]chan struct{}{},
		unguarded: make(chan struct{}),
	}
}

// A row is one lock. Table.mu protects its fields.
type row struct {
	owner    string // begins with a dash when released, and with an exclamation mark when freed by force
	token    uint64
	expires  time.Time       // the end of its own lease
	released time.Time       // zero, or the last release
	session  store.SessionID // that keeps the row beyond expires; 0 if none
	waiters  []store.Process // the wait queue
	guards   int             // open transactions under Guard: while there are any, the token does not change
	holder   string          // label for operators
	holds    int             // open handles
	acquired time.Time
	mode     int // of a name
}

// A session is the last one of a process. Table.mu protects its fields.
type session struct {
	id      store.SessionID // 0 before the first one
	label   string
	expires time.Time
	forced  int // locks of the process that were freed by force
}

const (
	maxWaiters         = 53 // of a row's wait queue, which has room for 19 digits each
	reservedForPolling = 1500 * time.Millisecond
)

// head returns the first of the wait queue, 0 if that is empty.
func (r *row) head() store.Process {
	if len(r.waiters) == 0 {
		return 0
	}
	return r.waiters[0]
}

// lists reports whether a process is in the wait queue, listening or polling.
func (r *row) lists(p store.Process) bool { return slices.ContainsFunc(r.waiters, is(p)) }

// remove removes a process from the wait queue.
func (r *row) remove(p store.Process) { r.waiters = slices.DeleteFunc(r.waiters, is(p)) }

// is returns a function that reports whether an id is one of the ids of a process.
func is(p store.Process) func(id store.Process) bool { return p.Is }

func (r *row) full() bool { return len(r.waiters) >= maxWaiters }

// reserved reports whether the row, which is free, is reserved for its head.
func (r *row) reserved(now time.Time) bool {
	window := store.ReservedFor
	if !r.head().CanListen() {
		window = reservedForPolling
	}
	return len(r.waiters) > 0 && now.Sub(later(r.expires, r.released)) <= window
}

// grant gives the row, which no transaction guards, to a request.
func (r *row) grant(req store.AcquireRequest, now time.Time) (token uint64) {
	r.owner, r.expires, r.session = req.Owner, after(now, req.Lease), 0
	r.holder, r.holds, r.acquired = req.Holder, 1, now
	r.token = nextToken(r, now)
	return r.token
}

func nextToken(r *row, now time.Time) uint64 {
	return max(r.token+store.TokenRange, uint64(now.UnixMicro()))
}

// extend lengthens the lease, and binds the row to a session that is later than the one before.
func (r *row) extend(now time.Time, lease time.Duration, session store.SessionID) {
	r.expires, r.session = later(r.expires, after(now, lease)), max(r.session, session)
}

// free ends the lease and the binding. mark replaces the first byte of the owner id.
func (r *row) free(now time.Time, mark string) {
	r.owner, r.expires, r.released, r.session, r.holds = marked(r.owner, mark), time.Time{}, now, 0, 0
}

// marked returns an owner id with another first byte.
func marked(owner, mark string) string {
	if owner == "" {
		return ""
	}
	return mark + owner[1:]
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// after returns the end of a lease, which has microseconds in the database.
func after(now time.Time, lease time.Duration) time.Time {
	return now.Add(lease.Truncate(time.Microsecond))
}

// keptUntil returns when neither its own lease nor a session keeps the row. The caller holds mu.
func (t *Table) keptUntil(r *row) time.Time {
	if s := t.sessions[store.ProcessOf(r.owner)]; s != nil && r.session != 0 && s.id == r.session {
		return later(r.expires, s.expires)
	}
	return r.expires
}

// add adds a row. The caller holds mu.
func (t *Table) add(name string) *row {
	t.rows[name] = &row{token: t.highWater}
	return t.rows[name]
}

// sessionOf returns the session of a process, and adds one that never began. The caller holds
// mu.
func (t *Table) sessionOf(p store.Process) *session {
	if t.sessions[p] == nil {
		t.sessions[p] = new(session)
	}
	return t.sessions[p]
}

// signal wakes the listener of a process. The caller holds mu.
func (t *Table) signal(p store.Process) (alive bool) {
	listener, alive := t.listeners[p]
	if alive {
		select {
		case listener <- struct{}{}:
		default:
		}
	}
	return alive
}

// A Store is the table as one process sees it. It has the methods of [store.Store] that a
// Locker needs. A row is locked only by a transaction under Guard.
type Store struct {
	Label      string // what operators see as the holder
	table      *Table
	self       store.Process
	statements atomic.Int64
	forced     int             // of the session, as last reported; protected by Table.mu
	limits     map[string]int  // by the keys of the semaphores that this process waits for; likewise
	claims     map[string]bool // whether this process has claimed a name that is held shared; likewise
}

// NewStore returns a store for the process self.
func (t *Table) NewStore(self store.Process) *Store { return &Store{table: t, self: self} }

// execute executes one statement, which judges by the time now.
func (s *Store) execute(ctx context.Context, statement func(now time.Time)) (sent time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return time.Now(), store.NotSent{Err: err}
	}
	s.statements.Add(1)
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	now := time.Now()
	if err := s.table.outage; err != nil {
		return now, store.Describe(store.NotSent{Err: err})
	}
	statement(now)
	return now, nil
}

// owned returns the row of a claim, nil if the claim does not own it. The caller holds mu.
func (s *Store) owned(c store.Claim) *row {
	if r := s.table.rows[c.Name]; r != nil && r.owner == c.Owner {
		return r
	}
	return nil
}

// available reports whether this process may take the row. The caller holds mu.
func (s *Store) available(r *row, now time.Time) bool {
	return !s.table.keptUntil(r).After(now) && (is(s.self)(r.head()) || !r.reserved(now))
}

// Acquire implements [store.Store.Acquire].
func (s *Store) Acquire(ctx context.Context, req store.AcquireRequest) (g store.Grant, err error) {
	req.Holder = cmp.Or(req.Holder, s.Label)
	sent, err := s.execute(ctx, func(now time.Time) {
		switch req.Mode {
		case store.Shared:
			g = s.acquireShared(req, now)
			return
		case store.Permit:
			g = s.acquirePermit(req, now)
			return
		}
		r := s.table.rows[req.Name]
		switch {
		case r != nil && r.mode != neverShared && req.Replaces == "" && (r.owner == req.Owner || s.available(r, now)):
			g = s.claim(r, req, now)
		case r != nil && r.owner == req.Owner && s.table.keptUntil(r).After(now): // granted to a copy of the request
			g.Token = r.token
		case r != nil && r.guards > 0 && (r.owner == req.Replaces || req.Replaces == "" && s.available(r, now)):
			g.Locked = true // until then the token does not change
		case req.Replaces != "":
			if r != nil && r.owner == req.Replaces && (req.Replaced == 0 || r.token == req.Replaced) {
				g.Token = r.grant(req, now)
			}
		case r == nil:
			r = s.table.add(req.Name)
			g.Token = r.grant(req, now)
		case s.available(r, now):
			s.leaveWaitQueue(r)
			g.Token = r.grant(req, now)
		default:
			g = s.refuse(r, req, now)
		}
	})
	if g.Sent = sent; g.Token > 0 && req.Mode == store.Exclusive {
		g.Claim = req.Claim
	}
	return g, err
}

// refuse lets the process join the wait queue, if it asks to. The caller holds mu.
func (s *Store) refuse(r *row, req store.AcquireRequest, now time.Time) store.Grant {
	switch grantee := r.grantee(now); {
	case grantee == s.self:
		return store.Grant{Granted: true, Remaining: store.GrantLease}
	case grantee != 0:
		s.enlist(r, req)
		return store.Grant{HandedOff: true, Remaining: r.expires.Sub(now)}
	}
	s.enlist(r, req)
	kept := s.table.keptUntil(r)
	switch {
	case r.expires.After(now):
		return store.Grant{Remaining: r.expires.Sub(now)}
	case kept.After(now):
		return store.Grant{Remaining: kept.Sub(now)}
	default:
		return store.Grant{Remaining: store.ReservedFor, Reserved: true}
	}
}

// enlist appends the process to the wait queue, if the request asks for that. It changes the entry of
// a process that takes grants now, or no longer does. The caller holds mu.
func (s *Store) enlist(r *row, req store.AcquireRequest) {
	i := slices.IndexFunc(r.waiters, is(s.self))
	switch {
	case req.EnlistAs == 0:
	case i >= 0:
		if r.waiters[i].CanListen() && req.EnlistAs.CanListen() {
			r.waiters[i] = req.EnlistAs
		}
	case !r.full():
		r.waiters = append(r.waiters, req.EnlistAs)
	}
}

// Confirm implements [store.Store.Confirm].
func (s *Store) Confirm(ctx context.Context, c store.Claim) (owned bool, sent time.Time, err error) {
	sent, err = s.execute(ctx, func(time.Time) { owned = s.owned(c) != nil })
	return owned, sent, err
}

// HoldBegan implements [store.Store.HoldBegan].
func (s *Store) HoldBegan() {}

// HoldEnded implements [store.Store.HoldEnded].
func (s *Store) HoldEnded() {}

// Probe implements [store.Store.Probe].
func (s *Store) Probe(ctx context.Context, c store.Claim) (state store.RowState, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		switch r := s.table.rows[c.Name]; {
		case r == nil: // no first grant waits here
		case r.owner != c.Owner && s.table.keptUntil(r).After(now):
			state = store.RowHeld
		case r.guards > 0:
			state = store.RowLocked
		}
	})
	return state, err
}

// Renew implements [store.Store.Renew].
func (s *Store) Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int, session store.SessionID) (renewed int, sent time.Time, err error) {
	sent, err = s.execute(ctx, func(now time.Time) {
		for _, c := range cs {
			if r := s.owned(c); r != nil {
				before := r.expires
				r.holds, r.holder = cmp.Or(holds, r.holds), cmp.Or(r.holder, s.Label)
				if r.extend(now, lease, session); r.expires.After(before) {
					renewed++
				}
			}
		}
	})
	return renewed, sent, err
}

// Extend implements [store.Store.Extend].
func (s *Store) Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (owned bool, sent time.Time, err error) {
	sent, err = s.execute(ctx, func(now time.Time) {
		if r := s.owned(c); r != nil {
			r.extend(now, lease, session)
			r.holds, r.holder = cmp.Or(holds, r.holds), cmp.Or(r.holder, s.Label)
			owned = true
		}
	})
	return owned, sent, err
}

// Look implements [store.Store.Look].
func (s *Store) Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error) {
	rows = map[string]store.Row{}
	sent, err = s.execute(ctx, func(now time.Time) {
		for _, name := range names {
			if r := s.table.rows[name]; r != nil {
				found := store.Row{
					Owner: r.owner, Lease: r.expires.Sub(now), Remaining: s.table.keptUntil(r).Sub(now),
					Next: r.head().Listening(), Grantee: r.grantee(now), Listed: r.lists(s.self), Waiting: r.lists(s.self) || r.full(),
				}
				if isSemaphore(name) {
					found.Remaining = 0
				}
				rows[name] = found
			}
		}
	})
	return rows, sent, err
}

// Owned implements [store.Store.Owned].
func (s *Store) Owned(ctx context.Context, cs []store.Claim) (owned []store.Claim, err error) {
	_, err = s.execute(ctx, func(time.Time) {
		owned = slices.DeleteFunc(slices.Clone(cs), func(c store.Claim) bool { return s.owned(c) == nil })
	})
	return owned, err
}

// Release implements [store.Store.Release].
func (s *Store) Release(ctx context.Context, c store.Claim) (freed bool, next store.Process, err error) {
	n, next, err := s.ReleaseAll(ctx, []store.Claim{c})
	return n > 0, next, err
}

// ReleaseToNext implements [store.Store.ReleaseToNext].
func (s *Store) ReleaseToNext(ctx context.Context, c store.Claim, grant string) (freed bool, next store.Process, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		r := s.table.rows[c.Name]
		if r == nil || r.owner != c.Owner && r.owner != marked(c.Owner, "-") {
			return
		}
		freed, next = true, r.head()
		if _, listens := s.table.listeners[next.Listening()]; !next.TakesGrants() || is(s.self)(next) || r.mode != neverShared || !listens {
			next = next.Listening()
			r.holder = cmp.Or(r.holder, s.Label)
			r.free(now, "-")
			return
		}
		r.owner, r.session, r.released = next.Listening().String()+"="+grant, 0, now
		r.token, r.acquired, r.expires = nextToken(r, now), now, after(now, store.GrantLease)
		r.holder, r.holds, r.waiters = "", 1, r.waiters[1:]
	})
	return freed, next, err
}

// grantee returns the process to which a release has recently granted the row, or 0.
func (r *row) grantee(now time.Time) store.Process {
	if store.Granted(r.owner) && now.Sub(r.acquired) < store.GrantLease {
		return store.ProcessOf(r.owner)
	}
	return 0
}

// Granted implements [store.Store.Granted].
func (s *Store) Granted(ctx context.Context, names []string) (grants []store.Grant, err error) {
	sent, err := s.execute(ctx, func(now time.Time) {
		for _, name := range names {
			if r := s.table.rows[name]; r != nil && r.grantee(now) == s.self {
				grants = append(grants, store.Grant{Token: r.token, Claim: store.Claim{Name: name, Owner: r.owner}, Lease: r.expires.Sub(now)})
			}
		}
	})
	for i := range grants {
		grants[i].Sent = sent
	}
	return grants, err
}

// ReleaseAll implements [store.Store.ReleaseAll].
func (s *Store) ReleaseAll(ctx context.Context, cs []store.Claim) (freed int64, next store.Process, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		for _, c := range cs {
			r := s.table.rows[c.Name]
			if r == nil || r.owner != c.Owner && r.owner != marked(c.Owner, "-") {
				continue
			}
			r.holder = cmp.Or(r.holder, s.Label)
			r.free(now, "-")
			freed++
			if queue := s.table.rows[store.QueueOf(c.Name)]; queue != nil && queue.head() != 0 {
				next = queue.head().Listening()
			}
		}
	})
	return freed, next, err
}

// RemoveWaiter implements [store.Store.RemoveWaiter].
func (s *Store) RemoveWaiter(ctx context.Context, names []string, p store.Process) (next store.Process, all bool, err error) {
	removed := 0
	_, err = s.execute(ctx, func(now time.Time) {
		for _, name := range names {
			r := s.table.rows[name]
			if r == nil || !r.lists(p) {
				continue
			}
			wasHead := is(p)(r.head())
			r.remove(p)
			removed++
			if p == s.self {
				delete(s.limits, name)
				delete(s.claims, name)
			}
			if wasHead && (!r.expires.After(now) && r.session == 0 || isSemaphore(name)) && r.head() != 0 {
				next = r.head().Listening()
			}
		}
	})
	return next, err == nil && removed == len(names), err
}

// BeginSession implements [store.Store.BeginSession].
func (s *Store) BeginSession(ctx context.Context, id store.SessionID, lease time.Duration) (sent time.Time, err error) {
	begun := false
	sent, err = s.execute(ctx, func(now time.Time) {
		own := s.table.sessionOf(s.self)
		if begun = own.id < id || own.id == id && own.expires.After(now); begun {
			own.id, own.expires, own.label = id, later(own.expires, after(now, lease)), s.Label
		}
	})
	if err == nil && !begun {
		err = store.ErrSessionDead
	}
	return sent, err
}

// RenewSession implements [store.Store.RenewSession].
func (s *Store) RenewSession(ctx context.Context, id store.SessionID, lease time.Duration) (r store.SessionRenewal, err error) {
	alive := false
	sent, err := s.execute(ctx, func(now time.Time) {
		own := s.table.sessionOf(s.self)
		if alive = own.id == id && own.expires.After(now); alive {
			own.expires = later(own.expires, after(now, lease))
			r.Forced = s.reportForced()
		}
	})
	if err == nil && !alive {
		err = store.ErrSessionDead
	}
	r.Sent = sent
	return r, err
}

// reportForced reports, once, whether a lock of this process was freed by force. The caller
// holds mu.
func (s *Store) reportForced() bool {
	before := s.forced
	s.forced = s.table.sessionOf(s.self).forced
	return s.forced != before
}

// CountBound implements [store.Store.CountBound].
func (s *Store) CountBound(ctx context.Context, id store.SessionID) (n int, err error) {
	claims, _, err := s.Bound(ctx, id)
	return len(claims), err
}

// Bound implements [store.Store.Bound].
func (s *Store) Bound(ctx context.Context, id store.SessionID) (claims []store.Claim, sent time.Time, err error) {
	sent, err = s.execute(ctx, func(time.Time) {
		for name, r := range s.table.rows {
			if r.session == id {
				claims = append(claims, store.Claim{Name: name, Owner: r.owner})
			}
		}
	})
	return claims, sent, err
}

// EndSession implements [store.Store.EndSession].
func (s *Store) EndSession(ctx context.Context, id store.SessionID) error {
	_, err := s.execute(ctx, func(time.Time) {
		if own := s.table.sessionOf(s.self); own.id == id {
			own.expires = time.Time{}
		}
	})
	return err
}

// Listen implements [store.Store.Listen].
func (s *Store) Listen(ctx context.Context, names []string, d time.Duration) (wakeup store.Wakeup, err error) {
	var signalled chan struct{}
	_, err = s.execute(ctx, func(now time.Time) {
		signalled = make(chan struct{}, 1) // a signal to a process that did not sleep is lost
		s.table.listeners[s.self] = signalled
		wakeup = s.check(names, now)
	})
	if err != nil || wakeup != (store.Wakeup{}) {
		return wakeup, err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-signalled:
		_, err := s.execute(ctx, func(time.Time) {}) // an outage ends the sleep, too
		return store.Wakeup{Signalled: err == nil}, err
	case <-timer.C:
		return wakeup, nil
	case <-ctx.Done():
		return wakeup, ctx.Err()
	}
}

// check returns the zero Wakeup if a listener may sleep. The caller holds mu.
func (s *Store) check(names []string, now time.Time) store.Wakeup {
	wakeup := store.Wakeup{Forced: s.reportForced()}
	for _, name := range names {
		switch r := s.table.rows[name]; {
		case r == nil:
			return store.Wakeup{Forced: wakeup.Forced, Missing: true}
		case (wakeup.Name == "" || name < wakeup.Name) && (s.available(r, now) || r.grantee(now) == s.self || !r.lists(s.self) && !r.full() || s.permitOpen(name, now) || s.promotable(name, r, now)):
			wakeup.Name = name
		}
	}
	return wakeup
}

// CloseListener implements [store.Store.CloseListener].
func (s *Store) CloseListener() {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	delete(s.table.listeners, s.self)
}

// PoolInUse implements [store.Store.PoolInUse].
func (s *Store) PoolInUse() bool { return false }

// PoolTooSmall implements [store.Store.PoolTooSmall].
func (s *Store) PoolTooSmall() bool { return false }

// Signal implements [store.Store.Signal].
func (s *Store) Signal(ctx context.Context, p store.Process) (alive bool, err error) {
	_, err = s.execute(ctx, func(time.Time) { alive = s.table.signal(p.Listening()) })
	return alive, err
}
