package mysqllock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Notifier publishes releases to other processes, through a message queue that they
// share. It only makes waiters look sooner: the row is the truth, and a message that is
// lost, late, duplicated or false costs time, never correctness.
type Notifier interface {
	// Publish announces that name was released. It runs in the background after each
	// release; ctx limits it to a few seconds.
	Publish(ctx context.Context, name string) error
	// Subscribe calls released for every name that any process publishes, and
	// blocks until ctx ends. If it returns sooner, it is called again after a
	// second.
	Subscribe(ctx context.Context, released func(name string)) error
}

// A registry has the wait queue of each name in this process, and wakes its head: after a
// release in this process, on a signal or a message of another one, when the holder's
// lease ends, and whenever the poller finds the row free. A waiter stays the head from its
// first statement until its hold has ended.
type registry struct {
	repo       waitStore
	self       store.Process
	interval   time.Duration
	signalling bool     // join wait queues in rows, and signal other processes
	notifier   Notifier // may be nil
	log        *slog.Logger

	ctx            context.Context // ends with close
	cancel         context.CancelFunc
	publishCtx     context.Context // for Publish; ends at most 1 s after ctx
	stopPublishing context.CancelFunc
	listenCtx      context.Context // for Listen; ends at most stopTimeout after ctx
	stopListening  context.CancelFunc
	done           sync.WaitGroup // the goroutines of the registry

	publishWarned warned // for errors of Publish; used by the goroutine that serves outbox, then by close

	mu            sync.Mutex // protects following fields, and those of every queue and waiter
	queues        map[string]*queue
	watched       map[*waiter]struct{} // sleep until their row is free
	polling       bool                 // the poller runs; it ends when nothing is watched
	nextLook      time.Time            // of the poller
	lookInterval  time.Duration        // from nextLook to the one after it
	signalWorks   bool                 // a signal has arrived
	falseWakes    int                  // wake-ups since the last grant
	timedOut      bool                 // the last Listen ended by itself
	expiries      int                  // leases that have ended since lookAgain began; 0 if it does not run
	listening     bool                 // this process can be signalled
	retryListenAt time.Time            // no Listen before
	listenBackoff time.Duration        // the next delay; 0 if the last Listen succeeded
	replan        chan struct{}        // capacity 1: watched has changed
	answeredAt    time.Time            // the last reply to an attempt or a probe
	contended     map[string]struct{}  // names that were refused recently
	leaving       map[string]struct{}  // names whose rows still list this process as waiting
	removing      bool                 // removeWaiters runs
	subscribed    bool
	outbox        chan string // names to publish
}

const (
	// minLookInterval is the poller's first interval while no signal has arrived. It doubles
	// after each look, up to the configured interval.
	minLookInterval = 100 * time.Millisecond
	// idleTimeout is how long the listener stays open without waiters.
	idleTimeout = 3 * time.Second
	// minListenBackoff is the delay after two failures to listen. It doubles, up to
	// maxListenBackoff, until Listen succeeds.
	minListenBackoff = time.Second
	maxListenBackoff = time.Minute
	// falseWakeBackoff is the delay after maxFalseWakes wake-ups, and one per waiter, without
	// a grant: a proxy may send the listener to a replica.
	falseWakeBackoff = 10 * time.Second
	maxFalseWakes    = 20
	// maxListen limits a Listen, which blocks ALTER TABLE.
	maxListen = 5 * time.Second
	// stopTimeout limits the end of a Listen after its signal.
	stopTimeout = 300 * time.Millisecond
	// signalTimeout limits a statement that signals or removes waiters.
	signalTimeout = 2 * time.Second
	// maxContended limits the names in registry.contended.
	maxContended = 1024
)

// A queue has the waiters of one name in this process, in order of arrival. It exists
// while it has a head.
type queue struct {
	head      *waiter
	asking    bool        // the head's statement is in flight, or about to be sent
	asked     time.Time   // when it was sent, or last known to wait for other statements
	known     bool        // by the last reply the lock is held, or its row locked
	granted   bool        // that reply was a grant to this process, which may have ended
	failed    error       // the last reply was an error
	claim     store.Claim // of that statement
	probing   bool        // a probe was sent
	probed    bool        // and has been answered
	next      list.List   // of *waiter; the others
	noWaiting int         // how many of them have noWait
}

