// Handover has a process A that holds a lock for 15 s, and a process B with two workers, which
// wait for the lock for up to 17 s each, and get it one after the other.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

var (
	scale  = flag.Float64("scale", 1, "factor of all times: with 0.1, 15 s are 1.5 s")
	ctx    = context.Background()
	start  time.Time
	inside atomic.Int32 // how many hold the lock at this moment
)

func main() {
	flag.Parse()
	dsn, stop, err := demo.Database()
	if err != nil {
		log.Fatal(err)
	}
	err = run(dsn)
	stop()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("\nok: all three had the lock, never two at once")
}

func run(dsn string) error {
	a, err := open(dsn)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := open(dsn)
	if err != nil {
		return err
	}
	defer b.Close()

	start = time.Now()
	lock, err := a.TryLock(ctx, "test", 0, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	inside.Add(1)
	say("A", "got it at once", lock)

	workers := make(chan error)
	for _, name := range []string{"B, worker 1", "B, worker 2"} {
		go func() { workers <- work(b, name) }()
	}

	time.Sleep(seconds(15))
	say("A", "gives it back", lock)
	inside.Add(-1)
	return errors.Join(lock.Unlock(), <-workers, <-workers)
}

// open returns a Locker on a pool of its own, as each process has.
func open(dsn string) (*mysqllock.Locker, error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	locker, err := mysqllock.New(db, mysqllock.WithPollInterval(seconds(0.2)))
	if err != nil {
		return nil, err
	}
	return locker, locker.CreateTable(ctx)
}

func work(locker *mysqllock.Locker, name string) error {
	began := time.Now()
	lock, err := locker.TryLock(ctx, "test", seconds(17), seconds(10))
	if errors.Is(err, mysqllock.ErrNotAcquired) {
		return fmt.Errorf("%s waited in vain: %w", name, err)
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()

	if inside.Add(1) != 1 {
		return errors.New("two hold the lock at once")
	}
	defer inside.Add(-1)
	say(name, fmt.Sprintf("got it after %.2f s", time.Since(began).Seconds()), lock)
	time.Sleep(seconds(0.5))
	say(name, "gives it back", lock)
	return nil
}

func seconds(s float64) time.Duration {
	return time.Duration(s * *scale * float64(time.Second))
}

func say(who, what string, lock *mysqllock.Lock) {
	fmt.Printf("%6.2f s  %-12s %-22s token %d\n", time.Since(start).Seconds(), who, what, lock.Token())
}
