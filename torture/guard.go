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
	// queuedPool is the number of connections of each worker's pool in a queued cycle.
	queuedPool = 5
	// maxOverPool is how long a worker may have more connections to the server than its pool allows:
	// a cancelled ForceUnlock goes on in the server for up to a second.
	maxOverPool = 2500 * time.Millisecond
	// guardTimeout limits a Guard after a cancelled ForceUnlock.
	guardTimeout = 4 * time.Second
)

// holdGuard keeps a transaction under Guard open, for a contended lock in one of its modes. It checks
// that a ForceUnlock does not succeed meanwhile and, in a queued cycle, that a cancelled ForceUnlock
// does not delay another Guard by guardTimeout. Then it unlocks the lock, so that requests for the
// lock wait in the server for the transaction.
func holdGuard(ctx context.Context, r *rand.Rand, t *testRun) bool {
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
	beginGuarded := func() (tx *sql.Tx, err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTimeout)
		defer cancel()
		if tx, err = t.db.BeginTx(context.Background(), nil); err == nil {
			if err = lock.Guard(ctx, tx); err != nil {
				tx.Rollback()
			}
		}
		return tx, err
	}
	tx, err := beginGuarded()
	if err != nil {
		return false
	}
	defer tx.Rollback()

	forceCtx, cancelForce := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Millisecond+exponential(r, 200*time.Millisecond))
	e := event{Kind: "forcing", Holder: "nemesis", Name: name, Call: now()}
	t.record(e)
	forced, _ := t.locker.ForceUnlock(forceCtx, name)
	cancelForce()
	e.Kind, e.Ret, e.Outcome = "force", now(), "free"
	var one int
	pingCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardTimeout)
	defer cancel()
	open := tx.QueryRowContext(pingCtx, "SELECT 1").Scan(&one) == nil
	switch {
	case !open:
		e.Outcome = "unknown" // the transaction has ended, and so has its guard
	case forced:
		t.recordViolation(violation{"stale guard", name, fmt.Sprintf("ForceUnlock succeeded beside a transaction under Guard, token %d", lock.Token())})
	}
	t.record(e)
	if !open {
		return false
	}
	if second, err := beginGuarded(); err == nil {
		second.Rollback()
	} else if t.currentKind() == queued && errors.Is(err, context.DeadlineExceeded) {
		t.recordViolation(violation{"guard delayed", name, fmt.Sprintf("for %v by a cancelled ForceUnlock: %v", guardTimeout, err)})
	}
	lock.Unlock()
	<-ctx.Done()
	return true
}

// currentKind returns the kind of the current cycle.
func (t *testRun) currentKind() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cycleKind
}

// watchConnections counts the connections of each worker to the server, and reports a worker that
// has more than its pool allows for longer than maxOverPool, until stop is called.
func (t *testRun) watchConnections(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		logged := false
		since := map[int]instant{} // when a worker began to have too many, by worker
		sleep(ctx, 2*time.Second)  // until the connections of the last cycle are closed
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
				case now().sub(since[i]) > maxOverPool:
					t.recordViolation(violation{"connections", "", fmt.Sprintf("worker %d has %d, with a pool of %d, for %v: %s", i, n, queuedPool, maxOverPool, t.statements(ctx, i))})
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

// statements returns the statements of a worker, and which statements wait for which, as text.
func (t *testRun) statements(ctx context.Context, worker int) string {
	return t.list(ctx, "SELECT CONCAT_WS(' ', id, host, command, time, state, LEFT(info, 120)) FROM information_schema.processlist WHERE user = ?", fmt.Sprint(account, worker)) +
		"; waits: " + t.list(ctx, lockWaits[t.kind])
}

// lockWaits has the queries that list the statements that wait for locks, by kind of server.
var lockWaits = map[string]string{
	"mysql": `SELECT CONCAT_WS(' ', waiting_pid, waiting_lock_mode, 'behind', blocking_pid, blocking_lock_mode, locked_index, LEFT(waiting_query, 60)) FROM sys.innodb_lock_waits`,
	"mariadb": `SELECT CONCAT_WS(' ', r.trx_mysql_thread_id, rl.lock_mode, 'behind', b.trx_mysql_thread_id, bl.lock_mode, bl.lock_index, rl.lock_data, LEFT(b.trx_query, 60))
		FROM information_schema.innodb_lock_waits AS w
		JOIN information_schema.innodb_trx AS r ON r.trx_id = w.requesting_trx_id JOIN information_schema.innodb_trx AS b ON b.trx_id = w.blocking_trx_id
		LEFT JOIN information_schema.innodb_locks AS rl ON rl.lock_id = w.requested_lock_id LEFT JOIN information_schema.innodb_locks AS bl ON bl.lock_id = w.blocking_lock_id`,
}

// recordLocks stores InnoDB's list of locks, including gap locks, for the files of a failed run.
func (t *testRun) recordLocks(ctx context.Context) {
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

// list returns the rows of a query with one column, as text.
func (t *testRun) list(ctx context.Context, query string, args ...any) string {
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

// connectionsOfWorkers returns the number of connections of each worker to the server.
func (t *testRun) connectionsOfWorkers(ctx context.Context) (map[int]int, error) {
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

// takeDuringHandoffs makes the goroutines of a worker hand a lock over to each other, and takes the
// row away again and again, by DELETE or ForceUnlock.
func takeDuringHandoffs(ctx context.Context, r *rand.Rand, t *testRun) bool {
	deadline, _ := ctx.Deadline()
	name := t.names.pickLock(r)
	t.workers[r.IntN(len(t.workers))].process.Load().send(order{Do: "burst", Name: name, Seed: r.Uint64(), For: time.Until(deadline)})
	taken := false
	for ctx.Err() == nil {
		sleep(ctx, exponential(r, 100*time.Millisecond))
		if r.IntN(2) == 0 {
			taken = t.deleteRows("DELETE FROM mysqllock WHERE name = ?", name, name) || taken
			continue
		}
		forceCtx, cancel := context.WithTimeout(context.Background(), time.Second)
		e := event{Kind: "forcing", Holder: "nemesis", Name: name, Call: now()}
		t.record(e)
		held, err := t.locker.ForceUnlock(forceCtx, name)
		cancel()
		e.Kind, e.Ret, e.Outcome = "force", now(), "free"
		switch {
		case err != nil:
			e.Outcome = "unknown"
		case held:
			e.Outcome, taken = "freed", true
		}
		t.record(e)
	}
	return taken
}
