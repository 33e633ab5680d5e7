package mysqllock

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"
)

// A Notifier carries the word that a name was released from one process to the
// others, through whatever message queue they share. It only makes waiters look
// sooner: the row is the truth, and a message that is lost, late, doubled or
// false costs time, never correctness.
type Notifier interface {
	// Publish tells the other processes that name was released. It runs in the
	// background after each release; ctx bounds it to a few seconds.
	Publish(ctx context.Context, name string) error
	// Subscribe calls released for every name that any process publishes, and
	// blocks until ctx ends. If it returns sooner, it is called again after a
	// second.
	Subscribe(ctx context.Context, released func(name string)) error
}

// registry knows who waits for which name. It wakes waiters on a release in
// this process, on a hint from another, when the holder's lease ends, and
// otherwise each time the poller finds the row free. It knows nothing of terms:
// the turn on a name belongs to one waiter from the moment it asks the database
// until its term is over.
type registry struct {
	repo     repository
	interval time.Duration
	notifier Notifier // may be nil
	log      *slog.Logger

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	voice  context.Context // of Publish; ends a second after ctx at the latest
	mute   context.CancelFunc
	done   sync.WaitGroup // the goroutines of the registry

	mu         sync.Mutex // guards the following, and the fields of every queue and waiter
	queues     map[string]*queue
	watched    map[*waiter]struct{} // those that sleep until their row is free
	polling    bool                 // the poller runs; it ends when nothing is watched
	subscribed bool
	replan     chan struct{} // capacity 1: the poller looks at its deadlines again
	outbox     chan string   // names to publish
}

// A queue is one name's waiters in the order in which they came. It exists
// while somebody has the turn.
type queue struct {
	turn   *waiter
	asking bool      // the turn's statement is under way
	next   list.List // of *waiter
}

// A waiter is one acquisition's place in a queue.
type waiter struct {
	name      string
	own       *owner
	impatient bool          // refused rather than queued behind somebody who holds or sleeps
	turn      chan struct{} // closed when the turn comes
	wake      chan struct{} // capacity 1: look again; a hint that may be false
	refused   chan struct{} // closed when an impatient waiter cannot have the turn

	place  *list.Element // in queue.next; nil with the turn
	gone   bool
	expiry time.Time // while watched: when the holder's lease ends
	failed error     // what the poller met when it last looked for this name
}

func newRegistry(repo repository, interval time.Duration, notifier Notifier, log *slog.Logger) *registry {
	r := &registry{
		repo: repo, interval: interval, notifier: notifier, log: log,
		queues: map[string]*queue{}, watched: map[*waiter]struct{}{},
		replan: make(chan struct{}, 1), outbox: make(chan string, 256),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.voice, r.mute = context.WithCancel(context.Background())
	return r
}

// close ends the goroutines, waits for them, and publishes what they had not yet.
func (r *registry) close() {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	defer time.AfterFunc(time.Second, r.mute).Stop()
	defer r.mute()
	r.done.Wait()
	for {
		select {
		case name := <-r.outbox:
			r.send(name)
		default:
			return
		}
	}
}

// start runs fn as a goroutine of the registry, but not after close. The caller
// holds mu.
func (r *registry) start(fn func()) {
	if r.ctx.Err() == nil {
		r.done.Go(fn)
	}
}

// join queues for the turn on name. An impatient waiter gets a place only if the
// turn is free, or may become so as soon as a statement under way has failed.
func (r *registry) join(name string, own *owner, impatient bool) (*waiter, bool) {
	w := &waiter{name: name, own: own, impatient: impatient, turn: make(chan struct{}), wake: make(chan struct{}, 1), refused: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[name]
	switch {
	case q == nil:
		r.queues[name] = &queue{turn: w}
		close(w.turn)
	case impatient && !q.asking:
		return nil, false
	default:
		w.place = q.next.PushBack(w)
	}
	return w, true
}

// asking tells that the turn's statement is under way, or that it has been
// answered: then nobody impatient has to stay.
func (r *registry) asking(w *waiter, now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	if q == nil || q.turn != w {
		return // its term is over already
	}
	q.asking = now
	if now {
		return
	}
	for e := q.next.Front(); e != nil; e = e.Next() {
		if o := e.Value.(*waiter); o.impatient {
			select {
			case <-o.refused:
			default:
				close(o.refused)
			}
		}
	}
}

// leave gives up the place or the turn; the turn passes to the next in line.
func (r *registry) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.gone {
		return
	}
	w.gone = true
	delete(r.watched, w)
	q := r.queues[w.name]
	if w.place != nil {
		q.next.Remove(w.place)
		return
	}
	first := q.next.Front()
	if first == nil {
		delete(r.queues, w.name)
		return
	}
	next := q.next.Remove(first).(*waiter)
	next.place = nil
	q.turn, q.asking = next, false
	close(next.turn)
}

// wakeOwner wakes the waiters that share the owner who has just got the name:
// they need not wait, they re-enter.
func (r *registry) wakeOwner(name string, own *owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		for e := q.next.Front(); e != nil; e = e.Next() {
			if o := e.Value.(*waiter); o.own == own {
				o.poke()
			}
		}
	}
}

