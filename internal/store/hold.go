package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

func (t *Store) Renew(ctx context.Context, cs []Claim, lease time.Duration, holds int) (renewed int, sent time.Time, err error) {
	assign := ""
	if holds > 0 {
		assign = "l.holds = " + strconv.Itoa(holds) + ", "
	}
	res, sent, err := t.change(ctx, true, t.command(sqlRenew, append(claimLists(cs), "lease", micros(lease), "holds", assign)...))
	if err != nil {
		return 0, sent, err
	}
	n, err := res.RowsAffected()
	if n == int64(len(cs)) {
		t.endWaits(cs, false)
	}
	return int(n), sent, err
}

func (t *Store) Extend(ctx context.Context, c Claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error) {
	type answer struct {
		mine bool
		sent time.Time
	}
	if t.poolShort() || !t.rowWaits.enter(holdWaits, c.Name, t.holdSlots()) {
		if n, sent, err := t.Renew(ctx, []Claim{c}, lease, holds); n > 0 || err != nil {
			return n > 0, sent, err
		}
		if !t.rowWaits.enter(holdWaits, c.Name, t.holdSlots()) {
			return false, sent, NotSent{ErrRowLocked}
		}
	}
	assign := "holds" // as it is
	if holds > 0 {
		assign = strconv.Itoa(holds)
	}
	cmd := t.command(sqlExtend, "name", literal(c.Name), "owner", literal(c.Owner), "lease", micros(lease), "holds", assign)
	a, err := runInSlot(ctx, t, c, func(ctx context.Context, conn *sqlx.Conn) (answer, error) {
		told, sent, err := t.ask(ctx, conn, cmd)
		return answer{told != 0, sent}, err
	})
	return a.mine, a.sent, err
}

func (t *Store) Release(ctx context.Context, c Claim) (freed bool, next Process, err error) {
	// Renewals need the only connection of a pool, so it must not wait for a locked row.
	only := t.db.Stats().MaxOpenConnections == 1
	if only || t.poolShort() || !t.rowWaits.enter(holdWaits, c.Name, t.holdSlots()) {
		if n, next, err := t.ReleaseAll(ctx, []Claim{c}); n > 0 || err != nil {
			return n > 0, next, err
		}
		if only || !t.rowWaits.enter(holdWaits, c.Name, t.holdSlots()) {
			return false, 0, NotSent{ErrRowLocked}
		}
	}
	// On the caller's goroutine: the switches to another and back would cost a tenth
	// of an uncontended acquire and release.
	kept := false
	var n int64
	err = t.run(ctx, t.holdsOne(), func(ctx context.Context, conn *sqlx.Conn) (err error) {
		n, next, err = t.freeOn(ctx, conn, t.releaseCommand(c))
		if kept = err != nil && ctx.Err() != nil && !errors.Is(err, driver.ErrBadConn); kept {
			err = &abandonedWait{err, c, holdWaits}
		}
		return err
	})
	if !kept {
		t.rowWaits.leave(holdWaits, c.Name)
	}
	return n > 0, next, err
}

func (t *Store) releaseCommand(c Claim) command {
	return command{
		text: func() string {
			return t.query(sqlRelease, "name", literal(c.Name), "owner", literal(c.Owner), "released", literal(released(c.Owner)))
		},
		often: t.preparedRelease, args: []any{hex.EncodeToString([]byte(c.Name)), c.Owner, released(c.Owner)},
	}
}

// released is what sqlFree makes of an owner id.
func released(owner string) string { return "-" + owner[1:] }

func (t *Store) ReleaseAll(ctx context.Context, cs []Claim) (freed int64, next Process, err error) {
	owners := make([]string, 0, 2*len(cs))
	for _, c := range cs {
		owners = append(owners, c.Owner, released(c.Owner))
	}
	freed, next, err = t.free(ctx, true, t.command(sqlReleaseAll,
		"names", literals(Names(cs)), "owners", literals(owners), "count", strconv.Itoa(len(cs)), "r", "l."))
	if freed == int64(len(cs)) {
		t.endWaits(cs, false)
	}
	return freed, next, err
}

func (t *Store) Look(ctx context.Context, names []string) (rows map[string]Row, sent time.Time, err error) {
	err = t.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		rows, sent, err = t.lookOn(ctx, conn, names)
		return err
	})
	return rows, sent, err
}

