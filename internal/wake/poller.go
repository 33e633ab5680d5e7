package wake

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// minLookInterval is the poller's first interval while no signal has arrived. It doubles
	// after each look, up to the configured interval.
	minLookInterval = 100 * time.Millisecond
	// IdleTimeout is how long the listener stays open without waiters.
	IdleTimeout = 3 * time.Second
)

// A poller reads the rows for which heads sleep, at intervals. In between, it listens for signals.
type poller struct {
	env
	listener  *listener
	signaller *signaller
	replan    chan struct{} // capacity 1: watched has changed

	mu       sync.Mutex // protects following fields
	watched  map[string]*watch
	running  bool          // the goroutine run exists; it ends when nothing is watched
	nextLook time.Time     // when run reads the rows next
	pause    time.Duration // between the look before that and nextLook
	expiries int           // leases that have ended since lookAgain began; 0 if it does not run
}

// A watch represents a name whose head sleeps until the row may be free.
type watch struct {
	expiry *time.Timer     // fires when the holder's lease ends
	looked func(err error) // called after each look, with mu held
}

// watch implements Waker.Watch.
func (p *poller) watch(name string, left time.Duration, looked func(err error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watch{looked: looked}
	w.expiry = time.AfterFunc(max(left, time.Millisecond), func() { p.expired(name, w) })
	p.watched[name] = w
	switch {
	case len(p.watched) > 1:
	case p.Signal && !p.listener.Signalled():
		p.lookIn(minLookInterval)
	default:
		p.lookIn(p.Interval)
	}
	if p.running {
		background.Notify(p.replan)
		return
	}
	p.running = true
	p.group.Go(p.run)
}

// Unwatch ends Watch.
func (p *poller) Unwatch(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(name)
}

// forget is Unwatch for a caller that holds mu. It returns false if name was not watched.
func (p *poller) forget(name string) bool {
	w, ok := p.watched[name]
	if ok {
		w.expiry.Stop()
		delete(p.watched, name)
	}
	return ok
}

// found wakes the head of a name whose row may be free, if it is watched. The caller holds mu.
func (p *poller) found(name string) {
	if p.forget(name) {
		p.queues.Wake(name)
	}
}

// expired is called when the lease of a row's holder ends by what the last read has shown. If only
// one name is watched, expired wakes its head. If several are, one read finds the rows that are free.
func (p *poller) expired(name string, w *watch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.watched[name] != w:
	case len(p.watched) == 1:
		p.found(name)
	default:
		if p.expiries++; p.expiries == 1 {
			p.group.Go(p.lookAgain)
		}
	}
}

// lookAgain reads the rows until no further lease has ended meanwhile, so that leases that end at the
// same time need only one read.
func (p *poller) lookAgain() {
	for seen := 0; ; {
		time.Sleep(time.Millisecond)
		p.mu.Lock()
		if seen == p.expiries {
			p.expiries = 0
			p.mu.Unlock()
			return
		}
		seen = p.expiries
		p.mu.Unlock()
		p.look(false)
	}
}

// run listens for signals if it can, or sleeps until the next look. It ends when nothing is watched.
// After stop has returned true, another run may begin and listen, so this one must close the
// listener before.
func (p *poller) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var idle time.Duration
	for p.group.Ctx.Err() == nil {
		names, sleep := p.plan()
		switch {
		case len(names) > 0:
			idle = 0
			if p.listener.canListen() {
				p.listen(names, sleep)
				continue
			}
		case idle == IdleTimeout || !p.listener.open.Load() || p.repo.PoolInUse():
			p.listener.close()
			if p.stop() {
				return
			}
			continue
		default:
			sleep = IdleTimeout / 10
			idle += sleep
		}
		timer.Reset(sleep)
		select {
		case <-p.group.Ctx.Done():
		case <-p.replan:
		case <-timer.C:
			if len(names) > 0 {
				p.lookLater()
				p.look(false)
			}
		}
	}
	p.listener.close() // running stays set: after Waker.Close no other poller starts
}

// plan returns up to a batch of the watched names, and the time until the next look.
func (p *poller) plan() (names []string, sleep time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.watched {
		if names = append(names, name); len(names) == store.BatchSize {
			break
		}
	}
	return names, max(0, time.Until(p.nextLook))
}

