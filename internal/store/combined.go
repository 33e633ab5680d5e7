package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

type (
	combinedTake    = combinedRequest[AcquireRequest, Grant]
	combinedRelease = combinedRequest[Claim, freedRow]
)

// A freedRow is the answer to a release.
type freedRow struct {
	freed bool
	next  Process
}

func (s *Store) initCombiners() {
	s.takes = combiner[AcquireRequest, Grant]{
		store: s, name: func(req AcquireRequest) string { return req.Name }, send: s.takeCombined,
	}
	s.releases = combiner[Claim, freedRow]{
		store: s, reserved: true, name: func(c Claim) string { return c.Name }, send: s.releaseCombined,
	}
}

// combinable reports whether a request may share a statement with others: it must be exclusive, must
// neither join a wait queue nor continue an earlier request, and its name must not be known to be shared.
func (s *Store) combinable(req AcquireRequest) bool {
	return req.Mode == Exclusive && req.Replaces == "" && req.EnlistAs == 0 && !req.Claimed && !req.absent && !s.sharedNames.get(req.Name)
}

// errAbsent is errAlone for a request whose name had no row. errUnsure is errAlone for a request whose
// row the batch may have taken.
var (
	errAbsent = errors.New("not combined: no row")
	errUnsure = errors.New("not combined: not known whether granted")
)

// takeCombined takes the free rows of a batch with one statement. A read then decides about most of the
// others:
//
//	row                                        the request is
//	taken                                      granted
//	another holder's lease runs                refused
//	missing                                    added with others, or on its own: see insertCombined
//	locked, reserved, bound, shared, and so on sent on its own
//
// If the read does not show as many taken rows as the statement has counted, all other requests are sent
// on their own, and recognize their own grants.
func (s *Store) takeCombined(ctx context.Context, conn *sqlx.Conn, batch []*combinedTake) error {
	slices.SortFunc(batch, func(a, b *combinedTake) int { return strings.Compare(a.request.Name, b.request.Name) })
	reqs, names := requestsOf(batch)
	taken, err := s.execForAnswer(ctx, conn, s.batchCommand("take_all", reqs, names))
	if err != nil {
		return err
	}
	if taken.rows == int64(len(batch)) && taken.answer != answerPart {
		s.holdsBegan(len(batch)) // before conn is returned: it may become the reserved one
		s.grantCombined(batch, uint64(taken.answer), taken.sent)
		return nil
	}
	rows, err := s.lookBatch(ctx, conn, names)
	if err != nil {
		return errUnsure
	}
	return s.answerTakes(batch, rows, taken)
}

// answerTakes answers the requests of a batch that has taken some of its rows.
func (s *Store) answerTakes(batch []*combinedTake, rows map[string]batchRow, taken reply) error {
	var granted, others, missing []*combinedTake
	for _, r := range batch {
		switch row, found := rows[r.request.Name]; {
		case row.Owner == r.request.Owner:
			granted = append(granted, r)
		case found:
			others = append(others, r)
		default:
			missing = append(missing, r)
		}
	}
	s.holdsBegan(len(granted))
	for _, r := range granted {
		s.grantCombined([]*combinedTake{r}, rows[r.request.Name].Token, taken.sent)
	}
	if int64(len(granted)) != taken.rows {
		return errUnsure
	}
	for _, r := range others {
		if left := rows[r.request.Name].Micros; left > 0 {
			s.takes.answer(r, Grant{Remaining: duration(left)}, nil)
		} else {
			s.takes.answer(r, Grant{}, errAlone)
		}
	}
	if len(missing) < 2 {
		return errAbsent
	}
	ctx, cancel := context.WithTimeout(s.lifetime, LockWaitTimeout)
	s.takes.move(missing, cancel)
	s.detached.Go(func() {
		defer cancel()
		s.insertCombined(ctx, missing)
	})
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
	r, err := s.firstGrant(ctx, names[0], claims, s.batchCommand("insert_all", reqs, nil))
	switch {
	case err != nil:
	case r.answer == answerPart:
		for range batch {
			s.HoldEnded()
		}
		err = errUnsure
	case isToken(r.answer):
		s.grantCombined(batch, uint64(r.answer), r.sent)
	default:
		err = errAlone
	}
}

