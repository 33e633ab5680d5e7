package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"maps"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// The server takes longer to parse statements of this length than to execute them. So a statement that
// is frequent on a connection is prepared there, which costs one round trip once. On other connections
// that would not pay, because a pool may close them at any time.
const (
	prepareAfter = 100
	// maxPrepared, or twice the number of open connections if that is more, limits how many
	// connections are tracked. Beyond it, the least recently used one is dropped. The pool has
	// probably closed that, which a pool does not report.
	maxPrepared = 128
)

// prepared tracks the statements that were prepared on connections of the pool.
type prepared struct {
	db    *sqlx.DB
	mu    sync.Mutex // protects following fields, and last of each preparedConn
	conns map[driver.Conn]*preparedConn
	clock int64
}

// A preparedConn belongs to the goroutine that uses the connection.
type preparedConn struct {
	stmts map[string]driver.Stmt // by text; nil for a text that cannot be prepared
	uses  map[string]int         // by text
	last  int64                  // the last use, by the clock of prepared
}

func (p *prepared) of(conn driver.Conn) *preparedConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[conn]
	if c == nil {
		if len(p.conns) >= max(maxPrepared, 2*p.db.Stats().OpenConnections) {
			var oldest driver.Conn
			for other, c := range p.conns {
				if oldest == nil || c.last < p.conns[oldest].last {
					oldest = other
				}
			}
			delete(p.conns, oldest)
		}
		c = &preparedConn{stmts: map[string]driver.Stmt{}, uses: map[string]int{}}
		if p.conns == nil {
			p.conns = map[driver.Conn]*preparedConn{}
		}
		p.conns[conn] = c
	}
	p.clock++
	c.last = p.clock
	return c
}

// discard closes the prepared statements of a connection, which the caller must be using. It returns
// driver.ErrBadConn if it cannot.
func (p *prepared) discard(conn driver.Conn) error {
	p.mu.Lock()
	c := p.conns[conn]
	delete(p.conns, conn)
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	for _, stmt := range c.stmts {
		if stmt != nil && stmt.Close() != nil {
			return driver.ErrBadConn
		}
	}
	return nil
}

// exec executes a statement that is prepared on the connection, or is frequent enough there to be
// prepared now. Otherwise ok is false, and nothing was executed.
func (p *prepared) exec(ctx context.Context, conn *sqlx.Conn, text string, args []any) (res sql.Result, ok bool, err error) {
	err = conn.Raw(func(raw any) (err error) {
		dc, is := raw.(interface {
			driver.Conn
			driver.ConnPrepareContext
		})
		if !is {
			return nil
		}
		c := p.of(dc)
		stmt, known := c.stmts[text]
		if !known {
			if c.uses[text]++; c.uses[text] < prepareAfter {
				return nil
			}
			if stmt, err = dc.PrepareContext(ctx, text); err != nil {
				stmt = nil // the plain statement will return the error
			}
			c.stmts[text] = stmt
		}
		executor, is := stmt.(driver.StmtExecContext)
		if !is {
			return nil
		}
		res, err = executor.ExecContext(ctx, named(args))
		if unprepared(err) {
			p.discard(dc) // if the connection is broken, the plain statement will fail
			return nil
		}
		ok = true
		return err
	})
	return res, ok, err
}

// unprepared reports whether a prepared statement was not executed because the server does not know it
// (a proxy has changed the server), or because it is outdated (the table was altered).
func unprepared(err error) bool {
	number := errorNumber(err)
	return number == 1243 || number == 1615
}

// closeTimeout is how long close waits for connections that are in use.
const closeTimeout = 200 * time.Millisecond

// close closes the prepared statements on connections of the pool that are idle, or become idle within
// closeTimeout. Those on other connections end with the connection. The caller must execute nothing
// any more.
func (p *prepared) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for p.closeIdle(ctx) && p.db.Stats().InUse > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// closeIdle closes the prepared statements on idle connections. It reports whether any are left.
func (p *prepared) closeIdle(ctx context.Context) (left bool) {
	p.mu.Lock()
	maps.DeleteFunc(p.conns, func(_ driver.Conn, c *preparedConn) bool {
		for _, stmt := range c.stmts {
			if stmt != nil {
				return false
			}
		}
		return true
	})
	left = len(p.conns) > 0
	p.mu.Unlock()
	for range p.db.Stats().Idle {
		if !left {
			break
		}
		conn, err := p.db.Conn(ctx)
		if err != nil {
			break
		}
		defer conn.Close() // at the end, or the pool would return the same one again
		conn.Raw(func(raw any) error {
			if dc, ok := raw.(driver.Conn); ok {
				return p.discard(dc)
			}
			return nil
		})
		p.mu.Lock()
		left = len(p.conns) > 0
		p.mu.Unlock()
	}
	return left
}

// named converts arguments to the form that the driver takes.
func named(args []any) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return values
}
