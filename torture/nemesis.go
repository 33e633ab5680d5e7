package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// A fault is a disturbance that the nemesis injects. do injects it, undoes it when ctx ends, and then
// returns. It returns false if the fault had no effect, for example because another fault had
// stopped the server.
type fault struct {
	name    string
	uses    string // two faults that use the same are never injected at the same time
	do      func(ctx context.Context, r *rand.Rand, t *testRun) bool
	longest time.Duration
}

// serverKill is also the only fault of a calm cycle.
var serverKill = fault{"server killed and restarted", "server", killServer, 0}

var faults = append(slices.Clone(handoffFaults), []fault{
	serverKill,
	{"server stopped (SIGSTOP)", "server", pauseServer, 5 * time.Second},
	{"worker stopped (SIGSTOP)", "worker", pauseWorker, 6 * time.Second},
	{"worker killed (SIGKILL)", "worker", killWorker, 0},
	{"connections cut", "net", cutConnections, 2 * time.Second},
	{"connections reset on reply", "net", toxic("reset_peer", `{"timeout": 0}`, "downstream"), time.Second},
	{"black hole", "net", toxic("timeout", `{"timeout": 0}`, "upstream", "downstream"), 6 * time.Second},
	{"half open, replies lost", "net", toxic("timeout", `{"timeout": 0}`, "downstream"), 5 * time.Second},
	{"half open, statements lost", "net", toxic("timeout", `{"timeout": 0}`, "upstream"), 5 * time.Second},
	{"slow network", "net", toxic("latency", `{"latency": 60, "jitter": 50}`, "upstream", "downstream"), 6 * time.Second},
	{"connections killed (KILL)", "kill", killConnections, 3 * time.Second},
	{"pool used up", "pool", exhaustPool, 5 * time.Second},
	{"read only", "admin", readOnly, 4 * time.Second},
	{"row locked", "rows", lockRow, 5 * time.Second},
	{"table locked", "rows", lockTable, 4 * time.Second},
	{"deadlocks", "rows", deadlock, 4 * time.Second},
	{"crowd of callers that do not wait", "crowd", crowd, 5 * time.Second},
	{"errors of proxies", "proxy", proxyErrors, 4 * time.Second},
	{"repeated statements", "proxy", repeatStatements, 4 * time.Second},
	{"guard held open", "guard", holdGuard, 5 * time.Second},
	{"row deleted", "delete", deleteRow, 0},
	{"row taken away during handoffs", "delete", takeDuringHandoffs, 3 * time.Second},
	{"table truncated", "delete", truncate, 0},
}...)

var guardFaults = []fault{{"guard held open", "guard", holdGuard, 10 * time.Second}}

// clockFaults are the faults of a stepped cycle. They include no deleted rows, because tokens may
// fall if the clock is set back and a row is deleted. Nor do they include open guards: a statement
// that waits for a guard for longer than staleTime uses the time from before a clock step.
var clockFaults = append(slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.uses == "delete" || f.uses == "guard" }),
	fault{"clock set forward and back", "rows", stepClock, 6 * time.Second})

// nemesis injects random faults for d, up to three at once, and returns when all are undone.
func (t *testRun) nemesis(ctx context.Context, r *rand.Rand, d time.Duration, kinds []fault) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	var mu sync.Mutex
	busy := map[string]bool{}
	for ctx.Err() == nil {
		f := kinds[r.IntN(len(kinds))]
		mu.Lock()
		free := !busy[f.uses] && len(busy) < 3
		if free {
			busy[f.uses] = true
		}
		mu.Unlock()
		if free {
			length := 50*time.Millisecond + time.Duration(r.Float64()*r.Float64()*float64(f.longest))
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			running.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, length)
				defer cancel()
				from := now()
				if f.do(ctx, r, t) {
					t.recordFault(f.name, from)
				}
				mu.Lock()
				delete(busy, f.uses)
				mu.Unlock()
			})
		}
		sleep(ctx, exponential(r, 500*time.Millisecond))
	}
}

// sleep sleeps for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func killServer(_ context.Context, r *rand.Rand, t *testRun) bool {
	if t.server.Kill() != nil {
		return false
	}
	time.Sleep(rand.N(500 * time.Millisecond))
	if err := t.server.Restart(); err != nil {
		t.recordViolation(violation{"server", "", err.Error()})
		return false
	}
	t.recordRestart()
	return true
}

func pauseServer(ctx context.Context, _ *rand.Rand, t *testRun) bool {
	if t.server.Pause() != nil {
		return false
	}
	<-ctx.Done()
	return t.server.Continue() == nil
}

