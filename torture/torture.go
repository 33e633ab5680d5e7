package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

const (
	account  = "torture" // with the number of the seat: of a worker, without any privilege on the server
	database = "torture"
)

// A torture is one run.
type torture struct {
	options
	kind       string
	server     *mysqltest.Server
	clock      *clock
	executable string  // of the workers
	db         *sql.DB // of the account root, past all proxies
	locker     *mysqllock.Locker
	workers    []*seat
	random     *rand.Rand
	report     *report

	// Of the present cycle.
	names  names
	orders order

	epoch   int  // of the names
	crowded bool // the machine was, in a calm round

	// What earlier cycles have left.
	tokens, exclusives map[string]uint64
	register, guarded  map[string]written

	mu       sync.Mutex // guards the following
	present  string     // kind of round
	events   []event
	drained  map[string]bool // by worker
	ended    map[string]bool
	dead     map[string]bool // workers that were killed, and Lockers whose Close gave up
	found    []violation
	locks    string    // of the server, when a process had more connections than its pool
	restarts []instant // when the server answered again
	changed  chan struct{}
}

// A seat is that of a worker, in which another sits down when it is killed.
type seat struct {
	index   int
	proxy   *toxiproxy.Proxy
	wire    *wire.Proxy // behind it: knows the protocol
	process atomic.Pointer[process]
	born    int

	replacing sync.Mutex // held by a fault that starts another process
}

// A process is a worker as the parent sees it.
type process struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is no more and has been listened to

	mu     sync.Mutex // guards the following
	input  io.Closer
	orders *json.Encoder
}