func (t *Store) lookOn(ctx context.Context, conn *sqlx.Conn, names []string) (rows map[string]Row, sent time.Time, err error) {
	var found []struct {
		Name, Owner string
		Micros      int64
		Heir        Process
		Listed      bool
		Named       bool
		Demoted     bool
	}
	t.statements.Add(1)
	sent = time.Now()
	err = conn.SelectContext(ctx, &found, t.query(sqlLook, "names", literals(names), "count", strconv.Itoa(len(names))))
	if err == nil && len(found) > 0 && found[0].Demoted {
		err = ErrDemoted
	}
	rows = make(map[string]Row, len(found))
	for _, f := range found {
		rows[f.Name] = Row{f.Owner, duration(f.Micros), f.Heir, f.Listed, f.Named}
	}
	return rows, sent, err
}

// StillOwned returns the claims whose rows are still theirs. What a look shows as
// theirs is so, but another owner may be one that is not committed.
func StillOwned(ctx context.Context, repo ownershipReader, claims []Claim) (mine []Claim, err error) {
	rows, _, err := repo.Look(ctx, Names(claims))
	if err != nil {
		return nil, err
	}
	var others []Claim
	for _, c := range claims {
		if rows[c.Name].Owner == c.Owner {
			mine = append(mine, c)
		} else {
			others = append(others, c)
		}
	}
	if len(others) > 0 {
		others, err = repo.Owned(ctx, others)
	}
	return append(mine, others...), err
}

type ownershipReader interface {
	Look(ctx context.Context, names []string) (rows map[string]Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []Claim) ([]Claim, error)
}

func (t *Store) Owned(ctx context.Context, cs []Claim) (mine []Claim, err error) {
	err = t.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		_, err := conn.ExecContext(ctx, sqlReadCommitted)
		if err != nil && errorNumber(err) != 1568 { // ER_CANT_CHANGE_TX_CHARACTERISTICS: the application left a transaction open
			return err
		}
		rows, _, err := t.lookOn(ctx, conn, Names(cs))
		if err != nil {
			conn.Raw(func(any) error { return driver.ErrBadConn }) // the next transaction must not have that level
			return err
		}
		mine = slices.DeleteFunc(slices.Clone(cs), func(c Claim) bool { return rows[c.Name].Owner != c.Owner })
		return nil
	})
	if err == nil && len(mine) < len(cs) {
		t.endWaits(slices.DeleteFunc(slices.Clone(cs), func(c Claim) bool { return slices.Contains(mine, c) }), true)
	}
	return mine, err
}

func (t *Store) Confirm(ctx context.Context, c Claim) (mine bool, sent time.Time, err error) {
	type answer struct {
		mine bool
		sent time.Time
	}
	own, cancel := WithRetryLimit(t.lifetime, min(t.onlyConnTimeout, 5*time.Second))
	a, err := detach(ctx, t, own, cancel, true, func(ctx context.Context, conn *sqlx.Conn) (answer, error) {
		rows, sent, err := t.lookOn(ctx, conn, []string{c.Name})
		return answer{rows[c.Name].Owner == c.Owner, sent}, err
	}, func(bool, error) {})
	return a.mine, a.sent, err
}

// change runs a statement on behalf of what is held.
func (t *Store) change(ctx context.Context, spare bool, c command) (res sql.Result, sent time.Time, err error) {
	err = t.run(ctx, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		sent = time.Now()
		res, err = t.exec(ctx, conn, c)
		return err
	})
	return res, sent, err
}

// free is change for statements that may free rows for which others wait.
func (t *Store) free(ctx context.Context, spare bool, c command) (freed int64, heir Process, err error) {
	err = t.run(ctx, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		freed, heir, err = t.freeOn(ctx, conn, c)
		return err
	})
	return freed, heir, err
}

func (t *Store) freeOn(ctx context.Context, conn *sqlx.Conn, c command) (freed int64, next Process, err error) {
	res, err := t.exec(ctx, conn, c)
	if err != nil {
		return 0, 0, err
	}
	first, err := res.LastInsertId()
	if err != nil {
		return 0, 0, err
	}
	freed, err = res.RowsAffected()
	return freed, Process(first), err
}

func (t *Store) RemoveWaiter(ctx context.Context, names []string, p Process) (heir Process, all bool, err error) {
	struck, heir, err := t.free(ctx, true, t.command(sqlRemoveWaiter,
		"names", literals(names), "count", strconv.Itoa(len(names)), "process", p.literal(), "mute", p.Polling().literal(), "r", "l."))
	return heir, struck == int64(len(names)), err
}
