package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

// ForceUnlock frees the row of a name, regardless of its owner, and the rows of its shared holds. The
// name may also be the key of a semaphore's slot. ForceUnlock returns the claims that it freed: none
// if the name was free. It waits, until ctx ends, while a transaction has one of the rows locked or under
// Guard.
func (s *Store) ForceUnlock(ctx context.Context, name string) (freed []Claim, next Process, err error) {
	f := force{Store: s, name: name}
	var guarded error // errGuarded, once a statement has waited for a transaction in vain
	for pause := time.Millisecond; ; {
		done, err := f.once(ctx)
		switch {
		case done && err == nil:
			if ModeOf(name) == Permit {
				f.next = s.headOfParts(ctx, f.freed)
			}
			return f.freed, f.next, nil
		case ctx.Err() != nil:
			return f.freed, f.next, fmt.Errorf("%w: %w", context.Cause(ctx), cmp.Or(guarded, err))
		case err == errMoved, err == nil:
			// Under READ UNCOMMITTED the next owner may be waiting for the same guard.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, 100*time.Millisecond)
		case err == errGuarded:
			guarded = err
		case errorNumber(err) == 1969, errorNumber(err) == 3024: // the session's time limit, on a busy server
		default:
			return f.freed, f.next, err
		}
	}
}

// A force is one ForceUnlock in progress.
type force struct {
	*Store
	name  string
	token uint64  // when the name's row was freed: a token above those of the holds that it had; before that, 0
	seen  []Claim // the shared holds that the name had before its row was freed
	freed []Claim
	next  Process
}

// A holder is the row of a name, or of a shared hold of that name.
type holder struct {
	Name, Owner string
	Mode        int
	Token       uint64
	Held        bool
}

// once frees the rows that it finds held. done means that no hold is left that existed when the name's
// row was freed.
func (f *force) once(ctx context.Context) (done bool, err error) {
	// Not in the transaction, where SERIALIZABLE would lock the rows.
	var holders []holder
	err = f.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return f.selectAll(ctx, conn, &holders, "holders", append(sharedKeys(f.name), "name", literal(f.name))...)
	})
	if err != nil {
		return false, err
	}
	var shared []Claim
	var row *holder
	for i, h := range holders {
		switch {
		case h.Name == f.name:
			row = &holders[i]
		case f.token == 0 || h.Token < f.token || slices.Contains(f.seen, Claim{h.Name, h.Owner}): // later ones were admitted since
			shared = append(shared, Claim{h.Name, h.Owner})
		}
	}
	if f.token == 0 && row != nil && (row.Held || len(shared) > 0) {
		f.seen = shared
		err := f.freeName(ctx, *row)
		return row.Mode == 0 && len(shared) == 0, err
	}
	if len(shared) == 0 {
		return true, nil
	}
	return false, f.freeShared(ctx, shared)
}

// freeName frees the name's row, which also ends the phase of its shared holds.
func (f *force) freeName(ctx context.Context, row holder) error {
	claims := f.seen
	if row.Held {
		claims = append([]Claim{{row.Name, row.Owner}}, f.seen...)
	}
	// The holder's process is marked before the commit, in case this process crashes right after it,
	// and again after the commit, because the holder may check its rows in between.
	if err := f.markForced(ctx, claims); Contended(err) {
		return errGuarded
	} else if err != nil {
		return err
	}
	pairs := []string{"name", literal(f.name), "token", strconv.FormatUint(row.Token, 10)}
	err := f.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		f.statements.Add(2)
		var seized uint64
		err := conn.GetContext(ctx, &seized, f.query("seize", pairs...))
		switch errorNumber(err) {
		case 1205, 1969, 3024: // lock wait, or the statement, took too long
			return errGuarded
		}
		if errors.Is(err, sql.ErrNoRows) {
			return errMoved
		} else if err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, f.query("force", pairs...))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		if n == 0 { // the lease has expired
			row.Held = false
			return nil
		}
		first, err := res.LastInsertId()
		f.next = Process(first).Listening()
		return err
	})
	if err != nil {
		return err
	}
	f.token = row.Token + TokenRange
	if row.Held {
		f.report(ctx, claims[:1])
	}
	return nil
}

// freeShared frees the rows of shared holds, except locked ones.
func (f *force) freeShared(ctx context.Context, shared []Claim) error {
	if err := f.markForced(ctx, shared); err != nil && !Contended(err) {
		return err
	}
	var freed []Claim
	for batch := range slices.Chunk(shared, BatchSize) {
		r, err := f.change(ctx, false, f.command("force_shared", claimLists(batch)...))
		if err != nil && !Contended(err) {
			return err
		}
		if err == nil && r.rows == int64(len(batch)) {
			freed = append(freed, batch...)
			continue
		}
		rest, err := f.Owned(ctx, batch)
		if err != nil {
			return err
		}
		freed = append(freed, slices.DeleteFunc(batch, func(c Claim) bool { return slices.Contains(rest, c) })...)
	}
	f.report(ctx, freed)
	return nil
}

// report records that claims were freed, and signals their processes.
func (f *force) report(ctx context.Context, freed []Claim) {
	f.freed = append(f.freed, freed...)
	for _, p := range f.processes(freed) {
		if f.Store.markForced(ctx, p) == nil {
			f.Signal(ctx, p) // if it does not listen, it notices at its next renewal
		}
	}
}

// markForced marks the processes of claims, so that they check their rows.
func (f *force) markForced(ctx context.Context, cs []Claim) error {
	for _, p := range f.processes(cs) {
		if err := f.Store.markForced(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// processes returns the other processes of claims, each once.
func (f *force) processes(cs []Claim) (ps []Process) {
	for _, c := range cs {
		if p := ProcessOf(c.Owner); p != 0 && p != f.self && !slices.Contains(ps, p) {
			ps = append(ps, p)
		}
	}
	return ps
}

var (
	errMoved   = errors.New("another owner has it by now")
	errGuarded = errors.New("a transaction has the lock under Guard, or its row locked")
)
