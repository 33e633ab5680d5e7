package redisnotify_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/notify/internal/notifytest"
	redisnotify "github.com/mysqllock/mysqllock/notify/redis"
)

func TestMain(m *testing.M) { notifytest.Main(m, "go-redis", "notify/redis.") }

func TestNotifier(t *testing.T) {
	t.Parallel()
	notifytest.Run(t, notifytest.Kind{
		Broker: "redis-server",
		Connect: func(t *testing.T, addr string) mysqllock.Notifier {
			n, err := redisnotify.New(open(t, addr))
			require.NoError(t, err)
			return n
		},
	})
}

// open returns a client with the defaults of go-redis.
func open(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { require.NoError(t, client.Close(), "nobody else closed it") })
	return client
}

func TestOptions(t *testing.T) {
	t.Parallel()
	client := open(t, "127.0.0.1:1")
	_, err := redisnotify.New(nil)
	require.EqualError(t, err, "redisnotify: nil client")
	_, err = redisnotify.New(client, redisnotify.WithChannel(""))
	require.EqualError(t, err, "redisnotify: WithChannel: empty name")
	_, err = redisnotify.New(client, redisnotify.WithChannel("service: locks"))
	require.NoError(t, err)
}

func subscribers(t *testing.T, client *redis.Client, channel string) int64 {
	n, err := client.PubSubNumSub(t.Context(), channel).Result()
	assert.NoError(t, err)
	return n[channel]
}

// Each channel is its own, and none is left subscribed.
func TestChannel(t *testing.T) {
	t.Parallel()
	client := open(t, mysqltest.NewBroker(t, "redis-server").Addr)
	ctx, cancel := context.WithCancel(t.Context())
	heard, result := make(chan string, 2), make(chan error, 2)
	for _, opts := range [][]redisnotify.Option{nil, {redisnotify.WithChannel("another")}} {
		n, err := redisnotify.New(client, opts...)
		require.NoError(t, err)
		go func() { result <- n.Subscribe(ctx, func(name string) { heard <- name }) }()
	}
	subscribed := func(n int64) func() bool {
		return func() bool {
			return subscribers(t, client, redisnotify.DefaultChannel) == n && subscribers(t, client, "another") == n
		}
	}
	require.Eventually(t, subscribed(1), 5*time.Second, time.Millisecond)
	require.NoError(t, client.Publish(ctx, "another", "1").Err())
	require.Equal(t, "1", notifytest.Soon(t, heard))
	require.NoError(t, client.Publish(ctx, "mysqllock", "2").Err())
	require.Equal(t, "2", notifytest.Soon(t, heard))
	cancel()
	require.ErrorIs(t, notifytest.Soon(t, result), context.Canceled)
	require.ErrorIs(t, notifytest.Soon(t, result), context.Canceled)
	require.Eventually(t, subscribed(0), 5*time.Second, time.Millisecond)
}

// subscribe starts a Subscribe.
func subscribe(ctx context.Context, n *redisnotify.Notifier) (result chan error) {
	result = make(chan error, 1)
	go func() { result <- n.Subscribe(ctx, func(string) {}) }()
	return result
}

// A connection on which nothing is published is kept.
func TestIdle(t *testing.T) {
	t.Parallel()
	n, err := redisnotify.New(open(t, mysqltest.NewBroker(t, "redis-server").Addr))
	require.NoError(t, err)
	select {
	case err := <-subscribe(t.Context(), n):
		t.Fatal(err)
	case <-time.After(8 * time.Second): // the silence is one of 6 s
	}
}

// A connection on which the server stands still is given up. While the next one is
// tried, the end of ctx is not overlooked.
func TestSilence(t *testing.T) {
	t.Parallel()
	b := mysqltest.NewBroker(t, "redis-server")
	client := open(t, b.Addr)
	n, err := redisnotify.New(client)
	require.NoError(t, err)
	result := subscribe(t.Context(), n)
	require.Eventually(t, func() bool { return subscribers(t, client, redisnotify.DefaultChannel) == 1 }, 5*time.Second, time.Millisecond)
	b.Pause()
	select {
	case err := <-result:
		require.Error(t, err)
	case <-time.After(11 * time.Second):
		t.Fatal("the silence is not noticed")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, notifytest.Soon(t, subscribe(ctx, n)), context.DeadlineExceeded)
	require.Less(t, time.Since(start), time.Second)
}
