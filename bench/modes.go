package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock"
)

// modes measures shared locks, permits and sets of locks.
func (b *bench) modes() error {
	s := b.report.section("Shared locks, permits, several locks", fmt.Sprintf(`
Median time of an acquire and a release in one goroutine. In the last row, %d Lockers with
%d readers each share a lock, each reader for %s at a time, while one request after the other
acquires it exclusively.`, readingLockers, readersEach, spaced(reading)))
	s.table = newTable("", "statements", "median, ms", "× one lock")
	c, err := openOurs(b.servers.endpoints)
	if err != nil {
		return err
	}
	defer c.close()

	rows := b.modeRows(c.locker)
	for _, r := range rows { // creates the rows of all names, and prepares the statements
		if err := r.measure(b, c.locker, pick(b, 120, 3)); err != nil {
			return fmt.Errorf("%s: %w", r.title, err)
		}
		r.took = nil
	}
	for range pick(b, 20, 2) {
		if err := b.sampleNoise(); err != nil {
			return err
		}
		for _, r := range rows {
			if err := r.measure(b, c.locker, pick(b, 15, 3)); err != nil {
				return fmt.Errorf("%s: %w", r.title, err)
			}
		}
	}
	single := rows[0].took.quantile(0.5)
	for _, r := range rows {
		median := r.took.quantile(0.5)
		s.table.addRow(false, r.title, digits(float64(r.statements)/float64(r.count)), millis(median), digits(float64(median)/float64(single)))
		switch r.title {
		case titleJoin:
			b.report.goal(goalJoin, fmt.Sprintf("%s µs, %d statements", digits(1000*inMillis(median)), r.statements), median < time.Microsecond && r.statements == 0)
		case titleAll:
			b.report.goal(goalAll, digits(float64(median)/float64(single))+" ×", median <= 3*single)
		}
	}
	waited, err := b.writerAmongReaders(c.locker)
	if err != nil {
		return err
	}
	times := float64(waited.quantile(0.5)) / float64(reading)
	s.table.addRow(false, "one exclusive request among the readers", "", millis(waited.quantile(0.5)), "")
	b.report.goal(goalWriter, digits(times)+" ×", times <= 1.5)
	return nil
}

const (
	readingLockers, readersEach = 8, 8
	reading                     = 100 * time.Millisecond // how long a reader holds the lock

	titleJoin = "a further shared hold in the process"
	titleAll  = "100 locks at once"
)

// A modeRow is a row of the table: one operation.
type modeRow struct {
	title      string
	do         func(ctx context.Context) error
	batch      int // operations in one measurement: many if each is very short
	took       samples
	statements int64 // of the last call of measure, which executed count operations
	count      int
}

// measure executes n batches, and adds their times.
func (r *modeRow) measure(b *bench, l *mysqllock.Locker, n int) error {
	before := l.Stats().Statements
	for range n {
		start := now()
		for range r.batch {
			if err := r.do(b.ctx); err != nil {
				return err
			}
		}
		r.took = append(r.took, (now()-start)/time.Duration(r.batch))
	}
	r.statements, r.count = l.Stats().Statements-before, n*r.batch
	return nil
}

func (b *bench) modeRows(l *mysqllock.Locker) []*modeRow {
	release := func(k interface{ Unlock() error }, err error) error {
		if err != nil {
			return err
		}
		return k.Unlock()
	}
	names := numbered("all", 100)
	permits := l.Semaphore("permits", 10)
	return []*modeRow{
		{title: "one lock", batch: 1, do: func(ctx context.Context) error { return release(l.Lock(ctx, "one", mysqllock.AutoRenew)) }},
		{title: "a first shared hold", batch: 1, do: func(ctx context.Context) error { return release(l.RLock(ctx, "shared", mysqllock.AutoRenew)) }},
		{title: titleJoin, batch: 1000, do: b.joinShared(l)},
		{title: "a permit", batch: 1, do: func(ctx context.Context) error { return release(permits.Acquire(ctx, mysqllock.AutoRenew)) }},
		{title: titleAll, batch: 1, do: func(ctx context.Context) error {
			return release(l.TryLockAll(ctx, names, mysqllock.WaitForever, mysqllock.AutoRenew))
		}},
	}
}

// joinShared returns a function that joins a shared hold and leaves it again. The hold begins at its
// first call and is never released.
func (b *bench) joinShared(l *mysqllock.Locker) func(ctx context.Context) error {
	begin := sync.OnceValue(func() error {
		_, err := l.RLock(b.ctx, "joined", mysqllock.AutoRenew)
		return err
	})
	return func(ctx context.Context) error {
		if err := begin(); err != nil {
			return err
		}
		k, err := l.RLock(ctx, "joined", mysqllock.AutoRenew)
		if err != nil {
			return err
		}
		return k.Unlock()
	}
}

// writerAmongReaders returns how long exclusive requests wait while readers continue to arrive.
func (b *bench) writerAmongReaders(writer *mysqllock.Locker) (waited samples, err error) {
	ctx, cancel := context.WithCancel(b.ctx)
	var readers sync.WaitGroup
	errs := make(chan error, readingLockers*readersEach)
	defer func() {
		cancel()
		readers.Wait()
		close(errs)
		for e := range errs {
			err = errors.Join(err, e)
		}
	}()
	for range readingLockers {
		c, err := openOurs(b.servers.endpoints)
		if err != nil {
			return nil, err
		}
		defer func() {
			cancel()
			readers.Wait()
			c.close()
		}()
		for range readersEach {
			readers.Go(func() {
				for ctx.Err() == nil {
					k, err := c.locker.RLock(ctx, "read", mysqllock.AutoRenew)
					if ctx.Err() == nil && err != nil {
						errs <- err
						return
					} else if err != nil {
						return
					}
					time.Sleep(reading)
					if err := k.Unlock(); err != nil {
						errs <- err
						return
					}
				}
			})
		}
	}
	for range pick(b, 60, 3) {
		if err := b.sleep(100 * time.Millisecond); err != nil {
			return nil, err
		}
		start := now()
		k, err := writer.Lock(ctx, "read", mysqllock.AutoRenew)
		if err != nil {
			return nil, err
		}
		waited = append(waited, now()-start)
		if err := k.Unlock(); err != nil {
			return nil, err
		}
	}
	return waited, nil
}
