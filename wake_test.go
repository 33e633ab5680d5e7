package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/wake"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dead is a process in the wait queue of a row that has died.
const dead store.Process = 5123456789012345678

// list appends a process to the wait queue of a row.
func (f *fakeRepo) list(name string, p store.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[name]
	r.waiters += p.String()
	f.rows[name] = r
}

// listed returns the wait queue of a row.
func (f *fakeRepo) listed(name string) []store.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []store.Process
	for r := f.rows[name]; r.waiters != ""; r.waiters = r.waiters[19:] {
		all = append(all, r.nextWaiter())
	}
	return all
}

// awake makes a process one that can be signalled, and never responds.
func (f *fakeRepo) awake(p store.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[p] = make(chan struct{}, 1)
}

// listens reports whether a process can be signalled.
func (f *fakeRepo) listens(p store.Process) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listeners[p] != nil
}

// anew makes counts and sent start again from now.
func (f *fakeRepo) anew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sends = nil
}

// nth lets the n-th statement alone meet a fault.
func nth(n int64, flt fault) fault {
	var sent atomic.Int64
	return func(ctx context.Context, serve func()) error {
		if sent.Add(1) == n {
			return flt(ctx, serve)
		}
		return none(ctx, serve)
	}
}

// A release signals the process that has waited longest, and no other; that one has the lock
// at once.
func TestSignalWakesTheHead(t *testing.T) {
	for name, c := range map[string]struct {
		free   func(l *Locker, k *Lock) error
		counts string
	}{
		"Unlock": {func(_ *Locker, k *Lock) error { return k.Unlock() }, "acquire 1, release 1, signal 1"},
		// It releases two, and so must read whom to signal.
		"Close": {func(l *Locker, _ *Lock) error { return l.Close() }, "acquire 2, look 1, releaseAll 1, signal 2"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a := f.locker(withSignal)
				k := f.acquired(a, bg, "x", AutoRenew)
				f.acquired(a, bg, "y", AutoRenew)
				var waiters []*pending
				for _, name := range []string{"x", "x", "x", "y"} {
					waiters = append(waiters, f.try(f.locker(withSignal), bg, name, WaitForever, AutoRenew))
				}
				require.Len(t, f.listed("x"), 3)
				f.until(1800 * ms) // between two looks
				f.anew()
				require.NoError(t, c.free(a, k))
				waiters[0].granted(1800 * ms)
				synctest.Wait()
				require.Equal(t, c.counts, f.counts())
				require.Len(t, f.listed("x"), 2)
				require.Equal(t, []bool{false, false, name == "Close"}, []bool{waiters[1].over(), waiters[2].over(), waiters[3].over()})
			})
		})
	}
}

// Processes are served in the order in which they were refused first.
func TestSignalsInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		k := f.acquired(f.locker(withSignal), bg, "x", AutoRenew)
		var waiters []*pending
		for range 6 {
			waiters = append(waiters, f.try(f.locker(withSignal, rarely), bg, "x", WaitForever, AutoRenew))
		}
		for i, p := range waiters {
			at := time.Duration(i+1) * 10 * ms // before anybody looks
			f.until(at)
			require.False(t, p.over())
			require.NoError(t, k.Unlock())
			k = p.granted(at)
			require.Len(t, f.listed("x"), 5-i)
		}
	})
}

// The cost of a wait: an attempt, another to be enlisted, and one when signalled. If others
// were refused recently, the first attempt enlists.
func TestStatementsOfAWait(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.anew()
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, "acquire 2, listen 1", f.counts())
		f.until(50 * ms)
		require.NoError(t, k.Unlock())
		k = p.granted(50 * ms)
		synctest.Wait()
		require.Equal(t, "acquire 3, listen 1, release 1, signal 1", f.counts())

		// Who waited for a lock, or was refused, remembers that others want it.
		require.NoError(t, k.Unlock())
		k = f.acquired(a, bg, "x", AutoRenew)
		f.anew()
		f.try(b, bg, "x", 0, AutoRenew).refused(50*ms, ErrNotAcquired)
		require.Equal(t, "acquire 1", f.counts())
		require.Empty(t, f.listed("x"), "a call with wait 0 is not enlisted")
		f.try(b, bg, "x", 10*ms, AutoRenew).refused(60*ms, ErrNotAcquired)
		synctest.Wait()
		require.Equal(t, "acquire 2, listen 1, unlist 1", f.counts(), "it waited for the grant before")
		f.anew()
		f.try(b, bg, "x", 0, AutoRenew).refused(60*ms, ErrNotAcquired)
		synctest.Wait()
		require.Equal(t, "acquire 1", f.counts(), "contended or not")
		f.anew()
		p = f.try(b, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, "acquire 1", f.counts(), "contended; the last listening is under way")
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		k = p.granted(60 * ms)

		// Until it is had without.
		require.NoError(t, k.Unlock())
		require.NoError(t, f.acquired(b, bg, "x", AutoRenew).Unlock())
		f.acquired(a, bg, "x", AutoRenew)
		f.anew()
		f.try(b, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, "acquire 2", strings.Split(f.counts(), ", l")[0])
	})
}

// A process whose signals are not known to arrive polls sooner.
func TestPollsUntilASignalArrives(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(4 * time.Second)
		require.Equal(t, "0s 100ms 300ms 700ms 1.5s 2.5s 3.5s", f.sent("listen"))
		require.NoError(t, k.Unlock())
		k = p.granted(4 * time.Second)

		// A signal has arrived.
		f.until(10 * time.Second)
		require.NoError(t, k.Unlock())
		f.acquired(a, bg, "x", 30*time.Second)
		f.anew()
		p = f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(13500 * ms)
		require.Equal(t, "10s 11s 12s 13s", f.sent("listen"))

		// And now none came, though the row was free when it looked.
		f.free("x")
		k = p.granted(14 * time.Second)
		f.until(20 * time.Second)
		require.NoError(t, k.Unlock())
		f.take("x", time.Hour)
		f.anew()
		f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(22 * time.Second)
		require.Equal(t, "20s 20.1s 20.3s 20.7s 21.5s", f.sent("listen"))
	})
}

// A signal during a wait ends the frequent polls as well.
func TestSignalEndsFrequentPolls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		for _, name := range []string{"x", "y"} {
			f.take(name, time.Hour)
			f.try(b, bg, name, WaitForever, AutoRenew)
		}
		f.until(50 * ms)
		_, err := f.Signal(bg, b.process)
		require.NoError(t, err)
		f.until(3 * time.Second)
		require.Equal(t, "0s 50ms*2 100ms*2 1.1s*2 2.1s*2", f.sent("listen"))
	})
}

