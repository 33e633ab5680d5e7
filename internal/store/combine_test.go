package store

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// together runs n calls that a combiner of s sends as one batch.
func together[R, A any](t *testing.T, s *Store, c *combiner[R, A], n int, call func(i int)) {
	t.Helper()
	s.load.Add(2 * combineFrom)
	defer s.load.Add(-2 * combineFrom)
	c.mu.Lock()
	c.busy = true
	c.mu.Unlock()
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { call(i) })
	}
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.pending) == n
	}, 10*time.Second, time.Millisecond)
	c.mu.Lock()
	c.busy = false
	c.start()
	c.mu.Unlock()
	calls.Wait()
}

// takeTogether requests rows in one batch.
func takeTogether(t *testing.T, s *Store, reqs []AcquireRequest) (grants []Grant, errs []error) {
	t.Helper()
	grants, errs = make([]Grant, len(reqs)), make([]error, len(reqs))
	together(t, s, &s.takes, len(reqs), func(i int) { grants[i], errs[i] = s.Acquire(ctx, reqs[i]) })
	return grants, errs
}

func requestsFor(s *Store, names ...string) (reqs []AcquireRequest) {
	for _, name := range names {
		reqs = append(reqs, AcquireRequest{Claim: Claim{name, NewOwnerID(s.self)}, Lease: time.Minute})
	}
	return reqs
}

func namesOf(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%03d", (i*37)%n)) // not sorted
	}
	return names
}

// addRows adds the rows of names, which are free.
func addRows(t *testing.T, s *Store, names []string) {
	t.Helper()
	for _, name := range names {
		freed(t, s, granted(t, s, name, time.Minute))
		s.HoldEnded()
	}
}

// Requests that are pending together cost as much as a batch, and each has a grant of its own.
func TestCombinedRequests(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		freed(t, s, granted(t, s, "first", time.Minute))
		s.HoldEnded()
		for _, statements := range []int64{3, 1} { // first without rows
			reqs := requestsFor(s, namesOf(64)...)
			reqs[7].Holder, reqs[9].Lease = "O'Brien \\", time.Hour
			before := s.Statements()
			start := time.Now()
			grants, errs := takeTogether(t, s, reqs)
			require.Equal(t, statements, s.Statements()-before)
			for i, g := range grants {
				require.NoError(t, errs[i])
				require.Equal(t, grants[0].Token, g.Token)
				require.Equal(t, reqs[i].Claim, g.Claim)
				require.Equal(t, g.Token, tokenOf(t, s, g.Claim.Name))
				require.False(t, g.Sent.Before(start) || g.Sent.After(time.Now()))
			}
			rows, _, err := s.Look(ctx, namesOf(64))
			require.NoError(t, err)
			for _, req := range reqs {
				require.Equal(t, req.Owner, rows[req.Name].Owner)
				require.InDelta(t, req.Lease, rows[req.Name].Lease, float64(30*time.Second))
			}
			info, err := s.Inspect(ctx, reqs[7].Name)
			require.NoError(t, err)
			require.Equal(t, reqs[7].Holder, info.Holder)
			info, err = s.Inspect(ctx, reqs[8].Name)
			require.NoError(t, err)
			require.Equal(t, "label", info.Holder)
			require.Equal(t, 64, s.locksHeld())

			before = s.Statements()
			together(t, s, &s.releases, len(reqs), func(i int) {
				ok, next, err := s.Release(ctx, reqs[i].Claim)
				assert.NoError(t, err)
				assert.True(t, ok)
				assert.Zero(t, next)
				s.HoldEnded()
			})
			require.EqualValues(t, 1, s.Statements()-before)
			require.Zero(t, s.locksHeld())
		}
	})
}

