package mysqllock_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// The keys of rows that shared holds and permits add are longer than names.
func TestLongNamesInAllModes(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for _, name := range []string{strings.Repeat("x", 255), strings.Repeat("é", 127)} {
			require.NoError(t, rlock(t, l, name, auto).Unlock())
			require.NoError(t, permit(t, l.Semaphore(name, 1), auto).Unlock())
			require.NoError(t, acquire(t, l, name, auto).Unlock())
		}
	})
}

// A seen records what observers are told and what is logged.
type seen struct {
	mu    sync.Mutex // protects following fields
	lines []string
	log   bytes.Buffer
}

func (s *seen) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *seen) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

func (s *seen) observer() mysqllock.Observer {
	return mysqllock.Observer{
		AcquireEnd: func(_ context.Context, i mysqllock.AcquireInfo) {
			s.note("%s %q %s", i.Mode, i.Name, i.Outcome())
		},
		HoldEnd: func(_ context.Context, i mysqllock.HoldInfo) { s.note("%s %q %s", i.Mode, i.Name, i.Outcome()) },
	}
}

// Observers get the mode and the name, not the key of the row, and the log has no keys either.
func TestObservedModes(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		s := new(seen)
		l := e.locker(t, mysqllock.WithObserver(s.observer()), mysqllock.WithLease(time.Second),
			mysqllock.WithLogger(slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		require.NoError(t, acquire(t, l, "x", auto).Unlock())
		require.Equal(t, []string{`exclusive "x" acquired`, `exclusive "x" released`}, s.take())

		a, b := rlock(t, l, "x", auto), rlock(t, l, "x", auto)
		again, err := l.RLock(a.Context(), "x", auto)
		require.NoError(t, err)
		_, err = l.TryLock(a.Context(), "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrUpgrade)
		require.Equal(t, []string{
			`shared "x" acquired`, `shared "x" acquired`, `shared "x" reentered`, `exclusive "x" error`,
		}, s.take())
		for _, k := range []*mysqllock.Lock{again, a, b} {
			require.NoError(t, k.Unlock())
		}
		require.Equal(t, []string{`shared "x" released`, `shared "x" released`}, s.take())

		sem := l.Semaphore("x", 1)
		k := permit(t, sem, auto)
		requireNoPermit(t, sem)
		require.NoError(t, k.Unlock())
		require.Equal(t, []string{`permit "x" acquired`, `permit "x" not_acquired`, `permit "x" released`}, s.take())

		fixed := permit(t, sem, 50*time.Millisecond)
		<-fixed.Context().Done()
		require.ErrorIs(t, fixed.Unlock(), mysqllock.ErrLost)
		var lost []string
		require.Eventually(t, func() bool { lost = append(lost, s.take()...); return len(lost) == 2 }, 10*time.Second, time.Millisecond)
		require.Equal(t, []string{`permit "x" acquired`, `permit "x" lost`}, lost)
		permit(t, sem, auto)
		require.NoError(t, l.Close())
		require.Equal(t, []string{`permit "x" acquired`, `permit "x" closed`}, s.take())

		s.mu.Lock()
		defer s.mu.Unlock()
		require.Contains(t, s.log.String(), "lock lost")
		require.NotContains(t, s.log.String(), "\x00")
		require.NotContains(t, s.log.String(), `\x00`)
	})
}

// An operator frees one permit, or all of a semaphore; those who wait get them.
func TestSemaphoreForceUnlock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		first, second := a.Semaphore("x", 2), b.Semaphore("x", 2)
		lock := acquire(t, a, "x", auto)
		one, two := permit(t, first, auto), permit(t, second, auto)
		holders, err := b.Semaphore("x", 1).Holders(ctx)
		require.NoError(t, err)
		require.Len(t, holders, 2)

		operator := e.locker(t).Semaphore("x", 1)
		freed := make(chan time.Time, 1)
		waits := make(chan time.Duration, 1)
		var next *mysqllock.Lock
		go func() {
			next, _ = first.TryAcquire(ctx, 20*time.Second, auto)
			waits <- time.Since(<-freed)
		}()
		require.Eventually(t, func() bool { return a.Stats().Waiting == 1 && listed(t, operator) == 1 }, 10*time.Second, 5*time.Millisecond)
		held, err := operator.ForceUnlockSlot(ctx, two.Slot())
		require.NoError(t, err)
		require.True(t, held)
		freed <- time.Now()
		require.Less(t, <-waits, 700*time.Millisecond, "it is signalled")
		require.Equal(t, two.Slot(), next.Slot())
		require.Greater(t, next.Token(), two.Token())
		require.ErrorIs(t, two.Unlock(), mysqllock.ErrLost)
		require.NoError(t, one.Err())

		held, err = operator.ForceUnlock(ctx)
		require.NoError(t, err)
		require.True(t, held)
		require.ErrorIs(t, one.Unlock(), mysqllock.ErrLost)
		require.ErrorIs(t, next.Unlock(), mysqllock.ErrLost)
		held, err = operator.ForceUnlock(ctx)
		require.NoError(t, err)
		require.False(t, held)
		held, err = operator.ForceUnlockSlot(ctx, 1)
		require.NoError(t, err)
		require.False(t, held)
		require.NoError(t, lock.Unlock(), "the lock of that name has nothing to do with it")

		for _, slot := range []int{-1, 0, 10_001} {
			_, err = operator.ForceUnlockSlot(ctx, slot)
			require.ErrorIs(t, err, mysqllock.ErrInvalidLimit)
			require.ErrorContains(t, err, "want 1 to 10000")
		}
		_, err = a.Semaphore("\n", 1).ForceUnlock(ctx)
		require.ErrorIs(t, err, mysqllock.ErrInvalidName)
		_, err = a.Semaphore("\n", 1).ForceUnlockSlot(ctx, 1)
		require.ErrorIs(t, err, mysqllock.ErrInvalidName)
	})
}

// listed returns how many processes wait for a permit.
func listed(t *testing.T, s *mysqllock.Semaphore) int {
	holders, err := s.Holders(ctx)
	require.NoError(t, err)
	if len(holders) == 0 {
		return 0
	}
	return holders[0].Waiters
}
