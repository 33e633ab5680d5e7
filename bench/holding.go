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

// holding measures what locks cost that are held and nothing else.
func (b *bench) holding() error {
	lease := pick(b, mysqllock.DefaultLease, 3*time.Second)
	s := b.report.section("Holding locks", fmt.Sprintf(`
What the watchdog of one process costs while it keeps so many locks with a lease
of %s, all of them bound to its session: statements, and CPU of this process and of
the server in percent of one core, over one renewal interval, %s.`, spaced(lease), spaced(lease/3)))
	s.table = newTable("locks", "statements", "client CPU, %", "server CPU, %")
	p := &lines{title: b.titled("Holding locks"), unit: "% of one core", along: "locks held"}
	client, server := line{label: "client", ours: true}, line{label: "server"}
	var idle usage
	for _, n := range pick(b, []int{0, 100, 1_000, 10_000, 100_000}, []int{0, 100, 1_000}) {
		if err := b.look(); err != nil {
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
			b.report.goal(goalHoldingCPU, fmt.Sprintf("client %s %%, server %s %% and %s %% that it needs idle",
				digits(used.client), digits(used.server-idle.server), digits(idle.server)),
				used.client <= 2 && used.server-idle.server <= 2) // false if the server's is not known
		}
	}
	p.lines = []line{client, server}
	s.plot("holding", p)
	return nil
}

// usage is what something costs in a time.
type usage struct {
	statements     int64
	client, server float64 // percent of one core; NaN if not known
}

// usage measures a time in which this process does nothing but what is measured.
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

// settle waits until all who wait have made their first attempts.
func (b *bench) settle() error { return b.sleep(pick(b, time.Second, 200*time.Millisecond)) }

func (b *bench) hold(n int, lease time.Duration) (u usage, err error) {
	c, err := openOurs(b.servers.sites, mysqllock.WithLease(lease))
	if err != nil {
		return u, err
	}
	defer c.close()
	locks, err := b.take(c.locker, n)
	if err != nil {
		return u, err
	}
	// Each lock is bound to the session once, a third of its lease after its acquire.
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

// take takes many locks, without a flush for each.
func (b *bench) take(locker *mysqllock.Locker, n int) ([]*mysqllock.Lock, error) {
	if err := b.servers.flushing(false); err != nil {
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
	return locks, errors.Join(append(errs, b.servers.flushing(true))...)
}

// waiting measures what goroutines cost that wait while nothing changes hands.
func (b *bench) waiting() error {
	s := b.report.section("Waiting goroutines", `
What goroutines of one process cost that wait for locks which another holds:
statements per second, and CPU of this process and of the server in percent of
one core.`)
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
		if err := b.look(); err != nil {
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
	holder, err := r.open(b.servers.sites)
	if err != nil {
		return u, err
	}
	defer holder.close()
	waiter, err := r.open(b.servers.sites)
	if err != nil {
		return u, err
	}
	defer waiter.close()

	wanted := numbered(fmt.Sprintf("wanted-%d", now()), names)
	for _, name := range wanted {
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
			if release, err := waiter.acquire(ctx, wanted[i%names]); err == nil {
				release()
			}
		})
	}
	if err := b.settle(); err != nil {
		return u, err
	}
	return b.usage(d)
}
