package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// admitOnly sends the first statement of a shared request, which must be admitted.
func admitOnly(t *testing.T, s *Store, req AcquireRequest) {
	t.Helper()
	require.NoError(t, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		r, err := s.admit(ctx, conn, req, "")
		require.EqualValues(t, answerAdmitted, r.answer)
		return err
	}))
}

// joinOnly sends the second statement of a shared request.
func joinOnly(s *Store, req AcquireRequest) (answer int64, err error) {
	c := Claim{Owner: req.Owner}
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err := s.join(req, &c, s.query("fragments/in_phase"), "h.token", s.query("fragments/now"), lockInShareMode, func(join command) (reply, error) {
			return s.execForAnswer(ctx, conn, join)
		})
		answer = r.answer
		return err
	})
	return answer, err
}

// A shared request that was admitted joins nothing if the name was claimed since, or if Purge has
// ended the phase.
func TestJoinAfterAChange(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		for name, change := range map[string]func(){
			"claimed": func() {
				g, _ := acquired(t, other, request(other, "claimed", Exclusive))
				require.True(t, g.Claimed)
			},
			"purged": func() { require.NoError(t, other.endPhases(ctx, 0)) },
		} {
			b := shared(t, other, name)
			if name == "purged" {
				freed(t, other, b.Claim)
			}
			req := request(s, name, Shared)
			admitOnly(t, s, req)
			change()
			answer, err := joinOnly(s, req)
			require.NoError(t, err)
			require.Zero(t, answer, name)
		}

		// It waits for a claim that is not committed.
		setIsolation(t, s, "READ COMMITTED")
		req := request(s, "x", Shared)
		freed(t, s, shared(t, s, "x").Claim)
		admitOnly(t, s, req)
		tx, err := other.db.Beginx()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET owner = 'claimed' WHERE name = 'x'")
		require.NoError(t, err)
		answers := make(chan int64, 1)
		go func() {
			answer, err := joinOnly(s, req)
			assert.NoError(t, err)
			answers <- answer
		}()
		select {
		case <-answers:
			require.Fail(t, "it did not wait")
		case <-time.After(200 * time.Millisecond):
		}
		require.NoError(t, tx.Commit())
		require.Zero(t, <-answers)
	})
}

// A process that wrongly takes a name for one that may be held shared acquires it as any other.
func TestClaimOfAPlainName(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		before, _ := acquired(t, other, request(other, "x", Exclusive))
		tx := guarded(t, other, before)
		freed(t, other, before.Claim)
		acquire := func(req AcquireRequest) Grant {
			s.sharedNames.set("x", true)
			g, _ := acquired(t, s, req)
			return g
		}
		s.db.SetMaxOpenConns(3) // has no slots
		req := request(s, "x", Exclusive)
		req.Claimed = true // but its claim has ended
		require.True(t, acquire(req).Locked)
		req.Claimed = false
		require.NoError(t, tx.Commit())
		s.db.SetMaxOpenConns(0)
		g := acquire(req)
		require.GreaterOrEqual(t, g.Token, before.Token+TokenRange)
		require.Equal(t, g.Token, acquire(req).Token, "a copy")
		freed(t, s, req.Claim)
		req.Claimed = true
		require.Zero(t, acquire(req).Token, "a copy that is executed after the release")
		rows, _, err := s.Look(ctx, []string{"x"})
		require.NoError(t, err)
		require.Negative(t, rows["x"].Remaining)
	})
}

// A request that must not keep a claim releases it if a guard is open, and signals the next.
func TestClaimThatIsAbandoned(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, writer, other := all[0], all[1], all[2]
		g := shared(t, s, "x")
		guarded(t, s, g)
		brief := func(q *Store, enlistAs Process) Grant {
			req := request(q, "x", Exclusive)
			req.MayClaim, req.EnlistAs = false, enlistAs
			g, _ := acquired(t, q, req)
			require.Zero(t, g.Token)
			require.False(t, g.Claimed)
			return g
		}
		brief(writer, writer.self.Polling()) // the name is reserved for it for a while
		brief(other, other.self)
		freed(t, s, g.Claim)
		woken := make(chan Wakeup, 1)
		go func() {
			w, err := other.Listen(ctx, []string{"x"}, 3*time.Second)
			assert.NoError(t, err)
			woken <- w
		}()
		require.Eventually(t, func() bool {
			alive, err := writer.Signal(ctx, other.self)
			return err == nil && alive
		}, 10*time.Second, 10*time.Millisecond)
		<-woken
		go func() {
			w, err := other.Listen(ctx, []string{"x"}, 5*time.Second)
			assert.NoError(t, err)
			woken <- w
		}()
		time.Sleep(200 * time.Millisecond) // it listens
		require.True(t, brief(writer, 0).Locked)
		require.NotZero(t, <-woken)
		require.Equal(t, g.Token, shared(t, other, "x").Token)
	})
}

