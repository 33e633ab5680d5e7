package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A release of a permit locks the row of the wait queue first, like every statement that locks
// both, and waits for a process that joins the queue.
func TestReleaseOfAPartWaitsForItsQueue(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		granted(t, s, QueueName(Permit, "x"), time.Minute)
		c := granted(t, s, SlotKey("x", 7), time.Minute)
		tx, err := other.db.BeginTxx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET waiters = '" + other.self.String() + "' WHERE name = " + literal(QueueOf(c.Name)))
		require.NoError(t, err)
		released := make(chan Process, 1)
		go func() {
			_, next, _ := s.Release(ctx, c)
			released <- next
		}()
		select {
		case <-released:
			require.Fail(t, "it did not wait")
		case <-time.After(200 * time.Millisecond):
		}
		var name string
		require.NoError(t, other.db.Get(&name, "SELECT name FROM mysqllock WHERE name = "+literal(c.Name)+" FOR UPDATE SKIP LOCKED"))
		require.NoError(t, tx.Commit())
		require.Equal(t, other.self, <-released)
	})
}

// A release of a permit keeps the row of the wait queue locked until it is committed, at every
// isolation level: a process that joins meanwhile would find the permit held.
func TestReleaseOfAPartKeepsItsQueueLocked(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		queue := QueueName(Permit, "x")
		granted(t, s, queue, time.Minute)
		s.HoldEnded() // so that no connection is reserved
		for i, level := range []string{"REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE"} {
			setIsolation(t, s, level)
			c := granted(t, s, SlotKey("x", i+1), time.Minute)
			tx, err := other.db.BeginTxx(ctx, nil)
			require.NoError(t, err)
			defer tx.Rollback()
			_, err = tx.Exec("SELECT name FROM mysqllock WHERE name = " + literal(c.Name) + " FOR UPDATE")
			require.NoError(t, err)
			released := make(chan error, 1)
			go func() {
				_, _, err := s.Release(ctx, c)
				released <- err
			}()
			require.Eventually(t, func() bool {
				var free int
				err := other.db.Get(&free, "SELECT COUNT(*) FROM (SELECT name FROM mysqllock WHERE name = "+literal(queue)+" FOR UPDATE SKIP LOCKED) AS free")
				return assert.NoError(t, err) && free == 0
			}, 5*time.Second, 10*time.Millisecond, level)
			require.NoError(t, tx.Commit())
			require.NoError(t, <-released)
			s.HoldEnded()
		}
	})
}

// tryPermit requests a permit for the semaphore x.
func tryPermit(s *Store, limit int, lease time.Duration, enlistAs Process) (Grant, error) {
	c := Claim{QueueName(Permit, "x"), NewOwnerID(s.self)}
	return s.Acquire(ctx, AcquireRequest{Claim: c, Mode: Permit, Limit: limit, Lease: lease, EnlistAs: enlistAs})
}

// takePermit acquires a permit, which must be free.
func takePermit(t *testing.T, s *Store, limit int, lease time.Duration) Grant {
	t.Helper()
	g, err := tryPermit(s, limit, lease, 0)
	require.NoError(t, err)
	require.NotZero(t, g.Token, "%+v", g)
	return g
}

// A permitCrowd is processes that acquire permits of the semaphore x and hold them for a moment.
type permitCrowd struct {
	t       *testing.T
	mu      sync.Mutex // protects following fields
	held    map[string]Claim
	most    int // held at the same time
	granted int
}

// try requests a permit, holds it for a moment, and reports whether it was granted. It checks
// that no slot is granted twice, and that not as many permits as the limit were held all the
// time.
func (c *permitCrowd) try(s *Store, limit int, enlistAs Process) (next Process, ok bool) {
	c.mu.Lock()
	before := maps.Clone(c.held)
	c.mu.Unlock()
	asked := time.Now()
	g, err := tryPermit(s, limit, time.Minute, enlistAs)
	if Contended(err) {
		return 0, false
	}
	if !assert.NoError(c.t, err) || g.Token == 0 {
		return g.Next, false
	}
	c.mu.Lock()
	maps.DeleteFunc(before, func(slot string, was Claim) bool { return c.held[slot] != was })
	assert.Less(c.t, len(before), limit)
	assert.NotContains(c.t, c.held, g.Claim.Name)
	assert.LessOrEqual(c.t, SlotOf(g.Claim.Name), limit)
	c.held[g.Claim.Name] = g.Claim
	c.most = max(c.most, len(c.held))
	c.granted++
	c.mu.Unlock()
	if g.Next != 0 {
		s.Signal(ctx, g.Next)
	}
	// On a busy machine too, permits are held for long enough that others are granted meanwhile.
	time.Sleep(time.Since(asked) + time.Duration(rand.IntN(4000))*time.Microsecond)
	c.mu.Lock()
	delete(c.held, g.Claim.Name)
	c.mu.Unlock()
	for {
		var freed bool
		freed, next, err = s.Release(ctx, g.Claim)
		if err == nil {
			assert.True(c.t, freed)
			break
		}
		if !assert.True(c.t, Contended(err), err) {
			break
		}
	}
	s.HoldEnded()
	return next, true
}

