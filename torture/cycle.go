package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The kinds of cycles.
const (
	mixed   = "mixed"   // all faults but clock steps
	stepped = "stepped" // all faults, with clock steps, but no deleted rows and open guards
	calm    = "calm"    // the server is killed once, while locks are held only briefly
	queued  = "queued"  // no faults but open guards, and pools of five connections
)

// runCycle runs one cycle: operations under faults, mostly some time without faults, the end of all
// operations, and the checks.
func (t *testRun) runCycle(ctx context.Context, kind string) error {
	began := now()
	if kind == calm {
		t.epoch++ // new names: workers that were killed in the last cycle left some locks held
	}
	t.names = names{Epoch: t.epoch, Hot: 4, Warm: 20, Rare: 100, RW: 6, Sem: 3}
	if err := t.insertRows(ctx); err != nil {
		return err
	}
	t.beginCycle(kind)
	r := rand.New(rand.NewPCG(t.random.Uint64(), 0))
	if kind == calm {
		sleep(ctx, time.Second)
		serverKill.do(ctx, r, t)
		t.recordFault(serverKill.name, 0)
		t.overloaded = overloaded(ctx, t.served+time.Second)
	} else {
		t.injectFaults(ctx, r, kind)
	}

	for _, w := range t.workers {
		w.process.Load().send(order{Do: "drain"})
	}
	if err := t.await(&t.drained, time.Minute); err != nil {
		return t.failure(append(t.found, violation{"drain", "", err.Error()}))
	}
	left, err := t.awaitReleases(ctx, kind)
	if err != nil {
		return err
	}
	for _, w := range t.workers {
		w.process.Load().send(order{Do: "close"})
	}
	if err := t.await(&t.closed, time.Minute); err != nil {
		return t.failure(append(t.found, violation{"close", "", err.Error()}))
	}
	found, err := t.check(ctx, kind, left)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return t.failure(found)
	}
	if kind == stepped {
		if err := t.truncateTables(ctx); err != nil {
			return err
		}
	}
	t.report.cycles++
	t.report.elapsed += now().sub(began)
	t.log("cycle %d (%s): %s", t.report.cycles, kind, t.report.line())
	return nil
}

// insertRows inserts the rows that guarded transactions and writes to the register change.
func (t *testRun) insertRows(ctx context.Context) error {
	values := "('" + strings.Join(t.names.all(), "', 0), ('") + "', 0)"
	if _, err := t.db.ExecContext(ctx, "INSERT IGNORE INTO guarded (name, value) VALUES "+values); err != nil {
		return err
	}
	_, err := t.db.ExecContext(ctx, "INSERT IGNORE INTO register (name, token, writes) VALUES "+strings.ReplaceAll(values, ", 0)", ", 0, 0)"))
	return err
}

// beginCycle resets the history, and orders all workers to begin a cycle.
func (t *testRun) beginCycle(kind string) {
	t.mu.Lock()
	t.cycleKind = kind
	t.events, t.drained, t.closed, t.restarts = nil, map[string]bool{}, map[string]bool{}, nil
	t.beginOrder = order{
		Do: "begin", Names: t.names, Calm: kind == calm,
		Pool: []int{4, 5, 8, 12, largePool}[t.random.IntN(5)], Lease: time.Second << t.random.IntN(3),
	}
	if t.beginOrder.Pool == largePool {
		t.beginOrder.Lease = 4 * time.Second // so that releases grant locks to waiting processes
	}
	switch kind {
	case calm:
		t.beginOrder.Pool = largePool
	case queued:
		t.beginOrder.Pool, t.beginOrder.KeepLocker = queuedPool, true
	}
	t.mu.Unlock()
	for _, w := range t.workers {
		w.wire.Reset() // frees the texts of the statements so far
		w.process.Load().send(t.newBeginOrder())
	}
}

// injectFaults runs the nemesis of a cycle. It leaves time without faults before, and after half of
// all cycles.
func (t *testRun) injectFaults(ctx context.Context, r *rand.Rand, kind string) {
	rest := t.options.cycle / 4
	sleep(ctx, rest/2)
	kinds, stop := faults, func() {}
	switch kind {
	case stepped:
		kinds = clockFaults
	case queued:
		kinds = guardFaults
		stop = t.watchConnections(ctx)
	}
	t.nemesis(ctx, r, t.options.cycle-2*rest, kinds)
	stop()
	if t.random.IntN(2) == 0 {
		sleep(ctx, rest*3/2) // otherwise, operations end together with the faults
	}
}

// overloaded samples the load of the machine for d. It reports whether more than three threads per
// processor were ready on average, so that times are no evidence against the library.
func overloaded(ctx context.Context, d time.Duration) bool {
	var ready, samples int
	for end := now().add(d); now() < end && ctx.Err() == nil; {
		text, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			return false
		}
		var load [3]float64
		var running int
		if _, err := fmt.Sscanf(string(text), "%f %f %f %d/", &load[0], &load[1], &load[2], &running); err == nil {
			ready += running
			samples++
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return ready > 3*runtime.NumCPU()*samples
}

// await waits until acks has every worker.
func (t *testRun) await(acks *map[string]bool, limit time.Duration) error {
	deadline := time.After(limit)
	for {
		var missing []string
		t.mu.Lock()
		for _, w := range t.workers {
			if name := w.process.Load().name; !(*acks)[name] {
				missing = append(missing, name)
			}
		}
		t.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-t.changed:
		case <-deadline:
			return fmt.Errorf("%v: not within %v", missing, limit)
		}
	}
}