// A shorter interval is kept; of a longer one, each statement sleeps for a part.
func TestPollsWithAnInterval(t *testing.T) {
	for interval, listened := range map[time.Duration]string{
		50 * ms:          "0s 50ms 100ms 150ms 200ms 250ms 300ms",
		300 * ms:         "0s 100ms 300ms",
		20 * time.Second: "0s 100ms 300ms",
	} {
		t.Run(interval.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withSignal, WithPollInterval(interval))
				f.take("x", time.Hour)
				f.try(l, bg, "x", WaitForever, AutoRenew)
				f.until(330 * ms)
				require.Equal(t, listened, f.sent("listen"))
				if interval > wake.MaxListen {
					f.until(30 * time.Second)
					require.Equal(t, listened+" 700ms 1.5s 3.1s 6.3s 11.3s 16.3s 21.3s 26.3s", f.sent("listen"))
				}
			})
		})
	}
}

// A process that waits sends one statement a second for all its names, and one or two when
// the leases that it knows of end. If no signal has arrived yet, it polls sooner after that,
// too.
func TestStatementsOfWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		names     int
		signalled bool
		counts    string
	}{
		"signalled":       {10, true, "begin 1, bound 1, listen 60, look, renew 6"},
		"never signalled": {1, false, "acquire 2, begin 1, bound 1, listen 63, renew 6"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal)
				for i := range c.names {
					name := fmt.Sprint(i)
					f.acquired(a, bg, name, AutoRenew)
					f.try(b, bg, name, WaitForever, AutoRenew)
					f.try(b, bg, name, WaitForever, AutoRenew)
				}
				f.until(5 * ms)
				if c.signalled {
					_, err := f.Signal(bg, b.process)
					require.NoError(t, err)
				}
				f.until(2200 * ms)
				f.anew()
				f.meet(slow(ms), "look")
				f.until(62200 * ms)
				looks := len(strings.Fields(f.sent("look")))
				require.Equal(t, c.counts, strings.Replace(f.counts(), fmt.Sprint("look ", looks), "look", 1))
				if c.names > 1 {
					// One for the leases that ended before it, and one for those that ended during it.
					require.GreaterOrEqual(t, looks, 2)
					require.LessOrEqual(t, looks, 4)
				}
			})
		})
	}
}

// A signal that arrives before the process listens, or while it is being enlisted, is not
// lost.
func TestSignalBeforeListening(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.anew()
		f.meet(nth(2, slow(50*ms)), "acquire")
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(25 * ms)
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		p.granted(50 * ms)
		synctest.Wait()
		require.Equal(t, "acquire 3, listen 1, release 1, signal 1, unlist 1", f.counts())
	})
}

// It was not signalled because it did not sleep, which proves nothing about signals.
func TestSignalBeforeListeningProvesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, k.Unlock())
		require.NoError(t, p.granted(0).Unlock()) // by a signal
		f.until(5 * time.Second)
		k = f.acquired(a, bg, "x", AutoRenew)
		f.meet(nth(1, slow(50*ms)), "acquire") // it lists: the last grant was waited for
		p = f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(5025 * ms)
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		require.NoError(t, p.granted(5050*ms).Unlock())
		f.until(10 * time.Second)
		f.take("x", time.Hour)
		f.anew()
		f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(13500 * ms)
		require.Equal(t, "10s 11s 12s 13s", f.sent("listen"))
	})
}

// The same while it listens for other names, and continues to do so.
func TestSignalBesideOtherNames(t *testing.T) {
	for n := 1; n <= 2; n++ { // the signal is meant for the one, or has the process look
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal)
				for i := range n {
					f.acquired(a, bg, fmt.Sprint(i), AutoRenew)
					f.try(b, bg, fmt.Sprint(i), WaitForever, AutoRenew)
				}
				k := f.acquired(a, bg, "x", AutoRenew)
				f.until(2 * time.Second) // it sleeps until 2.5 s
				f.meet(nth(2, slow(50*ms)), "acquire")
				p := f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(2025 * ms)
				require.Equal(t, []store.Process{b.process}, f.listed("x"))
				require.NoError(t, k.Unlock())
				p.granted(2050 * ms)
			})
		})
	}
}

// A signal for another name than the only one that is watched is a false wake-up, which the
// row shows.
func TestSignalForManyNames(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		var held []*Lock
		var waiters []*pending
		for i := range 100 {
			held = append(held, f.acquired(a, bg, fmt.Sprint(i), AutoRenew))
			waiters = append(waiters, f.try(b, bg, fmt.Sprint(i), WaitForever, AutoRenew))
		}
		f.until(1800 * ms)
		for _, i := range []int{50, 0, 99} {
			f.anew()
			require.NoError(t, held[i].Unlock())
			waiters[i].granted(1800 * ms)
			synctest.Wait()
			require.Equal(t, "acquire 1, listen 1, look 1, release 1, signal 1", f.counts(), "a look shows which, and it listens for the others")
		}
		f.anew()
		require.NoError(t, a.Close())
		for _, p := range waiters {
			p.wait()
			require.NoError(t, p.err)
			require.Equal(t, 1800*ms, p.at)
		}
	})
}

// With more names than one statement takes, the rows of the others are read when the
// statement ends.
func TestListenForMoreThanABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		var waiters []*pending
		for i := range 3 * store.BatchSize {
			f.take(fmt.Sprint(i), time.Hour)
			waiters = append(waiters, f.try(l, bg, fmt.Sprint(i), WaitForever, AutoRenew))
		}
		f.until(2 * time.Second)
		for i := range 10 {
			f.free(fmt.Sprint(i))
		}
		f.until(4 * time.Second)
		for i, p := range waiters {
			require.Equal(t, i < 10, p.over(), i)
		}
	})
}

// A sleeping waiter that is not signalled finds the row free by itself.
func TestRowsWithoutASignal(t *testing.T) {
	for name, c := range map[string]struct {
		befall func(f *fakeRepo) // at 1.8 s; the next look is at 2.5 s
		at     time.Duration
		counts string
	}{
		"expired":  {func(*fakeRepo) {}, 2200 * ms, "acquire 1"},
		"freed":    {func(f *fakeRepo) { f.free("x") }, 2500*ms - 300*ms, "acquire 1"},
		"missing":  {func(f *fakeRepo) { f.remove("x") }, 2200 * ms, "acquire 1"},
		"freed 1h": {func(f *fakeRepo) { f.free("y") }, 2500 * ms, "acquire 1, listen 1"},
		"gone 1h":  {func(f *fakeRepo) { f.remove("y") }, 2500 * ms, "acquire 1, listen 1, look 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withSignal)
				row := "x"
				if strings.HasSuffix(name, "1h") {
					row = "y"
				}
				f.take("x", 2200*ms)
				f.take("y", time.Hour)
				p := f.try(l, bg, row, WaitForever, AutoRenew)
				f.until(1800 * ms)
				f.anew()
				c.befall(f)
				p.granted(c.at)
				synctest.Wait()
				require.Equal(t, c.counts, f.counts())
			})
		})
	}
}

