package mysqllock

import (
	"container/list"
	"context"
	"errors"
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
// this process, when another rings or sends word, when the holder's lease ends,
// and otherwise each time the poller finds the row free. It knows nothing of
// terms: the turn on a name belongs to one waiter from the moment it asks the
// database until its term is over.
type registry struct {
	repo     repository
	me       process
	interval time.Duration
	signal   bool     // have this process listed and rung, and ring others
	notifier Notifier // may be nil
	log      *slog.Logger

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	voice  context.Context // of Publish; ends a second after ctx at the latest
	mute   context.CancelFunc
	ears   context.Context // of listening; ends with quiet after ctx
	plug   context.CancelFunc
	done   sync.WaitGroup // the goroutines of the registry

	mu          sync.Mutex // guards the following, and the fields of every queue and waiter
	queues      map[string]*queue
	watched     map[*waiter]struct{} // those that sleep until their row is free
	polling     bool                 // the poller runs; it ends when nothing is watched
	tick        time.Time            // when it looks next
	pause       time.Duration        // between that and the look after it
	proven      bool                 // rings are heard
	rings       int                  // rings heard since the last grant
	slept       bool                 // the last listening ended by itself
	listening   bool                 // somebody can ring
	deaf        time.Time            // until then listening is not tried
	deafness    time.Duration        // how long the next such time is; zero if listening succeeded last
	replan      chan struct{}        // capacity 1: the poller looks at what is watched again
	contended   map[string]struct{}  // names that were refused lately
	withdrawn   map[string]struct{}  // names for which this process does not wait any more, though listed
	withdrawing bool                 // the goroutine runs that strikes it off
	subscribed  bool
	outbox      chan string // names to publish
}

const (
	// firstLook is how soon the poller looks where no ring was heard yet; each
	// look in vain doubles it, up to the interval.
	firstLook = 100 * time.Millisecond
	// linger is how long a connection that listens is kept when nobody waits.
	linger = 3 * time.Second
	// deafness is how long the poller does without rings when it has failed to
	// listen twice, or when more than maxRings were rung to no end (a time limit on
	// statements looks like a ring). It doubles, up to maxDeafness, until listening
	// succeeds.
	deafness    = time.Second
	maxDeafness = time.Minute
	maxRings    = 100
	// maxSleep bounds a listening statement, which keeps others from altering the
	// table.
	maxSleep = 5 * time.Second
	// quiet is how long a listening statement may take to end when it was rung.
	quiet = 300 * time.Millisecond
	// signalBound bounds a statement that rings or strikes.
	signalBound = 2 * time.Second
	// maxContended bounds what is remembered of refusals.
	maxContended = 1024
)

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
	refused   chan struct{} // closed when an impatient waiter cannot have the turn; nil if it is patient
	estate    *estate       // came with the turn; may be nil. Belongs to whoever has the turn

	place  *list.Element // in queue.next; nil with the turn
	gone   bool
	listed bool        // the row may list this process on behalf of the turn
	expiry *time.Timer // while watched: pokes when the holder's lease ends
	failed error       // what the poller met when it last looked for this name
}