// A waiter is one acquire call in a queue.
type waiter struct {
	name    string
	owner   *owner
	noWait  bool          // refused rather than queued behind a head that holds or sleeps
	isHead  chan struct{} // closed by the registry when it becomes the head
	wake    chan struct{} // capacity 1: look again; it may be a false alarm
	refused chan struct{} // closed when a waiter with noWait cannot become the head; else nil
	handoff *handoff      // of the head: what the last holder left; may be nil

	elem   *list.Element // in queue.next; nil for the head
	left   bool          // not in the queue any more
	waited bool          // was refused by the database
	listed bool          // the row's wait queue may have this process
	expiry *time.Timer   // while watched: fires when the holder's lease ends
	failed error         // of the poller's last look for this name
}

func newRegistry(repo waitStore, self store.Process, interval time.Duration, signal bool, notifier Notifier, log *slog.Logger) *registry {
	r := &registry{
		repo: repo, self: self, interval: interval, signalling: signal, notifier: notifier, log: log,
		queues: map[string]*queue{}, watched: map[*waiter]struct{}{},
		contended: map[string]struct{}{}, leaving: map[string]struct{}{},
		replan: make(chan struct{}, 1), outbox: make(chan string, 256),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.publishCtx, r.stopPublishing = context.WithCancel(context.Background())
	r.listenCtx, r.stopListening = context.WithCancel(context.Background())
	return r
}

// close ends the goroutines, waits for them, and publishes what is left in outbox.
func (r *registry) close() {
	r.mu.Lock()
	r.cancel()
	listening := r.listening
	r.mu.Unlock()
	defer r.stopListening()
	defer time.AfterFunc(stopTimeout, r.stopListening).Stop()
	if listening {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		r.repo.Signal(ctx, r.self)
		cancel()
	}
	defer r.stopPublishing()
	defer time.AfterFunc(time.Second, r.stopPublishing).Stop()
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

// start runs fn as a goroutine of the registry, unless it is closed. The caller holds mu.
func (r *registry) start(fn func()) {
	if r.ctx.Err() == nil {
		r.done.Go(fn)
	}
}

// join appends a waiter to the queue of name. A waiter with noWait joins only if there is
// no head, or a statement in flight may fail and leave it.
func (r *registry) join(name string, own *owner, noWait bool) (*waiter, bool) {
	w := &waiter{name: name, owner: own, noWait: noWait, isHead: make(chan struct{}), wake: make(chan struct{}, 1)}
	if noWait {
		w.refused = make(chan struct{})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[name]
	switch {
	case q == nil:
		r.queues[name] = &queue{head: w, asking: true, asked: time.Now()}
		close(w.isHead)
	case noWait && !q.asking:
		return nil, false
	default:
		w.elem = q.next.PushBack(w)
		if noWait {
			q.noWaiting++
		}
	}
	return w, true
}

// asking records that the head's statement is about to be sent. It returns the process
// that joins the row's wait queue if the statement is refused: 0, unless it was refused
// before, or the name was contended recently.
func (r *registry) asking(w *waiter, again bool) (list store.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w {
		q.asking, q.asked = true, time.Now()
	}
	_, contended := r.contended[w.name]
	switch {
	case !r.enlists(w) || !again && !contended:
		return 0
	case r.canListen():
		list = r.self
	default:
		list = r.self.Polling()
	}
	w.listed = true
	return list
}

// enlists reports whether w joins the row's wait queue if it is refused.
func (r *registry) enlists(w *waiter) bool { return r.signalling && !w.noWait }

// canListen reports whether this process expects signals. The caller holds mu.
func (r *registry) canListen() bool { return r.signalling && !time.Now().Before(r.retryListenAt) }

// answered records the reply to the head's statement, and refuses waiters with noWait.
func (r *registry) answered(w *waiter, granted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if granted {
		if !w.waited {
			delete(r.contended, w.name)
		}
		w.listed = false
		r.falseWakes = 0
	} else {
		if len(r.contended) == maxContended {
			clear(r.contended)
		}
		r.contended[w.name] = struct{}{}
		w.waited = true
	}
	w.failed = nil
	r.answeredAt = time.Now()
	q := r.queues[w.name]
	if q == nil || q.head != w {
		return // its hold has ended already
	}
	q.asking, q.known, q.granted, q.failed = false, true, granted, nil
	r.refuseNoWait(q)
}

// failed records an error of the head's statement. If it was only cut off, a probe finds
// out why it had no reply.
func (r *registry) failed(w *waiter, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w && !errors.Is(err, errNoAnswer) && !(q.known && !q.granted && errors.Is(err, errNoConnection)) {
		q.known, q.granted, q.failed = store.Contended(err), false, nil
		if !q.known {
			q.failed = err
		}
	}
}

// probed records what a probe has found in the way of the head's statement.
func (r *registry) probed(w *waiter, state store.RowState, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.answeredAt = time.Now()
	}
	q := r.queues[w.name]
	switch {
	case q == nil || q.head != w || !q.asking:
		return
	case err != nil:
		q.known, q.failed = false, err
	case state != store.RowFree:
		q.known, q.granted, q.failed, q.asked = true, false, nil, time.Now()
		w.failed = nil
		if state == store.RowLocked {
			r.refuseNoWait(q)
		}
	default:
		q.failed = nil // the database answers, but not this statement
	}
	q.probed = true
}

// refuseNoWait ends the queued calls with noWait. The caller holds mu.
func (r *registry) refuseNoWait(q *queue) {
	for e := q.next.Front(); e != nil && q.noWaiting > 0; e = e.Next() {
		if o := e.Value.(*waiter); o.noWait {
			select {
			case <-o.refused:
			default:
				close(o.refused)
			}
		}
	}
}

// leave removes w from its queue. If it was the head, the next waiter becomes the head and
// gets the handoff that w has not used; without one, leave returns the handoff.
func (r *registry) leave(w *waiter) *handoff {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.left {
		return nil
	}
	w.left = true
	r.forget(w)
	q := r.queues[w.name]
	if w.elem != nil {
		q.remove(w.elem)
		return nil
	}
	left := w.handoff
	w.handoff = nil
	if r.passHead(q, left) {
		return nil
	}
	delete(r.queues, w.name)
	if w.listed {
		r.leaveWaitQueue(w.name)
	}
	return left
}

// offer is leave for a holder that hands its row over as it is. It returns false, and has
// done nothing, if no other waiter is queued.
func (r *registry) offer(w *waiter, left *handoff) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.left || !r.passHead(r.queues[w.name], left) {
		return false
	}
	w.left = true
	return true
}

// queued reports whether a waiter is queued behind w, the head.
func (r *registry) queued(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	return !w.left && q != nil && q.next.Len() > 0
}

// passHead makes the next waiter the head, if there is one. The caller holds mu.
func (r *registry) passHead(q *queue, left *handoff) bool {
	first := q.next.Front()
	if first == nil {
		return false
	}
	next := q.remove(first)
	next.elem, next.handoff, next.listed = nil, left, q.head.listed
	q.head, q.asking, q.asked = next, true, time.Now()
	close(next.isHead)
	return true
}

func (q *queue) remove(elem *list.Element) *waiter {
	w := q.next.Remove(elem).(*waiter)
	if w.noWait {
		q.noWaiting--
	}
	return w
}

// takeOffer returns the handoff that w, the head, was offered, or nil.
func (r *registry) takeOffer(w *waiter) *handoff {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := w.handoff
	w.handoff = nil
	return left
}

// wakeOwner wakes the waiters of an owner that has just acquired the name: they re-enter.
func (r *registry) wakeOwner(name string, own *owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		for e := q.next.Front(); e != nil; e = e.Next() {
			if o := e.Value.(*waiter); o.owner == own {
				o.signal()
			}
		}
	}
}

