package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock"
)

const (
	// queuedPool is the pool of each worker in a queued round.
	queuedPool = 5
	// overPool is for how long the server may see more connections of a worker than
	// its pool allows: a ForceUnlock that is given up ends there within a second.
	overPool = 2500 * time.Millisecond
	// guardBound bounds a Guard beside a ForceUnlock that was given up.
	guardBound = 4 * time.Second
)

// holdGuard keeps a transaction under the guard of a hot lock, in one of its modes, open, gives up a
// ForceUnlock, and frees the lock: a caller that asks for it waits in the server.
func holdGuard(ctx context.Context, r *rand.Rand, t *torture) bool {
	name, try := t.names.name("hot", r.IntN(t.names.Hot)), t.locker.TryLock
	if r.IntN(2) == 0 {
		name = t.names.name("rw", r.IntN(t.names.RW))
		if r.IntN(2) == 0 {
			try = t.locker.TryRLock
		}
	}
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	lock, err := try(attempt, name, 2*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return false
	}
	defer lock.Unlock()
	guarded := func() (tx *sql.Tx, err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardBound)
		defer cancel()
		if tx, err = t.db.BeginTx(context.Background(), nil); err == nil {
			if err = lock.Guard(ctx, tx); err != nil {
				tx.Rollback()
			}
		}
		return tx, err
	}
	tx, err := guarded()
	if err != nil {
		return false
	}
	defer tx.Rollback()

	brief, giveUp := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Millisecond+exponential(r, 200*time.Millisecond))
	e := event{Kind: "forcing", Holder: "nemesis", Name: name, Call: now()}
	t.tell(e)
	forced, _ := t.locker.ForceUnlock(brief, name)
	giveUp()
	e.Kind, e.Ret, e.Outcome = "force", now(), "free"
	var one int
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardBound)
	defer cancel()
	intact := tx.QueryRowContext(asked, "SELECT 1").Scan(&one) == nil
	switch {
	case !intact:
		e.Outcome = "unknown" // the transaction is over, and so is its guard
	case forced:
		t.fail(violation{"stale guard", name, fmt.Sprintf("ForceUnlock succeeded beside a transaction under guard, token %d", lock.Token())})
	}
	t.tell(e)
	if !intact {
		return false
	}
	if second, err := guarded(); err == nil {
		second.Rollback()
	} else if t.roundKind() == queued && errors.Is(err, context.DeadlineExceeded) {
		t.fail(violation{"guard held up", name, fmt.Sprintf("for %v by a ForceUnlock that was given up: %v", guardBound, err)})
	}
	lock.Unlock()
	<-ctx.Done()
	return true
}

// roundKind is the kind of the present round.
func (t *torture) roundKind() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.present
}

