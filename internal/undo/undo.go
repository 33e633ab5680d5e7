// Package undo releases acquisitions that no hold uses. It repeats each release until the outcome
// is known, because a statement without a reply may have been executed, or may still be executed.
package undo

import (
	"cmp"
	"context"
	"fmt"
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

// Close stops the background goroutines. Drain then sends the releases that are still pending.
func (r *Releaser) Close() {
	r.group.Stop()
	r.group.Wait()
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
	freed, next, skipped, err := releaseBatch(ctx, r.repo, claims)
	if err != nil {
		r.log.Debug("mysqllock: release in the background failed, trying again", "locks", len(claims), "first", store.NameOf(claims[0].Name), "err", err)
	}
	r.record(claims, skipped, freed == int64(len(claims)), err)
	if freed > 0 {
		r.freed(store.Names(claims), next)
	}
	return skipped, err
}

// record updates the pending releases after a statement that should release claims. It has
// released all of them, or has skipped some because their rows were locked.
func (r *Releaser) record(claims, skipped []store.Claim, all bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		r.releaseSingle(ctx, c, p)
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		p.single = false
		r.single--
	})
}

// releaseSingle releases one row with a statement that waits for the row lock.
func (r *Releaser) releaseSingle(ctx context.Context, c store.Claim, p *pendingRelease) error {
	freed, next, err := p.send(ctx, r.repo, c)
	done := err == nil && freed
	if err == nil && !freed && p.alone() {
		owned, ownedErr := store.StillOwned(ctx, r.repo, []store.Claim{c})
		done = ownedErr == nil && len(owned) == 0
	}
	if done {
		r.mu.Lock()
		if r.pending[c] == p {
			r.done(c)
		}
		r.mu.Unlock()
	}
	if freed {
		r.freed([]string{c.Name}, next)
	}
	return err
}

// done records that a release has freed the row of a claim, or found that it has another owner. The
// caller holds mu.
func (r *Releaser) done(c store.Claim) {
	switch p := r.pending[c]; {
	case p == nil:
	case !p.several:
		delete(r.pending, c)
	case p.until.IsZero():
		p.until = time.Now().Add(max(p.lease, minPending))
	}
}

func (p *pendingRelease) send(ctx context.Context, repo Repository, c store.Claim) (freed bool, next store.Process, err error) {
	if p.alone() {
		return repo.ReleaseAfter(ctx, c, p.minHold)
	}
	return repo.Release(ctx, c)
}

// Drain sends all pending releases. It retries until ctx ends, because a transaction may have a row
// locked, or a connection may be dead. It returns the name of an acquisition that may still be
// granted, or "".
func (r *Releaser) Drain(ctx context.Context) (mayBeGranted string, err error) {
	for pause := firstBackoff; ; {
		claims, alone := r.all()
		err = nil
		for c, p := range alone {
			limited, cancel := context.WithTimeout(ctx, singleTimeout)
			err = cmp.Or(r.releaseSingle(limited, c, p), err)
			cancel()
		}
		for part := range slices.Chunk(claims, store.BatchSize) {
			if err = r.drainBatch(ctx, part); err != nil {
				break
			}
		}
		mayBeGranted, held := r.left()
		switch {
		case err != nil && !store.Transient(err):
			return "", err
		case err == nil && held == "":
			return mayBeGranted, nil
		case err == nil:
			err = fmt.Errorf("%q not released: %w", store.NameOf(held), store.ErrRowLocked)
		}
		if !pause.Wait(ctx) {
			return "", err
		}
	}
}

// all returns the pending releases: those that can share a statement, and those that cannot.
func (r *Releaser) all() (claims []store.Claim, alone map[store.Claim]*pendingRelease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alone = map[store.Claim]*pendingRelease{}
	for c, p := range r.pending {
		if p.alone() {
			alone[c] = p
		} else {
			claims = append(claims, c)
		}
	}
	return claims, alone
}

func (r *Releaser) drainBatch(ctx context.Context, claims []store.Claim) error {
	limited, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	skipped, err := r.release(limited, claims)
	if err == nil {
		releaseEach(limited, r.repo, skipped, func(c store.Claim, next store.Process) {
			r.mu.Lock()
			r.done(c)
			r.mu.Unlock()
			r.freed([]string{c.Name}, next)
		})
	}
	return err
}

// left returns the name of a pending acquisition that may still be granted, and the name of one
// that owns its row; each is "" if there is none.
func (r *Releaser) left() (mayBeGranted, held string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, p := range r.pending {
		if p.mayBeGranted {
			mayBeGranted = c.Name
		} else {
			held = c.Name
		}
	}
	return mayBeGranted, held
}
