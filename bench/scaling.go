package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// scaling measures locks that are used at the same time and have nothing to do
// with each other.
func (b *bench) scaling() error {
	steps := pick(b, []int{1, 4, 16, 64, 256}, []int{1, 16})
	s := b.report.section("Distinct names", fmt.Sprintf(`
Pairs of acquire and release per second, by that many goroutines of one process,
each with a name of its own. Pools have %d connections.`, poolSize))
	head := []string{""}
	for _, n := range steps {
		head = append(head, fmt.Sprint(n))
	}
	s.table = newTable(head...)
	rivals := b.servers.present(bare, ourselves, redisLock, etcd)
	rates := map[*rival]map[int][]float64{}
	clients := map[*rival]client{}
	for _, r := range rivals {
		c, err := r.open(b.servers.sites)
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

	p := &lines{title: "Distinct names", unit: "pairs of acquire and release per second", along: "goroutines", x: steps}
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
	s.plot("scaling", p)
	return nil
}

// pairRate is the number of pairs per second by n goroutines on as many names.
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