// Rows that a batch does not take have the answers that they have alone, and delay no other.
func TestCombinedRequestsBesideOthers(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, other, third := all[0], all[1], all[2]
		names := []string{"free", "held", "bound", "locked", "guarded", "reserved", "waited", "shared", "ahead", "new1", "new2"}
		for _, name := range names[:9] {
			freed(t, s, granted(t, s, name, time.Minute))
		}
		granted(t, other, "held", time.Minute)
		id := other.self.FirstSession()
		_, err := other.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		c := granted(t, other, "bound", time.Microsecond)
		_, _, err = other.Renew(ctx, []Claim{c}, time.Microsecond, 0, id)
		require.NoError(t, err)
		for _, name := range []string{"reserved", "waited"} {
			c := granted(t, other, name, time.Minute)
			_, err := third.Acquire(ctx, AcquireRequest{Claim: Claim{name, NewOwnerID(third.self)}, Lease: time.Minute, EnlistAs: third.self})
			require.NoError(t, err)
			freed(t, other, c)
		}
		_, err = s.db.Exec("UPDATE mysqllock SET released_at = released_at - INTERVAL 1 MINUTE WHERE name = 'waited'")
		require.NoError(t, err)
		_, err = s.db.Exec("UPDATE mysqllock SET released_at = released_at + INTERVAL 1 SECOND WHERE name = 'reserved'") // on a busy machine, too
		require.NoError(t, err)
		freed(t, other, shared(t, other, "shared").Claim)
		_, err = s.db.Exec("UPDATE mysqllock SET token = token + 3600000000 WHERE name = 'ahead'")
		require.NoError(t, err)
		tx, err := other.db.Beginx()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = 'locked' FOR UPDATE")
		require.NoError(t, err)
		_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (guard) WHERE name = 'guarded' AND token = ? LOCK IN SHARE MODE", tokenOf(t, s, "guarded"))
		require.NoError(t, err)

		grants, took := make([]Grant, len(names)), make([]time.Duration, len(names))
		limited, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		start := time.Now()
		reqs := requestsFor(s, names...)
		together(t, s, &s.takes, len(names), func(i int) {
			var err error
			if grants[i], err = s.Acquire(limited, reqs[i]); names[i] != "locked" && names[i] != "guarded" {
				assert.NoError(t, err, names[i])
			}
			took[i] = time.Since(start)
		})
		for i, name := range names {
			g := grants[i]
			switch name {
			case "held", "bound":
				require.Zero(t, g.Token, name)
				require.InDelta(t, time.Minute, g.Remaining, float64(30*time.Second), name)
			case "locked", "guarded":
				require.Zero(t, g.Token, name) // it waits in a slot, to the end of ctx
				continue
			case "reserved":
				require.Zero(t, g.Token)
				require.True(t, g.Reserved)
			default:
				require.NotZero(t, g.Token, name)
			}
			require.Less(t, took[i], 2500*time.Millisecond, name)
		}
	})
}

// The end of a call ends neither the batch nor the other calls. A grant that comes later is no
// hold, and is released.
func TestCallOfABatchEnds(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		addRows(t, s, namesOf(4))
		send := s.takes.send
		reqs := requestsFor(s, namesOf(4)...)
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		s.takes.send = func(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
			cancel()
			assert.Eventually(t, func() bool {
				s.takes.mu.Lock()
				defer s.takes.mu.Unlock()
				return batch[0].batch.calls == 3
			}, 10*time.Second, time.Millisecond)
			return send(ctx, conn, batch)
		}
		together(t, s, &s.takes, 4, func(i int) {
			if i > 0 {
				g, err := s.Acquire(ctx, reqs[i])
				assert.NoError(t, err)
				assert.NotZero(t, g.Token)
				return
			}
			g, err := s.Acquire(limited, reqs[0])
			assert.ErrorIs(t, err, context.Canceled)
			assert.True(t, OutcomeUnknown(err))
			assert.Equal(t, reqs[0].Claim, g.Claim)
		})
		require.Equal(t, 3, s.locksHeld())
		require.Eventually(t, func() bool { return ownerOf(t, s, reqs[0].Name) == released(reqs[0].Owner) }, 10*time.Second, 10*time.Millisecond)

		// One that is pending is not sent.
		s.takes.send = send
		limited, cancel = context.WithCancel(ctx)
		s.takes.mu.Lock()
		s.takes.busy = true
		s.takes.mu.Unlock()
		time.AfterFunc(10*time.Millisecond, cancel)
		s.load.Add(2 * combineFrom)
		_, err := s.Acquire(limited, requestsFor(s, reqs[0].Name)[0])
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, OutcomeUnknown(err))
		require.Empty(t, s.takes.pending)
		s.load.Add(-2 * combineFrom)
		s.takes.mu.Lock()
		s.takes.busy = false
		s.takes.mu.Unlock()
	})
}

