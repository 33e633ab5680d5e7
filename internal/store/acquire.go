package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mysqllock/mysqllock/internal/background"
)

// Acquire takes the row if it is free. For each grant, HoldEnded must be called once. Acquire sends
// one statement, or two if the name has no row yet or others wait for it, and two more on the first
// use of the pool. For a row that is bound to a session, see checkSession; for batches, see combiner.
func (s *Store) Acquire(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	if s.dirtyReads.Load() {
		req.EnlistAs = req.EnlistAs.Listening() // no release may grant it the row: it could not trust its read
	}
	switch req.Mode {
	case Shared:
		return s.acquireShared(ctx, req)
	case Permit:
		return s.acquirePermit(ctx, req)
	default:
		return s.acquireRow(ctx, req)
	}
}

// acquireRow is Acquire for one row, which the request names.
func (s *Store) acquireRow(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	if !s.combinable(req) {
		return s.acquireAlone(ctx, req)
	}
	defer s.load.Add(-1)
	if !s.crowded() {
		return s.acquireAlone(ctx, req)
	}
	began := time.Now()
	g, err = s.takes.do(ctx, req)
	unsure := err == errUnsure
	switch {
	case err == nil:
		return g, nil
	case err == errAbsent:
		req.absent = true
	case err != errAlone && !unsure:
		return Grant{Claim: req.Claim}, err
	}
	g, err = s.acquireAlone(ctx, req)
	if unsure { // the batch may have begun the lease
		if err == errOwnLocked {
			g, err = s.recognize(ctx, req)
		}
		g.Sent = began
		if err != nil {
			err = PartlySent{err}
		}
	}
	return g, err
}

// recognize returns the grant of a request if a batch has taken its row, which another transaction
// has locked now.
func (s *Store) recognize(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	g.Claim, err = req.Claim, s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		rows, err := s.lookBatch(ctx, conn, []string{req.Name})
		switch row := rows[req.Name]; {
		case err != nil:
			return err
		case row.Owner != req.Owner:
			return errOwnLocked
		default:
			g.Token = row.Token
			s.holdsBegan(1)
			return nil
		}
	})
	return g, err
}

// acquireAlone is acquireRow without a batch.
func (s *Store) acquireAlone(ctx context.Context, req AcquireRequest) (g Grant, err error) {
	r := reply{answer: answerAbsent}
	send := func(ctx context.Context, conn *sqlx.Conn) (err error) {
		r, err = s.takeInSlot(ctx, conn, req, s.take, s.takeUnlocked)
		return err
	}
	if !req.absent {
		err = s.onConn(ctx, send)
	}
	if err == nil && r.answer == answerAbsent {
		r, err = s.firstGrant(ctx, req.Name, []Claim{req.Claim}, s.acquireCommand(req, "insert", s.name+"."))
	}
	if err == nil && r.answer == 0 && req.Replaces == "" {
		// Autocommit is off; or the table has a trigger, and the statement did not change the row.
		req.skipLocked = true
		if err = s.onConn(ctx, send); r.answer == answerAbsent {
			r.answer = 0
		}
	}
	if err != nil {
		return Grant{Claim: req.Claim}, err
	}
	return r.grant(req, req.Claim)
}

// grant converts the reply to a request to what it means for a claim: a grant, or a refusal.
func (r reply) grant(req AcquireRequest, c Claim) (Grant, error) {
	g := Grant{Sent: r.sent}
	switch answer := r.answer; {
	case isToken(answer):
		g.Token, g.Claim = uint64(answer), c
	case answer == answerClaimedLocked:
		g.Claim, g.Claimed, g.Locked = c, true, true
	case isClaimed(answer):
		g.Claim, g.Claimed, g.Remaining = c, true, duration(answerClaimed-answer)
	case answer > 0: // the row was added, acquired and bound meanwhile, so try again
		g.Remaining = time.Millisecond
	case answer == answerLocked:
		g.Locked = true
	case answer == answerReserved:
		g.Remaining, g.Reserved = ReservedFor, true
	case answer == answerGranted:
		g.Granted, g.Remaining = true, GrantLease
	case answer <= answerHandedOff:
		g.HandedOff, g.Remaining = true, duration(answerHandedOff-answer)
	case answer < 0:
		g.Remaining = duration(-answer)
	case req.Replaces == "":
		return Grant{}, ErrAutocommit
	}
	return g, nil
}

