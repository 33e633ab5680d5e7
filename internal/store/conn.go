package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mysqllock/mysqllock/internal/background"
)

// onConn runs fn on a connection of the pool.
func (s *Store) onConn(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return s.run(ctx, false, fn)
}

// onReservedConn runs fn on the connection that is reserved for held locks, if it is idle, or otherwise
// on one of the pool. fn must not send a statement that may wait for a locked row.
func (s *Store) onReservedConn(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return s.run(ctx, true, fn)
}

// run runs fn on a connection. It tries another one if the first was dead before anything was sent, or
// leads to a demoted primary.
func (s *Store) run(ctx context.Context, reserved bool, fn func(context.Context, *sqlx.Conn) error) error {
	if s.db.Stats().MaxOpenConnections == 1 && s.locksHeld() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.onlyConnTimeout)
		defer cancel()
	}
	for try := 1; ; try++ {
		inUse := s.PoolInUse()
		conn, err := s.borrowIdle(ctx, reserved && try == 1)
		switch {
		case err == nil:
		case isTimeout(err) && inUse:
			return NotSent{PoolExhausted{err}}
		default:
			return Describe(NotSent{err})
		}
		err = s.use(ctx, conn, reserved, fn)
		switch {
		case err == ErrDemoted && try < 3:
		case !errors.Is(err, driver.ErrBadConn) && errorNumber(err) != 4031: // ER_CLIENT_INTERACTION_TIMEOUT
			return Describe(err)
		case try == 3:
			return Describe(NotSent{err})
		}
	}
}

// use runs fn on a connection and returns the connection to the pool.
func (s *Store) use(ctx context.Context, conn *sqlx.Conn, reserved bool, fn func(context.Context, *sqlx.Conn) error) (err error) {
	long, cancel := s.extendWhilePoolInUse(ctx)
	defer cancel()
	err = ErrPanic
	defer func() { s.returnConn(conn, err, reserved) }()
	if broken := s.checkConn(long, conn); broken != nil {
		return broken
	}
	err = fn(long, conn)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && !errors.As(err, new(*abandonedWait)) {
		err = ctx.Err() // not the Canceled of extendWhilePoolInUse
	}
	return err
}

// ErrPanic is the error of a statement during which the driver panicked. The application may have
// recovered from the panic.
var ErrPanic = errors.New("the driver panicked")

// WithRetryLimit returns a context that ends after limit. The purpose of the limit is only to try another
// connection: see extendWhilePoolInUse.
func WithRetryLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithValue(ctx, retryLimitKey{}, ctx), limit)
}

type retryLimitKey struct{}

// extendWhilePoolInUse extends a context of WithRetryLimit while the pool has no other connection. If
// the statement were cut off then, it would lose its connection, and an application that has exhausted
// its pool would take the place. The context ends as soon as the pool has a free connection.
func (s *Store) extendWhilePoolInUse(ctx context.Context) (context.Context, context.CancelFunc) {
	outer, ok := ctx.Value(retryLimitKey{}).(context.Context)
	end, bounded := ctx.Deadline()
	if !ok || !bounded {
		return ctx, func() {}
	}
	long, cancel := context.WithTimeout(outer, max(3*s.onlyConnTimeout, time.Until(end)))
	timer := background.AfterFunc(time.Until(end), func() time.Duration {
		if long.Err() == nil && s.PoolInUse() {
			return poolCheck
		}
		cancel()
		return 0
	})
	return long, func() {
		timer.Stop()
		cancel()
	}
}

// poolCheck is how often extendWhilePoolInUse checks the pool.
const poolCheck = 10 * time.Millisecond

// borrow returns a connection: the reserved one, if the statement may use it, or one of the pool,
// whichever is free first.
func (s *Store) borrow(ctx context.Context, reserved bool) (*sqlx.Conn, error) {
	if !reserved {
		return s.db.Connx(ctx)
	}
	select {
	case conn := <-s.reservedConn:
		return conn, nil
	default:
	}
	if !s.PoolInUse() {
		return s.db.Connx(ctx)
	}
	type answer struct {
		conn *sqlx.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pooled := make(chan answer, 1)
	go func() {
		conn, err := s.db.Connx(ctx)
		pooled <- answer{conn, err}
	}()
	select {
	case a := <-pooled:
		return a.conn, a.err
	case conn := <-s.reservedConn:
		cancel()
		if a := <-pooled; a.err == nil {
			a.conn.Close()
		}
		return conn, nil
	}
}

// borrowIdle is borrow, but skips a connection on which the application left a transaction open, if the
// pool has another one.
func (s *Store) borrowIdle(ctx context.Context, reserved bool) (*sqlx.Conn, error) {
	conn, err := s.borrow(ctx, reserved)
	if err != nil || s.chained.Load() || !inTransaction(conn) || s.PoolInUse() {
		return conn, err
	}
	defer conn.Close() // later, or the pool would return the same one again
	return s.borrow(ctx, false)
}

// locksHeld returns how many locks are held. If it is one, a statement for that lock may wait on the
// reserved connection, which no other lock needs.
func (s *Store) locksHeld() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// poolShort reports whether the only free connection is the reserved one.
func (s *Store) poolShort() bool { return len(s.reservedConn) > 0 && s.PoolInUse() }

// PoolInUse reports whether all connections of the pool are in use.
func (s *Store) PoolInUse() bool {
	stats := s.db.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// PoolTooSmall reports whether the pool can never spare a connection for listening.
func (s *Store) PoolTooSmall() bool {
	open := s.db.Stats().MaxOpenConnections
	return 0 < open && open < minListenPool
}

// returnConn returns a connection to the pool, or reserves it while locks are held, so that an
// application that exhausts its pool, or the server's connections, does not starve the renewals. In an
// unlimited pool, it reserves a connection only after a statement for a held lock (renewed). It closes a
// connection to a demoted primary, as rejectReadOnly does, because the next one may lead to the new
// primary; and one on which the driver panicked.
func (s *Store) returnConn(conn *sqlx.Conn, err error, renewed bool) {
	if left, ok := errors.AsType[*abandonedWait](err); ok {
		s.keepUntilUnlocked(conn, left)
		return
	}
	limit := s.db.Stats().MaxOpenConnections
	if Demoted(err) || err == ErrPanic {
		conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	s.mu.Lock()
	keep := Answered(err) && !Demoted(err) && s.held > 0 && len(s.reservedConn) == 0 && (limit > 1 || limit == 0 && renewed)
	if keep {
		s.reservedConn <- conn
	}
	s.mu.Unlock()
	if !keep {
		conn.Close() // back to the pool
	}
}
