package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock"
)

// rejected records that the database refused the token, and whether Err was still nil.
func (h *hold) rejected(by string) {
	h.c.count("refused by the " + by)
	at := now()
	if h.k.Err() == nil {
		h.trusted(at)
		h.c.count("refused by the " + by + " before the loss was reported")
	}
}

// register writes to the fenced register, as a resource that knows the token
// alone would be written to.
func (h *hold) register() {
	if h.event.Mode == shared {
		return // others may write at the same time
	}
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	res, err := tx.ExecContext(ctx, "UPDATE register SET token = ?, writes = writes + 1 WHERE name = ? AND token <= ?", token, name, token)
	if err != nil {
		return
	}
	if n, err := res.RowsAffected(); err != nil {
		return
	} else if n == 0 {
		h.rejected("register")
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO register_log (name, token) VALUES (?, ?)", name, token); err != nil {
		return
	}
	if tx.Commit() == nil {
		h.c.count("register writes")
	}
}

// guarded adds one to the guarded row, reading it without a lock: nothing but
// Guard keeps two of these apart.
func (h *hold) guarded() {
	if h.event.Mode == shared {
		h.guardedRead()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	if err := h.k.Guard(ctx, tx); err != nil {
		if errors.Is(err, mysqllock.ErrLost) {
			h.rejected("guard")
		}
		return
	}
	var value uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&value); err != nil {
		return
	}
	switch n := h.r.IntN(100); {
	case n < 2:
		h.c.sleep(ctx, rand.N(2*time.Second)) // maybe longer than the lease
	case n < 20:
		h.c.sleep(ctx, rand.N(5*time.Millisecond))
	}
	if _, err := tx.ExecContext(ctx, "UPDATE guarded SET value = ? WHERE name = ?", value+1, name); err != nil {
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded_log (name, token, value) VALUES (?, ?, ?)", name, token, value+1); err != nil {
		return
	}
	if err := tx.Commit(); err == nil {
		h.c.count("guarded commits")
	} else if strings.Contains(err.Error(), "1213") {
		h.c.count("deadlocks in guarded transactions")
	}
}

// guardedRead reads the guarded row twice, without a lock: nothing but Guard keeps those
// from changing it who hold the name exclusively.
func (h *hold) guardedRead() {
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	if err := h.k.Guard(ctx, tx); err != nil {
		if errors.Is(err, mysqllock.ErrLost) {
			h.rejected("guard")
		}
		return
	}
	var first, second uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&first); err != nil {
		return
	}
	switch n := h.r.IntN(100); {
	case n < 2:
		h.c.sleep(ctx, rand.N(2*time.Second)) // maybe longer than the lease
	case n < 40:
		h.c.sleep(ctx, rand.N(5*time.Millisecond))
	}
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&second); err != nil {
		return
	}
	if first != second {
		h.c.wrong(h.l.holder, name, fmt.Sprintf("guarded under token %d, shared: read %d, and then %d", token, first, second))
	}
	h.c.count("guarded reads")
	if h.r.IntN(2) == 0 {
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded_log (name, token, value, is_read) VALUES (?, ?, ?, 1)", name, token, second); err == nil {
		tx.Commit()
	}
}