// grantCombined answers requests whose rows were taken, and which are already counted as holds. It
// releases the rows of requests whose calls have ended.
func (s *Store) grantCombined(batch []*combinedTake, token uint64, sent time.Time) {
	var unwanted []Claim
	for _, r := range batch {
		if !s.takes.answer(r, Grant{Token: token, Claim: r.request.Claim, Sent: sent}, nil) {
			unwanted = append(unwanted, r.request.Claim)
			s.HoldEnded()
		}
	}
	if len(unwanted) > 0 { // if this release fails, or comes too early, the caller's undo releases them
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

// A batchRow is what lookBatch reads of a row.
type batchRow struct {
	Name, Owner string
	Token       uint64
	Micros      int64 // left of the row's own lease
	Released    int64 // microseconds since the last release
	Next        Process
}

func (s *Store) lookBatch(ctx context.Context, conn *sqlx.Conn, names []string) (map[string]batchRow, error) {
	var found []batchRow
	err := s.selectAll(ctx, conn, &found, "look_batch", "r", "", "names", literals(names), "count", strconv.Itoa(len(names)))
	rows := make(map[string]batchRow, len(found))
	for _, row := range found {
		rows[row.Name] = row
	}
	return rows, err
}

// releaseCombined releases the rows of a batch with one statement. If it did not release all, or if
// processes wait for some, a read shows for which rows that is so: see releasedOf.
func (s *Store) releaseCombined(ctx context.Context, conn *sqlx.Conn, batch []*combinedRelease) error {
	claims := make([]Claim, len(batch))
	for i, r := range batch {
		claims[i] = r.request
	}
	freed, err := s.exec(ctx, conn, s.releaseAllCommand(claims))
	if err != nil {
		return err
	}
	all := freed.rows == int64(len(batch))
	if all {
		s.endWaits(claims, false)
	}
	var rows map[string]batchRow
	if !all || freed.next() != 0 {
		if rows, err = s.lookBatch(ctx, conn, Names(claims)); err != nil && !all {
			// Not wrapped, so that the caller does not repeat the release: a copy would not match
			// rows that others have taken since.
			return fmt.Errorf("some of the locks were released, and which is unknown: %v", err)
		}
	}
	if err != nil { // only one of the waiting processes is known; the others poll
		rows = map[string]batchRow{claims[0].Name: {Owner: released(claims[0].Owner), Next: freed.next()}}
	}
	states := releasedOf(claims, rows, int(freed.rows), time.Since(freed.sent))
	for i, r := range batch {
		switch {
		case all || states[i] == rowReleased:
			a := freedRow{freed: true}
			if row := rows[r.request.Name]; row.Owner == released(r.request.Owner) {
				a.next = row.Next.Listening()
			}
			s.releases.answer(r, a, nil)
		case states[i] == rowOwned:
			s.releases.answer(r, freedRow{}, errAlone)
		default:
			s.releases.answer(r, freedRow{}, nil)
		}
	}
	return nil
}

// A releaseState is what a batch of releases did to a row.
type releaseState int

const (
	rowLost     releaseState = iota // it had another owner, or was missing
	rowOwned                        // nothing, because it was locked
	rowReleased                     // it was released
)

// releasedOf returns what a batch of releases, which was sent the given time ago and released n rows, did
// to each row.
//
//	owner in the row         last release      state
//	released id of the claim                   released
//	the claim                                  owned
//	another                  before the batch  lost
//	another                  since             released, if the rest of n covers all such rows, or
//	                                           if at the instant of a row of the first line; else lost
//	row missing                                lost
//
// So a lock that was lost is never reported as released.
func releasedOf(claims []Claim, rows map[string]batchRow, n int, within time.Duration) []releaseState {
	states := make([]releaseState, len(claims))
	var since []int // released since the batch was sent, and taken by another
	instant := int64(-1)
	for i, c := range claims {
		switch row, found := rows[c.Name]; {
		case row.Owner == released(c.Owner):
			states[i], instant = rowReleased, row.Released
			n--
		case row.Owner == c.Owner:
			states[i] = rowOwned
		case found && duration(row.Released) <= within:
			since = append(since, i)
		}
	}
	for _, i := range since {
		if len(since) <= n || rows[claims[i].Name].Released == instant {
			states[i] = rowReleased
		}
	}
	return states
}
