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

// A fault is one of the things that the nemesis does. It lasts until ctx ends,
// and has then been undone. It returns false if it could not be done at all, as
// when another has the server down.
type fault struct {
	name string
	// uses names what no two faults may touch at the same time.
	uses string
	do   func(ctx context.Context, r *rand.Rand, t *torture) bool
	// longest bounds it.
	longest time.Duration
}

var faults = append(slices.Clone(handoffFaults), []fault{
	{"server killed and restarted", "server", killServer, 0},
	{"server stopped (SIGSTOP)", "server", pauseServer, 5 * time.Second},
	{"worker stopped (SIGSTOP)", "worker", pauseWorker, 6 * time.Second},
	{"worker killed (SIGKILL)", "worker", killWorker, 0},
	{"connections cut", "net", cut, 2 * time.Second},
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

// A clock that was set back and a row that was taken away make a token fall, as
// the library says: never both in one cycle. Nor a guard that is held open: what waits
// behind it for longer than frozen goes by a clock that was set since.
var clockFaults = append(slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.uses == "delete" || f.uses == "guard" }),
	fault{"clock set forward and back", "rows", step, 6 * time.Second})

// nemesis makes faults for a time, several at once, and returns when all are undone.
func (t *torture) nemesis(ctx context.Context, r *rand.Rand, d time.Duration, kinds []fault) {
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
			own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			running.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, length)
				defer cancel()
				from := now()
				if f.do(ctx, own, t) {
					t.made(f.name, from)
				}
				mu.Lock()
				delete(busy, f.uses)
				mu.Unlock()
			})
		}
		sleep(ctx, exponential(r, 500*time.Millisecond))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func killServer(_ context.Context, r *rand.Rand, t *torture) bool {
	if t.server.Kill() != nil {
		return false
	}
	time.Sleep(rand.N(500 * time.Millisecond))
	if err := t.server.Restart(); err != nil {
		t.fail(violation{"server", "", err.Error()})
		return false
	}
	t.answered()
	return true
}

func pauseServer(ctx context.Context, _ *rand.Rand, t *torture) bool {
	if t.server.Pause() != nil {
		return false
	}
	<-ctx.Done()
	return t.server.Continue() == nil
}

func pauseWorker(ctx context.Context, r *rand.Rand, t *torture) bool {
	p := t.workers[r.IntN(len(t.workers))].process.Load()
	from := now()
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	<-ctx.Done()
	p.cmd.Process.Signal(syscall.SIGCONT)
	t.tell(event{Kind: "stall", Holder: p.name, Call: from, Ret: now().add(20 * time.Millisecond)})
	return true
}

func killWorker(_ context.Context, r *rand.Rand, t *torture) bool {
	w := t.workers[r.IntN(len(t.workers))]
	return t.replace(w, w.process.Load())
}

// replace kills a worker, and starts another in its seat. It returns false if another fault has done so.
func (t *torture) replace(w *seat, p *process) bool {
	p.kill()
	w.replacing.Lock()
	defer w.replacing.Unlock()
	if w.process.Load() != p {
		return false
	}
	if err := w.start(t); err != nil {
		t.fail(violation{"worker", "", err.Error()})
		return false
	}
	w.process.Load().tell(t.begin())
	return true
}