// hint makes whoever has the turn on name look again.
func (r *registry) hint(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		q.turn.poke()
	}
}

// freed tells everybody of a release in the background, or by force.
func (r *registry) freed(name string) {
	r.hint(name)
	r.publish(name)
}

// publish tells other processes of a release by this one.
func (r *registry) publish(name string) {
	if r.notifier == nil {
		return
	}
	r.mu.Lock()
	r.subscribe()
	r.mu.Unlock()
	select {
	case r.outbox <- name:
	default: // only a hint; the others poll
		r.log.Debug("mysqllock: release not published, the notifier lags", "name", name)
	}
}

func (w *waiter) poke() { notify(w.wake) }

// watch makes the poller look for w, which has the turn and was refused, until
// the row is free or left has passed. A hint that came since w looked last is
// still in w.wake.
func (r *registry) watch(w *waiter, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.expiry = time.Now().Add(max(left, time.Millisecond))
	w.failed = nil
	r.watched[w] = struct{}{}
	r.subscribe()
	if r.polling {
		notify(r.replan)
		return
	}
	r.polling = true
	r.start(r.poll)
}

func (r *registry) unwatch(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watched, w)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// poll is the one poller of the process. It ends when nothing is watched.
func (r *registry) poll() {
	tick := time.Now().Add(r.interval)
	timer := time.NewTimer(r.interval)
	defer timer.Stop()
	for {
		next, ok := r.expire(tick)
		if !ok {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-r.ctx.Done():
			return
		case <-r.replan:
			continue
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(tick) {
			tick = now.Add(r.interval)
			r.look()
		}
	}
}

// expire wakes the waiters whose holder's lease has ended, and returns the next
// instant at which there is something to do.
func (r *registry) expire(tick time.Time) (next time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	next = tick
	for w := range r.watched {
		switch {
		case !w.expiry.After(now):
			delete(r.watched, w)
			w.poke()
		case w.expiry.Before(next):
			next = w.expiry
		}
	}
	r.polling = len(r.watched) > 0
	return next, r.polling
}

// look asks for all watched names in one statement, or in few if they are many.
func (r *registry) look() {
	r.mu.Lock()
	batch := make([]*waiter, 0, len(r.watched))
	for w := range r.watched {
		batch = append(batch, w)
	}
	r.mu.Unlock()
	for len(batch) > 0 && r.ctx.Err() == nil {
		n := min(len(batch), batchSize)
		r.lookAt(batch[:n])
		batch = batch[n:]
	}
}

func (r *registry) lookAt(batch []*waiter) {
	names := make([]string, len(batch))
	for i, w := range batch {
		names[i] = w.name
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, max(r.interval, time.Second), errSlow)
	rows, _, err := r.repo.look(ctx, names)
	cancel()

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range batch {
		if _, ok := r.watched[w]; !ok {
			continue
		}
		w.failed = err
		row, ok := rows[w.name]
		switch {
		case err != nil && transient(err):
			// The next tick asks again.
		case err != nil, !ok, row.left <= 0:
			// Free; or an error that the waiter's own statement shall meet.
			delete(r.watched, w)
			w.poke()
		default:
			w.expiry = time.Now().Add(row.left)
		}
	}
}

// trouble is what the poller met when it last looked for w.
func (r *registry) trouble(w *waiter) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.failed
}

// subscribe starts the goroutines that serve the notifier. The caller holds mu.
func (r *registry) subscribe() {
	if r.notifier == nil || r.subscribed {
		return
	}
	r.subscribed = true
	r.start(func() {
		for {
			if err := r.notifier.Subscribe(r.ctx, r.hint); err != nil && r.ctx.Err() == nil {
				r.log.Warn("mysqllock: notifier: subscribe", "err", err)
			}
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
	r.start(func() {
		for {
			select {
			case <-r.ctx.Done():
				return
			case name := <-r.outbox:
				r.send(name)
			}
		}
	})
}

func (r *registry) send(name string) {
	ctx, cancel := context.WithTimeout(r.voice, 5*time.Second)
	defer cancel()
	if err := r.notifier.Publish(ctx, name); err != nil {
		r.log.Warn("mysqllock: notifier: publish", "name", name, "err", err)
	}
}
