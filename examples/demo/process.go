//go:build unix

package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mysqllock/mysqllock"
)

// process is the main function of the processes of the demo, each with a pool and a Locker of
// its own. It prints lines about its lock.
func process(name, lock string, turns int) error {
	db, err := sql.Open("mysql", os.Getenv("MYSQLLOCK_DSN"))
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithIdentity("process "+name), mysqllock.WithLease(lease), mysqllock.WithPollInterval(poll))
	if err != nil {
		return err
	}
	defer locker.Close()
	if turns > 0 {
		return takeTurns(db, locker, lock, turns)
	}
	return obey(db, locker, lock, name)
}

func takeTurns(db *sql.DB, locker *mysqllock.Locker, name string, turns int) error {
	for range turns {
		if err := takeTurn(db, locker, name); err != nil {
			return err
		}
		time.Sleep(poll) // other work
	}
	return nil
}

func takeTurn(db *sql.DB, locker *mysqllock.Locker, name string) error {
	lock, err := locker.TryLock(ctx, name, 30*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	fmt.Println("got", lock.Token())
	_, err = db.ExecContext(lock.Context(), "INSERT INTO demo_turn (token, began) VALUES (?, UTC_TIMESTAMP(6))", lock.Token())
	if err != nil {
		return err
	}
	time.Sleep(poll)
	_, err = db.ExecContext(lock.Context(), "UPDATE demo_turn SET ended = UTC_TIMESTAMP(6) WHERE token = ?", lock.Token())
	return err
}

// obey takes the lock and keeps it; at each line of its input it writes an entry.
// It ends with its input, and so with the demo.
func obey(db *sql.DB, locker *mysqllock.Locker, lockName, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	orders := make(chan string)
	go func() {
		defer cancel()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			orders <- in.Text()
		}
		close(orders)
	}()

	lock, err := locker.Lock(ctx, lockName, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	fmt.Println("got", lock.Token())
	over := lock.Context().Done()
	for {
		select {
		case <-over:
			fmt.Println("lost", word(context.Cause(lock.Context())))
			over = nil
		case _, ok := <-orders:
			if !ok {
				return nil // closing the Locker releases the lock
			}
			fmt.Println("write", word(write(db, lock, name)))
		}
	}
}

// write adds an entry in a transaction that only the holder of the lock can
// commit. It does so without lock.Context(), as code that forgot it would.
func write(db *sql.DB, lock *mysqllock.Lock, name string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := lock.Guard(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO demo_entry (process) VALUES (?)", name); err != nil {
		return err
	}
	return tx.Commit()
}

func word(err error) string {
	switch {
	case err == nil:
		return "committed"
	case errors.Is(err, mysqllock.ErrLost):
		return "ErrLost"
	default:
		return err.Error()
	}
}
