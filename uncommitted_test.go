package mysqllock_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// dirty returns a Locker whose statements read what others have not committed.
func (e env) dirty(t *testing.T, opts ...mysqllock.Option) *mysqllock.Locker {
	return newLocker(t, e.db(t, isolation(e, "READ-UNCOMMITTED")), opts...)
}

// A renewal that was executed but is not committed, as on a primary that waits for
// a replica, prolongs no trust: it may never be committed.
func TestUncommittedRenewal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var log logged
		l := e.dirty(t, mysqllock.WithLease(3*time.Second), mysqllock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		acquired := time.Now()
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR WHERE name = 'x'")
		require.NoError(t, err)
		requireOver(t, k, mysqllock.ErrLost)
		require.GreaterOrEqual(t, time.Since(acquired), 2*time.Second, "not before its time")
		require.Zero(t, l.Stats().Renewals)
		require.Positive(t, l.Stats().RenewalErrors)
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), `msg="mysqllock: renewal failed, trying again" locks=1 first=x err="a transaction has the row locked"`)

		// The row is free when the renewal was rolled back, and what waited for it.
		require.NoError(t, tx.Rollback())
		next := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.Unlock())
	})
}

// A change of owner that is not committed is no loss: neither the watchdog nor an
// Unlock, a Close or a release in the background may conclude from it that the row
// is not the lock's any more.
func TestUncommittedChangeOfOwner(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, change := range map[string]string{
			"owner":   "UPDATE mysqllock SET owner = 'another' WHERE name = ?",
			"deleted": "DELETE FROM mysqllock WHERE name = ?",
		} {
			for name, test := range map[string]func(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, rollback func()){
				"renewal": func(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, rollback func()) {
					time.Sleep(2500 * time.Millisecond) // the first renewal is due at 2 s
					require.NoError(t, k.Err())
					rollback()
					eventually(t, "renewals", func() bool { return l.Stats().Renewals >= 2 })
					require.NoError(t, k.Unlock())
				},
				"Unlock": func(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, rollback func()) {
					time.AfterFunc(500*time.Millisecond, rollback)
					require.NoError(t, k.Unlock())
				},
				"Unlock, given up": func(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, rollback func()) {
					err := k.Unlock()
					require.Error(t, err)
					require.NotErrorIs(t, err, mysqllock.ErrLost)
					rollback()
				},
				"Close": func(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, rollback func()) {
					time.AfterFunc(time.Second, rollback)
					require.NoError(t, l.Close())
				},
			} {
				t.Run(what+", "+name, func(t *testing.T) {
					t.Parallel()
					lock := what + name
					l := e.dirty(t, mysqllock.WithLease(6*time.Second))
					k := acquire(t, l, lock, mysqllock.AutoRenew)
					tx, err := e.db(t, "").Begin()
					require.NoError(t, err)
					defer tx.Rollback()
					_, err = tx.Exec(change, lock)
					require.NoError(t, err)
					test(t, l, k, func() { tx.Rollback() })
					other, err := e.locker(t).TryLock(ctx, lock, 2*time.Second, mysqllock.AutoRenew)
					require.NoError(t, err, "long before the lease would have ended")
					require.NoError(t, other.Unlock())
				})
			}
		}
	})
}

// Neither does a Guard conclude a loss from a change that is not committed: it
// waits for its end.
func TestGuardBesideAnUncommittedChange(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, change := range map[string]string{
			"forced":  "UPDATE mysqllock SET token = token + 256, owner = 'another' WHERE name = ?",
			"deleted": "DELETE FROM mysqllock WHERE name = ?",
		} {
			for end, lost := range map[string]bool{"committed": true, "rolled back": false} {
				t.Run(what+", "+end, func(t *testing.T) {
					t.Parallel()
					lock := what + end
					l := e.dirty(t)
					k := acquire(t, l, lock, mysqllock.AutoRenew)
					other, err := e.db(t, "").Begin()
					require.NoError(t, err)
					defer other.Rollback()
					_, err = other.Exec(change, lock)
					require.NoError(t, err)
					time.AfterFunc(500*time.Millisecond, func() {
						if lost {
							other.Commit()
						} else {
							other.Rollback()
						}
					})
					tx, err := e.db(t, isolation(e, "READ-UNCOMMITTED")).Begin()
					require.NoError(t, err)
					defer tx.Rollback()
					err = k.Guard(ctx, tx)
					if lost {
						require.ErrorIs(t, err, mysqllock.ErrLost)
						require.ErrorIs(t, k.Err(), mysqllock.ErrLost)
						return
					}
					require.NoError(t, err)
					require.NoError(t, k.Err())
					require.NoError(t, tx.Commit())
					require.NoError(t, k.Unlock())
				})
			}
		}
	})
}

// A ForceUnlock that sees a holder whose grant is not committed, and waits for the same guard
// as that grant, retries from time to time, not all the time.
func TestForceUnlockBesideAnUncommittedHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, k.Unlock())
		next := e.locker(t)
		waited := make(chan *mysqllock.Lock, 1)
		go func() {
			k, err := next.TryLock(ctx, "x", 20*time.Second, mysqllock.AutoRenew)
			assert.NoError(t, err)
			waited <- k
		}()
		time.Sleep(300 * time.Millisecond) // its statement waits for the guard

		l := e.dirty(t)
		short, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		freed, err := l.ForceUnlock(short, "x")
		t.Logf("%v, %v, %d statements", freed, err, l.Stats().Statements)
		require.Less(t, l.Stats().Statements, int64(300))
		require.NoError(t, tx.Rollback())
		require.NoError(t, (<-waited).Unlock())
	})
}
