package mysqllock

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A watch is a name whose head sleeps until the row may be free.
type watch struct {
	expiry *time.Timer     // fires when the holder's lease ends
	looked func(err error) // called after each look, with mu held
}

// watch makes the poller look for name, whose head was refused, until the row is free or
// left has passed. It calls looked with the error, or nil, of each look.
func (r *registry) watch(name string, left time.Duration, looked func(err error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &watch{looked: looked}
	w.expiry = time.AfterFunc(max(left, time.Millisecond), func() { r.expired(name, w) })
	r.watched[name] = w
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
		background.Notify(r.replan)
		return
	}
	r.polling = true
	r.group.Go(r.poll)
}

// expired is called when a holder's lease ends, unless it was renewed. A single waiter
// asks at once; for several, one look finds the rows that are free.
func (r *registry) expired(name string, w *watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.watched[name] != w:
	case len(r.watched) == 1:
		r.found(name)
	default:
		if r.expiries++; r.expiries == 1 {
			r.group.Go(r.lookAgain)
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

func (r *registry) unwatch(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(name)
}

// forget is unwatch for a caller that holds mu. It returns false if name was not watched.
func (r *registry) forget(name string) bool {
	w, ok := r.watched[name]
	if ok {
		w.expiry.Stop()
		delete(r.watched, name)
	}
	return ok
}

// poll is the only poller of the process. It listens for signals, if it can, or sleeps
// until the next look. It ends when nothing is watched. Once stopPolling has returned true
// another poller may run and listen, so poll must not close the listener after that.
func (r *registry) poll() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var idle time.Duration
	for r.group.Ctx.Err() == nil {
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
		case <-r.group.Ctx.Done():
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
	for name := range r.watched {
		if names = append(names, name); len(names) == store.BatchSize {
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
		if r.falseWakes++; r.falseWakes > maxFalseWakes+r.queues.Len() {
			err = errFalseWakes
		}
	}
	switch {
	case h.Signalled:
		r.signalWorks, r.lookInterval = true, r.interval
		if len(r.watched) == 1 {
			for name := range r.watched {
				r.found(name)
			}
		}
		for name, inFlight := range r.listed {
			if inFlight {
				r.queues.Wake(name) // its refusal may be in flight
			}
		}
	case h.Name != "":
		if r.timedOut { // without a signal
			r.signalWorks = false
		}
		r.found(h.Name)
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
		if r.group.Ctx.Err() == nil {
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

// canListen reports whether this process expects signals. The caller holds mu.
func (r *registry) canListen() bool { return r.signalling && !time.Now().Before(r.retryListenAt) }

// closeListener closes the listener's connection.
func (r *registry) closeListener() {
	r.repo.CloseListener()
	r.mu.Lock()
	r.listening, r.timedOut = false, false
	r.mu.Unlock()
}

// found wakes a waiter whose row may be free. The caller holds mu.
func (r *registry) found(name string) {
	if r.forget(name) {
		r.queues.Wake(name)
	}
}

// look reads all watched rows, in batches.
func (r *registry) look() {
	r.mu.Lock()
	watched := maps.Clone(r.watched)
	r.mu.Unlock()
	for names := range slices.Chunk(slices.Collect(maps.Keys(watched)), store.BatchSize) {
		if r.group.Ctx.Err() == nil {
			r.lookAt(names, watched)
		}
	}
}

func (r *registry) lookAt(names []string, watched map[string]*watch) {
	ctx, cancel := store.WithRetryLimit(r.group.Ctx, max(r.interval, time.Second))
	rows, _, err := r.repo.Look(ctx, names)
	if err != nil && ctx.Err() != nil {
		err = outage.Unanswered(err)
	}
	cancel()

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		w := watched[name]
		if r.watched[name] != w {
			continue
		}
		w.looked(err)
		row, ok := rows[name]
		switch {
		case err != nil && store.Transient(err):
			// The next look tries again.
		case err != nil, !ok, row.Remaining <= 0, r.signalling && !row.Waiting:
			// The row is free, or this process is not in its wait queue any more, or the
			// waiter's own statement will return the error.
			r.found(name)
		default:
			w.expiry.Reset(row.Remaining)
		}
	}
}
