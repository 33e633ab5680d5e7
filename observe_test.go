package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/require"
)

// A witness records the calls of an observer, in order. Its hooks take every mutex of the
// Locker: a caller that called them with one would hang.
type witness struct {
	mu    sync.Mutex
	lines []string
	l     *Locker
}

type seenKey struct{ id string }

func (s *witness) note(format string, args ...any) {
	if s.l != nil {
		var waiters []*waiter
		func() {
			s.l.mu.Lock()
			defer s.l.mu.Unlock()
			for _, t := range s.l.holds {
				waiters = append(waiters, t.waiter)
			}
		}()
		s.l.watchdog.OwnerChanged(store.Claim{}) // of no lease
		for _, w := range waiters {
			w.State.LookErr()
		}
		s.l.releaser.Pending()
		s.l.queues.Len()
		s.l.waker.Unwatch("")
		s.l.waker.Granted("")
		s.l.waker.Enlist("", false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// take returns what was recorded since the last time.
func (s *witness) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

// observer notes all, with what its AcquireStart left in the context.
func (s *witness) observer(id string) Observer {
	return Observer{
		AcquireStart: func(ctx context.Context, name string) context.Context {
			s.note("%s start %s", id, name)
			return context.WithValue(ctx, seenKey{id}, "in "+name)
		},
		AcquireEnd: func(ctx context.Context, i AcquireInfo) {
			s.note("%s %s %s %v after %v, token %d, handed over %v", id, i.Name, i.Outcome(), ctx.Value(seenKey{id}), i.Waited, i.Token, i.HandedOver)
		},
		HoldEnd: func(ctx context.Context, i HoldInfo) {
			s.note("%s %s %s %v after %v, token %d", id, i.Name, i.Outcome(), ctx.Value(seenKey{id}), i.Held, i.Token)
		},
		Renewal: func(i RenewalInfo) { s.note("%s renewed %d of %d: %v", id, i.Renewed, i.Locks, i.Err) },
	}
}

func (f *fakeRepo) observed(opts ...Option) (*Locker, *witness) {
	s := &witness{}
	l := f.locker(append(opts, WithObserver(s.observer("o")))...)
	s.l = l
	return l, s
}

func TestObserver(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, s := f.observed(withHandoff)
		ctx := WithOwner(bg)
		a := f.acquired(l, ctx, "x", AutoRenew)
		require.Nil(t, a.Context().Value(seenKey{"o"}), "the caller's context stays as it was")
		require.Equal(t, []string{"o start x", "o x acquired in x after 0s, token 256, handed over false"}, s.take())

		again := f.acquired(l, ctx, "x", AutoRenew)
		require.NoError(t, again.Unlock())
		require.Equal(t, []string{"o start x", "o x reentered in x after 0s, token 256, handed over false"}, s.take())

		f.try(l, bg, "x", 0, AutoRenew).refused(0, ErrNotAcquired)
		ended, cancel := context.WithCancel(bg)
		p := f.try(l, ended, "x", WaitForever, AutoRenew)
		f.until(time.Second)
		cancel()
		p.refused(time.Second, ErrNotAcquired, context.Canceled)
		_, err := l.TryLock(bg, "", 0, AutoRenew)
		require.ErrorIs(t, err, ErrInvalidName)
		require.Equal(t, []string{
			"o start x", "o x not_acquired in x after 0s, token 0, handed over false",
			"o start x", "o x not_acquired in x after 1s, token 0, handed over false",
			"o start ", "o  error in  after 0s, token 0, handed over false",
		}, s.take())

		p = f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(3 * time.Second)
		require.NoError(t, a.Unlock())
		b := p.granted(3 * time.Second)
		require.ElementsMatch(t, []string{
			"o start x",
			"o x acquired in x after 2s, token 257, handed over true",
			"o x released in x after 3s, token 256",
		}, s.take())
		require.ErrorIs(t, again.Unlock(), ErrNotHeld)
		require.ErrorIs(t, a.Unlock(), ErrNotHeld)

		f.until(4 * time.Second)
		require.NoError(t, b.Unlock())
		require.Equal(t, []string{"o x released in x after 1s, token 257"}, s.take())

		k := f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Hour)
		require.ErrorIs(t, k.Unlock(), ErrLost)
		require.Equal(t, []string{
			"o start x", "o x acquired in x after 0s, token 512, handed over false",
			"o x lost in x after 0s, token 512",
		}, s.take())

		f.acquired(l, bg, "y", time.Second)
		f.until(5 * time.Second) // the trust ended 100 ms before
		require.Equal(t, []string{
			"o start y", "o y acquired in y after 0s, token 769, handed over false",
			"o y lost in y after 900ms, token 769",
		}, s.take())

		f.meet(fails(errDenied), "release")
		k = f.acquired(l, bg, "y", AutoRenew)
		require.ErrorIs(t, k.Unlock(), errDenied)
		require.Equal(t, []string{
			"o start y", "o y acquired in y after 0s, token 1025, handed over false",
			"o y error in y after 0s, token 1025",
		}, s.take())

		f.acquired(l, bg, "z", AutoRenew)
		require.NoError(t, l.Close())
		_, err = l.TryLock(bg, "z", 0, AutoRenew)
		require.ErrorIs(t, err, ErrClosed)
		require.Equal(t, []string{
			"o start z", "o z acquired in z after 0s, token 1281, handed over false",
			"o z closed in z after 0s, token 1281",
			"o start z", "o z error in z after 0s, token 0, handed over false",
		}, s.take())
	})
}

