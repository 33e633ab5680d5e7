package store

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// A request names what it acquires, and may claim it.
func request(s *Store, name string, m Mode) AcquireRequest {
	return AcquireRequest{Claim: Claim{name, NewOwnerID(s.self)}, Mode: m, Lease: time.Minute, MayClaim: true}
}

// acquired sends a request, again after a deadlock, and returns how many statements it cost.
func acquired(t *testing.T, s *Store, req AcquireRequest) (g Grant, statements int64) {
	t.Helper()
	before := s.Statements()
	for try := 1; ; try++ {
		g, err := s.Acquire(ctx, req)
		if Contended(err) && try < 100 {
			continue
		}
		require.NoError(t, err)
		return g, s.Statements() - before
	}
}

// shared acquires a name shared.
func shared(t *testing.T, s *Store, name string) Grant {
	t.Helper()
	g, _ := acquired(t, s, request(s, name, Shared))
	require.NotZero(t, g.Token, "%+v", g)
	return g
}

func freed(t *testing.T, s *Store, c Claim) {
	t.Helper()
	ok, _, err := s.Release(ctx, c)
	require.NoError(t, err)
	require.True(t, ok)
}

// What shared holds cost, and what names that are never held shared do not.
func TestStatementsOfSharedHolds(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, other, writer := all[0], all[1], all[2]
		for _, s := range all {
			freed(t, s, granted(t, s, "warm", time.Minute))
		}
		cost := func(s *Store, req AcquireRequest, want int64) Grant {
			t.Helper()
			g, n := acquired(t, s, req)
			assert.Equal(t, want, n, "%+v", g)
			return g
		}
		exclusive := func(s *Store, name string) AcquireRequest {
			req := request(s, name, Exclusive)
			req.MayClaim = false
			return req
		}
		plain := cost(s, exclusive(s, "exclusive"), 2)
		cost(other, exclusive(other, "exclusive"), 1)
		freed(t, s, plain.Claim)
		cost(s, request(s, "exclusive", Exclusive), 1)

		a := cost(s, request(s, "x", Shared), 2)
		b := cost(other, request(other, "x", Shared), 2)
		req := request(writer, "x", Exclusive)
		require.True(t, cost(writer, req, 4).Claimed)
		require.Zero(t, cost(s, request(s, "x", Shared), 1).Token)
		req.Claimed = true
		cost(writer, req, 2)
		freed(t, s, a.Claim)
		freed(t, other, b.Claim)
		w := cost(writer, req, 1)
		require.NotZero(t, w.Token)
		freed(t, writer, w.Claim)
		w = cost(writer, exclusive(writer, "x"), 1)
		freed(t, writer, w.Claim)

		freed(t, s, cost(s, request(s, "x", Shared), 2).Claim)
		freed(t, s, cost(s, request(s, "x", Exclusive), 2).Claim)
		freed(t, s, cost(s, request(s, "x", Shared), 2).Claim)
		freed(t, s, cost(s, exclusive(s, "x"), 3).Claim)
		freed(t, s, cost(s, request(s, "x", Shared), 2).Claim)
		freed(t, writer, cost(writer, request(writer, "x", Exclusive), 3).Claim)
		freed(t, s, cost(s, request(s, "x", Shared), 2).Claim)
		cost(writer, exclusive(writer, "x"), 4)
	})
}

// guarded begins a transaction that has a claim under Guard.
func guarded(t *testing.T, s *Store, g Grant) *sql.Tx {
	t.Helper()
	tx, err := s.db.DB.Begin()
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	require.NoError(t, s.Guard(ctx, tx, g.Claim, g.Token))
	return tx
}

// An open guard of a shared hold blocks the exclusive request that comes after it, and nothing
// else. No request waits in the server meanwhile.
func TestGuardOfASharedHold(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, other, writer := all[0], all[1], all[2]
		start := time.Now()
		a, b := shared(t, s, "x"), shared(t, other, "x")
		first, second := guarded(t, s, a), guarded(t, other, b)
		other.db.SetMaxOpenConns(3) // has no slots
		for _, q := range []*Store{other, writer, s} {
			freed(t, q, shared(t, q, "x").Claim)
		}
		n, _, err := s.Renew(ctx, []Claim{a.Claim}, time.Hour, 1, 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		req := request(writer, "x", Exclusive)
		g, _ := acquired(t, writer, req)
		require.True(t, g.Claimed)
		require.False(t, g.Locked)
		freed(t, s, a.Claim)
		freed(t, other, b.Claim)
		req.Claimed = true
		for _, tx := range []*sql.Tx{first, second} {
			g, _ = acquired(t, writer, req)
			require.Zero(t, g.Token)
			require.True(t, g.Claimed)
			require.True(t, g.Locked)
			require.NoError(t, tx.Commit())
		}
		g, _ = acquired(t, writer, req)
		require.NotZero(t, g.Token)
		require.Less(t, time.Since(start), 10*time.Second)

		tx, err := s.db.DB.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.ErrorIs(t, s.Guard(ctx, tx, a.Claim, a.Token), ErrNotOwned)
	})
}

