package store

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// A statement may have begun before the release that it finds: the release is then later than its
// own time. The row is reserved for the head of the queue all the same, unless that is so much later
// that the clock must have been set back.
func TestReservedByALaterRelease(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		holder, head, late := all[0], all[1], all[2]
		for name, limit := range map[string]int{"x": 0, QueueName(Permit, "y"): 1} {
			ask := func(s *Store, enlistAs Process) Grant {
				req := AcquireRequest{Claim: Claim{name, NewOwnerID(s.self)}, Limit: limit, Lease: time.Minute, EnlistAs: enlistAs}
				if limit > 0 {
					req.Mode = Permit
				}
				g, err := s.Acquire(ctx, req)
				require.NoError(t, err)
				return g
			}
			g := ask(holder, 0)
			require.NotZero(t, g.Token)
			require.Zero(t, ask(head, head.self).Token)
			key := g.Claim.Name
			freed(t, holder, g.Claim)
			releasedIn := func(d time.Duration) {
				require.NoError(t, holder.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
					_, err := conn.ExecContext(ctx, "UPDATE "+holder.name+" SET released_at = UTC_TIMESTAMP(6) + INTERVAL "+micros(d)+" MICROSECOND WHERE name = "+literal(key))
					return err
				}))
			}
			releasedIn(time.Second)
			g = ask(late, 0)
			require.Zero(t, g.Token, name)
			require.True(t, g.Reserved, name)
			releasedIn(time.Hour)
			require.NotZero(t, ask(late, 0).Token, name)
		}
	})
}
