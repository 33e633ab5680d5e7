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

// A statement of the length of those here takes longer to be parsed than to be
// executed. So a connection that is asked the same often has it prepared, which
// costs one round trip more, once. On others that would not pay: a pool may
// close them as soon as they come back.
const (
	prepareAfter = 100
	// maxPrepared bounds the connections that are known, if the pool has not half
	// as many open: beyond, the one that was used least lately is forgotten. That
	// shall be one that the pool has closed, which it tells nobody; on another, the
	// server would keep what was prepared.
	maxPrepared = 128
)

// prepared knows the statements that were prepared on connections of the pool.
type prepared struct {
	db    *sqlx.DB
	mu    sync.Mutex // guards the following, but not the fields of what conns holds
	conns map[driver.Conn]*preparedConn
	clock int64
}

// hotConn belongs to whoever uses the connection.
type preparedConn struct {
	stmts map[string]driver.Stmt // by text; nil if it cannot be prepared
	uses  map[string]int
	last  int64 // by the clock of prepared, whose mu guards it
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

// discard closes what was prepared on a connection that the caller has. It
// returns driver.ErrBadConn if it cannot.
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

// exec executes a statement that was prepared on the connection, or is asked
// there often enough to be. ok is false, and nothing was executed, if it is not.
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
				stmt = nil // the plain statement will meet what is wrong
			}
			c.stmts[text] = stmt
		}
		executor, is := stmt.(driver.StmtExecContext)
		if !is {
			return nil
		}
		res, err = executor.ExecContext(ctx, named(args))
		switch errorNumber(err) {
		case 1243, 1615: // unknown, or to be prepared anew: a proxy, a changed table
			p.discard(dc) // on a broken connection, the plain statement will find it so
			return nil
		}
		ok = true
		return err
	})
	return res, ok, err
}

// closePatience is how long close waits for connections that are in use.
const closePatience = 200 * time.Millisecond

// close closes what was prepared on the connections of the pool that are idle, or
// come back soon; nothing is executed any more. On a connection that stays in use
// for longer, it ends with the connection.
func (p *prepared) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for p.closeIdle(ctx) && p.db.Stats().InUse > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// closeIdle closes what was prepared on idle connections. It returns false if
// nothing else is left.
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
		defer conn.Close() // when all were had: the pool gives the same one again
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

// named turns arguments into what drivers take.
func named(args []any) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return values
}