// A set that is refused at once is observed as a single lock would be.
func TestObserverOfASetThatIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, s := f.observed()
		for _, try := range []struct {
			ctx   context.Context
			names []string
			lease time.Duration
			err   error
		}{
			{bg, []string{"a", "b\n"}, AutoRenew, ErrInvalidName},
			{bg, []string{"b\n", "a"}, -1, ErrInvalidLease},
			{WithHolder(bg, "\n"), []string{"b", "a"}, AutoRenew, nil},
		} {
			_, err := l.TryLockAll(try.ctx, try.names, 0, try.lease)
			require.Error(t, err)
			if try.err != nil {
				require.ErrorIs(t, err, try.err)
			}
		}
		require.NoError(t, l.Close())
		_, err := l.TryLockAll(bg, []string{"b", "a"}, 0, AutoRenew)
		require.ErrorIs(t, err, ErrClosed)
		refused := []string{"o start a", "o a error in a after 0s, token 0, handed over false"}
		require.Equal(t, slices.Concat(
			[]string{"o start b\n", "o b\n error in b\n after 0s, token 0, handed over false"}, refused, refused, refused,
		), s.take())
	})
}

// The acquiring statement has the values of the observers' context, and ends with
// its own.
func TestObservedStatement(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, _ := f.observed()
		var sent context.Context
		f.meet(func(ctx context.Context, _ func()) error { sent = ctx; return hangs(ctx, nil) }, "acquire")
		ctx, cancel := context.WithCancel(bg)
		p := f.try(l, ctx, "x", WaitForever, AutoRenew)
		require.Equal(t, "in x", sent.Value(seenKey{"o"}))
		cancel()
		p.refused(outage.ProbeSoon+probeWait/20, ErrNotAcquired, context.Canceled) // it waits for the first probe
		require.NoError(t, sent.Err())
		f.until(p.at + detachedTimeout + time.Millisecond)
		require.ErrorIs(t, sent.Err(), context.Canceled)
	})
}

// Several observers are called in order, each with its own context; functions may be nil.
func TestObservers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		s := &witness{}
		l := f.locker(WithObserver(s.observer("a")), WithObserver(Observer{}), WithObserver(s.observer("b")))
		require.NoError(t, f.acquired(l, bg, "x", AutoRenew).Unlock())
		require.Equal(t, []string{
			"a start x", "b start x",
			"a x acquired in x after 0s, token 256, handed over false", "b x acquired in x after 0s, token 256, handed over false",
			"a x released in x after 0s, token 256", "b x released in x after 0s, token 256",
		}, s.take())
	})
}

func TestObservedRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, s := f.observed()
		for _, name := range []string{"x", "y", "z"} {
			f.acquired(l, bg, name, AutoRenew)
		}
		s.take()
		f.until(11 * time.Second)
		require.Equal(t, []string{"o renewed 3 of 3: <nil>"}, s.take())

		f.meet(first(2, fails(errBroken), none), "renew")
		f.until(25 * time.Second)
		failed := "o renewed 0 of 3: " + errBroken.Error()
		require.Equal(t, []string{failed, failed, "o renewed 3 of 3: <nil>"}, s.take())

		f.take("y", time.Hour)
		f.until(35 * time.Second)
		lines := slices.Sorted(slices.Values(s.take())) // the rows are compared beside the renewal of the session
		require.Len(t, lines, 2)
		require.Equal(t, "o renewed 3 of 3: <nil>", lines[0], "the session keeps what is bound to it")
		require.Contains(t, lines[1], "o y lost in y after 3")
		require.EqualValues(t, 9, l.Stats().Renewals)
		require.EqualValues(t, 2, l.Stats().RenewalErrors)
	})
}

// Without an observer, nothing is allocated for one.
func TestNotObserved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx := f.acquired(l, bg, "x", AutoRenew).Context()
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			if k, err := l.TryLock(ctx, "x", 0, AutoRenew); err != nil || k.Unlock() != nil {
				panic(err)
			}
		}), 3.0, "re-entry and unlock")
	})
}

// records are a slog.Handler that keeps what it is given, as text without the time.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { panic("not used") }
func (r *records) WithGroup(string) slog.Handler            { panic("not used") }

func (r *records) Handle(_ context.Context, rec slog.Record) error {
	var line strings.Builder
	fmt.Fprintf(&line, "%v %s", rec.Level, strings.TrimPrefix(rec.Message, "mysqllock: "))
	rec.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&line, " %s=%v", a.Key, a.Value); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line.String())
	return nil
}

// take returns the records since the last time.
func (r *records) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func (f *fakeRepo) logged(opts ...Option) (*Locker, *records) {
	r := &records{}
	return f.locker(append(opts, WithLogger(slog.New(r)))...), r
}

// An outage is one warning and one word of recovery, however many renewals fail.
func TestLogOfAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, r := f.logged()
		gone := f.acquired(l, bg, "gone", AutoRenew)
		f.acquired(l, bg, "x", AutoRenew)
		f.until(15 * time.Second)
		require.Empty(t, r.take(), "nothing is said of what succeeds")

		f.meet(fails(errBroken), "renew")
		f.until(25 * time.Second)
		lines := r.take()
		require.Greater(t, len(lines), 3)
		for i, line := range lines {
			level := "DEBUG"
			if i == 0 {
				level = "WARN"
			}
			require.Regexp(t, "^"+level+" renewal failed, trying again locks=2 first=(x|gone) err=invalid connection$", line)
		}
		require.NoError(t, gone.Unlock())
		f.meet(none, "renew")
		f.until(50 * time.Second)
		require.Equal(t, []string{"INFO renewals succeed again locks=1 first=x"}, r.take())

		f.meet(fails(errDeadlock), "renew")
		f.until(62 * time.Second)
		require.Contains(t, r.take()[0], "WARN renewal failed", "the next one is said again")
	})
}

// Each loss that Stats counts is one error record, with its reason.
func TestLogOfALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, r := f.logged()
		lost := func(reason string, k *Lock) {
			t.Helper()
			require.ErrorIs(t, k.Err(), ErrLost)
			require.ErrorIs(t, k.Unlock(), ErrLost)
			require.Equal(t, fmt.Sprintf("ERROR lock lost name=x token=%d reason=%s", k.Token(), reason), strings.Join(r.take(), "\n"))
		}
		k := f.acquired(l, bg, "x", time.Second)
		f.until(time.Second)
		lost("lease ended", k)

		k = f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Second)
		f.until(12 * time.Second)
		lost("taken", k)

		k = f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Second)
		require.ErrorIs(t, k.Unlock(), ErrLost)
		require.Equal(t, []string{fmt.Sprintf("ERROR lock lost name=x token=%d reason=taken", k.Token())}, r.take())

		f.until(14 * time.Second)
		k = f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Second)
		require.ErrorIs(t, k.Extend(bg, time.Second), ErrLost)
		lost("taken", k)

		f.until(16 * time.Second)
		k = f.acquired(l, bg, "x", AutoRenew)
		f.meet(fails(errBroken), "renew")
		f.until(time.Minute)
		lines := strings.Join(r.take(), "\n")
		require.Contains(t, lines, fmt.Sprintf("ERROR lock lost name=x token=%d reason=not renewed", k.Token()))
		require.Equal(t, 1, strings.Count(lines, "ERROR"))
		require.Equal(t, 1, strings.Count(lines, "WARN"))
		require.EqualValues(t, 5, l.Stats().Lost)
	})
}

