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
	repo       waitStore
	self       store.Process
	interval   time.Duration
	signalling bool     // have this process listed and rung, and ring others
	notifier   Notifier // may be nil
	log        *slog.Logger

	ctx            context.Context // ends with close
	cancel         context.CancelFunc
	publishCtx     context.Context // of Publish; ends a second after ctx at the latest
	stopPublishing context.CancelFunc
	listenCtx      context.Context // of listening; ends with quiet after ctx
	stopListening  context.CancelFunc
	done           sync.WaitGroup // the goroutines of the registry

	publishWarned warned // of what Publish returned; for the goroutine that serves outbox, then for close

	mu            sync.Mutex // guards the following, and the fields of every queue and waiter
	queues        map[string]*queue
	watched       map[*waiter]struct{} // those that sleep until their row is free
	polling       bool                 // the poller runs; it ends when nothing is watched
	nextLook      time.Time            // when it looks next
	lookInterval  time.Duration        // between that and the look after it
	signalWorks   bool                 // rings are heard
	falseWakes    int                  // what was heard since the last grant
	timedOut      bool                 // the last listening ended by itself
	expiries      int                  // leases that have ended since lookAgain began; zero if it does not run
	listening     bool                 // somebody can ring
	retryListenAt time.Time            // until then listening is not tried
	listenBackoff time.Duration        // how long the next such time is; zero if listening succeeded last
	replan        chan struct{}        // capacity 1: the poller looks at what is watched again
	answeredAt    time.Time            // when the database last answered an attempt or a probe
	contended     map[string]struct{}  // names that were refused lately
	leaving       map[string]struct{}  // names for which this process does not wait any more, though listed
	removing      bool                 // the goroutine runs that strikes it off
	subscribed    bool
	outbox        chan string // names to publish
}

const (
	// firstLook is how soon the poller looks where no ring was heard yet; each
	// look in vain doubles it, up to the interval.
	minLookInterval = 100 * time.Millisecond
	// linger is how long a connection that listens is kept when nobody waits.
	idleTimeout = 3 * time.Second
	// deafness is how long the poller does without rings when it has failed to
	// listen twice. It doubles, up to maxDeafness, until listening succeeds.
	minListenBackoff = time.Second
	maxListenBackoff = time.Minute
	// The poller does without for distrust if what it heard was true for none of
	// so many, and for all that wait: a proxy may send what listens to a replica.
	falseWakeBackoff = 10 * time.Second
	maxFalseWakes    = 20
	// maxSleep bounds a listening statement, which keeps others from altering the
	// table.
	maxListen = 5 * time.Second
	// quiet is how long a listening statement may take to end when it was rung.
	stopTimeout = 300 * time.Millisecond
	// signalBound bounds a statement that rings or strikes.
	signalTimeout = 2 * time.Second
	// maxContended bounds what is remembered of refusals.
	maxContended = 1024
)

// A queue is one name's waiters in the order in which they came. It exists
// while somebody has the turn.
type queue struct {
	head      *waiter
	asking    bool        // the turn's statement is under way, or about to be sent
	asked     time.Time   // when it was sent, or was last known to wait for others
	known     bool        // the last word of the database: somebody has the lock, or its row
	granted   bool        // that was a grant to this process, which may be over
	failed    error       // the last word was an error
	claim     store.Claim // of that statement
	probing   bool        // a probe of it was sent
	probed    bool        // and was answered
	next      list.List   // of *waiter
	noWaiting int         // of those in next
}

// A waiter is one acquisition's place in a queue.
type waiter struct {
	name    string
	owner   *owner
	noWait  bool          // refused rather than queued behind somebody who holds or sleeps
	isHead  chan struct{} // closed when the turn comes
	wake    chan struct{} // capacity 1: look again; a hint that may be false
	refused chan struct{} // closed when an impatient waiter cannot have the turn; nil if it is patient
	handoff *handoff      // came with the turn; may be nil. Belongs to whoever has the turn

	elem   *list.Element // in queue.next; nil with the turn
	left   bool
	waited bool        // it was refused
	listed bool        // the row may list this process on behalf of the turn
	expiry *time.Timer // while watched: pokes when the holder's lease ends
	failed error       // what the poller met when it last looked for this name
}

