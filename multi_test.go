package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// numbered returns n names, not sorted.
func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%d", prefix, i))
	}
	return names
}

func acquireAll(t testing.TB, l *mysqllock.Locker, names ...string) *mysqllock.LockSet {
	t.Helper()
	s, err := l.TryLockAll(ctx, names, 5*time.Second, mysqllock.AutoRenew)
	require.NoError(t, err)
	return s
}

// All names are acquired by at most two statements if they are free, and released by one.
func TestTryLockAllStatements(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		require.NoError(t, acquire(t, l, "warm", mysqllock.AutoRenew).Unlock())
		for _, n := range []int{1, 2, 100, 800} {
			prefix := fmt.Sprintf("%d/", n)
			mixed := append(numbered(prefix, n/2), numbered(prefix+"mixed", n-n/2)...)
			var token uint64
			for i, names := range [][]string{numbered(prefix, n), numbered(prefix, n), mixed} {
				before := l.Stats()
				s := acquireAll(t, l, names...)
				stats := l.Stats()
				require.LessOrEqual(t, stats.Statements-before.Statements, int64(2), "%d names, %d", n, i)
				require.EqualValues(t, n, stats.Acquired-before.Acquired)
				require.Equal(t, n, stats.Held)
				for _, name := range names {
					k := s.Lock(name)
					require.Equal(t, name, k.Name())
					require.Greater(t, k.Token(), token)
					require.NoError(t, k.Err())
				}
				token = s.Lock(names[0]).Token()
				require.Nil(t, s.Lock("none"))
				_, err := other.TryLock(ctx, names[n/2], 0, mysqllock.AutoRenew)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				require.NoError(t, s.Err())

				before = l.Stats()
				require.NoError(t, s.Unlock())
				stats = l.Stats()
				require.EqualValues(t, 1, stats.Statements-before.Statements)
				require.EqualValues(t, n, stats.Released-before.Released)
				require.Zero(t, stats.Held)
				require.ErrorIs(t, s.Err(), mysqllock.ErrNotHeld)
				require.ErrorIs(t, context.Cause(s.Context()), mysqllock.ErrNotHeld)
				require.ErrorIs(t, s.Unlock(), mysqllock.ErrNotHeld)
			}
			require.NoError(t, acquireAll(t, other, mixed...).Unlock())
		}
	})
}

func TestTryLockAllInput(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		before := l.Stats().Statements
		_, err := l.TryLockAll(ctx, nil, 0, mysqllock.AutoRenew)
		require.ErrorContains(t, err, "no names")
		_, err = l.TryLockAll(ctx, numbered("x", 801), 0, mysqllock.AutoRenew)
		require.ErrorContains(t, err, "801 names; the limit is 800")
		_, err = l.TryLockAll(ctx, []string{"a", "b\x00", "c"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrInvalidName)
		require.ErrorContains(t, err, `"b\x00"`)
		_, err = l.TryLockAll(ctx, []string{"a", "b"}, 0, time.Millisecond)
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = l.TryLockAll(ended, []string{"a", "b"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, before, l.Stats().Statements)

		// Duplicates count once, and the caller's slice stays as it is.
		names := append(numbered("x", 800), numbered("x", 800)...)
		given := slices.Clone(names)
		s, err := l.TryLockAll(ctx, names, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, given, names)
		require.Equal(t, 800, l.Stats().Held)
		require.NoError(t, s.Unlock())
		require.Zero(t, l.Stats().Held)
	})
}

