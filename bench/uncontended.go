package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/wire"
)

// uncontended measures acquire and release of a lock for which nobody competes.
func (b *bench) uncontended() error {
	s := b.report.section("Uncontended", `
One goroutine acquires a free lock and releases it. A lock that is kept in a row
needs at least two UPDATEs; they are fastest if they are prepared, and have no
context. Statements and round trips were counted on the wire, in a separate run.`)
	pairs, err := b.pairs(b.servers.endpoints, pick(b, 40, 5), pick(b, 40, 10))
	if err != nil {
		return err
	}
	s.table = newTable("", "median, ms", "p99, ms", "× bare", "× prepared", "statements", "round trips", "allocations")
	for _, p := range pairs {
		if err := b.count(p); err != nil {
			return fmt.Errorf("%s: %w", p.rival.name, err)
		}
		statements := "–"
		if p.rival.mysql {
			statements = digits(p.statements)
		}
		s.table.add(p.rival, millis(p.took.quantile(0.5)), millis(p.took.quantile(0.99)), digits(p.toBare), digits(p.toPrepared), statements, digits(p.roundTrips), digits(p.allocs))
		if p.rival == ourselves {
			b.report.goal(goalUncontended, digits(p.toPrepared)+" ×", p.toPrepared <= 1.15)
		}
	}
	b.plotPairs(s, "on this machine", pairs)
	return nil
}

// delayed measures the same with a network delay of a millisecond.
func (b *bench) delayed() error {
	far, links, err := b.servers.delayed(time.Millisecond)
	defer func() {
		for _, l := range links {
			l.close()
		}
	}()
	if err != nil {
		return err
	}
	pairs, err := b.pairs(far, pick(b, 20, 3), pick(b, 10, 3))
	if err != nil {
		return err
	}
	added, err := b.addedLatency(far)
	if err != nil {
		return err
	}
	s := b.report.section("Uncontended, 1 ms away", fmt.Sprintf(`
The same with a network delay of 1 ms in each direction, which one proxy adds for
all protocols, so that round trips decide. A round trip took %s ms longer.`, millis(added)))
	s.table = newTable("", "median, ms", "p99, ms", "× bare", "× prepared")
	for _, p := range pairs {
		s.table.add(p.rival, millis(p.took.quantile(0.5)), millis(p.took.quantile(0.99)), digits(p.toBare), digits(p.toPrepared))
		if p.rival == ourselves {
			b.report.goal(goalDelayed, digits(p.toPrepared)+" ×", p.toPrepared <= 1.03)
		}
	}
	b.plotPairs(s, "1 ms away", pairs)
	return nil
}

// addedLatency returns how much longer a round trip to far takes.
func (b *bench) addedLatency(far endpoints) (time.Duration, error) {
	var medians [2]time.Duration
	for i, at := range []endpoints{b.servers.endpoints, far} {
		db, err := openDB(at, false)
		if err != nil {
			return 0, err
		}
		defer db.Close()
		var took samples
		for range 50 {
			start := now()
			if _, err := db.ExecContext(b.ctx, "DO 0"); err != nil {
				return 0, err
			}
			took = append(took, now()-start)
		}
		medians[i] = took.quantile(0.5)
	}
	return medians[1] - medians[0], nil
}

// A pair has the costs of an acquire and a release.
type pair struct {
	rival  *rival
	took   samples
	chunks []float64 // the median of each chunk, in ms

	// The times relative to bare and to prepared UPDATEs: medians of the ratios of chunks of the
	// same round.
	toBare, toPrepared float64

	statements, roundTrips, allocs float64 // per acquire and release
}