// A message queue that is down is a warning once a minute.
func TestLogOfANotifier(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, r := f.logged(rarely, WithNotifier(&bus{failures: 1000, hang: true}))
		f.take("x", time.Hour)
		f.try(l, bg, "x", 200*time.Second, AutoRenew)
		f.until(150 * time.Second)
		lines := r.take()
		require.Equal(t, 3, strings.Count(strings.Join(lines, "\n"), "WARN notifier: subscribe err=invalid connection"))
		require.Greater(t, strings.Count(strings.Join(lines, "\n"), "DEBUG notifier: subscribe"), 100)

		require.NoError(t, f.acquired(l, bg, "y", AutoRenew).Unlock())
		f.until(156 * time.Second)
		require.Contains(t, r.take(), "WARN notifier: publish name=y err=context deadline exceeded")

		for i := range 8 {
			f.acquired(l, bg, fmt.Sprint(i), AutoRenew)
		}
		require.NoError(t, l.Close())
		require.Equal(t, 8, strings.Count(strings.Join(r.take(), "\n"), "DEBUG notifier: publish"), "told until the end")
	})
}

// Do logs an Unlock that failed.
func TestLogOfDo(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, r := f.logged()
		f.meet(fails(errDenied), "release")
		require.NoError(t, l.Do(bg, "x", 0, AutoRenew, func(context.Context) error { return nil }))
		synctest.Wait()
		require.Equal(t, []string{`WARN release name=x err=mysqllock: unlock "x": ` + errDenied.Error()}, r.take())
	})
}

// docs/operations.md has every record above debug, with its keys; those at debug use the
// same keys.
func TestLogTable(t *testing.T) {
	doc, err := os.ReadFile("docs/operations.md")
	require.NoError(t, err)
	documented := map[string]string{} // message to keys
	for _, m := range regexp.MustCompile("(?m)^\\| (?:error|warn|info) \\| `([^`]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = m[2]
	}
	require.Len(t, documented, 7)
	known := strings.Split("name, token, reason, locks, first, err", ", ")

	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	below, err := filepath.Glob("internal/*/*.go")
	require.NoError(t, err)
	files = append(files, below...)
	call := regexp.MustCompile(`[lL]og\.(Debug|Info|Warn|Error|Log)\(.*?"mysqllock: ([^"]+)", (.*)\)\n`)
	written := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		calls := call.FindAllStringSubmatch(string(source), -1)
		require.Len(t, calls, len(regexp.MustCompile(`\b[lL]og\.(Debug|Info|Warn|Error|Log)\(`).FindAllString(string(source), -1)), file)
		for _, m := range calls {
			var keys []string
			for _, key := range regexp.MustCompile(`"(\w+)", `).FindAllStringSubmatch(m[3], -1) {
				keys = append(keys, key[1])
				require.True(t, slices.Contains(known, key[1]), m[0])
			}
			if m[1] != "Debug" {
				written[m[2]] = strings.Join(keys, ", ")
			}
		}
	}
	require.Equal(t, documented, written)
}

func TestOutcomes(t *testing.T) {
	require.Equal(t, "not_acquired", AcquireInfo{Err: opError("acquire", "x", fmt.Errorf("%w: %w", ErrNotAcquired, errDenied))}.Outcome())
	require.Equal(t, "error", AcquireInfo{Err: errDenied}.Outcome())
	require.Equal(t, "error", HoldInfo{Err: errors.New("unknown")}.Outcome())
}