// A waiter that is missing from the wait queue is enlisted again when it polls.
func TestWaiterIsEnlistedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(1800 * ms)
		_, _, err := side{f, a.process}.RemoveWaiter(bg, []string{"x"}, b.process)
		require.NoError(t, err)
		f.until(2600 * ms)
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		p.granted(2600 * ms)
	})
}

// Dead processes in the wait queue are removed, and the first one alive is signalled.
func TestDeadHeads(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		for i := range 3 {
			f.list("x", dead+store.Process(i))
		}
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.list("x", dead+3)
		f.until(1800 * ms)
		f.anew()
		require.NoError(t, k.Unlock())
		p.granted(1800 * ms)
		synctest.Wait()
		require.Equal(t, "acquire 1, release 1, signal 4, unlist 3", f.counts())
		require.Equal(t, []store.Process{dead + 3}, f.listed("x"))
	})
}

// If the waiter behind the dead head is in the process that released, it is woken without a
// signal. It had been refused just before.
func TestDeadHeadBeforeALocalWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		k := f.acquired(l, bg, "x", AutoRenew)
		f.list("x", dead)
		f.meet(after(20*ms, none), "signal")
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(time.Second)
		f.anew()
		require.NoError(t, k.Unlock())
		p.granted(1020 * ms)
		synctest.Wait()
		require.Equal(t, "acquire 3, listen 1, release 1, signal 1, unlist 1", f.counts())
	})
}

// The row is reserved for a head that can be signalled and does not respond for 250 ms, and
// for one that can only poll for 1.5 s; the process that then takes the row removes it.
func TestHeadThatDoesNotRespond(t *testing.T) {
	for name, c := range map[string]struct {
		head     store.Process
		free, at time.Duration
		signals  string
	}{
		"looks later":             {dead, 2249 * ms, 2500 * ms, "2.249s"},
		"looks too early":         {dead, 2250 * ms, 3500 * ms, "2.25s"},
		"silent, looks later":     {dead.Polling(), 999 * ms, 2500 * ms, ""},
		"silent, looks too early": {dead.Polling(), 1000 * ms, 3500 * ms, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal)
				k := f.acquired(a, bg, "x", AutoRenew)
				f.list("x", c.head)
				f.awake(dead)
				p := f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(c.free)
				require.NoError(t, k.Unlock())
				synctest.Wait()
				require.Equal(t, []store.Process{c.head, b.process}, f.listed("x"))
				p.granted(c.at)
				require.Empty(t, f.listed("x"))
				require.Equal(t, c.signals, f.sent("signal"))
				require.Empty(t, f.sent("unlist"))
			})
		})
	}
}

// A call with wait 0 retries while the row is reserved: it is refused if the head takes the
// row, and granted otherwise.
func TestNoWaitWhileReserved(t *testing.T) {
	for name, c := range map[string]struct {
		head     store.Process
		comes    time.Duration
		granted  bool
		at       time.Duration
		acquires string
	}{
		"comes":                 {dead, 20 * ms, false, 30 * ms, "0s 10ms 20ms 30ms"},
		"does not come":         {dead, 0, true, 310 * ms, "0s 10ms 30ms 70ms 150ms 310ms"},
		"silent, comes":         {dead.Polling(), 500 * ms, false, 560 * ms, "0s 10ms 30ms 70ms 150ms 310ms 500ms 560ms"},
		"silent, does not come": {dead.Polling(), 0, false, noWaitTimeout, "0s 10ms 30ms 70ms 150ms 310ms 560ms"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal)
				k := f.acquired(a, bg, "x", AutoRenew)
				head := side{f, dead}
				f.list("x", c.head)
				f.awake(dead)
				require.NoError(t, k.Unlock())
				synctest.Wait()
				f.anew()
				p := f.try(b, bg, "x", 0, AutoRenew)
				require.False(t, p.over())
				if c.comes > 0 {
					f.until(c.comes)
					g, err := head.Acquire(bg, store.AcquireRequest{Claim: store.Claim{Name: "x", Owner: "head"}, Lease: time.Hour})
					require.NoError(t, err)
					require.NotZero(t, g.Token)
					head.HoldEnded()
				}
				if c.granted {
					p.granted(c.at)
				} else {
					p.refused(c.at, ErrNotAcquired)
				}
				require.Equal(t, c.acquires, f.sent("acquire"))
			})
		})
	}
}

// A waiter behind one for which the row is reserved is enlisted, and then relies on the signal
// and on polls.
func TestWaitWhileReserved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.list("x", dead)
		f.awake(dead)
		require.NoError(t, k.Unlock())
		f.anew()
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(20 * ms)
		head := side{f, dead}
		claim := store.Claim{Name: "x", Owner: "head"}
		g, err := head.Acquire(bg, store.AcquireRequest{Claim: claim, Lease: 10 * time.Second})
		require.NoError(t, err)
		require.NotZero(t, g.Token)
		head.HoldEnded()
		f.until(9 * time.Second)
		require.Equal(t, "0s 0s 20ms", f.sent("acquire"))
		_, nextWaiter, err := head.Release(bg, claim)
		require.NoError(t, err)
		require.Equal(t, b.process, nextWaiter)
		_, err = head.Signal(bg, nextWaiter)
		require.NoError(t, err)
		p.granted(9 * time.Second)
	})
}

// A waiter that cannot be signalled makes another attempt when the reservation ends.
func TestWaitWhileReservedWithoutSignal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(rarely)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.list("x", dead)
		f.awake(dead)
		require.NoError(t, k.Unlock())
		f.anew()
		f.try(b, bg, "x", WaitForever, AutoRenew).granted(500 * ms)
		require.Equal(t, "0s 250ms 500ms", f.sent("acquire"))
	})
}

