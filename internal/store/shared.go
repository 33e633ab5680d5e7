package store

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

// Each process that holds a name shared has its own row for that hold. Such a row can be added or
// taken only during a shared phase of the name's row (see admit.sql). All shared holds of a phase have
// the token of the name's row, and their guards lock the index entry of that row. An exclusive request
// ends the phase with a claim, and then waits until no shared row is held (see claim.go).

// sharedTries is how many rows a request tries for its hold, until it finds one that this process does
// not use. It rarely needs more than one, unless rows are detached or kept for a minimum time.
const sharedTries = 10

// rowOf returns the key of the row that a request for a shared hold uses in the given try, from 0 on.
// All copies of the request use the same rows.
func (s *Store) rowOf(req AcquireRequest, try int) string {
	rows := uint64(1) // the number of rows to pick from: more with each try, so that a process has few rows
	for range try {
		rows *= 8
	}
	random := fnv.New64a()
	fmt.Fprint(random, req.Owner, try)
	return sharedKey(req.Name, s.self, int(random.Sum64()%rows))
}

// acquireShared acquires a name in shared mode: it has the request admitted by the name's row, and then
// joins with its own row. It sends two statements if nobody holds the name exclusively or waits for it.
func (s *Store) acquireShared(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	const maxTries = 5
	var r reply
	c := Claim{s.rowOf(req, 0), req.Owner}
	raced := false // join has found that the name's row had changed
	for try := 1; try <= maxTries && r.answer == 0 && err == nil; try++ {
		r, err = s.admitAndJoin(ctx, req, &c)
		if err == nil && r.answer == answerAbsent {
			if try > 1 { // the row of c may exist: Purge may have deleted only the name's
				c.Name = s.rowOf(req, try)
			}
			r, err = s.insertShared(ctx, req, &c)
		}
		raced = raced || err == nil && r.answer == 0
	}
	switch {
	case err != nil && raced: // an earlier copy of join may have been granted
		return Grant{Claim: c}, PartlySent{err}
	case err != nil:
		return Grant{Claim: c}, err
	case isToken(r.answer):
		s.sharedNames.set(req.Name, true)
	case raced: // as above
		if _, err := s.change(ctx, false, s.releaseCommand(c)); err != nil {
			return Grant{Claim: c}, PartlySent{err}
		}
	}
	if r.answer == 0 {
		return Grant{Sent: r.sent, Remaining: time.Millisecond}, nil
	}
	return r.grant(req, c)
}

// admitAndJoin has a request admitted, acquires a row of this process for it, and sets c.Name to the
// key of that row. The answer is 0 if the name's row has changed in between.
func (s *Store) admitAndJoin(ctx context.Context, req AcquireRequest, c *Claim) (r reply, err error) {
	const admittedOnly = -1 // not joined yet: without a slot, only firstGrant may send join
	admitAndJoin := func(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (reply, error) {
		if r, err := s.admit(ctx, conn, req, ""); err != nil || r.answer != answerAdmitted {
			return r, err
		}
		return s.join(req, c, s.query("fragments/in_phase"), "h.token", s.query("fragments/now"), lockInShareMode, func(join command) (reply, error) {
			return s.execForAnswer(ctx, conn, join)
		})
	}
	admit := func(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (reply, error) {
		r, err := s.admit(ctx, conn, req, skipLocked)
		if err == nil && r.answer == answerAdmitted {
			r.answer = admittedOnly
		}
		return r, err
	}
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err = s.takeInSlot(ctx, conn, req, admitAndJoin, admit)
		return err
	})
	if err == nil && r.answer == admittedOnly {
		// The slot of the name may be that of a statement that was cut off; admit has just found the row unlocked.
		r, err = s.join(req, c, s.query("fragments/in_phase"), "h.token", s.query("fragments/now"), lockInShareMode, func(join command) (reply, error) {
			return s.firstGrant(ctx, c.Name, []Claim{*c}, join)
		})
	}
	return r, err
}

// lockInShareMode makes a statement with {lock} wait for a locked row.
const lockInShareMode = "LOCK IN SHARE MODE"

// insertShared acquires a name that has no row yet, in shared mode. The answer is 0 if a row was added
// meanwhile.
func (s *Store) insertShared(ctx context.Context, req AcquireRequest, c *Claim) (r reply, err error) {
	r, err = s.firstGrant(ctx, req.Name, []Claim{*c}, s.sharedCommand(req, *c, "insert_shared"))
	switch {
	case errorNumber(err) == 1062: // ER_DUP_ENTRY
		return r, nil
	case err == nil && r.answer == 0:
		err = ErrAutocommit
	}
	return r, err
}

// answerAdmitted means that admit has admitted the request, which may now join.
const answerAdmitted = 1

// admit has a request admitted. The answer is answerAdmitted, or the reason for the refusal.
func (s *Store) admit(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, skip string) (reply, error) {
	r, err := s.execForAnswer(ctx, conn, s.sharedCommand(req, req.Claim, "admit", "skip", skip, "r", "p."))
	if err == nil && r.answer == 0 {
		r.answer, err = s.whyNothing(ctx, conn, req, skip)
	}
	return r, err
}

// admitted returns the owner id that admit writes to the name's row, given the owner id of the request.
// No acquisition has such an id.
func admitted(owner string) string { return "*" + owner[1:] }

// join takes a row of this process for a shared hold, if the condition holds for the name's row, h. It
// sets c.Name to the key of the row that it takes, and sends the statement with send. The answer is the
// token, or 0 if the condition fails.
func (s *Store) join(req AcquireRequest, c *Claim, condition, token, acquired, lock string, send func(command) (reply, error)) (r reply, err error) {
	const inUse = -1
	for try := range sharedTries {
		c.Name = s.rowOf(req, try)
		r, err = send(s.sharedCommand(req, *c, "join", "condition", condition, "token", token, "acquired", acquired, "lock", lock))
		if err != nil || r.answer != inUse {
			return r, err
		}
	}
	r.answer = 0
	return r, nil
}