// A crowd reaches the limit and does not exceed it, at every isolation level. If the processes
// disagree, none gets a permit while as many as its own limit are held.
func TestCrowdOfPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(8)
		for name, limits := range map[string][]int{"agree": {3}, "disagree": {4, 4, 4, 2}} {
			for _, level := range []string{"REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE"} {
				for _, s := range all {
					setIsolation(t, s, level)
				}
				c := permitCrowd{t: t, held: map[string]Claim{}}
				var wg sync.WaitGroup
				start := time.Now()
				going := func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					took := time.Since(start)
					return took < 300*time.Millisecond || c.most < limits[0] && took < 20*time.Second
				}
				for i, s := range all {
					wg.Go(func() {
						limit := limits[i%len(limits)]
						for going() {
							c.try(s, limit, 0)
							time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
						}
					})
				}
				wg.Wait()
				require.Equal(t, limits[0], c.most, "%s, %s", name, level)
				t.Logf("%s, %s: %d permits", name, level, c.granted)
			}
		}
	})
}

// setIsolation sets the isolation level of a pool that then has no further connections.
func setIsolation(t *testing.T, s *Store, level string) {
	t.Helper()
	const most = 4
	s.db.SetMaxOpenConns(most)
	s.db.SetMaxIdleConns(most)
	var conns [most]*sqlx.Conn
	for i := range conns {
		conn, err := s.db.Connx(ctx)
		require.NoError(t, err)
		_, err = conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL "+level)
		require.NoError(t, err)
		conns[i] = conn
	}
	for _, conn := range conns {
		conn.Close()
	}
}

// No process that waits for a permit sleeps while a slot is free that it may take: it is
// signalled, or finds the slot before it sleeps.
func TestWakeUpsForPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(6)
		for _, level := range []string{"REPEATABLE READ", "READ COMMITTED"} {
			c := permitCrowd{t: t, held: map[string]Claim{}}
			var lost, late atomic.Int32 // late waits behind a head that is late
			var wg sync.WaitGroup
			start := time.Now()
			for _, s := range all {
				setIsolation(t, s, level)
			}
			for _, s := range all {
				s.db.SetMaxOpenConns(8) // one to listen; the others are as they were
				wg.Go(func() {
					defer s.CloseListener()
					for range 15 {
						for {
							next, ok := c.try(s, 2, s.self)
							if next != 0 {
								s.Signal(ctx, next)
							}
							if ok {
								break
							}
							w, err := s.Listen(ctx, []string{QueueName(Permit, "x")}, 2*time.Second)
							assert.NoError(t, err)
							if err == nil && w == (Wakeup{}) {
								rows, _, err := s.Look(ctx, []string{QueueName(Permit, "x")})
								assert.NoError(t, err)
								if is := rows[QueueName(Permit, "x")]; is.Next == s.self {
									lost.Add(1)
								} else {
									late.Add(1)
								}
							}
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%s: %d permits in %v, %d statements, %d late", level, c.granted, time.Since(start), statementsOf(all), late.Load())
			require.Zero(t, lost.Load(), level)
			require.Equal(t, 2, c.most)
		}
	})
}

func statementsOf(all []*Store) (n int64) {
	for _, s := range all {
		n += s.Statements()
	}
	return n
}

// A transaction under Guard blocks the slot of its permit, and no other: requests pass over it
// and do not wait in the server.
func TestGuardOfAPermit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		g := takePermit(t, s, 2, 100*time.Millisecond)
		tx, err := s.db.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, s.Guard(ctx, tx, g.Claim, g.Token))
		time.Sleep(200 * time.Millisecond)
		require.NotEqual(t, g.Claim.Name, takePermit(t, other, 2, time.Minute).Claim.Name)
		brief, cancel := context.WithTimeout(ctx, 10*time.Second) // the server's timeout is 50 s
		defer cancel()
		c := Claim{QueueName(Permit, "x"), NewOwnerID(other.self)}
		refused, err := other.Acquire(brief, AcquireRequest{Claim: c, Mode: Permit, Limit: 2, Lease: time.Minute, EnlistAs: other.self})
		require.NoError(t, err)
		require.Zero(t, refused.Token)
		require.True(t, refused.Locked)
		require.NoError(t, tx.Commit())
		require.Equal(t, g.Claim.Name, takePermit(t, other, 2, time.Minute).Claim.Name)
		tx, err = s.db.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		require.ErrorIs(t, s.Guard(ctx, tx, g.Claim, g.Token), ErrNotOwned)
	})
}