// The answer of an acquiring statement is a token; the number of a session; the microseconds left of
// the holder's lease, as a negative number; or one of these constants.
const (
	answerReserved = -1<<62 + iota // the row is free, but reserved for another process
	answerLocked                   // the row is free, but a transaction has it locked
	answerAbsent                   // there is no row
	answerShared                   // the row is free, but its name may be held shared: see claim
	answerGranted                  // a release has granted the row to this process
)

// The answer of a request that has claimed a name is answerClaimed less the microseconds left of a
// shared hold, or answerClaimedLocked if a transaction has the row locked.
const (
	answerClaimed = -1<<61 + iota
	answerClaimedLocked
)

// If a release has recently granted the row to another process, the answer of a request is
// answerHandedOff less the microseconds left of that grant's lease.
const answerHandedOff = -1 << 60

// isClaimed reports whether an answer is answerClaimed less at most maxClaimWait.
func isClaimed(answer int64) bool {
	return answerClaimed-maxClaimWait.Microseconds() <= answer && answer <= answerClaimed
}

// isToken reports whether an answer is a token, which means a grant. Session numbers are greater.
func isToken(answer int64) bool { return 0 < answer && answer < firstProcess }

// An acquirer sends the statements of one request. The request is refused if a session other than
// req.dead may keep the row.
type acquirer func(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (reply, error)

// withSessionCheck sends the statements of a request. If they are refused because of a session that
// proves to be dead, it sends them again.
func (s *Store) withSessionCheck(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, send acquirer) (r reply, err error) {
	req.dead = SessionID(s.dead.Load())
	for try := 1; ; try++ {
		r, err = send(ctx, conn, req)
		if err != nil || r.answer < firstProcess {
			return r, err
		}
		var again bool
		r.answer, again, err = s.checkSession(ctx, conn, &req, SessionID(r.answer))
		switch {
		case !again:
			return r, err
		case try == 3: // perhaps a proxy sends reads to a replica that lags
			r.answer = -time.Millisecond.Microseconds()
			return r, nil
		}
	}
}

// take sends acquiring statements that wait for the row lock.
func (s *Store) take(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (r reply, err error) {
	if req.Claimed || req.Replaces == "" && req.EnlistAs == 0 && s.sharedNames.get(req.Name) {
		return s.claim(ctx, conn, req, "")
	}
	send := func(statement string) (reply, error) {
		return s.execForAnswer(ctx, conn, s.acquireCommand(req, statement, ""))
	}
	switch {
	case req.Replaces != "":
		r, err = send("replace")
	case req.EnlistAs != 0:
		r, err = send("take_or_enlist")
	default:
		if r, err = s.execForAnswer(ctx, conn, s.takeCommand(req)); err == nil && r.answer == -1 { // others wait
			r, err = send("take_or_enlist")
		}
	}
	switch {
	case err == nil && r.answer == answerShared:
		return s.claim(ctx, conn, req, "")
	case r.answer == 0 && req.Replaces == "":
		r.answer = answerAbsent
	}
	return r, err
}

// takeCommand is acquireCommand for "take", which may be prepared.
func (s *Store) takeCommand(req AcquireRequest) command {
	c := command{
		text:     func() string { return s.acquireCommand(req, "take", "").text() },
		prepared: s.preparedTake,
		args:     []any{req.Owner, req.Lease.Microseconds(), hex.EncodeToString([]byte(req.Name)), req.Owner, uint64(req.dead)},
	}
	if req.Holder != "" {
		c.prepared = s.preparedTakeAs
		c.args = slices.Insert(c.args, 1, any(hex.EncodeToString([]byte(req.Holder))))
	}
	return c
}

// takeInSlot sends a request, with a session check. It uses waiting, whose statements may wait for the row, if
// it gets a slot for that, and otherwise skipping. It frees the slot, unless a statement that was cut off may
// still wait in the server.
func (s *Store) takeInSlot(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, waiting, skipping acquirer) (r reply, err error) {
	if req.skipLocked || !s.rowWaits.enter(acquireWaits, req.Name, s.slots(acquireWaits)) {
		r, err = s.withSessionCheck(ctx, conn, req, skipping)
	} else {
		left, began := false, time.Now()
		defer func() {
			if !left {
				s.rowWaits.leave(req.Name)
			}
		}()
		r, err = s.withSessionCheck(ctx, conn, req, waiting)
		if err != nil && (ctx.Err() != nil || mayContinue(began, err)) {
			left, err = true, &abandonedWait{err, req.Claim, acquireWaits}
		}
	}
	if err == nil && isToken(r.answer) {
		s.holdsBegan(1) // before conn is returned: it may become the reserved one
	}
	return r, err
}

// takeUnlocked sends acquiring statements that do not wait for the row lock.
func (s *Store) takeUnlocked(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (r reply, err error) {
	if req.Claimed {
		return s.claim(ctx, conn, req, skipLocked)
	}
	available, waiters := s.query("fragments/available", "r", "p.", "dead", req.dead.String()), s.query("fragments/waiters_after_take", "r", "l.")
	mode := " AND p.mode = 0"
	if req.Replaces != "" {
		available, waiters, mode = req.replaced("p."), "l.waiters", " AND p.mode <> 1"
	}
	available = "(" + available + " OR p.owner = " + literal(req.Owner) + ")" + mode
	r, err = s.execForAnswer(ctx, conn, s.command("take_unlocked", "name", literal(req.Name), "owner", literal(req.Owner),
		"label", s.labelOf(req.Holder), "lease", micros(req.Lease), "available", available, "waiters", waiters))
	if err != nil || r.answer != 0 {
		return r, err
	}
	if req.Replaces != "" {
		return r, NotSent{ErrRowLocked} // or the row has another owner, which the answer does not show
	}
	r.answer, err = s.whyRefused(ctx, conn, req)
	if err == nil && (r.answer == answerShared || r.answer == answerClaimed) {
		return s.claim(ctx, conn, req, skipLocked)
	}
	return r, err
}

// skipLocked makes a statement with {skip} skip a locked row.
const skipLocked = "SKIP LOCKED"

// whyRefused finds out, without waiting for a lock, why a statement did not take the row. If the row
// is not free, the request joins the wait queue. The answer is 0 if autocommit is off, and
// answerClaimed if an earlier statement, or a copy of it, has claimed the name for the request.
func (s *Store) whyRefused(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) (answer int64, err error) {
	var row struct {
		Answer                             int64
		Autocommit, Available, Listed, Own bool
	}
	err = s.get(ctx, conn, &row, "why_refused", "name", literal(req.Name), "owner", literal(req.Owner), "dead", req.dead.String())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return answerAbsent, nil
	case err != nil || !row.Autocommit:
		return 0, err
	case row.Own:
		return 0, errOwnLocked
	case row.Available && row.Answer != answerShared:
		return answerLocked, nil
	case !row.Available && row.Answer == answerShared:
		return answerClaimed, nil
	case req.EnlistAs != 0 && row.Answer != answerShared && !row.Listed:
		err = s.enlist(ctx, conn, req)
	}
	return row.Answer, err
}

func (s *Store) enlist(ctx context.Context, conn *sqlx.Conn, req AcquireRequest) error {
	_, err := s.exec(ctx, conn, s.acquireCommand(req, "enlist", ""))
	return err
}

// errOwnLocked is the error of a request for which an earlier statement has taken the row, which is
// now locked. It leaves the outcome unknown.
var errOwnLocked = errors.New("the row was acquired, but a transaction has it locked")

// firstGrant acquires the rows of claims, some of which do not exist yet.
func (s *Store) firstGrant(ctx context.Context, name string, claims []Claim, cmd command) (reply, error) {
	var mu sync.Mutex // protects granted and abandoned
	granted, abandoned := false, false
	r, err := s.runFirst(ctx, name, claims[0].Owner, func(ctx context.Context, conn *sqlx.Conn) (r reply, err error) {
		r, err = s.execForAnswer(ctx, conn, cmd)
		mu.Lock()
		defer mu.Unlock()
		granted = isToken(r.answer) && !abandoned
		switch {
		case granted:
			s.holdsBegan(len(claims))
		case isToken(r.answer) && len(claims) == 1: // by a statement that does not skip the row if another one has it locked
			_, err = s.exec(ctx, conn, s.releaseCommand(claims[0]))
		case isToken(r.answer):
			_, err = s.exec(ctx, conn, s.releaseAllCommand(claims))
		}
		return r, err
	})
	mu.Lock()
	defer mu.Unlock()
	abandoned = true
	if err != nil && granted {
		for range claims {
			s.HoldEnded()
		}
	}
	return r, err
}

// runFirst runs fn, which sends a statement that may add the row of name, and that contains the owner id. The
// statement may wait for that row, for the high-water row, or for a gap in the index, where a probe cannot see
// what it waits for. So it is not cut off while the server executes it, and keeps its connection; further such
// statements wait in this process for a slot. The answer is answerLocked if another statement of this process
// may wait for the row.
func (s *Store) runFirst(ctx context.Context, name, owner string, fn func(context.Context, *sqlx.Conn) (reply, error)) (reply, error) {
	switch ok, err := s.rowWaits.enterFirst(ctx, name, s.slots(firstGrantWaits)); {
	case err != nil:
		return reply{}, NotSent{err}
	case !ok:
		return reply{answer: answerLocked, sent: time.Now()}, nil
	}
	own, cancel := context.WithTimeout(s.lifetime, s.firstGrantTimeout())
	began := time.Now()
	var dead atomic.Bool
	return s.detach(ctx, own, cancel, false, func(ctx context.Context, conn *sqlx.Conn) (reply, error) {
		executing, stop := context.WithCancel(own)
		defer stop()
		s.detached.Go(func() {
			if s.findsDead(executing, owner) {
				dead.Store(true)
				cancel()
			}
		})
		return fn(ctx, conn)
	}, func(sent bool, err error) {
		if sent && isTimeout(err) && !dead.Load() {
			s.leaveAfter(name, began, owner)
		} else {
			s.rowWaits.leave(name)
		}
	})
}

// firstGrantTimeout limits a first grant. A pool of one connection has no other one on which findsDead
// could find out that it is dead.
func (s *Store) firstGrantTimeout() time.Duration {
	if s.db.Stats().MaxOpenConnections == 1 {
		return min(s.onlyConnTimeout, LockWaitTimeout)
	}
	return LockWaitTimeout
}

// findsDead checks, until ctx ends, whether the server executes the statement of owner, which was sent.
// If two successive checks do not find it, the connection is dead, and findsDead returns true.
func (s *Store) findsDead(ctx context.Context, owner string) bool {
	ticker := time.NewTicker(waitCheckInterval)
	defer ticker.Stop()
	for missed := 0; missed < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if executes, err := s.executes(ctx, owner); err != nil || executes {
			missed = 0
		} else {
			missed++
		}
	}
	return ctx.Err() == nil
}

// leaveAfter frees the slot of a first grant that was cut off, for example in a pool of one connection, when the
// server no longer executes its statement.
func (s *Store) leaveAfter(name string, began time.Time, owner string) {
	background.AfterFunc(waitCheckInterval, func() time.Duration {
		executes, err := s.executes(s.lifetime, owner)
		if (err != nil || executes) && s.lifetime.Err() == nil && time.Since(began) < LockWaitTimeout {
			return waitCheckInterval
		}
		s.rowWaits.leave(name)
		return 0
	})
}

// executes reports whether the server executes a statement with the owner id.
func (s *Store) executes(ctx context.Context, owner string) (executes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, waitCheckInterval)
	defer cancel()
	err = s.getReserved(ctx, &executes, "executes", "owner", literal(owner))
	return executes, err
}