// watchConnections counts the connections of each worker that the server sees, and
// finds those above the pool, until stop is called.
func (t *torture) watchConnections(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		logged := false
		since := map[int]instant{} // it is above its pool, by worker
		sleep(ctx, 2*time.Second)  // the connections of the round before end
		for ctx.Err() == nil {
			open, err := t.connectionsOfWorkers(ctx)
			for i := range t.workers {
				n := open[i]
				t.mu.Lock()
				t.report.connections = max(t.report.connections, n)
				t.mu.Unlock()
				switch {
				case err != nil || n <= queuedPool:
					delete(since, i)
				case since[i] == 0:
					since[i] = now()
				case !logged && now().sub(since[i]) > time.Second:
					logged = true
					t.recordLocks(ctx)
					t.log("worker %d has %d connections: %s", i, n, t.statements(ctx, i))
				case now().sub(since[i]) > overPool:
					t.fail(violation{"connections", "", fmt.Sprintf("worker %d has %d, with a pool of %d, for %v: %s", i, n, queuedPool, overPool, t.statements(ctx, i))})
					return
				}
			}
			sleep(ctx, 100*time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// statements is what the server does for a worker, and which statement waits for which.
func (t *torture) statements(ctx context.Context, worker int) string {
	return t.list(ctx, "SELECT CONCAT_WS(' ', id, host, command, time, state, LEFT(info, 120)) FROM information_schema.processlist WHERE user = ?", fmt.Sprint(account, worker)) +
		"; waits: " + t.list(ctx, lockWaits[t.kind])
}

// lockWaits lists the statements that wait for locks, by the kind of the server.
var lockWaits = map[string]string{
	"mysql": `SELECT CONCAT_WS(' ', waiting_pid, waiting_lock_mode, 'behind', blocking_pid, blocking_lock_mode, locked_index, LEFT(waiting_query, 60)) FROM sys.innodb_lock_waits`,
	"mariadb": `SELECT CONCAT_WS(' ', r.trx_mysql_thread_id, rl.lock_mode, 'behind', b.trx_mysql_thread_id, bl.lock_mode, bl.lock_index, rl.lock_data, LEFT(b.trx_query, 60))
		FROM information_schema.innodb_lock_waits AS w
		JOIN information_schema.innodb_trx AS r ON r.trx_id = w.requesting_trx_id JOIN information_schema.innodb_trx AS b ON b.trx_id = w.blocking_trx_id
		LEFT JOIN information_schema.innodb_locks AS rl ON rl.lock_id = w.requested_lock_id LEFT JOIN information_schema.innodb_locks AS bl ON bl.lock_id = w.blocking_lock_id`,
}

// recordLocks keeps what the server tells of its locks, with the gaps that they cover.
func (t *torture) recordLocks(ctx context.Context) {
	var engine, none, locks string
	_, err := t.db.ExecContext(ctx, "SET GLOBAL innodb_status_output_locks = ON")
	if err == nil {
		err = t.db.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&engine, &none, &locks)
	}
	if err != nil {
		locks = err.Error()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locks = locks
}

// list returns the rows of a query with one column.
func (t *torture) list(ctx context.Context, query string, args ...any) string {
	rows, err := t.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return err.Error()
		}
		all = append(all, one)
	}
	return strings.Join(all, "; ")
}

// connectionsOfWorkers is how many connections the server sees of each worker.
func (t *torture) connectionsOfWorkers(ctx context.Context) (map[int]int, error) {
	rows, err := t.db.QueryContext(ctx, "SELECT user FROM information_schema.processlist WHERE user LIKE ?", account+"%")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	open := map[int]int{}
	for rows.Next() {
		var user string
		if err := rows.Scan(&user); err != nil {
			return nil, err
		}
		if i, err := strconv.Atoi(strings.TrimPrefix(user, account)); err == nil {
			open[i]++
		}
	}
	return open, rows.Err()
}

// takeDuringHandoffs has a worker hand a lock on between its goroutines, and takes
// its row away again and again.
func takeDuringHandoffs(ctx context.Context, r *rand.Rand, t *torture) bool {
	deadline, _ := ctx.Deadline()
	name := t.names.pickLock(r)
	t.workers[r.IntN(len(t.workers))].process.Load().tell(order{Do: "burst", Name: name, Seed: r.Uint64(), For: time.Until(deadline)})
	taken := false
	for ctx.Err() == nil {
		sleep(ctx, exponential(r, 100*time.Millisecond))
		if r.IntN(2) == 0 {
			taken = t.void("DELETE FROM mysqllock WHERE name = ?", name, name) || taken
			continue
		}
		brief, cancel := context.WithTimeout(context.Background(), time.Second)
		e := event{Kind: "forcing", Holder: "nemesis", Name: name, Call: now()}
		t.tell(e)
		held, err := t.locker.ForceUnlock(brief, name)
		cancel()
		e.Kind, e.Ret, e.Outcome = "force", now(), "free"
		switch {
		case err != nil:
			e.Outcome = "unknown"
		case held:
			e.Outcome, taken = "freed", true
		}
		t.tell(e)
	}
	return taken
}