// A guard fails as soon as the shared hold, or the phase to which it belongs, has ended.
func TestGuardOfASharedHoldThatEnded(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		fails := func(g Grant, what string) {
			t.Helper()
			for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
				tx, err := s.db.DB.BeginTx(ctx, &sql.TxOptions{Isolation: level})
				require.NoError(t, err)
				require.ErrorIs(t, s.Guard(ctx, tx, g.Claim, g.Token), ErrNotOwned, what)
				require.NoError(t, tx.Rollback())
			}
		}
		a := shared(t, s, "x")
		shared(t, other, "x")
		freed(t, s, a.Claim)
		fails(a, "released, while another holds the name shared")
		a = shared(t, s, "x")
		_, _, err := other.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		fails(a, "forced")
		shared(t, other, "x")
		fails(a, "forced, and held shared again")

		// A snapshot that is older than the hold does not matter.
		tx, err := s.db.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer tx.Rollback()
		var n int
		require.NoError(t, tx.QueryRow("SELECT COUNT(*) FROM mysqllock").Scan(&n))
		b := shared(t, s, "y")
		require.NoError(t, s.Guard(ctx, tx, b.Claim, b.Token))
	})
}

// A shared request waits for an open guard of the exclusive holder before it, but not in the
// server unless it has a slot.
func TestGuardBeforeASharedHold(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		c := Claim{"x", NewOwnerID(s.self)}
		g, err := s.Acquire(ctx, AcquireRequest{Claim: c, Lease: time.Minute})
		require.NoError(t, err)
		tx := guarded(t, s, g)
		freed(t, s, c)

		other.db.SetMaxOpenConns(3) // has no slots
		start := time.Now()
		refused, _ := acquired(t, other, request(other, "x", Shared))
		require.Zero(t, refused.Token)
		require.True(t, refused.Locked)
		require.Less(t, time.Since(start), 5*time.Second)

		other.db.SetMaxOpenConns(0)
		time.AfterFunc(300*time.Millisecond, func() { tx.Commit() })
		later := shared(t, other, "x")
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
		require.Greater(t, later.Token, g.Token)
	})
}

// A lease that had ended when the name was first held shared does not run again when the clock is
// set back: nobody would end it.
func TestLeaseBeforeASharedHold(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		granted(t, s, "x", 10*time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		freed(t, s, shared(t, s, "x").Claim)
		var runs bool
		require.NoError(t, s.db.Get(&runs, "SELECT expires_at > UTC_TIMESTAMP(6) - INTERVAL 1 HOUR FROM mysqllock WHERE name = 'x'"))
		require.False(t, runs)
	})
}

// A downgrade does not wait for an open guard, and leaves the hold as it was.
func TestDowngradeUnderGuard(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		g, _ := acquired(t, s, request(s, "x", Exclusive))
		tx := guarded(t, s, g)
		start := time.Now()
		to := request(s, "x", Shared)
		_, _, err := s.Downgrade(ctx, g.Claim, to)
		require.ErrorIs(t, err, ErrRowLocked)
		require.False(t, OutcomeUnknown(err))
		require.Greater(t, refused(t, other, "x").Remaining, 50*time.Second)
		for _, m := range []Mode{Shared, Exclusive} {
			other.sharedNames.set("x", true) // so that the exclusive request claims at once
			r, _ := acquired(t, other, request(other, "x", m))
			require.Greater(t, r.Remaining, 50*time.Second, "a request that is refused does not wait for the guard")
		}
		require.Less(t, time.Since(start), 5*time.Second)
		require.NoError(t, tx.Commit())
		guarded(t, s, g).Commit()
		d, _, err := s.Downgrade(ctx, g.Claim, to)
		require.NoError(t, err)
		require.NotZero(t, d.Token)
		shared(t, other, "x")
	})
}

