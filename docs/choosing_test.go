package docs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock"
)

// once runs a job that every host starts at about the same time.
func once(ctx context.Context, locker *mysqllock.Locker, run func(context.Context) error) error {
	lock, err := locker.TryLock(ctx, "report", 0, mysqllock.AutoRenew)
	if errors.Is(err, mysqllock.ErrNotAcquired) {
		return nil // another host runs it, or has run it
	}
	if err != nil {
		return err
	}
	if err := run(lock.Context()); err != nil {
		return errors.Join(err, lock.Unlock()) // another host may try
	}
	return lock.UnlockAfter(10 * time.Minute)
}

func Example_once() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	for host, fails := range []bool{true, false, false} {
		err := once(ctx, locker, func(context.Context) error {
			fmt.Println("host", host, "runs the job")
			if fails {
				return errors.New("it fails")
			}
			return nil
		})
		fmt.Println(err)
	}
	info, err := locker.Inspect(ctx, "report")
	fmt.Println(info.Held, info.ExpiresAt.Sub(info.AcquiredAt), err)
	// Output:
	// host 0 runs the job
	// it fails
	// host 1 runs the job
	// <nil>
	// <nil>
	// true 10m0s <nil>
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