// A permit costs two statements, and one for which the process waited one or two more.
func TestStatementsOfPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		s, waiter, second := all[0], all[1], all[2]
		for _, s := range all {
			granted(t, s, "settings of "+s.self.String(), time.Minute) // read once
			s.HoldEnded()
		}
		cost := func(want int64, s *Store, what string, fn func() error) {
			t.Helper()
			before := s.Statements()
			require.NoError(t, fn())
			require.Equal(t, want, s.Statements()-before, what)
		}
		var g [3]Grant
		take := func(s *Store, g *Grant) func() error {
			return func() (err error) {
				*g, err = tryPermit(s, 2, time.Minute, 0)
				require.NotZero(t, g.Token)
				return err
			}
		}
		release := func(s *Store, g Grant) func() error {
			return func() error {
				_, _, err := s.Release(ctx, g.Claim)
				return err
			}
		}
		try := func(s *Store) func() error {
			return func() error {
				g, err := tryPermit(s, 2, time.Minute, s.self)
				require.Zero(t, g.Token)
				return err
			}
		}
		cost(2, s, "new semaphore", take(s, &g[0]))
		cost(2, s, "new slot", take(s, &g[1]))
		cost(1, s, "refused", func() error { _, err := tryPermit(s, 2, time.Minute, 0); return err })
		cost(1, s, "release", release(s, g[0]))
		cost(2, s, "slot with a row", take(s, &g[0]))
		cost(3, waiter, "refused, and joins", try(waiter))
		cost(1, waiter, "refused, and is listed", try(waiter))
		cost(3, second, "refused, and joins", try(second))
		cost(1, s, "release for a waiter", release(s, g[0]))
		cost(4, waiter, "granted, and another waits", take(waiter, &g[0]))
		cost(1, s, "release for a waiter", release(s, g[1]))
		cost(3, second, "granted to the last waiter", take(second, &g[1]))
		cost(2, s, "two permits", func() error {
			_, _, err := s.ReleaseAll(ctx, []Claim{g[0].Claim, g[1].Claim})
			return err
		})
	})
}

// Requests see which slots are held and free at the ends of the words in which they are read.
func TestSlotsOfAWord(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		const limit = 130
		var held []Grant
		for range limit {
			held = append(held, takePermit(t, s, limit, time.Hour))
		}
		refused, err := tryPermit(s, limit, time.Hour, 0)
		require.NoError(t, err)
		require.Zero(t, refused.Token)
		slices.SortFunc(held, func(a, b Grant) int { return strings.Compare(a.Claim.Name, b.Claim.Name) })
		require.Equal(t, SlotKey("x", limit), held[limit-1].Claim.Name)
		for _, slot := range []int{1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130} {
			freed, _, err := s.Release(ctx, held[slot-1].Claim)
			require.NoError(t, err)
			require.True(t, freed)
			before := s.Statements()
			require.Equal(t, SlotKey("x", slot), takePermit(t, s, limit, time.Hour).Claim.Name)
			require.EqualValues(t, 2, s.Statements()-before)
		}
	})
}

