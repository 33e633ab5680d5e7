package mysqllock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
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

// A registry wakes the heads of the wait queues of this process: after a release in this
// process, on a signal or a message of another one, when the holder's lease ends, and
// whenever the poller finds the row free.
type registry struct {
	repo       waitStore
	queues     waitQueues
	self       store.Process
	interval   time.Duration
	signalling bool     // join wait queues in rows, and signal other processes
	notifier   Notifier // may be nil
	log        *slog.Logger

	group          *background.Group
	publishCtx     context.Context // for Publish; ends at most 1 s after close
	stopPublishing context.CancelFunc
	listenCtx      context.Context // for Listen; ends at most stopTimeout after close
	stopListening  context.CancelFunc

	publishWarned warned // for errors of Publish; used by the goroutine that serves outbox, then by close

	mu            sync.Mutex          // protects following fields
	watched       map[string]*watch   // names whose heads sleep until their row is free
	polling       bool                // the poller runs; it ends when nothing is watched
	nextLook      time.Time           // of the poller
	lookInterval  time.Duration       // from nextLook to the one after it
	signalWorks   bool                // a signal has arrived
	falseWakes    int                 // wake-ups since the last grant
	timedOut      bool                // the last Listen ended by itself
	expiries      int                 // leases that have ended since lookAgain began; 0 if it does not run
	listening     bool                // this process can be signalled
	retryListenAt time.Time           // no Listen before
	listenBackoff time.Duration       // the next delay; 0 if the last Listen succeeded
	replan        chan struct{}       // capacity 1: watched has changed
	contended     map[string]struct{} // names that were refused recently
	listed        map[string]bool     // names whose rows may list this process as waiting; true while a statement that lists it is in flight
	leaving       map[string]struct{} // names whose rows list it though nobody waits
	removing      bool                // removeWaiters runs
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

func newRegistry(repo waitStore, queues waitQueues, self store.Process, interval time.Duration, signal bool, notifier Notifier, log *slog.Logger) *registry {
	r := &registry{
		repo: repo, queues: queues, group: background.NewGroup(), self: self, interval: interval, signalling: signal, notifier: notifier, log: log,
		watched: map[string]*watch{}, contended: map[string]struct{}{}, listed: map[string]bool{}, leaving: map[string]struct{}{},
		replan: make(chan struct{}, 1), outbox: make(chan string, 256),
	}
	r.publishCtx, r.stopPublishing = context.WithCancel(context.Background())
	r.listenCtx, r.stopListening = context.WithCancel(context.Background())
	return r
}

// close ends the goroutines, waits for them, and publishes what is left in outbox.
func (r *registry) close() {
	r.mu.Lock()
	r.group.Stop() // before the poller can close the listener
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
	r.group.Wait()
	for {
		select {
		case name := <-r.outbox:
			r.send(name)
		default:
			return
		}
	}
}

// subscribe starts the goroutines that serve the notifier. The caller holds mu.
func (r *registry) subscribe() {
	if r.notifier == nil || r.subscribed {
		return
	}
	r.subscribed = true
	r.group.Go(func() {
		var lastWarning warned
		for {
			if err := r.notifier.Subscribe(r.group.Ctx, r.queues.Wake); err != nil && r.group.Ctx.Err() == nil {
				r.log.Log(r.group.Ctx, lastWarning.level(), "mysqllock: notifier: subscribe", "err", err)
			}
			select {
			case <-r.group.Ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
	r.group.Go(func() {
		for {
			select {
			case <-r.group.Ctx.Done():
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
