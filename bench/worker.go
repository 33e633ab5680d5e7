package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A worker is a process that acquires locks on command. It reads commands from its standard input
// and writes events to its standard output, as lines of JSON. It exits when its input ends.
type worker struct {
	endpoints endpoints
	clients   map[string]client // by name of the rival
	running   sync.WaitGroup    // goroutines of cycle

	mu      sync.Mutex // guards the following
	events  *json.Encoder
	cancels map[string]context.CancelFunc // of the last cycle of each lock, by name of the lock
}

// A command makes a worker do something.
type command struct {
	Op    string // "warm", "cycle", "stop" or "hot"
	Rival string
	Name  string // of the lock

	Hold       time.Duration // cycle: how long to hold the lock
	Goroutines int           // warm, hot
	From, To   time.Duration // hot: the period that counts, by now()
}

// An event reports what happened in a worker. "acquired" and "done" belong to a cycle and have the
// time of the acquisition and of the release; a cycle that ends without the lock has "done" alone,
// with At 0. "warmed" and "hot" are the results of those commands. "error" reports a failure.
type event struct {
	Kind string
	Name string
	At   time.Duration // by now()
	Err  string

	Acquisitions int    // hot
	Spans        []span // hot
}

// A span is a period in which only this process acquired the lock, from the first to the last of
// these acquisitions.
type span struct{ First, Last time.Duration }

// runWorker is the main function of a worker.
func runWorker(e endpoints, commands io.Reader, events io.Writer) error {
	w := &worker{endpoints: e, clients: map[string]client{}, events: json.NewEncoder(events), cancels: map[string]context.CancelFunc{}}
	err := w.serve(json.NewDecoder(commands))
	w.mu.Lock()
	for _, cancel := range w.cancels {
		cancel()
	}
	w.mu.Unlock()
	w.running.Wait()
	for _, c := range w.clients {
		c.close()
	}
	return err
}

func (w *worker) serve(commands *json.Decoder) error {
	for {
		var cmd command
		if err := commands.Decode(&cmd); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if cmd.Op == "stop" {
			w.mu.Lock()
			w.cancels[cmd.Name]()
			w.mu.Unlock()
			continue
		}
		c, err := w.client(cmd.Rival)
		if err != nil {
			w.sendError(cmd, err)
			continue
		}
		switch cmd.Op {
		case "warm":
			if err := warm(context.Background(), c, numbered(fmt.Sprintf("warm-%d", os.Getpid()), cmd.Goroutines)...); err != nil {
				w.sendError(cmd, err)
				continue
			}
			w.send(event{Kind: "warmed"})
		case "cycle":
			ctx, cancel := context.WithCancel(context.Background())
			w.mu.Lock()
			w.cancels[cmd.Name] = cancel
			w.mu.Unlock()
			w.running.Go(func() { w.cycle(ctx, c, cmd) })
		case "hot":
			w.hot(c, cmd)
		}
	}
}

// client returns the client of a rival, and opens it at the first call.
func (w *worker) client(name string) (client, error) {
	if c := w.clients[name]; c != nil {
		return c, nil
	}
	r := rivalNamed(name)
	if r == nil {
		return nil, fmt.Errorf("no rival %q", name)
	}
	c, err := r.open(w.endpoints)
	if err == nil {
		w.clients[name] = c
	}
	return c, err
}

func (w *worker) send(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.Encode(e)
}

func (w *worker) sendError(cmd command, err error) {
	w.send(event{Kind: "error", Name: cmd.Name, Err: fmt.Sprintf("%s: %s: %v", cmd.Rival, cmd.Op, err)})
}

// cycle acquires the lock, holds it and releases it.
func (w *worker) cycle(ctx context.Context, c client, cmd command) {
	release, err := c.acquire(ctx, cmd.Name)
	at := now()
	if err != nil {
		if ctx.Err() == nil {
			w.sendError(cmd, err)
		}
		w.send(event{Kind: "done", Name: cmd.Name})
		return
	}
	w.send(event{Kind: "acquired", Name: cmd.Name, At: at})
	select {
	case <-time.After(cmd.Hold):
	case <-ctx.Done():
	}
	err = release()
	at = now()
	if err != nil {
		w.sendError(cmd, err)
	}
	w.send(event{Kind: "done", Name: cmd.Name, At: at})
}

