package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// A request whose row a batch has taken, as it may not know, is granted although another statement
// has the row locked when the request is sent on its own.
func TestCombinedRequestWhoseRowIsLocked(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		defer s.db.SetMaxOpenConns(0)
		s.db.SetMaxOpenConns(3) // no slot to wait for a locked row
		addRows(t, s, []string{"a", "b"})
		reqs := requestsFor(s, "a", "b")
		var others *sqlx.Tx
		s.takes.send = func(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
			reqs, names := requestsOf(batch)
			taken, err := s.execForAnswer(ctx, conn, s.batchCommand("take_all", reqs, names))
			require.NoError(t, err)
			require.EqualValues(t, 2, taken.rows)
			others = s.db.MustBegin()
			others.MustExec("SELECT name FROM mysqllock WHERE name = 'a' FOR UPDATE")
			return errUnsure
		}
		start := time.Now()
		grants, errs := takeTogether(t, s, reqs)
		require.NoError(t, others.Rollback())
		for i, g := range grants {
			require.NoError(t, errs[i])
			require.Equal(t, reqs[i].Claim, g.Claim)
			require.Equal(t, tokenOf(t, s, g.Claim.Name), g.Token)
			require.True(t, g.Sent.After(start))
		}
		require.Equal(t, 2, s.locksHeld())
		for _, req := range reqs {
			freed(t, s, req.Claim)
			s.HoldEnded()
		}
	})
}

// KILL QUERY of a batch costs its requests another try, and leaves nothing else behind.
func TestKilledBatches(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s, admin := stores(2)[0], stores(1)[0].db
		addRows(t, s, namesOf(64))
		end, stop := context.WithCancel(ctx)
		var killer sync.WaitGroup
		killer.Go(func() {
			for end.Err() == nil {
				var ids []int
				admin.Select(&ids, "SELECT id FROM information_schema.processlist WHERE info LIKE '%UPDATE%AS mine%' AND db = DATABASE() AND id <> CONNECTION_ID()")
				for _, id := range ids {
					admin.Exec(fmt.Sprint("KILL QUERY ", id))
				}
			}
		})
		killed := 0
		for range 40 {
			reqs := requestsFor(s, namesOf(64)...)
			grants, errs := takeTogether(t, s, reqs)
			releases := make([]error, len(reqs))
			together(t, s, &s.releases, len(reqs), func(i int) { _, _, releases[i] = s.Release(ctx, reqs[i].Claim) })
			for i, req := range reqs {
				if errs[i] == nil && grants[i].Token > 0 {
					s.HoldEnded()
				}
				for _, err := range []error{errs[i], releases[i]} {
					if err != nil {
						killed++
						require.True(t, Transient(err) && OutcomeUnknown(err), "%v", err)
					}
				}
				if releases[i] != nil {
					_, _, err := s.ReleaseAll(ctx, []Claim{req.Claim})
					require.True(t, err == nil || Transient(err), "%v", err)
				}
			}
		}
		stop()
		killer.Wait()
		t.Log(killed, "requests killed")
		require.Zero(t, s.locksHeld())
	})
}