// When all calls of a batch have ended, so does its statement. A batch without a reply delays no
// other.
func TestHangingBatch(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		addRows(t, s, namesOf(4))
		send := s.takes.send
		limited, cancel := context.WithCancel(ctx)
		hanging, ended := make(chan struct{}), make(chan struct{})
		var once sync.Once
		s.takes.send = func(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
			first := false
			once.Do(func() { first = true })
			if !first {
				return send(ctx, conn, batch)
			}
			close(hanging)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
		reqs := requestsFor(s, namesOf(4)...)
		var calls sync.WaitGroup
		calls.Go(func() {
			together(t, s, &s.takes, 2, func(i int) {
				_, err := s.Acquire(limited, reqs[i])
				assert.ErrorIs(t, err, context.Canceled)
			})
		})
		<-hanging
		start := time.Now()
		s.load.Add(2 * combineFrom)
		g, err := s.Acquire(ctx, reqs[2])
		s.load.Add(-2 * combineFrom)
		require.NoError(t, err)
		require.NotZero(t, g.Token)
		require.Greater(t, time.Since(start), slowBatch/2)
		cancel()
		calls.Wait()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the statement goes on")
		}
		require.Equal(t, 1, s.locksHeld())
	})
}

// After a batch of which it is not known what it took, its requests find out on their own. Their
// leases count from the batch.
func TestBatchWithALostAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		addRows(t, s, namesOf(4))
		reqs := requestsFor(s, namesOf(4)...)
		granted(t, other, reqs[3].Name, time.Minute)
		send := s.takes.send
		var sent time.Time
		s.takes.send = func(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
			sent = time.Now()
			requests, names := requestsOf(batch)
			_, err := s.execForAnswer(ctx, conn, s.batchCommand("take_all", requests, names))
			assert.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
			return errUnsure
		}
		grants, errs := takeTogether(t, s, reqs)
		for i, g := range grants {
			require.NoError(t, errs[i])
			require.Equal(t, i < 3, g.Token > 0)
			require.False(t, i < 3 && g.Sent.After(sent))
		}
		require.Equal(t, 3, s.locksHeld())
		for _, req := range reqs[:3] {
			require.Equal(t, req.Owner, ownerOf(t, s, req.Name))
		}
		s.takes.send = send

		// One that has no slot, and whose row is locked, does not take it for another's.
		tx, err := other.db.Beginx()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = ? FOR UPDATE", reqs[0].Name)
		require.NoError(t, err)
		again := reqs[0]
		again.skipLocked = true
		_, err = s.acquireAlone(ctx, again)
		require.True(t, OutcomeUnknown(err), "%v", err)
	})
}

// A batch of releases answers each: released, lost, or locked and so sent alone; and which process
// is next for each row.
func TestCombinedReleases(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, other, third := all[0], all[1], all[2]
		names := []string{"plain", "waited", "waited too", "forced", "taken", "deleted", "locked"}
		claims := map[string]Claim{}
		for _, name := range names {
			claims[name] = granted(t, s, name, time.Minute)
		}
		for name, p := range map[string]*Store{"waited": other, "waited too": third} {
			_, err := p.Acquire(ctx, AcquireRequest{Claim: Claim{name, NewOwnerID(p.self)}, Lease: time.Minute, EnlistAs: p.self})
			require.NoError(t, err)
		}
		for _, name := range []string{"forced", "taken"} {
			_, _, err := other.ForceUnlock(ctx, name)
			require.NoError(t, err)
		}
		granted(t, other, "taken", time.Minute)
		_, err := s.db.Exec("DELETE FROM mysqllock WHERE name = 'deleted'")
		require.NoError(t, err)
		tx, err := other.db.Beginx()
		require.NoError(t, err)
		_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = 'locked' FOR UPDATE")
		require.NoError(t, err)
		defer time.AfterFunc(300*time.Millisecond, func() { tx.Rollback() }).Stop()
		together(t, s, &s.releases, len(names), func(i int) {
			ok, next, err := s.Release(ctx, claims[names[i]])
			assert.NoError(t, err, names[i])
			lost := slices.Contains([]string{"forced", "taken", "deleted"}, names[i])
			assert.Equal(t, !lost, ok, names[i])
			assert.Equal(t, map[string]Process{"waited": other.self, "waited too": third.self}[names[i]], next, names[i])
		})
		require.NotEqual(t, released(claims["taken"].Owner), ownerOf(t, s, "taken"))
		require.Equal(t, released(claims["locked"].Owner), ownerOf(t, s, "locked"))
	})
}

