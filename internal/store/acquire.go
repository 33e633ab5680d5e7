package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

func (t *Store) Acquire(ctx context.Context, b AcquireRequest) (g Grant, err error) {
	var answer int64
	err = t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		take := t.takeUnlocked
		if t.rowWaits.enter(acquireWaits, b.Name, t.acquireSlots()) {
			take = t.takeInSlot
		}
		answer, g.Sent, err = take(ctx, conn, b)
		if err == nil && answer > 0 {
			t.granted() // before conn goes back: it may stay as the spare
		}
		return err
	})
	if err == nil && answer == answerAbsent {
		answer, g.Sent, err = t.takeFirst(ctx, b)
	}
	switch {
	case err != nil:
		return Grant{}, err
	case answer > 0:
		g.Token = uint64(answer)
	case answer == answerLocked:
		g.Locked = true
	case answer == answerReserved:
		g.Remaining, g.Reserved = ReservedFor, true
	case answer < 0:
		g.Remaining = duration(-answer)
	case b.Replaces == "":
		return Grant{}, ErrAutocommit
	}
	return g, nil
}

// reserved is the answer of a row that nobody holds but which is kept for
// another waiter.
const answerReserved = -1 << 62

// locked is the answer of a row that nobody holds but which a transaction has
// locked.
const answerLocked = answerReserved + 1

// absent is the answer where there is no row.
const answerAbsent = answerReserved + 2

// take acquires by statements that wait for the row if a transaction has it
// locked.
func (t *Store) take(ctx context.Context, conn *sqlx.Conn, b AcquireRequest) (answer int64, sent time.Time, err error) {
	ask := command{text: t.acquireText(b, sqlTakeOrEnlist, "")}
	var first command
	switch {
	case b.Replaces != "":
		first.text = t.acquireText(b, sqlReplace, "")
	case b.EnlistAs != 0:
		first = ask
	default:
		first = command{t.acquireText(b, sqlTake, ""), t.preparedTake, []any{b.Owner, b.Lease.Microseconds(), hex.EncodeToString([]byte(b.Name)), b.Owner}}
	}
	answer, sent, err = t.ask(ctx, conn, first)
	if err == nil && answer == -1 {
		answer, sent, err = t.ask(ctx, conn, ask)
	}
	if answer == 0 && b.Replaces == "" {
		answer = answerAbsent
	}
	return answer, sent, err
}

// takeInPlace is take with a place in rowWaits, which it gives up if the
// statement cannot have been left in the server.
func (t *Store) takeInSlot(ctx context.Context, conn *sqlx.Conn, b AcquireRequest) (answer int64, sent time.Time, err error) {
	left := false
	defer func() {
		if !left {
			t.rowWaits.leave(acquireWaits, b.Name)
		}
	}()
	answer, sent, err = t.take(ctx, conn, b)
	if err != nil && ctx.Err() != nil {
		left, err = true, &abandonedWait{err, b.Claim, acquireWaits}
	}
	return answer, sent, err
}

// takeUnlocked acquires by statements that wait for nobody.
func (t *Store) takeUnlocked(ctx context.Context, conn *sqlx.Conn, b AcquireRequest) (answer int64, sent time.Time, err error) {
	forMe, unlisted := t.query(sqlForMe, "r", "p."), t.query(sqlUnlisted, "r", "l.")
	if b.Replaces != "" {
		forMe, unlisted = "p.owner = "+literal(b.Replaces), "l.waiters"
	}
	forMe = "(" + forMe + " OR p.owner = " + literal(b.Owner) + ")"
	answer, sent, err = t.ask(ctx, conn, command{text: func() string {
		return t.query(sqlTakeUnlocked, "name", literal(b.Name), "owner", literal(b.Owner), "label", t.label, "lease", micros(b.Lease),
			"forMe", forMe, "unlisted", unlisted)
	}})
	if err != nil || answer != 0 {
		return answer, sent, err
	}
	if b.Replaces != "" {
		return 0, sent, NotSent{ErrRowLocked} // or taken away: without a place, that is not known
	}
	var why struct {
		Answer                   int64
		Autocommit, Mine, Listed bool
	}
	t.statements.Add(1)
	err = conn.GetContext(ctx, &why, t.query(sqlWhyNot, "name", literal(b.Name)))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return answerAbsent, sent, nil
	case err != nil:
		return 0, sent, err
	case !why.Autocommit:
		return 0, sent, nil
	case why.Mine:
		return answerLocked, sent, nil
	case b.EnlistAs != 0 && !why.Listed:
		_, _, err = t.ask(ctx, conn, command{text: t.acquireText(b, sqlEnlist, "")})
	}
	return why.Answer, sent, err
}

