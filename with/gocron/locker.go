// Package gocronlock lets one of many hosts run each job of gocron, by a lock of
// mysqllock:
//
//	locker, err := mysqllock.New(db)
//	...
//	scheduler, err := gocron.NewScheduler(
//		gocron.WithDistributedLocker(gocronlock.New(locker, 10*time.Second)))
//
// gocron asks for the lock of a job's name when the job is due, passes over the
// run if it does not get it, and gives it back when the job returns. With that
// alone, a job that takes 50 ms runs once on each host whose clock is 50 ms behind
// that of the last: each finds the lock free again. So the lock stays held for some
// time from the start of the run ([mysqllock.Lock.UnlockAfter]), even if the job
// returns, or its process ends, sooner; see [New].
//
// A job may take longer than that, and longer than the lease: the lock is renewed
// while the process lives. If it is lost all the same (the database could not be
// reached), another host may run the job; gocron has no way to tell the job. One
// that must not go on then, or must leave a trace that outlives processes, takes a
// lock of its own with [mysqllock.Locker.Do], or follows examples/daily.
package gocronlock

import (
	"context"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/mysqllock/mysqllock"
)

// prefix keeps a job's lock apart from the locks that the job takes itself.
const prefix = "gocron:"

// Locker is a [gocron.Locker].
type Locker struct {
	locker *mysqllock.Locker
	hold   time.Duration
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker for [gocron.WithDistributedLocker], or for single jobs for
// [gocron.WithDistributedJobLocker].
//
// Two runs of a job get its lock at least hold apart, on whatever hosts, whatever
// their clocks say. Choose it longer than what lies between the moments at which the
// hosts take the same run to be due (what their clocks differ, and what a busy host
// is late), and shorter than the time between two runs less that: a run that is due
// sooner is passed over. Ten seconds suit jobs that run each minute or less often
// on hosts with NTP. A [gocron.DurationJob] is due at other moments on each host,
// unless [gocron.WithStartAt] says when it starts: a hold that is a little shorter
// than its interval keeps it to about one run in that time.
//
// The database measures hold from when it granted the lock. Once the job has returned,
// the lock stays held for that time even if the process ends or closes the Locker. If the
// process dies under the job, its lease ends; if it closes the Locker under the job, the
// lock is given back at once. With hold <= 0 the lock is given back when the job returns.
func New(locker *mysqllock.Locker, hold time.Duration) *Locker {
	return &Locker{locker, hold}
}

// Lock takes the lock "gocron:" and the job's name, without waiting for another
// host: who waited would run the job a second time. Its errors are those of
// [mysqllock.Locker.TryLock], and are passed to [gocron.AfterLockError]:
// [mysqllock.ErrNotAcquired] tells that another run is under way, or holds on. Any
// other error is trouble: if each host meets it, nobody runs the job.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	// The owner is none that ctx may bring: runs exclude each other in any case.
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

// Unlock gives the lock back when hold has passed since it was acquired. It sends one
// statement and does not wait for that time. It works when ctx is over, as it is when the
// scheduler shuts down.
func (h *held) Unlock(context.Context) error { return h.lock.UnlockAfter(h.hold) }