// check checks the history of the cycle, adds its figures to the report, and returns all violations,
// among them left, the locks left behind.
func (t *testRun) check(ctx context.Context, kind string, left []violation) ([]violation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, found := newHistory(t.events)
	found = append(found, t.found...)
	h.tokens, h.exclusives = t.tokens, t.exclusives
	found = append(found, h.checkTokens()...)
	found = append(found, h.checkOverlap()...)
	found = append(found, h.checkHandoffs()...)
	found = append(found, h.checkMinimumHolds()...)
	found = append(found, h.checkPermits()...)
	losses, late := h.checkLossReports()
	found = append(found, late...)
	if len(found) == 0 {
		t.report.losses.add(losses)
	}
	wrong, unknown := h.checkModel(t.failureDir(), 20*time.Second)
	found = append(found, wrong...)
	t.report.unknown += unknown
	found = append(found, left...)
	for _, restart := range t.restarts {
		served, unserved := h.checkService(restart, t.served)
		switch {
		case kind == calm && t.overloaded:
			t.report.overloaded++
		case kind == calm:
			found = append(found, unserved...)
			t.report.served = max(t.report.served, served)
		default:
			t.report.servedAmidFaults = max(t.report.servedAmidFaults, served)
		}
	}
	stale, err := t.checkWrites(ctx)
	found = append(found, stale...)
	for _, hold := range h.holds {
		t.tokens[hold.name] = max(t.tokens[hold.name], hold.token)
		if !hold.shared {
			t.exclusives[hold.name] = max(t.exclusives[hold.name], hold.token)
		}
		switch {
		case hold.shared:
			t.report.counts["grants, shared"]++
		case isSemaphore(hold.name):
			t.report.counts["grants of permits"]++
		}
	}
	t.report.counts["grants"] += int64(len(h.holds))
	return found, err
}

// checkWrites checks the writes to the register and to the guarded rows, and empties their logs.
func (t *testRun) checkWrites(ctx context.Context) (found []violation, err error) {
	read := func(query string) (log []write, err error) {
		rows, err := t.db.QueryContext(ctx, query)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var w write
			if err := rows.Scan(&w.name, &w.token, &w.value, &w.read); err != nil {
				return nil, err
			}
			log = append(log, w)
		}
		return log, rows.Err()
	}
	register, err := read("SELECT name, token, 0, 0 FROM register_log ORDER BY id")
	if err != nil {
		return nil, err
	}
	guarded, err := read("SELECT name, token, value, is_read FROM guarded_log ORDER BY id")
	if err != nil {
		return nil, err
	}
	values, err := read("SELECT name, 0, value, 0 FROM guarded")
	if err != nil {
		return nil, err
	}
	rows := map[string]uint64{}
	for _, v := range values {
		rows[v.name] = v.value
	}
	found = slices.Concat(checkRegister(register, t.register), checkGuarded(guarded, rows, t.guarded))
	t.report.counts["register log"] += int64(len(register))
	t.report.counts["guarded log"] += int64(len(guarded))
	for _, table := range []string{"register_log", "guarded_log"} {
		if _, err := t.db.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return found, err
		}
	}
	return found, nil
}

// truncateTables empties the tables, and makes the next cycle use other names. It follows clock
// steps, after which tokens are an hour ahead of the clock.
func (t *testRun) truncateTables(ctx context.Context) error {
	t.epoch++
	clear(t.tokens)
	clear(t.exclusives)
	clear(t.register)
	clear(t.guarded)
	for _, table := range []string{"mysqllock", "register", "guarded"} {
		if _, err := t.db.ExecContext(ctx, "TRUNCATE "+table); err != nil {
			return err
		}
	}
	return nil
}

// failureDir returns the directory for the files of a failed run.
func (t *testRun) failureDir() string {
	return filepath.Join(t.dir, fmt.Sprintf("%s-%d-%d", t.kind, t.seed, t.report.cycles+1))
}

// failure writes the violations and what helps to explain them to files, and returns an error that
// names their directory.
func (t *testRun) failure(found []violation) error {
	dir := t.failureDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	fmt.Fprintf(&text, "%s, seed %d, cycle %d\n", t.report.version, t.seed, t.report.cycles+1)
	for _, v := range found {
		fmt.Fprintln(&text, v)
	}
	history, err := os.Create(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		return err
	}
	defer history.Close()
	encoder := json.NewEncoder(history)
	for _, e := range t.events {
		if err := encoder.Encode(e); err != nil {
			return err
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "violations"), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "locks"), []byte(t.locks), 0o644),
		os.WriteFile(filepath.Join(dir, "rows"), []byte(t.dumpRows()), 0o644),
		os.WriteFile(filepath.Join(dir, "server.log"), []byte(t.server.Log()), 0o644),
	); err != nil {
		return err
	}
	return fmt.Errorf("%d violations, the first: %v; seed %d; history and plot are in %s", len(found), found[0], t.seed, dir)
}
