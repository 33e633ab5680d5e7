package docs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/leader"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

// The code of the pages that describe one primitive each, and of their unit tests.

// refund pays for an order, unless another caller is doing so.
func refund(ctx context.Context, locker *mysqllock.Locker, order string, pay func(context.Context) error) (err error) {
	lock, err := locker.TryLock(ctx, "order:"+order, 3*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err // ErrNotAcquired, ErrUnavailable: pay was not called
	}
	defer func() { // other errors of Unlock do not matter: see below
		if lost := lock.Unlock(); errors.Is(lost, mysqllock.ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return pay(lock.Context())
}

func Example_exclusive() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	err := refund(ctx, locker, "42", func(context.Context) error {
		_, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew) // another owner
		fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired))
		return nil
	})
	fmt.Println(err)
	err = refund(ctx, locker, "42", func(ctx context.Context) error {
		_, err := locker.ForceUnlock(ctx, "order:42")
		return err
	})
	fmt.Println(errors.Is(err, mysqllock.ErrLost))
	// Output:
	// true
	// <nil>
	// true
}

// readCache calls read, at the same time as other readers, while nobody refreshes the cache.
func readCache(ctx context.Context, locker *mysqllock.Locker, read func(context.Context) error) (err error) {
	lock, err := locker.TryRLock(ctx, "cache", 3*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	return read(lock.Context())
}

// refreshCache calls write while nobody else reads or refreshes the cache.
func refreshCache(ctx context.Context, locker *mysqllock.Locker, write func(context.Context) error) error {
	return locker.Do(ctx, "cache", time.Minute, mysqllock.AutoRenew, write)
}

func Example_readers() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	err := readCache(ctx, locker, func(context.Context) error {
		return readCache(ctx, locker, func(context.Context) error { // another owner
			_, err := locker.TryLock(ctx, "cache", 0, mysqllock.AutoRenew)
			fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired))
			return nil
		})
	})
	fmt.Println(err)
	fmt.Println(refreshCache(ctx, locker, func(ctx context.Context) error {
		return readCache(ctx, locker, func(context.Context) error { return nil }) // the same owner
	}))
	// Output:
	// true
	// <nil>
	// <nil>
}

func TestReaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		locker, other := table.New(), table.New()
		writer, err := other.TryLock(t.Context(), "cache", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		nothing := func(context.Context) error { return nil }
		require.ErrorIs(t, readCache(t.Context(), locker, nothing), mysqllock.ErrNotAcquired)
		time.AfterFunc(time.Second, func() { writer.Unlock() })
		require.NoError(t, readCache(t.Context(), locker, nothing))
	})
}

// render draws a picture on one of three GPUs, which nobody else uses meanwhile.
func render(ctx context.Context, locker *mysqllock.Locker, draw func(ctx context.Context, gpu int) error) (err error) {
	permit, err := locker.Semaphore("gpu", 3).TryAcquire(ctx, 30*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err // ErrNotAcquired: all three were in use for 30 s
	}
	defer func() { err = errors.Join(err, permit.Unlock()) }()
	return draw(permit.Context(), permit.Slot()) // 1, 2 or 3
}

func Example_permits() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	sum := 0
	var nested func(context.Context, int) error
	nested = func(_ context.Context, gpu int) error {
		if sum += gpu; sum < 1+2+3 {
			return render(ctx, locker, nested)
		}
		_, err := locker.Semaphore("gpu", 3).TryAcquire(ctx, 0, mysqllock.AutoRenew)
		fmt.Println(errors.Is(err, mysqllock.ErrNotAcquired))
		return nil
	}
	fmt.Println(render(ctx, locker, nested), sum)
	// Output:
	// true
	// <nil> 6
}

func TestPermitsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		others := table.New().Semaphore("gpu", 3)
		for range 3 {
			_, err := others.Acquire(t.Context(), mysqllock.AutoRenew)
			require.NoError(t, err)
		}
		err := render(t.Context(), table.New(), func(context.Context, int) error { return nil })
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	})
}

