package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/mysqllock/mysqllock"
)

// A measurement is one row of the result.
type measurement struct {
	What       string  `json:"what"`
	Goroutines int     `json:"goroutines"`
	PerSecond  float64 `json:"per_second"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Max        float64 `json:"max_ms"`
}

func newBench(from *source) *cobra.Command {
	var asJSON bool
	var goroutines int
	duration := period{Duration: 2 * time.Second}
	c := &cobra.Command{
		Use:   "bench [--duration 2s] [-c 8] [--json]",
		Short: "Measure what a lock costs on this server",
		Long: `Measure acquire and release of a free lock, one after the other and by several
goroutines with a lock each, beside two bare UPDATEs of a row, which is the least
that any lock in a table can cost, and beside a round trip.

It works on a table of its own in the database of --table or of the DSN, which it
drops at the end, and touches no other. It needs CREATE and DROP there. If it is
killed, the table stays: it is named mysqllock_bench_… and can be dropped.`,
		Example: `  mysqllock bench
  mysqllock bench --duration 10s -c 32 --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if goroutines < 1 || goroutines > 1000 {
				return usage("-c %d: want 1 to 1000", goroutines)
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			results, err := measure(ctx, from, goroutines, duration.Duration)
			switch {
			case err != nil && ctx.Err() != nil:
				return exit{exitFailed, errors.New("interrupted")}
			case err != nil:
				return err
			case asJSON:
				return writeJSON(c.OutOrStdout(), results)
			}
			rows := [][]string{{"", "GOROUTINES", "PER SECOND", "P50 ms", "P99 ms", "MAX ms"}}
			for _, m := range results {
				rows = append(rows, []string{
					m.What, strconv.Itoa(m.Goroutines), fmt.Sprintf("%.0f", m.PerSecond),
					fmt.Sprintf("%.2f", m.P50), fmt.Sprintf("%.2f", m.P99), fmt.Sprintf("%.2f", m.Max),
				})
			}
			return writeTable(c.OutOrStdout(), rows...)
		},
	}
	c.Flags().Var(&duration, "duration", "how long each of the five measurements takes")
	c.Flags().IntVarP(&goroutines, "concurrency", "c", 8, "how many goroutines work at once, on a connection each")
	c.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return c
}

func measure(ctx context.Context, from *source, goroutines int, d time.Duration) (results []measurement, err error) {
	db, err := from.open()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxIdleConns(goroutines + 2)
	table := fmt.Sprintf("mysqllock_bench_%08x", rand.Uint32())
	if database, _, found := strings.Cut(from.table, "."); found {
		table = database + "." + table
	}
	quoted, err := quoteTable(table)
	if err != nil {
		return nil, err
	}
	l, err := mysqllock.New(db, mysqllock.WithTable(table))
	if err != nil {
		return nil, usage("%w", err)
	}
	var refused *mysql.MySQLError // of the statement that creates the table: then there is none
	defer func() {
		err = errors.Join(err, l.Close())
		if refused != nil {
			return
		}
		ctx, cancel := bounded(context.Background())
		defer cancel()
		if _, dropErr := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+quoted); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("the table %s may be left: %w", table, dropErr))
		}
	}()
	createCtx, cancel := bounded(ctx)
	defer cancel()
	if err := l.CreateTable(createCtx); err != nil {
		errors.As(err, &refused)
		return nil, err
	}

	for i := range goroutines { // the rows are there before it counts
		if err := pair(ctx, l, benchName(i)); err != nil {
			return nil, err
		}
	}
	roundTrip := func(ctx context.Context, _ string) error {
		var one int
		return db.QueryRowContext(ctx, "SELECT 1").Scan(&one)
	}
	updates := func(ctx context.Context, name string) error {
		for _, holds := range []string{"1", "0"} {
			if _, err := db.ExecContext(ctx, "UPDATE "+quoted+" SET holds = "+holds+", acquired_at = UTC_TIMESTAMP(6) WHERE name = '"+name+"'"); err != nil {
				return err
			}
		}
		return nil
	}
	lockAndUnlock := func(ctx context.Context, name string) error { return pair(ctx, l, name) }
	for _, m := range []struct {
		what       string
		goroutines int
		fn         func(ctx context.Context, name string) error
	}{
		{"SELECT 1", 1, roundTrip},
		{"two bare UPDATEs", 1, updates},
		{"acquire and release", 1, lockAndUnlock},
		{"two bare UPDATEs", goroutines, updates},
		{"acquire and release", goroutines, lockAndUnlock},
	} {
		began := time.Now()
		took, err := repeat(ctx, m.goroutines, d, m.fn)
		elapsed := time.Since(began) // at least d
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.what, err)
		}
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		results = append(results, measurement{
			What: m.what, Goroutines: m.goroutines,
			PerSecond: float64(len(took)) / elapsed.Seconds(),
			P50:       ms(took[len(took)/2]), P99: ms(took[len(took)*99/100]), Max: ms(took[len(took)-1]),
		})
	}
	return results, nil
}

func benchName(i int) string { return "bench " + strconv.Itoa(i) }

func pair(ctx context.Context, l *mysqllock.Locker, name string) error {
	k, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	return k.Unlock()
}

// repeat runs fn for that time in each goroutine, which has a name of its own, and
// returns how long each run took.
func repeat(ctx context.Context, goroutines int, d time.Duration, fn func(ctx context.Context, name string) error) (took []time.Duration, err error) {
	var mu sync.Mutex // guards took and err
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for i := range goroutines {
		all.Go(func() {
			var mine []time.Duration
			var failed error
			for failed == nil && (len(mine) == 0 || time.Now().Before(end)) {
				start := time.Now()
				failed = fn(ctx, benchName(i))
				mine = append(mine, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			err = errors.Join(err, failed)
		})
	}
	all.Wait()
	return took, err
}