func pauseWorker(ctx context.Context, r *rand.Rand, t *testRun) bool {
	p := t.workers[r.IntN(len(t.workers))].process.Load()
	from := now()
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	<-ctx.Done()
	p.cmd.Process.Signal(syscall.SIGCONT)
	t.record(event{Kind: "stall", Holder: p.name, Call: from, Ret: now().add(20 * time.Millisecond)})
	return true
}

func killWorker(_ context.Context, r *rand.Rand, t *testRun) bool {
	w := t.workers[r.IntN(len(t.workers))]
	return t.replace(w, w.process.Load())
}

// toxic returns a fault that adds one of toxiproxy's toxics to some of the proxies.
func toxic(kind, attributes string, streams ...string) func(context.Context, *rand.Rand, *testRun) bool {
	return func(ctx context.Context, r *rand.Rand, t *testRun) bool {
		for _, i := range r.Perm(len(t.workers))[:1+r.IntN(len(t.workers))] {
			toxics := t.workers[i].proxy.Toxics
			for _, s := range streams {
				name := kind + "_" + s
				text := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, name, kind, s, attributes)
				if _, err := toxics.AddToxicJson(strings.NewReader(text)); err != nil {
					panic(err)
				}
				defer toxics.RemoveToxic(context.Background(), name)
			}
		}
		<-ctx.Done()
		return true
	}
}

// cutConnections cuts connections again and again, as toxiproxy does when a timeout toxic is
// removed.
func cutConnections(ctx context.Context, r *rand.Rand, t *testRun) bool {
	for ctx.Err() == nil {
		toxicCtx, cancel := context.WithTimeout(ctx, time.Millisecond)
		toxic("timeout", `{"timeout": 0}`, "upstream")(toxicCtx, r, t)
		cancel()
		sleep(ctx, exponential(r, 200*time.Millisecond))
	}
	return true
}

func killConnections(ctx context.Context, r *rand.Rand, t *testRun) (done bool) {
	for ctx.Err() == nil {
		ids, err := t.connections(ctx, "TRUE")
		if err != nil {
			return done
		}
		for _, id := range ids {
			if r.IntN(2) == 0 {
				_, err := t.db.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
				done = done || err == nil
			}
		}
		sleep(ctx, exponential(r, 300*time.Millisecond))
	}
	return done
}

// connections returns the ids of the workers' connections that meet an SQL condition.
func (t *testRun) connections(ctx context.Context, condition string) (ids []uint64, err error) {
	rows, err := t.db.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE user LIKE ? AND ("+condition+")", account+"%")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id uint64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func exhaustPool(ctx context.Context, r *rand.Rand, t *testRun) bool {
	deadline, _ := ctx.Deadline()
	t.workers[r.IntN(len(t.workers))].process.Load().send(order{Do: "exhaust", For: time.Until(deadline)})
	<-ctx.Done()
	return true
}

func readOnly(ctx context.Context, _ *rand.Rand, t *testRun) bool {
	variable := map[string]string{"mysql": "super_read_only", "mariadb": "read_only"}[t.kind]
	setCtx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := t.session(setCtx) // its lock timeout keeps SET from taking effect after it is undone
	if err == nil {
		_, err = conn.ExecContext(setCtx, "SET GLOBAL "+variable+" = 1")
		conn.Close()
	}
	if err == nil {
		<-ctx.Done()
	}
	// Retry if another fault has paused the server, or killed it: it restarts writable.
	for try := range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, undoErr := t.db.ExecContext(ctx, "SET GLOBAL read_only = 0")
		cancel()
		if undoErr == nil {
			return err == nil
		}
		if try == 99 {
			t.recordViolation(violation{"nemesis", "", "the server is still read-only: " + undoErr.Error()})
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// session returns a connection of the nemesis, whose statements wait for locks for 2 s at most.
func (t *testRun) session(ctx context.Context) (*sql.Conn, error) {
	conn, err := t.db.Conn(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 2")
		if err != nil {
			conn.Close()
		}
	}
	return conn, err
}

func lockRow(ctx context.Context, r *rand.Rand, t *testRun) bool {
	_, key := t.pickRow(ctx, r)
	return t.holdRowLocks(ctx, "SELECT token FROM mysqllock WHERE name = ? FOR UPDATE", key)
}

// holdRowLocks executes a query that locks rows, and keeps them locked until ctx ends. The query
// must return one row with one number.
func (t *testRun) holdRowLocks(ctx context.Context, query string, arg any) bool {
	conn, err := t.session(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false
	}
	defer tx.Rollback()
	var result uint64
	if tx.QueryRowContext(ctx, query, arg).Scan(&result) != nil {
		return false
	}
	<-ctx.Done()
	return true
}

func lockTable(ctx context.Context, _ *rand.Rand, t *testRun) bool {
	conn, err := t.session(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE"); err != nil {
		return false
	}
	<-ctx.Done()
	unlockCtx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn.ExecContext(unlockCtx, "UNLOCK TABLES") // if it fails, the driver closes the connection, which unlocks them
	return true
}

// deadlock runs two transactions at a time that lock random rows of the library, in any order.
func deadlock(ctx context.Context, r *rand.Rand, t *testRun) bool {
	var running sync.WaitGroup
	defer running.Wait()
	for range 2 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		running.Go(func() {
			for ctx.Err() == nil {
				conn, err := t.session(ctx)
				if err != nil {
					sleep(ctx, 100*time.Millisecond)
					continue
				}
				t.lockRandomRows(ctx, r, conn)
				conn.Close()
				sleep(ctx, exponential(r, 20*time.Millisecond))
			}
		})
	}
	return true
}

// lockRandomRows runs a transaction that updates random rows without changing them.
func (t *testRun) lockRandomRows(ctx context.Context, r *rand.Rand, conn *sql.Conn) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	for range 4 {
		index := []string{"PRIMARY", "guard"}[r.IntN(2)]
		_, one := t.pickRow(ctx, r)
		_, other := t.pickRow(ctx, r)
		_, err := tx.ExecContext(ctx, "UPDATE mysqllock FORCE INDEX ("+index+") SET holds = holds WHERE name IN (?, ?)", one, other)
		if err != nil {
			if strings.Contains(err.Error(), "1213") {
				t.recordFault("deadlocks of the interfering transaction", 0)
			}
			return
		}
		sleep(ctx, exponential(r, 10*time.Millisecond))
	}
}

