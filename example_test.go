package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// open stands for the way in which the service opens its pool.
func open() (*mysqllock.Locker, *sql.DB) {
	db, _ := mysqltest.Open(mysqltest.Example{}, "mariadb")
	locker, err := mysqllock.New(db)
	if err == nil {
		err = locker.CreateTable(context.Background())
	}
	if err != nil {
		panic(err)
	}
	return locker, db
}

func Example() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	ship := func(ctx context.Context) error { fmt.Println("shipped under the lock"); return ctx.Err() }

	err := func() error {
		lock, err := locker.TryLock(ctx, "order:42", 3*time.Second, mysqllock.AutoRenew)
		if errors.Is(err, mysqllock.ErrNotAcquired) {
			return errors.New("another owner holds it") // for the whole 3 s
		}
		if err != nil {
			return err
		}
		err = ship(lock.Context())             // identifies the owner; ends if the lock is lost
		return errors.Join(err, lock.Unlock()) // ErrLost if the lock was lost
	}()
	fmt.Println(err)
	// Output:
	// shipped under the lock
	// <nil>
}

func ExampleLocker_Do() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	err := locker.Do(ctx, "report", time.Second, mysqllock.AutoRenew, func(ctx context.Context) error {
		// A function that is called with ctx may lock "report" again.
		return locker.Do(ctx, "report", 0, mysqllock.AutoRenew, func(context.Context) error {
			fmt.Println("re-entered", locker.Stats().Reentered)
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// re-entered 1
	// <nil>
}

// A transaction that is committed only by the holder of the lock, whatever
// pauses the process suffers meanwhile.
func ExampleLock_Guard() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	db.Exec("CREATE TABLE account (id INT PRIMARY KEY, cents INT)")
	db.Exec("INSERT INTO account VALUES (1, 100)")

	pay := func(lock *mysqllock.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := lock.Guard(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents - 10 WHERE id = 1"); err != nil {
			return err
		}
		return tx.Commit()
	}

	stale, err := locker.TryLock(ctx, "account:1", 0, 10*time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(pay(stale))
	locker.ForceUnlock(ctx, "account:1") // or its lease ends while it sleeps
	fmt.Println(errors.Is(pay(stale), mysqllock.ErrLost))
	var cents int
	db.QueryRow("SELECT cents FROM account").Scan(&cents)
	fmt.Println(cents)
	// Output:
	// <nil>
	// true
	// 90
}

// The same transfer of ten cents, begun, guarded and committed by DoTx.
func ExampleLocker_DoTx() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	db.Exec("CREATE TABLE account (id INT PRIMARY KEY, cents INT)")
	db.Exec("INSERT INTO account VALUES (1, 15)")

	pay := func() error {
		return locker.DoTx(ctx, "account:1", time.Second, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents - 10 WHERE id = 1"); err != nil {
				return err
			}
			var cents int
			if err := tx.QueryRowContext(ctx, "SELECT cents FROM account WHERE id = 1").Scan(&cents); err != nil {
				return err
			}
			if cents < 0 {
				return errors.New("not enough money") // rolls back
			}
			return nil
		})
	}
	fmt.Println(pay())
	fmt.Println(pay())
	var cents int
	db.QueryRow("SELECT cents FROM account").Scan(&cents)
	fmt.Println(cents)
	// Output:
	// <nil>
	// not enough money
	// 5
}

// Each process of a fleet runs this at midnight by its own clock: the report is sent once.
func ExampleLock_UnlockAfter() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	sendReport := func() error {
		lock, err := locker.TryLock(ctx, "report", 0, mysqllock.AutoRenew)
		if errors.Is(err, mysqllock.ErrNotAcquired) {
			fmt.Println("sent by another process")
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println("sent")
		return lock.UnlockAfter(time.Hour) // not again within an hour, even if this process ends
	}
	for range 2 {
		if err := sendReport(); err != nil {
			panic(err)
		}
	}
	// Output:
	// sent
	// sent by another process
}

// A request acquires the lock, and a worker, which may be another process, goes on under it.
func ExampleLock_Detach() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	queue := make(chan mysqllock.Ticket, 1) // a message queue

	request := func() error {
		lock, err := locker.TryLock(ctx, "video:7", 0, mysqllock.AutoRenew)
		if err != nil {
			return err
		}
		ticket, err := lock.Detach(ctx, time.Minute) // the worker begins within a minute
		if err != nil {
			return err
		}
		queue <- ticket
		return nil
	}
	worker := func() error {
		lock, err := locker.Attach(ctx, <-queue, mysqllock.AutoRenew)
		if err != nil {
			return err // ErrLost: it came too late
		}
		fmt.Println("encodes", lock.Name())
		return lock.Unlock()
	}
	fmt.Println(request())
	fmt.Println(errors.Is(request(), mysqllock.ErrNotAcquired))
	fmt.Println(worker())
	// Output:
	// <nil>
	// true
	// encodes video:7
	// <nil>
}

// A middleware starts an owner for each request: whatever the handler and the functions that it
// calls acquire, they may acquire again.
func ExampleWithOwner() {
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	owned := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(mysqllock.WithOwner(r.Context())))
		})
	}
	handler := owned(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 2 { // two functions that do not know of each other
			lock, err := locker.TryLock(r.Context(), "cart:9", 0, mysqllock.AutoRenew)
			if err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
				return
			}
			defer lock.Unlock()
		}
		fmt.Println("re-entered", locker.Stats().Reentered)
	}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/cart/9", nil))
	// Output:
	// re-entered 1
}

// Two accounts are locked together. However the callers list them, no two block each other
// for ever.
func ExampleLocker_TryLockAll() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	transfer := func(from, to string) error {
		locks, err := locker.TryLockAll(ctx, []string{from, to}, 3*time.Second, mysqllock.AutoRenew)
		if err != nil {
			return err // names the account that was in the way
		}
		fmt.Println(from, "to", to, locks.Err())
		return locks.Unlock()
	}
	fmt.Println(transfer("account:ann", "account:bob"))
	fmt.Println(transfer("account:bob", "account:ann"))
	// Output:
	// account:ann to account:bob <nil>
	// <nil>
	// account:bob to account:ann <nil>
	// <nil>
}

func ExampleLock_Extend() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()

	lock, err := locker.TryLock(ctx, "import", 0, 5*time.Second)
	if err != nil {
		panic(err)
	}
	defer lock.Unlock()
	for part := range 3 {
		if err := lock.Extend(ctx, 5*time.Second); err != nil {
			fmt.Println(err) // ErrLost: somebody else may be at it
			return
		}
		fmt.Println("part", part)
	}
	// Output:
	// part 0
	// part 1
	// part 2
}
