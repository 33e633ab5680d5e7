package mysqllock_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// Each acquires a hold of another kind, and returns how it ends.
var acts = map[string]func(l *mysqllock.Locker, name string) (func() error, error){
	"permit": func(l *mysqllock.Locker, name string) (func() error, error) {
		k, err := l.Semaphore(name, 2).TryAcquire(ctx, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		return k.Unlock, nil
	},
	"set": func(l *mysqllock.Locker, name string) (func() error, error) {
		s, err := l.TryLockAll(ctx, []string{name, name + "1", name + "2"}, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		return s.Unlock, nil
	},
	"shared handover": func(l *mysqllock.Locker, name string) (func() error, error) {
		k, err := l.TryRLock(ctx, name, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		token := k.Token()
		ticket, err := k.Detach(ctx, time.Minute)
		if err != nil {
			return nil, err
		}
		if k, err = l.Attach(ctx, ticket, time.Minute); err != nil {
			return nil, err
		}
		if k.Token() != token {
			return nil, errors.New("another token")
		}
		return k.Unlock, nil
	},
	"permit handover": func(l *mysqllock.Locker, name string) (func() error, error) {
		k, err := l.Semaphore(name, 1).TryAcquire(ctx, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		slot := k.Slot()
		ticket, err := k.Detach(ctx, time.Minute)
		if err != nil {
			return nil, err
		}
		if k, err = l.Attach(ctx, ticket, time.Minute); err != nil {
			return nil, err
		}
		if k.Slot() != slot {
			return nil, errors.New("another slot")
		}
		return k.Unlock, nil
	},
	"downgrade": func(l *mysqllock.Locker, name string) (func() error, error) {
		k, err := l.TryLock(ctx, name, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		r, err := l.TryRLock(k.Context(), name, 0, time.Minute)
		if err != nil {
			k.Unlock()
			return nil, err
		}
		if err := k.Unlock(); err != nil {
			return nil, err
		}
		ticket, err := r.Detach(ctx, time.Minute)
		if err != nil {
			return nil, err
		}
		if k, err = l.Attach(ctx, ticket, time.Minute); err != nil {
			return nil, err
		}
		return k.Unlock, nil
	},
	"kept": func(l *mysqllock.Locker, name string) (func() error, error) {
		a, err := l.TryRLock(ctx, name, 2*time.Second, time.Minute)
		if err != nil {
			return nil, err
		}
		b, err := l.TryRLock(ctx, name, 2*time.Second, time.Minute)
		if err != nil {
			a.Unlock()
			return nil, err
		}
		if err := a.UnlockAfter(300 * time.Millisecond); err != nil {
			b.Unlock()
			return nil, err
		}
		return b.Unlock, nil
	},
}

// requireAllFree requires that another process can acquire name in each mode.
func requireAllFree(t *testing.T, other *mysqllock.Locker, name string) {
	t.Helper()
	s, err := other.TryLockAll(ctx, []string{name, name + "1", name + "2"}, 8*time.Second, time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.Unlock())
	for range 2 {
		k, err := other.Semaphore(name, 2).TryAcquire(ctx, 8*time.Second, time.Minute)
		require.NoError(t, err)
		defer k.Unlock()
	}
}

// A downgrade that the server rolls back leaves the lock exclusive.
func TestDowngradeAfterARollback(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l, other := newLocker(t, e.through(t, proxy)), e.locker(t)
		for _, number := range []uint16{1205, 1213} {
			for _, statement := range []string{"mode <> 1", "-1)", "mode = 1,"} {
				name := fmt.Sprint(number, statement)
				k := acquire(t, l, name, auto)
				shared, err := l.TryRLock(k.Context(), name, 0, auto)
				require.NoError(t, err)
				var failed atomic.Int64
				proxy.Interfere(func(query string) (i wire.Interference) {
					if strings.Contains(query, statement) && !strings.Contains(query, "SLEEP") && failed.Add(1) == 1 {
						i = wire.Interference{Error: number, NotSent: true}
					}
					return i
				})
				require.NoError(t, k.Unlock())
				proxy.Interfere(nil)
				require.Equal(t, int64(1), min(failed.Load(), 1), statement)
				require.NoError(t, shared.Err(), name)
				_, err = other.TryRLock(ctx, name, 0, auto)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				require.NoError(t, shared.Unlock())
				require.NoError(t, acquire(t, other, name, auto).Unlock())
			}
		}
	})
}

// At each isolation level and pool size, holds of all kinds begin and end; without autocommit, the
// error says so.
func TestHoldsOfAllKindsInSessions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		levels := []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"}
		for what, act := range acts {
			for _, level := range levels {
				for pool := 1; pool <= 3; pool++ {
					db := e.db(t, isolation(e, level))
					db.SetMaxOpenConns(pool)
					l := newLocker(t, db)
					name := fmt.Sprint(what, level, pool)
					for range 2 {
						undo, err := act(l, name)
						require.NoError(t, err, name)
						require.NoError(t, undo(), name)
					}
					requireAllFree(t, e.locker(t), name)
				}
			}
			l := newLocker(t, e.db(t, "autocommit=0"))
			_, err := act(l, "auto"+what)
			require.Error(t, err, what)
			require.NotErrorIs(t, err, mysqllock.ErrNotAcquired, what)
		}
	})
}

