package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"strconv"
	"time"
)

const (
	// A pool needs at least minListenPool connections for listening. If fewer than that are free,
	// a Listen lasts at most maxListenInSmallPool.
	minListenPool        = 4
	maxListenInSmallPool = 500 * time.Millisecond
)

var (
	ErrPoolTooSmall    = errors.New("the pool is too small to spare a connection for listening")
	ErrThreadsLimited  = errors.New("innodb_thread_concurrency limits the threads of the server, and a connection that listens would be one of them")
	ErrPoolInUse       = errors.New("the pool has no connection to spare for listening at the moment")
	errListenNameTaken = errors.New("the server did not grant the name to listen under")
)

// Listen blocks until another process signals this one, one of the rows needs attention, or d has
// passed. Only one call may be in flight at a time.
func (s *Store) Listen(ctx context.Context, names []string, d time.Duration) (w Wakeup, err error) {
	stats := s.db.Stats()
	if stats.MaxOpenConnections > 0 && stats.MaxOpenConnections-stats.InUse < minListenPool {
		d = min(d, maxListenInSmallPool)
	}
	ctx, cancel := context.WithTimeout(ctx, d+time.Second)
	defer cancel()
	switch {
	case s.PoolTooSmall(),
		s.PoolInUse() && s.listener != nil && stats.WaitCount > s.waitCount: // a caller waits for a connection while this one listens
		return w, ErrPoolTooSmall
	case s.PoolInUse() && s.listener == nil:
		return w, ErrPoolInUse
	}
	s.waitCount = stats.WaitCount
	var answer listenAnswer
	open := s.listener != nil
	if open {
		err = s.checkConn(ctx, s.listener)
	} else {
		err = s.openListener(ctx)
		open = err == nil
	}
	if err == nil {
		s.prepareGranted(ctx)
		answer, err = s.sleep(ctx, names, d)
	}
	switch {
	case errorNumber(err) == 1317: // interrupted by KILL QUERY
		if s.signalled = open; !open {
			s.CloseListener() // the name may not have been granted
		}
		return Wakeup{Signalled: true}, nil
	case err != nil:
		return w, Describe(err)
	case answer.Demoted:
		return w, ErrDemoted
	case answer.Limited:
		return w, ErrThreadsLimited
	}
	w.Forced = s.reportForced(answer.Forced)
	if answer.Hit.Valid {
		w.Name, w.Missing = answer.Hit.String, answer.Hit.String == ""
	} else {
		w.Signalled = answer.Ended == endedBySignal
		s.signalled = s.signalled || w.Signalled
	}
	return w, nil
}

type listenAnswer struct {
	Hit     sql.NullString
	Ended   int
	Demoted bool
	Limited bool
	Forced  int64
}

// Why the sleep of a listen statement ended early: see sleep.sql.
const (
	endedBySignal = 1
	endedEarly    = 2 // the listener that used SLEEP has left, so this one must begin again
)

// sleep sends the listen statement, and repeats it if it ended with endedEarly.
func (s *Store) sleep(ctx context.Context, names []string, d time.Duration) (answer listenAnswer, err error) {
	for end := time.Now().Add(d); ; d = max(0, time.Until(end)) {
		answer = listenAnswer{}
		err = s.get(ctx, s.listener, &answer, "listen", "r", "l.", "names", literals(names), "count", strconv.Itoa(len(names)), "more", s.ready(names),
			"forced", strconv.FormatInt(s.forced.Load(), 10), "seconds", strconv.FormatFloat(d.Seconds(), 'f', 6, 64))
		if err != nil || answer.Ended != endedEarly {
			return answer, err
		}
	}
}

// ready returns conditions for listen.sql: that the row l is that of a semaphore with a slot that this process
// may take; or that of a name that this process has claimed, and nobody holds the name shared any more. The
// signal may have come before the process listened.
func (s *Store) ready(names []string) (condition string) {
	for _, name := range names {
		switch limit := s.waits.get(name); {
		case limit == 0:
		case isSemaphore(name):
			condition += " OR l.name = " + literal(name) + " AND " + s.query("fragments/permit_open", slotRange(name, slotWindow{1, limit}, limit)...)
		default:
			condition += " OR l.name = " + literal(name) + " AND " + s.query("fragments/promotable", sharedKeys(name)...)
		}
	}
	return condition
}

