package mysqllock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// addTriggers adds triggers to the table, as tools for audits and schema changes do. A server leaves
// LAST_INSERT_ID out of the reply to a statement during which a trigger has executed statements.
func addTriggers(t *testing.T, e env) {
	db := e.db(t, "")
	_, err := db.Exec("CREATE TABLE audit (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(300))")
	require.NoError(t, err)
	for i, when := range []string{"BEFORE INSERT", "AFTER INSERT", "BEFORE UPDATE", "AFTER UPDATE"} {
		_, err := db.Exec(fmt.Sprintf("CREATE TRIGGER trigger%d %s ON mysqllock FOR EACH ROW INSERT INTO audit (name) VALUES (NEW.name)", i, when))
		require.NoError(t, err)
	}
}

// Triggers that are added to the table while locks are held cost no lock, and an acquire that returns
// an error leaves none behind. Without signals, waiters poll.
func TestTriggers(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, mysqllock.WithLease(2*time.Second)), e.locker(t)
		kept, bound := acquire(t, a, "kept", mysqllock.AutoRenew), acquire(t, a, "bound", mysqllock.AutoRenew)
		require.NoError(t, acquire(t, a, "x", mysqllock.AutoRenew).Unlock())
		addTriggers(t, e)
		time.Sleep(3 * time.Second)
		require.NoError(t, kept.Err())
		require.NoError(t, kept.Unlock())
		next := acquire(t, b, "kept", time.Minute)
		require.Greater(t, next.Token(), kept.Token())
		require.NoError(t, next.Extend(ctx, time.Minute))
		require.NoError(t, next.Unlock())

		for _, name := range []string{"x", "new"} {
			k := acquire(t, a, name, mysqllock.AutoRenew)
			_, err := b.TryLock(ctx, name, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			waiter := try(func() (*mysqllock.Lock, error) { return b.TryLock(ctx, name, 20*time.Second, mysqllock.AutoRenew) })
			waiter.requireWaits(t, 2500*time.Millisecond) // it asks again meanwhile
			require.NoError(t, k.Unlock())
			next := waiter.lock(t)
			require.Greater(t, next.Token(), k.Token())
			require.NoError(t, next.Unlock())
		}
		testSharedInSession(t, a, b, e.db(t, ""), "shared")
		testPermitsInSession(t, a, b, e.db(t, ""), "permits")
		testManyLocks(t, a, b)
		testBatches(t, a, b)
		require.NoError(t, bound.Unlock())
		require.Zero(t, b.Stats().Lost)
		list, err := b.List(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
	})
}