// If signalling fails, the waiter polls.
func TestSignalThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		flt    fault
		op     string
		head   bool
		counts string
	}{
		"denied":        {fails(errDenied), "signal", false, "acquire 1, listen 1, release 1, signal 1"},
		"hangs":         {hangs, "signal", false, "acquire 1, listen 1, release 1, signal 1"},
		"unlist denied": {fails(errDenied), "unlist", true, "acquire 1, listen 1, release 1, signal 1, unlist 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal)
				k := f.acquired(a, bg, "x", AutoRenew)
				if c.head {
					f.list("x", dead)
				}
				p := f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(1800 * ms)
				f.anew()
				f.meet(c.flt, c.op)
				require.NoError(t, k.Unlock())
				require.Equal(t, 1800*ms, f.now(), "Unlock does not wait for it")
				p.granted(2500 * ms)
				synctest.Wait()
				require.Equal(t, c.counts, f.counts())
				f.meet(none, c.op)
			})
		})
	}
}

// A process whose listener's connection broke opens another at once.
func TestListenThatFailsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.meet(nth(1, fails(errBroken)), "listen")
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(50 * ms)
		require.Equal(t, "acquire 3, listen 2", f.counts())
		require.NoError(t, k.Unlock())
		p.granted(50 * ms)
	})
}

// A process that cannot listen polls for a second, then for two, four and so on, up to a
// minute, until it can.
func TestListenThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		f.take("x", time.Hour)
		f.meet(fails(errDenied), "listen")
		f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(10 * time.Second)
		require.Equal(t, "0s 0s 1.5s 4s 8.5s", f.sent("listen"))
		require.Equal(t, "100ms 300ms 700ms 1.5s 1.6s 1.8s 2.2s 3s 4s 4.1s 4.3s 4.7s 5.5s 6.5s 7.5s 8.5s 8.6s 8.8s 9.2s 10s", f.sent("look"))
		f.until(5 * time.Minute)
		require.Equal(t, "0s 0s 1.5s 4s 8.5s 17s 33.5s 1m6s 2m6.5s 3m7s 4m7.5s", f.sent("listen"))

		// Then all begins anew.
		f.meet(none, "listen")
		f.until(6 * time.Minute)
		f.meet(fails(errDenied), "listen")
		f.anew()
		f.until(6*time.Minute + 5*time.Second)
		require.Equal(t, "6m1s 6m1s 6m2.5s 6m5s", f.sent("listen"))
	})
}

// A pool without a spare connection is not tried again for a minute.
func TestListenInASmallPool(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		f.take("x", time.Hour)
		f.meet(fails(store.ErrPoolTooSmall), "listen")
		f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(3 * time.Minute)
		require.Equal(t, "0s 1m0.5s 2m1s", f.sent("listen"))
		require.False(t, f.listens(l.process))
	})
}

// A pool that is used up at the moment is tried again after a second.
func TestListenInAUsedUpPool(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.meet(first(2, fails(store.ErrPoolInUse), none), "listen")
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(4500 * ms)
		require.Equal(t, "0s 1.5s 4s", f.sent("listen")) // with the looks after 1 s and 2 s
		require.NoError(t, k.Unlock())
		p.granted(4500 * ms)
	})
}

// silent is a process that cannot listen for a minute.
func (f *fakeRepo) silent(opts ...Option) *Locker {
	f.t.Helper()
	l := f.locker(append(opts, withSignal)...)
	f.take("cannot listen", time.Hour)
	f.meet(fails(store.ErrPoolTooSmall), "listen")
	f.try(l, bg, "cannot listen", ms, AutoRenew).refused(f.now()+ms, ErrNotAcquired)
	synctest.Wait()
	f.meet(none, "listen")
	f.remove("cannot listen")
	f.anew()
	return l
}

// A process that cannot listen is in the wait queue, too: a free row is reserved for it until
// it has polled, and no signal is sent.
func TestPollingWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.silent(), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		next := f.try(c, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, []store.Process{b.process.Polling(), c.process}, f.listed("x"))
		f.until(1601 * ms) // b looks at 1.501 s and 2.501 s, c at 2.501 s
		f.anew()
		require.NoError(t, k.Unlock())
		f.until(1700 * ms)
		require.Equal(t, "release 1", f.counts())
		k = p.granted(2501 * ms)
		require.False(t, next.over())
		require.Equal(t, []store.Process{c.process}, f.listed("x"))

		// It signals others.
		require.NoError(t, k.Unlock())
		next.granted(2501 * ms)
	})
}

// A process that is enlisted as a listener and has stopped listening is removed by the process
// whose signal fails, notices that, and is enlisted as one that polls.
func TestWaiterThatStopsListening(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.meet(fails(store.ErrPoolTooSmall), "listen")
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.meet(none, "listen")
		next := f.try(c, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, []store.Process{b.process, c.process}, f.listed("x"))
		f.until(1600 * ms)
		f.anew()
		require.NoError(t, k.Unlock())
		k = next.granted(1600 * ms)
		synctest.Wait()
		require.Equal(t, "acquire 1, release 1, signal 2, unlist 1", f.counts())
		f.until(2600 * ms)
		require.Equal(t, []store.Process{b.process.Polling()}, f.listed("x"))
		require.NoError(t, k.Unlock())
		p.granted(2800 * ms) // it has just begun to watch, and so polls sooner
	})
}

// A waiter that cannot listen and leaves is removed as well.
func TestPollingWaiterThatLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.silent(), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		gone := f.try(b, bg, "x", 100*ms, AutoRenew)
		p := f.try(c, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, []store.Process{b.process.Polling(), c.process}, f.listed("x"))
		gone.refused(f.now()+100*ms, ErrNotAcquired)
		synctest.Wait()
		assert.Equal(t, []store.Process{c.process}, f.listed("x"))
		f.until(1800 * ms)
		require.NoError(t, k.Unlock())
		p.granted(1800 * ms)
	})
}

// If the pool is used up, the listener's connection is given back with the last waiter.
func TestIdleListenerInAUsedUpPool(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		f.take("x", time.Hour)
		f.try(l, bg, "x", time.Second, AutoRenew).refused(time.Second, ErrNotAcquired)
		f.until(2 * time.Second)
		require.True(t, f.listens(l.process))
		f.mu.Lock()
		f.full = true
		f.mu.Unlock()
		f.until(2*time.Second + wake.IdleTimeout/10)
		require.False(t, f.listens(l.process))
	})
}

// After a failure in the middle of a wait, polls are frequent, whatever the interval is.
func TestListenThatFailsLater(t *testing.T) {
	for name, interval := range map[string]time.Duration{"1 s": time.Second, "1 min": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(withSignal), f.locker(withSignal, WithPollInterval(interval))
				k := f.acquired(a, bg, "x", AutoRenew)
				p := f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(10 * ms)
				require.NoError(t, k.Unlock())
				k = p.granted(10 * ms) // by a signal: the looks are rare from now on
				f.until(5 * time.Second)
				require.NoError(t, k.Unlock())
				f.take("x", time.Hour)
				f.meet(first(2, fails(errBroken), none), "listen")
				f.anew()
				p = f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(5500 * ms)
				require.Equal(t, "5.1s 5.3s", f.sent("look"))
				f.free("x")
				p.granted(5700 * ms)
			})
		})
	}
}