func newRegistry(repo waitStore, me store.Process, interval time.Duration, signal bool, notifier Notifier, log *slog.Logger) *registry {
	r := &registry{
		repo: repo, self: me, interval: interval, signalling: signal, notifier: notifier, log: log,
		queues: map[string]*queue{}, watched: map[*waiter]struct{}{},
		contended: map[string]struct{}{}, leaving: map[string]struct{}{},
		replan: make(chan struct{}, 1), outbox: make(chan string, 256),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.publishCtx, r.stopPublishing = context.WithCancel(context.Background())
	r.listenCtx, r.stopListening = context.WithCancel(context.Background())
	return r
}

// close ends the goroutines, waits for them, and says what they had not yet.
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
	w := &waiter{name: name, owner: own, noWait: impatient, isHead: make(chan struct{}), wake: make(chan struct{}, 1)}
	if impatient {
		w.refused = make(chan struct{})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[name]
	switch {
	case q == nil:
		r.queues[name] = &queue{head: w, asking: true, asked: time.Now()}
		close(w.isHead)
	case impatient && !q.asking:
		return nil, false
	default:
		w.elem = q.next.PushBack(w)
		if impatient {
			q.noWaiting++
		}
	}
	return w, true
}

// asking tells that the turn's statement is under way. It returns who is to be
// listed as waiting if that is refused: nobody yet, unless it was refused before,
// or others were lately.
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

// lists tells whether w is to be listed if it is refused.
func (r *registry) enlists(w *waiter) bool { return r.signalling && !w.noWait }

// hears tells whether this process can be rung, as far as it knows. The caller
// holds mu.
func (r *registry) canListen() bool { return r.signalling && !time.Now().Before(r.retryListenAt) }

// answered tells how the turn's statement was answered: then nobody impatient
// has to stay.
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
		return // its term is over already
	}
	q.asking, q.known, q.granted, q.failed = false, true, granted, nil
	r.refuseNoWait(q)
}

// failed tells that the turn's statement failed. If it was only cut off, it is for
// a probe to find out why it had no answer.
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

// probed tells what was found in the way of the turn's statement, which is still
// under way.
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
		q.failed = nil // the database answers, but not what it was asked
	}
	q.probed = true
}

// refuse ends the calls in line that do not wait. The caller holds mu.
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

// leave gives up the place or the turn; the turn passes to the next in line, and
// with it what the last holder left. That is returned if nobody is in line.
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

// bequeath is leave for a holder whose row the next in line shall have as it is.
// It returns false, and has done nothing, if nobody is in line.
func (r *registry) offer(w *waiter, left *handoff) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.left || !r.passHead(r.queues[w.name], left) {
		return false
	}
	w.left = true
	return true
}

// queued reports whether somebody is in line behind w, whose turn it is.
func (r *registry) queued(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	return !w.left && q != nil && q.next.Len() > 0
}

// pass gives the turn to the next in line, if there is one. The caller holds mu.
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

func (q *queue) remove(place *list.Element) *waiter {
	w := q.next.Remove(place).(*waiter)
	if w.noWait {
		q.noWaiting--
	}
	return w
}

// inherit takes what came with the turn, if anything did.
func (r *registry) takeOffer(w *waiter) *handoff {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := w.handoff
	w.handoff = nil
	return left
}

// wakeOwner wakes the waiters that share the owner who has just got the name:
// they need not wait, they re-enter.
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

// hint makes whoever has the turn on name look again.
func (r *registry) wakeHead(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil {
		q.head.signal()
	}
}

// freed tells everybody of releases in the background, or by force.
func (r *registry) freed(names []string, heir store.Process) {
	for _, name := range names {
		r.wakeHead(name)
	}
	r.released(names, heir)
}

// released tells other processes of releases by this one: those who read the
// message queue, and the heirs.
func (r *registry) released(names []string, heir store.Process) {
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
	if heir != 0 && r.signalling {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.start(func() { r.signalNext(names, heir) })
	}
}