// The set has one owner, which re-enters its locks, and those that it held before.
func TestTryLockAllReenters(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		outer, err := l.TryLock(mysqllock.WithOwner(ctx), "b", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		s, err := l.TryLockAll(outer.Context(), []string{"c", "b", "a"}, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, outer.Token(), s.Lock("b").Token())
		before := l.Stats().Statements
		inner, err := l.TryLock(s.Context(), "c", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		again, err := l.TryLockAll(s.Context(), []string{"a", "b", "c"}, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, before, l.Stats().Statements)
		require.Equal(t, inner.Token(), again.Lock("c").Token())
		require.NoError(t, again.Unlock())
		require.NoError(t, s.Err())
		require.NoError(t, s.Unlock())
		requireHeld(t, other, "a", false)
		requireHeld(t, other, "b", true)
		requireHeld(t, other, "c", true)
		require.NoError(t, outer.Err())
		require.NoError(t, inner.Unlock())
		require.NoError(t, outer.Unlock())
		requireHeld(t, other, "b", false)

		// Without an owner in ctx, a set has an owner of its own.
		s = acquireAll(t, l, "a", "b")
		_, err = l.TryLockAll(ctx, []string{"b", "c"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, s.Unlock())

		// A lost lock that the owner has not unlocked.
		outer, err = l.TryLock(mysqllock.WithOwner(ctx), "b", 0, 10*time.Millisecond)
		require.NoError(t, err)
		requireOver(t, outer, mysqllock.ErrLost)
		_, err = l.TryLockAll(outer.Context(), []string{"a", "b"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorContains(t, err, `"b"`)
		_, err = l.TryLockAll(context.WithoutCancel(outer.Context()), []string{"a", "b"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost)
	})
}

// If one name is not acquired, none is, and the error names it.
func TestTryLockAllFails(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		owned := mysqllock.WithOwner(ctx)
		outer, err := l.TryLock(owned, "a", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		for _, in := range []*mysqllock.Locker{other, l} { // another process, another goroutine
			k := acquire(t, in, "c", mysqllock.AutoRenew)
			for name, try := range map[string]func() error{
				"one attempt": func() error {
					_, err := l.TryLockAll(owned, []string{"d", "c", "b", "a"}, 0, mysqllock.AutoRenew)
					return err
				},
				"wait": func() error {
					_, err := l.TryLockAll(owned, []string{"d", "c", "b", "a"}, 200*time.Millisecond, time.Minute)
					return err
				},
				"ctx": func() error {
					canceled, cancel := context.WithCancelCause(owned)
					time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("enough")) })
					_, err := l.TryLockAll(canceled, []string{"d", "c", "b", "a"}, mysqllock.WaitForever, mysqllock.AutoRenew)
					require.ErrorContains(t, err, "enough")
					return err
				},
			} {
				before, start := l.Stats().NotAcquired, time.Now()
				err := try()
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired, name)
				require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
				require.ErrorContains(t, err, `acquire "c"`)
				require.Less(t, time.Since(start), 5*time.Second)
				require.EqualValues(t, 1, l.Stats().NotAcquired-before)
				eventually(t, "released", func() bool {
					info, err := other.Inspect(ctx, "b")
					return err == nil && !info.Held
				})
				require.NoError(t, outer.Err())
				require.NoError(t, acquire(t, other, "d", mysqllock.AutoRenew).Unlock())
			}
			require.NoError(t, k.Unlock())
		}
		require.NoError(t, outer.Unlock())
		require.Zero(t, l.Stats().Held)
	})
}

// When a set has failed, its locks are free, and the next error names the lock that is held. On a
// busy machine, a release may take longer than the call waits for it.
func TestFailedSetHoldsNothing(t *testing.T) {
	const rounds = 20
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		defer acquire(t, other, "c", mysqllock.AutoRenew).Unlock()
		for name, next := range map[string]*mysqllock.Locker{"this process": l, "another": other} {
			for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
				held := 0
				for range rounds {
					_, err := l.TryLockAll(ctx, []string{"a", "b", "c", "d"}, wait, mysqllock.AutoRenew)
					require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
					for _, free := range []string{"d", "a"} { // behind the name that is held, and before it
						k, err := next.TryLock(ctx, free, 0, mysqllock.AutoRenew)
						if err != nil {
							held++
							continue
						}
						require.NoError(t, k.Unlock())
					}
				}
				require.LessOrEqual(t, held, rounds/4, "%s, wait %v", name, wait)
			}
		}
	})
}