// stop reports whether run must end because nothing is watched.
func (p *poller) stop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.watched) > 0
	return !p.running
}

// lookIn schedules the next look. Each further interval is twice as long, up to the configured one. The
// caller holds mu.
func (p *poller) lookIn(d time.Duration) {
	p.pause = min(d, p.Interval)
	p.nextLook = time.Now().Add(p.pause)
}

// lookLater schedules the next look, when one is due now.
func (p *poller) lookLater() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lookIn(2 * p.pause)
}

// listen waits for a signal.
func (p *poller) listen(names []string, sleep time.Duration) {
	sleep = min(sleep, MaxListen)
	if len(names) == store.BatchSize {
		sleep = min(sleep, time.Second) // there may be more
	}
	wakeup, err := p.listener.listen(names, sleep)
	var granted []string
	if (wakeup.Signalled || wakeup.Name != "") && err == nil && p.signaller.expectsGrant(names) {
		granted = p.listener.granted(names, p.signaller.grants)
	}
	unexplained := p.wake(wakeup, granted)
	if wakeup.Signalled {
		p.signaller.wakeRequesting()
	}
	switch {
	case err != nil:
		if !p.listener.canListen() {
			p.mu.Lock()
			p.lookIn(minLookInterval)
			p.mu.Unlock()
		}
		if p.group.Ctx.Err() == nil {
			p.Log.Debug("mysqllock: cannot be signalled for now", "err", err)
		}
		p.listener.close()
	case wakeup == (store.Wakeup{}):
		p.lookLater()
	}
	switch {
	case wakeup.Missing || len(names) == store.BatchSize:
		p.look(false)
	case unexplained && err == nil && !p.repo.PoolInUse():
		p.look(true)
	}
}

// wake wakes the heads that a wake-up concerns, and those to which releases have granted rows. It
// reports whether the wake-up may concern one of several names.
func (p *poller) wake(wakeup store.Wakeup, granted []string) (unexplained bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range granted {
		p.forget(name)
		p.queues.Wake(name) // also if the head is between two attempts
	}
	switch {
	case wakeup.Signalled:
		p.pause = p.Interval
		unexplained = len(p.watched) > 1 && len(granted) == 0
		if len(p.watched) == 1 {
			for name := range p.watched {
				p.found(name)
			}
		}
	case wakeup.Name != "":
		p.found(wakeup.Name)
	}
	return unexplained
}

// look reads all watched rows, in batches. signalled means that a signal, which does not show its
// name, has arrived. It may be for a row that is not free, which the listen statement does not find.
func (p *poller) look(signalled bool) {
	p.mu.Lock()
	watched := maps.Clone(p.watched)
	p.mu.Unlock()
	for names := range slices.Chunk(slices.Collect(maps.Keys(watched)), store.BatchSize) {
		if p.group.Ctx.Err() == nil {
			p.lookAt(names, watched, signalled)
		}
	}
}

func (p *poller) lookAt(names []string, watched map[string]*watch, signalled bool) {
	ctx, cancel := store.WithRetryLimit(p.group.Ctx, max(p.Interval, time.Second))
	rows, _, err := p.repo.Look(ctx, names)
	err = outage.DescribeIn(ctx, err)
	cancel()

	listens := p.listener.canListen()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		w := watched[name]
		if p.watched[name] != w {
			continue
		}
		w.looked(err)
		row, ok := rows[name]
		switch {
		case err != nil && store.Transient(err):
			// The next look tries again.
		case signalled && ok && row.Remaining <= 0 && !(p.Self.Is(row.Next) && store.ModeOf(name) == store.Exclusive):
			// It may be reserved for another, or is a semaphore: the next listen statement decides.
		case (signalled || !listens) && store.ProcessOf(row.Owner) == p.Self:
			p.found(name) // this process has claimed it, and the last shared hold may have ended
		case err != nil, !ok, row.Remaining <= 0, row.Grantee == p.Self, p.Signal && !row.Waiting:
			// The row is free or granted to this process, or no longer lists this process in its
			// wait queue; or the head's own statement will return the error.
			p.found(name)
		default:
			w.expiry.Reset(row.Remaining)
		}
	}
}
