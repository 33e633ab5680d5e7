package store

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// A MinHold is the minimum time for which a row stays taken: until Held has passed since it was
// acquired, by the database's clock, and until Until, by the clock of this process. The zero value
// means that there is no minimum.
type MinHold struct {
	Held  time.Duration
	Until time.Time
}

// left returns the time left until Until, or 0.
func (m MinHold) left() time.Duration {
	if m.Until.IsZero() {
		return 0
	}
	return max(0, time.Until(m.Until))
}

// ReleaseAfter is Release for a row that stays taken for a minimum time. If that time has passed, it
// frees the row. Otherwise the row belongs to nobody, is bound to no session, and becomes free when
// the time has passed; only ForceUnlock, or a copy of this statement, can change that. In both cases
// the caller must signal next, so that this process learns how long the row stays taken.
func (s *Store) ReleaseAfter(ctx context.Context, c Claim, m MinHold) (freed bool, next Process, err error) {
	reserved := s.locksHeld() == 1 && ctx.Value(notHeldKey{}) == nil
	r, err := s.writeRow(ctx, c, reserved, nil, "release_after",
		"name", literal(c.Name), "owner", literal(c.Owner), "kept", literal(kept(c.Owner)), "released", literal(released(c.Owner)),
		"held", micros(m.Held), "left", micros(m.left()), "r", "l.")
	if err != nil || r.answer == 0 {
		return false, 0, err
	}
	next = r.next()
	if queue := QueueOf(c.Name); queue != c.Name {
		if rows, _, err := s.Look(ctx, []string{queue}); err == nil { // otherwise the waiters poll
			next = rows[queue].Next
		}
	}
	return true, next, nil
}

// KeepShared keeps a name shared for the minimum time of one of the holds that use c, while other
// holds of this process still use c. It adds a row that belongs to nobody. wasKept is false if c does
// not own its row, or if the statement was killed. id must come from NewOwnerID; a repetition with the
// same id adds no further row. KeepShared waits at most a second for a locked row.
func (s *Store) KeepShared(ctx context.Context, c Claim, id, holder string, m MinHold) (wasKept bool, err error) {
	row := AcquireRequest{Claim: Claim{NameOf(c.Name), kept(id)}}
	err = s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		for try := range sharedTries {
			r, err := s.execForAnswer(ctx, conn, s.command("keep_shared",
				"name", literal(row.Name), "key", literal(s.rowOf(row, try)), "owner", literal(row.Owner), "label", s.labelOf(holder),
				"part", literal(c.Name), "part owner", literal(c.Owner), "held", micros(m.Held), "left", micros(m.left()), "dead", "0"))
			if wasKept = r.answer > 0; err != nil || r.answer >= 0 {
				return err
			}
		}
		return NotSent{ErrRowLocked}
	})
	return wasKept, err
}

// kept returns the owner id that ReleaseAfter writes to a row that stays taken.
func kept(owner string) string { return "+" + owner[1:] }

// NewTicketID returns the owner id for a row that is detached from its process. It begins with an at
// sign, so operators can distinguish it from the ids of holders.
func NewTicketID(p Process) string { return "@" + NewOwnerID(p)[1:] }

// IsTicketID reports whether an owner id has the form of NewTicketID.
func IsTicketID(id string) bool { return ticketID.MatchString(id) }

var ticketID = regexp.MustCompile(`^@[0-9]{18}-[0-9a-v]{13}$`)

// A DetachRequest is the argument of Detach.
type DetachRequest struct {
	Claim
	Ticket string        // the new owner id, from NewTicketID
	Lease  time.Duration // how long the row stays held from now on
	Age    time.Duration // how long ago the lock was acquired, if no statement acquired it; otherwise 0
}

// Detach makes a ticket the owner of the claim's row. The token does not change. From then on, no
// statement of the claim, such as a late renewal, matches the row. Detach waits for a locked row as
// Release does. If it is repeated while the new lease runs, it extends that lease. The caller must
// signal next, as after ReleaseAfter.
func (s *Store) Detach(ctx context.Context, req DetachRequest) (detached bool, next Process, sent time.Time, err error) {
	age := req.Age
	if age > 0 {
		age = max(age, time.Microsecond)
	}
	r, err := s.writeRow(ctx, req.Claim, s.locksHeld() == 1, nil, "detach",
		"name", literal(req.Name), "owner", literal(req.Owner), "ticket", literal(req.Ticket), "lease", micros(req.Lease), "age", micros(age), "r", "l.")
	return r.answer > 0, r.next(), r.sent, err
}

// An AttachRequest is the argument of Attach.
type AttachRequest struct {
	Claim         // the new one
	Ticket string // the owner id that the new claim replaces
	Holder string // label for operators; "" for that of the process
	Lease  time.Duration
}

// ErrTicketExpired means that the lease of a ticket has ended.
var ErrTicketExpired = errors.New("the lease of the ticket has ended")

// Attach makes a claim the owner of a ticket's row, if the ticket's lease runs. The grant has the
// token of the row, and HoldEnded must be called for it once. A grant without a token means that the
// statement did not match the row, because it has another owner or the statement was killed. If the
// lease has ended, so that nobody can attach the row any more, Attach returns ErrTicketExpired. It
// waits for a locked row as Release does.
func (s *Store) Attach(ctx context.Context, req AttachRequest) (g Grant, err error) {
	r, err := s.writeRow(ctx, req.Claim, false, func() { s.holdsBegan(1) }, "attach",
		"name", literal(req.Name), "owner", literal(req.Owner), "ticket", literal(req.Ticket), "lease", micros(req.Lease), "label", s.labelOf(req.Holder))
	switch {
	case err != nil:
		return Grant{Claim: req.Claim}, err
	case r.answer < 0:
		return Grant{}, ErrTicketExpired
	case r.answer > 0:
		g.Token, g.Claim = uint64(r.answer), req.Claim
	}
	g.Sent = r.sent
	return g, nil
}

// writeRow executes a statement with {skip} that writes the row of one claim. It waits while a
// transaction has the row locked, but returns ErrRowLocked if this process already waits for that
// row, or for too many rows. The answer is 0 if no row matched. If granted is not nil, it is called
// after a positive answer.
func (s *Store) writeRow(ctx context.Context, c Claim, reserved bool, granted func(), statement string, pairs ...string) (r reply, err error) {
	send := func(ctx context.Context, conn *sqlx.Conn, skip string) (err error) {
		r, err = s.execForAnswer(ctx, conn, s.command(statement, slices.Concat(pairs, []string{"skip", skip})...))
		if err == nil && r.answer > 0 && granted != nil {
			granted() // before conn is returned: it may become the reserved one
		}
		return err
	}
	err = s.writeOwned(ctx, c, reserved, func() (bool, error) {
		err := s.run(ctx, reserved || s.poolShort(), func(ctx context.Context, conn *sqlx.Conn) error { return send(ctx, conn, skipLocked) })
		return r.answer != 0, err
	}, func(ctx context.Context, conn *sqlx.Conn) error { return send(ctx, conn, "") })
	return r, err
}
