package store

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	mysqltest.StopShared()
	os.Exit(code)
}

var ctx = context.Background()

// OnEach runs a test on every server. newTable returns a function that opens a new table for a
// process, on a pool of its own.
func OnEach(t *testing.T, test func(t *testing.T, newTable func(t *testing.T) (newStore func(self Process) *Store))) {
	t.Parallel()
	schema, err := os.ReadFile("../../schema.sql")
	require.NoError(t, err)
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			test(t, func(t *testing.T) func(self Process) *Store {
				database := mysqltest.NewDatabase(t, server)
				return func(self Process) *Store {
					db, err := sql.Open("mysql", server.DSN(database, ""))
					require.NoError(t, err)
					s, err := New(db, string(schema), "mysqllock", "label", self, 30*time.Second)
					require.NoError(t, err)
					t.Cleanup(func() { s.Close(); db.Close() })
					require.NoError(t, s.CreateTable(ctx))
					return s
				}
			})
		})
	}
}

// onEach is OnEach for one table. stores returns as many stores of it as asked for.
func onEach(t *testing.T, test func(t *testing.T, stores func(n int) []*Store)) {
	OnEach(t, func(t *testing.T, newTable func(t *testing.T) func(self Process) *Store) {
		newStore := newTable(t)
		test(t, func(n int) (all []*Store) {
			for range n {
				all = append(all, newStore(NewProcess()))
			}
			return all
		})
	})
}

// granted acquires a row that must be free.
func granted(t *testing.T, s *Store, name string, lease time.Duration) Claim {
	t.Helper()
	c := Claim{name, NewOwnerID(s.self)}
	g, err := s.Acquire(ctx, AcquireRequest{Claim: c, Lease: lease})
	require.NoError(t, err)
	require.NotZero(t, g.Token, "%+v", g)
	return c
}

// refused requires that the row is not free.
func refused(t *testing.T, s *Store, name string) Grant {
	t.Helper()
	g, err := s.Acquire(ctx, AcquireRequest{Claim: Claim{name, NewOwnerID(s.self)}, Lease: time.Minute})
	require.NoError(t, err)
	require.Zero(t, g.Token)
	return g
}

// A session keeps the rows that are bound to it, and no others.
func TestSessionKeepsBoundRows(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		bound, unbound := granted(t, s, "bound", time.Second), granted(t, s, "unbound", time.Second)
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		n, _, err := s.Renew(ctx, []Claim{bound}, time.Second, 0, id)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		time.Sleep(1500 * time.Millisecond)
		require.Greater(t, refused(t, other, "bound").Remaining, 50*time.Second)
		granted(t, other, "unbound", time.Minute)

		// Released, it is free.
		freed, _, err := s.Release(ctx, bound)
		require.NoError(t, err)
		require.True(t, freed)
		granted(t, other, "bound", time.Minute)
		freed, _, err = s.Release(ctx, unbound)
		require.NoError(t, err)
		require.False(t, freed)
	})
}

// A session that has expired stays dead: neither its renewal nor a late copy of the
// statement that began it revives it.
func TestDeadSessionStaysDead(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, 100*time.Millisecond)
		require.NoError(t, err)
		_, err = s.BeginSession(ctx, id, 200*time.Millisecond)
		require.NoError(t, err, "a copy of the statement, while it is alive")
		c := granted(t, s, "x", 100*time.Millisecond)
		_, _, err = s.Renew(ctx, []Claim{c}, 100*time.Millisecond, 0, id)
		require.NoError(t, err)
		time.Sleep(300 * time.Millisecond)
		_, err = s.RenewSession(ctx, id, time.Minute)
		require.ErrorIs(t, err, ErrSessionDead)
		_, err = s.BeginSession(ctx, id, time.Minute)
		require.ErrorIs(t, err, ErrSessionDead)

		// The next one is not affected by statements of the first.
		_, err = s.BeginSession(ctx, id+1, time.Minute)
		require.NoError(t, err)
		_, err = s.BeginSession(ctx, id, time.Minute)
		require.ErrorIs(t, err, ErrSessionDead)
		require.NoError(t, s.EndSession(ctx, id))
		_, err = s.RenewSession(ctx, id+1, time.Minute)
		require.NoError(t, err)
	})
}

// requireDead requires that no clock revives a session: not even one that is set back to when
// the session was alive.
func (s *Store) requireDead(t *testing.T, id SessionID) {
	t.Helper()
	err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, "SET timestamp = UNIX_TIMESTAMP(NOW(6)) - 10")
		require.NoError(t, err)
		defer conn.ExecContext(ctx, "SET timestamp = DEFAULT")
		r, err := s.execForAnswer(ctx, conn, s.command("renew_session", "id", id.String(), "lease", micros(time.Minute)))
		require.Zero(t, r.answer)
		return err
	})
	require.NoError(t, err)
}