// wakeHead makes the head of name's queue look again.
func (r *registry) wakeHead(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		q.head.signal()
	}
}

// freed wakes waiters here and elsewhere after releases in the background, or by force.
func (r *registry) freed(names []string, next store.Process) {
	for _, name := range names {
		r.wakeHead(name)
	}
	r.released(names, next)
}

// released publishes releases, and signals the processes that are next in the rows' wait
// queues; one of them is known.
func (r *registry) released(names []string, next store.Process) {
	if r.notifier != nil {
		r.mu.Lock()
		r.subscribe()
		r.mu.Unlock()
		for _, name := range names {
			select {
			case r.outbox <- name:
			default: // the others poll
				r.log.Debug("mysqllock: release not published, the notifier lags", "name", name)
			}
		}
	}
	if next != 0 && r.signalling {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.start(func() { r.signalNext(names, next) })
	}
}

// signalNext signals the processes that are next for the rows; one of them is known.
func (r *registry) signalNext(names []string, next store.Process) {
	byProcess := map[store.Process][]string{next: names}
	if len(names) > 1 {
		ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
		rows, _, err := r.repo.Look(ctx, names)
		cancel()
		if err != nil {
			r.log.Debug("mysqllock: not all waiters are known to be signalled, the others poll", "first", names[0], "err", err)
			r.signalWaiters(names, next)
			return
		}
		clear(byProcess)
		for name, row := range rows {
			if row.Remaining <= 0 {
				byProcess[row.Next] = append(byProcess[row.Next], name)
			}
		}
	}
	for next, names := range byProcess {
		r.signalWaiters(names, next)
	}
}

