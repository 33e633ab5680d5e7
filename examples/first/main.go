// First is a first program, to be copied into a module of your own.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

var work = flag.Duration("work", time.Minute, "how long it works under the lock")

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dsn := os.Getenv("MYSQLLOCK_DSN")
	if dsn == "" {
		return errors.New("MYSQLLOCK_DSN is not set")
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db) // once per process
	if err != nil {
		return err
	}
	defer locker.Close()                            // releases the locks that are still held
	if err := locker.CreateTable(ctx); err != nil { // or schema.sql, if the account may not CREATE
		return err
	}
	return shipOrder(ctx, locker)
}

func shipOrder(ctx context.Context, locker *mysqllock.Locker) error {
	err := locker.Do(ctx, "order:42", 3*time.Second, mysqllock.AutoRenew, func(ctx context.Context) error {
		return ship(ctx) // ctx identifies the owner, and ends if the lock is lost
	})
	switch {
	case errors.Is(err, mysqllock.ErrNotAcquired):
		return fmt.Errorf("another process is shipping it: %w", err) // HTTP 409
	case errors.Is(err, mysqllock.ErrUnavailable):
		return fmt.Errorf("the database does not answer: %w", err) // HTTP 503
	}
	return err // ship's own error, joined with ErrLost if the lock was lost while ship ran
}

func ship(ctx context.Context) error {
	fmt.Println("shipping for", *work)
	select {
	case <-time.After(*work):
		fmt.Println("shipped")
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