// A semaphore of 10,000 slots can be read in time.
func TestManyPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		expires := func(live int) {
			var rows []string
			for i := 1; i <= MaxPermits; i++ {
				left := 3600
				if i > live {
					left = -3600
				}
				rows = append(rows, fmt.Sprintf("(%s, %d, '%s', UTC_TIMESTAMP(6) + INTERVAL %d SECOND)", literal(SlotKey("x", i)), i, NewOwnerID(s.self), left))
			}
			for part := range slices.Chunk(rows, 1000) {
				_, err := s.db.Exec("INSERT INTO mysqllock (name, token, owner, expires_at) VALUES " + strings.Join(part, ",") + " ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at), released_at = '1970-01-01'")
				require.NoError(t, err)
			}
		}
		measure := func(what string) {
			var times []time.Duration
			for range 9 {
				start := time.Now()
				g, err := tryPermit(s, MaxPermits, time.Microsecond, 0)
				times = append(times, time.Since(start))
				require.NoError(t, err)
				if g.Token > 0 {
					s.HoldEnded()
				}
			}
			slices.Sort(times)
			t.Logf("%s: least %v, median %v", what, times[0], times[len(times)/2])
		}
		for _, live := range []int{0, 500, 9999} {
			expires(live)
			g, err := tryPermit(s, MaxPermits, time.Microsecond, 0)
			require.NoError(t, err)
			require.Greater(t, SlotOf(g.Claim.Name), live, "%+v", g)
			measure(fmt.Sprintf("%d of 10,000 are held", live))
		}
		expires(MaxPermits)
		measure("10,000 of 10,000 are held")
		_, err := s.db.Exec("DELETE FROM mysqllock WHERE name IN (" + literal(SlotKey("x", 777)) + "," + literal(SlotKey("x", 7_777)) + ")")
		require.NoError(t, err)
		slots := []int{SlotOf(takePermit(t, s, MaxPermits, time.Minute).Claim.Name), SlotOf(takePermit(t, s, MaxPermits, time.Minute).Claim.Name)}
		slices.Sort(slots)
		require.Equal(t, []int{777, 7_777}, slots)
		g, err := tryPermit(s, MaxPermits, time.Minute, 0)
		require.NoError(t, err)
		require.Zero(t, g.Token)
	})
}

// Operators see exclusive locks, each shared hold and each permit under the names that callers
// gave, and no rows that only have a wait queue.
func TestInfosOfParts(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		first := granted(t, s, sharedKey("a", s.self, 0), time.Hour)
		last := granted(t, other, sharedKey("a", other.self, 0), 2*time.Hour)
		granted(t, s, sharedKey("a", s.self, 1), time.Microsecond) // expired
		granted(t, other, "a", time.Hour)
		_, err := s.db.Exec("UPDATE mysqllock SET mode = 1, waiters = ? WHERE name = 'a'", other.self.String()) // a waiting request has claimed it
		require.NoError(t, err)
		granted(t, s, "b", time.Hour)
		permit := takePermit(t, s, 2, time.Hour)
		second := takePermit(t, other, 2, time.Hour)
		refused, err := tryPermit(s, 2, time.Hour, s.self)
		require.NoError(t, err)
		require.Zero(t, refused.Token)

		a, err := s.Inspect(ctx, "a")
		require.NoError(t, err)
		require.Len(t, a.Holders, 2)
		for i, c := range []Claim{first, last} {
			h := a.Holders[slices.IndexFunc(a.Holders, func(h Info) bool { return h.Owner == c.Owner })]
			require.Equal(t, "a", h.Name)
			require.True(t, h.Held && h.Shared)
			require.InDelta(t, time.Duration(i+1)*time.Hour, h.ExpiresIn, float64(time.Minute))
			require.Equal(t, "label", h.Holder)
		}
		require.True(t, a.Held && a.Shared)
		require.Empty(t, a.Owner)
		require.Equal(t, 1, a.Waiters)
		require.Equal(t, 2, a.Holds)
		require.InDelta(t, 2*time.Hour, a.ExpiresIn, float64(time.Minute))
		b, err := s.Inspect(ctx, "b")
		require.NoError(t, err)
		require.True(t, b.Held)
		require.False(t, b.Shared)
		require.Empty(t, b.Holders)
		missing, err := s.Inspect(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, Info{Name: "x"}, missing, "the semaphore is another")

		infos, err := s.List(ctx)
		require.NoError(t, err)
		var seen []string
		for _, i := range infos {
			seen = append(seen, fmt.Sprintf("%s %v %v %d %d", i.Name, i.Held, i.Shared, i.Slot, i.Waiters))
		}
		require.Equal(t, []string{"a true true 0 1", "a true true 0 1", "b true false 0 0", "x true false 1 1", "x true false 2 1"}, seen)

		permits, err := s.Permits(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, infos[3:], expiringAs(permits, infos[3:]))
		for _, g := range []Grant{permit, second} {
			i := permits[SlotOf(g.Claim.Name)-1]
			require.Equal(t, g.Claim.Owner, i.Owner)
			require.Equal(t, g.Token, i.Token)
		}
	})
}

