package store

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

// Renew extends the leases of many rows, skipping locked ones. It binds the rows to a session, unless
// that is 0, and writes the number of handles, unless holds is 0. renewed does not count rows that
// were skipped, that no longer belong to the claims, or whose leases already end later.
func (s *Store) Renew(ctx context.Context, cs []Claim, lease time.Duration, holds int, session SessionID) (renewed int, sent time.Time, err error) {
	assign := ""
	if holds > 0 {
		assign = "l.holds = " + strconv.Itoa(holds) + ", "
	}
	r, err := s.change(ctx, true, s.command("renew", append(claimLists(cs), "lease", micros(lease), "holds", assign, "bind", session.assign("l."))...))
	if err == nil && r.rows > 0 && session != 0 {
		s.bound.Store(true)
	}
	if err == nil && r.rows == int64(len(cs)) {
		s.endWaits(cs, false)
	}
	return int(r.rows), r.sent, err
}

// Extend is Renew for one lease. It waits while a transaction has the row locked, but returns
// ErrRowLocked if this process already waits for that row, or for too many rows. The end of ctx ends
// the call, but not the statement.
func (s *Store) Extend(ctx context.Context, c Claim, lease time.Duration, holds int, session SessionID) (owned bool, sent time.Time, err error) {
	if s.poolShort() || !s.rowWaits.enter(holdWaits, c.Name, s.slots(holdWaits)) {
		if n, sent, err := s.Renew(ctx, []Claim{c}, lease, holds, session); n > 0 || err != nil {
			return n > 0, sent, err
		}
		if !s.rowWaits.enter(holdWaits, c.Name, s.slots(holdWaits)) {
			return false, sent, NotSent{ErrRowLocked}
		}
	}
	assign := "holds" // unchanged
	if holds > 0 {
		assign = strconv.Itoa(holds)
	}
	cmd := s.command("extend", "name", literal(c.Name), "owner", literal(c.Owner), "lease", micros(lease), "holds", assign, "bind", session.assign(""))
	// The renewals of a session need the reserved connection, even if it keeps only this row.
	reserved := s.locksHeld() == 1 && s.poolShort() && (session != 0 || !s.bound.Load())
	r, err := s.runInSlot(ctx, c, reserved, func(ctx context.Context, conn *sqlx.Conn) (reply, error) {
		r, err := s.execForAnswer(ctx, conn, cmd)
		if r.answer != 0 && session != 0 {
			s.bound.Store(true)
		}
		return r, err
	})
	return r.answer != 0, r.sent, err
}

// Release frees the row if the claim still owns it. It waits for a locked row as Extend does.
func (s *Store) Release(ctx context.Context, c Claim) (freed bool, next Process, err error) {
	return s.ReleaseToNext(ctx, c, "")
}

// ReleaseToNext is Release, except that it may grant the row to the head of its wait queue, if that
// process takes grants and listens on this server. The owner id of the grant consists of the process,
// an equals sign, and grant. In that case next.TakesGrants is true, and the caller must signal next.
// Each copy of a release must have the same grant. No transaction may be under Guard of the claim,
// because the release would wait for it. If grant is "", or if the release shares a statement with
// others, ReleaseToNext grants nothing.
func (s *Store) ReleaseToNext(ctx context.Context, c Claim, grant string) (freed bool, next Process, err error) {
	if ModeOf(c.Name) == Exclusive {
		defer s.load.Add(-1)
		crowded := s.crowded()
		if grant != "" && !crowded && !s.logsStatements.Load() {
			freed, next, err = s.releaseAlone(ctx, c, s.releaseToNextCommand(c, grant))
			if freed || err != nil {
				return freed, next, err
			}
		}
		// If a row of a batch does not belong to its claim, the batch may not find out which others
		// it has released.
		if crowded && ctx.Value(notHeldKey{}) == nil && ctx.Value(repeatedKey{}) == nil {
			if a, err := s.releases.do(ctx, c); err != errAlone {
				return a.freed, a.next, err
			}
		}
	}
	freed, next, err = s.releaseAlone(ctx, c, s.releaseCommand(c))
	return freed, next.Listening(), err
}