func (b *bench) pairs(at endpoints, rounds, chunk int) ([]*pair, error) {
	rivals := b.servers.available(bare, prepared, ourselves, getLock, handmade, redisLock, redSync, etcd)
	pairs := map[*rival]*pair{}
	clients := map[*rival]client{}
	for _, r := range rivals {
		c, err := r.open(at)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		defer c.close()
		pairs[r], clients[r] = &pair{rival: r}, c
		if _, err := timePairs(b.ctx, c, pick(b, 150, 10)); err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	err := b.interleave(rounds, rivals, func(r *rival) error {
		took, err := timePairs(b.ctx, clients[r], chunk)
		pairs[r].took = append(pairs[r].took, took...)
		pairs[r].chunks = append(pairs[r].chunks, inMillis(took.quantile(0.5)))
		return err
	})
	if err != nil {
		return nil, err
	}

	var result []*pair
	for _, r := range rivals {
		p := pairs[r]
		p.toBare, p.toPrepared = p.ratio(pairs[bare]), p.ratio(pairs[prepared])
		result = append(result, p)
	}
	return result, nil
}

func (p *pair) ratio(limit *pair) float64 {
	var ratios []float64
	for i := range p.chunks {
		ratios = append(ratios, p.chunks[i]/limit.chunks[i])
	}
	return median(ratios)
}

func timePairs(ctx context.Context, c client, n int) (samples, error) {
	took := make(samples, n)
	for i := range took {
		start := now()
		release, err := c.acquire(ctx, "uncontended")
		if err != nil {
			return nil, err
		}
		if err := release(); err != nil {
			return nil, err
		}
		took[i] = now() - start
	}
	return took, nil
}

// count counts the allocations, statements and round trips of a pair.
func (b *bench) count(p *pair) error {
	const n = 50
	// measure runs n pairs on a client that has warmed up.
	measure := func(at endpoints, before, after func(c client)) error {
		c, err := p.rival.open(at)
		if err != nil {
			return err
		}
		defer c.close()
		if _, err := timePairs(b.ctx, c, 10); err != nil {
			return err
		}
		before(c)
		_, err = timePairs(b.ctx, c, n)
		after(c)
		return err
	}

	var from, to runtime.MemStats
	err := measure(b.servers.endpoints, func(client) { runtime.ReadMemStats(&from) }, func(client) { runtime.ReadMemStats(&to) })
	if err != nil {
		return err
	}
	p.allocs = float64((to.Mallocs - from.Mallocs) / n)

	switch {
	case p.rival == etcd:
		var calls int64
		err = measure(b.servers.endpoints,
			func(c client) { calls = c.(*etcdClient).calls.Load() },
			func(c client) { calls = c.(*etcdClient).calls.Load() - calls })
		p.roundTrips = float64(calls) / n
	case !p.rival.mysql:
		var l *link
		if l, err = newLink(b.servers.Redis, 0); err != nil {
			return err
		}
		defer l.close()
		at := b.servers.endpoints
		at.Redis = l.addr()
		err = measure(at, func(client) { l.roundTrips.Store(0) }, func(client) { p.roundTrips = float64(l.roundTrips.Load()) / n })
	default:
		var proxy *wire.Proxy
		if proxy, err = wire.Listen(b.servers.mysqlAddr()); err != nil {
			return err
		}
		defer proxy.Close()
		err = measure(b.servers.withMySQLAddr(proxy.Addr()), func(client) { proxy.Reset() }, func(client) {
			p.statements, p.roundTrips = float64(proxy.Commands())/n, float64(proxy.RoundTrips())/n
		})
	}
	return err
}

// plotPairs adds a panel to the plot of both parts.
func (b *bench) plotPairs(s *section, title string, pairs []*pair) {
	p := &b.uncontendedPlot
	p.title, p.unit = b.titled("Acquire and release a free lock"), "ms, median and p99"
	p.panels = slices.DeleteFunc(p.panels, func(p panel) bool { return p.title == title }) // an earlier, noisier run
	panel := panel{title: title}
	for _, pair := range pairs {
		panel.add(pair.rival, mark{value: inMillis(pair.took.quantile(0.5)), to: inMillis(pair.took.quantile(0.99))})
	}
	p.panels = append(p.panels, panel)
	s.plot("uncontended", p)
}