// If a process ends in the middle of a downgrade, its shared hold counts.
func TestDowngradeThatEnds(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		req := request(s, "x", Exclusive)
		req.Lease = 100 * time.Millisecond
		g, _ := acquired(t, s, req)
		_, err := s.change(ctx, false, s.command("prepare_downgrade", "name", literal("x"), "owner", literal(g.Claim.Owner)))
		require.NoError(t, err)
		c := Claim{Owner: NewOwnerID(s.self)}
		conn, err := s.db.Connx(ctx)
		require.NoError(t, err)
		defer conn.Close()
		joined, err := s.join(AcquireRequest{Claim: Claim{"x", c.Owner}, Lease: time.Minute}, &c,
			"h.owner = "+literal(g.Claim.Owner), s.query("fragments/next_token", "r", "h."), s.query("fragments/now"), lockInShareMode, func(join command) (reply, error) {
				return s.execForAnswer(ctx, conn, join)
			})
		require.NoError(t, err)
		require.True(t, isToken(joined.answer))
		time.Sleep(200 * time.Millisecond)
		w, _ := acquired(t, other, request(other, "x", Exclusive))
		require.Zero(t, w.Token)
		require.True(t, w.Claimed)
		freed(t, other, w.Claim)
		b := shared(t, other, "x")
		require.Greater(t, b.Token, g.Token)
		freed(t, other, b.Claim)
		freed(t, s, c)
		w, _ = acquired(t, other, request(other, "x", Exclusive))
		require.NotZero(t, w.Token)
	})
}

// Statements for one name do not wait for those of the names beside it, whose rows a transaction
// has locked.
func TestSharedHoldsBesideLockedRows(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		for _, name := range []string{"a", "m", "m\x00s", "m\x01", "z"} {
			granted(t, s, name, time.Minute)
		}
		freed(t, s, Claim{"m", ownerOf(t, s, "m")})
		freed(t, s, shared(t, s, "m").Claim) // adds its row
		tx, err := s.db.DB.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		for _, name := range []string{"a", "m\x00s", "m\x01", "z"} {
			_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = " + literal(name) + " FOR UPDATE")
			require.NoError(t, err)
		}
		start := time.Now()
		for range 3 {
			b := shared(t, other, "m")
			w := request(s, "m", Exclusive)
			g, _ := acquired(t, s, w)
			require.True(t, g.Claimed)
			freed(t, other, b.Claim)
			w.Claimed = true
			g, _ = acquired(t, s, w)
			require.NotZero(t, g.Token)
			freed(t, s, g.Claim)
		}
		require.Less(t, time.Since(start), 900*time.Millisecond)
	})
}

func ownerOf(t *testing.T, s *Store, name string) string {
	t.Helper()
	rows, _, err := s.Look(ctx, []string{name})
	require.NoError(t, err)
	return rows[name].Owner
}

// A transaction that has the row of a shared hold locked delays an exclusive request, but no
// statement waits for it, and none takes the row for a free one.
func TestLockedRowOfASharedHold(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
			for _, limit := range []int{0, 3} { // with and without slots
				t.Run(fmt.Sprint(kind, "/", level, "/", limit), func(t *testing.T) {
					t.Parallel()
					all := sharedStores(t, mysqltest.Shared(t, kind), isolation(kind, level), 2)
					testLockedRowOfASharedHold(t, all[0], all[1], limit)
				})
			}
		}
	}
}

// isolation returns the DSN parameter for an isolation level.
func isolation(kind, level string) string {
	variable := map[string]string{"mysql": "transaction_isolation", "mariadb": "tx_isolation"}[kind]
	return url.Values{variable: {"'" + level + "'"}}.Encode()
}

func testLockedRowOfASharedHold(t *testing.T, s, other *Store, limit int) {
	other.db.SetMaxOpenConns(limit)
	a := shared(t, s, "x")
	tx, err := s.db.DB.Begin()
	require.NoError(t, err)
	defer tx.Rollback()
	for _, write := range []string{"", ", owner = INSERT(owner, 1, 1, '-'), expires_at = '1970-01-01'"} { // as by a release that is not committed
		_, err = tx.Exec("UPDATE mysqllock FORCE INDEX (PRIMARY) SET holds = 2" + write + " WHERE name = " + literal(a.Claim.Name))
		require.NoError(t, err)
		req := request(other, "x", Exclusive)
		start := time.Now()
		g, _ := acquired(t, other, req)
		require.True(t, g.Claimed, "%+v", g)
		require.Zero(t, g.Token)
		req.Claimed = true
		g, _ = acquired(t, other, req)
		require.Zero(t, g.Token)
		require.Less(t, time.Since(start), 5*time.Second)
		freed(t, other, g.Claim)
	}
	require.NoError(t, tx.Rollback())
	req := request(other, "x", Exclusive)
	g, _ := acquired(t, other, req)
	require.True(t, g.Claimed)
	freed(t, s, a.Claim)
	req.Claimed = true
	g, _ = acquired(t, other, req)
	require.NotZero(t, g.Token)
}