func TestAccountInUse(t *testing.T) {
	table := mysqllocktest.NewTable(t)
	locker, other := table.New(), table.New()
	_, err := other.TryLock(t.Context(), "account:bob", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	_, err = locker.TryLockAll(t.Context(), []string{"account:bob", "account:ann"}, 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.ErrorContains(t, err, "account:bob")
}

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

func TestOncePerPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, runs := mysqllocktest.New(t), 0
		run := func(context.Context) error { runs++; return nil }
		require.NoError(t, once(t.Context(), locker, run))
		require.NoError(t, once(t.Context(), locker, run))
		require.Equal(t, 1, runs)
		time.Sleep(10 * time.Minute) // takes no time in a bubble
		require.NoError(t, once(t.Context(), locker, run))
		require.Equal(t, 2, runs)
	})
}

// accept locks an order for the worker that will ship it.
func accept(ctx context.Context, locker *mysqllock.Locker, order string, send func(mysqllock.Ticket) error) error {
	lock, err := locker.TryLock(ctx, "order:"+order, 0, mysqllock.AutoRenew)
	if err != nil {
		return err // ErrNotAcquired: it is being shipped
	}
	defer lock.Unlock() // after Detach, it only returns ErrNotHeld
	ticket, err := lock.Detach(ctx, time.Minute)
	if err != nil {
		return err
	}
	return send(ticket) // after an error, the order stays locked for a minute
}

// process ships an order under the lock that accept has acquired.
func process(ctx context.Context, locker *mysqllock.Locker, ticket mysqllock.Ticket, ship func(context.Context) error) (err error) {
	lock, err := locker.Attach(ctx, ticket, mysqllock.AutoRenew)
	if err != nil {
		return err // ErrLost: delivered before, or too late
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	return ship(lock.Context())
}

func Example_handover() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	var message mysqllock.Ticket
	send := func(ticket mysqllock.Ticket) error { message = ticket; return nil }
	fmt.Println(accept(ctx, locker, "42", send))
	fmt.Println(errors.Is(accept(ctx, locker, "42", send), mysqllock.ErrNotAcquired))

	worker, err := mysqllock.New(db)
	if err != nil {
		panic(err)
	}
	defer worker.Close()
	ship := func(context.Context) error { fmt.Println("shipped"); return nil }
	fmt.Println(process(ctx, worker, message, ship))
	fmt.Println(errors.Is(process(ctx, worker, message, ship), mysqllock.ErrLost))
	// Output:
	// <nil>
	// true
	// shipped
	// <nil>
	// true
}

func TestLateMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		shop, worker := table.New(), table.New()
		var message mysqllock.Ticket
		require.NoError(t, accept(t.Context(), shop, "42", func(ticket mysqllock.Ticket) error {
			message = ticket
			return nil
		}))
		time.Sleep(time.Minute)
		ship := func(context.Context) error { return errors.New("shipped") }
		require.ErrorIs(t, process(t.Context(), worker, message, ship), mysqllock.ErrLost)
	})
}

// mail sends the queued mail every minute, in one process at a time, until ctx ends.
func mail(ctx context.Context, locker *mysqllock.Locker, send func(ctx context.Context, token uint64)) error {
	return leader.Elect(ctx, locker, "leader:mailer", func(ctx context.Context, lock *mysqllock.Lock) {
		for ctx.Err() == nil { // ends when the lock is lost, too
			send(ctx, lock.Token())
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
		}
	})
}

func TestNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		sent := make(chan string, 100)
		candidate := func(host string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				mail(ctx, table.New(), func(context.Context, uint64) { sent <- host })
			}()
			synctest.Wait()
			return func() { cancel(); <-ended }
		}
		stopFirst := candidate("first")
		stopSecond := candidate("second")
		require.Equal(t, "first", <-sent)
		require.Equal(t, "first", <-sent)
		stopFirst()
		require.Equal(t, "second", <-sent)
		stopSecond()
	})
}
