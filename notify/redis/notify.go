// Package redisnotify carries the releases of mysqllock's locks between
// processes by Redis PUB/SUB, so that waiters need not poll to see them:
//
//	notifier, err := redisnotify.New(client)
//	...
//	locker, err := mysqllock.New(db, mysqllock.WithNotifier(notifier))
//
// Redis stores nothing, and no lock depends on it: while it is down, waiters find releases by polling
// the database.
package redisnotify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mysqllock/mysqllock"
)

// DefaultChannel is the channel of messages unless [WithChannel] sets another.
const DefaultChannel = "mysqllock"

const (
	// pingInterval is how often the server must answer on the connection that
	// listens.
	pingInterval = 2 * time.Second
	// silence is how long that connection may bring nothing before it is given up.
	silence = 3 * pingInterval
)

// Notifier is a [mysqllock.Notifier].
type Notifier struct {
	client  redis.UniversalClient
	channel string
}

var _ mysqllock.Notifier = (*Notifier)(nil)

// Option changes a setting of [New].
type Option func(*Notifier) error

// WithChannel sets the name of the channel, which must not be empty. In Redis, all databases of a server
// share the same channels. Lockers with different tables may share a channel, too, but then get messages
// that do not concern them.
func WithChannel(name string) Option {
	return func(n *Notifier) error {
		if name == "" {
			return errors.New("WithChannel: empty name")
		}
		n.channel = name
		return nil
	}
}

// New returns a Notifier on client, which may be the client of a server, of Sentinel, of a cluster (where
// each node forwards PUBLISH to all others) or of a ring. New sends nothing. It returns an error if client
// is nil or an option is invalid. The Notifier never closes client. While it is subscribed, it uses one
// connection in addition to client's pool.
func New(client redis.UniversalClient, opts ...Option) (*Notifier, error) {
	if client == nil {
		return nil, errors.New("redisnotify: nil client")
	}
	n := &Notifier{client: client, channel: DefaultChannel}
	for _, opt := range opts {
		if err := opt(n); err != nil {
			return nil, fmt.Errorf("redisnotify: %w", err)
		}
	}
	return n, nil
}

// Publish sends name, and returns when the server has received it. It returns the error of client or ctx.
func (n *Notifier) Publish(ctx context.Context, name string) error {
	return within(ctx, func() error { return n.client.Publish(ctx, n.channel, name).Err() })
}

// Subscribe calls released for every name that is published, until ctx ends, and then returns its cause.
// It returns an error before that if the connection is lost, or if nothing arrives from the server for
// 6 s. The Locker logs the error and subscribes again; names published in between are lost.
func (n *Notifier) Subscribe(ctx context.Context, released func(name string)) error {
	return within(ctx, func() error { return n.listen(ctx, released) })
}

// within runs f until ctx ends. go-redis looks at ctx while it dials and between
// its attempts, but not while it waits for an answer: if the server stands still,
// f goes on in the background until client's timeouts end it.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err == nil || ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// listen reads the channel until ctx ends or something fails.
//
// It does not use PubSub.Channel: that drops messages if it is not read for a
// minute, tells nobody that the server is down, and expects no answer to its pings,
// so that it waits on a dead connection until TCP gives up. Here each ping has to
// be answered in time. A read that timed out, perhaps within a message, is not
// repeated.
func (n *Notifier) listen(ctx context.Context, released func(name string)) error {
	sub := n.client.Subscribe(ctx, n.channel)
	ctx, stop := context.WithCancel(ctx)
	var pinger sync.WaitGroup
	pinger.Go(func() { ping(ctx, sub) })
	defer pinger.Wait()
	defer stop()
	for {
		reply, err := sub.ReceiveTimeout(ctx, silence)
		if err != nil {
			return err
		}
		if message, ok := reply.(*redis.Message); ok && ctx.Err() == nil {
			released(message.Payload)
		}
	}
}

// ping sends pings until ctx ends, and then closes sub, which ends its reading.
func ping(ctx context.Context, sub *redis.PubSub) {
	defer sub.Close()
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			sub.Ping(ctx) // the reader meets what is wrong
		}
	}
}