// releaseAlone releases one row with the given command. next may be an id that takes grants.
func (s *Store) releaseAlone(ctx context.Context, c Claim, release command) (freed bool, next Process, err error) {
	reserved := s.locksHeld() == 1 && ctx.Value(notHeldKey{}) == nil
	err = s.writeOwned(ctx, c, reserved, func() (bool, error) {
		n, head, err := s.ReleaseAll(ctx, []Claim{c})
		freed, next = n > 0, head
		return freed, err
	}, func(ctx context.Context, conn *sqlx.Conn) error {
		r, err := s.exec(ctx, conn, release)
		freed, next = r.rows > 0, Process(r.answer)
		return err
	})
	return freed, next, err
}

// NotHeld returns a context for the release of a row that no hold uses any more. The release leaves
// the reserved connection to the locks that are held.
func NotHeld(ctx context.Context) context.Context {
	return context.WithValue(ctx, notHeldKey{}, true)
}

type notHeldKey struct{}

// Repeated returns a context for a release that was sent before, so that its row may already have
// another owner.
func Repeated(ctx context.Context) context.Context {
	return context.WithValue(ctx, repeatedKey{}, true)
}

type repeatedKey struct{}

func (s *Store) releaseCommand(c Claim) command {
	if ModeOf(c.Name) != Exclusive {
		return s.command("release_part", "name", literal(c.Name), "queue", literal(QueueOf(c.Name)), "owner", literal(c.Owner), "released", literal(released(c.Owner)))
	}
	return command{
		text: func() string {
			return s.query("release", "name", literal(c.Name), "owner", literal(c.Owner), "released", literal(released(c.Owner)))
		},
		prepared: s.preparedRelease, args: []any{hex.EncodeToString([]byte(c.Name)), c.Owner, released(c.Owner)},
	}
}

func (s *Store) releaseToNextCommand(c Claim, grant string) command {
	return command{
		text: func() string {
			return s.query("release_to_next", "name", literal(c.Name), "owner", literal(c.Owner), "released", literal(released(c.Owner)), "grant", literal(grant))
		},
		prepared: s.preparedToNext, args: []any{grant, hex.EncodeToString([]byte(c.Name)), c.Owner, released(c.Owner)},
	}
}

// released returns the owner id that a release writes in place of the given one.
func released(owner string) string { return "-" + owner[1:] }

// ReleaseAll frees many rows, skipping locked ones. If shared holds or permits are among them, it
// sends a second statement.
func (s *Store) ReleaseAll(ctx context.Context, cs []Claim) (freed int64, next Process, err error) {
	r, err := s.change(ctx, true, s.releaseAllCommand(cs))
	freed, next = r.rows, r.next()
	if freed == int64(len(cs)) {
		s.endWaits(cs, false)
	}
	if err == nil && freed > 0 && next == 0 {
		next = s.headOfParts(ctx, cs)
	}
	return freed, next, err
}

// headOfParts returns the head of one of the wait queues for the shared holds and permits among claims
// that were released, or 0. A process that joins a queue after this read then checks the row itself.
// If the read fails, waiting processes find what was released when they poll.
func (s *Store) headOfParts(ctx context.Context, cs []Claim) (next Process) {
	var queues []string
	for _, c := range cs {
		if ModeOf(c.Name) != Exclusive {
			queues = append(queues, QueueOf(c.Name))
		}
	}
	if len(queues) > 0 {
		s.getReserved(ctx, &next, "queue_head", "names", literals(queues))
	}
	return next.Listening()
}

func (s *Store) releaseAllCommand(cs []Claim) command {
	owned := make([]string, 0, 2*len(cs))
	for _, c := range cs {
		owned = append(owned, c.Name+c.Owner, c.Name+released(c.Owner))
	}
	return s.command("release_all", "names", literals(Names(cs)), "owned", literals(owned), "count", strconv.Itoa(len(cs)), "r", "l.")
}

// Look reads the rows of the names. The result has no entry for a name without a row.
func (s *Store) Look(ctx context.Context, names []string) (rows map[string]Row, sent time.Time, err error) {
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		rows, sent, err = s.lookOn(ctx, conn, names)
		return err
	})
	return rows, sent, err
}