func newRegistry(repo repository, me process, interval time.Duration, signal bool, notifier Notifier, log *slog.Logger) *registry {
	r := &registry{
		repo: repo, me: me, interval: interval, signal: signal, notifier: notifier, log: log,
		queues: map[string]*queue{}, watched: map[*waiter]struct{}{},
		contended: map[string]struct{}{}, withdrawn: map[string]struct{}{},
		replan: make(chan struct{}, 1), outbox: make(chan string, 256),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.voice, r.mute = context.WithCancel(context.Background())
	r.ears, r.plug = context.WithCancel(context.Background())
	return r
}

// close ends the goroutines, waits for them, and says what they had not yet.
func (r *registry) close() {
	r.mu.Lock()
	r.cancel()
	listening := r.listening
	r.mu.Unlock()
	defer r.plug()
	defer time.AfterFunc(quiet, r.plug).Stop()
	if listening {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		r.repo.ring(ctx, r.me)
		cancel()
	}
	defer r.mute()
	defer time.AfterFunc(time.Second, r.mute).Stop()
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
	w := &waiter{name: name, own: own, impatient: impatient, turn: make(chan struct{}), wake: make(chan struct{}, 1)}
	if impatient {
		w.refused = make(chan struct{})
	}
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

// asking tells that the turn's statement is under way. It returns whether that
// is to list this process as waiting, if it is refused: when it was refused
// before, or others were lately.
func (r *registry) asking(w *waiter, again bool) (list bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.turn == w {
		q.asking = true
	}
	_, contended := r.contended[w.name]
	list = (again || contended) && !w.impatient && r.hears()
	w.listed = w.listed || list
	return list
}

// hears tells whether this process can be rung, as far as it knows. The caller
// holds mu.
func (r *registry) hears() bool { return r.signal && !time.Now().Before(r.deaf) }

// lists tells whether w could be listed if it asked again.
func (r *registry) lists(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !w.impatient && r.hears()
}

// answered tells how the turn's statement was answered: then nobody impatient
// has to stay.
func (r *registry) answered(w *waiter, granted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if granted {
		w.listed = false
		r.rings = 0
		delete(r.contended, w.name)
	} else if len(r.contended) < maxContended {
		r.contended[w.name] = struct{}{}
	}
	q := r.queues[w.name]
	if q == nil || q.turn != w {
		return // its term is over already
	}
	q.asking = false
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

// leave gives up the place or the turn; the turn passes to the next in line, and
// with it what the last holder left. That is returned if nobody is in line.
func (r *registry) leave(w *waiter) *estate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.gone {
		return nil
	}
	w.gone = true
	r.forget(w)
	q := r.queues[w.name]
	if w.place != nil {
		q.next.Remove(w.place)
		return nil
	}
	left := w.estate
	w.estate = nil
	if r.pass(q, left) {
		return nil
	}
	delete(r.queues, w.name)
	if w.listed {
		r.withdraw(w.name)
	}
	return left
}

// bequeath is leave for a holder whose row the next in line shall have as it is.
// It returns false, and has done nothing, if nobody is in line.
func (r *registry) bequeath(w *waiter, left *estate) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.gone || !r.pass(r.queues[w.name], left) {
		return false
	}
	w.gone = true
	return true
}

// pass gives the turn to the next in line, if there is one. The caller holds mu.
func (r *registry) pass(q *queue, left *estate) bool {
	first := q.next.Front()
	if first == nil {
		return false
	}
	next := q.next.Remove(first).(*waiter)
	next.place, next.estate, next.listed = nil, left, q.turn.listed
	q.turn, q.asking = next, false
	close(next.turn)
	return true
}

// inherit takes what came with the turn, if anything did.
func (r *registry) inherit(w *waiter) *estate {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := w.estate
	w.estate = nil
	return left
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

// freed tells everybody of releases in the background, or by force.
func (r *registry) freed(names []string, heir process) {
	for _, name := range names {
		r.hint(name)
	}
	r.released(names, heir)
}

// released tells other processes of releases by this one: those who read the
// message queue, and the heirs.
func (r *registry) released(names []string, heir process) {
	if r.notifier != nil {
		r.mu.Lock()
		r.subscribe()
		r.mu.Unlock()
		for _, name := range names {
			select {
			case r.outbox <- name:
			default: // only a hint; the others poll
				r.log.Debug("mysqllock: release not published, the notifier lags", "name", name)
			}
		}
	}
	if heir != 0 && r.signal {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.start(func() { r.call(names, heir) })
	}
}

// call rings the heirs of rows that were freed.
func (r *registry) call(names []string, heir process) {
	if len(names) == 1 {
		r.ring(names[0], heir)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), signalBound)
	rows, _, err := r.repo.look(ctx, names)
	cancel()
	if err != nil {
		r.log.Debug("mysqllock: waiters not rung, they poll", "first", names[0], "err", err)
		return
	}
	rung := map[process]bool{0: true}
	for name, row := range rows {
		if !rung[row.heir] && row.left <= 0 {
			rung[row.heir] = true
			r.ring(name, row.heir)
		}
	}
}

// ring wakes the process that is first in the list of a row; processes that do
// not listen are struck off until one does.
func (r *registry) ring(name string, heir process) {
	for heir != 0 && heir != r.me {
		ctx, cancel := context.WithTimeout(context.Background(), signalBound)
		alive, err := r.repo.ring(ctx, heir)
		if err == nil && !alive {
			heir, err = r.repo.strike(ctx, []string{name}, heir)
		}
		cancel()
		if err != nil {
			r.log.Debug("mysqllock: waiter not rung, it polls", "name", name, "err", err)
		}
		if alive || err != nil {
			return
		}
	}
	if heir == r.me {
		r.hint(name)
	}
}

// withdraw has this process struck off the list of a name. The caller holds mu.
func (r *registry) withdraw(name string) {
	r.withdrawn[name] = struct{}{}
	if !r.withdrawing {
		r.withdrawing = true
		r.start(r.strike)
	}
}

// strike serves withdraw until there is nothing left to do.
func (r *registry) strike() {
	for {
		var names []string
		r.mu.Lock()
		for name := range r.withdrawn {
			if len(names) == batchSize {
				break
			}
			delete(r.withdrawn, name)
			if q := r.queues[name]; q != nil {
				q.turn.listed = true // somebody waits again
				continue
			}
			names = append(names, name)
		}
		r.withdrawing = len(names) > 0
		r.mu.Unlock()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), signalBound)
		heir, err := r.repo.strike(ctx, names, r.me)
		cancel()
		if err != nil {
			r.log.Debug("mysqllock: not struck off the lists of those who wait", "names", len(names), "err", err)
		} else if heir != 0 {
			r.call(names, heir)
		}
	}
}