// crowd lets many callers, each with a pool of its own, request one name again and again with wait
// 0. Each refused request locks the row for a moment.
func crowd(ctx context.Context, r *rand.Rand, t *testRun) bool {
	name := t.names.pick(r)
	var running sync.WaitGroup
	for range 12 {
		running.Go(func() {
			db, err := sql.Open("mysql", t.server.DSN(database, "timeout=1s"))
			if err != nil {
				panic(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(2)
			l, err := mysqllock.New(db)
			if err != nil {
				panic(err)
			}
			defer l.Close()
			for ctx.Err() == nil {
				// The lease is short, because Unlock may fail while the server is down.
				r := rand.New(rand.NewPCG(rand.Uint64(), 0))
				if lock, err := request(ctx, r, &identifiedLocker{Locker: l}, &event{Name: name}, 0, 200*time.Millisecond); err == nil {
					lock.Unlock()
				} else if !errors.Is(err, mysqllock.ErrNotAcquired) {
					sleep(ctx, 50*time.Millisecond)
				}
			}
		})
	}
	running.Wait()
	return true
}

func deleteRow(_ context.Context, r *rand.Rand, t *testRun) bool {
	name, key := t.pickRow(context.Background(), r)
	return t.deleteRows("DELETE FROM mysqllock WHERE name = ?", name, key)
}

func truncate(_ context.Context, r *rand.Rand, t *testRun) bool {
	return r.IntN(4) == 0 && t.deleteRows("TRUNCATE mysqllock", "", "")
}

// pickRow returns a random lock or semaphore and the key of one of its rows, that of the wait queue
// or that of a hold. If it is the row of a permit, name is that of the slot.
func (t *testRun) pickRow(ctx context.Context, r *rand.Rand) (name, key string) {
	name = t.names.pick(r)
	if !isReadWrite(name) && !isSemaphore(name) {
		return name, name
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := t.db.QueryContext(ctx, "SELECT name FROM mysqllock WHERE name = ? OR name BETWEEN CONCAT(?, x'00') AND CONCAT(?, x'01')", name, name, name)
	if err != nil {
		return name, name
	}
	defer rows.Close()
	keys := []string{name}
	for rows.Next() {
		if rows.Scan(&key) == nil {
			keys = append(keys, key)
		}
	}
	key = keys[r.IntN(len(keys))]
	if slot := slotOf(key); slot > 0 {
		name = slotName(name, slot)
	}
	return name, key
}

// deleteRows executes a statement that deletes the row with the given key, or all rows if name is
// "", and records the revocation.
func (t *testRun) deleteRows(statement, name, key string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := t.session(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	e := event{Kind: "revoke", Name: name, Call: now()}
	var args []any
	if name != "" {
		args = append(args, key)
	}
	res, err := conn.ExecContext(ctx, statement, args...)
	e.Ret = now()
	var refused *mysql.MySQLError
	switch {
	case errors.As(err, &refused):
		return false
	case err != nil:
		e.Ret = never // the statement may still be executed
	case name != "":
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			return false
		}
	}
	if err == nil {
		e.Outcome = "taken"
	}
	t.record(e)
	return err == nil
}
