package mysqllock

import (
	"context"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

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