func (s *Store) lookOn(ctx context.Context, conn *sqlx.Conn, names []string) (rows map[string]Row, sent time.Time, err error) {
	var found []struct {
		Name, Owner string
		Lease       int64
		Micros      int64
		Next        Process
		Waiting     bool
		Listed      bool
		Granted     bool
		Demoted     bool
	}
	sent = time.Now()
	err = s.selectAll(ctx, conn, &found, "look", "r", "l.", "names", literals(names), "count", strconv.Itoa(len(names)))
	if err == nil && len(found) > 0 && found[0].Demoted {
		err = ErrDemoted
	}
	rows = make(map[string]Row, len(found))
	for _, f := range found {
		row := Row{Owner: f.Owner, Lease: duration(f.Lease), Remaining: duration(f.Micros), Next: f.Next.Listening(), Listed: f.Listed, Waiting: f.Waiting}
		if f.Granted {
			row.Grantee = ProcessOf(f.Owner)
		}
		if isSemaphore(f.Name) {
			row.Remaining = 0
		}
		rows[f.Name] = row
	}
	return rows, sent, err
}

// StillOwned returns the claims that still own their rows. If Look finds a claim in its row, that is
// certain; but another owner that it finds may not be committed, so Owned must confirm it.
func StillOwned(ctx context.Context, repo ownershipReader, claims []Claim) (owned []Claim, err error) {
	rows, _, err := repo.Look(ctx, Names(claims))
	if err != nil {
		return nil, err
	}
	var others []Claim
	for _, c := range claims {
		if rows[c.Name].Owner == c.Owner {
			owned = append(owned, c)
		} else {
			others = append(others, c)
		}
	}
	if len(others) > 0 {
		others, err = repo.Owned(ctx, others)
	}
	return append(owned, others...), err
}

type ownershipReader interface {
	Look(ctx context.Context, names []string) (rows map[string]Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []Claim) ([]Claim, error)
}

// Owned returns the claims that own their rows, according to committed data, at every isolation level.
// Look, by contrast, may see a change of owner that is rolled back later.
func (s *Store) Owned(ctx context.Context, cs []Claim) (owned []Claim, err error) {
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(1)
		_, err := conn.ExecContext(ctx, s.query("read_committed"))
		if err != nil && errorNumber(err) != 1568 { // ER_CANT_CHANGE_TX_CHARACTERISTICS: the application left a transaction open
			return err
		}
		rows, _, err := s.lookOn(ctx, conn, Names(cs))
		if err != nil {
			conn.Raw(func(any) error { return driver.ErrBadConn }) // the level applies to the next transaction
			return err
		}
		owned = slices.DeleteFunc(slices.Clone(cs), func(c Claim) bool { return rows[c.Name].Owner != c.Owner })
		return nil
	})
	if err == nil && len(owned) < len(cs) {
		s.endWaits(slices.DeleteFunc(slices.Clone(cs), func(c Claim) bool { return slices.Contains(owned, c) }), true)
	}
	return owned, err
}

// Confirm reports whether the claim owns its row. Like Look, it may be wrong if it returns false, but
// never if it returns true. The end of ctx ends the call, but not the statement.
func (s *Store) Confirm(ctx context.Context, c Claim) (owned bool, sent time.Time, err error) {
	own, cancel := WithRetryLimit(s.lifetime, min(s.onlyConnTimeout, 5*time.Second))
	r, err := s.detach(ctx, own, cancel, true, func(ctx context.Context, conn *sqlx.Conn) (reply, error) {
		rows, sent, err := s.lookOn(ctx, conn, []string{c.Name})
		r := reply{sent: sent}
		if rows[c.Name].Owner == c.Owner {
			r.rows = 1 // the number of rows that the claim owns
		}
		return r, err
	}, func(bool, error) {})
	return r.rows > 0, r.sent, err
}

// change executes a command on the reserved connection, or on one of the pool.
func (s *Store) change(ctx context.Context, reserved bool, c command) (r reply, err error) {
	err = s.run(ctx, reserved, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err = s.exec(ctx, conn, c)
		return err
	})
	return r, err
}

// RemoveWaiter removes a process from the wait queues of names, skipping locked rows. all means that
// it was removed from each of them. next is a process that was behind it in the queue of a free row,
// or of a semaphore.
func (s *Store) RemoveWaiter(ctx context.Context, names []string, p Process) (next Process, all bool, err error) {
	if p == s.self {
		for _, name := range names {
			s.waits.remove(name)
		}
	}
	r, err := s.change(ctx, true, s.command("remove_waiter",
		"names", literals(names), "count", strconv.Itoa(len(names)),
		"process", p.literal(), "pollingID", p.Polling().literal(), "directID", p.Direct().literal(), "r", "l."))
	return r.next(), r.rows == int64(len(names)), err
}
