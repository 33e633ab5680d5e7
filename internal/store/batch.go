package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// A BatchRequest is the argument of AcquireAll.
type BatchRequest struct {
	Names  []string // of locks: sorted, without duplicates, at most BatchSize
	Owner  string   // the owner id of each claim, which is unique only together with the name
	Holder string   // label for operators; "" for that of the process
	Lease  time.Duration
}

// Claims returns the claims of the first n names.
func (req BatchRequest) Claims(n int) []Claim {
	claims := make([]Claim, n)
	for i, name := range req.Names[:n] {
		claims[i] = Claim{name, req.Owner}
	}
	return claims
}

// A BatchGrant is the result of AcquireAll.
type BatchGrant struct {
	Granted  int     // how many names were granted, from the first one on
	Token    uint64  // the token of each of them
	Unwanted []Claim // granted, but behind a name that was not; the caller must release them
	Sent     time.Time
}

// ReleasedBy reports whether the row is unchanged since the release of the claim.
func (r Row) ReleasedBy(c Claim) bool { return r.Owner == released(c.Owner) }

// answerPart means that a batch has taken some of its rows. The others were locked, or have just been
// added or taken. The batch may also be a copy, sent by a proxy, of the statement that took the rows.
const answerPart = 1

// AcquireAll acquires the names in order, in exclusive mode, up to the first that it cannot take: one
// that is not free, for which others wait, that a session may keep, or that was ever held shared. The
// caller must acquire that one with Acquire, because AcquireAll joins no wait queue. For each name
// granted, HoldEnded must be called once.
//
// It sends two statements if all names are free. It waits in the server only for statements that add
// a row. After an error with an unknown outcome, any of the names may be granted.
func (s *Store) AcquireAll(ctx context.Context, req BatchRequest) (g BatchGrant, err error) {
	for n := len(req.Names); n > 0; n /= 2 { // if a locked row makes it take none, try fewer
		var existing []string
		var r reply
		all := true
		err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
			n, existing, err = s.lookAll(ctx, conn, req.Names[:n])
			if err != nil || n == 0 || len(existing) < n {
				return err
			}
			r, all, err = s.takeAll(ctx, conn, s.batchCommand("take_all", req.requests(n), existing), n)
			return err
		})
		if err == nil && len(existing) < n {
			r, err = s.firstGrant(ctx, req.Claims(n)[0].Name, req.Claims(n), s.batchCommand("insert_all", req.requests(n), existing))
			all = r.answer != answerPart
		}
		if err != nil {
			return BatchGrant{}, err
		}
		g.Sent = r.sent
		switch {
		case isToken(r.answer) && all:
			g.Granted, g.Token = n, uint64(r.answer)
			return g, nil
		case isToken(r.answer):
			return s.keepFirst(ctx, req.Claims(n), r)
		case len(existing) == n:
			return g, nil
		}
	}
	return g, nil
}

// takeAll takes n rows that exist. all means that it skipped none.
func (s *Store) takeAll(ctx context.Context, conn *sqlx.Conn, cmd command, n int) (r reply, all bool, err error) {
	r, err = s.execForAnswer(ctx, conn, cmd)
	if err != nil || r.answer == 0 {
		return r, false, err
	}
	s.holdsBegan(n) // before conn is returned: it may become the reserved one
	return r, r.rows == int64(n) && r.answer != answerPart, err
}

// keepFirst returns the grant of a batch that took only some of the claims. It keeps those before the
// first claim that the batch did not take, or none if the answer has no token.
func (s *Store) keepFirst(ctx context.Context, claims []Claim, r reply) (BatchGrant, error) {
	owned, err := s.Owned(ctx, claims)
	if err != nil {
		owned = nil
	}
	kept := 0
	for r.answer != answerPart && kept < len(owned) && owned[kept] == claims[kept] {
		kept++
	}
	for range len(claims) - kept {
		s.HoldEnded()
	}
	if err != nil {
		// Not wrapped: the outcome is unknown, whatever the class of err.
		return BatchGrant{}, fmt.Errorf("some of the locks were taken, and which is unknown: %v", err)
	}
	return BatchGrant{Granted: kept, Token: uint64(r.answer), Unwanted: owned[kept:], Sent: r.sent}, nil
}

// lookAll returns how many of the names, from the first one on, a batch may take, and which of these
// have a row.
func (s *Store) lookAll(ctx context.Context, conn *sqlx.Conn, names []string) (n int, existing []string, err error) {
	var rows []struct {
		Name string
		Free bool
	}
	err = s.selectAll(ctx, conn, &rows, "look_all", "name", literals(names), "count", strconv.Itoa(len(names)), "r", "p.")
	free := make(map[string]bool, len(rows))
	for _, row := range rows {
		free[row.Name] = row.Free
	}
	for i, name := range names {
		switch isFree, exists := free[name]; {
		case isFree:
			existing = append(existing, name)
		case exists:
			return i, existing, err
		}
	}
	return len(names), existing, err
}

// requests returns the requests for the first n names.
func (req BatchRequest) requests(n int) []AcquireRequest {
	reqs := make([]AcquireRequest, n)
	for i, c := range req.Claims(n) {
		reqs[i] = AcquireRequest{Claim: c, Holder: req.Holder, Lease: req.Lease}
	}
	return reqs
}

// batchCommand returns a statement that takes the names of requests, which must differ. existing has
// the names that have a row. Unless the requests have the same owner, it must have all names or none.
func (s *Store) batchCommand(statement string, reqs []AcquireRequest, existing []string) command {
	names := "NULL"
	if len(existing) > 0 {
		names = literals(existing)
	}
	owners, labels, leases := make([]string, len(reqs)), make([]string, len(reqs)), make([]string, len(reqs))
	for i, req := range reqs {
		owners[i], labels[i], leases[i] = literal(req.Owner), s.labelOf(req.Holder), micros(req.Lease)
	}
	values := []string{"owner", "", "label", "", "lease", ""}
	rows := make([]string, len(reqs))
	for i, req := range reqs {
		rows[i] = "SELECT " + literal(req.Name) + " AS name"
	}
	position := "0"
	for i, column := range [][]string{owners, labels, leases} {
		switch {
		case allEqual(column):
			values[2*i+1] = column[0]
		case statement == "take_all":
			position = "FIELD(p.name, " + names + ")"
			values[2*i+1] = "ELT(mine.i, " + strings.Join(column, ",") + ")"
		default:
			values[2*i+1] = "k." + values[2*i]
			for j := range rows {
				rows[j] += ", " + column[j] + " AS " + values[2*i]
			}
		}
	}
	return s.command(statement, append(values, "name", names, "count", strconv.Itoa(len(existing)), "rows", strings.Join(rows, " UNION ALL "),
		"owners", strings.Join(slices.Compact(owners), ","), "i", position,
		"plain", s.query("fragments/plain", "r", "p."), "r", s.name+".")...)
}

func allEqual(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return v != values[0] })
}
