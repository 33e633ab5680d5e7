// Package natsnotify carries the releases of mysqllock's locks between
// processes by NATS, so that waiters need not poll to see them:
//
//	notifier, err := natsnotify.New(conn)
//	...
//	locker, err := mysqllock.New(db, mysqllock.WithNotifier(notifier))
//
// No lock depends on NATS: while it is down, waiters find releases by polling the database.
package natsnotify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/mysqllock/mysqllock"
)

// DefaultSubject is the subject of messages unless [WithSubject] sets another.
const DefaultSubject = "mysqllock.released"

// publishTimeout bounds a Publish whose ctx has no deadline.
const publishTimeout = 5 * time.Second

// Notifier is a [mysqllock.Notifier].
type Notifier struct {
	conn    *nats.Conn
	subject string
}

var _ mysqllock.Notifier = (*Notifier)(nil)

// Option changes a setting of [New].
type Option func(*Notifier) error

// WithSubject sets the subject: tokens separated by dots, without white space or wildcards. Lockers with
// different tables may share a subject, but then get messages that do not concern them.
func WithSubject(subject string) Option {
	return func(n *Notifier) error {
		tokens := strings.Split(subject, ".")
		if strings.ContainsAny(subject, " \t\r\n*>") || slices.Contains(tokens, "") {
			return fmt.Errorf("WithSubject: bad subject %q", subject)
		}
		n.subject = subject
		return nil
	}
}

// New returns a Notifier on conn. It sends nothing. It returns an error if conn is nil or an option is
// invalid. The Notifier never closes conn, and does not reopen it: by default, a conn gives up after two
// minutes of attempts to reconnect, so set nats.MaxReconnects(-1).
func New(conn *nats.Conn, opts ...Option) (*Notifier, error) {
	if conn == nil {
		return nil, errors.New("natsnotify: nil connection")
	}
	n := &Notifier{conn: conn, subject: DefaultSubject}
	for _, opt := range opts {
		if err := opt(n); err != nil {
			return nil, fmt.Errorf("natsnotify: %w", err)
		}
	}
	return n, nil
}

// Publish sends name, and returns when the server has received it or ctx ends. It returns an error if
// there is no connection at the moment.
func (n *Notifier) Publish(ctx context.Context, name string) error {
	// Without a connection the message would go to conn's buffer, as a success, and
	// out in a burst of old news when the server is back.
	if !n.conn.IsConnected() {
		return fmt.Errorf("natsnotify: connection is %v", n.conn.Status())
	}
	// The name is not part of the subject, where it must not have spaces and dots.
	if err := n.conn.Publish(n.subject, []byte(name)); err != nil {
		return err
	}
	// So far it is only on its way; and a flush demands a deadline.
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	return n.conn.FlushWithContext(ctx)
}

// Subscribe calls released for every name that is published, until ctx ends, and then returns its cause.
// If the connection is lost, conn reconnects, and Subscribe continues; names published meanwhile are
// lost. Subscribe returns an error if conn is closed.
func (n *Notifier) Subscribe(ctx context.Context, released func(name string)) error {
	// Read here, not by a handler: that one may be called after Unsubscribe.
	sub, err := n.conn.SubscribeSync(n.subject)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	for {
		message, err := sub.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			released(string(message.Data))
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, nats.ErrSlowConsumer):
			// Some were dropped, more will come.
		default:
			return err
		}
	}
}
