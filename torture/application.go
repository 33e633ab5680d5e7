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

// statementTimeout limits a transaction of the application, and calls of Extend, Detach and Attach.
const statementTimeout = 3 * time.Second

// writeRegister writes to the fenced register, which checks only the token, as a resource outside
// the database would.
func (h *hold) writeRegister() {
	if h.event.Mode == shared {
		return // other holders may write at the same time
	}
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
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
		h.recordRefusal("register")
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO register_log (name, token) VALUES (?, ?)", name, token); err != nil {
		return
	}
	if tx.Commit() == nil {
		h.c.count("register writes")
	}
}

// writeGuarded adds one to the guarded row, or only reads the row if the lock is shared. It reads
// the row without locking it, so only Guard prevents lost updates.
func (h *hold) writeGuarded() {
	if h.event.Mode == shared {
		h.readGuarded()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	if err := h.lock.Guard(ctx, tx); err != nil {
		if errors.Is(err, mysqllock.ErrLost) {
			h.recordRefusal("guard")
		}
		return
	}
	var value uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&value); err != nil {
		return
	}
	switch n := h.r.IntN(100); {
	case n < 2:
		h.c.sleep(ctx, rand.N(2*time.Second)) // may outlast the lease
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

// readGuarded reads the guarded row twice, without locking it, so only Guard prevents an exclusive
// holder from changing it in between.
func (h *hold) readGuarded() {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	if err := h.lock.Guard(ctx, tx); err != nil {
		if errors.Is(err, mysqllock.ErrLost) {
			h.recordRefusal("guard")
		}
		return
	}
	var first, second uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&first); err != nil {
		return
	}
	switch n := h.r.IntN(100); {
	case n < 2:
		h.c.sleep(ctx, rand.N(2*time.Second)) // may outlast the lease
	case n < 40:
		h.c.sleep(ctx, rand.N(5*time.Millisecond))
	}
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&second); err != nil {
		return
	}
	if first != second {
		h.recordWrong(fmt.Sprintf("guarded under token %d, shared: read %d, and then %d", token, first, second))
	}
	h.c.count("guarded reads")
	if h.r.IntN(2) == 0 {
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded_log (name, token, value, is_read) VALUES (?, ?, ?, 1)", name, token, second); err == nil {
		tx.Commit()
	}
}

// recordRefusal records that the database refused the token, and whether Err was still nil.
func (h *hold) recordRefusal(by string) {
	h.c.count("refused by the " + by)
	at := now()
	if h.lock.Err() == nil {
		h.recordTrust(at)
		h.c.count("refused by the " + by + " before the loss was reported")
	}
}
