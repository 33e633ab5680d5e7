package mysqllock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// requireUntil requires that name is held until that long after it was acquired, by nobody's
// lease.
func requireUntil(t *testing.T, l *mysqllock.Locker, name string, held time.Duration) mysqllock.Info {
	t.Helper()
	info := requireHeld(t, l, name, true)
	require.Equal(t, held, info.ExpiresAt.Sub(info.AcquiredAt))
	require.Zero(t, info.Holds)
	return info
}

// One statement gives the handle back, and the name stays taken, also when the process ends.
func TestUnlockAfterOnServers(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		renewals := l.Stats().Renewals
		eventually(t, "bound to the session", func() bool { return l.Stats().Renewals >= renewals+2 })
		require.NoError(t, k.UnlockAfter(3*time.Second))
		requireUntil(t, other, "x", 3*time.Second)
		requireOver(t, k, mysqllock.ErrNotHeld)
		require.ErrorIs(t, k.UnlockAfter(time.Minute), mysqllock.ErrNotHeld)
		for _, by := range []*mysqllock.Locker{l, other} {
			_, err := by.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		}
		require.NoError(t, l.Close())
		info := requireUntil(t, other, "x", 3*time.Second)
		next, err := other.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.False(t, requireHeld(t, other, "x", true).AcquiredAt.Before(info.ExpiresAt), "by the database's clock")
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.UnlockAfter(0))
		requireHeld(t, other, "x", false)

		// The time has passed, or never was: a plain release.
		quiet := e.locker(t) // it has not waited, so it sends nothing in the background
		for _, held := range []time.Duration{time.Millisecond, 0, -time.Hour} {
			k = acquire(t, quiet, "y", time.Minute)
			time.Sleep(2 * time.Millisecond)
			before := quiet.Stats().Statements
			require.NoError(t, k.UnlockAfter(held))
			require.Equal(t, before+1, quiet.Stats().Statements)
			requireHeld(t, other, "y", false)
		}
		// An hour, and force ends it.
		k = acquire(t, other, "y", time.Minute)
		before := other.Stats().Statements
		require.NoError(t, k.UnlockAfter(time.Hour))
		require.Equal(t, before+1, other.Stats().Statements)
		requireUntil(t, other, "y", time.Hour)
		list, err := other.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		held, err := other.ForceUnlock(ctx, "y")
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, acquire(t, other, "y", mysqllock.AutoRenew).Unlock())
		// The longest that there is.
		require.NoError(t, acquire(t, other, "z", time.Minute).UnlockAfter(1<<63-1))
		require.Greater(t, requireHeld(t, other, "z", true).ExpiresAt.Year(), 2300)
	})
}

// If the database's clock was set back since the acquire, the name stays taken for the minimum time from
// now, not until the clock has caught up.
func TestUnlockAfterWithTheClockSetBack(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		setBack := func() {
			t.Helper()
			_, err := db.Exec("UPDATE mysqllock SET acquired_at = acquired_at + INTERVAL 1 HOUR WHERE acquired_at > '2000-01-01'")
			require.NoError(t, err)
		}
		taken := func(name string) {
			t.Helper()
			require.Less(t, requireHeld(t, l, name, true).ExpiresIn, 5*time.Second)
		}
		k := acquire(t, l, "x", time.Minute)
		setBack()
		require.NoError(t, k.UnlockAfter(5*time.Second))
		taken("x")

		// A shared name is kept by a row of its own while others hold it.
		first, err := l.RLock(ctx, "y", mysqllock.AutoRenew)
		require.NoError(t, err)
		second, err := l.RLock(ctx, "y", mysqllock.AutoRenew)
		require.NoError(t, err)
		setBack()
		require.NoError(t, first.UnlockAfter(5*time.Second))
		require.NoError(t, second.Unlock())
		taken("y")
		k, err = l.Semaphore("z", 1).Acquire(ctx, mysqllock.AutoRenew)
		require.NoError(t, err)
		setBack()
		require.NoError(t, k.UnlockAfter(5*time.Second))
		permits, err := l.Semaphore("z", 1).Holders(ctx)
		require.NoError(t, err)
		require.Len(t, permits, 1)
		require.Less(t, permits[0].ExpiresIn, 5*time.Second)
	})
}

// Waiters of this process and of another acquire the lock soon after the time is over, by their
// knowledge of it: no poll is near.
func TestUnlockAfterWithWaiters(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, rarely), e.locker(t, rarely)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		foreign := waiting(t, other, "x", 1)
		local := make(chan *mysqllock.Lock, 1)
		go func() {
			k, _ := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
			local <- k
		}()
		eventually(t, "queued", func() bool { return l.Stats().Waiting == 1 })
		until := requireHeld(t, l, "x", true).AcquiredAt.Add(2 * time.Second)
		require.NoError(t, k.UnlockAfter(2*time.Second))
		for _, next := range []<-chan *mysqllock.Lock{foreign, local} {
			k := get(t, next)
			at := requireHeld(t, l, "x", true).AcquiredAt
			require.False(t, at.Before(until))
			require.Less(t, at.Sub(until), 5*time.Second)
			until = at
			require.NoError(t, k.Unlock())
		}
	})
}