// toxic makes a fault of some proxies of one of toxiproxy's.
func toxic(kind, attributes string, streams ...string) func(context.Context, *rand.Rand, *torture) bool {
	return func(ctx context.Context, r *rand.Rand, t *torture) bool {
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

// cut breaks connections again and again: a timeout toxic does so when it is removed.
func cut(ctx context.Context, r *rand.Rand, t *torture) bool {
	for ctx.Err() == nil {
		brief, cancel := context.WithTimeout(ctx, time.Millisecond)
		toxic("timeout", `{"timeout": 0}`, "upstream")(brief, r, t)
		cancel()
		sleep(ctx, exponential(r, 200*time.Millisecond))
	}
	return true
}

func killConnections(ctx context.Context, r *rand.Rand, t *torture) (done bool) {
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

// connections are those of the workers that meet a condition.
func (t *torture) connections(ctx context.Context, condition string) (ids []uint64, err error) {
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

func exhaustPool(ctx context.Context, r *rand.Rand, t *torture) bool {
	deadline, _ := ctx.Deadline()
	t.workers[r.IntN(len(t.workers))].process.Load().tell(order{Do: "exhaust", For: time.Until(deadline)})
	<-ctx.Done()
	return true
}

func readOnly(ctx context.Context, _ *rand.Rand, t *torture) bool {
	variable := map[string]string{"mysql": "super_read_only", "mariadb": "read_only"}[t.kind]
	set, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := t.session(set) // nothing of it is executed after it was undone
	if err == nil {
		_, err = conn.ExecContext(set, "SET GLOBAL "+variable+" = 1")
		conn.Close()
	}
	if err == nil {
		<-ctx.Done()
	}
	// A server that is down comes back writable; one that is paused will answer.
	for try := range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, undoErr := t.db.ExecContext(ctx, "SET GLOBAL read_only = 0")
		cancel()
		if undoErr == nil {
			return err == nil
		}
		if try == 99 {
			t.fail(violation{"nemesis", "", "the server stays read-only: " + undoErr.Error()})
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// session is a connection of the nemesis, which gives up its statement after a second.
func (t *torture) session(ctx context.Context) (*sql.Conn, error) {
	conn, err := t.db.Conn(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 2")
		if err != nil {
			conn.Close()
		}
	}
	return conn, err
}

func lockRow(ctx context.Context, r *rand.Rand, t *torture) bool {
	_, key := t.row(ctx, r)
	return t.lock(ctx, "SELECT token FROM mysqllock WHERE name = ? FOR UPDATE", key)
}

// lock keeps the rows locked that a query locks, which must have a result of one row.
func (t *torture) lock(ctx context.Context, query string, arg any) bool {
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

func lockTable(ctx context.Context, _ *rand.Rand, t *torture) bool {
	conn, err := t.session(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE"); err != nil {
		return false
	}
	<-ctx.Done()
	unlock, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn.ExecContext(unlock, "UNLOCK TABLES") // else the connection is dropped, and the lock with it
	return true
}

// deadlock has two transactions lock rows of the library in any order.
func deadlock(ctx context.Context, r *rand.Rand, t *torture) bool {
	var running sync.WaitGroup
	defer running.Wait()
	for range 2 {
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		running.Go(func() {
			for ctx.Err() == nil {
				conn, err := t.session(ctx)
				if err != nil {
					sleep(ctx, 100*time.Millisecond)
					continue
				}
				t.interfere(ctx, own, conn)
				conn.Close()
				sleep(ctx, exponential(own, 20*time.Millisecond))
			}
		})
	}
	return true
}

// crowd has callers with pools of their own ask for one name again and again, each
// for an instant: every refused attempt locks the row.
func crowd(ctx context.Context, r *rand.Rand, t *torture) bool {
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
				// The lease is short: a server that is killed keeps it no longer.
				own := rand.New(rand.NewPCG(rand.Uint64(), 0))
				if k, err := request(ctx, own, &identifiedLocker{Locker: l}, &event{Name: name}, 0, 200*time.Millisecond); err == nil {
					k.Unlock()
				} else if !errors.Is(err, mysqllock.ErrNotAcquired) {
					sleep(ctx, 50*time.Millisecond)
				}
			}
		})
	}
	running.Wait()
	return true
}

func (t *torture) interfere(ctx context.Context, r *rand.Rand, conn *sql.Conn) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	for range 4 {
		index := []string{"PRIMARY", "guard"}[r.IntN(2)]
		_, one := t.row(ctx, r)
		_, other := t.row(ctx, r)
		_, err := tx.ExecContext(ctx, "UPDATE mysqllock FORCE INDEX ("+index+") SET holds = holds WHERE name IN (?, ?)", one, other)
		if err != nil {
			if strings.Contains(err.Error(), "1213") {
				t.made("deadlocks of the interfering transaction", 0)
			}
			return
		}
		sleep(ctx, exponential(r, 10*time.Millisecond))
	}
}

func deleteRow(_ context.Context, r *rand.Rand, t *torture) bool {
	name, key := t.row(context.Background(), r)
	return t.void("DELETE FROM mysqllock WHERE name = ?", name, key)
}

func truncate(_ context.Context, r *rand.Rand, t *torture) bool {
	return r.IntN(4) == 0 && t.void("TRUNCATE mysqllock", "", "")
}

// row picks a lock or a permit, and one of its rows, by its key: that of the wait queue, or
// of a hold.
func (t *torture) row(ctx context.Context, r *rand.Rand) (name, key string) {
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

// void takes rows away, all if name is "": those of a key.
func (t *torture) void(statement, name, key string) bool {
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
		e.Ret = never // it may yet be executed
	case name != "":
		if n, err := res.RowsAffected(); err == nil && n == 0 {
			return false
		}
	}
	if err == nil {
		e.Outcome = "taken"
	}
	t.tell(e)
	return err == nil
}