// A contender takes a lock of a dead session for good: no clock revives the session, and the
// row is not bound to it any more.
func TestTakeoverIsFinal(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s := all[0]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, 100*time.Millisecond)
		require.NoError(t, err)
		for _, name := range []string{"x", "y", "z"} {
			c := granted(t, s, name, 100*time.Millisecond)
			_, _, err = s.Renew(ctx, []Claim{c}, 100*time.Millisecond, 0, id)
			require.NoError(t, err)
		}
		time.Sleep(300 * time.Millisecond)
		for _, other := range all[1:] { // the second finds the session dead
			granted(t, other, "x", 50*time.Millisecond)
			g, err := other.Acquire(ctx, AcquireRequest{Claim: Claim{"y", NewOwnerID(other.self)}, Lease: 50 * time.Millisecond, EnlistAs: other.self})
			require.NoError(t, err)
			require.NotZero(t, g.Token)
			err = other.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
				r, err := other.withSessionCheck(ctx, conn, AcquireRequest{Claim: Claim{"z", NewOwnerID(other.self)}, Lease: 50 * time.Millisecond}, other.takeUnlocked)
				require.True(t, isToken(r.answer), r.answer)
				return err
			})
			require.NoError(t, err)
			var bound int
			require.NoError(t, other.db.Get(&bound, "SELECT COUNT(*) FROM mysqllock WHERE name > x'01' AND session <> 0"))
			require.Zero(t, bound)
			_, err = other.db.Exec("UPDATE mysqllock SET session = " + id.String() + " WHERE name > x'01'") // as before
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		s.requireDead(t, id)
	})
}

// A waiter that joins the wait queue does not take a row that a session keeps.
func TestBoundRowIsNotTakenByAWaiter(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		c := granted(t, s, "x", 100*time.Millisecond)
		_, _, err = s.Renew(ctx, []Claim{c}, 100*time.Millisecond, 0, id)
		require.NoError(t, err)
		time.Sleep(300 * time.Millisecond)
		for range 2 {
			g, err := other.Acquire(ctx, AcquireRequest{Claim: Claim{"x", NewOwnerID(other.self)}, Lease: time.Minute, EnlistAs: other.self})
			require.NoError(t, err)
			require.Zero(t, g.Token)
			require.Greater(t, g.Remaining, 50*time.Second)
		}
		freed, next, err := s.Release(ctx, c)
		require.NoError(t, err)
		require.True(t, freed)
		require.Equal(t, other.self, next)
	})
}

// A statement that binds a row to an earlier session, and arrives late, changes nothing.
func TestLateBinding(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		c := granted(t, s, "x", time.Second)
		_, err := s.BeginSession(ctx, id+1, time.Minute)
		require.NoError(t, err)
		for _, session := range []SessionID{id + 1, id, 0} {
			_, _, err = s.Renew(ctx, []Claim{c}, time.Second, 0, session)
			require.NoError(t, err)
			_, _, err = s.Extend(ctx, c, time.Second, 0, session)
			require.NoError(t, err)
		}
		time.Sleep(1500 * time.Millisecond)
		require.Greater(t, refused(t, other, "x").Remaining, 50*time.Second)
	})
}

// A proxy may send a statement twice. A copy of an acquire that arrives after the row was
// bound leaves it bound and does not shorten its lease, and one that began a session does not
// shorten it.
func TestCopiesAfterTheBinding(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Hour)
		require.NoError(t, err)
		_, err = s.BeginSession(ctx, id, time.Second)
		require.NoError(t, err)
		var left int
		require.NoError(t, s.db.Get(&left, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), expires_at) FROM mysqllock WHERE name = "+s.sessionRow))
		require.Greater(t, left, 3000)
		for name, send := range map[string]acquirer{"take": s.take, "enlist": s.take, "unlocked": s.takeUnlocked, "replace": s.take} {
			granted(t, s, name, time.Nanosecond)
			b := AcquireRequest{Claim: Claim{name, NewOwnerID(s.self)}, Lease: time.Minute}
			switch name {
			case "enlist":
				b.EnlistAs = s.self
			case "replace":
				b.Replaces = granted(t, s, name, time.Minute).Owner
			}
			err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
				for range 2 {
					r, err := send(ctx, conn, b)
					require.NoError(t, err)
					require.True(t, isToken(r.answer), "%s: %d", name, r.answer)
					_, _, err = s.Renew(ctx, []Claim{b.Claim}, time.Hour, 0, id)
					require.NoError(t, err)
				}
				r, err := send(ctx, conn, b)
				require.True(t, isToken(r.answer), "%s: %d", name, r.answer)
				return err
			})
			require.NoError(t, err)
			n, err := s.CountBound(ctx, id)
			require.NoError(t, err)
			claims, _, err := s.Bound(ctx, id)
			require.NoError(t, err)
			require.Len(t, claims, n)
			require.Contains(t, claims, b.Claim, name)
			rows, _, err := s.Look(ctx, []string{name})
			require.NoError(t, err)
			require.Greater(t, rows[name].Lease, 50*time.Minute, name)
		}
	})
}