// Granted returns the grants that releases have recently made to this process for the given names. When
// a call takes one of them, HoldBegan must be called. The process trusts the lease of a grant from before this
// read, so the read must not be from a replica, or of uncommitted data. Therefore Granted returns
// nothing until a signal has arrived on the listener's connection, which shows that it leads to the
// server of the release.
func (s *Store) Granted(ctx context.Context, names []string) (grants []Grant, err error) {
	if s.listener == nil || !s.signalled || s.dirtyReads.Load() {
		return nil, nil
	}
	sent := time.Now()
	found, err := s.readGranted(ctx, names)
	if err != nil {
		return nil, Describe(err)
	}
	for _, f := range found {
		grants = append(grants, Grant{Token: f.Token, Claim: Claim{f.Name, f.Owner}, Lease: duration(f.Micros), Sent: sent})
	}
	return grants, nil
}

// readGranted reads the rows for Granted.
func (s *Store) readGranted(ctx context.Context, names []string) (found []grantRow, err error) {
	if s.preparedGranted != nil && len(names) == 1 {
		s.statements.Add(1)
		if err = s.preparedGranted.SelectContext(ctx, &found, hex.EncodeToString([]byte(names[0]))); !unprepared(err) {
			return found, err
		}
		s.preparedGranted, s.prepareRefused = nil, true
	}
	err = s.selectAll(ctx, s.listener, &found, "granted", "names", literals(names), "count", strconv.Itoa(len(names)))
	return found, err
}

type grantRow struct {
	Name, Owner string
	Token       uint64
	Micros      int64
}

// prepareGranted prepares the statement of Granted when a signal has arrived. Without that, it takes
// 40 % longer on a thread of the server that has just woken up. If preparing fails, Granted sends the
// text.
func (s *Store) prepareGranted(ctx context.Context) {
	if !s.signalled || s.preparedGranted != nil || s.prepareRefused {
		return
	}
	s.statements.Add(1)
	stmt, err := s.listener.PreparexContext(ctx, s.query("granted", "names", "UNHEX(CONVERT(? USING ascii))", "count", "1"))
	if s.prepareRefused = err != nil && errorNumber(err) != 1317; err == nil { // 1317: a signal interrupted it
		s.preparedGranted = stmt
	}
}

func (s *Store) openListener(ctx context.Context) error {
	conn, err := s.db.Connx(ctx)
	if err != nil {
		return err
	}
	if err := s.checkConn(ctx, conn); err != nil {
		conn.Close()
		return err
	}
	s.listener, s.signalled, s.prepareRefused = conn, false, false
	var granted sql.NullBool
	s.statements.Add(2)
	conn.ExecContext(ctx, s.query("not_slow")) // before a signal can interrupt it; if it is refused, the slow log has one more entry
	err = conn.GetContext(ctx, &granted, s.query("listen_name", "id", s.self.String()))
	if err == nil && !granted.Bool {
		err = errListenNameTaken
	}
	return err
}

// CloseListener closes the listener's connection; from then on the process cannot be signalled. It does
// not return the connection to the pool, where a late signal could interrupt a statement of the
// application.
func (s *Store) CloseListener() {
	if s.listener != nil {
		s.listener.Raw(func(any) error { return driver.ErrBadConn })
		s.listener.Close()
		s.listener, s.signalled, s.preparedGranted = nil, false, nil
	}
}

// Signal ends the Listen of a process. alive is false if that process does not listen.
func (s *Store) Signal(ctx context.Context, p Process) (alive bool, err error) {
	_, err = s.change(ctx, true, s.command("signal", "id", p.Listening().String()))
	if errorNumber(err) == 1094 { // ER_NO_SUCH_THREAD
		return false, nil
	}
	return true, err
}
