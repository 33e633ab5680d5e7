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

// scaling measures goroutines that use different locks at the same time.
func (b *bench) scaling() error {
	steps := pick(b, []int{1, 4, 16, 64, 256}, []int{1, 16})
	s := b.report.section("Distinct names", fmt.Sprintf(`
Pairs of acquire and release per second in so many goroutines of one process, each
with its own name. Pools have %d connections. The last rows are ratios to the bare
UPDATEs: medians of the ratios of chunks of the same round.`, poolSize))
	head := []string{""}
	for _, n := range steps {
		head = append(head, fmt.Sprint(n))
	}
	s.table = newTable(head...)
	rivals := b.servers.available(bare, prepared, ourselves, redisLock, etcd)
	rates := map[*rival]map[int][]float64{}
	clients := map[*rival]client{}
	for _, r := range rivals {
		c, err := r.open(b.servers.endpoints)
		if err != nil {
			return err
		}
		defer c.close()
		rates[r], clients[r] = map[int][]float64{}, c
		if err := warm(b.ctx, c, numbered("distinct", steps[len(steps)-1])...); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	for _, n := range steps {
		err := b.interleave(pick(b, 3, 1), rivals, func(r *rival) error {
			rate, err := pairRate(b.ctx, clients[r], n, pick(b, 700*time.Millisecond, 200*time.Millisecond))
			rates[r][n] = append(rates[r][n], rate)
			return err
		})
		if err != nil {
			return err
		}
	}

	p := &lines{title: b.titled("Distinct names"), unit: "pairs of acquire and release per second", xTitle: "goroutines", x: steps}
	for _, r := range rivals {
		var row []string
		l := line{label: r.name, ours: r.ours}
		for _, n := range steps {
			row = append(row, digits(median(rates[r][n])))
			l.y = append(l.y, median(rates[r][n]))
		}
		s.table.add(r, row...)
		p.lines = append(p.lines, l)
	}
	for _, limit := range []*rival{bare, prepared} {
		row := []string{"mysqllock ÷ " + limit.name}
		for _, n := range steps {
			var ratios []float64
			for i, rate := range rates[ourselves][n] {
				ratios = append(ratios, rate/rates[limit][n][i])
			}
			ratio := median(ratios)
			row = append(row, digits(ratio)+" ×")
			if smallest, ok := scalingGoals[n]; ok && limit == bare {
				b.report.goal(goalScaling(n), digits(ratio)+" ×", ratio >= smallest)
			}
		}
		s.table.addRow(true, row...)
	}
	s.plot("scaling", p)
	return b.acquireMany()
}

// acquireMany measures how fast many locks are acquired, and then released by Close.
func (b *bench) acquireMany() error {
	const goroutines = poolSize
	n := pick(b, 10_000, 200)
	s := b.report.section("Many locks", fmt.Sprintf(`
%d goroutines of one process acquire %s locks, whose names were locked before, and
Close releases them. The first two columns are medians of the runs; the others are
quantiles of all acquires.`, goroutines, thousands(int64(n))))
	s.table = newTable("", "all acquired, s", "Close, s", "one acquire, p50, ms", "p99, ms")
	var acquired, closed []float64
	var took samples
	for round := range pick(b, 4, 2) {
		if err := b.sampleNoise(); err != nil {
			return err
		}
		c, err := openOurs(b.servers.endpoints)
		if err != nil {
			return err
		}
		start := now()
		times, err := acquireEach(b.ctx, c.locker, numbered("many", n), goroutines)
		between := now()
		err = errors.Join(err, c.locker.Close())
		end := now()
		c.db.Close()
		if err != nil {
			return err
		}
		if round == 0 {
			continue // this round only created the rows
		}
		took = append(took, times...)
		acquired, closed = append(acquired, (between-start).Seconds()), append(closed, (end-between).Seconds())
	}
	s.table.add(ourselves, digits(median(acquired)), digits(median(closed)), millis(took.quantile(0.5)), millis(took.quantile(0.99)))
	b.report.goal(goalAcquireMany, digits(median(acquired))+" s, one p99 "+millis(took.quantile(0.99))+" ms", median(acquired) <= 1.5)
	b.report.goal(goalCloseMany, digits(median(closed))+" s", median(closed) <= 0.5)
	return nil
}

// acquireEach acquires a lock of each name, and returns the time of each acquire.
func acquireEach(ctx context.Context, locker *mysqllock.Locker, names []string, goroutines int) (samples, error) {
	took, errs := make(samples, len(names)), make([]error, goroutines)
	var next atomic.Int64
	var running sync.WaitGroup
	for g := range errs {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names) && errs[g] == nil; i = int(next.Add(1)) - 1 {
				start := now()
				_, errs[g] = locker.TryLock(ctx, names[i], time.Minute, mysqllock.AutoRenew)
				took[i] = now() - start
			}
		})
	}
	running.Wait()
	return took, errors.Join(errs...)
}

// pairRate returns the number of pairs per second of n goroutines, each with its own name.
func pairRate(ctx context.Context, c client, n int, d time.Duration) (float64, error) {
	var pairs atomic.Int64
	var running sync.WaitGroup
	errs := make([]error, n)
	start := time.Now()
	for i, name := range numbered("distinct", n) {
		running.Go(func() {
			for time.Since(start) < d {
				release, err := c.acquire(ctx, name)
				if err == nil {
					err = release()
				}
				if err != nil {
					errs[i] = err
					return
				}
				pairs.Add(1)
			}
		})
	}
	running.Wait()
	return float64(pairs.Load()) / time.Since(start).Seconds(), errors.Join(errs...)
}
