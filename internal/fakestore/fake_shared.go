package fakestore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// The modes of a row of a name.
const (
	neverShared = iota // or exclusive since
	inPhase            // may be held shared, with the token of the row
	downgrading        // exclusive, and perhaps held shared by the same process
)

// leaveWaitQueue removes this process from the wait queue of a row that is available to it, and a head
// that did not take the row in time. The caller holds Table.mu.
func (s *Store) leaveWaitQueue(r *row) {
	if len(r.waiters) > 0 && !is(s.self)(r.head()) {
		r.waiters = r.waiters[1:]
	}
	r.remove(s.self)
}

// acquireShared grants a row of this process beside that of the name. The caller holds Table.mu.
func (s *Store) acquireShared(req store.AcquireRequest, now time.Time) store.Grant {
	r := s.table.rows[req.Name]
	if r == nil {
		r = s.table.add(req.Name)
	} else if r.mode == inPhase && r.owner == marked(req.Owner, "*") { // admitted by a copy of the request
		return s.join(req, r.token, now)
	} else if !s.available(r, now) {
		return s.refuse(r, req, now)
	} else if r.mode != inPhase && r.guards > 0 {
		return store.Grant{Locked: true} // until then the token does not change
	}
	s.leaveWaitQueue(r)
	if r.mode != inPhase {
		r.mode, r.token = inPhase, nextToken(r, now)
	}
	r.owner, r.session, r.released = marked(req.Owner, "*"), 0, now
	return s.join(req, r.token, now)
}

// join takes a row for a shared hold. The caller holds Table.mu.
func (s *Store) join(req store.AcquireRequest, token uint64, now time.Time) store.Grant {
	for n := 0; ; n++ {
		key := fmt.Sprintf("%s\x00r%s%02d", req.Name, s.self, n)
		r := s.table.rows[key]
		switch {
		case r == nil:
			r = s.table.add(key)
		case r.owner == req.Owner: // granted to a copy of the request
			return store.Grant{Token: r.token, Claim: store.Claim{Name: key, Owner: req.Owner}}
		case s.table.keptUntil(r).After(now):
			continue
		}
		r.grant(req, now)
		r.token = token
		return store.Grant{Token: token, Claim: store.Claim{Name: key, Owner: req.Owner}}
	}
}

// claim grants the row of a name that may be held shared, or claims it for the request, also while
// a transaction guards a shared hold. The row is available, or was claimed by the request. The
// caller holds Table.mu.
func (s *Store) claim(r *row, req store.AcquireRequest, now time.Time) store.Grant {
	if r.owner == marked(req.Owner, "-") {
		return store.Grant{Locked: true}
	}
	left := s.sharedLeft(req.Name, now)
	if mayClaim := req.MayClaim || req.Claimed; !mayClaim && left > 0 {
		s.enlist(r, req)
		return store.Grant{Remaining: left}
	} else if !mayClaim && r.guards > 0 {
		return store.Grant{Locked: true}
	}
	if r.owner != req.Owner {
		s.leaveWaitQueue(r)
	}
	if s.claims == nil {
		s.claims = map[string]bool{}
	}
	s.claims[req.Name] = left > 0
	if left == 0 && r.guards == 0 {
		r.remove(s.self)
		r.mode = neverShared
		return store.Grant{Token: r.grant(req, now), Claim: req.Claim}
	}
	r.owner, r.session, r.expires = req.Owner, 0, later(r.expires, now.Add(store.ClaimLease))
	if req.EnlistAs != 0 && !r.lists(s.self) && !r.full() {
		r.waiters = slices.Insert(r.waiters, 0, req.EnlistAs)
	}
	return store.Grant{Claim: req.Claim, Claimed: true, Locked: left == 0, Remaining: left}
}

// promotable reports whether this process has claimed a name, and no shared hold of it is left. The
// caller holds Table.mu.
func (s *Store) promotable(name string, r *row, now time.Time) bool {
	if !s.claims[name] || r.mode == neverShared || store.ProcessOf(r.owner) != s.self {
		return false
	}
	return !slices.ContainsFunc(s.table.sharedKeys(name), func(key string) bool {
		return s.table.rows[key].owner >= "0" || s.table.rows[key].expires.After(now)
	})
}

// sharedLeft returns when the first shared hold of a name will end, at most a second, 0 if there
// is none. It ends those that are over for good. The caller holds Table.mu.
func (s *Store) sharedLeft(name string, now time.Time) (left time.Duration) {
	for _, key := range s.table.sharedKeys(name) {
		r := s.table.rows[key]
		if rest := s.table.keptUntil(r).Sub(now); rest <= 0 {
			if r.owner >= "0" {
				r.owner, r.session = marked(r.owner, "!"), 0
			}
		} else if left == 0 || rest < left {
			left = min(rest, time.Second)
		}
	}
	return left
}

// heldShared reports whether a name is held shared. The caller holds mu.
func (t *Table) heldShared(name string, now time.Time) bool {
	return slices.ContainsFunc(t.sharedKeys(name), func(key string) bool { return t.keptUntil(t.rows[key]).After(now) })
}

// sharedKeys returns the names of the rows of a name's shared holds, in order. The caller holds
// mu.
func (t *Table) sharedKeys(name string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for key := range maps.Keys(t.rows) {
			if strings.HasPrefix(key, name+"\x00r") && !yield(key) {
				return
			}
		}
	})
}

// Downgrade implements [store.Store.Downgrade].
func (s *Store) Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (g store.Grant, next store.Process, err error) {
	to.Name, to.Holder = from.Name, cmp.Or(to.Holder, s.Label)
	var refused error
	sent, err := s.execute(ctx, func(now time.Time) {
		r := s.owned(from)
		switch {
		case r == nil || r.mode == inPhase:
			refused = store.ErrNotOwned
			return
		case r.guards > 0:
			refused = store.ErrRowLocked
			return
		}
		r.mode, r.token = inPhase, nextToken(r, now)
		r.free(now, "*")
		acquired := r.acquired
		g = s.join(to, r.token, now)
		s.table.rows[g.Claim.Name].acquired = acquired
		next = r.head().Listening()
	})
	if err == nil && refused != nil {
		return store.Grant{}, 0, store.NotSent{Err: refused}
	}
	g.Sent = sent
	return g, next, err
}
