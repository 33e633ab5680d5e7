// Package undo releases acquisitions that no hold uses. It repeats each release until the outcome
// is known, because a statement without a reply may have been executed, or may still be executed.
package undo

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A Repository has the methods of package store that this package needs; their comments are there.
type Repository interface {
	Release(ctx context.Context, c store.Claim) (freed bool, next store.Process, err error)
	ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (freed bool, next store.Process, err error)
	ReleaseAll(ctx context.Context, cs []store.Claim) (freed int64, next store.Process, err error)
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)
}

// A Releaser releases acquisitions in the background, each until its outcome is known. It has its
// own goroutine, so that it never delays a renewal.
type Releaser struct {
	repo    Repository
	timeout time.Duration                            // of a statement
	freed   func(names []string, next store.Process) // called without mutexes held after a release
	log     *slog.Logger
	group   *background.Group

	mu      sync.Mutex // protects following fields, and those of every pendingRelease
	pending map[store.Claim]*pendingRelease
	single  int           // releases of one row in flight
	running bool          // the goroutine runs; it ends when nothing is pending
	next    time.Time     // when the goroutine expects the first release to be due
	added   chan struct{} // capacity 1

	released int64 // rows
	unknown  bool  // a statement without a reply may have released rows, too
}

// A pendingRelease is an acquisition that is no longer wanted, but may own its row, or may still
// get it from a statement in flight. Its release is repeated until its lease must have ended, even
// if that statement was executed as late as the first reply to a release.
type pendingRelease struct {
	lease        time.Duration
	minHold      store.MinHold // how long the row must stay taken; such a row is released on its own
	mayBeGranted bool          // a statement that takes the row may still be in flight
	several      bool          // the same, even after a release has freed the row
	until        time.Time     // the end of the retries; zero until the database replies
	due          time.Time
	tries        int
	last         bool // the last try, after until, has been made
	single       bool // a release of only this row is in flight, and may wait for the row
}

// New returns a Releaser whose statements end after timeout. It calls freed after each
// release.
func New(repo Repository, timeout time.Duration, freed func(names []string, next store.Process), log *slog.Logger) *Releaser {
	return &Releaser{
		repo: repo, timeout: timeout, freed: freed, log: log, group: background.NewGroup(),
		pending: map[store.Claim]*pendingRelease{}, added: make(chan struct{}, 1),
	}
}

// Add releases an acquisition, from the given time on. lease is the longest lease that its row may
// have. mayBeGranted means that its acquiring statement may still be in flight.
func (r *Releaser) Add(c store.Claim, lease time.Duration, mayBeGranted bool, from time.Time) {
	r.add(c, &pendingRelease{lease: lease, mayBeGranted: mayBeGranted, due: from})
}

// AddSeveral is Add for a claim for which several acquiring statements were sent. The last one may
// take the row again after a release has undone the others, so the release is repeated nevertheless.
func (r *Releaser) AddSeveral(c store.Claim, lease time.Duration, from time.Time) {
	r.add(c, &pendingRelease{lease: lease, mayBeGranted: true, several: true, due: from})
}

// AddAfter releases the row of a hold that has ended, from the given time on, so that it stays
// taken for a minimum time. Until Forget is called, Add does not release the row sooner.
func (r *Releaser) AddAfter(c store.Claim, m store.MinHold, from time.Time) {
	r.add(c, &pendingRelease{minHold: m, due: from})
}

// Forget drops the pending release of a claim that no longer owns its row.
func (r *Releaser) Forget(c store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, c)
}

func (r *Releaser) add(c store.Claim, p *pendingRelease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := p.due
	if old := r.pending[c]; old != nil && old.alone() && !p.alone() {
		if from.Before(old.due) {
			old.due = from
		}
	} else {
		r.pending[c] = p
	}
	if r.running {
		if from.Before(r.next) { // else run need not scan all pending releases now
			background.Notify(r.added)
		}
		return
	}
	r.running, r.next = true, from
	r.group.Go(r.run)
}

// alone reports whether the row must stay taken for a minimum time. Such a release needs a
// statement of its own.
func (p *pendingRelease) alone() bool { return p.minHold != store.MinHold{} }

// Pending returns the number of releases whose outcome is unknown.
func (r *Releaser) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// run sends releases until nothing is pending.
func (r *Releaser) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := r.due()
		for part := range slices.Chunk(due, store.BatchSize) {
			if skipped, err := r.release(r.group.Ctx, part); err == nil {
				r.releaseSingly(skipped)
			}
		}
		if len(due) > 0 {
			continue // others may be due by now
		}
		if next.IsZero() {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-r.group.Ctx.Done():
			return
		case <-r.added:
		case <-timer.C:
		}
	}
}

// releaseBackoff has the delays between the releases of one acquisition; the last one is repeated.
// The first ones are short, because a release may have overtaken the acquiring statement.
var releaseBackoff = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}