// A claim must be released after an error, even one that proves that the statement changed
// nothing: an earlier statement has claimed the name.
func TestClaimWithAnError(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		g := shared(t, s, "x")
		req := request(other, "x", Exclusive)
		freed(t, s, g.Claim)
		_, err := s.db.Exec("UPDATE mysqllock SET token = 18446744073709551615 WHERE name = 'x'") // there is no later one
		require.NoError(t, err)
		_, err = other.Acquire(ctx, req)
		require.EqualValues(t, 1690, errorNumber(err), "%v", err)
		require.True(t, OutcomeUnknown(err))
		freed(t, other, req.Claim)
	})
}

// A shared hold that was extended, or bound to a session, since it was read is not ended, nor one
// whose session was renewed.
func TestEndOfASharedHold(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		id := s.self.FirstSession()
		_, err := s.BeginSession(ctx, id, time.Minute)
		require.NoError(t, err)
		for name, bind := range map[string]SessionID{"extended": 0, "bound": id, "renewed": id} {
			req := request(s, name, Shared)
			req.Lease = time.Microsecond
			g, _ := acquired(t, s, req)
			lease := time.Minute
			if bind != 0 {
				lease = time.Microsecond
			}
			owned, _, _, err := extend(s, g.Claim, lease, bind)
			require.NoError(t, err)
			require.True(t, owned)
			time.Sleep(time.Millisecond)
			read := sharedHold{Name: g.Claim.Name, Owner: g.Claim.Owner}
			if name == "renewed" {
				read.Session = id
			}
			var left time.Duration
			require.NoError(t, other.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
				left, err = other.endShared(ctx, conn, new(AcquireRequest), read)
				return err
			}))
			require.Positive(t, left, name)
			require.Equal(t, g.Claim.Owner, ownerOf(t, s, g.Claim.Name))
		}
	})
}

// A handoff does not replace the owner of a name that may be held shared: a late copy of an old
// claim may have restored it.
func TestReplacementBesideSharedHolds(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		freed(t, s, granted(t, s, "warm", time.Minute))
		shared(t, s, "x")
		owner := NewOwnerID(s.self)
		_, err := s.db.Exec("UPDATE mysqllock SET owner = ? WHERE name = 'x'", owner)
		require.NoError(t, err)
		for _, limit := range []int{0, 3} { // with and without slots
			s.db.SetMaxOpenConns(limit)
			req := request(s, "x", Exclusive)
			req.Replaces = owner
			g, err := s.Acquire(ctx, req)
			if err != nil {
				require.ErrorIs(t, err, ErrRowLocked)
			}
			require.Zero(t, g.Token)
			require.Equal(t, owner, ownerOf(t, s, "x"))
		}
	})
}

// A handoff replaces the owner of a row, and only with the token that it expects, whether or not
// its statement may wait for the row.
func TestReplacement(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		for what, send := range map[string]acquirer{"may wait": s.take, "must not wait": s.takeUnlocked} {
			for _, withToken := range []bool{false, true} {
				name := fmt.Sprint(what, withToken)
				first, _ := acquired(t, s, request(s, name, Exclusive))
				req := request(s, name, Exclusive)
				req.Replaces = first.Claim.Owner
				if withToken {
					req.Replaced = first.Token
				}
				require.NoError(t, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
					r, err := send(ctx, conn, req)
					require.NoError(t, err)
					require.Greater(t, uint64(r.answer), first.Token)
					require.Equal(t, req.Owner, ownerOf(t, s, name))

					late := request(s, name, Exclusive)
					late.Replaces, late.Replaced = req.Owner, first.Token
					r, _ = send(ctx, conn, late)
					require.False(t, isToken(r.answer))
					require.Equal(t, req.Owner, ownerOf(t, s, name))
					return nil
				}))
			}
		}
	})
}

// A downgrade that is refused leaves no shared hold behind.
func TestRefusedDowngrade(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		g, _ := acquired(t, s, request(s, "x", Exclusive))
		tx := guarded(t, s, g)
		_, _, err := s.Downgrade(ctx, g.Claim, request(s, "x", Shared))
		require.ErrorIs(t, err, ErrRowLocked)
		require.NoError(t, tx.Commit())
		freed(t, s, g.Claim)
		next, _ := acquired(t, other, request(other, "x", Exclusive))
		require.NotZero(t, next.Token)
	})
}

// From its first statement on, a claim keeps other requests out.
func TestClaimKeepsOthersOut(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		freed(t, other, shared(t, other, "x").Claim)
		require.NoError(t, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			r, err := s.execForAnswer(ctx, conn, s.claimCommand(request(s, "x", Exclusive), "claim", ""))
			require.EqualValues(t, int64(answerClaimed), r.answer)
			return err
		}))
		for _, m := range []Mode{Shared, Exclusive} {
			g, _ := acquired(t, other, request(other, "x", m))
			require.Zero(t, g.Token)
			require.False(t, g.Claimed)
		}
	})
}

