// Package wake wakes the heads of a process's wait queues: after a release in this process, after a
// signal or a message from another process, when the holder's lease ends, and when the poller finds
// the row free. A wake-up is only a hint: the head must then check the row.
package wake

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

// Queues are the wait queues of this process. Their methods neither block nor call back, so this
// package may call them while it holds a mutex.
type Queues interface {
	Wake(name string) // the head of name's queue, if there is one
	Has(name string) bool
	Len() int // the number of names that have a queue
}

// A Repository has the methods of package store that a Waker needs; their comments are there.
type Repository interface {
	Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error)
	CloseListener()
	Signal(ctx context.Context, p store.Process) (alive bool, err error)
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	Granted(ctx context.Context, names []string) ([]store.Grant, error)
	ReleaseToNext(ctx context.Context, c store.Claim, grant string) (freed bool, next store.Process, err error)
	RemoveWaiter(ctx context.Context, names []string, p store.Process) (next store.Process, all bool, err error)
	PoolInUse() bool
	PoolTooSmall() bool
}

// Config has the options of a Waker.
type Config struct {
	Self     store.Process
	Interval time.Duration // of the poller
	Signal   bool          // whether to join the wait queues of rows, and to signal other processes
	Notifier Notifier      // may be nil
	Forced   func()        // called when the listener finds that a lock of this process was freed by force
	Log      *slog.Logger
}

// A Waker wakes heads. It must be closed.
type Waker struct {
	env
	*listener
	*signaller
	*poller
	publisher *publisher

	stopListening context.CancelFunc // ends the context of Listen
	stopSending   context.CancelFunc // ends the context of statements and messages
}

// An env is what the parts of a Waker have in common.
type env struct {
	Config
	repo    Repository
	queues  Queues
	group   *background.Group
	sending context.Context // of statements and messages; ends at most 1 s after Waker.Close
}

// New returns a Waker. It sends nothing until a method is called.
func New(repo Repository, queues Queues, c Config) *Waker {
	w := &Waker{env: env{Config: c, repo: repo, queues: queues, group: background.NewGroup()}}
	w.sending, w.stopSending = context.WithCancel(context.Background())
	w.listener = &listener{env: w.env}
	w.listening, w.stopListening = context.WithCancel(context.Background())
	w.signaller = &signaller{
		env: w.env, listener: w.listener, grants: newGrants(),
		contended: map[string]bool{}, listed: map[string]listing{}, leaving: map[string]bool{},
	}
	w.publisher = &publisher{env: w.env, outbox: make(chan string, 256)}
	w.poller = &poller{env: w.env, listener: w.listener, signaller: w.signaller, watched: map[string]*watch{}, replan: make(chan struct{}, 1)}
	return w
}

// Close ends the goroutines and waits for them, leaves the wait queues, and then publishes the
// remaining releases.
func (w *Waker) Close() {
	w.group.Stop()
	listening := w.open.Load() // after Stop: if the poller is between two Listens, it closes the listener itself
	defer w.stopListening()
	defer time.AfterFunc(StopTimeout, w.stopListening).Stop()
	if listening {
		ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
		w.repo.Signal(ctx, w.Self)
		cancel()
	}
	defer w.stopSending()
	defer time.AfterFunc(time.Second, w.stopSending).Stop()
	w.group.Wait()
	w.signaller.drain() // first, because others wait until this process has left their wait queues
	w.publisher.drain()
}

// Signals reports whether waiters join the wait queues of rows.
func (w *Waker) Signals() bool { return w.Signal }

// Watch makes the poller read the row of name, whose head was refused, until Unwatch. The poller
// wakes the head when it finds the row free, or when left has passed. After each read, it calls
// looked with the error or nil.
func (w *Waker) Watch(name string, left time.Duration, looked func(err error)) {
	w.publisher.subscribe()
	w.watch(name, left, looked)
}

// Released announces that rows were released: it publishes their names, and signals the processes
// that are next in their wait queues. The release has returned one of these, next.
func (w *Waker) Released(rows []string, next store.Process) {
	names := w.queueNames(rows)
	w.publisher.publish(names)
	if next != 0 && w.Signal {
		w.group.Go(func() { w.signalNext(names, next) })
	}
}

// queueNames returns the names of the rows' wait queues. It also wakes their heads after the release
// of shared locks and permits, whose holders are not the heads themselves.
func (w *Waker) queueNames(rows []string) []string {
	part := func(row string) bool { return store.ModeOf(row) != store.Exclusive }
	if !slices.ContainsFunc(rows, part) {
		return rows
	}
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = store.QueueOf(row)
		if part(row) {
			w.queues.Wake(names[i])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// WakeNext signals the process that is next in the wait queue of name, if the row is free.
func (w *Waker) WakeNext(name string) {
	if w.Signal {
		w.group.Go(func() { w.signalFree([]string{name}) })
	}
}

// Freed is Released for rows that were released in the background or by force. It also wakes the
// heads in this process.
func (w *Waker) Freed(rows []string, next store.Process) {
	for _, row := range rows {
		w.queues.Wake(store.QueueOf(row))
	}
	w.Released(rows, next)
}