// acquireCommand fills in a statement with a request. r qualifies the row's columns.
func (s *Store) acquireCommand(req AcquireRequest, statement, r string) command {
	return s.command(statement, "name", literal(req.Name), "owner", literal(req.Owner), "replaced", req.replaced(r),
		"label", s.labelOf(req.Holder), "lease", micros(req.Lease), "enlist", req.enlist(), "dead", req.dead.String(), "r", r)
}

// replaced returns the condition for the row whose owner a request replaces. r qualifies its columns.
func (req AcquireRequest) replaced(r string) string {
	condition := r + "owner = " + literal(req.Replaces)
	if req.Replaced == 0 {
		return condition
	}
	return condition + " AND " + r + "token = " + strconv.FormatUint(req.Replaced, 10)
}

// labelOf returns the literal of what operators see as the holder: that of this process if holder is
// "".
func (s *Store) labelOf(holder string) string {
	if holder == "" {
		return s.label
	}
	return literal(holder)
}

// Probe returns what blocks the claim's statement, which is in flight. It does not wait for
// the row lock.
func (s *Store) Probe(ctx context.Context, c Claim) (state RowState, err error) {
	var found struct{ Held, Unlocked bool }
	err = s.getReserved(ctx, &found, "probe", "name", literal(c.Name), "owner", literal(c.Owner))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// A first grant waits only for other statements: a Purge, another first grant.
		if executes, err := s.executes(ctx, c.Owner); err != nil || !executes {
			return RowFree, err
		}
		return RowHeld, nil
	case err != nil:
		return RowFree, err
	}
	if found.Held {
		state |= RowHeld
	}
	if !found.Unlocked {
		state |= RowLocked
	}
	return state, nil
}
