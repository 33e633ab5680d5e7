package mysqllock_test

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// crowd starts callers that ask for a lock again and again without waiting, each
// in a process of its own as far as the server can tell. Every attempt locks the
// row for a moment. quit ends them and returns how many attempts they made.
func (e env) crowd(t *testing.T, name string, callers int, pause time.Duration) (quit func() int64) {
	var attempts atomic.Int64
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range callers {
		db := e.db(t, "")
		l, err := mysqllock.New(db, mysqllock.WithoutSignal())
		require.NoError(t, err)
		wg.Go(func() {
			defer db.Close()
			defer l.Close()
			for !stop.Load() {
				k, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
				if err == nil {
					err = k.Unlock()
				}
				if err != nil && !errors.Is(err, mysqllock.ErrNotAcquired) && !errors.Is(err, mysqllock.ErrUnavailable) {
					assert.NoError(t, err)
				}
				attempts.Add(1)
				time.Sleep(pause)
			}
		})
	}
	return sync.OnceValue(func() int64 {
		stop.Store(true)
		wg.Wait()
		return attempts.Load()
	})
}

// Callers that ask for a lock all the time cost its holder neither the lock nor
// its Close, and do not keep a waiter from it.
func TestCrowd(t *testing.T) {
	callers, length := 64, 4*time.Second
	if soak := os.Getenv("MYSQLLOCK_SOAK"); soak != "" {
		var err error
		length, err = time.ParseDuration(soak)
		require.NoError(t, err)
		callers = 100
	}
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			s := mysqltest.Shared(t, kind)
			e := env{server: s, database: mysqltest.NewDatabase(t, s)}
			require.NoError(t, e.locker(t).CreateTable(ctx))
			var log logged
			// Long enough for a machine on which 64 callers and the server share two cores;
			// a renewal that is passed over each time loses it within a round.
			l := e.locker(t, mysqllock.WithLease(3*time.Second), mysqllock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			waiter := e.locker(t)
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			quit := e.crowd(t, "x", callers, 0)
			t.Cleanup(func() { quit() })

			start := time.Now()
			var served, longest time.Duration
			rounds := 0
			for time.Since(start) < length {
				select {
				case <-k.Context().Done():
				case <-time.After(4 * time.Second):
				}
				require.NoError(t, k.Err(), "after %v, renewals %d\n%s", time.Since(start), l.Stats().Renewals, log.String())

				// A waiter gets it within 10 s when it is unlocked, and so does the next holder.
				type got struct {
					k    *mysqllock.Lock
					err  error
					took time.Duration
				}
				waited := make(chan got)
				go func() {
					began := time.Now()
					k, err := waiter.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
					waited <- got{k, err, time.Since(began)}
				}()
				eventually(t, "a waiter", func() bool { return waiter.Stats().Waiting == 1 })
				require.NoError(t, k.Unlock(), "renewals %d\n%s", l.Stats().Renewals, log.String())
				next := <-waited
				require.NoError(t, next.err)
				require.NoError(t, next.k.Unlock())
				served += next.took
				longest = max(longest, next.took)
				rounds++
				var err error
				k, err = l.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err)
			}

			// Close releases it in time.
			for range 3 {
				closing := e.locker(t)
				require.NoError(t, k.Unlock())
				_, err := closing.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.NoError(t, closing.Close())
				k, err = l.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err)
			}
			stats := l.Stats()
			t.Logf("%d attempts in %v; %d renewals, %d failed; a waiter was served after %v, %v at most",
				quit(), time.Since(start), stats.Renewals, stats.RenewalErrors, served/time.Duration(rounds), longest)
			require.Zero(t, stats.Lost)
			require.NoError(t, k.Unlock())
		})
	}
}

// The server dies while a crowd's requests are combined. Nobody else gets a lock that is held, tokens
// rise, and no lock stays behind.
func TestServerRestartsBesideACrowd(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind)
			e := env{server, mysqltest.NewDatabase(t, server)}
			ls := []*mysqllock.Locker{e.locker(t), e.locker(t)}
			require.NoError(t, ls[0].CreateTable(ctx))
			names := numbered("x", 50)
			var rows [50]struct {
				held  atomic.Int32
				token atomic.Uint64
			}
			var stop atomic.Bool
			var acquired, failed atomic.Int64
			var crowd sync.WaitGroup
			for i := range 80 {
				l := ls[i%2]
				crowd.Go(func() {
					for !stop.Load() {
						n := rand.N(len(names))
						k, err := l.TryLock(ctx, names[n], 10*time.Second, mysqllock.AutoRenew)
						if err != nil {
							assert.True(t, errors.Is(err, mysqllock.ErrUnavailable) || errors.Is(err, mysqllock.ErrNotAcquired), "%v", err)
							failed.Add(1)
							continue
						}
						acquired.Add(1)
						row := &rows[n]
						assert.EqualValues(t, 1, row.held.Add(1))
						assert.Greater(t, k.Token(), row.token.Swap(k.Token()))
						row.held.Add(-1)
						if err := k.Unlock(); err != nil { // the outcome is unknown
							assert.NotErrorIs(t, err, mysqllock.ErrNotHeld)
							failed.Add(1)
						}
					}
				})
			}
			for range 2 {
				time.Sleep(time.Second)
				require.NoError(t, server.Kill())
				time.Sleep(300 * time.Millisecond)
				require.NoError(t, server.Restart())
			}
			time.Sleep(time.Second)
			stop.Store(true)
			crowd.Wait()
			t.Log(acquired.Load(), "acquired,", failed.Load(), "calls failed")
			require.NotZero(t, acquired.Load())
			for _, l := range []*mysqllock.Locker{ls[0], ls[1], e.locker(t)} {
				s, err := l.TryLockAll(ctx, names, 10*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err, "a lock was left behind")
				require.NoError(t, s.Unlock())
				require.Zero(t, l.Stats().Held)
			}
		})
	}
}