// Purge deletes names that were held shared, and none that is.
func TestPurgeOfSharedHolds(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		a := shared(t, s, "held")
		_, _, _, err = extend(s, a.Claim, time.Microsecond, id)
		require.NoError(t, err)
		kept := request(s, "kept", Shared)
		kept.Lease = time.Microsecond
		b, _ := acquired(t, s, kept)
		owned, _, _, err := extend(s, b.Claim, time.Microsecond, id)
		require.NoError(t, err)
		require.True(t, owned)
		for _, name := range []string{"held", "kept", "released"} { // with the tokens of those that stay
			freed(t, other, shared(t, other, name).Claim)
		}
		last := shared(t, other, "released")
		freed(t, other, last.Claim)
		time.Sleep(10 * time.Millisecond)
		_, err = other.Purge(ctx, 0)
		require.NoError(t, err)
		for _, g := range []Grant{a, b} {
			require.Equal(t, g.Claim.Owner, ownerOf(t, s, g.Claim.Name))
			w, _ := acquired(t, other, request(other, NameOf(g.Claim.Name), Exclusive))
			require.Zero(t, w.Token)
			require.True(t, w.Claimed)
			freed(t, other, w.Claim)
			tx := guarded(t, s, g)
			require.NoError(t, tx.Rollback())
			freed(t, s, g.Claim)
		}
		rows, _, err := s.Look(ctx, []string{"released", last.Claim.Name})
		require.NoError(t, err)
		require.Empty(t, rows)
		again := shared(t, s, "released")
		require.Greater(t, again.Token, last.Token)
		require.Less(t, again.Token, uint64(maxToken))
		_, err = other.Purge(ctx, 0)
		require.NoError(t, err)
		rows, _, err = s.Look(ctx, []string{"held", a.Claim.Name, "kept", b.Claim.Name})
		require.NoError(t, err)
		require.Empty(t, rows)
	})
}

func extend(s *Store, c Claim, lease time.Duration, id SessionID) (owned bool, n int, sent time.Time, err error) {
	owned, sent, err = s.Extend(ctx, c, lease, 1, id)
	return owned, 1, sent, err
}

// sharedSessions are what a DSN can ask of the session; levels are set under either name.
var sharedSessions = map[string]string{
	"read uncommitted": "isolation=READ-UNCOMMITTED",
	"read committed":   "isolation=READ-COMMITTED",
	"repeatable read":  "isolation=REPEATABLE-READ",
	"serializable":     "isolation=SERIALIZABLE",
	"at once":          "sql_mode='SIMULTANEOUS_ASSIGNMENT'",
	"empty is NULL":    "sql_mode='EMPTY_STRING_IS_NULL'",
	"Oracle":           "sql_mode='ORACLE'",
	"ANSI":             "sql_mode='ANSI,ANSI_QUOTES'",
	"no mode":          "sql_mode=''",
	"strict":           "sql_mode='STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,ONLY_FULL_GROUP_BY'",
	"pads":             "sql_mode='PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,PIPES_AS_CONCAT,REAL_AS_FLOAT,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE'",
	"safe updates":     "sql_safe_updates=1",
	"select limit":     "sql_select_limit=1",
	"client flags":     "clientFoundRows=true&columnsWithAlias=true&parseTime=true&interpolateParams=true",
	"zone":             "time_zone='%2B12:45'",
	"gbk":              "charset=gbk",
	"turkish":          "collation=utf8mb4_turkish_ci",
	"chained":          "completion_type=1",
	"sequence":         "auto_increment_increment=7&auto_increment_offset=3",
}

