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

// A job is what a worker process is told when it starts, orders come later on
// its standard input, as lines of JSON. It ends when that does.
type job struct {
	Worker string // its name
	DSN    string // of its proxy
}

// An order is one of
//
//	begin    take turns on the Names, on a new pool and new Lockers
//	burst    hand a lock on between goroutines for a time
//	exhaust  take all connections of the pool for a time
//	attach   make the hold of a ticket a handle again
//	drain    end all turns; what is held is unlocked
//	close    close the Lockers and the pool
type order struct {
	Do    string
	Seed  uint64        `json:",omitempty"`
	Names names         `json:",omitzero"`
	Calm  bool          `json:",omitempty"` // only short holds: a waiter is served soon
	Pool  int           `json:",omitempty"`
	Stay  bool          `json:",omitempty"` // close no Locker: what it waits for goes on in the server, with a connection beyond the pool
	Lease time.Duration `json:",omitempty"` // of AutoRenew
	For   time.Duration `json:",omitempty"`
	Name  string        `json:",omitempty"` // of the lock to hand on
	Hold  *event        `json:",omitempty"` // of the ticket to attach
}

const (
	jobVariable = "MYSQLLOCK_TORTURE_JOB"
	turnTakers  = 16 // goroutines of a worker that take turns of all kinds
	runners     = 2  // that take one short turn after the other
)

// workerOf is the worker of a Locker's identity.
func workerOf(holder string) string {
	worker, _, _ := strings.Cut(holder, "/")
	return worker
}

// exitIfWorker makes this process a worker if it was started as one.
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
	go w.write()
	go w.beat()
	if err := w.obey(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, j.Worker+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type worker struct {
	job
	events chan event
	cycle  *cycle // between begin and end; of the orders' goroutine alone
}

// write writes events as they come: what was said before a SIGKILL is known.
func (w *worker) write() {
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

// beat tells of times in which the process did not run: a goroutine that sleeps
// for a moment sleeps for longer.
func (w *worker) beat() {
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

func (w *worker) obey(input io.Reader) error {
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
				c.app.Go(func() { c.exhaust(o.For) })
			}
		case "burst":
			if c := w.cycle; c != nil { // else it has just been started
				c.turns.Go(func() { c.handOn(o.Name, o.Seed, o.For) })
			}
		case "attach":
			if c := w.cycle; c != nil && !c.draining {
				c.turns.Go(func() { c.receive(rand.New(rand.NewPCG(o.Seed, 0)), *o.Hold) })
			}
		case "drain":
			c := w.cycle
			c.draining = true
			c.app.Go(func() {
				c.stop()
				c.turns.Wait()
				w.events <- event{Kind: "drained", Holder: w.Worker}
			})
		case "close":
			w.cycle.end(idle)
		}
	}
}

// A cycle is what a worker does between begin and end.
type cycle struct {
	w      *worker
	order  order
	db     *sql.DB
	ctx    context.Context // ends with drain
	stop   context.CancelFunc
	turns  sync.WaitGroup
	app    sync.WaitGroup // the other goroutines
	locker atomic.Pointer[identified]
	serial atomic.Int64
	ids    atomic.Int64 // of holds

	draining bool // of the orders' goroutine alone

	mu     sync.Mutex // guards the following
	counts counts
}

// identified is a Locker with its identity.
type identified struct {
	*mysqllock.Locker
	holder string
}

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
	c.renew()
	for i := range turnTakers {
		c.turns.Go(func() {
			r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
			for c.ctx.Err() == nil {
				c.turn(r)
			}
		})
	}
	for i := range runners {
		if o.Calm {
			break
		}
		c.turns.Go(func() { c.run(rand.New(rand.NewPCG(o.Seed, uint64(turnTakers+i)))) })
	}
	c.turns.Go(func() { c.disturb(rand.New(rand.NewPCG(o.Seed, turnTakers+runners))) })
	return c, nil
}

// renew makes a new Locker the present one and returns the last.
func (c *cycle) renew() (last *identified) {
	holder := fmt.Sprintf("%s/%d.%d", c.w.Worker, c.order.Seed%1e6, c.serial.Add(1))
	l, err := mysqllock.New(c.db, mysqllock.WithLease(c.order.Lease), mysqllock.WithIdentity(holder))
	if err != nil {
		panic(err)
	}
	return c.locker.Swap(&identified{l, holder})
}

// disturb closes Lockers, forces locks open and purges, now and then.
func (c *cycle) disturb(r *rand.Rand) {
	for c.ctx.Err() == nil {
		c.sleep(c.ctx, exponential(r, 700*time.Millisecond))
		l := c.locker.Load()
		ctx, cancel := context.WithTimeout(context.Background(), exponential(r, 500*time.Millisecond)+time.Millisecond)
		switch n := r.IntN(10); {
		case n < 2 && !c.order.Calm && !c.order.Stay:
			last := c.renew()
			if err := last.Close(); err != nil {
				c.tell(event{Kind: "gaveup", Holder: last.holder, Outcome: err.Error()})
				c.count("closes with an error")
			}
			c.count("closes")
		case n < 5 && !c.order.Calm:
			name := c.order.Names.pickLock(r) // there is no method that frees permits by force
			e := event{Kind: "forcing", Holder: l.holder, Name: name, Call: now()}
			c.tell(e)
			held, err := l.ForceUnlock(ctx, name)
			e.Kind, e.Ret, e.Outcome = "force", now(), "free"
			switch {
			case err != nil:
				e.Outcome = "unknown"
			case held:
				e.Outcome = "freed"
				c.count("forced")
			}
			c.tell(e)
			if held { // who was forced may be about to commit
				if h := c.take(ctx, r, l, name, time.Second, time.Second); h != nil {
					h.guarded()
					h.giveBack()
				}
			}
		case n < 8:
			idle := []time.Duration{0, 100 * time.Millisecond, time.Second}[r.IntN(3)]
			deleted, _ := l.Purge(ctx, idle)
			c.add("rows purged", deleted)
		default:
			c.look(ctx, r, l)
		}
		cancel()
	}
}

// exhaust takes the connections of the pool, as an application may.
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

// end closes everything and looks for goroutines that are left.
func (c *cycle) end(idle int) {
	c.turns.Wait()
	c.app.Wait()
	l := c.locker.Load()
	if err := l.Close(); err != nil {
		c.wrong(l.holder, "", "Close, with the database well: "+err.Error())
	}
	c.db.Close()
	deadline := now().add(3 * time.Second)
	for runtime.NumGoroutine() > idle && now() < deadline {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > idle {
		var stacks strings.Builder
		pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		c.wrong(l.holder, "", fmt.Sprintf("%d goroutines before, %d after:\n%s", idle, n, &stacks))
	}
	c.tell(event{Kind: "closed", Holder: c.w.Worker, Counts: c.counts})
}

func (c *cycle) tell(e event) { c.w.events <- e }

func (c *cycle) wrong(holder, name, what string) {
	c.tell(event{Kind: "wrong", Holder: holder, Name: name, Outcome: what})
}

func (c *cycle) count(what string) { c.add(what, 1) }

func (c *cycle) add(what string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
}

// sleep sleeps until ctx ends.
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

// exponential is a random time of a mean.
func exponential(r *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(mean))
}
