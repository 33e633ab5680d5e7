package gocronlock_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	gocronlock "github.com/mysqllock/mysqllock/with/gocron"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// onEach runs a test on each kind of server, in a database of its own; host
// returns a Locker with a pool of its own, as each host has.
func onEach(t *testing.T, test func(t *testing.T, host func() *mysqllock.Locker)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			dsn := server.DSN(mysqltest.NewDatabase(t, server), "")
			test(t, func() *mysqllock.Locker {
				db, err := sql.Open("mysql", dsn)
				require.NoError(t, err)
				t.Cleanup(func() { db.Close() })
				locker, err := mysqllock.New(db, mysqllock.WithLease(time.Second))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, locker.Close()) })
				require.NoError(t, locker.CreateTable(t.Context()))
				return locker
			})
		})
	}
}

// A job that returns at once holds its lock for hold from the start, also when
// the scheduler has shut down meanwhile, and no longer.
func TestHold(t *testing.T) {
	const hold = 700 * time.Millisecond
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		here := gocronlock.New(host(), hold)
		other := host()
		ctx := mysqllock.WithOwner(t.Context()) // as a job may bring: it does not re-enter
		start := time.Now()
		lock, err := here.Lock(ctx, "job")
		require.NoError(t, err)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, lock.Unlock(ended))

		for _, l := range []gocron.Locker{here, gocronlock.New(other, hold)} { // on the same host, too
			_, err = l.Lock(ctx, "job")
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		}
		next, err := other.Lock(t.Context(), "gocron:job", time.Minute)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), hold)
		require.NoError(t, next.Unlock())
	})
}

// The hold outlasts the Locker on which the job ran, and its lease.
func TestHoldOutlastsLocker(t *testing.T) {
	const hold = 2 * time.Second
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		first, other := host(), gocronlock.New(host(), hold)
		start := time.Now()
		lock, err := gocronlock.New(first, hold).Lock(t.Context(), "job")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		require.NoError(t, first.Close())
		var next gocron.Lock
		require.Eventually(t, func() bool {
			next, err = other.Lock(t.Context(), "job")
			return err == nil
		}, 20*time.Second, 20*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(start), hold)
		require.NoError(t, next.Unlock(t.Context()))
	})
}

// A job that takes longer than hold, and than the lease, keeps its lock until it
// returns, and gives it back then.
func TestLongJob(t *testing.T) {
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		here, other := gocronlock.New(host(), 10*time.Millisecond), gocronlock.New(host(), 0)
		lock, err := here.Lock(t.Context(), "job")
		require.NoError(t, err)
		for start := time.Now(); time.Since(start) < 2500*time.Millisecond; time.Sleep(50 * time.Millisecond) {
			_, err := other.Lock(t.Context(), "job")
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		}
		require.NoError(t, lock.Unlock(t.Context()))
		lock, err = other.Lock(t.Context(), "job")
		require.NoError(t, err, "it was given back")
		require.NoError(t, lock.Unlock(t.Context()))
	})
}

// The lock of a job is lost under it: that is told, and nothing else is released.
func TestLoss(t *testing.T) {
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		locker := host()
		for _, hold := range []time.Duration{0, time.Minute} {
			lock, err := gocronlock.New(locker, hold).Lock(t.Context(), "job")
			require.NoError(t, err)
			_, err = locker.ForceUnlock(t.Context(), "gocron:job")
			require.NoError(t, err)
			next, err := locker.TryLock(t.Context(), "gocron:job", 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.ErrorIs(t, lock.Unlock(t.Context()), mysqllock.ErrLost)
			require.NoError(t, next.Err())
			require.NoError(t, next.Unlock())
		}
	})
}

// A name that cannot be one of a lock is an error, not a job that runs.
func TestName(t *testing.T) {
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		_, err := gocronlock.New(host(), 0).Lock(t.Context(), "a\nb")
		require.ErrorIs(t, err, mysqllock.ErrInvalidName)
	})
}

// offClock is the clock of a host that is ahead.
type offClock struct {
	clockwork.Clock
	ahead time.Duration
}

func (c offClock) Now() time.Time { return c.Clock.Now().Add(c.ahead) }

// asked records when a scheduler asked for the lock of a run, and when it got it.
type asked struct {
	*gocronlock.Locker
	host string
	runs *runs
}

type run struct {
	host     string
	from, to time.Time // the start lies between
}

type runs struct {
	mu      sync.Mutex // guards the following
	granted []run      // in the order in which they were granted
	refused int
	errs    []error // other than not acquired
}

func (a *asked) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	from := time.Now()
	lock, err := a.Locker.Lock(ctx, job)
	a.runs.mu.Lock()
	defer a.runs.mu.Unlock()
	switch {
	case err == nil:
		a.runs.granted = append(a.runs.granted, run{a.host, from, time.Now()})
	case errors.Is(err, mysqllock.ErrNotAcquired):
		a.runs.refused++
	default:
		a.runs.errs = append(a.runs.errs, err)
	}
	return lock, err
}

// schedule lets two hosts, whose clocks differ by a third of a second, run a short
// job each second, until enough is true, and returns the runs.
func schedule(t *testing.T, host func() *mysqllock.Locker, hold time.Duration, enough func(*runs) bool) []run {
	var all runs
	for name, ahead := range map[string]time.Duration{"A": 0, "B": 333 * time.Millisecond} {
		scheduler, err := gocron.NewScheduler(
			gocron.WithClock(offClock{clockwork.NewRealClock(), ahead}),
			gocron.WithDistributedLocker(&asked{gocronlock.New(host(), hold), name, &all}),
		)
		require.NoError(t, err)
		_, err = scheduler.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(func() {}), gocron.WithName("job"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, scheduler.Shutdown()) })
		scheduler.Start()
	}
	require.Eventually(t, func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return enough(&all)
	}, 30*time.Second, 10*time.Millisecond)
	all.mu.Lock()
	defer all.mu.Unlock()
	require.Empty(t, all.errs)
	return slices.Clone(all.granted)
}

// Each second the job runs on one host.
func TestScheduler(t *testing.T) {
	const hold = 700 * time.Millisecond
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		granted := schedule(t, host, hold, func(r *runs) bool { return len(r.granted) >= 3 && r.refused >= 3 })
		for i, r := range granted[1:] {
			require.GreaterOrEqual(t, r.to.Sub(granted[i].from), hold)
		}
	})
}

// What hold prevents does happen without it: each second the job runs on both
// hosts, one after the other.
func TestWithoutHold(t *testing.T) {
	onEach(t, func(t *testing.T, host func() *mysqllock.Locker) {
		schedule(t, host, 0, func(r *runs) bool {
			for i := 1; i < len(r.granted); i++ {
				if a, b := r.granted[i-1], r.granted[i]; a.host != b.host && b.from.Sub(a.to) < 500*time.Millisecond {
					return true
				}
			}
			return false
		})
	})
}