// signalWaiters wakes p, the head of the rows' wait queues. If p does not listen, it removes
// p and signals the next one.
func (r *registry) signalWaiters(names []string, p store.Process) {
	switch p {
	case 0:
		return
	case r.self, r.self.Polling():
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, name := range names {
			if q := r.queues[name]; q != nil {
				q.head.listed = true // the head may be the holder, about to leave
				q.head.signal()
			} else {
				r.leaveWaitQueue(name)
			}
		}
		return
	}
	if !p.CanListen() {
		return // it polls
	}
	ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
	defer cancel()
	alive, err := r.repo.Signal(ctx, p)
	var next store.Process
	for pause := 2 * time.Millisecond; err == nil && !alive && pause < 20*time.Millisecond; pause *= 2 {
		var all bool
		if next, all, err = r.repo.RemoveWaiter(ctx, names, p); all || next != 0 {
			break
		}
		time.Sleep(pause) // the row was locked
	}
	if err != nil {
		r.log.Debug("mysqllock: waiter not signalled, it polls", "first", names[0], "err", err)
	} else if next != 0 {
		r.signalNext(names, next)
	}
}

// leaveWaitQueue has this process removed from the wait queue of a name's row. The caller
// holds mu.
func (r *registry) leaveWaitQueue(name string) {
	r.leaving[name] = struct{}{}
	if !r.removing {
		r.removing = true
		r.start(r.removeWaiters)
	}
}