// minPending is how long, at least, a release is repeated after the first reply. A statement that
// was cut off may reach a busy server late; and if the database's clock is set back, even a short
// lease ends late.
const minPending = 5 * time.Second

// due returns the releases that are due now, and the time when the next one is. If nothing is
// pending, next is zero, and the goroutine must end.
func (r *Releaser) due() (due []store.Claim, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for c, p := range r.pending {
		over := !p.until.IsZero() && !now.Before(p.until)
		switch {
		case p.last:
			delete(r.pending, c)
			continue
		case over, !p.due.After(now):
			if p.alone() {
				r.startSingle(c, p)
			} else {
				due = append(due, c)
			}
			p.due, p.last = now.Add(releaseBackoff[min(p.tries, len(releaseBackoff)-1)]), over
			p.tries++
		}
		if !p.until.IsZero() && p.until.After(now) && p.until.Before(p.due) {
			p.due = p.until
		}
		if next.IsZero() || p.due.Before(next) {
			next = p.due
		}
	}
	r.running, r.next = !next.IsZero(), next
	return due, next
}

// release releases claims with one statement. It returns the claims that still own their rows
// because transactions have those rows locked.
func (r *Releaser) release(ctx context.Context, claims []store.Claim) (skipped []store.Claim, err error) {
	ctx, cancel := store.WithRetryLimit(ctx, r.timeout)
	defer cancel()
	freed, next, err := r.repo.ReleaseAll(ctx, claims)
	if err == nil && freed != int64(len(claims)) {
		skipped, err = store.StillOwned(ctx, r.repo, claims)
	}
	if err != nil {
		r.log.Debug("mysqllock: release in the background failed, trying again", "locks", len(claims), "first", store.NameOf(claims[0].Name), "err", err)
	}
	r.record(claims, skipped, freed, err)
	if freed > 0 {
		r.freed(store.Names(claims), next)
	}
	return skipped, err
}

// record updates the pending releases after a statement that should release claims. It has released
// freed rows, and has skipped some because they were locked.
func (r *Releaser) record(claims, skipped []store.Claim, freed int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := freed == int64(len(claims))
	r.released += freed
	r.unknown = r.unknown || store.OutcomeUnknown(err)
	for _, c := range claims {
		p := r.pending[c]
		owned := slices.Contains(skipped, c)
		switch {
		case p == nil:
		case err == nil && (all || !p.mayBeGranted && !owned):
			r.done(c)
		default:
			if owned && !p.several {
				p.mayBeGranted = false // it was granted
			}
			if (err == nil || !store.Transient(err)) && p.until.IsZero() {
				p.until = time.Now().Add(max(p.lease, minPending))
			}
		}
	}
}

// releaseSingly releases rows with one statement each, which waits for the row lock: a row for
// which many callers compete may be locked whenever a batch tries to release it.
func (r *Releaser) releaseSingly(claims []store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		if p := r.pending[c]; p != nil {
			r.startSingle(c, p)
		}
	}
}

// startSingle releases one row in the background, unless that is in flight already, or too many
// such releases are. The caller holds mu.
func (r *Releaser) startSingle(c store.Claim, p *pendingRelease) {
	if p.single || r.single == maxSingle || r.group.Ctx.Err() != nil {
		return
	}
	p.single = true
	r.single++
	r.group.Go(func() {
		ctx, cancel := context.WithTimeout(store.NotHeld(r.group.Ctx), r.timeout)
		r.releaseSingle(ctx, c)
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		p.single = false
		r.single--
	})
}

// releaseSingle releases one row with a statement that waits for the row lock.
func (r *Releaser) releaseSingle(ctx context.Context, c store.Claim) (err error) {
	r.mu.Lock()
	p := r.pending[c]
	r.mu.Unlock()
	var freed, gone bool
	var next store.Process
	switch {
	case p == nil:
		return nil
	case !p.alone():
		freed, next, err = r.repo.Release(ctx, c)
	default:
		freed, next, err = r.repo.ReleaseAfter(ctx, c, p.minHold)
		if err == nil && !freed {
			owned, ownedErr := store.StillOwned(ctx, r.repo, []store.Claim{c})
			gone = ownedErr == nil && len(owned) == 0
		}
	}
	r.mu.Lock()
	if (freed || gone) && r.pending[c] == p {
		r.done(c)
	}
	if freed {
		r.released++
	}
	if store.OutcomeUnknown(err) {
		r.unknown = true
	}
	r.mu.Unlock()
	if freed {
		r.freed([]string{c.Name}, next)
	}
	return err
}

// done records that a release has freed the row of a claim, or found that it has another owner. The
// caller holds mu.
func (r *Releaser) done(c store.Claim) {
	if p := r.pending[c]; !p.several {
		delete(r.pending, c)
	} else if p.until.IsZero() {
		p.until = time.Now().Add(max(p.lease, minPending))
	}
}
