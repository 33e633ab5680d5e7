package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"time"
)

const (
	// A pool of fewer connections has none to spare for listening,
	minListenPool = 4
	// and one that has so few left may soon need it for something else.
	maxListenInSmallPool = 500 * time.Millisecond
)

var (
	ErrPoolTooSmall    = errors.New("the pool is too small to spare a connection for listening")
	ErrPoolInUse       = errors.New("the pool has no connection to spare for listening at the moment")
	errListenNameTaken = errors.New("the server did not grant the name to listen under")
)

func (t *Store) Listen(ctx context.Context, names []string, d time.Duration) (h Wakeup, err error) {
	stats := t.db.Stats()
	if stats.MaxOpenConnections > 0 && stats.MaxOpenConnections-stats.InUse < minListenPool {
		d = min(d, maxListenInSmallPool)
	}
	ctx, cancel := context.WithTimeout(ctx, d+time.Second)
	defer cancel()
	switch {
	case 0 < stats.MaxOpenConnections && stats.MaxOpenConnections < minListenPool,
		t.PoolInUse() && t.listener != nil && stats.WaitCount > t.waitCount: // somebody waits for a connection while this one listens
		return h, ErrPoolTooSmall
	case t.PoolInUse() && t.listener == nil:
		return h, ErrPoolInUse
	}
	t.waitCount = stats.WaitCount
	var answer struct {
		Hit     sql.NullString
		Rung    bool
		Demoted bool
	}
	fresh := t.listener == nil
	if fresh {
		err = t.openListener(ctx)
	} else {
		err = t.prepare(ctx, t.listener)
	}
	if err == nil {
		t.statements.Add(1)
		err = t.listener.GetContext(ctx, &answer, t.query(sqlListen, "names", literals(names), "count", strconv.Itoa(len(names)),
			"seconds", strconv.FormatFloat(d.Seconds(), 'f', 6, 64)))
	}
	switch {
	case errorNumber(err) == 1317: // interrupted by KILL QUERY
		if fresh {
			t.CloseListener() // the bell may not have been granted
		}
		return Wakeup{Signalled: true}, nil
	case err != nil:
		return h, describe(err)
	case answer.Demoted:
		return h, ErrDemoted
	case answer.Hit.Valid:
		return Wakeup{Name: answer.Hit.String, Missing: answer.Hit.String == ""}, nil
	}
	return Wakeup{Signalled: answer.Rung}, nil
}

// prickUp takes a connection to listen with.
func (t *Store) openListener(ctx context.Context) error {
	conn, err := t.db.Connx(ctx)
	if err != nil {
		return err
	}
	if err := t.prepare(ctx, conn); err != nil {
		conn.Close()
		return err
	}
	t.listener = conn
	var granted sql.NullBool
	t.statements.Add(2)
	conn.ExecContext(ctx, sqlNotSlow) // before a ring could hit it; where it is refused, the log has an entry more
	err = conn.GetContext(ctx, &granted, t.query(sqlListenName, "id", t.self.String()))
	if err == nil && !granted.Bool {
		err = errListenNameTaken
	}
	return err
}

// hush closes the connection that listened. In the pool, another's statement on
// it could be hit by a ring.
func (t *Store) CloseListener() {
	if t.listener != nil {
		t.listener.Raw(func(any) error { return driver.ErrBadConn })
		t.listener.Close()
		t.listener = nil
	}
}

func (t *Store) Signal(ctx context.Context, p Process) (alive bool, err error) {
	_, _, err = t.change(ctx, true, t.command(sqlSignal, "id", p.String()))
	if errorNumber(err) == 1094 { // ER_NO_SUCH_THREAD
		return false, nil
	}
	return true, err
}