// expiringAs returns infos with the times left of others, which were read at another moment.
func expiringAs(infos, others []Info) []Info {
	infos = slices.Clone(infos)
	for i := range min(len(infos), len(others)) {
		infos[i].ExpiresIn = others[i].ExpiresIn
	}
	return infos
}

// Purge deletes permits and wait queues like locks, but a wait queue only a month after its last
// use. Tokens of a slot rise after it.
func TestPurgeOfPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		free, kept := takePermit(t, s, 2, time.Minute), takePermit(t, s, 2, time.Hour)
		_, err := tryPermit(s, 2, time.Minute, s.self)
		require.NoError(t, err)
		_, next, err := s.Release(ctx, free.Claim)
		require.NoError(t, err)
		require.Equal(t, s.self, next)
		n, err := s.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.Greater(t, takePermit(t, s, 2, time.Minute).Token, free.Token)
		_, err = s.db.Exec("UPDATE mysqllock SET expires_at = expires_at - INTERVAL 31 DAY")
		require.NoError(t, err)
		n, err = s.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 3, n, "%v, a slot and the wait queue", kept.Claim)
	})
}

// permitRequest is a request for a permit of the semaphore x.
func permitRequest(s *Store, limit int) AcquireRequest {
	return AcquireRequest{Claim: Claim{QueueName(Permit, "x"), NewOwnerID(s.self)}, Mode: Permit, Limit: limit, Lease: time.Minute}
}

// A permit is given back if processes with a greater limit have taken others since the slots were
// read.
func TestPermitBeyondTheLimit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		freed(t, other, granted(t, other, SlotKey("x", 5), time.Minute)) // recently, its limit was greater
		req := permitRequest(s, 2)
		sem, err := s.readSemaphore(ctx, req, nil)
		require.NoError(t, err)
		require.NotZero(t, sem.slot)
		for _, slot := range []int{3, 4} {
			granted(t, other, SlotKey("x", slot), time.Minute)
		}
		g, err := s.takeSlot(ctx, req, sem)
		require.NoError(t, err)
		require.Zero(t, g.Token)
		rows, _, err := s.Look(ctx, []string{SlotKey("x", sem.slot)})
		require.NoError(t, err)
		require.Negative(t, rows[SlotKey("x", sem.slot)].Remaining)
	})
}

// All slots are read if processes disagree about the limit: those that are read first show too
// few permits.
func TestLimitsOfManySlots(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		const limit = firstSlots + 100
		freed(t, s, granted(t, s, "warm", time.Minute))
		var rows []string
		for i := firstSlots; i < firstSlots+limit; i++ {
			rows = append(rows, fmt.Sprintf("(%s, %d, '%s', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", literal(SlotKey("x", i)), i, NewOwnerID(s.self)))
		}
		_, err := s.db.Exec("INSERT INTO mysqllock (name, token, owner, expires_at) VALUES " + strings.Join(rows, ","))
		require.NoError(t, err)
		before := s.Statements()
		g, err := tryPermit(s, limit, time.Minute, 0)
		require.NoError(t, err)
		require.Zero(t, g.Token)
		require.EqualValues(t, 2, s.Statements()-before)
	})
}

// If the first slots are held, only the first request of a process reads all of them.
func TestPermitsOfManySlots(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		const limit = 4 * firstSlots
		freed(t, s, granted(t, s, "warm", time.Minute))
		var rows []string
		for i := range 2*firstSlots + 10 {
			rows = append(rows, fmt.Sprintf("(%s, %d, '%s', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", literal(SlotKey("x", i+1)), i, NewOwnerID(s.self)))
		}
		_, err := s.db.Exec("INSERT INTO mysqllock (name, token, owner, expires_at) VALUES " + strings.Join(rows, ","))
		require.NoError(t, err)
		var claims []Claim
		for i := range 5 {
			before := s.Statements()
			g := takePermit(t, s, limit, time.Minute)
			claims = append(claims, g.Claim)
			require.Greater(t, SlotOf(g.Claim.Name), 2*firstSlots+10)
			statements := s.Statements() - before
			if i == 0 {
				require.EqualValues(t, 3, statements)
			} else {
				require.EqualValues(t, 2, statements)
			}
		}
		for _, c := range claims {
			freed(t, s, c)
		}
		_, err = s.db.Exec("UPDATE mysqllock SET expires_at = '1970-01-01' WHERE name = " + literal(SlotKey("x", 7)))
		require.NoError(t, err)
		g := takePermit(t, s, 2*firstSlots+10, time.Minute) // fewer slots, of which only this one is free
		require.Equal(t, 7, SlotOf(g.Claim.Name))
	})
}

