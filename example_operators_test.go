package mysqllock_test

import (
	"context"
	"fmt"

	"github.com/mysqllock/mysqllock"
)

// Operators see the holders, and for which request they hold the lock.
func ExampleLocker_List() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	request := mysqllock.WithHolder(ctx, "request 7f3a")
	for _, name := range []string{"order:42", "order:43"} {
		if _, err := locker.TryLock(request, name, 0, mysqllock.AutoRenew); err != nil {
			panic(err)
		}
	}
	infos, err := locker.List(ctx)
	for _, info := range infos {
		fmt.Println(info.Name, info.Holder)
	}
	fmt.Println(err)
	// Output:
	// order:42 request 7f3a
	// order:43 request 7f3a
	// <nil>
}

func ExampleLocker_ForceUnlock() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	lock, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	held, err := locker.ForceUnlock(ctx, "order:42") // from any process
	fmt.Println(held, err)
	fmt.Println(lock.Err())
	info, err := locker.Inspect(ctx, "order:42")
	fmt.Println(info.Held, err)
	// Output:
	// true <nil>
	// lock lost
	// false <nil>
}

// Rows of names that are not locked any more are deleted now and then.
func ExampleLocker_Purge() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	for _, name := range []string{"upload:1", "upload:2"} {
		lock, err := locker.TryLock(ctx, name, 0, mysqllock.AutoRenew)
		if err != nil {
			panic(err)
		}
		lock.Unlock()
	}
	deleted, err := locker.Purge(ctx, 0) // in a service: 30 * 24 * time.Hour
	fmt.Println(deleted, err)
	// Output:
	// 2 <nil>
}

func ExampleLocker_Stats() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	lock, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	before := locker.Stats()
	fmt.Println(before.Held, before.Acquired)
	lock.Unlock()
	after := locker.Stats()
	fmt.Println(after.Held, after.Released, after.Statements-before.Statements)
	// Output:
	// 1 1
	// 0 1 1
}
