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
	listenStore
	signalStore
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
	repo      Repository
	self      store.Process
	queues    Queues
	group     *background.Group
	listener  *listener
	signaller *signaller
	poller    *poller
	publisher *publisher

	stopListening context.CancelFunc // ends the context of Listen
	stopSending   context.CancelFunc // ends the context of statements and messages
}

// New returns a Waker. It sends nothing until a method is called.
func New(repo Repository, queues Queues, c Config) *Waker {
	w := &Waker{repo: repo, self: c.Self, queues: queues, group: background.NewGroup()}
	var listening, sending context.Context
	listening, w.stopListening = context.WithCancel(context.Background())
	sending, w.stopSending = context.WithCancel(context.Background())
	w.listener = &listener{repo: repo, queues: queues, enabled: c.Signal, forced: c.Forced, ctx: listening}
	w.signaller = &signaller{
		repo: repo, queues: queues, self: c.Self, listener: w.listener, log: c.Log, group: w.group, ctx: sending,
		grants: newGrants(), contended: map[string]struct{}{}, listed: map[string]bool{}, direct: map[string]struct{}{}, leaving: map[string]struct{}{},
	}
	w.publisher = &publisher{
		notifier: c.Notifier, queues: queues, log: c.Log, group: w.group, ctx: sending, outbox: make(chan string, 256),
	}
	w.poller = &poller{
		repo: repo, queues: queues, interval: c.Interval, listener: w.listener, signaller: w.signaller,
		log: c.Log, group: w.group, watched: map[string]*watch{}, replan: make(chan struct{}, 1),
	}
	return w
}

// Close ends the goroutines, waits for them, and publishes the remaining releases.
func (w *Waker) Close() {
	listening := w.listener.stop(w.group)
	defer w.stopListening()
	defer time.AfterFunc(StopTimeout, w.stopListening).Stop()
	if listening {
		ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
		w.repo.Signal(ctx, w.self)
		cancel()
	}
	defer w.stopSending()
	defer time.AfterFunc(time.Second, w.stopSending).Stop()
	w.group.Wait()
	w.signaller.drain()
	w.publisher.drain()
}

// Signals reports whether waiters join the wait queues of rows.
func (w *Waker) Signals() bool { return w.listener.enabled }

// Enlist returns the id under which the next statement of name's head joins the row's wait queue if
// the statement is refused, or 0 if it must not join. again means that an earlier statement of the
// head was refused.
func (w *Waker) Enlist(name string, again bool) store.Process {
	if !w.Signals() {
		return 0
	}
	return w.signaller.enlist(name, again)
}

// Contended reports whether a statement of this process for name was refused recently.
func (w *Waker) Contended(name string) bool { return w.signaller.isContended(name) }

// Signalled reports whether signals reach this process, as far as it knows.
func (w *Waker) Signalled() bool { return w.listener.signalWorks() }

// ExpectGrant must be called before name's head sends a statement that joins the wait queue under an
// id that takes grants (see Process.Direct in package store).
func (w *Waker) ExpectGrant(name string) { w.signaller.expectGrant(name) }

// TakeGrant returns the grant that a release of another process has made to this one for name, if the
// listener has found one. The caller must turn it into a hold, or give it back. If the grant's lease
// still runs, it must also call Granted; otherwise the row may list this process again.
func (w *Waker) TakeGrant(name string) (store.Grant, bool) {
	return w.signaller.grants.take(name)
}

// ClaimGrant is TakeGrant for a grant that the head itself has found in the row. It returns false if
// the grant was taken before. Otherwise the caller must replace the owner in the row, or call
// GiveBack. Unlike a grant of TakeGrant, this one needs no HoldEnded.
func (w *Waker) ClaimGrant(c store.Claim) bool {
	mine, wasReady := w.signaller.grants.claim(c)
	if wasReady {
		w.repo.HoldEnded()
	}
	if mine {
		w.signaller.unlist(c.Name)
	}
	return mine
}

// GiveBack releases, in the background, the row of a grant that ClaimGrant has claimed.
func (w *Waker) GiveBack(c store.Claim) {
	w.group.Go(func() { w.signaller.release(c) })
}

// Granted records that the head was granted the row, which therefore does not list this process. It
// must be called before name can have another head.
func (w *Waker) Granted(name string) { w.signaller.unlist(name) }

// Answered records that a statement of name's head was granted or refused. again means that an
// earlier one was refused.
func (w *Waker) Answered(name string, granted, again bool) {
	if granted {
		w.listener.acquired()
	}
	w.signaller.answered(name, granted, again)
}

// Claimed records that the head of a name has claimed it, and waits until others no longer hold it
// shared.
func (w *Waker) Claimed() { w.listener.claimed() }

// Watch makes the poller read the row of name, whose head was refused, until Unwatch. The poller
// wakes the head when it finds the row free, or when left has passed. After each read, it calls
// looked with the error or nil.
func (w *Waker) Watch(name string, left time.Duration, looked func(err error)) {
	w.publisher.subscribe()
	w.poller.watch(name, left, looked)
}

// Unwatch ends Watch.
func (w *Waker) Unwatch(name string) { w.poller.unwatch(name) }

// Leave must be called when the last waiter for a name has left its queue.
func (w *Waker) Leave(name string) { w.signaller.leave(name) }

// Released announces that rows were released: it publishes their names, and signals the processes
// that are next in their wait queues. The release has returned one of these, next.
func (w *Waker) Released(rows []string, next store.Process) {
	names := w.queueNames(rows)
	w.publisher.publish(names)
	if next != 0 && w.Signals() {
		w.group.Go(func() { w.signaller.signalNext(names, next) })
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
	if w.Signals() {
		w.group.Go(func() { w.signaller.signalFree([]string{name}) })
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