// What a batch of releases did is known from what the rows show afterwards.
func TestReleasedOf(t *testing.T) {
	const own, other, within = "1owner", "2owner", time.Millisecond
	for name, c := range map[string]struct {
		n    int
		rows []batchRow
		want []releaseState
	}{
		"released":                     {1, []batchRow{{Owner: "-owner", Released: 5}}, []releaseState{rowReleased}},
		"locked":                       {0, []batchRow{{Owner: own}}, []releaseState{rowOwned}},
		"taken since":                  {1, []batchRow{{Owner: other, Released: 5}}, []releaseState{rowReleased}},
		"taken before":                 {0, []batchRow{{Owner: other, Released: 5000}}, []releaseState{rowLost}},
		"taken before, released since": {0, []batchRow{{Owner: other, Released: 5}}, []releaseState{rowLost}},
		"missing":                      {0, []batchRow{{Name: "missing"}}, []releaseState{rowLost}},
		"taken since, and before":      {1, []batchRow{{Owner: other, Released: 5}, {Owner: other, Released: 5000}}, []releaseState{rowReleased, rowLost}},
		"which was taken is unknown":   {1, []batchRow{{Owner: other, Released: 5}, {Owner: other, Released: 6}}, []releaseState{rowLost, rowLost}},
		"the instant shows which":      {2, []batchRow{{Owner: "-owner", Released: 6}, {Owner: other, Released: 5}, {Owner: other, Released: 6}}, []releaseState{rowReleased, rowLost, rowReleased}},
		"locked, and taken since":      {1, []batchRow{{Owner: own, Released: 5000}, {Owner: other, Released: 5}}, []releaseState{rowOwned, rowReleased}},
	} {
		t.Run(name, func(t *testing.T) {
			rows, claims := map[string]batchRow{}, []Claim{}
			for i, row := range c.rows {
				claims = append(claims, Claim{fmt.Sprint(i), own})
				if row.Name != "missing" {
					rows[fmt.Sprint(i)] = row
				}
			}
			require.Equal(t, c.want, releasedOf(claims, rows, c.n, within))
		})
	}
}

// Requests for the same name are not in one batch: each finds what the other left.
func TestSameNameTwice(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		for range 2 { // first without rows
			reqs := requestsFor(s, "a", "a", "b", "a")
			grants, errs := takeTogether(t, s, reqs)
			n := 0
			for i, g := range grants {
				require.NoError(t, errs[i])
				if g.Token > 0 {
					n++
					require.Equal(t, reqs[i].Owner, ownerOf(t, s, reqs[i].Name))
					freed(t, s, reqs[i].Claim)
					s.HoldEnded()
				}
			}
			require.Equal(t, 2, n)
			require.Zero(t, s.locksHeld())
		}
		lost := granted(t, s, "a", time.Minute)
		_, _, err := s.ForceUnlock(ctx, "a")
		require.NoError(t, err)
		claims := []Claim{lost, granted(t, s, "a", time.Minute)}
		together(t, s, &s.releases, 2, func(i int) {
			ok, _, err := s.Release(ctx, claims[i])
			assert.NoError(t, err)
			assert.Equal(t, i == 1, ok)
		})
	})
}