// A process that was paused after its claim claims the name again if Purge has ended the phase.
func TestClaimAfterPurge(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, writer := all[0], all[1]
		a := shared(t, s, "x")
		req := request(writer, "x", Exclusive)
		g, _ := acquired(t, writer, req)
		require.True(t, g.Claimed)
		freed(t, s, a.Claim)
		_, err := s.db.Exec("UPDATE mysqllock SET expires_at = '2000-01-01' WHERE name = 'x'")
		require.NoError(t, err)
		require.NoError(t, s.endPhases(ctx, 0))
		req.Claimed = true
		g, _ = acquired(t, writer, req)
		require.GreaterOrEqual(t, g.Token, a.Token+TokenRange)
		require.Positive(t, refused(t, s, "x").Remaining)
	})
}

// A shared hold whose process has another row already, but not that of the name, gets one.
func TestFirstSharedHoldBesideItsRow(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		a := shared(t, s, "x")
		_, err := s.db.Exec("DELETE FROM mysqllock WHERE name = 'x'")
		require.NoError(t, err)
		b := shared(t, s, "x")
		require.NotEqual(t, a.Claim.Name, b.Claim.Name)
		require.Equal(t, a.Claim.Owner, ownerOf(t, s, a.Claim.Name))
	})
}

// First grants of all modes wait for Purge, at READ COMMITTED too.
func TestFirstGrantsWaitForPurge(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		setIsolation(t, s, "READ COMMITTED")
		freed(t, s, granted(t, s, "warm", time.Minute))
		for name, acquire := range map[string]func() uint64{
			"shared": func() uint64 {
				g, err := s.Acquire(ctx, request(s, "shared", Shared))
				assert.NoError(t, err)
				return g.Token
			},
			"batch": func() uint64 {
				g, err := s.AcquireAll(ctx, BatchRequest{Names: []string{"a", "b"}, Owner: NewOwnerID(s.self), Lease: time.Minute})
				assert.NoError(t, err)
				return g.Token
			},
		} {
			tx, err := other.db.Beginx()
			require.NoError(t, err)
			defer tx.Rollback()
			var token uint64
			require.NoError(t, tx.Get(&token, "SELECT token FROM mysqllock WHERE name = '' FOR UPDATE"))
			tokens := make(chan uint64, 1)
			go func() { tokens <- acquire() }()
			select {
			case <-tokens:
				require.Fail(t, "it did not wait", name)
			case <-time.After(300 * time.Millisecond):
			}
			token = max(token, uint64(time.Now().Add(time.Hour).UnixMicro())) + 1
			_, err = tx.Exec("UPDATE mysqllock SET token = ? WHERE name = ''", token)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			require.Greater(t, <-tokens, token, name)
		}
	})
}

// Statements of all modes do nothing in a session without autocommit.
func TestStatementsWithoutAutocommit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		names := []string{"a", "b"}
		for _, name := range names {
			freed(t, s, granted(t, s, name, time.Minute))
		}
		batch := BatchRequest{Names: names, Owner: NewOwnerID(s.self), Lease: time.Minute}
		a, held := shared(t, s, "x"), granted(t, s, "held", time.Minute)
		claim := request(s, "claimed", Exclusive)
		freed(t, other, shared(t, other, "claimed").Claim)
		_, err := other.db.Exec("UPDATE mysqllock SET owner = ? WHERE name = 'claimed'", claim.Owner)
		require.NoError(t, err)
		permit := request(s, QueueName(Permit, "x"), Permit)
		first := request(s, "new", Shared)
		joins := request(s, "x", Shared)
		for what, c := range map[string]command{
			"admit":             s.sharedCommand(joins, joins.Claim, "admit", "skip", "", "r", "p."),
			"join":              s.sharedCommand(joins, Claim{sharedKey("x", s.self, 7), joins.Owner}, "join", "condition", s.query("fragments/in_phase"), "token", "h.token", "acquired", s.query("fragments/now"), "lock", lockInShareMode),
			"insert_shared":     s.sharedCommand(first, Claim{sharedKey("new", s.self, 0), first.Owner}, "insert_shared"),
			"claim":             s.claimCommand(request(s, "x", Exclusive), "claim", ""),
			"promote":           s.claimCommand(claim, "promote", ""),
			"release_part":      s.releaseCommand(a.Claim),
			"prepare_downgrade": s.command("prepare_downgrade", "name", literal("held"), "owner", literal(held.Owner), "skip", ""),
			"join_semaphore":    s.acquireCommand(permit, "join_semaphore", s.name+"."),
			"take_all":          s.batchCommand("take_all", batch.requests(2), names),
			"insert_all":        s.batchCommand("insert_all", BatchRequest{Names: []string{"c", "d"}, Owner: batch.Owner, Lease: time.Minute}.requests(2), nil),
		} {
			require.NoError(t, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
				for _, on := range []int{0, 1} {
					if on == 1 {
						res, err := conn.ExecContext(ctx, c.text())
						require.NoError(t, err, what)
						rows, err := res.RowsAffected()
						require.NoError(t, err)
						answer, err := res.LastInsertId()
						require.NoError(t, err)
						require.Zero(t, rows, what)
						require.Zero(t, answer, what)
					}
					if _, err := conn.ExecContext(ctx, fmt.Sprint("SET autocommit = ", on)); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	})
}
