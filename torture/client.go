package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// longestLease is the longest lease that a client requests.
const longestLease = 40 * time.Second

// operate runs one random operation.
func (c *cycle) operate(r *rand.Rand) {
	l := c.locker.Load()
	name := c.order.Names.pick(r)
	if !c.order.Calm && r.IntN(10) == 0 {
		c.burst(r, l, name)
		return
	}
	if !c.order.Calm && r.IntN(12) == 0 {
		c.lockSet(r, l)
	} else {
		c.lock(r, l, name)
	}
	pause := 30 * time.Millisecond
	if c.order.Calm {
		pause = 500 * time.Millisecond // less would overload the machine
	}
	c.sleep(c.ctx, exponential(r, pause))
}

// burst lets several goroutines acquire one lock many times, so that it is handed over inside the
// process.
func (c *cycle) burst(r *rand.Rand, l *identifiedLocker, name string) {
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	for range 4 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		goroutines.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(c.ctx, time.Second)
				h := c.acquire(ctx, r, l, name, 300*time.Millisecond, mysqllock.AutoRenew)
				cancel()
				if h == nil {
					return
				}
				if r.IntN(20) == 0 {
					h.keep(rand.N(2 * time.Millisecond))
				}
				h.unlock()
			}
		})
	}
}

// repeatBursts runs bursts on one lock for d.
func (c *cycle) repeatBursts(name string, seed uint64, d time.Duration) {
	r := rand.New(rand.NewPCG(seed, 0))
	for end := now().add(d); now() < end && c.ctx.Err() == nil; {
		c.burst(r, c.locker.Load(), name)
		c.sleep(c.ctx, time.Millisecond)
	}
}

// operateFast acquires and releases random locks with short pauses, as most applications do.
func (c *cycle) operateFast(r *rand.Rand) {
	for c.ctx.Err() == nil {
		l, name := c.locker.Load(), c.order.Names.pick(r)
		if isContended(name) && r.IntN(2) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
		lease := mysqllock.AutoRenew
		if r.IntN(2) == 0 {
			lease = time.Second
		}
		h := c.acquire(ctx, r, l, name, 100*time.Millisecond, lease)
		if h != nil {
			h.unlock()
			c.sleep(c.ctx, time.Millisecond)
		} else {
			c.sleep(c.ctx, 20*time.Millisecond)
		}
		cancel()
	}
}

// lock acquires a lock with a random wait, lease and time limit, uses it, and ends the hold in a
// random way.
func (c *cycle) lock(r *rand.Rand, l *identifiedLocker, name string) {
	wait := []time.Duration{0, 0, 1 + rand.N(50*time.Millisecond), rand.N(3 * time.Second), mysqllock.WaitForever}[r.IntN(5)]
	lease := mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(300*time.Millisecond)<<r.IntN(5)
		if !isContended(name) && r.IntN(10) == 0 {
			lease = longestLease // if the lock is left behind, the run finds it held
		}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	limit := 10 * time.Second
	if wait == mysqllock.WaitForever || r.IntN(4) == 0 {
		limit = time.Duration(1) << (20 + r.IntN(13)) // 1 ms to 4 s
	}
	if c.order.Calm {
		wait, lease, limit = mysqllock.WaitForever, mysqllock.AutoRenew, time.Minute
	}
	defer time.AfterFunc(limit, cancel).Stop()
	if r.IntN(2) == 0 {
		ctx = mysqllock.WithOwner(ctx)
	}

	h := c.acquire(ctx, r, l, name, wait, lease)
	if h == nil {
		return
	}
	h.use(lease)
	switch {
	case c.order.Calm:
		h.unlock()
	case r.IntN(12) == 0:
		h.detach()
	case r.IntN(12) == 0:
		h.unlockAfter(10*time.Millisecond + rand.N(290*time.Millisecond))
	default:
		h.unlock()
	}
}

// acquire acquires a lock, and records the outcome. It returns nil if it fails.
func (c *cycle) acquire(ctx context.Context, r *rand.Rand, l *identifiedLocker, name string, wait, lease time.Duration) *hold {
	e := event{Holder: l.holder, Name: name, Call: now()}
	lock, err := request(ctx, r, l, &e, wait, lease)
	e.Ret = now()
	if err != nil {
		e.Kind = "wait"
		e.Outcome = c.countError("TryLock", err)
		c.record(e)
		return nil
	}
	return c.beginHold(r, l, lock, e, lease)
}

// request requests a lock, in one of the modes of its name, or a permit. It completes e.
func request(ctx context.Context, r *rand.Rand, l *identifiedLocker, e *event, wait, lease time.Duration) (*mysqllock.Lock, error) {
	switch {
	case isSemaphore(e.Name):
		e.Mode, e.Limit = permit, limitOf(e.Name)
		if r.IntN(10) == 0 {
			e.Limit = 1 + r.IntN(maxLimit)
		}
		return l.Semaphore(e.Name, e.Limit).TryAcquire(ctx, wait, lease)
	case isReadWrite(e.Name) && r.IntN(4) > 0:
		e.Mode = shared
		return l.TryRLock(ctx, e.Name, wait, lease)
	default:
		return l.TryLock(ctx, e.Name, wait, lease)
	}
}

// wrongStatement has the numbers of errors that neither the state of the server nor the data
// excuses: ambiguous or unknown columns and tables, syntax, a subquery with more than one row.
var wrongStatement = []uint16{1052, 1054, 1064, 1066, 1093, 1109, 1242}

// countError counts an error of a method by its reason, and returns the reason.
func (c *cycle) countError(method string, err error) (reason string) {
	var known *mysql.MySQLError
	switch {
	case errors.Is(err, mysqllock.ErrClosed):
		reason = "closed"
	case errors.Is(err, mysqllock.ErrLost):
		reason = "lost"
	case errors.Is(err, context.Canceled):
		reason = "ctx ended"
	case errors.As(err, &known):
		reason = fmt.Sprintf("error %d", known.Number)
		if slices.Contains(wrongStatement, known.Number) {
			c.recordWrong("", "", method+": "+err.Error())
		}
	case errors.Is(err, mysqllock.ErrNotAcquired):
		reason = "not acquired"
	case errors.Is(err, mysqllock.ErrUnavailable):
		reason = "unavailable"
	default:
		reason = "error"
	}
	c.count(method + ": " + reason)
	return reason
}