// Many false signals are a time limit on statements, or a bug: then the process polls for a
// while.
func TestFalseSignals(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		f.take("x", time.Hour)
		f.try(b, bg, "x", WaitForever, AutoRenew)
		ringer := side{f, dead}
		signal := func() {
			alive, err := ringer.Signal(bg, b.process)
			require.NoError(t, err)
			require.True(t, alive)
			synctest.Wait()
		}
		f.anew()
		for range wake.MaxFalseWakes + 1 { // and one for the name
			signal()
		}
		require.Equal(t, "acquire 21, listen 21, signal 21", f.counts(), "each may have been meant")
		f.anew()
		signal()
		require.Equal(t, "acquire 1, signal 1", f.counts(), "so may the last")
		require.False(t, f.listens(b.process))
		f.anew()
		f.until(10500 * ms)
		require.Empty(t, strings.Fields(f.sent("acquire")))
		require.Len(t, strings.Fields(f.sent("listen")), 1)
		require.True(t, f.listens(b.process))
		f.anew()
		signal()
		require.Equal(t, "acquire 1, listen 1, signal 1", f.counts(), "they count anew")
	})
}

// After a time without listening, it is unknown whether signals arrive.
func TestSignalsAreUnprovenAfterAPause(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		f.take("x", time.Hour)
		p := f.try(b, bg, "x", 20*time.Second, AutoRenew)
		_, err := f.Signal(bg, b.process)
		require.NoError(t, err)
		f.until(500 * ms)
		f.meet(first(2, fails(errBroken), none), "listen")
		p.refused(20*time.Second, ErrNotAcquired)
		f.take("y", time.Hour)
		f.until(30 * time.Second) // nobody waits
		require.False(t, f.listens(b.process))
		f.anew()
		f.try(b, bg, "y", WaitForever, AutoRenew)
		f.until(32 * time.Second)
		require.Equal(t, "30s 30.1s 30.3s 30.7s 31.5s", f.sent("listen"))
	})
}

// An attempt after a false signal forgets the expiry that was known before.
func TestEarlierExpiryIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		f.take("x", 3*time.Second)
		f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(time.Second)
		f.take("x", time.Hour)
		_, err := f.Signal(bg, b.process)
		require.NoError(t, err)
		f.until(10 * time.Second)
		require.Equal(t, "0s 0s 1s", f.sent("acquire"))
	})
}

// A grant shows that signals are genuine.
func TestFrequentSignalsWithGrants(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		f.meet(fails(errDenied), "look")
		for range 3 * wake.MaxFalseWakes {
			k := f.acquired(a, bg, "x", AutoRenew)
			p := f.try(b, bg, "x", WaitForever, AutoRenew)
			require.NoError(t, k.Unlock())
			require.NoError(t, p.granted(0).Unlock())
		}
	})
}

// Waiters that leave are removed from the wait queue by one statement for all of them, but not
// while another waiter of the process remains.
func TestWaiterThatLeavesIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		f.acquired(a, bg, "x", AutoRenew)
		ctx, cancel := context.WithCancel(bg)
		head := f.try(b, ctx, "x", WaitForever, AutoRenew)
		next := f.try(b, bg, "x", 2*time.Second, AutoRenew)
		f.until(time.Second)
		cancel()
		head.refused(time.Second, ErrNotAcquired, context.Canceled)
		synctest.Wait()
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.Empty(t, f.sent("unlist"))
		next.refused(2*time.Second, ErrNotAcquired)
		synctest.Wait()
		require.Empty(t, f.listed("x"))
		require.Equal(t, "2s", f.sent("unlist"))
	})
}

// A call whose context ends during the statement that enlists it is removed when that has been
// answered.
func TestAbandonedAttemptIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		f.acquired(a, bg, "x", AutoRenew)
		ctx, cancel := context.WithCancel(bg)
		f.meet(nth(2, slow(500*ms)), "acquire")
		p := f.try(b, ctx, "x", WaitForever, AutoRenew)
		f.until(100 * ms)
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		cancel()
		p.refused(100*ms+probeWait/20, context.Canceled)
		f.until(510 * ms)
		require.Equal(t, "500ms", f.sent("unlist"))
		require.Empty(t, f.listed("x"))
	})
}

// An abandoned attempt that is granted has not been enlisted: there is nothing to remove.
func TestAbandonedGrantIsNotEnlisted(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		f.take("x", 200*ms)
		f.try(b, bg, "x", 100*ms, AutoRenew).refused(100*ms, ErrNotAcquired)
		f.until(time.Second)
		f.anew()
		ctx, cancel := context.WithCancel(bg)
		f.meet(slow(cancelGrace/2), "acquire")
		p := f.try(b, ctx, "x", WaitForever, AutoRenew)
		cancel()
		p.refused(time.Second+cancelGrace/2+probeWait/20, context.Canceled)
		f.until(2 * time.Second)
		require.Equal(t, "acquire 1, probe 1, release 1", f.counts())
		require.Zero(t, f.left("x"))
	})
}

// The process's entry in the wait queue passes to its next head, also to a call that would not
// be enlisted itself: that one removes it.
func TestQueueEntryPassesToTheNextHead(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		f.take("x", time.Hour)
		ctx, cancel := context.WithCancel(bg)
		f.meet(nth(2, slow(500*ms)), "acquire")
		head := f.try(b, ctx, "x", WaitForever, AutoRenew)
		impatient := f.try(b, bg, "x", 0, AutoRenew)
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		f.until(100 * ms)
		cancel()
		head.refused(100*ms+probeWait/20, context.Canceled)
		impatient.refused(500*ms, ErrNotAcquired)
		synctest.Wait()
		require.Equal(t, "acquire 3, probe 2, unlist 1", f.counts())
		require.Empty(t, f.listed("x"))
	})
}

// Many waiters that leave at once are removed in batches.
func TestRemovedInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := f.locker(withSignal)
		ctx, cancel := context.WithCancel(bg)
		f.take("first", time.Hour)
		first := f.try(b, bg, "first", time.Second, AutoRenew)
		var waiters []*pending
		for i := range store.BatchSize + 1 {
			f.take(fmt.Sprint(i), time.Hour)
			waiters = append(waiters, f.try(b, ctx, fmt.Sprint(i), WaitForever, AutoRenew))
		}
		f.meet(nth(1, after(100*ms, none)), "unlist")
		first.refused(time.Second, ErrNotAcquired)
		f.until(1050 * ms)
		cancel()
		for _, p := range waiters {
			p.refused(1050*ms, context.Canceled)
		}
		f.until(1100 * ms)
		require.Equal(t, fmt.Sprintf("1s 1.1s*%d 1.1s", store.BatchSize), f.sent("unlist"))
		require.Empty(t, f.listed("0"))
	})
}

