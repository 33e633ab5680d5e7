package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// A lockFunc acquires a lock of the service; release releases it.
type lockFunc func(ctx context.Context, name string, wait time.Duration) (release func() error, err error)

// lockBoth takes the lock of the old table and then that of the library. The
// order is the same everywhere.
func lockBoth(lockOld, lockNew lockFunc) lockFunc {
	return func(ctx context.Context, name string, wait time.Duration) (func() error, error) {
		deadline := time.Now().Add(wait)
		releaseOld, err := lockOld(ctx, name, wait)
		if err != nil {
			return nil, err
		}
		releaseNew, err := lockNew(ctx, name, time.Until(deadline))
		if err != nil {
			return nil, errors.Join(err, releaseOld())
		}
		return func() error { return errors.Join(releaseNew(), releaseOld()) }, nil
	}
}

// newLock is lockNew for a Locker.
func newLock(locker *mysqllock.Locker) lockFunc {
	return func(ctx context.Context, name string, wait time.Duration) (func() error, error) {
		lock, err := locker.TryLock(ctx, name, wait, mysqllock.AutoRenew)
		if err != nil {
			return nil, err
		}
		return lock.Unlock, nil
	}
}

// oldLock is the lock of a hand-made table.
func oldLock(db *sql.DB) lockFunc {
	return func(ctx context.Context, name string, wait time.Duration) (func() error, error) {
		owner := rand.Int64()
		for end := time.Now().Add(wait); ; {
			res, err := db.ExecContext(ctx, `UPDATE old_locks SET owner = ?, until = UTC_TIMESTAMP(6) + INTERVAL 60 SECOND
WHERE name = ? AND until <= UTC_TIMESTAMP(6)`, owner, name)
			if err != nil {
				return nil, err
			}
			if n, err := res.RowsAffected(); err != nil || n == 1 {
				return func() error {
					_, err := db.Exec("UPDATE old_locks SET until = UTC_TIMESTAMP(6) WHERE name = ? AND owner = ?", name, owner)
					return err
				}, err
			}
			if time.Now().After(end) {
				return nil, errors.New("old lock not acquired")
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// In each step of docs/migration.md, versions that run at the same time share a lock.
func TestMigration(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			db := newDB(t, kind)
			_, err := db.Exec("CREATE TABLE old_locks (name VARCHAR(64) PRIMARY KEY, owner BIGINT NOT NULL, until DATETIME(6) NOT NULL)")
			require.NoError(t, err)
			_, err = db.Exec("INSERT INTO old_locks VALUES ('job', 0, '1970-01-01')")
			require.NoError(t, err)
			process := func(version int) lockFunc {
				locker, err := mysqllock.New(db)
				require.NoError(t, err)
				t.Cleanup(func() { locker.Close() })
				return []lockFunc{oldLock(db), lockBoth(oldLock(db), newLock(locker)), newLock(locker)}[version]
			}
			for _, step := range [][]int{{0, 1}, {1, 2}} {
				var inside atomic.Int32
				var all sync.WaitGroup
				for _, version := range step {
					for range 2 {
						lock := process(version)
						all.Go(func() {
							for range 10 {
								release, err := lock(t.Context(), "job", 30*time.Second)
								if err != nil {
									t.Errorf("version %d: %v", version, err)
									return
								}
								if n := inside.Add(1); n != 1 {
									t.Errorf("version %d: %d hold the lock", version, n)
								}
								time.Sleep(time.Millisecond) // the work
								inside.Add(-1)
								if err := release(); err != nil {
									t.Errorf("version %d: %v", version, err)
								}
							}
						})
					}
				}
				all.Wait()
			}
		})
	}
}

// A handle takes the place of Redisson's thread: any goroutine may unlock it.
func Example_redisson() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	waitTime, leaseTime := 3*time.Second, 10*time.Second
	ErrBusy := errors.New("busy")

	err := func() error {
		lock, err := locker.TryLock(ctx, "order:42", waitTime, leaseTime)
		if errors.Is(err, mysqllock.ErrNotAcquired) {
			return ErrBusy // where tryLock returned false
		}
		if err != nil {
			return err // where it threw
		}
		defer lock.Unlock()
		return work(lock.Context()) // pass the context down: it is the owner
	}()
	fmt.Println(err)
	// Output:
	// <nil>
}

func work(ctx context.Context) error { return ctx.Err() }
