package docs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock"
)

// lockAll takes several locks, or none. The context that it returns ends when
// any of them is lost.
func lockAll(ctx context.Context, locker *mysqllock.Locker, wait time.Duration, names ...string) (context.Context, func(), error) {
	deadline := time.Now().Add(wait)
	var locks []*mysqllock.Lock
	unlock := func() {
		for _, lock := range slices.Backward(locks) {
			lock.Unlock()
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		lock, err := locker.TryLock(ctx, name, time.Until(deadline), mysqllock.AutoRenew)
		if err != nil {
			unlock()
			return nil, nil, err
		}
		locks = append(locks, lock)
		ctx = lock.Context()
	}
	return ctx, unlock, nil
}

func Example_lockAll() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	both, unlock, err := lockAll(ctx, locker, time.Second, "account:7", "account:3")
	if err != nil {
		panic(err)
	}
	_, _, err = lockAll(ctx, locker, 0, "account:9", "account:3")
	fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired), locker.Stats().Held)
	locker.ForceUnlock(ctx, "account:3")
	<-both.Done()
	fmt.Println(context.Cause(both))
	unlock()
	fmt.Println(locker.Stats().Held)
	// Output:
	// true 2
	// lock lost
	// 0
}

// importAll ends by itself if a part takes longer than a minute.
func importAll(ctx context.Context, locker *mysqllock.Locker, parts []string, load func(context.Context, string) error) error {
	lock, err := locker.TryLock(ctx, "import", 0, time.Minute)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	for _, part := range parts {
		if err := lock.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if err := load(lock.Context(), part); err != nil {
			return err
		}
	}
	return nil
}

func Example_fixedLease() {
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	err := importAll(context.Background(), locker, []string{"a", "b"}, func(ctx context.Context, part string) error {
		fmt.Println(part)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// a
	// b
	// <nil>
}