// A contender marks a session dead only by the database's clock: if that was set back since
// the look, the session is alive.
func TestClockSetBackBeforeATakeover(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, 100*time.Millisecond)
		require.NoError(t, err)
		c := granted(t, s, "x", 100*time.Millisecond)
		_, _, err = s.Renew(ctx, []Claim{c}, 100*time.Millisecond, 0, id)
		require.NoError(t, err)
		time.Sleep(300 * time.Millisecond)
		mark := func(offset string) (marked int64) {
			err := other.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
				_, err = conn.ExecContext(ctx, "SET timestamp = UNIX_TIMESTAMP(NOW(6)) "+offset)
				require.NoError(t, err)
				defer conn.ExecContext(ctx, "SET timestamp = DEFAULT")
				r, err := other.execForAnswer(ctx, conn, other.command("mark_dead", "keeper", s.sessionRow, "id", id.String()))
				marked = r.answer
				return err
			})
			require.NoError(t, err)
			return marked
		}
		require.Zero(t, mark("- 10"))
		require.EqualValues(t, 1, mark("+ 0"))

		// Once it is marked, no clock revives it.
		s.requireDead(t, id)
	})
}

// A renewal does not wait for a locked row, and is not taken for a loss.
func TestSessionRowLocked(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		tx, err := other.db.BeginTxx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock WHERE name = " + s.sessionRow + " FOR UPDATE")
		require.NoError(t, err)
		start := time.Now()
		_, err = s.RenewSession(ctx, id, time.Minute)
		require.ErrorIs(t, err, ErrRowLocked)
		require.Less(t, time.Since(start), 10*time.Second, "the server's timeout is 50 s")
	})
}

// A forced release is reported once, by the renewal or by the listener, whichever is first.
func TestForcedReleaseIsReported(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		for _, name := range []string{"x", "y", "z"} {
			granted(t, s, name, time.Minute)
		}
		force := func(name string) {
			owner, _, err := other.ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.NotEmpty(t, owner)
		}
		force("x") // before there is a session
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		for i := range 4 {
			if i == 2 {
				force("y")
			}
			r, err := s.RenewSession(ctx, id, time.Minute)
			require.NoError(t, err)
			require.Equal(t, i%2 == 0, r.Forced, i)
			require.False(t, r.Moved)
		}
		granted(t, other, "held", time.Minute)
		_, err = s.Acquire(ctx, AcquireRequest{Claim: Claim{"held", NewOwnerID(s.self)}, Lease: time.Minute, EnlistAs: s.self})
		require.NoError(t, err)
		force("z")
		start := time.Now()
		h, err := s.Listen(ctx, []string{"held"}, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, Wakeup{Forced: true}, h)
		require.Less(t, time.Since(start), 15*time.Second, "at once")
		h, err = s.Listen(ctx, []string{"held"}, 10*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, Wakeup{}, h)
		s.CloseListener()
	})
}

// ForceUnlock in a session without autocommit does not lock the session of the holder, and
// neither do the statements that end or delete sessions.
func TestSessionStatementsWithoutAutocommit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		for _, b := range []struct {
			s  *Store
			id SessionID
		}{{s, s.self.FirstSession()}, {other, other.self.FirstSession()}} {
			_, err := b.s.BeginSession(ctx, b.id, time.Minute)
			require.NoError(t, err)
		}
		err := other.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, "SET autocommit = 0")
			return err
		})
		require.NoError(t, err)
		require.ErrorIs(t, other.markForced(ctx, s.self), ErrAutocommit)
		require.NoError(t, other.EndSession(ctx, other.self.FirstSession()))
		var locked int
		require.NoError(t, s.db.Get(&locked, "SELECT 2 - COUNT(*) FROM (SELECT name FROM mysqllock WHERE name BETWEEN x'00' AND x'01' FOR UPDATE SKIP LOCKED) AS free"))
		require.Zero(t, locked)
		_, err = s.RenewSession(ctx, s.self.FirstSession(), time.Minute)
		require.NoError(t, err)
	})
}
