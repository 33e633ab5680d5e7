// Package gocronlock makes only one of many hosts run each job of gocron, by means of a lock of
// mysqllock:
//
//	locker, err := mysqllock.New(db)
//	...
//	scheduler, err := gocron.NewScheduler(
//		gocron.WithDistributedLocker(gocronlock.New(locker, 10*time.Second)))
//
// When a job is due, gocron requests the lock of the job's name. If it does not get the lock, it skips
// the run; otherwise it releases the lock when the job returns. That alone is not enough: if a job takes
// 50 ms, a host whose clock is more than 50 ms behind would find the lock free again and repeat the run.
// So the lock stays held for some time from the start of the run ([mysqllock.Lock.UnlockAfter]), even if
// the job returns, or its process ends, before that; see [New].
//
// A job may take longer than that time, and longer than the lease, because the lock is renewed while the
// process lives. If the lock is lost nevertheless, because the database was unreachable, another host may
// run the job, and gocron cannot notify the first one. If a job must stop in that case, or must leave a
// record that outlives its process, acquire a lock in the job itself with [mysqllock.Locker.Do], or
// follow examples/daily.
package gocronlock

import (
	"context"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/mysqllock/mysqllock"
)

// prefix distinguishes a job's lock from locks that the job acquires itself.
const prefix = "gocron:"

// Locker is a [gocron.Locker].
type Locker struct {
	locker *mysqllock.Locker
	hold   time.Duration
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker for [gocron.WithDistributedLocker], or, for single jobs, for
// [gocron.WithDistributedJobLocker].
//
// There are at least hold between two acquisitions of a job's lock, on all hosts together, and whatever
// their clocks show. hold must be longer than the time by which hosts may differ about when the same run
// is due: the difference of their clocks, plus the delay of a busy host. It must be shorter than the time
// between two runs less that difference, because a run that is due sooner is skipped. For jobs that run
// once a minute or less often, on hosts with NTP, ten seconds are suitable. A [gocron.DurationJob] is due
// at different times on each host, unless [gocron.WithStartAt] sets its start. A hold a little shorter
// than its interval limits it to about one run per interval.
//
// The database measures hold from the time when it granted the lock. After the job has returned, the lock
// stays held until then, even if the process ends or closes the Locker. If the process dies during the
// job, the lock is free when its lease ends; if it closes the Locker during the job, the lock is released
// at once. With hold <= 0, the lock is released when the job returns.
func New(locker *mysqllock.Locker, hold time.Duration) *Locker {
	return &Locker{locker, hold}
}

// Lock acquires the lock whose name is "gocron:" and the job's name. It does not wait for another host,
// because a host that waited would run the job a second time. It returns the errors of
// [mysqllock.Locker.TryLock], which gocron passes to [gocron.AfterLockError].
// [mysqllock.ErrNotAcquired] means that another run is in progress, or that its lock still stays held. Any
// other error is a fault: if all hosts get it, none runs the job.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	// A new owner, so that runs exclude each other even if ctx already has one.
	lock, err := l.locker.TryLock(mysqllock.WithOwner(ctx), prefix+job, 0, mysqllock.AutoRenew)
	if err != nil {
		return nil, err
	}
	return &held{lock, l.hold}, nil
}

// held is the lock of one run.
type held struct {
	lock *mysqllock.Lock
	hold time.Duration
}

// Unlock releases the lock as of the time when hold has passed since it was acquired. It sends one
// statement, and does not wait for that time. It works even if ctx has ended, as when the scheduler shuts
// down. It returns the errors of [mysqllock.Lock.UnlockAfter].
func (h *held) Unlock(context.Context) error { return h.lock.UnlockAfter(h.hold) }
