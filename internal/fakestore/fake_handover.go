package fakestore

import (
	"cmp"
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// ReleaseAfter implements [store.Store.ReleaseAfter].
func (s *Store) ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (freed bool, next store.Process, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		r := s.table.rows[c.Name]
		if r == nil {
			return
		}
		end := r.expires // as a copy of this statement has left it
		switch r.owner {
		case c.Owner:
			end = later(after(r.acquired, m.Held), m.Until.Truncate(time.Microsecond))
		case marked(c.Owner, "+"), marked(c.Owner, "-"):
		default:
			return
		}
		r.holder = cmp.Or(r.holder, s.Label)
		if end.After(now) {
			r.owner, r.expires, r.session, r.holds = marked(c.Owner, "+"), end, 0, 0
		} else {
			r.free(now, "-")
		}
		freed, next = true, s.headOf(c.Name)
	})
	return freed, next, err
}

// KeepShared implements [store.Store.KeepShared].
func (s *Store) KeepShared(ctx context.Context, c store.Claim, id, holder string, m store.MinHold) (kept bool, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		part := s.owned(c)
		if kept = part != nil; !kept {
			return
		}
		if holder == "" {
			holder = s.Label
		}
		g := s.join(store.AcquireRequest{Claim: store.Claim{Name: store.NameOf(c.Name), Owner: marked(id, "+")}, Holder: holder}, part.token, now)
		r := s.table.rows[g.Claim.Name]
		r.holds, r.acquired = 0, part.acquired
		r.expires = later(r.expires, later(after(part.acquired, m.Held), m.Until.Truncate(time.Microsecond)))
	})
	return kept, err
}

// headOf returns the head of the wait queue for a row. The caller holds mu.
func (s *Store) headOf(key string) store.Process {
	if queue := s.table.rows[store.QueueOf(key)]; queue != nil {
		return queue.head().Listening()
	}
	return 0
}

// Detach implements [store.Store.Detach].
func (s *Store) Detach(ctx context.Context, req store.DetachRequest) (detached bool, next store.Process, sent time.Time, err error) {
	sent, err = s.execute(ctx, func(now time.Time) {
		r := s.table.rows[req.Name]
		switch {
		case r == nil:
		case r.owner == req.Owner:
			if req.Age > 0 {
				r.acquired = later(r.acquired, now.Add(-req.Age))
			}
			r.owner, r.session, r.expires, r.holds = req.Ticket, 0, after(now, req.Lease), 0
			r.holder = cmp.Or(r.holder, s.Label)
			detached = true
		case r.owner == req.Ticket && r.expires.After(now):
			r.expires = later(r.expires, after(now, req.Lease))
			detached = true
		}
		if detached && store.ModeOf(req.Name) == store.Exclusive {
			next = s.headOf(req.Name)
		}
	})
	return detached, next, sent, err
}

// Attach implements [store.Store.Attach].
func (s *Store) Attach(ctx context.Context, req store.AttachRequest) (g store.Grant, err error) {
	expired := false
	sent, err := s.execute(ctx, func(now time.Time) {
		r := s.table.rows[req.Name]
		switch {
		case r == nil:
		case r.owner == req.Owner:
			r.expires = later(r.expires, after(now, req.Lease))
			g.Token = r.token
		case r.owner == req.Ticket && r.expires.After(now):
			r.owner, r.expires = req.Owner, after(now, req.Lease)
			r.holder, r.holds = cmp.Or(req.Holder, s.Label), 1
			g.Token = r.token
		case r.owner == req.Ticket:
			expired = true
		}
	})
	if expired {
		return g, store.ErrTicketExpired
	}
	if g.Sent = sent; g.Token > 0 {
		g.Claim = req.Claim
	}
	return g, err
}
