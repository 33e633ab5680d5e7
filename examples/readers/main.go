// Readers has one process that refreshes a cache under an exclusive lock, and four that read it
// under a shared lock: at the same time as each other, but never during a refresh.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	readers   = 4
	reads     = 6 // of each reader
	refreshes = 4
	wait      = 30 * time.Second
)

var (
	reader    = flag.Int("reader", 0, "be the reader of this number")
	refresher = flag.Bool("refresher", false, "be the process that refreshes the cache")
	dir       = flag.String("dir", "", "the directory of the cache")
)

func main() {
	flag.Parse()
	run := parent
	if *reader > 0 || *refresher {
		run = child
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func child() error {
	db, err := sql.Open("mysql", os.Getenv("MYSQLLOCK_DSN"))
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx := context.Background()
	if *refresher {
		for version := range refreshes {
			time.Sleep(60 * time.Millisecond)
			if err := refresh(ctx, locker, version+2); err != nil {
				return err
			}
		}
		return nil
	}
	for range reads {
		time.Sleep(rand.N(40 * time.Millisecond))
		if err := read(ctx, locker); err != nil {
			return err
		}
	}
	return nil
}

// refresh writes the next version of the cache, for which it holds the lock alone.
func refresh(ctx context.Context, locker *mysqllock.Locker, version int) error {
	return locker.Do(ctx, "cache", wait, mysqllock.AutoRenew, func(context.Context) error {
		fmt.Println("writes", version)
		defer fmt.Println("written")
		return write(version)
	})
}

// read reads the cache together with other readers.
func read(ctx context.Context, locker *mysqllock.Locker) error {
	lock, err := locker.TryRLock(ctx, "cache", wait, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	fmt.Println("reads", *reader)
	defer fmt.Println("ends")

	var versions [2]string
	for i, file := range files() {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		versions[i] = string(text)
		time.Sleep(20 * time.Millisecond)
	}
	if versions[0] != versions[1] {
		return fmt.Errorf("reader %d read prices of version %s and stocks of version %s", *reader, versions[0], versions[1])
	}
	return nil
}

// files are the two files of the cache, which belong together.
func files() [2]string {
	return [2]string{filepath.Join(*dir, "prices"), filepath.Join(*dir, "stocks")}
}

func write(version int) error {
	for _, file := range files() {
		if err := os.WriteFile(file, []byte(strconv.Itoa(version)), 0o600); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	if *dir, err = os.MkdirTemp("", "readers-"); err != nil {
		return err
	}
	defer os.RemoveAll(*dir)
	if err := errors.Join(write(1), demo.Prepare(dsn)); err != nil {
		return err
	}

	args := [][]string{{"-refresher", "-dir", *dir}}
	for i := range readers {
		args = append(args, []string{fmt.Sprintf("-reader=%d", i+1), "-dir", *dir})
	}
	var seen watcher
	if err := demo.Run(dsn, args, seen.line); err != nil {
		return err
	}
	fmt.Printf("\n%d reads, up to %d at a time; %d refreshes\n", seen.reads, seen.most, seen.refreshes)
	if seen.reads != readers*reads || seen.refreshes != refreshes {
		return errors.New("a read or a refresh is missing")
	}
	if seen.most < 2 {
		return errors.New("the readers excluded each other")
	}
	fmt.Println("ok: no read during a refresh")
	return nil
}

// A watcher follows what the processes print: each line is written under the lock.
type watcher struct {
	reading, most, reads, refreshes int
	writing                         bool
}

func (w *watcher) line(text string) error {
	var what string
	var number int
	fmt.Sscan(text, &what, &number)
	switch {
	case what == "writes":
		fmt.Printf("refresher writes version %d\n", number)
		if w.reading > 0 || w.writing {
			return errors.New("a refresh began during a read, or another refresh")
		}
		w.writing = true
		w.refreshes++
	case what == "written":
		w.writing = false
	case what == "reads":
		w.reading++
		w.reads++
		w.most = max(w.most, w.reading)
		fmt.Printf("reader %d reads, %d at a time\n", number, w.reading)
		if w.writing {
			return errors.New("a read began during a refresh")
		}
	case what == "ends":
		w.reading--
	default:
		fmt.Println(text)
	}
	return nil
}