// sharedStores returns stores for one table, by sessions of the given parameters.
func sharedStores(t *testing.T, server *mysqltest.Server, params string, n int) (all []*Store) {
	t.Helper()
	schema, err := os.ReadFile("../../schema.sql")
	require.NoError(t, err)
	database := mysqltest.NewDatabase(t, server)
	open := func(params string) *Store {
		db, err := sql.Open("mysql", server.DSN(database, params))
		require.NoError(t, err)
		s, err := New(db, string(schema), "mysqllock", "label", NewProcess(), 30*time.Second)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close(); db.Close() })
		return s
	}
	require.NoError(t, open("").CreateTable(ctx))
	for range n {
		all = append(all, open(params))
	}
	return all
}

// The statements are right, and cost the same, under each session.
func TestSessionsOfSharedHolds(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		for what, params := range sharedSessions {
			if kind == "mysql" && (what == "at once" || what == "empty is NULL" || what == "Oracle") {
				continue
			}
			t.Run(kind+"/"+what, func(t *testing.T) {
				t.Parallel()
				if level, ok := strings.CutPrefix(params, "isolation="); ok {
					params = isolation(kind, level)
				}
				values, err := url.ParseQuery(params)
				require.NoError(t, err)
				all := sharedStores(t, mysqltest.Shared(t, kind), values.Encode(), 3)
				for _, limit := range []int{0, 3} { // with and without slots
					for _, s := range all {
						s.db.SetMaxOpenConns(limit)
					}
					testSharedSession(t, all, fmt.Sprint("naïve '", what, "' \\ ", limit))
				}
			})
		}
	}
}

func testSharedSession(t *testing.T, all []*Store, name string) {
	s, other, writer := all[0], all[1], all[2]
	var last uint64
	for range 2 {
		a, b := shared(t, s, name), shared(t, other, name)
		require.GreaterOrEqual(t, a.Token, last)
		require.Equal(t, a.Token, b.Token)
		req := request(writer, name, Exclusive)
		req.EnlistAs = writer.self
		g, _ := acquired(t, writer, req)
		require.True(t, g.Claimed, "%+v", g)
		again := request(s, name, Shared)
		again.EnlistAs = s.self
		r, _ := acquired(t, s, again)
		require.Zero(t, r.Token)
		freed(t, s, a.Claim)
		req.Claimed = true
		g, _ = acquired(t, writer, req)
		require.True(t, g.Claimed)
		tx := guarded(t, other, b)
		freed(t, other, b.Claim)
		g, _ = acquired(t, writer, req)
		require.True(t, g.Locked, "%+v", g)
		require.NoError(t, tx.Commit())
		g, _ = acquired(t, writer, req)
		require.Greater(t, g.Token, a.Token)
		require.Greater(t, refused(t, other, name).Remaining, 50*time.Second)
		ok, next, err := writer.Release(ctx, g.Claim)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, s.self, next)
		again.Owner = NewOwnerID(s.self)
		d, _ := acquired(t, s, again)
		require.NotZero(t, d.Token, "%+v", d)
		freed(t, s, d.Claim)
		last = d.Token
	}
	c := granted(t, s, name, time.Minute)
	d, _, err := s.Downgrade(ctx, c, request(s, name, Shared))
	require.NoError(t, err)
	b := shared(t, other, name)
	require.Equal(t, d.Token, b.Token)
	freed, _, err := writer.ForceUnlock(ctx, name)
	require.NoError(t, err)
	require.Len(t, freed, 2)
	freedAgain, _, err := writer.ForceUnlock(ctx, name)
	require.NoError(t, err)
	require.Empty(t, freedAgain)
	granted(t, writer, name, time.Minute)
}

// Without autocommit nothing is granted or changed.
func TestSharedHoldsWithoutAutocommit(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			all := sharedStores(t, mysqltest.Shared(t, kind), "", 2)
			s, bad := all[0], all[1]
			freed(t, bad, shared(t, bad, "warm").Claim)
			bad.HoldEnded()
			a := shared(t, s, "x")
			bad.db.SetMaxOpenConns(1)
			_, err := bad.db.Exec("SET autocommit = 0")
			require.NoError(t, err)
			for _, name := range []string{"x", "missing"} {
				for _, m := range []Mode{Shared, Exclusive} {
					_, err := bad.Acquire(ctx, request(bad, name, m))
					require.ErrorIs(t, err, ErrAutocommit, name)
				}
			}
			_, err = bad.db.Exec("COMMIT")
			require.NoError(t, err)
			require.Equal(t, a.Token, shared(t, s, "x").Token, "it is not claimed")
		})
	}
}