// Of several rows, only those that are free cause a signal.
func TestSignalsOnlyForFreeRows(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.locker(withSignal), f.locker(withSignal)
		f.acquired(a, bg, "x", AutoRenew)
		f.acquired(a, bg, "y", AutoRenew)
		x, y := f.try(b, bg, "x", WaitForever, AutoRenew), f.try(c, bg, "y", WaitForever, AutoRenew)
		f.until(1800 * ms)
		unblock := f.block("y")
		time.AfterFunc(100*ms, unblock)
		f.anew()
		require.NoError(t, a.Close())
		x.granted(1800 * ms)
		y.wait()
		require.NoError(t, y.err)
		require.Equal(t, y.at, f.now())
		signals := "1.8s " + y.at.String()
		require.Equal(t, signals, f.sent("signal"))
	})
}

// If the row becomes free while a waiter is being removed, the process behind it is
// signalled.
func TestRemovedWaiterPassesTheSignalOn(t *testing.T) {
	for name, test := range map[string]struct {
		names []string
		look  fault // of the look for names that the statement passed over
	}{
		"one name":    {[]string{"x"}, none},
		"more":        {[]string{"x", "y", "z"}, none},
		"more, blind": {[]string{"x", "y", "z"}, fails(errDenied)},
	} {
		names := test.names
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b, c := f.locker(withSignal), f.locker(withSignal), f.locker(withSignal)
				ctx, cancel := context.WithCancel(bg)
				var held []*Lock
				var gone, next []*pending
				for _, name := range names {
					held = append(held, f.acquired(a, bg, name, AutoRenew))
				}
				f.acquired(a, bg, "first", AutoRenew)
				first := f.try(b, bg, "first", 1799*ms, AutoRenew)
				for _, name := range names {
					gone = append(gone, f.try(b, ctx, name, WaitForever, AutoRenew))
					next = append(next, f.try(c, bg, name, WaitForever, AutoRenew))
				}
				f.meet(after(20*ms, none), "unlist")
				first.refused(1799*ms, ErrNotAcquired) // keeps the unlist busy
				f.until(1800 * ms)
				cancel()
				for _, p := range gone {
					p.refused(1800*ms, context.Canceled)
				}
				f.until(1805 * ms)
				for _, k := range held {
					require.NoError(t, k.Unlock())
				}
				synctest.Wait()
				f.meet(nth(1, test.look), "look")
				f.anew()
				for _, p := range next {
					p.granted(1839 * ms)
				}
				synctest.Wait()
				require.Equal(t, fmt.Sprintf("1.819s*%d", len(names)), strings.Replace(f.sent("unlist")+"*1", "*3*1", "*3", 1))
				require.Equal(t, "1.839s", f.sent("signal"), "one process, once")
			})
		})
	}
}

// A call that waits again for a name, before the process is removed from its wait queue, keeps
// the entry, and gives it up when it leaves.
func TestWaiterArrivesDuringRemoval(t *testing.T) {
	for name, wait := range map[string]time.Duration{"waits": 2 * time.Second, "does not wait": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				b := f.locker(withSignal)
				f.take("x", time.Hour)
				f.take("y", time.Hour)
				f.meet(nth(1, after(400*ms, none)), "unlist")
				y := f.try(b, bg, "y", 100*ms, AutoRenew)
				x := f.try(b, bg, "x", 200*ms, AutoRenew)
				y.refused(100*ms, ErrNotAcquired)
				x.refused(200*ms, ErrNotAcquired)
				synctest.Wait()
				require.Equal(t, "100ms", f.sent("unlist"))

				f.until(300 * ms)
				f.meet(slow(300*ms), "acquire")
				again := f.try(b, bg, "x", wait, AutoRenew)
				f.until(550 * ms)
				require.Equal(t, "100ms", f.sent("unlist"), "x is waited for again")
				again.wait()
				require.ErrorIs(t, again.err, ErrNotAcquired)
				synctest.Wait()
				require.Equal(t, "100ms "+f.now().String(), f.sent("unlist"))
				require.Empty(t, f.listed("x"))
			})
		})
	}
}

// If the removal fails, the next process that signals notices.
func TestRemovalThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.meet(nth(1, fails(errDenied)), "unlist")
		f.try(b, bg, "x", 100*ms, AutoRenew).refused(100*ms, ErrNotAcquired)
		p := f.try(c, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, []store.Process{b.process, c.process}, f.listed("x"))
		f.until(5 * time.Second)
		require.False(t, f.listens(b.process))
		require.NoError(t, k.Unlock())
		p.granted(5 * time.Second)
		require.Empty(t, f.listed("x"))
	})
}

// The listener's connection is kept for 3 s after the last waiter has left.
func TestIdleListener(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(50 * ms)
		require.NoError(t, k.Unlock())
		k = p.granted(50 * ms)
		f.until(3049 * ms)
		require.True(t, f.listens(b.process))
		f.until(3051 * ms)
		require.False(t, f.listens(b.process))
		require.Equal(t, "0s", f.sent("listen"))

		// A waiter within the 3 s uses the same connection.
		f.until(10 * time.Second)
		require.NoError(t, k.Unlock())
		for i := range 5 {
			at := 10*time.Second + time.Duration(i)*2*time.Second
			k := f.acquired(a, bg, "x", AutoRenew)
			p := f.try(b, bg, "x", WaitForever, AutoRenew)
			require.NoError(t, k.Unlock())
			require.NoError(t, p.granted(at).Unlock())
			f.until(at + 2*time.Second)
			require.True(t, f.listens(b.process))
		}
		f.until(18*time.Second + wake.IdleTimeout - ms)
		require.True(t, f.listens(b.process))
		f.until(18*time.Second + wake.IdleTimeout + ms)
		require.False(t, f.listens(b.process))
	})
}

// A waiter that arrives while the listener is idle costs one listening statement.
func TestStatementsOfAnIdleListener(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		for i := range 5 {
			at := time.Duration(i) * 2 * time.Second
			k := f.acquired(a, bg, "x", AutoRenew)
			p := f.try(b, bg, "x", WaitForever, AutoRenew)
			require.NoError(t, k.Unlock())
			require.NoError(t, p.granted(at).Unlock())
			f.until(at + 2*time.Second)
		}
		require.Equal(t, "0s 2s 4s 6s 8s", f.sent("listen"))
	})
}

