package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// A job is the argument of a worker process, in the environment variable jobVariable. The process
// reads its orders from standard input, as lines of JSON, until EOF.
type job struct {
	Worker string // its name
	DSN    string // of its proxy
}

// An order is one of these:
//
//	begin    run operations on Names, with a new pool and a new Locker
//	burst    let goroutines hand the lock Name over to each other for a time
//	exhaust  use all connections of the pool for a time
//	attach   attach the ticket of Hold
//	drain    end all operations, and unlock all locks
//	close    close the Locker and the pool
type order struct {
	Do    string
	Seed  uint64        `json:",omitempty"`
	Names names         `json:",omitzero"`
	Calm  bool          `json:",omitempty"` // hold locks only briefly, so that waiters are served soon
	Pool  int           `json:",omitempty"` // number of connections
	Lease time.Duration `json:",omitempty"` // for AutoRenew
	For   time.Duration `json:",omitempty"` // length of a burst, or of exhaust
	Name  string        `json:",omitempty"`
	Hold  *event        `json:",omitempty"` // has the Ticket

	// If KeepLocker is set, the worker does not replace its Locker: statements of a closed one may keep
	// waiting in the server, on connections that the pool no longer counts.
	KeepLocker bool `json:",omitempty"`
}

const (
	jobVariable          = "MYSQLLOCK_TORTURE_JOB"
	clientsPerWorker     = 16 // goroutines that run operations of all kinds
	fastClientsPerWorker = 2  // goroutines that acquire and release, with short pauses

	// largePool is a pool in which a connection can be spared for listening, most of the time. Only a
	// process that listens is granted locks by the releases of others.
	largePool = 2 * clientsPerWorker
)

// workerOf returns the worker that has a Locker's identity.
func workerOf(holder string) string {
	worker, _, _ := strings.Cut(holder, "/")
	return worker
}