// A crowd of processes holds names in both modes at random. No exclusive hold is beside any
// other, and tokens rise.
func TestCrowdOfSharedHolds(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ"} {
			t.Run(kind+"/"+level, func(t *testing.T) {
				t.Parallel()
				all := sharedStores(t, mysqltest.Shared(t, kind), isolation(kind, level), 8)
				testCrowd(t, all)
			})
		}
	}
}

// A crowdName is what a crowd knows about a name.
type crowdName struct {
	mu                sync.Mutex // protects following fields
	readers, writers  int
	lastRead, lastSet uint64 // tokens
}

func (n *crowdName) enter(t *testing.T, m Mode, token uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m == Shared {
		n.readers++
		assert.Zero(t, n.writers)
		assert.Greater(t, token, n.lastSet)
		assert.GreaterOrEqual(t, token, n.lastRead)
		n.lastRead = token
	} else {
		n.writers++
		assert.Equal(t, 1, n.writers)
		assert.Zero(t, n.readers)
		assert.Greater(t, token, n.lastSet)
		assert.Greater(t, token, n.lastRead)
		n.lastSet = token
	}
}

func (n *crowdName) leave(m Mode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m == Shared {
		n.readers--
	} else {
		n.writers--
	}
}

func testCrowd(t *testing.T, all []*Store) {
	names := []*crowdName{{}, {}}
	var grants [2]atomic.Int64
	const enough = 20 // of each mode, however slow the machine is
	start := time.Now()
	running := func() bool {
		few := grants[Exclusive].Load() <= enough || grants[Shared].Load() <= enough
		return !t.Failed() && (time.Since(start) < 3*time.Second || few && time.Since(start) < 30*time.Second)
	}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			for running() {
				i, m := rand.IntN(len(names)), Mode(rand.IntN(2))
				if g := crowdAcquire(t, s, fmt.Sprint("x", i), m, time.Now().Add(3*time.Second)); g.Token > 0 {
					grants[m].Add(1)
					names[i].enter(t, m, g.Token)
					if rand.IntN(3) == 0 {
						time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
					}
					if m == Exclusive && rand.IntN(4) == 0 {
						g = crowdDowngrade(t, s, names[i], g)
						m = ModeOf(g.Claim.Name)
					}
					names[i].leave(m)
					crowdRelease(t, s, g.Claim)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d exclusive and %d shared holds", grants[Exclusive].Load(), grants[Shared].Load())
	assert.Greater(t, grants[Exclusive].Load(), int64(enough))
	assert.Greater(t, grants[Shared].Load(), int64(enough))
}

// crowdAcquire sends a request until it is granted, or given up.
func crowdAcquire(t *testing.T, s *Store, name string, m Mode, end time.Time) Grant {
	req := request(s, name, m)
	req.MayClaim = rand.IntN(4) > 0
	if rand.IntN(2) == 0 {
		req.EnlistAs = s.self
	}
	giveUp := rand.IntN(8) == 0
	for try := 0; ; try++ {
		sent := req
		if rand.IntN(8) == 0 {
			sent.Claimed = false // a copy of an earlier request
		}
		g, err := s.Acquire(ctx, sent)
		if g.Token > 0 || err != nil && !Contended(err) {
			assert.NoError(t, err)
			return g
		}
		if req.Claimed = req.Claimed || g.Claimed; time.Now().After(end) || giveUp && try == 3 {
			if m == Exclusive {
				crowdRelease(t, s, req.Claim)
			}
			s.RemoveWaiter(ctx, []string{name}, s.self)
			return Grant{}
		}
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
	}
}

func crowdDowngrade(t *testing.T, s *Store, n *crowdName, g Grant) Grant {
	for {
		// The invariant holds at every moment: the hold is neither before nor after it.
		n.mu.Lock()
		d, _, err := s.Downgrade(context.Background(), g.Claim, AcquireRequest{Claim: Claim{g.Claim.Name, NewOwnerID(s.self)}, Mode: Shared, Lease: time.Minute})
		if err == nil {
			n.writers--
			n.readers++
			assert.Greater(t, d.Token, n.lastSet)
			n.lastRead = max(n.lastRead, d.Token)
			g = d
		}
		n.mu.Unlock()
		if !Contended(err) {
			assert.NoError(t, err)
			return g
		}
	}
}

func crowdRelease(t *testing.T, s *Store, c Claim) {
	for {
		if _, _, err := s.Release(ctx, c); !Contended(err) {
			assert.NoError(t, err)
			return
		}
	}
}