// takeFirst acquires a lock that has no row yet. Its statement also needs the
// high-water row and a gap in the index, which a transaction may have locked; what
// it waits for cannot be told from outside. So it is not cut off: it runs to its
// end with its connection, and as many others wait for a place here, not in the
// server.
func (t *Store) takeFirst(ctx context.Context, b AcquireRequest) (answer int64, sent time.Time, err error) {
	most := max(1, t.acquireSlots())
	switch ok, err := t.rowWaits.enterFirst(ctx, b.Name, most); {
	case err != nil:
		return 0, sent, NotSent{err}
	case !ok:
		return answerLocked, time.Now(), nil
	}
	var mu sync.Mutex // guards the following
	granted, gone := false, false
	own, cancel := context.WithTimeout(t.lifetime, LockWaitTimeout)
	began := time.Now()
	answer, err = detach(ctx, t, own, cancel, false, func(ctx context.Context, conn *sqlx.Conn) (answer int64, err error) {
		answer, sent, err = t.ask(ctx, conn, command{text: t.acquireText(b, sqlInsert, t.name+".")})
		mu.Lock()
		defer mu.Unlock()
		granted = answer > 0 && !gone
		switch {
		case granted:
			t.granted()
		case answer > 0: // nobody wants it any more
			_, _, err = t.freeOn(ctx, conn, t.releaseCommand(b.Claim))
		}
		return answer, err
	}, func(sent bool, err error) {
		t.leaveSlot(firstGrantWaits, b.Name, began, sent && isTimeout(err))
	})
	mu.Lock()
	defer mu.Unlock()
	gone = true
	if err != nil && granted {
		t.HoldEnded()
	}
	return answer, sent, err
}

// bidding puts a bid into a statement; r qualifies the columns of the row.
func (t *Store) acquireText(b AcquireRequest, statement, r string) func() string {
	return func() string {
		list := "x''"
		if b.EnlistAs != 0 {
			list = b.EnlistAs.literal()
		}
		return t.query(statement, "name", literal(b.Name), "owner", literal(b.Owner), "from", literal(b.Replaces),
			"label", t.label, "lease", micros(b.Lease), "list", list, "r", r)
	}
}

// acquirePlaces is how many acquiring statements may wait in the server for
// locked rows, each for another one. A small pool spares none: its connections
// are needed for what is held.
func (t *Store) acquireSlots() int {
	limit := t.db.Stats().MaxOpenConnections
	if limit == 0 {
		return maxSlots
	}
	return min(limit/4, maxSlots)
}

const maxSlots = 8

func (t *Store) Probe(ctx context.Context, c Claim) (state RowState, err error) {
	var found struct{ Held, Unlocked bool }
	err = t.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.GetContext(ctx, &found, t.query(sqlProbe, "name", literal(c.Name), "owner", literal(c.Owner)))
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return RowHeld, nil // a first grant waits for nothing but others: a Purge, another first grant
	case err != nil:
		return RowFree, err
	case found.Held && !found.Unlocked:
		return rowHeldLocked, nil
	case found.Held:
		return RowHeld, nil
	case !found.Unlocked:
		return RowLocked, nil
	}
	return RowFree, nil
}