// removeWaiters serves leaveWaitQueue until nothing is left. Each statement skips locked
// rows, which are tried again: one that waited for them would stay in the server.
func (r *registry) removeWaiters() {
	const most = time.Second
	for pause := firstPause; ; {
		var names []string
		r.mu.Lock()
		for name := range r.leaving {
			if len(names) == store.BatchSize {
				break
			}
			delete(r.leaving, name)
			if q := r.queues[name]; q != nil {
				q.head.listed = true // a new waiter
				continue
			}
			names = append(names, name)
		}
		r.removing = len(names) > 0
		r.mu.Unlock()
		if len(names) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
		next, all, err := r.repo.RemoveWaiter(ctx, names, r.self)
		left := names
		if err == nil {
			left = nil
			if !all {
				var rows map[string]store.Row
				rows, _, err = r.repo.Look(ctx, names)
				left = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return err == nil && !rows[name].Listed })
			}
		}
		cancel()
		r.mu.Lock()
		for _, name := range names {
			if q := r.queues[name]; q != nil {
				q.head.signal() // a waiter that came meanwhile may have been removed
			}
		}
		r.mu.Unlock()
		if next != 0 {
			r.signalNext(names, next)
		}
		if len(left) == 0 {
			pause = firstPause
			continue
		}
		if err != nil {
			r.log.Debug("mysqllock: not removed from the wait lists, trying again", "locks", len(left), "first", left[0], "err", err)
			pause = most
		}
		r.mu.Lock()
		for _, name := range left {
			r.leaving[name] = struct{}{}
		}
		r.mu.Unlock()
		select {
		case <-r.ctx.Done():
			return // removing stays set: nothing is started any more
		case <-time.After(pause):
			pause = min(2*pause, most)
		}
	}
}

func (w *waiter) signal() { notify(w.wake) }

// watch makes the poller look for w, a head that was refused, until the row is free or left
// has passed. A wake-up since w's last look is still in w.wake.
func (r *registry) watch(w *waiter, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.expiry = time.AfterFunc(max(left, time.Millisecond), func() { r.expired(w) })
	w.failed = nil
	r.watched[w] = struct{}{}
	r.subscribe()
	if len(r.watched) == 1 {
		// Until a signal has arrived, the first looks are sooner.
		r.lookInterval = r.interval
		if r.signalling && !r.signalWorks {
			r.lookInterval = min(minLookInterval, r.interval)
		}
		r.nextLook = time.Now().Add(r.lookInterval)
	}
	if r.polling {
		notify(r.replan)
		return
	}
	r.polling = true
	r.start(r.poll)
}

// expired is called when a holder's lease ends, unless it was renewed. A single waiter
// asks at once; for several, one look finds the rows that are free.
func (r *registry) expired(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch _, ok := r.watched[w]; {
	case !ok:
	case len(r.watched) == 1:
		r.found(w)
	default:
		if r.expiries++; r.expiries == 1 {
			r.start(r.lookAgain)
		}
	}
}

// lookAgain looks until no lease has ended meanwhile. Leases that end together need one
// look.
func (r *registry) lookAgain() {
	r.mu.Lock()
	for seen := 0; seen < r.expiries; {
		r.mu.Unlock()
		time.Sleep(time.Millisecond)
		r.mu.Lock()
		seen = r.expiries
		r.mu.Unlock()
		r.look()
		r.mu.Lock()
	}
	r.expiries = 0
	r.mu.Unlock()
}

func (r *registry) unwatch(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(w)
}

// forget is unwatch for a caller that holds mu.
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

// poll is the only poller of the process. It listens for signals, if it can, or sleeps
// until the next look. It ends when nothing is watched. Once stopPolling has returned true
// another poller may run and listen, so poll must not close the listener after that.
func (r *registry) poll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var idle time.Duration
	for r.ctx.Err() == nil {
		names, sleep, listen := r.plan()
		switch {
		case len(names) > 0:
			idle = 0
			if listen {
				r.listen(names, sleep)
				continue
			}
		case idle == idleTimeout || !r.listening || r.repo.PoolInUse():
			r.closeListener()
			if r.stopPolling() {
				return
			}
			continue
		default:
			sleep = idleTimeout / 10
			idle += sleep
		}
		timer.Reset(sleep)
		select {
		case <-r.ctx.Done():
		case <-r.replan:
		case <-timer.C:
			if len(names) > 0 {
				r.lookDue()
				r.look()
			}
		}
	}
	r.closeListener() // polling stays set: after close no other poller starts
}

// plan returns the names that are watched, at most a batch, and the time to the next look.
func (r *registry) plan() (names []string, sleep time.Duration, listen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watched {
		if names = append(names, w.name); len(names) == store.BatchSize {
			break
		}
	}
	return names, max(0, time.Until(r.nextLook)), r.canListen()
}

