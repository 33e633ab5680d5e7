// Package notifytest is what each Notifier of this repository passes, with a real
// server of its own and MariaDB.
package notifytest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

const (
	// soon is what takes some milliseconds, on a machine that is busy.
	soon = 5 * time.Second
	// recovery is how long it may take until a server that was started again is
	// heard: clients and Lockers try once in a second or two.
	recovery = 15 * time.Second
)

// A Kind is a server and the way to it.
type Kind struct {
	Broker string // of mysqltest.NewBroker
	// Connect returns a notifier on a connection of its own, closed at the test's end.
	Connect func(t *testing.T, addr string) mysqllock.Notifier
}

// Main runs the tests of a package. They fail if goroutines that run code of one
// of the packages are left at the end.
func Main(m *testing.M, packages ...string) {
	code := m.Run()
	mysqltest.StopShared()
	if code == 0 {
		if leaked := leakedGoroutines(soon, packages); leaked != "" {
			fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", leaked)
			code = 1
		}
	}
	os.Exit(code)
}

// leakedGoroutines returns the stacks of goroutines that run code of the packages
// and do not end within grace.
func leakedGoroutines(grace time.Duration, packages []string) string {
	var leaked []string
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 16<<20)
		buf = buf[:runtime.Stack(buf, true)]
		leaked = leaked[:0]
		for _, g := range strings.Split(string(buf), "\n\n") {
			for _, p := range packages {
				if strings.Contains(g, p) {
					leaked = append(leaked, g)
					break
				}
			}
		}
		if len(leaked) == 0 {
			return ""
		}
	}
	return strings.Join(leaked, "\n\n")
}

// Soon receives from c what is to come without delay.
func Soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		t.Fatalf("nothing came for %v", soon)
	}
	return v
}

// Run runs the suite.
func Run(t *testing.T, k Kind) {
	for name, test := range map[string]func(*testing.T, Kind){
		"wakes waiters":                  wakesWaiters,
		"wakes waiters after a restart":  wakesWaitersAfterRestart,
		"carries names unchanged":        carriesNames,
		"subscribe ends with ctx":        subscribeEnds,
		"publish fails without a server": publishFails,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

func wakesWaiters(t *testing.T, k Kind) {
	b := mysqltest.NewBroker(t, k.Broker)
	newPair(t, k, b.Addr).handOver(t, func() {})
}

func wakesWaitersAfterRestart(t *testing.T, k Kind) {
	b := mysqltest.NewBroker(t, k.Broker)
	newPair(t, k, b.Addr).handOver(t, b.Restart)
}

// carriesNames publishes whatever may be a name, and more.
func carriesNames(t *testing.T, k Kind) {
	b := mysqltest.NewBroker(t, k.Broker)
	from, to := k.Connect(t, b.Addr), listen(t, k.Connect(t, b.Addr))
	to.await(t, from)
	for _, name := range []string{
		"order:42", "a b", " ", ".", "a..b.*.>", "100%s", "Ünïcode", "🔒", "\r\n", "\x00", "\xff\xfe", "'\"\\",
		strings.Repeat("n", 255), strings.Repeat(" ", 255),
	} {
		require.NoError(t, from.Publish(t.Context(), name))
		require.Equal(t, name, Soon(t, to.heard))
	}
}

func subscribeEnds(t *testing.T, k Kind) {
	for name, trouble := range map[string]func(*mysqltest.Broker){
		"served": func(*mysqltest.Broker) {},
		"dead":   (*mysqltest.Broker).Kill,
		"paused": (*mysqltest.Broker).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := mysqltest.NewBroker(t, k.Broker)
			n := k.Connect(t, b.Addr)
			to := listen(t, n)
			to.await(t, n)
			trouble(b)
			to.cancel()
			err := Soon(t, to.result)
			require.Error(t, err)
			if name != "dead" { // which it may have met first
				require.ErrorIs(t, err, context.Canceled)
			}
		})
	}
}

