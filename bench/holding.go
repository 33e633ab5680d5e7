package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock"
)

// holding measures what it costs to hold locks.
func (b *bench) holding() error {
	lease := pick(b, mysqllock.DefaultLease, 3*time.Second)
	s := b.report.section("Holding locks", fmt.Sprintf(`
The cost of the watchdog of one process that holds so many locks with a lease of
%s, all of them bound to its session: statements, and CPU time of this process and
of the server in percent of one core, during one renewal interval of %s.`, spaced(lease), spaced(lease/3)))
	s.table = newTable("locks", "statements", "client CPU, %", "server CPU, %")
	p := &lines{title: b.titled("Holding locks"), unit: "% of one core", xTitle: "locks held"}
	client, server := line{label: "client", ours: true}, line{label: "server"}
	var idle usage
	for _, n := range pick(b, []int{0, 100, 1_000, 10_000, 100_000}, []int{0, 100, 1_000}) {
		if err := b.sampleNoise(); err != nil {
			return err
		}
		used, err := b.hold(n, lease)
		if err != nil {
			return err
		}
		s.table.addRow(n == 10_000, thousands(int64(n)), fmt.Sprint(used.statements), digits(used.client), digits(used.server))
		if n == 0 {
			idle = used
		} else {
			p.x = append(p.x, n)
			client.y, server.y = append(client.y, used.client), append(server.y, used.server)
		}
		if n == 10_000 {
			b.report.goal(goalHolding, fmt.Sprintf("%d statements", used.statements), used.statements <= 20)
			b.report.goal(goalHoldingCPU, fmt.Sprintf("client %s %%, server %s %% in addition to %s %% when idle",
				digits(used.client), digits(used.server-idle.server), digits(idle.server)),
				used.client <= 2 && used.server-idle.server <= 2) // false if the server's CPU time is unknown
		}
	}
	p.lines = []line{client, server}
	s.plot("holding", p)
	return nil
}

// A usage is what was used during some time.
type usage struct {
	statements     int64
	client, server float64 // CPU time in percent of one core; NaN if unknown
}

// usage measures what is used during d. This process must not do anything else meanwhile.
func (b *bench) usage(d time.Duration) (u usage, err error) {
	before, err := b.servers.questions()
	if err != nil {
		return u, err
	}
	start, client := time.Now(), cpuOfSelf()
	server, known := cpuOf(b.servers.mysql.PID())
	if err := b.sleep(d); err != nil {
		return u, err
	}
	share := func(used time.Duration) float64 { return 100 * used.Seconds() / time.Since(start).Seconds() }
	u.client = share(cpuOfSelf() - client)
	u.server = nan
	if known {
		used, _ := cpuOf(b.servers.mysql.PID())
		u.server = share(used - server)
	}
	after, err := b.servers.questions()
	u.statements = after - before
	return u, err
}

func (b *bench) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
}

// awaitFirstAttempts sleeps for long enough that waiters have made their first attempts.
func (b *bench) awaitFirstAttempts() error {
	return b.sleep(pick(b, time.Second, 200*time.Millisecond))
}

func (b *bench) hold(n int, lease time.Duration) (u usage, err error) {
	c, err := openOurs(b.servers.endpoints, mysqllock.WithLease(lease))
	if err != nil {
		return u, err
	}
	defer c.close()
	locks, err := b.acquireUnflushed(c.locker, n)
	if err != nil {
		return u, err
	}
	// Wait until all locks are bound to the session, which happens after a third of their lease.
	if err := b.sleep(lease / 2); err != nil {
		return u, err
	}
	if u, err = b.usage(lease / 3); err != nil {
		return u, err
	}
	for _, lock := range locks {
		if err := lock.Err(); err != nil {
			return u, fmt.Errorf("%s: %w", lock.Name(), err)
		}
	}
	return u, nil
}

// acquireUnflushed acquires n locks. It is faster than usual, as the server does not flush at each
// commit meanwhile.
func (b *bench) acquireUnflushed(locker *mysqllock.Locker, n int) ([]*mysqllock.Lock, error) {
	if err := b.servers.setFlushing(false); err != nil {
		return nil, err
	}
	locks, errs := make([]*mysqllock.Lock, n), make([]error, poolSize)
	var next atomic.Int64
	var running sync.WaitGroup
	for g := range errs {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if locks[i], errs[g] = locker.TryLock(b.ctx, fmt.Sprintf("held-%d", i), time.Minute, mysqllock.AutoRenew); errs[g] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	return locks, errors.Join(append(errs, b.servers.setFlushing(true))...)
}

// waiting measures what waiting goroutines cost while the lock does not change hands.
func (b *bench) waiting() error {
	s := b.report.section("Waiting goroutines", `
The cost of goroutines that wait for locks which another client in this process
holds: statements per second, and CPU time of this process and of the server in
percent of one core.`)
	s.table = newTable("", "waiting", "names", "statements/s", "client CPU, %", "server CPU, %")
	for _, c := range []struct {
		rival          *rival
		waiters, names int
	}{
		{ourselves, 1, 1},
		{ourselves, 100, 1},
		{ourselves, 1000, 1},
		{ourselves, 200, 200},
		{handmade, 1, 1},
		{handmade, 100, 1},
		{handmade, 1000, 1},
		{handmade, 200, 200},
	} {
		if err := b.sampleNoise(); err != nil {
			return err
		}
		d := pick(b, 5*time.Second, 300*time.Millisecond)
		u, err := b.wait(c.rival, c.waiters, c.names, d)
		if err != nil {
			return fmt.Errorf("%s: %w", c.rival.name, err)
		}
		s.table.add(c.rival, thousands(int64(c.waiters)), fmt.Sprint(c.names),
			digits(float64(u.statements)/d.Seconds()), digits(u.client), digits(u.server))
	}
	return nil
}

func (b *bench) wait(r *rival, waiters, names int, d time.Duration) (u usage, err error) {
	holder, err := r.open(b.servers.endpoints)
	if err != nil {
		return u, err
	}
	defer holder.close()
	waiter, err := r.open(b.servers.endpoints)
	if err != nil {
		return u, err
	}
	defer waiter.close()

	held := numbered(fmt.Sprintf("waited-for-%d", now()), names)
	for _, name := range held {
		release, err := holder.acquire(b.ctx, name)
		if err != nil {
			return u, err
		}
		defer release()
	}
	ctx, cancel := context.WithCancel(b.ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for i := range waiters {
		running.Go(func() {
			if release, err := waiter.acquire(ctx, held[i%names]); err == nil {
				release()
			}
		})
	}
	if err := b.awaitFirstAttempts(); err != nil {
		return u, err
	}
	return b.usage(d)
}