// A set waits for a name with smaller ones only, and keeps those.
func TestTryLockAllWaits(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		for _, in := range []*mysqllock.Locker{other, l} {
			b, d := acquire(t, in, "b", mysqllock.AutoRenew), acquire(t, in, "d", mysqllock.AutoRenew)
			acquired := make(chan *mysqllock.LockSet)
			go func() {
				s, err := l.TryLockAll(ctx, []string{"e", "d", "c", "b", "a"}, 20*time.Second, mysqllock.AutoRenew)
				assert.NoError(t, err)
				acquired <- s
			}()
			waits := func(held string, free string) {
				t.Helper()
				eventually(t, "waits", func() bool { return l.Stats().Waiting == 1 })
				eventually(t, "has acquired "+held, func() bool { // alone, if this process holds the next name itself
					info, err := other.Inspect(ctx, held)
					return err == nil && info.Held
				})
				require.NoError(t, acquire(t, other, free, mysqllock.AutoRenew).Unlock())
			}
			waits("a", "c")
			require.NoError(t, b.Unlock())
			eventually(t, "goes on", func() bool {
				info, err := other.Inspect(ctx, "c")
				return err == nil && info.Held
			})
			waits("b", "e")
			require.NoError(t, d.Unlock())
			s := <-acquired
			require.NoError(t, s.Err())
			require.NoError(t, s.Unlock())
		}
	})
}

// Callers that list the names in any order never deadlock, beside callers of one lock, and
// exclude each other.
func TestTryLockAllNeverDeadlocks(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		names := numbered("", 8)
		holders := make([]atomic.Int32, len(names))
		hold := func(name string) {
			i := slices.Index(names, name)
			assert.EqualValues(t, 1, holders[i].Add(1), name)
		}
		free := func(name string) { holders[slices.Index(names, name)].Add(-1) }
		var wg sync.WaitGroup
		for range 3 {
			l := e.locker(t)
			for worker := range 4 {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(worker), 1))
					for range 10 {
						random.Shuffle(len(names), func(int, int) {})
						if worker == 0 {
							name := names[random.IntN(len(names))]
							k, err := l.Lock(ctx, name, mysqllock.AutoRenew)
							if assert.NoError(t, err) {
								hold(name)
								free(name)
								assert.NoError(t, k.Unlock())
							}
							continue
						}
						var some []string
						for _, i := range random.Perm(len(names))[:1+random.IntN(len(names))] {
							some = append(some, names[i])
						}
						s, err := l.TryLockAll(ctx, some, time.Minute, mysqllock.AutoRenew)
						if !assert.NoError(t, err) {
							return
						}
						for _, name := range some {
							hold(name)
						}
						assert.NoError(t, s.Err())
						for _, name := range some {
							free(name)
						}
						assert.NoError(t, s.Unlock())
					}
				})
			}
		}
		wg.Wait()
		l := e.locker(t)
		require.NoError(t, acquireAll(t, l, names...).Unlock())
	})
}

// The loss of one lock ends the set's context; the others are released by Unlock.
func TestTryLockAllLoss(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithLease(3*time.Second)), e.locker(t)
		s := acquireAll(t, l, "a", "b", "c")
		freed, err := l.ForceUnlock(ctx, "b")
		require.NoError(t, err)
		require.True(t, freed)
		select {
		case <-s.Context().Done():
		case <-time.After(20 * time.Second):
			require.Fail(t, "the context did not end")
		}
		require.ErrorIs(t, context.Cause(s.Context()), mysqllock.ErrLost)
		require.ErrorIs(t, s.Err(), mysqllock.ErrLost)
		require.NoError(t, s.Lock("a").Err())
		err = s.Unlock()
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorContains(t, err, `unlock "b"`)
		require.NotContains(t, err.Error(), `unlock "a"`)
		require.NoError(t, acquireAll(t, other, "a", "b", "c").Unlock())

		// A loss that Unlock finds.
		s = acquireAll(t, l, "a", "b", "c")
		_, err = e.db(t, "").Exec("UPDATE mysqllock SET owner = 'another' WHERE name = 'b'")
		require.NoError(t, err)
		err = s.Unlock()
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorContains(t, err, `unlock "b"`)
		require.NotContains(t, err.Error(), `unlock "c"`)
		requireHeld(t, other, "a", false)
		requireHeld(t, other, "c", false)
	})
}