// The statements of a batch with different values are right in every session.
func TestBatchesInSessions(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../../schema.sql")
	require.NoError(t, err)
	for _, kind := range mysqltest.Kinds {
		server := mysqltest.Shared(t, kind)
		for _, setting := range []string{
			"clientFoundRows=true", "interpolateParams=true", "columnsWithAlias=true", "charset=gbk", "charset=latin1", "sql_safe_updates=1", "sql_select_limit=1",
			"sql_mode='ANSI,ANSI_QUOTES'", "sql_mode='NO_BACKSLASH_ESCAPES'", "sql_mode='STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,NO_ZERO_DATE'", "sql_mode=''",
			"sql_mode='SIMULTANEOUS_ASSIGNMENT'", "sql_mode='ORACLE'", "sql_mode='EMPTY_STRING_IS_NULL'", "sql_mode='MSSQL'",
			"transaction_isolation='READ-UNCOMMITTED'", "transaction_isolation='SERIALIZABLE'", "tx_isolation='READ-COMMITTED'", "tx_isolation='SERIALIZABLE'",
			"character_set_connection=utf16", "sql_auto_is_null=1", "time_zone='-11:30'", "div_precision_increment=0", "auto_increment_increment=7",
		} {
			t.Run(kind+" "+setting, func(t *testing.T) {
				name, value, _ := strings.Cut(setting, "=")
				database := mysqltest.NewDatabase(t, server)
				db, err := sql.Open("mysql", server.DSN(database, name+"="+url.QueryEscape(value)))
				require.NoError(t, err)
				if db.Ping() != nil {
					t.Skip("the other kind of server has it")
				}
				defer db.Close()
				newTable(t, server.DSN(database, ""), string(schema))
				s, err := New(db, "", "mysqllock", "label", NewProcess(), 30*time.Second)
				require.NoError(t, err)
				defer s.Close()
				for range 2 {
					reqs := requestsFor(s, "b", "a", "ä'\\", "c")
					reqs[1].Lease, reqs[2].Holder = time.Hour, "ö'\\\""
					grants, errs := takeTogether(t, s, reqs)
					for i, g := range grants {
						require.NoError(t, errs[i])
						require.Equal(t, g.Token, tokenOf(t, s, reqs[i].Name))
						require.Equal(t, reqs[i].Owner, ownerOf(t, s, reqs[i].Name))
					}
					info, err := s.Inspect(ctx, "ä'\\")
					require.NoError(t, err)
					require.Equal(t, reqs[2].Holder, info.Holder)
					again, errs := takeTogether(t, s, requestsFor(s, "b", "a", "ä'\\"))
					for i, g := range again {
						require.NoError(t, errs[i])
						require.Zero(t, g.Token)
						require.Positive(t, g.Remaining)
					}
					together(t, s, &s.releases, len(reqs), func(i int) {
						ok, _, err := s.Release(ctx, reqs[i].Claim)
						assert.NoError(t, err)
						assert.True(t, ok)
						s.HoldEnded()
					})
					require.Zero(t, s.locksHeld())
				}
			})
		}
	}
}

// newTable creates the table.
func newTable(t *testing.T, dsn, schema string) {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	defer db.Close()
	s, err := New(db, schema, "mysqllock", "label", NewProcess(), 30*time.Second)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.CreateTable(ctx))
}

// In a session without autocommit, a batch takes and releases nothing.
func TestBatchesWithoutAutocommit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		addRows(t, s, namesOf(3))
		s.db.SetMaxOpenConns(1)
		_, err := s.db.Exec("SET autocommit = 0")
		require.NoError(t, err)
		reqs := requestsFor(s, append(namesOf(3), "new1", "new2")...)
		_, errs := takeTogether(t, s, reqs)
		for _, err := range errs {
			require.ErrorIs(t, err, ErrAutocommit)
		}
		require.Zero(t, s.locksHeld())
		_, err = s.db.Exec("SET autocommit = 1")
		require.NoError(t, err)
		for _, req := range reqs {
			require.NotEqual(t, req.Owner, ownerOf(t, s, req.Name))
		}
	})
}

// A read that does not show all rows that a batch took refuses nobody.
func TestBatchBesideAStaleRead(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		names := namesOf(3)
		for _, name := range names {
			freed(t, s, granted(t, s, name, time.Minute))
			s.HoldEnded()
		}
		reqs := requestsFor(s, names...)
		stale := map[string]batchRow{}
		for _, name := range names {
			stale[name] = batchRow{Owner: "another", Micros: 1e6}
		}
		s.takes.send = func(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
			requests, names := requestsOf(batch)
			taken, err := s.execForAnswer(ctx, conn, s.batchCommand("take_all", requests, names))
			assert.NoError(t, err)
			return s.answerTakes(batch, stale, taken)
		}
		grants, errs := takeTogether(t, s, reqs)
		for i, g := range grants {
			require.NoError(t, errs[i])
			require.NotZero(t, g.Token)
		}
	})
}

// A request whose batch may have taken the row fails with an unknown outcome, even if no further
// statement was sent.
func TestErrorAfterABatch(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		s.takes.send = func(context.Context, *sqlx.Conn, []*combinedTake) error {
			s.db.Close()
			return errUnsure
		}
		_, errs := takeTogether(t, s, requestsFor(s, "a", "b"))
		for _, err := range errs {
			require.True(t, OutcomeUnknown(err), "%v", err)
		}
	})
}

// A release whose row may have another owner is sent on its own.
func TestReleasesThatAreNotCombined(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		c := granted(t, s, "x", time.Minute)
		s.load.Add(2 * combineFrom)
		s.releases.busy = true
		for _, with := range []func(context.Context) context.Context{NotHeld, Repeated} {
			limited, cancel := context.WithTimeout(with(ctx), 10*time.Second)
			ok, _, err := s.Release(limited, c)
			cancel()
			require.NoError(t, err)
			require.True(t, ok)
		}
		s.releases.busy = false
	})
}