func publishFails(t *testing.T, k Kind) {
	b := mysqltest.NewBroker(t, k.Broker)
	n := k.Connect(t, b.Addr)
	publish := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := n.Publish(ctx, "name")
		require.Less(t, time.Since(start), 2*time.Second, "ctx bounds it")
		return err
	}
	within := func(bound time.Duration, outcome func(error) bool, what string) {
		t.Helper()
		for end := time.Now().Add(bound); !outcome(publish()); time.Sleep(10 * time.Millisecond) {
			require.True(t, time.Now().Before(end), what)
		}
	}
	fails := func(err error) bool { return err != nil }
	works := func(err error) bool { return err == nil }
	require.NoError(t, publish())
	b.Pause()
	within(soon, fails, "the server stands still")
	b.Continue()
	within(recovery, works, "the server goes on")
	b.Kill()
	within(soon, fails, "the server is dead")
	b.Restart()
	within(recovery, works, "the server is back")
}

// A listener subscribes to a notifier.
type listener struct {
	mysqllock.Notifier
	heard  chan string
	cancel context.CancelFunc // nil if a Locker subscribes
	result chan error         // what Subscribe returned, once
}

// spy listens to what a Locker hears.
func spy(n mysqllock.Notifier) *listener {
	return &listener{Notifier: n, heard: make(chan string, 1)}
}

// listen subscribes until the test's end.
func listen(t *testing.T, n mysqllock.Notifier) *listener {
	l := spy(n)
	l.result = make(chan error, 1)
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	go func() { l.result <- l.Subscribe(ctx, func(string) {}) }()
	t.Cleanup(l.cancel)
	return l
}

// Subscribe passes on what is heard, and keeps it in heard if there is room.
func (l *listener) Subscribe(ctx context.Context, released func(name string)) error {
	return l.Notifier.Subscribe(ctx, func(name string) {
		released(name)
		select {
		case l.heard <- name:
		default:
		}
	})
}

// await publishes until it is heard: what follows will be heard as well.
func (l *listener) await(t *testing.T, from mysqllock.Notifier) {
	t.Helper()
	for end := time.Now().Add(recovery); time.Now().Before(end); {
		probe := rand.Text()
		from.Publish(t.Context(), probe)
		for pause := time.After(100 * time.Millisecond); pause != nil; {
			select {
			case name := <-l.heard:
				if name == probe {
					return
				}
			case <-pause:
				pause = nil
			}
		}
	}
	t.Fatal("nothing is heard")
}

// A pair is two Lockers as in two processes, and only the broker between them.
type pair struct {
	a, b *mysqllock.Locker
	from mysqllock.Notifier // of a
	to   *listener          // of b
}

func newPair(t *testing.T, k Kind, addr string) *pair {
	server := mysqltest.Shared(t, "mariadb")
	dsn := server.DSN(mysqltest.NewDatabase(t, server), "")
	locker := func(n mysqllock.Notifier) *mysqllock.Locker {
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() })
		l, err := mysqllock.New(db, mysqllock.WithNotifier(n),
			mysqllock.WithoutSignal(), mysqllock.WithPollInterval(time.Minute))
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	p := &pair{from: k.Connect(t, addr), to: spy(k.Connect(t, addr))}
	p.a, p.b = locker(p.from), locker(p.to)
	require.NoError(t, p.a.CreateTable(t.Context()))
	return p
}

// handOver lets b wait for what a holds, and a release it after something else
// happened. Only word of that lets b have the lock so soon: it polls after a
// minute, and the lease is one of 30 s.
func (p *pair) handOver(t *testing.T, meanwhile func()) {
	t.Helper()
	held, err := p.a.TryLock(t.Context(), "name", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	acquired := make(chan error, 1)
	go func() {
		lock, err := p.b.TryLock(t.Context(), "name", mysqllock.WaitForever, mysqllock.AutoRenew)
		if err == nil {
			err = lock.Unlock()
		}
		acquired <- err
	}()
	p.to.await(t, p.from) // a Locker subscribes when it was refused
	meanwhile()
	p.to.await(t, p.from)
	require.Empty(t, acquired)
	require.NoError(t, held.Unlock())
	require.NoError(t, Soon(t, acquired), "the waiter is woken")
}
