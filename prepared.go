package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"

	"github.com/jmoiron/sqlx"
)

// A statement of the length of those here takes longer to be parsed than to be
// executed. So a connection that is asked the same often has it prepared, which
// costs one round trip more, once. On others that would not pay: a pool may
// close them as soon as they come back.
const (
	prepareAfter = 100
	maxPrepared  = 128 // connections; beyond, the one that was used least lately is forgotten
)

// prepared knows the statements that were prepared on connections of the pool.
type prepared struct {
	mu    sync.Mutex // guards the following, but not the fields of what conns holds
	conns map[driver.Conn]*hotConn
	clock int64
}

// hotConn belongs to whoever uses the connection.
type hotConn struct {
	stmts map[string]driver.Stmt // by text; nil if it cannot be prepared
	uses  map[string]int
	last  int64 // by the clock of prepared, whose mu guards it
}

func (p *prepared) of(conn driver.Conn) *hotConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[conn]
	if c == nil {
		if len(p.conns) == maxPrepared {
			var oldest driver.Conn
			for other, c := range p.conns {
				if oldest == nil || c.last < p.conns[oldest].last {
					oldest = other
				}
			}
			delete(p.conns, oldest)
		}
		c = &hotConn{stmts: map[string]driver.Stmt{}, uses: map[string]int{}}
		if p.conns == nil {
			p.conns = map[driver.Conn]*hotConn{}
		}
		p.conns[conn] = c
	}
	p.clock++
	c.last = p.clock
	return c
}

// forget drops a connection, and returns what was prepared on it.
func (p *prepared) forget(conn driver.Conn) map[string]driver.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[conn]
	delete(p.conns, conn)
	if c == nil {
		return nil
	}
	return c.stmts
}

// exec executes a statement that was prepared on the connection, or is asked
// there often enough to be. ok is false, and nothing was executed, if it is not.
func (p *prepared) exec(ctx context.Context, conn *sqlx.Conn, text string, args []any) (res sql.Result, ok bool, err error) {
	err = conn.Raw(func(raw any) error {
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
		var err error
		res, err = executor.ExecContext(ctx, named(args))
		switch number(err) {
		case 1243, 1615: // unknown, or to be prepared anew: a proxy, a changed table
			p.forget(dc)
			return nil
		}
		ok = true
		return err
	})
	return res, ok, err
}

// close closes what was prepared on the idle connections of a pool. The rest
// ends with its connection.
func (p *prepared) close(ctx context.Context, db *sqlx.DB) {
	p.mu.Lock()
	n := min(len(p.conns), db.Stats().Idle)
	p.mu.Unlock()
	for range n {
		conn, err := db.Conn(ctx)
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Raw(func(raw any) error {
			var failed error
			if dc, ok := raw.(driver.Conn); ok {
				for _, stmt := range p.forget(dc) {
					if stmt != nil {
						failed = errors.Join(failed, stmt.Close())
					}
				}
			}
			if failed != nil {
				return driver.ErrBadConn
			}
			return nil
		})
	}
}

// named turns arguments into what drivers take.
func named(args []any) []driver.NamedValue {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return values
}
