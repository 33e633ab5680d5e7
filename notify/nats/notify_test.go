package natsnotify_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/notify/internal/notifytest"
	natsnotify "github.com/mysqllock/mysqllock/notify/nats"
)

func TestMain(m *testing.M) { notifytest.Main(m, "nats.go", "notify/nats.") }

func TestNotifier(t *testing.T) {
	t.Parallel()
	notifytest.Run(t, notifytest.Kind{
		Broker: "nats-server",
		Connect: func(t *testing.T, addr string) mysqllock.Notifier {
			n, err := natsnotify.New(open(t, addr))
			require.NoError(t, err)
			return n
		},
	})
}

func open(t *testing.T, addr string, opts ...nats.Option) *nats.Conn {
	conn, err := nats.Connect("nats://"+addr, opts...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

func TestOptions(t *testing.T) {
	t.Parallel()
	conn := open(t, mysqltest.NewBroker(t, "nats-server").Addr)
	_, err := natsnotify.New(nil)
	require.EqualError(t, err, "natsnotify: nil connection")
	for _, subject := range []string{"", ".", "a..b", "a.", "a b", "a\tb", "a.*", "a.>"} {
		_, err = natsnotify.New(conn, natsnotify.WithSubject(subject))
		require.ErrorContains(t, err, "natsnotify: WithSubject: bad subject")
	}
	_, err = natsnotify.New(conn, natsnotify.WithSubject("service.locks"))
	require.NoError(t, err)
}

// subscribe starts a Subscribe and returns when the server knows of it.
func subscribe(t *testing.T, conn *nats.Conn, released func(string), opts ...natsnotify.Option) (result chan error, cancel func()) {
	n, err := natsnotify.New(conn, opts...)
	require.NoError(t, err)
	before := conn.NumSubscriptions()
	ctx, cancel := context.WithCancel(t.Context())
	result = make(chan error, 1)
	go func() { result <- n.Subscribe(ctx, released) }()
	require.Eventually(t, func() bool { return conn.NumSubscriptions() > before }, 5*time.Second, time.Millisecond)
	require.NoError(t, conn.Flush())
	return result, cancel
}

// Each subject is its own, and none is left subscribed on a connection that stays.
func TestSubject(t *testing.T) {
	t.Parallel()
	conn := open(t, mysqltest.NewBroker(t, "nats-server").Addr)
	heard := make(chan string, 2)
	released := func(name string) { heard <- name }
	one, endOne := subscribe(t, conn, released)
	other, endOther := subscribe(t, conn, released, natsnotify.WithSubject("another"))
	require.NoError(t, conn.Publish("another", []byte("1")))
	require.Equal(t, "1", notifytest.Soon(t, heard))
	require.NoError(t, conn.Publish("mysqllock.released", []byte("2")))
	require.Equal(t, "2", notifytest.Soon(t, heard))
	endOne()
	endOther()
	require.ErrorIs(t, notifytest.Soon(t, one), context.Canceled)
	require.ErrorIs(t, notifytest.Soon(t, other), context.Canceled)
	require.Zero(t, conn.NumSubscriptions())
	require.NoError(t, conn.Flush())
}

// Messages that come faster than they are read are dropped, not the subscription.
func TestSlowConsumer(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{}, 1)
	conn := open(t, mysqltest.NewBroker(t, "nats-server").Addr, nats.SyncQueueLen(1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {
			select {
			case slow <- struct{}{}:
			default:
			}
		}))
	heard := make(chan string) // unread until the queue is full
	subscribe(t, conn, func(name string) {
		select {
		case heard <- name:
		case <-t.Context().Done():
		}
	})
	publish := func(name string) { require.NoError(t, conn.Publish(natsnotify.DefaultSubject, []byte(name))) }
	for range 10 {
		publish("many")
	}
	notifytest.Soon(t, slow)
	for name := ""; name != "last"; {
		publish("last")
		select {
		case name = <-heard:
		case <-time.After(5 * time.Second):
			t.Fatal("nothing is heard any more")
		}
	}
}

// A connection that is closed for good ends Subscribe, and Publish says so.
func TestClosed(t *testing.T) {
	t.Parallel()
	conn := open(t, mysqltest.NewBroker(t, "nats-server").Addr)
	result, _ := subscribe(t, conn, func(string) {})
	conn.Close()
	require.ErrorIs(t, notifytest.Soon(t, result), nats.ErrConnectionClosed)
	n, err := natsnotify.New(conn)
	require.NoError(t, err)
	require.ErrorIs(t, n.Subscribe(t.Context(), func(string) {}), nats.ErrConnectionClosed)
	require.EqualError(t, n.Publish(t.Context(), "name"), "natsnotify: connection is CLOSED")
}
