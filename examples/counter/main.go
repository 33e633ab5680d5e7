// Counter runs two processes that add 1 to the number in a file, ten times each. They read the
// number, wait a moment, and write it: without a lock, updates are lost.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const rounds = 10

var (
	noLock  = flag.Bool("nolock", false, "go without the lock, and see what happens")
	process = flag.String("process", "", "be one of the two processes")
	file    = flag.String("file", "", "the file with the number")
)

func main() {
	flag.Parse()
	run := parent
	if *process != "" {
		run = child
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func child() error {
	if *noLock {
		for range rounds {
			if err := addOne(); err != nil {
				return err
			}
		}
		return nil
	}

	db, err := sql.Open("mysql", os.Getenv("MYSQLLOCK_DSN"))
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithPollInterval(20*time.Millisecond))
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx := context.Background()
	if err := locker.CreateTable(ctx); err != nil { // both may call it at once
		return err
	}
	for range rounds {
		err := locker.Do(ctx, "counter", 30*time.Second, mysqllock.AutoRenew, func(context.Context) error {
			return addOne()
		})
		if err != nil {
			return err
		}
		time.Sleep(30 * time.Millisecond) // other work
	}
	return nil
}

// addOne does the work that the lock must protect.
func addOne() error {
	number, err := read()
	if err != nil {
		return err
	}
	time.Sleep(30 * time.Millisecond)
	fmt.Printf("%s  %2d -> %2d\n", *process, number, number+1)
	return write(number + 1)
}

func read() (int, error) {
	text, err := os.ReadFile(*file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// write replaces the file in one step, so that nobody reads half a number.
func write(number int) error {
	next := *file + "." + *process
	if err := os.WriteFile(next, []byte(strconv.Itoa(number)), 0o600); err != nil {
		return err
	}
	return os.Rename(next, *file)
}

func parent() error {
	dir, err := os.MkdirTemp("", "counter-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	*file = filepath.Join(dir, "number")
	if err := write(0); err != nil {
		return err
	}
	var dsn string
	if !*noLock {
		var stop func()
		if dsn, stop, err = demo.Database(); err != nil {
			return err
		}
		defer stop()
	}

	var processes []*exec.Cmd
	for _, name := range []string{"A", "B"} {
		p := demo.Process(dsn, "-process", name, "-file", *file, fmt.Sprintf("-nolock=%t", *noLock))
		if err := p.Start(); err != nil {
			return err
		}
		processes = append(processes, p)
	}
	for _, p := range processes {
		err = errors.Join(err, p.Wait())
	}
	if err != nil {
		return err
	}

	number, err := read()
	if err != nil {
		return err
	}
	const want = 2 * rounds
	switch {
	case *noLock && number < want:
		fmt.Printf("\nwithout the lock: %d instead of %d, %d updates lost\n", number, want, want-number)
	case *noLock:
		return errors.New("no update was lost this time: try again")
	case number == want:
		fmt.Printf("\nok: %d, no update lost\n", number)
	default:
		return fmt.Errorf("%d instead of %d: %d updates lost under the lock", number, want, want-number)
	}
	return nil
}
