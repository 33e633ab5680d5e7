package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// A SessionID is the number of a session: a time during which one process renews its
// session's row, and so keeps all rows that are bound to it. Numbers are above all tokens,
// and rise within a process. A session that has expired, or that a later one of the same
// process has replaced, is dead for good.
type SessionID uint64

func (id SessionID) String() string { return strconv.FormatUint(uint64(id), 10) }

// assign returns the assignment that binds the row r to a session, unless it is bound to a
// later one: the statement may arrive late. It is "" without a session.
func (id SessionID) assign(r string) string {
	if id == 0 {
		return ""
	}
	return r + "session = GREATEST(" + r + "session, " + id.String() + "), "
}

// FirstSession returns the number of p's first session. The next ones follow it.
func (p Process) FirstSession() SessionID { return SessionID(p) + 1 }

// sessionRow returns the name of the row of a process's session. No lock has it.
func sessionRow(process string) string { return "\x00" + process }

// BeginSession begins a session, which must be later than every one before. After an error
// it may have begun, or begin yet.
func (s *Store) BeginSession(ctx context.Context, id SessionID, lease time.Duration) (sent time.Time, err error) {
	s.bound.Store(false)
	if s.poolShort() || s.db.Stats().MaxOpenConnections == 1 {
		return time.Now(), NotSent{ErrNoneToSpare}
	}
	var answer int64
	cmd := s.command(sqlBeginSession, "label", s.label, "id", id.String(), "lease", micros(lease))
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		answer, sent, err = s.execForAnswer(ctx, conn, cmd)
		return err
	})
	if err == nil && answer != int64(id) {
		err = ErrSessionDead
	}
	return sent, err
}

// ErrNoneToSpare means that a session must not begin on the last connection: its INSERT may
// wait for a transaction that has locked the gap, and no row could be renewed meanwhile.
var ErrNoneToSpare = errors.New("the pool has no connection to spare for the begin of a session")

// ErrSessionDead means that a session has expired, or was ended.
var ErrSessionDead = errors.New("the session has expired")

// A SessionRenewal is the result of RenewSession.
type SessionRenewal struct {
	Forced bool // a lock of this process was freed by force since the last report
	Moved  bool // another server replied than last time: it may lack the last changes
	Sent   time.Time
}

// RenewSession renews a session. It does not wait for a locked row, but returns
// ErrRowLocked.
func (s *Store) RenewSession(ctx context.Context, id SessionID, lease time.Duration) (r SessionRenewal, err error) {
	pairs := []string{"id", id.String(), "lease", micros(lease)}
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		answer, sent, err := s.execForAnswer(ctx, conn, s.command(sqlRenewSession, pairs...))
		if err != nil {
			return err
		}
		if r.Sent = sent; answer != 0 {
			const bits = 31
			server := answer>>bits + 1
			last := s.server.Swap(server)
			r.Moved = last != 0 && last != server
			r.Forced = s.reportForced(answer & (1<<bits - 1))
			return nil
		}
		var alive bool
		s.statements.Add(1)
		if err = conn.GetContext(ctx, &alive, s.query(sqlIsAlive, pairs...)); err == nil {
			err = ErrSessionDead
			if alive {
				err = ErrRowLocked
			}
		}
		return err
	})
	return r, err
}

// CountBound returns how many rows a session keeps.
func (s *Store) CountBound(ctx context.Context, id SessionID) (n int, err error) {
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(1)
		return conn.GetContext(ctx, &n, s.query(sqlCountBound, "id", id.String()))
	})
	return n, err
}

// Bound returns the rows that a session keeps.
func (s *Store) Bound(ctx context.Context, id SessionID) (claims []Claim, sent time.Time, err error) {
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(1)
		sent = time.Now()
		return conn.SelectContext(ctx, &claims, s.query(sqlBound, "id", id.String()))
	})
	return claims, sent, err
}

// EndSession ends a session at once.
func (s *Store) EndSession(ctx context.Context, id SessionID) error {
	_, _, err := s.change(ctx, true, s.command(sqlEndSession, "id", id.String()))
	return err
}

// reportForced reports whether at, the end of a time in microseconds, is news of a forced
// release. It does so once.
func (s *Store) reportForced(at int64) bool { return s.forced.Swap(at) != at }

// aliveSessions remembers until when sessions of other processes are alive, at least.
type aliveSessions struct {
	mu    sync.Mutex // protects until
	until map[SessionID]time.Time
}

// maxAlive limits the sessions that are remembered.
const maxAlive = 1024

// left returns for how long a session is known to be alive, 0 if it is not known.
func (a *aliveSessions) left(id SessionID) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, time.Until(a.until[id]))
}

func (a *aliveSessions) add(id SessionID, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until == nil || len(a.until) == maxAlive {
		a.until = map[SessionID]time.Time{}
	}
	a.until[id] = until
}

// checkSession finds out whether the session that keeps the row of a refused request is
// alive. If it is not, again is set: the row can be acquired, or has changed. Otherwise
// answer is that of the refusal.
func (s *Store) checkSession(ctx context.Context, conn *sqlx.Conn, req *AcquireRequest, id SessionID) (answer int64, again bool, err error) {
	if left := s.sessions.left(id); left > 0 {
		return -left.Microseconds() - 1, false, nil
	}
	var session struct {
		Name   string
		Micros int64
	}
	s.statements.Add(1)
	sent := time.Now()
	err = conn.GetContext(ctx, &session, s.query(sqlKeeper, "name", literal(req.Name), "id", id.String()))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, true, nil
	case err != nil:
		return 0, false, err
	case session.Micros > 0:
		s.sessions.add(id, sent.Add(duration(session.Micros)))
		return -session.Micros, false, nil
	case session.Name != "":
		marked, _, err := s.execForAnswer(ctx, conn, s.command(sqlMarkDead, "keeper", literal(session.Name), "id", id.String()))
		if err != nil || marked == 0 { // the clock was set back meanwhile
			return -time.Millisecond.Microseconds(), false, err
		}
	}
	req.dead = id
	s.dead.Store(uint64(id))
	return 0, true, nil
}

// markForced makes the process of an owner look at its rows: soon after its next renewal, or
// at once if it is signalled. It does nothing for this process.
func (s *Store) markForced(ctx context.Context, p Process) error {
	if p == 0 || p == s.self {
		return nil
	}
	marked, _, err := s.change(ctx, false, s.command(sqlMarkForced, "keeper", literal(sessionRow(p.String()))))
	if err == nil && marked == 0 { // it changes the row always
		err = ErrAutocommit
	}
	return err
}

// processOf returns the process of an owner id, 0 if it has none.
func processOf(owner string) Process {
	if len(owner) < 20 {
		return 0
	}
	p, err := strconv.ParseUint(owner[:19], 10, 64)
	if err != nil || p < firstProcess {
		return 0
	}
	return Process(p)
}