// ForceUnlock ends holds that are shared, detached, kept, claimed, or of a set.
func TestForceUnlockOfAllKindsOfHolds(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, op := e.locker(t), e.locker(t), e.locker(t)
		force := func(name string) {
			t.Helper()
			held, err := op.ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.True(t, held)
			require.NoError(t, acquire(t, other, name, auto).Unlock())
			list, err := op.List(ctx)
			require.NoError(t, err)
			require.Empty(t, list)
		}
		// Several rows: joined, detached, kept, in two processes
		a, b := rlock(t, l, "x", auto), rlock(t, l, "x", auto)
		ticket, err := rlock(t, other, "x", auto).Detach(ctx, time.Hour)
		require.NoError(t, err)
		require.NoError(t, rlock(t, other, "x", auto).UnlockAfter(time.Hour))
		require.NoError(t, a.UnlockAfter(time.Hour))
		force("x")
		_, err = l.Attach(ctx, ticket, auto)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorIs(t, b.UnlockAfter(time.Hour), mysqllock.ErrLost)
		requireHeld(t, op, "x", false)

		// Forced, then one of several calls UnlockAfter before it knows
		a, b = rlock(t, l, "y", auto), rlock(t, l, "y", auto)
		held, err := op.ForceUnlock(ctx, "y")
		require.NoError(t, err)
		require.True(t, held)
		err = a.UnlockAfter(time.Hour)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorIs(t, b.Unlock(), mysqllock.ErrLost)
		require.NoError(t, acquire(t, other, "y", auto).Unlock())

		// A set with a name held shared, claimed
		k := rlock(t, other, "z2", auto)
		set := make(chan error, 1)
		go func() {
			s, err := l.TryLockAll(ctx, []string{"z1", "z2", "z3"}, 10*time.Second, auto)
			if err == nil {
				err = s.Unlock()
			}
			set <- err
		}()
		time.Sleep(200 * time.Millisecond)
		requireHeld(t, op, "z1", true)
		held, err = op.ForceUnlock(ctx, "z2")
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, <-set)
		require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
		for _, n := range []string{"z1", "z2", "z3"} {
			require.NoError(t, acquire(t, other, n, auto).Unlock())
		}

		// A set that gives up behind a reader leaves nothing behind
		k = rlock(t, other, "z2", auto)
		_, err = l.TryLockAll(ctx, []string{"z1", "z2", "z3"}, 500*time.Millisecond, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		_, err = l.TryLockAll(ctx, []string{"z1", "z2", "z3"}, 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		time.Sleep(300 * time.Millisecond)
		r, err := op.TryRLock(ctx, "z2", 0, auto)
		require.NoError(t, err)
		require.NoError(t, r.Unlock())
		requireHeld(t, op, "z1", false)
		requireHeld(t, op, "z3", false)
		require.NoError(t, k.Unlock())
		s, err := l.TryLockAll(ctx, []string{"z1", "z2", "z3"}, 500*time.Millisecond, auto)
		require.NoError(t, err)
		require.NoError(t, s.Unlock())
	})
}
