package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/mysqllock/mysqllock"
)

func ExampleNew() {
	ctx := context.Background()
	_, db := open()
	defer db.Close()

	locker, err := mysqllock.New(db, // all options have defaults
		mysqllock.WithTable("billing_locks"),
		mysqllock.WithIdentity("billing-1"),                                 // what operators see as the holder
		mysqllock.WithLease(10*time.Second),                                 // for how long a crashed process keeps its locks
		mysqllock.WithPollInterval(2*time.Second),                           // where signals do not arrive
		mysqllock.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))), // losses, failing renewals
	)
	if err != nil {
		panic(err)
	}
	defer locker.Close() // releases the locks that are still held
	if err := locker.CreateTable(ctx); err != nil {
		panic(err)
	}
	lock, err := locker.TryLock(ctx, "invoice:7", 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	defer lock.Unlock()
	info, err := locker.Inspect(ctx, "invoice:7")
	fmt.Println(info.Held, info.Holder, err)
	// Output:
	// true billing-1 <nil>
}

func ExampleLocker_TryLock() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	first, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	fmt.Println(first.Name(), err)
	_, err = locker.TryLock(ctx, "order:42", 10*time.Millisecond, mysqllock.AutoRenew)
	fmt.Println(err)
	again, err := locker.TryLock(first.Context(), "order:42", 0, mysqllock.AutoRenew) // the same owner
	fmt.Println(again.Token() == first.Token(), err)
	fmt.Println(again.Unlock(), first.Unlock())
	// Output:
	// order:42 <nil>
	// mysqllock: acquire "order:42": not acquired
	// true <nil>
	// <nil> <nil>
}

// Lock waits until its context ends.
func ExampleLocker_Lock() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	held, err := locker.Lock(ctx, "order:42", mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = locker.Lock(short, "order:42", mysqllock.AutoRenew)
	fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded))

	time.AfterFunc(10*time.Millisecond, func() { held.Unlock() })
	next, err := locker.Lock(ctx, "order:42", mysqllock.AutoRenew)
	fmt.Println(next.Token() > held.Token(), err)
	// Output:
	// true true
	// true <nil>
}

// Readers share the name; a writer has it alone.
func ExampleLocker_TryRLock() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	one, err := locker.TryRLock(ctx, "catalog", 0, mysqllock.AutoRenew)
	fmt.Println(one.Shared(), err)
	two, err := locker.TryRLock(ctx, "catalog", 0, mysqllock.AutoRenew)
	fmt.Println(two.Shared(), err)
	_, err = locker.TryLock(ctx, "catalog", 0, mysqllock.AutoRenew)
	fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired))
	fmt.Println(one.Unlock(), two.Unlock())
	_, err = locker.TryLock(ctx, "catalog", time.Second, mysqllock.AutoRenew)
	fmt.Println(err)
	// Output:
	// true <nil>
	// true <nil>
	// true
	// <nil> <nil>
	// <nil>
}

// Two workers at a time, of all processes.
func ExampleSemaphore_TryAcquire() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	workers := locker.Semaphore("workers", 2)
	one, err := workers.TryAcquire(ctx, 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	two, err := workers.TryAcquire(ctx, 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	_, err = workers.TryAcquire(ctx, 0, mysqllock.AutoRenew)
	fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired))
	fmt.Println(one.Slot() + two.Slot()) // slots 1 and 2
	holders, err := workers.Holders(ctx)
	fmt.Println(len(holders), err)
	fmt.Println(one.Unlock())
	three, err := workers.TryAcquire(ctx, time.Second, mysqllock.AutoRenew)
	fmt.Println(three.Slot() == one.Slot(), err)
	// Output:
	// true
	// 3
	// 2 <nil>
	// <nil>
	// true <nil>
}

// The context of a lock ends when the lock is lost.
func ExampleLock_Context() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	lock, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	fmt.Println(lock.Err(), lock.Context().Err(), lock.Remaining() > 20*time.Second)
	locker.ForceUnlock(ctx, "order:42") // or the database cannot be reached for longer than the lease
	<-lock.Context().Done()
	fmt.Println(context.Cause(lock.Context()))
	fmt.Println(lock.Err(), lock.Remaining())
	fmt.Println(lock.Unlock())
	// Output:
	// <nil> <nil> true
	// lock lost
	// lock lost 0s
	// mysqllock: unlock "order:42": lock lost
}
