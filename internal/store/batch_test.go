package store

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
)

// batchOf names what a batch acquires.
func batchOf(s *Store, names ...string) BatchRequest {
	return BatchRequest{Names: names, Owner: NewOwnerID(s.self), Lease: time.Minute}
}

// answerOf sends a statement of a batch that has read that the names in existing have a row.
func answerOf(t *testing.T, s *Store, statement string, req BatchRequest, existing ...string) (answer int64) {
	t.Helper()
	require.NoError(t, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err := s.execForAnswer(ctx, conn, s.batchCommand(statement, req.requests(len(req.Names)), existing))
		answer = r.answer
		return err
	}))
	return answer
}

// A batch finds rows that were taken or added after it has read them.
func TestBatchAfterAChange(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		held := granted(t, other, "held", time.Minute)
		freed(t, other, granted(t, other, "free", time.Minute))
		rows := func(names ...string) map[string]Row {
			rows, _, err := s.Look(ctx, names)
			require.NoError(t, err)
			return rows
		}
		req := batchOf(s, "held", "new")
		require.Zero(t, answerOf(t, s, "insert_all", req, "held"))
		require.NotContains(t, rows("new"), "new")

		token := tokenOf(t, s, "held")
		require.EqualValues(t, answerPart, answerOf(t, s, "insert_all", req))
		require.Equal(t, held.Owner, rows("held")["held"].Owner)
		require.Equal(t, token, tokenOf(t, s, "held"))
		require.Equal(t, req.Owner, rows("new")["new"].Owner)

		req = batchOf(s, "free", "further")
		require.True(t, isToken(answerOf(t, s, "insert_all", req)))
		for name, row := range rows("free", "further") {
			require.Equal(t, req.Owner, row.Owner, name)
		}
	})
}

func tokenOf(t *testing.T, s *Store, name string) uint64 {
	t.Helper()
	token, err := s.tokenOf(ctx, name)
	require.NoError(t, err)
	require.NotZero(t, token)
	return token
}

// A batch passes over a row that a transaction has locked, and keeps the names before it. The
// others that it took must be released.
func TestBatchBesideALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		for _, name := range []string{"a", "b", "c"} {
			freed(t, s, granted(t, s, name, time.Minute))
		}
		tx, err := other.db.Beginx()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = 'b' FOR UPDATE")
		require.NoError(t, err)
		req := batchOf(s, "a", "b", "c")
		g, err := s.AcquireAll(ctx, req)
		require.NoError(t, err)
		require.Equal(t, 1, g.Granted)
		require.Equal(t, []Claim{{"c", req.Owner}}, g.Unwanted)
		require.Equal(t, req.Owner, ownerOf(t, s, "a"))

		g, err = s.AcquireAll(ctx, batchOf(s, "0", "b")) // the first has no row yet
		require.NoError(t, err)
		require.Equal(t, 1, g.Granted)
	})
}

// A batch takes no row whose token is ahead of the clock: all its tokens are equal.
func TestBatchAndTheClock(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		for _, name := range []string{"a", "b", "c"} {
			freed(t, s, granted(t, s, name, time.Minute))
		}
		_, err := s.db.Exec("UPDATE mysqllock SET token = token + 3600000000 WHERE name = 'b'")
		require.NoError(t, err)
		g, err := s.AcquireAll(ctx, batchOf(s, "a", "b", "c"))
		require.NoError(t, err)
		require.Equal(t, 1, g.Granted)
	})
}

// A copy of a batch that finds more rows free than the first reports that the tokens differ.
func TestCopyOfABatchThatTakesMore(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		for _, held := range []string{"a", "b"} {
			names := []string{"a", "b"}
			for _, name := range names {
				freed(t, s, granted(t, s, name, time.Minute))
			}
			other, req := granted(t, s, held, time.Minute), batchOf(s, names...)
			first := answerOf(t, s, "take_all", req, names...)
			require.True(t, isToken(first))
			freed(t, s, other)
			require.EqualValues(t, answerPart, answerOf(t, s, "take_all", req, names...))
			for _, c := range req.Claims(2) {
				if c.Name == held {
					require.Greater(t, tokenOf(t, s, c.Name), uint64(first))
				} else {
					require.EqualValues(t, first, tokenOf(t, s, c.Name))
				}
				freed(t, s, c)
			}
		}
	})
}

// A copy of a batch that arrives after its rows were bound leaves them bound and their tokens as they
// are, and does not shorten their leases.
func TestCopiesOfABatch(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Hour)
		require.NoError(t, err)
		for _, statement := range []string{"take_all", "insert_all"} {
			names := []string{"a", "b"}
			for _, name := range names {
				freed(t, s, granted(t, s, name, time.Minute))
			}
			req := batchOf(s, names...)
			first := answerOf(t, s, statement, req, names...)
			require.True(t, isToken(first))
			n, _, err := s.Renew(ctx, req.Claims(2), time.Hour, 0, id)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			require.EqualValues(t, answerPart, answerOf(t, s, statement, req, names...))
			bound, err := s.CountBound(ctx, id)
			require.NoError(t, err)
			require.Equal(t, 2, bound)
			rows, _, err := s.Look(ctx, names)
			require.NoError(t, err)
			for _, name := range names {
				require.Equal(t, req.Owner, rows[name].Owner)
				require.EqualValues(t, first, tokenOf(t, s, name))
				require.Greater(t, rows[name].Lease, 50*time.Minute)
			}
			for _, c := range req.Claims(2) {
				freed(t, s, c)
			}
		}
	})
}
