package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// on runs fn on one connection of the pool.
func (t *Store) onConn(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.run(ctx, false, fn)
}

// onSpare prefers the connection that was kept for what is held. Statements that
// wait for a row which somebody has locked must not have it.
func (t *Store) onReservedConn(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.run(ctx, true, fn)
}

// run replaces a connection that was found dead before anything was sent, or on
// which a demoted primary answered.
func (t *Store) run(ctx context.Context, spare bool, fn func(context.Context, *sqlx.Conn) error) error {
	if t.db.Stats().MaxOpenConnections == 1 && t.holdsAny() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.onlyConnTimeout)
		defer cancel()
	}
	for try := 1; ; try++ {
		usedUp := t.PoolInUse()
		conn, err := t.borrowIdle(ctx, spare && try == 1)
		switch {
		case err == nil:
		case isTimeout(err) && usedUp:
			return NotSent{PoolExhausted{err}}
		default:
			return describe(NotSent{err})
		}
		err = t.use(ctx, conn, spare, fn)
		switch {
		case err == ErrDemoted && try < 3:
		case !errors.Is(err, driver.ErrBadConn) && errorNumber(err) != 4031: // ER_CLIENT_INTERACTION_TIMEOUT
			return describe(err)
		case try == 3:
			return describe(NotSent{err})
		}
	}
}

// use runs fn on a connection, and gives that back.
func (t *Store) use(ctx context.Context, conn *sqlx.Conn, spare bool, fn func(context.Context, *sqlx.Conn) error) (err error) {
	long, cancel := t.extendWhilePoolInUse(ctx)
	defer cancel()
	err = ErrPanic
	defer func() { t.returnConn(conn, err, spare) }()
	if broken := t.prepare(long, conn); broken != nil {
		return broken
	}
	err = fn(long, conn)
	left := (*abandonedWait)(nil)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && !errors.As(err, &left) {
		err = ctx.Err() // not how patient ends it
	}
	return err
}

// errPanic stands for the outcome of a statement in which the driver panicked, from
// which the application may recover.
var ErrPanic = errors.New("the driver panicked")

// brief returns a context for a statement that is ended after the given time
// only for another connection to be tried.
func WithRetryLimit(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithValue(ctx, retryLimitKey{}, ctx), bound)
}

type retryLimitKey struct{}

// patient makes such a context last while there is no other connection: a
// statement that is cut off takes its connection with it, and an application that
// has used up its pool would get the place. It ends as soon as the pool has a
// connection to spare.
func (t *Store) extendWhilePoolInUse(ctx context.Context) (context.Context, context.CancelFunc) {
	outer, ok := ctx.Value(retryLimitKey{}).(context.Context)
	end, bounded := ctx.Deadline()
	if !ok || !bounded {
		return ctx, func() {}
	}
	long, cancel := context.WithTimeout(outer, max(3*t.onlyConnTimeout, time.Until(end)))
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(time.Until(end), func() {
		mu.Lock()
		defer mu.Unlock()
		if long.Err() == nil && t.PoolInUse() {
			timer.Reset(poolCheck)
		} else {
			cancel()
		}
	})
	return long, func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		cancel()
	}
}

// poolCheck is how often a statement that goes on beyond its time, because the
// pool is used up, looks whether it still is.
const poolCheck = 10 * time.Millisecond

// borrow takes the spare connection, if the statement may have it, or one of the
// pool: whichever comes free first.
func (t *Store) borrow(ctx context.Context, spare bool) (*sqlx.Conn, error) {
	if !spare {
		return t.db.Connx(ctx)
	}
	if conn := t.takeReservedConn(); conn != nil {
		return conn, nil
	}
	if !t.PoolInUse() {
		return t.db.Connx(ctx)
	}
	type answer struct {
		conn *sqlx.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pooled := make(chan answer, 1)
	go func() {
		conn, err := t.db.Connx(ctx)
		pooled <- answer{conn, err}
	}()
	for {
		select {
		case a := <-pooled:
			return a.conn, a.err
		case <-t.connReturned:
		}
		if conn := t.takeReservedConn(); conn != nil {
			cancel()
			if a := <-pooled; a.err == nil {
				a.conn.Close()
			}
			return conn, nil
		}
	}
}

// takeSpare returns the spare connection, nil if there is none at the moment.
func (t *Store) takeReservedConn() *sqlx.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn := t.reservedConn
	t.reservedConn = nil
	return conn
}

// borrowOther passes over a connection in which the application left a transaction
// open, if the pool has another: it would be the first to be had again.
func (t *Store) borrowIdle(ctx context.Context, spare bool) (*sqlx.Conn, error) {
	conn, err := t.borrow(ctx, spare)
	if err != nil || t.chained.Load() || !inTransaction(conn) || t.PoolInUse() {
		return conn, err
	}
	defer conn.Close() // when the other was had
	return t.borrow(ctx, false)
}

func (t *Store) holdsAny() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held > 0
}

// sole reports whether one lock is held: no other needs the spare connection.
func (t *Store) holdsOne() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held == 1
}

// short tells whether the pool is used up, so that a statement would wait for
// the spare connection or for nothing.
func (t *Store) poolShort() bool {
	t.mu.Lock()
	spare := t.reservedConn != nil
	t.mu.Unlock()
	return spare && t.PoolInUse()
}

// usedUp tells whether the pool has no connection left.
func (t *Store) PoolInUse() bool {
	s := t.db.Stats()
	return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections
}

// giveBack returns a connection to the pool, or keeps it while anything is held:
// an application that uses up its pool, or the server's connections, must not
// starve the renewals. What is held for a moment in an unlimited pool keeps none.
// One that leads to a demoted primary is closed, as it is by rejectReadOnly: the
// next one may lead to the new primary. So is one that the driver left midway.
func (t *Store) returnConn(conn *sqlx.Conn, err error, renewed bool) {
	if left := (*abandonedWait)(nil); errors.As(err, &left) {
		t.keepUntilUnlocked(conn, left)
		return
	}
	limit := t.db.Stats().MaxOpenConnections
	if Demoted(err) || err == ErrPanic {
		conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	t.mu.Lock()
	keep := Answered(err) && !Demoted(err) && t.held > 0 && t.reservedConn == nil && (limit > 1 || limit == 0 && renewed)
	if keep {
		t.reservedConn = conn
		select {
		case t.connReturned <- struct{}{}:
		default:
		}
	}
	t.mu.Unlock()
	if !keep {
		conn.Close() // back to the pool
	}
}
