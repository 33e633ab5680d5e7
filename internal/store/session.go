package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

// A SessionID is the number of a session. While a session is alive, its process renews only the session
// row, which keeps all rows that are bound to the session held. The numbers are above all tokens, and
// rise within a process. A session that has expired, or that a later one of its process has replaced,
// stays dead.
type SessionID uint64

func (id SessionID) String() string { return strconv.FormatUint(uint64(id), 10) }

// assign returns the assignment that binds the row r to the session. Because the statement may arrive
// late, a row that is bound to a later session stays bound to that. For id 0, assign returns "".
func (id SessionID) assign(r string) string {
	if id == 0 {
		return ""
	}
	return r + "session = GREATEST(" + r + "session, " + id.String() + "), "
}

// FirstSession returns the number of p's first session. Each further one adds 1.
func (p Process) FirstSession() SessionID { return SessionID(p) + 1 }

// sessionRow returns the key of a process's session row. No lock can have such a name.
func sessionRow(process string) string { return "\x00" + process }

// BeginSession begins a session, whose number must be above all earlier ones. After an error
// the session may have begun, or may still begin.
func (s *Store) BeginSession(ctx context.Context, id SessionID, lease time.Duration) (sent time.Time, err error) {
	s.bound.Store(false)
	if s.poolShort() || s.db.Stats().MaxOpenConnections == 1 {
		return time.Now(), NotSent{ErrNoneToSpare}
	}
	var r reply
	cmd := s.command("begin_session", "label", s.label, "process", s.self.String(), "id", id.String(), "lease", micros(lease))
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err = s.execForAnswer(ctx, conn, cmd)
		return err
	})
	if err == nil && r.answer != int64(id) {
		err = ErrSessionDead
	}
	return r.sent, err
}

// ErrNoneToSpare means that only one connection is left on which a session could begin. Its INSERT may
// wait for a transaction that has locked the gap, and then no row could be renewed.
var ErrNoneToSpare = errors.New("the pool has no connection to spare for beginning a session")

// ErrSessionDead means that a session has expired, or was ended.
var ErrSessionDead = errors.New("the session has expired")

// A SessionRenewal is the result of RenewSession.
type SessionRenewal struct {
	Forced bool // a lock of this process was freed by force since the last report
	Moved  bool // another server replied than last time: it may lack the last changes
	Sent   time.Time
}

// RenewSession renews a session. If the session row is locked, it does not wait, but returns
// ErrRowLocked.
func (s *Store) RenewSession(ctx context.Context, id SessionID, lease time.Duration) (r SessionRenewal, err error) {
	pairs := []string{"id", id.String(), "lease", micros(lease)}
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		renewed, err := s.execForAnswer(ctx, conn, s.command("renew_session", pairs...))
		if err != nil {
			return err
		}
		if r.Sent = renewed.sent; renewed.answer != 0 {
			const bits = 31
			server := renewed.answer>>bits + 1
			last := s.server.Swap(server)
			r.Moved = last != 0 && last != server
			r.Forced = s.reportForced(renewed.answer & (1<<bits - 1))
			return nil
		}
		var alive bool
		if err = s.get(ctx, conn, &alive, "is_alive", pairs...); err == nil {
			err = ErrSessionDead
			if alive {
				err = ErrRowLocked
			}
		}
		return err
	})
	return r, err
}

// CountBound returns how many rows are bound to a session.
func (s *Store) CountBound(ctx context.Context, id SessionID) (n int, err error) {
	err = s.getReserved(ctx, &n, "count_bound", "id", id.String())
	return n, err
}

// Bound returns the claims whose rows are bound to a session.
func (s *Store) Bound(ctx context.Context, id SessionID) (claims []Claim, sent time.Time, err error) {
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		sent = time.Now()
		return s.selectAll(ctx, conn, &claims, "bound", "id", id.String())
	})
	return claims, sent, err
}

// EndSession ends a session at once.
func (s *Store) EndSession(ctx context.Context, id SessionID) error {
	_, err := s.change(ctx, true, s.command("end_session", "id", id.String()))
	return err
}

// reportForced reports whether at, the low bits of a time in microseconds, differs from the last one:
// then a lock of this process was freed by force.
func (s *Store) reportForced(at int64) bool { return s.forced.Swap(at) != at }

// checkSession finds out whether the session because of which a request was refused is alive. If so, answer
// is that of the refusal. If the session is dead, or the row has changed, again is set, and the request can
// be sent again.
func (s *Store) checkSession(ctx context.Context, conn *sqlx.Conn, req *AcquireRequest, id SessionID) (answer int64, again bool, err error) {
	if left := time.Until(s.aliveUntil.get(id)); left > 0 {
		return -left.Microseconds() - 1, false, nil
	}
	var session struct {
		Name   string
		Micros int64
	}
	sent := time.Now()
	err = s.get(ctx, conn, &session, "keeper", "name", literal(req.Name), "id", id.String())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, true, nil
	case err != nil:
		return 0, false, err
	case session.Micros > 0:
		s.aliveUntil.set(id, sent.Add(duration(session.Micros)))
		return -session.Micros, false, nil
	case session.Name != "":
		marked, err := s.execForAnswer(ctx, conn, s.command("mark_dead", "keeper", literal(session.Name), "id", id.String()))
		if err != nil || marked.answer == 0 { // the clock was set back meanwhile
			return -time.Millisecond.Microseconds(), false, err
		}
	}
	req.dead = id
	s.dead.Store(uint64(id))
	return 0, true, nil
}

// markForced records in the session row of a process that one of its locks is freed by force. That
// process then checks its rows: at its next renewal, or when it is signalled.
func (s *Store) markForced(ctx context.Context, p Process) error {
	marked, err := s.change(ctx, false, s.command("mark_forced", "keeper", literal(sessionRow(p.String())), "process", p.String()))
	if err == nil && marked.rows == 0 { // with autocommit, it always changes the row
		err = ErrAutocommit
	}
	return err
}

// ProcessOf returns the process of an owner id, or 0 if the row is not held by an acquisition.
func ProcessOf(owner string) Process {
	if len(owner) < 20 {
		return 0
	}
	p, err := strconv.ParseUint(owner[:19], 10, 64)
	if err != nil || p < firstProcess {
		return 0
	}
	return Process(p)
}