// A closing is a process that waits, or waited, when it is closed.
type closing struct {
	close  time.Duration
	proven bool          // it was signalled before
	wait   time.Duration // since 0
	faults map[string]fault
	took   time.Duration // Close
	counts string        // of Close
}

// lastWord is how long Close waits for signals and removals.
const lastWord = time.Second

func (c closing) run(t *testing.T, f *fakeRepo) {
	b := f.locker(withSignal)
	f.take("x", time.Hour)
	if c.proven { // and not listening any more
		p := f.try(b, bg, "x", 50*ms, AutoRenew)
		_, err := f.Signal(bg, b.process)
		require.NoError(t, err)
		p.refused(50*ms, ErrNotAcquired)
		f.until(9 * time.Second)
		require.False(t, f.listens(b.process))
		c.close += 9 * time.Second
	}
	for op, flt := range c.faults {
		f.meet(flt, op)
	}
	p := f.try(b, bg, "x", c.wait, AutoRenew)
	f.until(c.close)
	f.anew()
	require.NoError(t, b.Close())
	require.Equal(t, c.took, f.now()-c.close)
	if c.wait == WaitForever {
		p.refused(c.close, ErrClosed)
	}
	synctest.Wait()
	require.Equal(t, c.counts, f.counts())
	require.False(t, f.listens(b.process))
	require.Equal(t, c.took >= lastWord, len(f.listed("x")) > 0)
	time.Sleep(time.Minute)
	require.Equal(t, c.counts, f.counts())
}

// Close ends the listener at once, in every state, and removes the process from the wait
// queues.
func TestCloseEndsListening(t *testing.T) {
	for name, c := range map[string]closing{
		"listening":                {4600 * ms, false, WaitForever, nil, 0, "signal 1, unlist 1"},
		"listening, not signalled": {4600 * ms, false, WaitForever, map[string]fault{"signal": hangs}, wake.StopTimeout, "signal 1, unlist 1"},
		"listening, signal denied": {4600 * ms, false, WaitForever, map[string]fault{"signal": fails(errDenied)}, wake.StopTimeout, "signal 1, unlist 1"},
		"lingering":                {2500 * ms, false, time.Second, nil, 0, "signal 1"},
		"not listening any more":   {9 * time.Second, false, time.Second, nil, 0, ""},
		"withdrawing":              {1001 * ms, false, time.Second, map[string]fault{"unlist": late(100 * ms)}, 99 * ms, "signal 1"},
		"withdrawing, no answer":   {1001 * ms, false, time.Second, map[string]fault{"unlist": hangs}, lastWord, "signal 1"},
		"cannot listen":            {4600 * ms, false, WaitForever, map[string]fault{"listen": fails(errDenied)}, 0, "unlist 1"},
		"cannot be removed":        {4600 * ms, false, WaitForever, map[string]fault{"unlist": hangs}, lastWord, "signal 1, unlist 1"},
		"nothing is ever answered": {4600 * ms, false, WaitForever, map[string]fault{"unlist": hangs, "signal": hangs}, wake.StopTimeout + lastWord, "signal 1, unlist 1"},
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, c.run) })
	}
}

// Close also ends the first statement of a listener.
func TestCloseEndsTheFirstListening(t *testing.T) {
	for name, c := range map[string]closing{
		"looks soon": {10 * ms, false, WaitForever, nil, 0, "signal 1, unlist 1"},
		"proven":     {10 * ms, true, WaitForever, nil, 0, "signal 1, unlist 1"},
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, c.run) })
	}
}

// A process behind one whose Locker is closed is signalled when that has released its lock,
// and when it was removed.
func TestCloseSignalsTheNext(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b, c := f.locker(withSignal), f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.try(b, bg, "x", WaitForever, AutoRenew)
		p := f.try(c, bg, "x", WaitForever, AutoRenew)
		f.until(1800 * ms)
		f.meet(after(20*ms, none), "unlist")
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		synctest.Wait()
		require.NoError(t, k.Unlock()) // b is listed first, and will not come
		p.granted(1820 * ms)
		require.NoError(t, <-closed)
	})
}

// A release in the background signals, too.
func TestBackgroundReleaseSignals(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal)
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(1800 * ms)
		f.meet(fails(errDenied), "release")
		f.meet(first(1, fails(errDenied), none), "releaseAll")
		require.ErrorIs(t, k.Unlock(), errDenied)
		p.granted(1900 * ms)
	})
}

// Without the signal no process is enlisted, signalled or removed.
func TestNoSignalsWithoutSignal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(), f.locker()
		k := f.acquired(a, bg, "x", AutoRenew)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.try(b, bg, "x", 100*ms, AutoRenew).refused(100*ms, ErrNotAcquired)
		f.list("x", dead)
		f.until(1500 * ms)
		require.NoError(t, k.Unlock())
		p.granted(2 * time.Second)
		require.Equal(t, "acquire 3, look 2, release 1", f.counts())
	})
}

// A new waiter does not postpone the polls for the others.
func TestPollsAreNotPostponed(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.take("x", time.Hour)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.free("x")
		for i := range 8 {
			f.until(f.now() + 300*ms)
			name := fmt.Sprint(i)
			f.take(name, time.Hour)
			f.try(l, bg, name, WaitForever, AutoRenew)
		}
		p.granted(time.Second)
	})
}

// slowToClose is a table whose listener takes 20 ms to close.
type slowToClose struct {
	side
	listening *atomic.Int64
}

func (s slowToClose) Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error) {
	s.listening.Add(1)
	defer s.listening.Add(-1)
	return s.side.Listen(ctx, names, d)
}

func (s slowToClose) CloseListener() {
	time.Sleep(20 * ms)
	assert.Zero(s.t, s.listening.Load(), "the listener of another poller was closed")
	s.side.CloseListener()
}

// A waiter that arrives while the poller ends starts a second one. The first must
// not close the second's listener.
func TestWaiterArrivesWhilePollerEnds(t *testing.T) {
	for _, after := range []time.Duration{wake.IdleTimeout + 10*ms, wake.IdleTimeout + 30*ms, wake.IdleTimeout + 50*ms} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				me := store.NewProcess()
				b := newLocker(slowToClose{side{f, me}, new(atomic.Int64)}, me,
					config{lease: DefaultLease, poll: time.Second, log: slog.New(slog.DiscardHandler), signal: true})
				defer b.Close()
				a := f.locker(withSignal)
				k := f.acquired(a, bg, "x", AutoRenew)
				p := f.try(b, bg, "x", WaitForever, AutoRenew)
				require.NoError(t, k.Unlock())
				require.NoError(t, p.granted(0).Unlock())

				f.until(after)
				k = f.acquired(a, bg, "x", AutoRenew)
				p = f.try(b, bg, "x", WaitForever, AutoRenew)
				f.until(after + 100*ms)
				require.True(t, f.listens(me))
				require.NoError(t, k.Unlock())
				p.granted(after + 100*ms)
			})
		})
	}
}

