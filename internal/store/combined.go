package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

type (
	combinedTake    = combined[AcquireRequest, Grant]
	combinedRelease = combined[Claim, freedRow]
)

// A freedRow is the answer to a release.
type freedRow struct {
	freed bool
	next  Process
}

// initCombiners prepares the combiners of a new Store.
func (s *Store) initCombiners() {
	s.takes = combiner[AcquireRequest, Grant]{
		store: s, name: func(req AcquireRequest) string { return req.Name }, send: s.takeCombined,
	}
	s.releases = combiner[Claim, freedRow]{
		store: s, reserved: true, name: func(c Claim) string { return c.Name }, send: s.releaseCombined,
	}
}

// combinable reports whether a request may share a statement with others. Those that wait, or
// continue an earlier request, have their own.
func (s *Store) combinable(req AcquireRequest) bool {
	return req.Mode == Exclusive && req.Replaces == "" && req.EnlistAs == 0 && !req.Claimed && !req.absent && !s.sharedNames.has(req.Name)
}

// errAbsent is errAlone for a request whose name had no row.
var errAbsent = errors.New("not combined, no row")

// takeCombined takes the rows of a batch that are free, in one statement. Most of those that it did
// not take are refused by a read:
//
//	row                                        the request is
//	taken                                      granted
//	another holder's lease runs                refused, if the read found all that were taken
//	missing                                    sent again with others that are: see insertCombined
//	locked, reserved, bound, shared, and so on sent on its own
//
// A request that is sent on its own recognizes a grant that the read has missed.
func (s *Store) takeCombined(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
	slices.SortFunc(batch, func(a, b *combinedTake) int { return strings.Compare(a.request.Name, b.request.Name) })
	reqs, names := requestsOf(batch)
	sent := time.Now()
	taken, token, err := s.execForBoth(ctx, conn, s.batchCommand(sqlTakeAll, reqs, names))
	if err != nil {
		return err
	}
	if taken == int64(len(batch)) {
		s.holdsBegan(len(batch)) // before conn is returned: it may become the reserved one
		s.grantCombined(batch, uint64(token), sent)
		return nil
	}
	rows, err := s.lookTaken(ctx, conn, names)
	if err != nil {
		return errAlone
	}
	var granted, others, missing []*combinedTake
	for _, r := range batch {
		switch row, found := rows[r.request.Name]; {
		case !found:
			missing = append(missing, r)
		case row.Owner == r.request.Owner:
			granted = append(granted, r)
		default:
			others = append(others, r)
		}
	}
	s.holdsBegan(len(granted))
	for _, r := range granted {
		s.grantCombined([]*combinedTake{r}, rows[r.request.Name].Token, sent)
	}
	for _, r := range others {
		left := rows[r.request.Name].Micros
		if left > 0 && int64(len(granted)) == taken {
			s.takes.answer(r, Grant{Remaining: duration(left)}, nil)
		} else {
			s.takes.answer(r, Grant{}, errAlone)
		}
	}
	switch {
	case len(missing) == 1:
		return errAbsent
	case len(missing) > 0:
		ctx, cancel := context.WithTimeout(s.lifetime, LockWaitTimeout)
		s.takes.move(missing, cancel)
		s.detached.Go(func() {
			defer cancel()
			s.insertCombined(ctx, missing)
		})
	}
	return nil
}

// insertCombined takes names that had no row.
func (s *Store) insertCombined(ctx context.Context, batch []*combinedTake) {
	err := ErrPanic
	defer func() {
		for _, r := range batch {
			s.takes.answer(r, Grant{}, err)
		}
	}()
	reqs, names := requestsOf(batch)
	claims := make([]Claim, len(reqs))
	for i, req := range reqs {
		claims[i] = req.Claim
	}
	answer, sent, err := s.firstGrant(ctx, names[0], claims, s.batchCommand(sqlInsertAll, reqs, nil))
	switch {
	case err != nil:
	case answer == answerPart:
		for range batch {
			s.HoldEnded()
		}
	case isToken(answer):
		s.grantCombined(batch, uint64(answer), sent)
	}
	if err == nil {
		err = errAlone
	}
}

// grantCombined answers requests whose rows were taken, and for each of which a hold has begun. It
// releases those whose calls have ended.
func (s *Store) grantCombined(batch []*combinedTake, token uint64, sent time.Time) {
	var unwanted []Claim
	for _, r := range batch {
		if !s.takes.answer(r, Grant{Token: token, Claim: r.request.Claim, Sent: sent}, nil) {
			unwanted = append(unwanted, r.request.Claim)
			s.HoldEnded()
		}
	}
	if len(unwanted) > 0 { // if that fails, or comes too early, the caller's undo remains
		s.detached.Go(func() {
			ctx, cancel := context.WithTimeout(s.lifetime, time.Second)
			defer cancel()
			s.ReleaseAll(ctx, unwanted)
		})
	}
}

func requestsOf(batch []*combinedTake) (reqs []AcquireRequest, names []string) {
	for _, r := range batch {
		reqs, names = append(reqs, r.request), append(names, r.request.Name)
	}
	return reqs, names
}

// A takenRow is what lookTaken reads of a row.
type takenRow struct {
	Name, Owner string
	Token       uint64
	Micros      int64
}

func (s *Store) lookTaken(ctx context.Context, conn *sqlx.Conn, names []string) (map[string]takenRow, error) {
	var found []takenRow
	s.statements.Add(1)
	err := conn.SelectContext(ctx, &found, s.query(sqlLookTaken, "names", literals(names), "count", strconv.Itoa(len(names))))
	rows := make(map[string]takenRow, len(found))
	for _, row := range found {
		rows[row.Name] = row
	}
	return rows, err
}

// releaseCombined releases the rows of a batch, in one statement. If it did not release all, or
// others wait, a read finds out which:
//
//	owner in the row        released
//	released id             yes
//	the claim               no: the row was locked; the release is sent on its own
//	another, or row missing yes, and taken since, if the statement has released as many rows
//	another, or row missing no, if it has not: at least one of these locks was lost before
//
// So a lost lock is never reported as released.
func (s *Store) releaseCombined(ctx context.Context, conn *sqlx.Conn, batch []*combinedRelease) error {
	claims := make([]Claim, len(batch))
	for i, r := range batch {
		claims[i] = r.request
	}
	n, next, err := s.freeOn(ctx, conn, s.releaseAllCommand(claims))
	if err != nil {
		return err
	}
	all := n == int64(len(batch))
	if all {
		s.endWaits(claims, false)
	}
	var rows map[string]Row
	if !all || next != 0 {
		if rows, _, err = s.lookOn(ctx, conn, Names(claims)); err != nil && !all {
			return PartlySent{err}
		}
	}
	left := n // released, and not found in that state
	for _, c := range claims {
		if rows[c.Name].ReleasedBy(c) {
			left--
		}
	}
	taken := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool {
		return rows[c.Name].ReleasedBy(c) || rows[c.Name].Owner == c.Owner
	})
	for _, r := range batch {
		switch row := rows[r.request.Name]; {
		case all, row.ReleasedBy(r.request):
			a := freedRow{freed: true}
			if row.ReleasedBy(r.request) {
				a.next = row.Next
			} else if err != nil {
				a.next, next = next, 0
			}
			s.releases.answer(r, a, nil)
		case row.Owner == r.request.Owner:
			s.releases.answer(r, freedRow{}, errAlone)
		default:
			s.releases.answer(r, freedRow{freed: left == int64(len(taken))}, nil)
		}
	}
	return nil
}