// A hold that began by a handoff counts from that.
func TestUnlockAfterAHandoffOnServers(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		first := acquire(t, l, "x", mysqllock.AutoRenew)
		got := make(chan *mysqllock.Lock, 1)
		go func() {
			k, _ := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
			got <- k
		}()
		eventually(t, "queued", func() bool { return l.Stats().Waiting == 1 })
		time.Sleep(1500 * time.Millisecond)
		handed := time.Now()
		require.NoError(t, first.Unlock())
		k := get(t, got)
		require.Equal(t, first.Token()+1, k.Token())
		require.NoError(t, k.UnlockAfter(time.Second))
		next, err := other.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(handed), time.Second)
		require.NoError(t, next.Unlock())
	})
}

// Lost replies, and statements that a proxy sends twice, change nothing.
func TestUnlockAfterThroughAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		for what, fault := range map[string]func(*wire.Proxy){
			"no reply":     (*wire.Proxy).CutBeforeNextReply,
			"not executed": (*wire.Proxy).CutAfterNextCommand,
			"twice":        func(p *wire.Proxy) { p.Repeat(true) },
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.through(t, proxy))
				k := acquire(t, l, what, mysqllock.AutoRenew)
				fault(proxy)
				require.NoError(t, k.UnlockAfter(time.Hour))
				requireUntil(t, other, what, time.Hour)
				requireFree(t, other, what+" passed")
				proxy.Repeat(false)
				k = acquire(t, l, what+" passed", mysqllock.AutoRenew)
				time.Sleep(2 * time.Millisecond)
				fault(proxy)
				require.NoError(t, k.UnlockAfter(time.Millisecond))
				requireHeld(t, other, what+" passed", false)
			})
		}
	})
}

// The process cannot reach the database any more: the name is never free early, and not held
// for ever.
func TestUnlockAfterDuringAnOutage(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(30*time.Second))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		proxy.Refuse(true)
		proxy.Cut()
		err := k.UnlockAfter(time.Hour)
		require.Error(t, err)
		require.NotErrorIs(t, err, mysqllock.ErrLost)
		requireHeld(t, other, "x", true)
		proxy.Refuse(false)
		eventually(t, "given back", func() bool { return requireHeld(t, other, "x", true).Holds == 0 })
		requireUntil(t, other, "x", time.Hour)
	})
}

// Behind a row that a transaction has locked, the release waits without more connections than
// the pool has.
func TestHandoverBehindLockedRows(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, act := range map[string]func(t *testing.T, k *mysqllock.Lock){
			"UnlockAfter": func(t *testing.T, k *mysqllock.Lock) {
				err := k.UnlockAfter(time.Second)
				assert.Error(t, err)
				assert.NotErrorIs(t, err, mysqllock.ErrLost)
			},
			"Detach": func(t *testing.T, k *mysqllock.Lock) {
				_, err := k.Detach(ctx, time.Minute)
				assert.Error(t, err)
				assert.NotErrorIs(t, err, mysqllock.ErrLost)
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				testBehindLockedRows(t, env{server: e.server, database: e.other(t)}, act)
			})
		}
	})
}

// Minimum holds, and handovers, are right in every database session.
func TestHandoverInSessions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		for name := range sessions {
			if kind := onlyOn[name]; kind != "" && kind != e.server.Kind {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.session(t, proxy, name))
				under := mysqllock.WithHolder(ctx, "jøb '"+`"\`)
				for i, handOver := range []func(k *mysqllock.Lock){
					func(k *mysqllock.Lock) {
						require.NoError(t, k.UnlockAfter(time.Hour))
						requireUntil(t, other, k.Name(), time.Hour)
						for _, by := range []*mysqllock.Locker{l, other} {
							_, err := by.TryLock(ctx, k.Name(), 0, mysqllock.AutoRenew)
							require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
						}
						held, err := l.ForceUnlock(ctx, k.Name())
						require.NoError(t, err)
						require.True(t, held)
					},
					func(k *mysqllock.Lock) {
						got := waitingSeenBy(t, other, other, k.Name(), 1)
						time.Sleep(2 * time.Millisecond)
						require.NoError(t, k.UnlockAfter(time.Millisecond))
						require.NoError(t, get(t, got).Unlock())
					},
					func(k *mysqllock.Lock) {
						ticket, err := k.Detach(ctx, time.Minute)
						require.NoError(t, err)
						info := requireHeld(t, other, k.Name(), true)
						require.InDelta(t, 60, info.ExpiresIn.Seconds(), 10)
						require.Equal(t, "jøb '"+`"\`, info.Holder)
						next, err := l.Attach(mysqllock.WithHolder(ctx, "nëxt\\"), ticket, 2*time.Minute)
						require.NoError(t, err)
						require.Equal(t, k.Token(), next.Token())
						info = requireHeld(t, other, k.Name(), true)
						require.InDelta(t, 120, info.ExpiresIn.Seconds(), 10)
						require.Equal(t, "nëxt\\", info.Holder)
						_, err = l.Attach(ctx, ticket, mysqllock.AutoRenew)
						require.ErrorIs(t, err, mysqllock.ErrLost)
						require.NoError(t, next.Unlock())
						requireHeld(t, other, k.Name(), false)
					},
				} {
					k, err := l.TryLock(under, fmt.Sprint("naïve ", name, i), 5*time.Second, mysqllock.AutoRenew)
					require.NoError(t, err)
					require.Equal(t, "jøb '"+`"\`, requireHeld(t, other, k.Name(), true).Holder)
					handOver(k)
				}
			})
		}
	})
}