// call rings the heirs of rows that were freed; one of them is known.
func (r *registry) signalNext(names []string, heir store.Process) {
	heirs := map[store.Process][]string{heir: names}
	if len(names) > 1 {
		ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
		rows, _, err := r.repo.Look(ctx, names)
		cancel()
		if err != nil {
			r.log.Debug("mysqllock: not all waiters are known to be signalled, the others poll", "first", names[0], "err", err)
			r.signalWaiters(names, heir)
			return
		}
		clear(heirs)
		for name, row := range rows {
			if row.Remaining <= 0 {
				heirs[row.Next] = append(heirs[row.Next], name)
			}
		}
	}
	for heir, names := range heirs {
		r.signalWaiters(names, heir)
	}
}

// ring wakes the process that is first in the lists of rows. One that does not
// listen is struck off, and the next is called.
func (r *registry) signalWaiters(names []string, heir store.Process) {
	switch heir {
	case 0:
		return
	case r.self, r.self.Polling():
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, name := range names {
			if q := r.queues[name]; q != nil {
				q.head.listed = true // whose turn it is may be the holder, about to leave
				q.head.signal()
			} else {
				r.leaveWaitQueue(name)
			}
		}
		return
	}
	if !heir.CanListen() {
		return // it looks soon
	}
	ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
	defer cancel()
	alive, err := r.repo.Signal(ctx, heir)
	var next store.Process
	for pause := 2 * time.Millisecond; err == nil && !alive && pause < 20*time.Millisecond; pause *= 2 {
		var all bool
		if next, all, err = r.repo.RemoveWaiter(ctx, names, heir); all || next != 0 {
			break
		}
		time.Sleep(pause) // somebody had the row locked, for a moment perhaps
	}
	if err != nil {
		r.log.Debug("mysqllock: waiter not rung, it polls", "first", names[0], "err", err)
	} else if next != 0 {
		r.signalNext(names, next)
	}
}

// withdraw has this process struck off the list of a name. The caller holds mu.
func (r *registry) leaveWaitQueue(name string) {
	r.leaving[name] = struct{}{}
	if !r.removing {
		r.removing = true
		r.start(r.removeWaiters)
	}
}

// strike serves withdraw until there is nothing left to do. One statement removes
// this process from the lists of rows that nobody has locked; the others are tried
// again, because a statement that waited for them would stay in the server.
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
				q.head.listed = true // somebody waits again
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
		heir, all, err := r.repo.RemoveWaiter(ctx, names, r.self)
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
				q.head.signal() // who came meanwhile may have been struck off
			}
		}
		r.mu.Unlock()
		if heir != 0 {
			r.signalNext(names, heir)
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
			return // withdrawing stays: nothing is started any more
		case <-time.After(pause):
			pause = min(2*pause, most)
		}
	}
}

func (w *waiter) signal() { notify(w.wake) }

// watch makes the poller look for w, which has the turn and was refused, until
// the row is free or left has passed. A hint that came since w looked last is
// still in w.wake.
func (r *registry) watch(w *waiter, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.expiry = time.AfterFunc(max(left, time.Millisecond), func() { r.expired(w) })
	w.failed = nil
	r.watched[w] = struct{}{}
	r.subscribe()
	if len(r.watched) == 1 {
		// Where it is not known that rings are heard, the first looks are sooner.
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

// expired is told when a holder's lease ends, unless it was renewed. One look
// tells that for all who wait; who waits alone asks at once.
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

// lookAgain looks until nothing has expired meanwhile. Leases that end together
// are worth one look.
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
// otherwise sleeps, until the next tick. It ends when nothing is watched. From the
// moment rest lets it end, another poller can run and listen, so it must not close
// the listener after that.
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

// plan returns what is watched, at most a batch, and for how long.
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

// rest ends the poller, unless there is something to watch.
func (r *registry) stopPolling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polling = len(r.watched) > 0
	return !r.polling
}

// ticked sets the next tick.
func (r *registry) lookDue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookInterval = min(2*r.lookInterval, r.interval)
	r.nextLook = time.Now().Add(r.lookInterval)
}

