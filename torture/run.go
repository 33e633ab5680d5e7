package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

const (
	account  = "torture" // prefix of the workers' accounts; their indexes follow
	database = "torture"
)

// A testRun is one run: a server, its workers, the nemesis, and the history of the current cycle.
type testRun struct {
	options
	kind       string // of the server
	server     *mysqltest.Server
	clock      *clock
	executable string  // of the workers
	db         *sql.DB // of the account root, not through a proxy
	locker     *mysqllock.Locker
	workers    []*workerSlot
	random     *rand.Rand
	report     *report

	// Of the current cycle.
	names      names
	beginOrder order

	epoch      int  // of the names
	overloaded bool // the machine was, during a calm cycle

	// The state after earlier cycles, by name.
	tokens, exclusives map[string]uint64  // highest tokens, of all holds and of exclusive ones
	register, guarded  map[string]written // rows of the application

	mu        sync.Mutex // protects following fields
	cycleKind string
	events    []event
	drained   map[string]bool // by worker
	closed    map[string]bool // by worker
	dead      map[string]bool // workers that were killed, and Lockers whose Close returned an error
	found     []violation
	locks     string        // InnoDB's locks when a worker had more connections than its pool
	restarts  []instant     // when the server replied again
	changed   chan struct{} // receives when drained or closed has changed; capacity 1
}

// run runs cycles until the time is over, ctx ends, or a violation is found. The report is not nil
// if the run has begun.
func run(ctx context.Context, o options) (*report, error) {
	t := &testRun{
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
	for i := 0; (i < o.minCycles || time.Now().Before(end)) && ctx.Err() == nil; i++ {
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
		if err := t.runCycle(ctx, kind); err != nil {
			return t.report, err
		}
	}
	return t.report, nil
}

// open starts the server, the proxies and the workers. If it fails, the caller must call close.
func (t *testRun) open() (err error) {
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
		w := &workerSlot{index: i, wire: behind, proxy: toxiproxy.NewProxy(proxies, fmt.Sprint(i), "127.0.0.1:0", behind.Addr())}
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

// prepare creates the database, the application's tables and the workers' accounts.
func (t *testRun) prepare() error {
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
	signals := "CONNECTION_ADMIN" // without it, an account can kill only its own connections
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

func (t *testRun) close() {
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

// record adds an event to the history, or acts on it if it is addressed to the run itself.
func (t *testRun) record(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case "drained":
		t.drained[e.Holder] = true
	case "ticket":
		o := order{Do: "attach", Seed: e.Token, Hold: &e}
		p := t.workers[e.ID%int64(len(t.workers))].process.Load()
		go p.send(o) // not here: a paused process may block it
		return
	case "closed":
		t.closed[e.Holder] = true
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

// recordFault counts a fault. If from is not 0, it also adds the fault, which began then, to the
// history.
func (t *testRun) recordFault(name string, from instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.faults[name]++
	if from != 0 {
		t.events = append(t.events, event{Kind: "fault", Name: name, Call: from, Ret: now()})
	}
}

// recordRestart records that the server replies again after a restart.
func (t *testRun) recordRestart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.restarts = append(t.restarts, now())
}

func (t *testRun) recordViolation(vs ...violation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found = append(t.found, vs...)
}

// newBeginOrder returns the order that begins the current cycle, with a new seed.
func (t *testRun) newBeginOrder() order {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.beginOrder
	o.Seed = t.random.Uint64()
	return o
}
