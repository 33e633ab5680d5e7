package mysqllock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// Whatever statement acquires a lock, operators see the label of the context.
func TestWithHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(1) // so that the statements are prepared after a while
		l, other := newLocker(t, db, mysqllock.WithIdentity("process")), e.locker(t)
		for i := range 150 {
			label := fmt.Sprint("jøb ", i, ` '"\`)
			under := mysqllock.WithHolder(ctx, label)
			k, err := l.TryLock(under, "x", 5*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.Equal(t, label, requireHeld(t, other, "x", true).Holder)
			again, err := l.TryLock(mysqllock.WithHolder(k.Context(), "another"), "x", 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.Equal(t, label, requireHeld(t, other, "x", true).Holder, "re-entry")
			require.NoError(t, again.Unlock())
			require.NoError(t, k.Unlock())
			k = acquire(t, l, "x", mysqllock.AutoRenew)
			require.Equal(t, "process", requireHeld(t, other, "x", true).Holder)
			require.NoError(t, k.Unlock())
		}
	})
}

// A waiter, in this process or another, is shown when it has the lock: from a signal, by a
// handoff, and behind an open guard.
func TestWithHolderOfWaiters(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithIdentity("process")), e.locker(t)
		for what, by := range map[string]*mysqllock.Locker{"another process": other, "the same process": l} {
			k, err := l.TryLock(mysqllock.WithHolder(ctx, "first"), what, 5*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err)
			labels := []string{"second", "second", "third"}
			var got []<-chan *mysqllock.Lock
			for i, label := range labels {
				next := make(chan *mysqllock.Lock, 1)
				go func() {
					k, _ := by.TryLock(mysqllock.WithHolder(ctx, label), what, time.Minute, mysqllock.AutoRenew)
					next <- k
				}()
				got = append(got, next)
				eventually(t, "queued", func() bool { return by.Stats().Waiting == i+1 })
			}
			time.Sleep(100 * time.Millisecond)
			for i, next := range got {
				require.NoError(t, k.Unlock())
				k = get(t, next)
				require.Equal(t, labels[i], requireHeld(t, other, what, true).Holder, what)
			}
			require.NoError(t, k.Unlock())
		}
	})
}

// Shared holds of one process are shown each with its own label, and those with the same label
// cost no further statement.
func TestWithHolderOfSharedHolds(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithIdentity("process")), e.locker(t)
		share := func(label string) (k *mysqllock.Lock, statements int64) {
			under := ctx
			if label != "process" {
				under = mysqllock.WithHolder(ctx, label)
			}
			before := l.Stats().Statements
			k, err := l.TryRLock(under, "x", 5*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err)
			return k, l.Stats().Statements - before
		}
		requireHolders := func(labels ...string) {
			t.Helper()
			var found []string
			for _, info := range requireHeld(t, other, "x", len(labels) > 0).Holders {
				found = append(found, info.Holder)
			}
			require.ElementsMatch(t, labels, found)
		}
		var locks []*mysqllock.Lock
		for _, label := range []string{"first", "process", "second"} {
			k, _ := share(label)
			locks = append(locks, k)
		}
		requireHolders("first", "process", "second")
		same, statements := share("second")
		require.LessOrEqual(t, statements, int64(1), "1 after 50 ms")
		requireHolders("first", "process", "second")
		require.NoError(t, locks[0].Unlock())
		requireHolders("process", "second")
		require.NoError(t, locks[2].Unlock())
		requireHolders("process", "second")
		require.NoError(t, same.Unlock())
		_, err := other.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		requireHolders("process")
		require.NoError(t, locks[1].Err())
		require.NoError(t, locks[1].Unlock())
		requireHolders()
		require.NoError(t, acquire(t, other, "x", mysqllock.AutoRenew).Unlock())
	})
}

func TestInvalidHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := acquire(t, l, "held", mysqllock.AutoRenew)
		ticket, err := acquire(t, l, "x", mysqllock.AutoRenew).Detach(ctx, time.Minute)
		require.NoError(t, err)
		for label, why := range map[string]string{"": "empty", "a\nb": "U+000A", "\xff": "UTF-8", strings.Repeat("a", 256): "256 bytes"} {
			for _, name := range []string{"new", "held"} {
				_, err := l.TryLock(mysqllock.WithHolder(k.Context(), label), name, time.Minute, mysqllock.AutoRenew)
				require.ErrorContains(t, err, "WithHolder: ")
				require.ErrorContains(t, err, why)
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
			}
			_, err = l.Attach(mysqllock.WithHolder(ctx, label), ticket, mysqllock.AutoRenew)
			require.ErrorContains(t, err, "WithHolder: ")
		}
		requireHeld(t, l, "new", false)
		_, err = l.Attach(mysqllock.WithHolder(ctx, strings.Repeat("é", 127)), ticket, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("é", 127), requireHeld(t, l, "x", true).Holder)
	})
}