func (p *process) tell(o order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders.Encode(o) // who is dead is found out otherwise
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

func run(ctx context.Context, o options) (*report, error) {
	t := &torture{
		options: o, kind: o.server, random: rand.New(rand.NewPCG(o.seed, 0)), report: newReport(o),
		tokens: map[string]uint64{}, exclusives: map[string]uint64{}, register: map[string]written{}, guarded: map[string]written{},
		changed: make(chan struct{}, 1), dead: map[string]bool{},
	}
	if err := t.open(); err != nil {
		t.close()
		return nil, err
	}
	defer t.close()
	o.log("%s, seed %d", t.report.version, o.seed)
	end := time.Now().Add(o.length)
	for i := 0; (i < o.rounds || time.Now().Before(end)) && ctx.Err() == nil; i++ {
		kind := mixed
		switch {
		case o.cycles != "":
			kind = o.cycles
		case t.report.cycles%8 == 0:
			kind = calm
		case t.report.cycles%8 == 4:
			kind = queued
		case t.random.IntN(3) == 0:
			kind = stepped
		}
		if err := t.round(ctx, kind); err != nil {
			return t.report, err
		}
	}
	return t.report, nil
}

func (t *torture) open() (err error) {
	if t.clock, err = newClock(); err != nil {
		return err
	}
	if t.executable, err = os.Executable(); err == nil && t.wall {
		t.executable, err = buildWorker(t.clock.dir)
	}
	if err != nil {
		return err
	}
	if t.server, err = mysqltest.StartEnv(t.clock.env(), t.kind, "--max-connections=500"); err != nil {
		return err
	}
	t.report.version = t.server.Version
	config, err := mysql.ParseDSN(t.server.DSN("", "interpolateParams=true&timeout=5s"))
	if err != nil {
		return err
	}
	config.Logger = &mysql.NopLogger{}
	config.DBName = database
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	if err := t.prepare(); err != nil {
		return err
	}
	t.db = sql.OpenDB(connector)
	if t.locker, err = mysqllock.New(t.db, mysqllock.WithIdentity("nemesis"), mysqllock.WithLease(4*time.Second)); err != nil {
		return err
	}
	if err := t.locker.CreateTable(context.Background()); err != nil {
		return err
	}
	proxies := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	for i := range t.options.workers {
		behind, err := wire.Listen(t.server.Addr())
		if err != nil {
			return err
		}
		w := &seat{index: i, wire: behind, proxy: toxiproxy.NewProxy(proxies, fmt.Sprint(i), "127.0.0.1:0", behind.Addr())}
		t.workers = append(t.workers, w)
		if err := w.proxy.Start(); err != nil {
			return err
		}
		if err := w.start(t); err != nil {
			return err
		}
	}
	return nil
}

// prepare creates the account and the tables.
func (t *torture) prepare() error {
	db, err := sql.Open("mysql", t.server.DSN("", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	statements := []string{
		"CREATE DATABASE " + database,
		"USE " + database,
		"CREATE TABLE register (name VARCHAR(255) CHARACTER SET ascii PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, writes BIGINT NOT NULL)",
		"CREATE TABLE register_log (id BIGINT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(255) CHARACTER SET ascii NOT NULL, token BIGINT UNSIGNED NOT NULL)",
		"CREATE TABLE guarded (name VARCHAR(255) CHARACTER SET ascii PRIMARY KEY, value BIGINT UNSIGNED NOT NULL)",
		"CREATE TABLE guarded_log (id BIGINT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(255) CHARACTER SET ascii NOT NULL, token BIGINT UNSIGNED NOT NULL, value BIGINT UNSIGNED NOT NULL, is_read TINYINT NOT NULL DEFAULT 0)",
		"CREATE TABLE heartbeat (id INT PRIMARY KEY, beats BIGINT NOT NULL)",
		"INSERT INTO heartbeat VALUES (1, 0)",
	}
	signals := "CONNECTION_ADMIN" // without it, KILL does not reach the other accounts
	if t.kind == "mariadb" {
		signals = "CONNECTION ADMIN"
	}
	for i := range t.options.workers {
		user := fmt.Sprint(account, i, "@'%'")
		statements = append(statements, "CREATE USER "+user, "GRANT ALL ON "+database+".* TO "+user, "GRANT "+signals+" ON *.* TO "+user)
	}
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (t *torture) close() {
	for _, w := range t.workers {
		if p := w.process.Load(); p != nil {
			p.kill()
		}
		w.proxy.Stop()
		w.wire.Close()
	}
	if t.locker != nil {
		t.locker.Close()
	}
	if t.db != nil {
		t.db.Close()
	}
	if t.server != nil {
		t.server.Stop()
	}
	if t.clock != nil {
		t.clock.remove()
	}
}

// start puts a new process in the seat.
func (w *seat) start(t *torture) error {
	w.born++
	p := &process{name: fmt.Sprintf("worker-%d-%d", w.index, w.born), ended: make(chan struct{})}
	text, err := json.Marshal(job{
		Worker: p.name,
		DSN:    fmt.Sprintf("%s%d@tcp(%s)/%s?interpolateParams=true&timeout=5s", account, w.index, w.proxy.Listen, database) + t.isolation(w),
	})
	if err != nil {
		return err
	}
	p.cmd = exec.Command(t.executable)
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	input, err1 := p.cmd.StdinPipe()
	output, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		return err
	}
	p.input, p.orders = input, json.NewEncoder(input)
	go func() {
		defer close(p.ended)
		t.listen(output)
		p.cmd.Wait()
		t.mu.Lock()
		t.dead[p.name] = true
		t.mu.Unlock()
	}()
	w.process.Store(p)
	return nil
}

// isolation gives every other seat sessions that see what is not committed.
func (t *torture) isolation(w *seat) string {
	variable := map[string]string{"mysql": "transaction_isolation", "mariadb": "tx_isolation"}[t.kind]
	if w.index%2 == 0 {
		return ""
	}
	return "&" + variable + "=%27READ-UNCOMMITTED%27"
}

func (t *torture) listen(output io.Reader) {
	events := json.NewDecoder(output)
	for {
		var e event
		if events.Decode(&e) != nil {
			return
		}
		t.tell(e)
	}
}

// tell enters an event in the history.
func (t *torture) tell(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case "drained":
		t.drained[e.Holder] = true
	case "ticket":
		o := order{Do: "attach", Seed: e.Token, Hold: &e}
		p := t.workers[e.ID%int64(len(t.workers))].process.Load()
		go p.tell(o) // it may stand still
		return
	case "closed":
		t.ended[e.Holder] = true
		t.report.counts.add(e.Counts)
	default:
		if e.Kind == "gaveup" {
			t.dead[e.Holder] = true
		}
		t.events = append(t.events, e)
		return
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// made notes that a fault was made; from is when it began.
func (t *torture) made(name string, from instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.faults[name]++
	if from != 0 {
		t.events = append(t.events, event{Kind: "fault", Name: name, Call: from, Ret: now()})
	}
}

func (t *torture) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.restarts = append(t.restarts, now())
}

func (t *torture) fail(vs ...violation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found = append(t.found, vs...)
}

// begin is the order to begin the present cycle, each time with another seed.
func (t *torture) begin() order {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.orders
	o.Seed = t.random.Uint64()
	return o
}

// A round is of one of these kinds.
const (
	mixed   = "mixed"   // all faults but the clock
	stepped = "stepped" // all faults but rows taken away
	calm    = "calm"    // the server is killed while nothing but short turns is going on
	queued  = "queued"  // no faults but transactions under guard, and pools of five
)

// round is one cycle: turns, faults, a rest, the end of all turns, the checks.
func (t *torture) round(ctx context.Context, kind string) error {
	started := now()
	if kind == calm {
		t.epoch++ // names that nobody who died in the round before has left locked
	}
	t.names = names{Epoch: t.epoch, Hot: 4, Warm: 20, Rare: 100, RW: 6, Sem: 3}
	if err := t.fill(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.present = kind
	t.events, t.drained, t.ended, t.restarts = nil, map[string]bool{}, map[string]bool{}, nil
	t.orders = order{
		Do: "begin", Names: t.names, Calm: kind == calm,
		Pool: []int{4, 5, 8, 12}[t.random.IntN(4)], Lease: time.Second << t.random.IntN(3),
	}
	switch kind {
	case calm:
		t.orders.Pool = 2 * clientsPerWorker
	case queued:
		t.orders.Pool, t.orders.KeepLocker = queuedPool, true
	}
	t.mu.Unlock()
	for _, w := range t.workers {
		w.wire.Reset() // it keeps the statements that it has seen
		w.process.Load().tell(t.begin())
	}
	r := rand.New(rand.NewPCG(t.random.Uint64(), 0))
	if kind == calm {
		sleep(ctx, time.Second)
		killServer(ctx, r, t)
		t.made(faults[0].name, 0)
		t.crowded = crowded(ctx, t.served+time.Second)
	} else {
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
			sleep(ctx, rest*3/2) // else the turns end with the faults
		}
	}

	for _, w := range t.workers {
		w.process.Load().tell(order{Do: "drain"})
	}
	if err := t.all(&t.drained, time.Minute); err != nil {
		return t.leave(append(t.found, violation{"drain", "", err.Error()}))
	}
	left, err := t.settle(ctx, kind)
	if err != nil {
		return err
	}
	for _, w := range t.workers {
		w.process.Load().tell(order{Do: "close"})
	}
	if err := t.all(&t.ended, time.Minute); err != nil {
		return t.leave(append(t.found, violation{"close", "", err.Error()}))
	}
	found, err := t.check(ctx, kind, left)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return t.leave(found)
	}
	if kind == stepped {
		if err := t.renewTables(ctx); err != nil {
			return err
		}
	}
	t.report.cycles++
	t.report.elapsed += now().sub(started)
	t.log("cycle %d (%s): %s", t.report.cycles, kind, t.report.line())
	return nil
}

// crowded watches the machine for a time, and reports whether it had so much to do,
// more than three threads ready for each processor, that no time says anything
// about the library.
func crowded(ctx context.Context, d time.Duration) bool {
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

// renewTables empties the tables, and begins with other names: the tokens of
// these are an hour ahead of the clock.
func (t *torture) renewTables(ctx context.Context) error {
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

// fill creates the rows that guarded transactions and registers change.
func (t *torture) fill(ctx context.Context) error {
	values := "('" + strings.Join(t.names.all(), "', 0), ('") + "', 0)"
	if _, err := t.db.ExecContext(ctx, "INSERT IGNORE INTO guarded (name, value) VALUES "+values); err != nil {
		return err
	}
	_, err := t.db.ExecContext(ctx, "INSERT IGNORE INTO register (name, token, writes) VALUES "+strings.ReplaceAll(values, ", 0)", ", 0, 0)"))
	return err
}

// all waits until every worker has said something.
func (t *torture) all(said *map[string]bool, bound time.Duration) error {
	deadline := time.After(bound)
	for {
		var missing []string
		t.mu.Lock()
		for _, w := range t.workers {
			if name := w.process.Load().name; !(*said)[name] {
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
			return fmt.Errorf("%v: not within %v", missing, bound)
		}
	}
}

func (t *torture) check(ctx context.Context, kind string, left []violation) ([]violation, error) {
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
	wrong, unknown := h.checkModel(t.dirOf(), 20*time.Second)
	found = append(found, wrong...)
	t.report.unknown += unknown
	found = append(found, left...)
	for _, restart := range t.restarts {
		served, unserved := h.checkService(restart, t.served)
		switch {
		case kind == calm && t.crowded:
			t.report.busy++
		case kind == calm:
			found = append(found, unserved...)
			t.report.served = max(t.report.served, served)
		default:
			t.report.servedAmidFaults = max(t.report.servedAmidFaults, served)
		}
	}
	written, err := t.logs(ctx)
	found = append(found, written...)
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

// logs checks what was written to the register and the guarded rows, and empties the logs.
func (t *torture) logs(ctx context.Context) (found []violation, err error) {
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

// dirOf is where a failing run leaves what it found.
func (t *torture) dirOf() string {
	return filepath.Join(t.dir, fmt.Sprintf("%s-%d-%d", t.kind, t.seed, t.report.cycles+1))
}

// leave writes what was found, and what led to it.
func (t *torture) leave(found []violation) error {
	dir := t.dirOf()
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
		os.WriteFile(filepath.Join(dir, "rows"), []byte(t.rows()), 0o644),
		os.WriteFile(filepath.Join(dir, "server.log"), []byte(t.server.Log()), 0o644),
	); err != nil {
		return err
	}
	return fmt.Errorf("%d violations, the first %v; seed %d, history and picture are in %s", len(found), found[0], t.seed, dir)
}