// hot acquires and releases one lock in many goroutines, as often as it can.
func (w *worker) hot(c client, cmd command) {
	// Between two acquisitions of this process that are closer than this, no other process has
	// acquired the lock: that would take two commits.
	const near = 100 * time.Microsecond

	ctx, cancel := context.WithTimeout(context.Background(), cmd.To-now())
	defer cancel()
	var mu sync.Mutex // guards result
	result := event{Kind: "hot", Name: cmd.Name}
	acquired := func(at time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if at < cmd.From || at > cmd.To {
			return
		}
		result.Acquisitions++
		if n := len(result.Spans); n > 0 && at-result.Spans[n-1].Last < near {
			result.Spans[n-1].Last = at
			return
		}
		result.Spans = append(result.Spans, span{at, at})
	}
	var running sync.WaitGroup
	for range cmd.Goroutines {
		running.Go(func() {
			for ctx.Err() == nil {
				release, err := c.acquire(ctx, cmd.Name)
				if err != nil {
					if ctx.Err() == nil {
						w.sendError(cmd, err)
					}
					return
				}
				acquired(now())
				if err := release(); err != nil {
					w.sendError(cmd, err)
					return
				}
			}
		})
	}
	running.Wait()
	w.send(result)
}

// A workerGroup controls a number of workers from their parent process.
type workerGroup struct {
	workers []*workerProcess
	events  chan workerEvent // of all workers; closed when all of them have ended
}

type workerProcess struct {
	cmd      *exec.Cmd
	input    io.Closer
	commands *json.Encoder
}

// A workerEvent is an event, and the index of the worker that sent it.
type workerEvent struct {
	worker int
	event
}

func startWorkers(e endpoints, n int) (_ *workerGroup, err error) {
	role, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	g := &workerGroup{events: make(chan workerEvent, 1024)}
	var readers sync.WaitGroup
	defer func() {
		go func() {
			readers.Wait()
			close(g.events)
		}()
		if err != nil {
			g.stop()
		}
	}()
	for i := range n {
		cmd := exec.Command(executable())
		cmd.Env = append(os.Environ(), roleVariable+"="+string(role))
		cmd.Stderr = os.Stderr
		input, err1 := cmd.StdinPipe()
		output, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, err
		}
		g.workers = append(g.workers, &workerProcess{cmd, input, json.NewEncoder(input)})
		readers.Go(func() {
			events := json.NewDecoder(output)
			for {
				var e event
				if events.Decode(&e) != nil {
					return
				}
				g.events <- workerEvent{i, e}
			}
		})
	}
	return g, nil
}

// stop ends the workers and waits for them.
func (g *workerGroup) stop() {
	for _, w := range g.workers {
		w.input.Close()
	}
	for range g.events { // discard what they still send
	}
	for _, w := range g.workers {
		w.cmd.Wait()
	}
}

func (g *workerGroup) send(worker int, cmd command) error {
	return g.workers[worker].commands.Encode(cmd)
}

// receive returns the next event. If that is an error, or if none arrives in time, it returns an error.
func (g *workerGroup) receive(ctx context.Context, timeout <-chan time.Time) (workerEvent, error) {
	select {
	case e, ok := <-g.events:
		switch {
		case !ok:
			return e, errors.New("the workers have ended")
		case e.Kind == "error":
			return e, errors.New(e.Err)
		}
		return e, nil
	case <-timeout:
		return workerEvent{}, errTimeout
	case <-ctx.Done():
		return workerEvent{}, context.Cause(ctx)
	}
}

var errTimeout = errors.New("timeout: no worker has sent an event")

// warm makes the first n workers open and warm up their clients of a rival.
func (g *workerGroup) warm(ctx context.Context, n int, r *rival, goroutines int) error {
	for i := range n {
		if err := g.send(i, command{Op: "warm", Rival: r.name, Goroutines: goroutines}); err != nil {
			return err
		}
	}
	timeout := time.After(time.Minute)
	for range n {
		if _, err := g.receive(ctx, timeout); err != nil {
			return err
		}
	}
	return nil
}