// listen waits for a ring.
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
			err = errNothing
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
				q.head.signal() // it may be for one whose refusal is on its way
			}
		}
	case h.Name != "":
		if r.timedOut { // and was not rung
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
			r.log.Debug("mysqllock: cannot be rung for now", "err", err)
		}
		r.closeListener()
	case h == (store.Wakeup{}):
		r.lookDue()
	}
	if h.Missing || len(names) == store.BatchSize {
		r.look()
	}
}

var errNothing = errors.New("heard much, and found nothing")

// fail draws the conclusions of a listening that failed. It is tried again at
// once if the one before did not, unless the pool is used up. The caller holds mu.
func (r *registry) listenFailed(err error) {
	pause := r.listenBackoff
	switch {
	case err == store.ErrPoolTooSmall:
		pause = maxListenBackoff
	case err == errNothing:
		pause, r.falseWakes = falseWakeBackoff, 0
	case pause == 0 && err != store.ErrPoolInUse:
		r.listenBackoff = minListenBackoff
		return // perhaps only the connection was broken
	default:
		pause = max(pause, minListenBackoff)
		r.listenBackoff = min(2*pause, maxListenBackoff)
	}
	r.signalWorks = false
	r.retryListenAt = time.Now().Add(pause)
	r.lookInterval = min(minLookInterval, r.interval)
	r.nextLook = time.Now().Add(r.lookInterval)
}

// hush ends the listening.
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

// look asks for all watched names in one statement, or in few if they are many.
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
			// The next tick asks again.
		case err != nil, !ok, row.Remaining <= 0, w.listed && !row.Waiting:
			// Free; or an error that the waiter's own statement shall meet; or it was
			// struck off.
			r.found(w)
		default:
			w.expiry.Reset(row.Remaining)
		}
	}
}

// silence is for how long a database that knew who has a lock may leave a
// statement without an answer before it counts as one that does not answer.
const replyTimeout = 3 * probeInterval / 2

// silenceAfterHold is the same where the database has granted the lock to this process,
// and it was unlocked.
const replyTimeoutAfterHold = probeInterval

// refusal is the error of a call that does not wait, behind a waiter that does: what
// the poller met when it last looked for that one.
func (r *registry) refusal(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil && !q.asking && q.head.failed != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, q.head.failed)
	}
	return ErrNotAcquired
}

// trouble is why the database could not be asked for w's lock: by w, or by the
// waiter whose turn it is. It is nil if somebody has the lock.
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
		if turn, c := q.head, q.claim; !q.probing && time.Since(q.asked) >= probeSoon { // sooner, the answer itself may come
			q.probing = true
			r.start(func() { r.probe(r.ctx, turn, c) })
		}
		return waitErr{err: errNoAnswer, probing: true}
	case q.asking && (!q.known || time.Since(q.asked) > replyTimeout || q.granted && time.Since(q.asked) > replyTimeoutAfterHold):
		return waitErr{err: errNoAnswer}
	}
	return waitErr{}
}

// slowness is for how long a statement may have no answer from a database that
// answers others before that counts as an outage.
const slowReply = 500 * time.Millisecond

// trouble is why the database has not said who has a lock.
type waitErr struct {
	err     error
	probing bool // a probe is under way that will tell more
	slow    bool // the database answers, and has had little time to answer the statement
}

// sending makes known the claim of the turn's statement.
func (r *registry) sending(w *waiter, c store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[w.name]; q != nil && q.head == w {
		q.claim, q.probing, q.probed = c, false, false
	}
}

// probe finds out what is in the way of the turn's statement.
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
		var said warned
		for {
			if err := r.notifier.Subscribe(r.ctx, r.wakeHead); err != nil && r.ctx.Err() == nil {
				r.log.Log(r.ctx, said.level(), "mysqllock: notifier: subscribe", "err", err)
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

// warned is when a warning was last given. Within a minute of it, the level of the
// next is debug.
type warned time.Time

func (w *warned) level() slog.Level {
	if now := time.Now(); now.Sub(time.Time(*w)) >= time.Minute {
		*w = warned(now)
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