// Many processes, each with many waiters: every waiter is served, and a release costs a
// signal. Polls serve no waiter.
func TestSignalsAmongMany(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		ctx, cancel := context.WithCancelCause(bg)
		over := errors.New("over")
		turns := make([]int, 10)
		ends := make(chan struct{})
		for i := range turns {
			l := f.locker(withSignal, rarely)
			for range 5 {
				go func() {
					defer func() { ends <- struct{}{} }()
					for {
						k, err := l.Lock(ctx, "x", AutoRenew)
						if err != nil {
							assert.ErrorIs(t, err, over)
							return
						}
						turns[i]++
						time.Sleep(ms)
						assert.NoError(t, k.Unlock())
					}
				}()
			}
		}
		f.until(10 * time.Second)
		cancel(over)
		for range 50 {
			<-ends
		}
		total := 0
		for _, n := range turns {
			total += n
		}
		assert.Greater(t, total, 9990, "the lock is never idle")
		for i, n := range turns {
			assert.InDelta(t, total/10, n, 10, i)
		}
		synctest.Wait()
		require.Zero(t, f.left("x"))
	})
}

// A proxy may send the listening statement to a replica that lags, which shows rows as free
// that are not. After a few such wake-ups the process polls for 10 s.
func TestListenToAReplica(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		f.take("x", time.Hour)
		me := store.NewProcess()
		l := newLocker(stale{side{f, me}}, me, config{lease: DefaultLease, poll: time.Second, log: slog.New(slog.DiscardHandler), signal: true})
		defer l.Close()
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(9 * time.Second)
		require.Equal(t, fmt.Sprintf("acquire %d, listen %d, look 11", 2+wake.MaxFalseWakes+2, wake.MaxFalseWakes+2), f.counts())
		f.free("x")
		p.wait()
		require.NoError(t, p.err)
		require.Less(t, p.at, 10*time.Second, "found by the look")
	})
}

// stale is a table whose listening statement finds everything free.
type stale struct{ side }

func (s stale) Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error) {
	_, _, err := send(ctx, s.fakeRepo, "listen", names, func(time.Time) bool { return true })
	time.Sleep(ms)
	return store.Wakeup{Name: names[0]}, err
}

// Leases of different lengths cost no more: one poll reads all their rows.
func TestStatementsOfWaitingForManyNames(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []Option
		ticks string
	}{
		"signal":         {[]Option{withSignal}, "listen"},
		"without signal": {nil, "look"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				a, b := f.locker(), f.locker(c.opts...)
				for i := range 50 {
					f.acquired(a, bg, fmt.Sprint(i), AutoRenew)
					f.until(f.now() + 13*ms)
				}
				for i := range 50 {
					f.try(b, bg, fmt.Sprint(i), WaitForever, AutoRenew)
					f.until(f.now() + 7*ms)
				}
				f.until(5 * time.Second)
				f.anew()
				f.until(5*time.Second + 10*time.Minute)
				ticks, looks := len(strings.Fields(f.sent(c.ticks))), len(strings.Fields(f.sent("look")))
				require.InDelta(t, 600, ticks, 1)
				require.LessOrEqual(t, looks, 600, "as many as the ticks at most")
				require.Empty(t, f.sent("acquire"))
			})
		})
	}
}

// A signal may be for a name that is not in the listening statement, because there are more
// than it takes.
func TestSignalForMoreThanABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal, rarely), f.locker(withSignal, rarely)
		var held []*Lock
		var waiters []*pending
		for i := range 2*store.BatchSize + 1 {
			held = append(held, f.acquired(a, bg, fmt.Sprint(i), AutoRenew))
			waiters = append(waiters, f.try(b, bg, fmt.Sprint(i), WaitForever, AutoRenew))
		}
		for i := range 40 {
			at := 12*time.Second + time.Duration(i)*ms
			f.until(at)
			require.NoError(t, held[i].Unlock())
			waiters[i].granted(at)
		}
	})
}

// A waiter that arrives after the statement was sent that removes the last one is removed,
// too, and is enlisted again.
func TestRemovalOvertakesEnlisting(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal), f.locker(withSignal, rarely)
		k := f.acquired(a, bg, "x", AutoRenew)
		f.try(b, bg, "x", time.Second, AutoRenew)
		f.meet(late(150*ms), "unlist")
		f.until(1100 * ms)
		p := f.try(b, bg, "x", WaitForever, AutoRenew)
		f.until(1160 * ms)
		require.Equal(t, "1s", f.sent("unlist"))
		require.Equal(t, []store.Process{b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		p.granted(1160 * ms)
	})
}

// One dead process is the head of several rows that become free at once: the process behind it
// in each is signalled.
func TestDeadHeadOfManyRows(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a := f.locker(withSignal)
		var waiters []*pending
		for _, name := range []string{"x", "y", "z"} {
			f.acquired(a, bg, name, AutoRenew)
			f.list(name, dead)
			waiters = append(waiters, f.try(f.locker(withSignal, rarely), bg, name, WaitForever, AutoRenew))
		}
		f.until(12 * time.Second)
		f.anew()
		require.NoError(t, a.Close())
		for _, p := range waiters {
			p.granted(12 * time.Second)
		}
		synctest.Wait()
		require.Equal(t, "acquire 3, end 1, look 2, releaseAll 1, signal 4, unlist 1", f.counts())
	})
}

// A statement that arrives late enlists the process that holds the lock, where no call waits:
// a process that does wait is signalled.
func TestHolderIsEnlisted(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		a, b := f.locker(withSignal, rarely), f.locker(withSignal, rarely)
		k := f.acquired(f.locker(withSignal), bg, "x", AutoRenew)
		p := f.try(a, bg, "x", WaitForever, AutoRenew)
		f.until(10 * time.Second)
		f.meet(first(1, overtaken(100*ms), none), "acquire")
		require.NoError(t, k.Unlock())
		k = p.granted(10*time.Second + firstPause)
		f.until(11 * time.Second)
		p = f.try(b, bg, "x", WaitForever, AutoRenew)
		require.Equal(t, []store.Process{a.process, b.process}, f.listed("x"))
		require.NoError(t, k.Unlock())
		p.granted(11 * time.Second)
		require.Empty(t, f.listed("x"))
	})
}