// stopPolling reports whether the poller must end: nothing is watched.
func (r *registry) stopPolling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polling = len(r.watched) > 0
	return !r.polling
}

// lookDue schedules the next look.
func (r *registry) lookDue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookInterval = min(2*r.lookInterval, r.interval)
	r.nextLook = time.Now().Add(r.lookInterval)
}

// listen waits for a signal.
func (r *registry) listen(names []string, sleep time.Duration) {
	sleep = min(sleep, maxListen)
	if len(names) == store.BatchSize {
		sleep = min(sleep, time.Second) // there may be more
	}
	r.mu.Lock()
	r.listening = true
	r.mu.Unlock()
	h, err := r.repo.Listen(r.listenCtx, names, sleep)
	r.mu.Lock()
	if h != (store.Wakeup{}) {
		if r.falseWakes++; r.falseWakes > maxFalseWakes+len(r.queues) {
			err = errFalseWakes
		}
	}
	switch {
	case h.Signalled:
		r.signalWorks, r.lookInterval = true, r.interval
		if len(r.watched) == 1 {
			for w := range r.watched {
				r.found(w)
			}
		}
		for _, q := range r.queues {
			if q.asking && q.head.listed {
				q.head.signal() // its refusal may be in flight
			}
		}
	case h.Name != "":
		if r.timedOut { // without a signal
			r.signalWorks = false
		}
		if q := r.queues[h.Name]; q != nil {
			r.found(q.head)
		}
	}
	r.timedOut = err == nil && h == (store.Wakeup{})
	if err == nil {
		r.listenBackoff = 0
	} else {
		r.listenFailed(err)
	}
	r.mu.Unlock()
	switch {
	case err != nil:
		if r.ctx.Err() == nil {
			r.log.Debug("mysqllock: cannot be signalled for now", "err", err)
		}
		r.closeListener()
	case h == (store.Wakeup{}):
		r.lookDue()
	}
	if h.Missing || len(names) == store.BatchSize {
		r.look()
	}
}

var errFalseWakes = errors.New("many wake-ups without a grant")

// listenFailed sets the delay until the next Listen. A first failure has none, unless the
// pool is exhausted. The caller holds mu.
func (r *registry) listenFailed(err error) {
	pause := r.listenBackoff
	switch {
	case err == store.ErrPoolTooSmall:
		pause = maxListenBackoff
	case err == errFalseWakes:
		pause, r.falseWakes = falseWakeBackoff, 0
	case pause == 0 && err != store.ErrPoolInUse:
		r.listenBackoff = minListenBackoff
		return // the connection may have been broken
	default:
		pause = max(pause, minListenBackoff)
		r.listenBackoff = min(2*pause, maxListenBackoff)
	}
	r.signalWorks = false
	r.retryListenAt = time.Now().Add(pause)
	r.lookInterval = min(minLookInterval, r.interval)
	r.nextLook = time.Now().Add(r.lookInterval)
}

// closeListener closes the listener's connection.
func (r *registry) closeListener() {
	r.repo.CloseListener()
	r.mu.Lock()
	r.listening, r.timedOut = false, false
	r.mu.Unlock()
}

// found wakes a waiter whose row may be free. The caller holds mu.
func (r *registry) found(w *waiter) {
	if _, ok := r.watched[w]; ok {
		r.forget(w)
		w.signal()
	}
}

// look reads all watched rows, in batches.
func (r *registry) look() {
	r.mu.Lock()
	batch := make([]*waiter, 0, len(r.watched))
	for w := range r.watched {
		batch = append(batch, w)
	}
	r.mu.Unlock()
	for len(batch) > 0 && r.ctx.Err() == nil {
		n := min(len(batch), store.BatchSize)
		r.lookAt(batch[:n])
		batch = batch[n:]
	}
}