// A lock of a set may be unlocked by itself, guarded, and observed like any other.
func TestLocksOfASet(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var mu sync.Mutex
		events := map[string]int{}
		count := func(event string) {
			mu.Lock()
			defer mu.Unlock()
			events[event]++
		}
		l := e.locker(t, mysqllock.WithObserver(mysqllock.Observer{
			AcquireStart: func(ctx context.Context, name string) context.Context { count("start " + name); return ctx },
			AcquireEnd:   func(_ context.Context, i mysqllock.AcquireInfo) { count(i.Outcome() + " " + i.Name) },
			HoldEnd:      func(_ context.Context, i mysqllock.HoldInfo) { count(i.Outcome() + " " + i.Name) },
		}))
		other := e.locker(t)
		s := acquireAll(t, l, "a", "b", "c")
		require.NoError(t, s.Lock("b").Unlock())
		require.NoError(t, s.Err())
		require.NoError(t, s.Context().Err())
		k := acquire(t, other, "b", mysqllock.AutoRenew)
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, s.Lock("a").Guard(ctx, tx))
		require.NoError(t, s.Unlock())
		require.ErrorIs(t, s.Err(), mysqllock.ErrNotHeld)
		require.Equal(t, map[string]int{
			"start a": 1, "start b": 1, "start c": 1, "acquired a": 1, "acquired b": 1, "acquired c": 1,
			"released a": 1, "released b": 1, "released c": 1,
		}, events)

		// The row of a is free, but locked, until the transaction ends.
		for range 2 { // first, the other names have no rows
			start := time.Now()
			_, err = other.TryLockAll(ctx, []string{"0", "a", "y", "z"}, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
			require.ErrorContains(t, err, `acquire "a"`)
			require.Less(t, time.Since(start), time.Second)
			for _, name := range []string{"0", "y", "z"} {
				require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
			}
		}
		time.AfterFunc(300*time.Millisecond, func() { tx.Rollback() })
		again := acquireAll(t, other, "0", "a", "z")
		require.NoError(t, again.Unlock())
		require.NoError(t, k.Unlock())
	})
}

// Rows that a dead session keeps are in nobody's way, even for a call that does not wait.
func TestTryLockAllAfterACrash(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		names := numbered("x", 20)
		require.NoError(t, acquireAll(t, l, names...).Unlock())
		_, err := e.db(t, "").Exec("UPDATE mysqllock SET owner = CONCAT('5000000000000000007', '-dead'), session = 5000000000000000008 WHERE name LIKE 'x%'")
		require.NoError(t, err)
		before := l.Stats().Statements
		s, err := l.TryLockAll(ctx, names, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.LessOrEqual(t, l.Stats().Statements-before, int64(10))
		require.NoError(t, s.Unlock())
	})
}

