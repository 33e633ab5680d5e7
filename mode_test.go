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
		require.Equal(t, []string{`permit "x" acquired`, `permit "x" lost`}, s.take())
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