func (r *registry) lookAt(batch []*waiter) {
	names := make([]string, len(batch))
	for i, w := range batch {
		names[i] = w.name
	}
	ctx, cancel := store.WithRetryLimit(r.ctx, max(r.interval, time.Second))
	rows, _, err := r.repo.Look(ctx, names)
	if err != nil && ctx.Err() != nil {
		err = unanswered(err)
	}
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
		case err != nil && store.Transient(err):
			// The next look tries again.
		case err != nil, !ok, row.Remaining <= 0, w.listed && !row.Waiting:
			// The row is free, or this process is not in its wait queue any more, or the
			// waiter's own statement will return the error.
			r.found(w)
		default:
			w.expiry.Reset(row.Remaining)
		}
	}
}

// replyTimeout is how long a statement may have no reply, after the database has reported
// the lock as held, before that counts as an outage.
const replyTimeout = 3 * probeInterval / 2

// replyTimeoutAfterHold is the same after a grant to this process.
const replyTimeoutAfterHold = probeInterval

// refusal is the error of a call with noWait behind a sleeping head. It includes the error
// of the poller's last look for that head.
func (r *registry) refusal(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil && !q.asking && q.head.failed != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, q.head.failed)
	}
	return ErrNotAcquired
}

// lastErr returns why the database could not be asked for w's lock, by w or by the head of
// its queue. It is zero if another owner holds the lock.
func (r *registry) lastErr(w *waiter) waitErr {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	switch {
	case q == nil:
		return waitErr{}
	case q.head.failed != nil: // the poller's last look for it
		return waitErr{err: q.head.failed}
	case q.failed != nil:
		return waitErr{err: q.failed}
	case q.asking && !q.known && (q.probed || r.answeredAt.After(q.asked)):
		return waitErr{err: errNoAnswer, slow: time.Since(q.asked) < slowReply}
	case q.asking && !q.known && time.Since(q.asked) < 2*probeAfter:
		if head, c := q.head, q.claim; !q.probing && time.Since(q.asked) >= probeSoon { // before, the reply itself may arrive
			q.probing = true
			r.start(func() { r.probe(r.ctx, head, c) })
		}
		return waitErr{err: errNoAnswer, probing: true}
	case q.asking && (!q.known || time.Since(q.asked) > replyTimeout || q.granted && time.Since(q.asked) > replyTimeoutAfterHold):
		return waitErr{err: errNoAnswer}
	}
	return waitErr{}
}

// slowReply is how long a statement may have no reply, from a database that replies to
// others, before that counts as an outage.
const slowReply = 500 * time.Millisecond

// A waitErr is why the database has not reported who holds a lock.
type waitErr struct {
	err     error
	probing bool // a probe is in flight
	slow    bool // the database replies to others, and has had little time for this statement
}

// sending records the claim of the head's statement.
func (r *registry) sending(w *waiter, c store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w {
		q.claim, q.probing, q.probed = c, false, false
	}
}

// probe finds out what is in the way of the head's statement.
func (r *registry) probe(ctx context.Context, w *waiter, c store.Claim) store.RowState {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	state, err := r.repo.Probe(ctx, c)
	if err != nil && ctx.Err() != nil {
		err = unanswered(err)
	}
	r.probed(w, state, err)
	return state
}

// subscribe starts the goroutines that serve the notifier. The caller holds mu.
func (r *registry) subscribe() {
	if r.notifier == nil || r.subscribed {
		return
	}
	r.subscribed = true
	r.start(func() {
		var lastWarning warned
		for {
			if err := r.notifier.Subscribe(r.ctx, r.wakeHead); err != nil && r.ctx.Err() == nil {
				r.log.Log(r.ctx, lastWarning.level(), "mysqllock: notifier: subscribe", "err", err)
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
	ctx, cancel := context.WithTimeout(r.publishCtx, 5*time.Second)
	defer cancel()
	if err := r.notifier.Publish(ctx, name); err != nil {
		r.log.Log(ctx, r.publishWarned.level(), "mysqllock: notifier: publish", "name", name, "err", err)
	}
}

// warned is the time of the last warning. Within a minute of it, level returns debug.
type warned time.Time

func (w *warned) level() slog.Level {
	if now := time.Now(); now.Sub(time.Time(*w)) >= time.Minute {
		*w = warned(now)
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