func (w *waiter) poke() { notify(w.wake) }

// watch makes the poller look for w, which has the turn and was refused, until
// the row is free or left has passed. A hint that came since w looked last is
// still in w.wake.
func (r *registry) watch(w *waiter, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.expiry = time.AfterFunc(max(left, time.Millisecond), w.poke)
	w.failed = nil
	r.watched[w] = struct{}{}
	r.subscribe()
	if !r.polling || !r.proven {
		// Where it is not known that rings are heard, the first looks are sooner.
		r.pause = r.interval
		if r.signal && !r.proven {
			r.pause = min(firstLook, r.interval)
		}
		if next := time.Now().Add(r.pause); !r.polling || next.Before(r.tick) {
			r.tick = next
		}
	}
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
	r.forget(w)
}

// forget is unwatch for a caller who holds mu.
func (r *registry) forget(w *waiter) {
	if w.expiry != nil {
		w.expiry.Stop()
	}
	delete(r.watched, w)
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// poll is the one poller of the process. It listens for rings, if it can, and
// otherwise sleeps, until the next tick. It ends when nothing is watched.
func (r *registry) poll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for r.ctx.Err() == nil {
		names, sleep, listen := r.plan()
		switch {
		case len(names) == 0 && !r.listening:
			if r.rest() {
				return
			}
			continue
		case len(names) == 0:
			sleep = linger
		case listen && r.listen(names, sleep):
			continue
		}
		timer.Reset(sleep)
		select {
		case <-r.ctx.Done():
		case <-r.replan:
		case <-timer.C:
			if len(names) > 0 {
				r.ticked()
				r.look()
			} else {
				r.hush()
			}
		}
	}
	r.hush()
}

// plan returns what is watched, at most a batch, and for how long.
func (r *registry) plan() (names []string, sleep time.Duration, listen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watched {
		if names = append(names, w.name); len(names) == batchSize {
			break
		}
	}
	return names, max(0, time.Until(r.tick)), r.hears()
}

// rest ends the poller, unless there is something to watch.
func (r *registry) rest() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polling = len(r.watched) > 0
	return !r.polling
}

// ticked sets the next tick.
func (r *registry) ticked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause = min(2*r.pause, r.interval)
	r.tick = time.Now().Add(r.pause)
}

// listen waits for a ring. It returns false if that is not possible for now.
func (r *registry) listen(names []string, sleep time.Duration) bool {
	h, err := r.repo.listen(r.ears, names, min(sleep, maxSleep))
	r.mu.Lock()
	r.listening = true
	switch {
	case h.rung:
		r.rings++
		r.proven, r.pause = true, r.interval
		if r.rings > maxRings {
			err = errRings
		} else if len(r.watched) == 1 {
			for w := range r.watched {
				r.found(w)
			}
		}
	case h.name != "":
		if r.slept { // and was not rung
			r.proven = false
		}
		if q := r.queues[h.name]; q != nil {
			r.found(q.turn)
		}
	}
	r.slept = err == nil && h == (heard{})
	again := true
	switch {
	case err == nil:
		r.deafness = 0
	case r.deafness == 0 && err != errSmallPool && err != errRings:
		r.deafness = deafness // unless a new connection can
	default:
		again = false
		r.rings, r.proven = 0, false
		r.deafness = max(deafness, r.deafness)
		r.deaf = time.Now().Add(r.deafness)
		r.deafness = min(2*r.deafness, maxDeafness)
		r.pause = min(firstLook, r.interval)
		r.tick = time.Now().Add(r.pause)
	}
	r.mu.Unlock()
	switch {
	case err != nil:
		if r.ctx.Err() == nil {
			r.log.Debug("mysqllock: cannot be rung for now, polling", "err", err)
		}
		r.hush()
		return again
	case h == (heard{}):
		r.ticked()
		if len(names) == batchSize {
			r.look() // there may be more
		}
	case h.missing:
		r.look()
	}
	return true
}

var errRings = errors.New("rung again and again for nothing")

// hush ends the listening.
func (r *registry) hush() {
	r.repo.hush()
	r.mu.Lock()
	r.listening = false
	r.mu.Unlock()
}

// found wakes a waiter whose row may be free. The caller holds mu.
func (r *registry) found(w *waiter) {
	if _, ok := r.watched[w]; ok {
		r.forget(w)
		w.poke()
	}
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
	ctx, cancel := brief(r.ctx, max(r.interval, time.Second))
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
			r.found(w)
		default:
			w.expiry.Reset(row.left)
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
