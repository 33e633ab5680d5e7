package mysqllock

import (
	"context"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

// freed wakes waiters here and elsewhere after releases in the background, or by force.
func (r *registry) freed(names []string, next store.Process) {
	for _, name := range names {
		r.queues.Wake(name)
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
		r.group.Go(func() { r.signalNext(names, next) })
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
			if r.queues.Has(name) {
				r.listHead(name) // which may be the holder, about to leave
				r.queues.Wake(name)
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

// enlist returns the process that joins the row's wait queue if the head's statement is
// refused: 0, unless it was refused before, or the name was contended recently.
func (r *registry) enlist(name string, again bool) store.Process {
	if !r.signalling {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, contended := r.contended[name]
	switch {
	case !again && !contended:
		return 0
	case r.canListen():
		r.listed[name] = true
		return r.self
	default:
		r.listed[name] = true
		return r.self.Polling()
	}
}

// listHead records that the row may list this process. The caller holds mu.
func (r *registry) listHead(name string) {
	if _, ok := r.listed[name]; !ok {
		r.listed[name] = false
	}
}

// unlist records that the row does not list this process, which was granted it.
func (r *registry) unlist(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.listed, name)
}

// answered records whether a name is contended: its head was refused, now or again before
// it was granted.
func (r *registry) answered(name string, granted, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if granted {
		if !again {
			delete(r.contended, name)
		}
		r.falseWakes = 0
		return
	}
	if len(r.contended) == maxContended {
		clear(r.contended)
	}
	r.contended[name] = struct{}{}
	if r.listed[name] {
		r.listed[name] = false
	}
}

// leave is called when the last waiter for a name has left.
func (r *registry) leave(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.listed[name]; ok {
		r.leaveWaitQueue(name)
	}
}

// leaveWaitQueue has this process removed from the wait queue of a name's row. The caller
// holds mu.
func (r *registry) leaveWaitQueue(name string) {
	delete(r.listed, name)
	r.leaving[name] = struct{}{}
	if !r.removing {
		r.removing = true
		r.group.Go(r.removeWaiters)
	}
}

// removeWaiters serves leaveWaitQueue until nothing is left. Each statement skips locked
// rows, which are tried again: one that waited for them would stay in the server.
func (r *registry) removeWaiters() {
	pause := removeBackoff
	for {
		names := r.abandoned()
		if len(names) == 0 {
			return
		}
		left, next, err := r.removeFrom(names)
		for _, name := range names {
			r.queues.Wake(name) // a waiter that came meanwhile may have been removed
		}
		if next != 0 {
			r.signalNext(names, next)
		}
		if len(left) == 0 {
			pause = removeBackoff
			continue
		}
		if err != nil {
			r.log.Debug("mysqllock: not removed from the wait lists, trying again", "locks", len(left), "first", left[0], "err", err)
			pause.Delay = pause.Max
		}
		r.mu.Lock()
		for _, name := range left {
			r.leaving[name] = struct{}{}
		}
		r.mu.Unlock()
		if !pause.Wait(r.group.Ctx) {
			return // removing stays set: nothing is started any more
		}
	}
}

// removeBackoff has the delays between the tries to remove this process from locked rows.
var removeBackoff = background.Backoff{Delay: 10 * time.Millisecond, Max: time.Second}

// abandoned returns names, at most a batch, whose rows list this process though nobody
// waits. If there are none, removeWaiters must end.
func (r *registry) abandoned() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.leaving {
		if len(names) == store.BatchSize {
			break
		}
		delete(r.leaving, name)
		if r.queues.Has(name) {
			r.listHead(name) // a new waiter
		} else {
			names = append(names, name)
		}
	}
	r.removing = len(names) > 0
	return names
}

// removeFrom removes this process from the wait queues of rows. It returns the names of
// those that may still list it, and the next process in one of the others.
func (r *registry) removeFrom(names []string) (left []string, next store.Process, err error) {
	ctx, cancel := context.WithTimeout(r.publishCtx, signalTimeout)
	defer cancel()
	next, all, err := r.repo.RemoveWaiter(ctx, names, r.self)
	if err != nil {
		return names, next, err
	}
	if all {
		return nil, next, nil
	}
	rows, _, err := r.repo.Look(ctx, names)
	if err != nil {
		return names, next, err
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !rows[name].Listed }), next, nil
}
