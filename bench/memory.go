package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/mysqllock/mysqllock"
)

// memory measures what locks cost within the process.
func (b *bench) memory() error {
	s := b.report.section("In the process", `
Memory of a held lock, allocations of acquire and release, and the cost of
re-entry, which sends no statement.`)
	s.table = newTable("", "")
	c, err := openOurs(b.servers.endpoints)
	if err != nil {
		return err
	}
	defer c.close()

	// The first locks allocate what all locks have in common.
	if _, err := timePairs(b.ctx, c, 10); err != nil {
		return err
	}
	allocs, bytes, err := allocated(pick(b, 500, 50), func() error {
		_, err := timePairs(b.ctx, c, 1)
		return err
	})
	if err != nil {
		return err
	}

	if err := b.sampleNoise(); err != nil {
		return err
	}
	again, err := b.reenter(c.locker)
	if err != nil {
		return err
	}
	n := pick(b, 10_000, 500)
	before := heap()
	locks, err := b.acquireUnflushed(c.locker, n)
	if err != nil {
		return err
	}
	each := float64(heap()-before) / float64(n)
	runtime.KeepAlive(locks)

	s.table.addRow(false, fmt.Sprintf("a held lock (of %s)", thousands(int64(n))), digits(each)+" bytes")
	s.table.addRow(false, "acquire and release", fmt.Sprintf("%s allocations, %s bytes", digits(allocs), digits(bytes)))
	s.table.addRow(true, "re-entry and its Unlock", fmt.Sprintf("%s ns, %s allocations, %s bytes, %d statements",
		digits(again.nanos), digits(again.allocs), digits(again.bytes), again.statements))
	b.report.goal(goalReentry, fmt.Sprintf("%s ns, %d statements, %s allocations", digits(again.nanos), again.statements, digits(again.allocs)),
		again.nanos < 1000 && again.statements == 0 && again.allocs <= 3)
	return nil
}

// heap returns the number of bytes in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees what the first one made unreachable
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// allocated returns the allocations and bytes per call of fn. It rounds down, because other
// goroutines allocate, too.
func allocated(n int, fn func() error) (allocs, bytes float64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		if err := fn(); err != nil {
			return 0, 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / uint64(n)), float64((after.TotalAlloc - before.TotalAlloc) / uint64(n)), nil
}

type reentry struct {
	nanos, allocs, bytes float64
	statements           int64
}

func (b *bench) reenter(locker *mysqllock.Locker) (r reentry, err error) {
	lock, err := locker.Lock(b.ctx, "reentered", mysqllock.AutoRenew)
	if err != nil {
		return r, err
	}
	defer lock.Unlock()
	ctx := lock.Context()
	again := func() error { return reenter(ctx, locker) }
	if r.allocs, r.bytes, err = allocated(1000, again); err != nil {
		return r, err
	}
	before := locker.Stats().Statements
	var chunks []float64
	for range pick(b, 200, 20) {
		const n = 1000
		start := time.Now()
		for range n {
			if err := again(); err != nil {
				return r, err
			}
		}
		chunks = append(chunks, float64(time.Since(start).Nanoseconds())/n)
	}
	r.nanos, r.statements = median(chunks), locker.Stats().Statements-before
	return r, nil
}

func reenter(ctx context.Context, locker *mysqllock.Locker) error {
	lock, err := locker.Lock(ctx, "reentered", mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	return lock.Unlock()
}
