package store

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
)

// maxClaimWait is the longest pause before a request that has claimed a name is sent again. It is
// well below ClaimLease.
const maxClaimWait = time.Second

// claim acquires, exclusively, a name that may be held shared. It claims the name's row, and then
// promotes the claim to a hold if no shared hold is left. It never waits for a guard.
func (s *Store) claim(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, skip string) (r reply, err error) {
	s.sharedNames.set(req.Name, true)
	if !req.MayClaim && !req.Claimed {
		left, err := s.sharedLeft(ctx, conn, &req)
		if err == nil && left > 0 && req.EnlistAs != 0 {
			err = s.enlist(ctx, conn, req)
		}
		if err != nil || left > 0 {
			return reply{answer: -left.Microseconds(), sent: time.Now()}, err
		}
	}
	claimed := req.Claimed
	r, err = s.claimAndPromote(ctx, conn, req, skip, &claimed)
	switch {
	case err != nil && claimed:
		err = PartlySent{err}
	case err == nil && isToken(r.answer):
		s.sharedNames.remove(req.Name) // its mode is 0 now
	case err == nil && claimed && !req.MayClaim && !req.Claimed:
		r.answer, err = s.abandonClaim(ctx, conn, req.Claim, r.answer)
	}
	if err == nil && isClaimed(r.answer) {
		s.waits.set(req.Name, 1)
	} else {
		s.waits.remove(req.Name)
	}
	return r, err
}

// claimAndPromote sends the statements of claim. It sets *claimed when the request has claimed the
// name.
func (s *Store) claimAndPromote(ctx context.Context, conn *sqlx.Conn, req AcquireRequest, skip string, claimed *bool) (r reply, err error) {
	const maxTries = 3
	claim, promote := s.claimCommand(req, "claim", skip), s.claimCommand(req, "promote", skip)
	for try, mine := 1, req.Claimed; try <= maxTries; try++ {
		if !mine {
			r, err = s.execForAnswer(ctx, conn, claim)
			if err == nil && r.answer == 0 {
				r.answer, err = s.whyNothing(ctx, conn, req, skip)
			}
			if r.answer == answerLocked && *claimed {
				r.answer = answerClaimedLocked // by an earlier try, whose claim may still be there
			}
			if err != nil || r.answer != answerClaimed {
				return r, err
			}
			mine, *claimed = true, true
		}
		r, err = s.execForAnswer(ctx, conn, promote)
		switch {
		case Contended(err) && rejected(errorNumber(err)), err == nil && r.answer == 0:
			mine = false // the row is locked, or the claim has ended
		case err == nil && r.answer == answerLocked:
			r.answer = answerClaimedLocked
			return r, nil
		case err == nil && r.answer == answerClaimed:
			left, err := s.sharedLeft(ctx, conn, &req)
			if err != nil || left > 0 {
				r.answer -= left.Microseconds()
				return r, err
			}
		default:
			return r, err
		}
	}
	r.answer = answerClaimedLocked
	return r, nil
}

// claimCommand fills in claim.sql or promote.sql with a request.
func (s *Store) claimCommand(req AcquireRequest, statement, skip string) command {
	return s.command(statement, append(sharedKeys(req.Name), "name", literal(req.Name), "owner", literal(req.Owner), "released", literal(released(req.Owner)),
		"label", s.labelOf(req.Holder), "lease", micros(req.Lease), "claimLease", micros(ClaimLease), "enlist", req.enlist(), "dead", req.dead.String(), "skip", skip, "r", "p.")...)
}

// sharedKeys returns the placeholders {first} and {last}: the keys of a name's shared holds lie
// between them.
func sharedKeys(name string) []string {
	return []string{"first", literal(name + sharedSuffix), "last", literal(name + semaphoreSuffix)}
}

// sharedLeft returns how long it takes until the first shared hold of a name may end, but at most
// maxClaimWait, or 0 if the name is not held shared. It ends the holds that are over.
func (s *Store) sharedLeft(ctx context.Context, conn *sqlx.Conn, req *AcquireRequest) (left time.Duration, err error) {
	var holds []sharedHold
	if err := s.selectAll(ctx, conn, &holds, "shared_holds", sharedKeys(req.Name)...); err != nil {
		return 0, err
	}
	for _, h := range holds {
		rest := duration(h.Micros)
		if rest <= 0 {
			if rest, err = s.endShared(ctx, conn, req, h); err != nil {
				return 0, err
			}
		}
		if rest > 0 && (left == 0 || rest < left) {
			left = rest
		}
	}
	return min(left, maxClaimWait), nil
}

type sharedHold struct {
	Name, Owner string
	Session     SessionID
	Micros      int64
}

// endShared ends a shared hold whose lease has expired, unless its session is alive. If it does not
// end the hold, left is positive.
func (s *Store) endShared(ctx context.Context, conn *sqlx.Conn, req *AcquireRequest, h sharedHold) (left time.Duration, err error) {
	if h.Session != 0 && h.Session != req.dead {
		row := AcquireRequest{Claim: Claim{h.Name, h.Owner}}
		answer, over, err := s.checkSession(ctx, conn, &row, h.Session)
		if err != nil || !over {
			return max(duration(-answer), time.Microsecond), err
		}
		req.dead = row.dead
	}
	ended, err := s.execForAnswer(ctx, conn, s.command("end_shared",
		"name", literal(h.Name), "owner", literal(h.Owner), "id", h.Session.String()))
	if err == nil && ended.answer == 0 {
		left = time.Millisecond // locked, or extended meanwhile
	}
	return left, err
}

// abandonClaim releases the claim of a request that must not keep it, and signals a process that has
// begun to wait meanwhile. It converts the answer of a claim to that of a refusal.
func (s *Store) abandonClaim(ctx context.Context, conn *sqlx.Conn, c Claim, answer int64) (int64, error) {
	r, err := s.exec(ctx, conn, s.releaseCommand(c))
	if err != nil {
		return 0, PartlySent{err}
	}
	if next := r.next(); next != s.self && next.CanListen() {
		s.exec(ctx, conn, s.command("signal", "id", next.String())) // if it does not listen, it polls
	}
	switch {
	case answer == answerClaimedLocked:
		return answerLocked, nil
	case isClaimed(answer):
		return answer - answerClaimed, nil
	}
	return answer, nil
}
