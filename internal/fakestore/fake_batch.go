package fakestore

import (
	"cmp"
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// AcquireAll implements [store.Store.AcquireAll].
func (s *Store) AcquireAll(ctx context.Context, req store.BatchRequest) (g store.BatchGrant, err error) {
	g.Sent, err = s.execute(ctx, func(now time.Time) {
		token := max(uint64(now.UnixMicro()), s.table.highWater+store.TokenRange)
		for g.Granted < len(req.Names) && s.plain(s.table.rows[req.Names[g.Granted]], now) {
			if r := s.table.rows[req.Names[g.Granted]]; r != nil {
				token = max(token, r.token+store.TokenRange)
			}
			g.Granted++
		}
		for _, c := range req.Claims(g.Granted) {
			r := s.table.rows[c.Name]
			if r == nil {
				r = s.table.add(c.Name)
			}
			r.grant(store.AcquireRequest{Claim: c, Holder: cmp.Or(req.Holder, s.Label), Lease: req.Lease}, now)
			r.token, g.Token = token, token
		}
	})
	return g, err
}

// plain reports whether a batch may take the row, or add it if it is nil. The caller holds mu.
func (s *Store) plain(r *row, now time.Time) bool {
	return r == nil || r.mode == neverShared && r.guards == 0 && len(r.waiters) == 0 && !s.table.keptUntil(r).After(now)
}