func TestSlotWindows(t *testing.T) {
	var s Store
	of := func(limit int) slotWindow {
		return s.firstWindow(AcquireRequest{Claim: Claim{Name: "x"}, Limit: limit})
	}
	require.Equal(t, slotWindow{1, 9}, of(9))
	require.Equal(t, slotWindow{1, firstSlots}, of(MaxPermits))
	s.lastSlots.set("x", 2*firstSlots)
	require.Equal(t, slotWindow{firstSlots + 1, 2 * firstSlots}, of(MaxPermits))
	require.Equal(t, slotWindow{firstSlots + 1, firstSlots + 1}, of(firstSlots+1))
	require.Equal(t, slotWindow{1, firstSlots}, of(firstSlots))
	s.lastSlots.set("x", firstSlots)
	require.Equal(t, slotWindow{1, firstSlots}, of(MaxPermits))
}

// A slot that has a row is taken before one that has none.
func TestSlotsWithARow(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		slot := 0
		for range 6 {
			g := takePermit(t, s, 30, time.Minute)
			freed(t, s, g.Claim)
			if slot == 0 {
				slot = SlotOf(g.Claim.Name)
			}
			require.Equal(t, slot, SlotOf(g.Claim.Name))
		}
	})
}

// If many processes ask at the same time for slots that have no row yet, none is refused while permits are
// free.
func TestFirstPermitsOfACrowd(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(150)
		for _, s := range all {
			_, _, err := s.Look(ctx, []string{"x"})
			require.NoError(t, err)
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				<-start
				g, err := tryPermit(s, 1000, time.Minute, 0)
				assert.NoError(t, err)
				assert.NotZero(t, g.Token)
			})
		}
		close(start)
		wg.Wait()
	})
}

// The first process that waits for a permit asks again soon: a release that did not find it may
// not have been committed when it looked.
func TestFirstWaiterForAPermit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		takePermit(t, s, 1, time.Minute)
		for i, q := range []*Store{s, other} {
			g, err := tryPermit(q, 1, time.Minute, q.self)
			require.NoError(t, err)
			require.Zero(t, g.Token)
			require.Equal(t, i == 0, g.Remaining <= afterFirstWaiter)
		}
	})
}

// A copy of the statement that joins the wait queue does not join it again, and a full queue
// takes no more.
func TestWaitQueueOfPermits(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		s := stores(1)[0]
		length := func() (n int) {
			require.NoError(t, s.db.Get(&n, "SELECT LENGTH(waiters) FROM mysqllock WHERE name = "+literal(QueueName(Permit, "x"))))
			return n
		}
		req := permitRequest(s, 1)
		req.EnlistAs = s.self
		for i := range 3 {
			created, err := s.joinSemaphore(ctx, req)
			require.NoError(t, err)
			require.Equal(t, i == 0, created)
			require.Equal(t, len(s.self.String()), length())
		}
		_, err := s.db.Exec("UPDATE mysqllock SET waiters = REPEAT('4', 1007) WHERE name = " + literal(QueueName(Permit, "x")))
		require.NoError(t, err)
		_, err = s.joinSemaphore(ctx, req)
		require.NoError(t, err)
		require.Equal(t, 1007, length())
	})
}

// A process is not woken for a slot while as many permits as its own limit are held, in whatever
// slots.
func TestListenerBeyondTheLimit(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		held := granted(t, other, SlotKey("x", 3), time.Minute)
		granted(t, other, SlotKey("x", 4), time.Minute)
		g, err := tryPermit(s, 2, time.Minute, s.self)
		require.NoError(t, err)
		require.Zero(t, g.Token)
		defer s.CloseListener()
		for _, want := range []Wakeup{{}, {Name: QueueName(Permit, "x")}} {
			w, err := s.Listen(ctx, []string{QueueName(Permit, "x")}, 10*time.Millisecond)
			require.NoError(t, err)
			require.Equal(t, want, w)
			s.Release(ctx, held)
		}
	})
}
