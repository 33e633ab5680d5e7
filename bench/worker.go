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

// A worker is a process that takes locks as it is told. Orders come and words
// go as lines of JSON on its standard input and output; it ends when the input does.

// An order tells a worker what to do.
type order struct {
	Do    string // "warm", "turn", "stop" or "hot"
	Rival string
	Name  string // of the lock

	Hold       time.Duration // turn: for how long
	Goroutines int           // warm, hot
	From, To   time.Duration // hot: when, by now()
}

// A word tells of a turn: "acquired" and then "over", with the instant of each,
// by now(), but only "over", with instant 0, if it was stopped before it had
// the lock. Or it answers: "warmed" or "hot". Or something failed: "error".
type word struct {
	Say  string
	Name string
	At   time.Duration
	Err  string

	Turns int    // hot
	Spans []span // hot
}

// A span is a time in which a process had one turn after the other: from the
// first to the last acquisition.
type span struct{ First, Last time.Duration }

type worker struct {
	sites   sites
	clients map[string]client // by rival
	running sync.WaitGroup    // turns

	mu    sync.Mutex // guards the following
	words *json.Encoder
	stops map[string]context.CancelFunc // by name of the lock
}

func work(s sites, orders io.Reader, words io.Writer) error {
	w := &worker{sites: s, clients: map[string]client{}, words: json.NewEncoder(words), stops: map[string]context.CancelFunc{}}
	err := w.obey(json.NewDecoder(orders))
	w.mu.Lock()
	for _, stop := range w.stops {
		stop()
	}
	w.mu.Unlock()
	w.running.Wait()
	for _, c := range w.clients {
		c.close()
	}
	return err
}

func (w *worker) obey(orders *json.Decoder) error {
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if o.Do == "stop" {
			w.mu.Lock()
			w.stops[o.Name]()
			w.mu.Unlock()
			continue
		}
		c, err := w.client(o.Rival)
		if err != nil {
			w.failed(o, err)
			continue
		}
		switch o.Do {
		case "warm":
			if err := warm(context.Background(), c, numbered(fmt.Sprintf("warm-%d", os.Getpid()), o.Goroutines)...); err != nil {
				w.failed(o, err)
				continue
			}
			w.say(word{Say: "warmed"})
		case "turn":
			ctx, cancel := context.WithCancel(context.Background())
			w.mu.Lock()
			w.stops[o.Name] = cancel
			w.mu.Unlock()
			w.running.Go(func() { w.turn(ctx, c, o) })
		case "hot":
			w.hot(c, o)
		}
	}
}

// client opens that of a rival when it is first asked for.
func (w *worker) client(name string) (client, error) {
	if c := w.clients[name]; c != nil {
		return c, nil
	}
	r := rivalNamed(name)
	if r == nil {
		return nil, fmt.Errorf("no rival %q", name)
	}
	c, err := r.open(w.sites)
	if err == nil {
		w.clients[name] = c
	}
	return c, err
}

func (w *worker) say(what word) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words.Encode(what)
}

func (w *worker) failed(o order, err error) {
	w.say(word{Say: "error", Name: o.Name, Err: fmt.Sprintf("%s: %s: %v", o.Rival, o.Do, err)})
}

// turn takes the lock, keeps it, and gives it back.
func (w *worker) turn(ctx context.Context, c client, o order) {
	release, err := c.acquire(ctx, o.Name)
	at := now()
	if err != nil {
		if ctx.Err() == nil {
			w.failed(o, err)
		}
		w.say(word{Say: "over", Name: o.Name})
		return
	}
	w.say(word{Say: "acquired", Name: o.Name, At: at})
	select {
	case <-time.After(o.Hold):
	case <-ctx.Done():
	}
	err = release()
	at = now()
	if err != nil {
		w.failed(o, err)
	}
	w.say(word{Say: "over", Name: o.Name, At: at})
}

// hot lets many goroutines have one turn after the other on one lock.
func (w *worker) hot(c client, o order) {
	// Between two turns of this process that are closer than this, no other
	// process has had one: it would need two commits.
	const near = 100 * time.Microsecond

	ctx, cancel := context.WithTimeout(context.Background(), o.To-now())
	defer cancel()
	var mu sync.Mutex
	answer := word{Say: "hot", Name: o.Name}
	acquired := func(at time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if at < o.From || at > o.To {
			return
		}
		answer.Turns++
		if n := len(answer.Spans); n > 0 && at-answer.Spans[n-1].Last < near {
			answer.Spans[n-1].Last = at
			return
		}
		answer.Spans = append(answer.Spans, span{at, at})
	}
	var running sync.WaitGroup
	for range o.Goroutines {
		running.Go(func() {
			for ctx.Err() == nil {
				release, err := c.acquire(ctx, o.Name)
				if err != nil {
					if ctx.Err() == nil {
						w.failed(o, err)
					}
					return
				}
				acquired(now())
				if err := release(); err != nil {
					w.failed(o, err)
					return
				}
			}
		})
	}
	running.Wait()
	w.say(answer)
}

// A crew is a number of workers, as their parent sees them.
type crew struct {
	workers []*hand
	words   chan heard // closed when all have ended
}

type hand struct {
	cmd    *exec.Cmd
	input  io.Closer
	orders *json.Encoder
}

// heard is a word, and the index of the worker that said it.
type heard struct {
	from int
	word
}

func newCrew(s sites, size int) (_ *crew, err error) {
	role, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	c := &crew{words: make(chan heard, 1024)}
	var listening sync.WaitGroup
	defer func() {
		go func() {
			listening.Wait()
			close(c.words)
		}()
		if err != nil {
			c.dismiss()
		}
	}()
	for i := range size {
		cmd := exec.Command(executable())
		cmd.Env = append(os.Environ(), roleVariable+"="+string(role))
		cmd.Stderr = os.Stderr
		input, err1 := cmd.StdinPipe()
		output, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, err
		}
		c.workers = append(c.workers, &hand{cmd, input, json.NewEncoder(input)})
		listening.Go(func() {
			words := json.NewDecoder(output)
			for {
				var w word
				if words.Decode(&w) != nil {
					return
				}
				c.words <- heard{i, w}
			}
		})
	}
	return c, nil
}

// dismiss ends the workers and waits for them.
func (c *crew) dismiss() {
	for _, w := range c.workers {
		w.input.Close()
	}
	for range c.words { // what they still have to say
	}
	for _, w := range c.workers {
		w.cmd.Wait()
	}
}

func (c *crew) tell(worker int, o order) error { return c.workers[worker].orders.Encode(o) }

// hear returns the next word, or an error if that is one or none comes in time.
func (c *crew) hear(ctx context.Context, timeout <-chan time.Time) (heard, error) {
	select {
	case h, ok := <-c.words:
		switch {
		case !ok:
			return h, errors.New("the workers have ended")
		case h.Say == "error":
			return h, errors.New(h.Err)
		}
		return h, nil
	case <-timeout:
		return heard{}, errTimeout
	case <-ctx.Done():
		return heard{}, context.Cause(ctx)
	}
}

var errTimeout = errors.New("a worker is silent")

// warm readies the first n workers for a rival.
func (c *crew) warm(ctx context.Context, n int, r *rival, goroutines int) error {
	for i := range n {
		if err := c.tell(i, order{Do: "warm", Rival: r.name, Goroutines: goroutines}); err != nil {
			return err
		}
	}
	timeout := time.After(time.Minute)
	for range n {
		if _, err := c.hear(ctx, timeout); err != nil {
			return err
		}
	}
	return nil
}
