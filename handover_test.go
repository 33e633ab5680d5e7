package mysqllock

import (
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

func (f *fakeRepo) ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (bool, store.Process, error) {
	type answer struct {
		freed bool
		next  store.Process
	}
	a, _, err := send(ctx, f, "releaseAfter", []string{c.Name}, func(now time.Time) (a answer) {
		r := f.rows[c.Name]
		kept := "+" + c.Owner[1:]
		if r.owner != c.Owner && r.owner != kept {
			return a
		}
		end := r.expires
		if r.owner == c.Owner {
			if end = r.acquired.Add(m.Held); m.Until.After(end) {
				end = m.Until
			}
		}
		a = answer{true, r.nextWaiter()}
		if end.After(now) {
			r.owner, r.holds, r.expires, r.session = kept, 0, end, 0
			f.rows[c.Name] = r
		} else {
			f.rows[c.Name] = fakeRow{token: r.token, freed: now, waiters: r.waiters}
		}
		return a
	})
	return a.freed, a.next, err
}

func (f *fakeRepo) Detach(ctx context.Context, req store.DetachRequest) (bool, time.Time, error) {
	return send(ctx, f, "detach", []string{req.Name}, func(now time.Time) bool {
		r := f.rows[req.Name]
		switch {
		case r.owner == req.Owner:
			r.owner, r.holds, r.session, r.expires = req.Ticket, 0, 0, now.Add(req.Lease)
			if req.Age > 0 {
				r.acquired = now.Add(-req.Age)
			}
		case r.owner == req.Ticket && r.expires.After(now):
			r.expires = now.Add(req.Lease)
		default:
			return false
		}
		f.rows[req.Name] = r
		return true
	})
}

func (f *fakeRepo) Attach(ctx context.Context, req store.AttachRequest) (store.Grant, error) {
	type answer struct {
		token   uint64
		expired bool
	}
	a, sent, err := send(ctx, f, "attach", []string{req.Name}, func(now time.Time) (a answer) {
		r := f.rows[req.Name]
		switch {
		case r.owner == req.Ticket && !r.expires.After(now):
			return answer{expired: true}
		case r.owner == req.Ticket:
			r.expires = now.Add(req.Lease)
		case r.owner == req.Owner:
			if until := now.Add(req.Lease); until.After(r.expires) {
				r.expires = until
			}
		default:
			return a
		}
		r.owner, r.holds = req.Owner, 1
		f.rows[req.Name] = r
		return answer{token: r.token}
	})
	switch {
	case err != nil:
		return store.Grant{Claim: req.Claim}, err
	case a.expired:
		return store.Grant{}, store.ErrTicketExpired
	case a.token > 0:
		f.mu.Lock()
		f.terms++
		f.mu.Unlock()
	}
	return store.Grant{Token: a.token, Claim: req.Claim, Sent: sent}, nil
}