func TestTryLockAllAndClose(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		s := acquireAll(t, l, "a", "b")
		k := acquire(t, other, "d", mysqllock.AutoRenew)
		result := make(chan error)
		go func() {
			_, err := l.TryLockAll(ctx, []string{"c", "d"}, mysqllock.WaitForever, mysqllock.AutoRenew)
			result <- err
		}()
		eventually(t, "waits", func() bool { return l.Stats().Waiting == 1 })
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-result, mysqllock.ErrClosed)
		require.ErrorIs(t, context.Cause(s.Context()), mysqllock.ErrClosed)
		require.ErrorIs(t, s.Err(), mysqllock.ErrClosed)
		require.ErrorIs(t, s.Unlock(), mysqllock.ErrClosed)
		_, err := l.TryLockAll(ctx, []string{"a", "b"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrClosed)
		require.NoError(t, acquireAll(t, other, "a", "b", "c").Unlock())
		require.NoError(t, k.Unlock())
	})
}

// A release of a set wakes the waiters of all its names, in this process and in others.
func TestUnlockOfASetWakesWaiters(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		waiters := []*mysqllock.Locker{l, e.locker(t), e.locker(t), e.locker(t)}
		for _, w := range waiters { // pools with connections
			require.NoError(t, acquire(t, w, "warm", mysqllock.AutoRenew).Unlock())
		}
		names := numbered("", len(waiters))
		s := acquireAll(t, l, names...)
		acquired := make(chan time.Time)
		var wg sync.WaitGroup
		for i, w := range waiters {
			wg.Go(func() {
				k, err := w.TryLock(ctx, names[i], 20*time.Second, mysqllock.AutoRenew)
				acquired <- time.Now()
				if assert.NoError(t, err) {
					assert.NoError(t, k.Unlock())
				}
			})
		}
		for i, w := range waiters {
			eventually(t, "waits", func() bool {
				info, err := l.Inspect(ctx, names[i])
				return err == nil && w.Stats().Waiting == 1 && (i == 0 || info.Waiters == 1)
			})
		}
		time.Sleep(50 * time.Millisecond) // they listen
		start := time.Now()
		require.NoError(t, s.Unlock())
		for range waiters {
			require.Less(t, (<-acquired).Sub(start), 500*time.Millisecond)
		}
		wg.Wait()
	})
}

// If the reply to a statement of a set is lost, the call is not refused because of its own locks, and a lock that it
// has released is not lost, although another owner has acquired it since.
func TestSetWithoutReply(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, other, names := wire.New(t, e.server.Addr()), e.locker(t), []string{"a", "b", "c"}
		l := newLocker(t, e.through(t, proxy))
		lose := func(part string, again func()) {
			sent := 0
			proxy.Interfere(func(query string) wire.Interference {
				if !strings.Contains(query, part) {
					return wire.Interference{}
				}
				if sent++; sent == 1 {
					return wire.Interference{Error: 2013}
				}
				again()
				again = func() {}
				return wire.Interference{}
			})
		}
		lose("INSERT", func() {})
		_, err := l.TryLockAll(ctx, names, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrUnavailable)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorContains(t, err, "2013")
		for _, name := range names {
			requireFree(t, other, name)
		}
		proxy.Interfere(nil)

		s := acquireAll(t, l, names...)
		var k *mysqllock.Lock
		lose("released_at", func() { k = acquire(t, other, "b", mysqllock.AutoRenew) })
		require.NoError(t, s.Unlock())
		require.NotNil(t, k, "acquired between the two releases")
		require.Zero(t, l.Stats().Lost)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// BenchmarkTryLockAll measures 100 free names beside one.
func BenchmarkTryLockAll(b *testing.B) {
	for _, kind := range mysqltest.Kinds {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprint(kind, "/", n), func(b *testing.B) {
				db, _ := mysqltest.Open(b, kind)
				l, names := newLocker(b, db), numbered("x", n)
				require.NoError(b, l.CreateTable(ctx))
				require.NoError(b, acquireAll(b, l, names...).Unlock())
				var took []time.Duration
				for b.Loop() {
					start := time.Now()
					s, err := l.TryLockAll(ctx, names, 0, mysqllock.AutoRenew)
					took = append(took, time.Since(start))
					require.NoError(b, err)
					require.NoError(b, s.Unlock())
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "acquire-p50-µs")
			})
		}
	}
}