// exitIfWorker runs the process as a worker, and exits, if it was started as one.
func exitIfWorker() {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	mysql.SetLogger(&mysql.NopLogger{})
	w := &worker{job: j, events: make(chan event, 1<<14)}
	go w.writeEvents()
	go w.recordStalls()
	if err := w.execute(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, j.Worker+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type worker struct {
	job
	events chan event
	cycle  *cycle // the current one; used only by the goroutine of execute
}

// writeEvents writes events to standard output as soon as they come, because the process may be
// killed at any moment.
func (w *worker) writeEvents() {
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for e := range w.events {
		if encoder.Encode(e) != nil {
			os.Exit(1)
		}
		if len(w.events) == 0 && out.Flush() != nil {
			os.Exit(1)
		}
	}
}

// recordStalls records times in which the process did not run: then its own short sleeps take
// longer.
func (w *worker) recordStalls() {
	const period, late = 2 * time.Millisecond, 2 * time.Millisecond
	for last := now(); ; {
		time.Sleep(period)
		if next := now(); next.sub(last) > period+late {
			w.events <- event{Kind: "stall", Holder: w.Worker, Call: last, Ret: next}
			last = next
		} else {
			last = next
		}
	}
}

// execute executes the orders in input.
func (w *worker) execute(input io.Reader) error {
	orders := json.NewDecoder(input)
	idle := runtime.NumGoroutine()
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch o.Do {
		case "begin":
			idle = runtime.NumGoroutine()
			var err error
			if w.cycle, err = w.begin(o); err != nil {
				return err
			}
		case "exhaust":
			if c := w.cycle; c != nil {
				c.others.Go(func() { c.exhaust(o.For) })
			}
		case "burst":
			if c := w.cycle; c != nil { // nil if the process has only just been started
				c.clients.Go(func() { c.repeatBursts(o.Name, o.Seed, o.For) })
			}
		case "attach":
			if c := w.cycle; c != nil && !c.draining {
				c.clients.Go(func() { c.attach(rand.New(rand.NewPCG(o.Seed, 0)), *o.Hold) })
			}
		case "drain":
			c := w.cycle
			c.draining = true
			c.others.Go(func() {
				c.stop()
				c.clients.Wait()
				w.events <- event{Kind: "drained", Holder: w.Worker}
			})
		case "close":
			w.cycle.close(idle)
		}
	}
}

// A cycle is a worker's part of a cycle, from the order begin to the order close.
type cycle struct {
	w       *worker
	order   order
	db      *sql.DB
	ctx     context.Context // ends with the order drain
	stop    context.CancelFunc
	clients sync.WaitGroup // goroutines that use locks
	others  sync.WaitGroup // all other goroutines
	locker  atomic.Pointer[identifiedLocker]
	lockers atomic.Int64 // number of Lockers so far
	holds   atomic.Int64 // number of holds so far

	draining bool // used only by the goroutine of execute

	mu     sync.Mutex // protects following fields
	counts counts
}

// An identifiedLocker is a Locker with its identity.
type identifiedLocker struct {
	*mysqllock.Locker
	holder string
}

// begin opens the pool and the Locker of a cycle, and starts its clients.
func (w *worker) begin(o order) (*cycle, error) {
	config, err := mysql.ParseDSN(w.DSN)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	c := &cycle{w: w, order: o, db: sql.OpenDB(connector), counts: counts{}}
	c.db.SetMaxOpenConns(o.Pool)
	c.db.SetMaxIdleConns(o.Pool)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.replaceLocker()
	for i := range clientsPerWorker {
		c.clients.Go(func() {
			r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
			for c.ctx.Err() == nil {
				c.operate(r)
			}
		})
	}
	for i := range fastClientsPerWorker {
		if o.Calm {
			break
		}
		c.clients.Go(func() { c.operateFast(rand.New(rand.NewPCG(o.Seed, uint64(clientsPerWorker+i)))) })
	}
	c.clients.Go(func() { c.administer(rand.New(rand.NewPCG(o.Seed, clientsPerWorker+fastClientsPerWorker))) })
	return c, nil
}

// replaceLocker makes a new Locker the current one and returns the last one.
func (c *cycle) replaceLocker() (last *identifiedLocker) {
	holder := fmt.Sprintf("%s/%d.%d", c.w.Worker, c.order.Seed%1e6, c.lockers.Add(1))
	l, err := mysqllock.New(c.db, mysqllock.WithLease(c.order.Lease), mysqllock.WithIdentity(holder))
	if err != nil {
		panic(err)
	}
	return c.locker.Swap(&identifiedLocker{l, holder})
}

// administer replaces the Locker, forces locks, purges and reads the table, at random times.
func (c *cycle) administer(r *rand.Rand) {
	for c.ctx.Err() == nil {
		c.sleep(c.ctx, exponential(r, 700*time.Millisecond))
		l := c.locker.Load()
		ctx, cancel := context.WithTimeout(context.Background(), exponential(r, 500*time.Millisecond)+time.Millisecond)
		switch n := r.IntN(10); {
		case n < 2 && !c.order.Calm && !c.order.KeepLocker:
			last := c.replaceLocker()
			if err := last.Close(); err != nil {
				c.record(event{Kind: "gaveup", Holder: last.holder, Outcome: err.Error()})
				c.count("closes with an error")
			}
			c.count("closes")
		case n < 5 && !c.order.Calm:
			name := c.order.Names.pickLock(r) // not a semaphore: there is no ForceUnlock for permits
			e := event{Kind: "forcing", Holder: l.holder, Name: name, Call: now()}
			c.record(e)
			held, err := l.ForceUnlock(ctx, name)
			e.Kind, e.Ret, e.Outcome = "force", now(), "free"
			switch {
			case err != nil:
				e.Outcome = "unknown"
			case held:
				e.Outcome = "freed"
				c.count("forced")
			}
			c.record(e)
			if held { // write at once: the former holder may be about to commit
				if h := c.acquire(ctx, r, l, name, time.Second, time.Second); h != nil {
					h.writeGuarded()
					h.unlock()
				}
			}
		case n < 8:
			idle := []time.Duration{0, 100 * time.Millisecond, time.Second}[r.IntN(3)]
			deleted, _ := l.Purge(ctx, idle)
			c.add("rows purged", deleted)
		default:
			c.inspect(ctx, r, l)
		}
		cancel()
	}
}

// exhaust uses all connections of the pool, as an application may, for d.
func (c *cycle) exhaust(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var taken []*sql.Conn
	for ctx.Err() == nil {
		conn, err := c.db.Conn(ctx)
		if err != nil {
			continue
		}
		taken = append(taken, conn)
	}
	for _, conn := range taken {
		conn.Close()
	}
}

// close closes the Locker and the pool, and reports leaked goroutines. idle is the number of
// goroutines before the cycle.
func (c *cycle) close(idle int) {
	c.clients.Wait()
	c.others.Wait()
	l := c.locker.Load()
	if err := l.Close(); err != nil {
		c.recordWrong(l.holder, "", "Close, without a fault: "+err.Error())
	}
	c.db.Close()
	deadline := now().add(3 * time.Second)
	for runtime.NumGoroutine() > idle && now() < deadline {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > idle {
		var stacks strings.Builder
		pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		c.recordWrong(l.holder, "", fmt.Sprintf("%d goroutines before, %d after:\n%s", idle, n, &stacks))
	}
	c.record(event{Kind: "closed", Holder: c.w.Worker, Counts: c.counts})
}

// inspect reads what operators read, and checks the result of Holders.
func (c *cycle) inspect(ctx context.Context, r *rand.Rand, l *identifiedLocker) {
	name := c.order.Names.pick(r)
	l.Inspect(ctx, name)
	l.List(ctx)
	if !isSemaphore(name) {
		return
	}
	infos, err := l.Semaphore(name, limitOf(name)).Holders(ctx)
	slots := map[int]bool{}
	for _, i := range infos {
		if err == nil && (slots[i.Slot] || i.Slot < 1 || i.Slot > maxLimit || i.Name != name || !i.Held) {
			c.recordWrong(l.holder, name, fmt.Sprintf("Holders: %+v", infos))
			return
		}
		slots[i.Slot] = true
	}
}

func (c *cycle) record(e event) { c.w.events <- e }

// recordWrong records a wrong result of the library.
func (c *cycle) recordWrong(holder, name, what string) {
	c.record(event{Kind: "wrong", Holder: holder, Name: name, Outcome: what})
}

func (c *cycle) count(what string) { c.add(what, 1) }

func (c *cycle) add(what string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

// sleep sleeps for d, or until ctx ends.
func (c *cycle) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// exponential returns a random, exponentially distributed duration.
func exponential(r *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(mean))
}