// sharedCommand fills in a statement with a request and the claim of its shared hold.
func (s *Store) sharedCommand(req AcquireRequest, c Claim, statement string, pairs ...string) command {
	return s.command(statement, append(pairs, "name", literal(req.Name), "key", literal(c.Name), "owner", literal(c.Owner), "admitted", literal(admitted(c.Owner)),
		"label", s.labelOf(req.Holder), "lease", micros(req.Lease), "enlist", req.enlist(), "dead", req.dead.String())...)
}

// enlist returns the literal of the id that a refused request appends to the wait queue.
func (req AcquireRequest) enlist() string {
	if req.EnlistAs == 0 {
		return "x''"
	}
	return req.EnlistAs.literal()
}

// whyNothing finds out why a statement with {skip} found no row.
func (s *Store) whyNothing(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, skip string) (answer int64, err error) {
	if skip == "" {
		return answerAbsent, nil // or autocommit is off, which the statement that inserts finds out
	}
	switch answer, err = s.whyRefused(ctx, conn, req); {
	case err == nil && answer == 0:
		err = ErrAutocommit
	case answer == answerShared:
		answer = answerLocked
	}
	return answer, err
}

// Downgrade turns the exclusive hold of the claim from into a shared hold of to.Owner, without freeing
// the name in between. The grant is for to. Both together are one hold, for which HoldEnded must be
// called once. Downgrade returns ErrRowLocked instead of waiting for guards of from, or for a locked row
// for which this process must not wait. An error that contains NotSent means that from is unchanged;
// after any other, from may have ended, and the caller must release it. If Grant.Claim is set beside an
// error, the caller must release that claim, which may yet be granted.
func (s *Store) Downgrade(ctx context.Context, from Claim, to AcquireRequest) (g Grant, next Process, err error) {
	to.Name = from.Name
	send := func(wait bool) func(context.Context, *sqlx.Conn) error {
		return func(ctx context.Context, conn *sqlx.Conn) (err error) {
			g, next, err = s.downgradeOn(ctx, conn, from, to, wait)
			return err
		}
	}
	reserved := s.locksHeld() == 1
	err = s.writeOwned(ctx, from, reserved, func() (bool, error) { return true, s.run(ctx, reserved, send(false)) }, send(true))
	if g.Token > 0 {
		s.sharedNames.set(from.Name, true)
	}
	return g, next, err
}

func (s *Store) downgradeOn(ctx context.Context, conn *sqlx.Conn, from Claim, to AcquireRequest, wait bool) (g Grant, next Process, err error) {
	skip, lock := skipLocked, "FOR UPDATE SKIP LOCKED"
	if wait {
		skip, lock = "", lockInShareMode
	}
	prepared, err := s.execForAnswer(ctx, conn, s.command("prepare_downgrade", "name", literal(from.Name), "owner", literal(from.Owner), "skip", skip))
	if err != nil {
		return g, 0, NotSent{err} // at most the mode has changed
	}
	if prepared.answer == 0 {
		return g, 0, s.whyNotDowngraded(ctx, conn, from)
	}
	c := Claim{Owner: to.Owner}
	held := "h.mode = 2 AND h.owner = " + literal(from.Owner)
	joined, err := s.join(to, &c, held, s.query("fragments/next_token", "r", "h."), "h.acquired_at", lock, func(join command) (reply, error) {
		return s.execForAnswer(ctx, conn, join)
	})
	if err != nil && !rejected(errorNumber(err)) {
		return Grant{Claim: c}, 0, NotSent{err} // from still owns the name's row
	}
	if err != nil {
		g.Claim, err = s.notDowngraded(ctx, conn, c, err)
		return g, 0, err
	}
	if joined.answer == 0 {
		return g, 0, s.whyNotDowngraded(ctx, conn, from)
	}
	ended, err := s.execForAnswer(ctx, conn, s.command("downgrade", "name", literal(from.Name), "owner", literal(from.Owner),
		"admitted", literal(admitted(from.Owner)), "token", strconv.FormatInt(joined.answer, 10), "skip", skip, "r", "l."))
	if err != nil && !rejected(errorNumber(err)) {
		return Grant{Claim: c}, 0, PartlySent{err}
	}
	if err == nil && ended.answer != 0 {
		return Grant{Token: uint64(joined.answer), Claim: c, Sent: joined.sent}, ended.next(), nil
	}
	if err == nil {
		err = s.whyNotDowngraded(ctx, conn, from)
	}
	g.Claim, err = s.notDowngraded(ctx, conn, c, err)
	return g, 0, err
}

// notDowngraded releases the shared hold of a downgrade that failed with refusal, so that the exclusive
// hold continues. If that fails, it returns the claim of the shared hold.
func (s *Store) notDowngraded(ctx context.Context, conn *sqlx.Conn, c Claim, refusal error) (Claim, error) {
	if _, err := s.exec(ctx, conn, s.releaseCommand(c)); err == nil {
		c = Claim{}
	}
	return c, NotSent{refusal}
}

// whyNotDowngraded returns the reason why a statement did not match the row of an exclusive hold.
func (s *Store) whyNotDowngraded(ctx context.Context, conn *sqlx.Conn, from Claim) NotSent {
	rows, _, err := s.lookOn(ctx, conn, []string{from.Name})
	switch {
	case err != nil:
		return NotSent{err}
	case rows[from.Name].Owner == from.Owner:
		return NotSent{ErrRowLocked}
	default:
		return NotSent{ErrNotOwned}
	}
}
