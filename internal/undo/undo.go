// Package undo releases acquisitions that no hold uses, and repeats that until the outcome is
// known: a statement without a reply may have been executed, or may still be.
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

// A Repository is what this package needs of the store, which documents the methods.
type Repository interface {
	Release(ctx context.Context, c store.Claim) (freed bool, next store.Process, err error)
	ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (freed bool, next store.Process, err error)
	ReleaseAll(ctx context.Context, cs []store.Claim) (freed int64, next store.Process, err error)
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)
}

// A Releaser releases acquisitions in the background until their outcome is known. It has a
// goroutine of its own, so that it never delays a renewal.
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
	next    time.Time     // when the first one is due, as far as the goroutine knows
	added   chan struct{} // capacity 1
}

// A pendingRelease is an acquisition that is no longer wanted, and whose outcome or release is
// unknown. A statement in flight may still grant it. So its release is repeated until its lease
// must have ended even if the statement was executed only when the database replied again.
type pendingRelease struct {
	lease        time.Duration
	minHold      store.MinHold // for which the row stays taken; such a row is released alone
	mayBeGranted bool          // a statement that would take the row may be in flight
	until        time.Time     // the end of the retries; zero until the database replies
	due          time.Time
	tries        int
	last         bool // the try after until has been made
	single       bool // a release of this row alone is in flight, and may wait for the row
}

// New returns a Releaser whose statements end after timeout. It calls freed after each
// release.
func New(repo Repository, timeout time.Duration, freed func(names []string, next store.Process), log *slog.Logger) *Releaser {
	return &Releaser{
		repo: repo, timeout: timeout, freed: freed, log: log, group: background.NewGroup(),
		pending: map[store.Claim]*pendingRelease{}, added: make(chan struct{}, 1),
	}
}

// Add releases, from the given time on, an acquisition that was made or extended for the given
// lease. mayBeGranted is set if its statement may still be in flight.
func (r *Releaser) Add(c store.Claim, lease time.Duration, mayBeGranted bool, from time.Time) {
	r.add(c, &pendingRelease{lease: lease, mayBeGranted: mayBeGranted, due: from})
}

// AddAfter releases, from the given time on, the row of a hold that has ended, which stays taken
// for a minimum time. Until Forget, Add does not release the row sooner.
func (r *Releaser) AddAfter(c store.Claim, m store.MinHold, from time.Time) {
	r.add(c, &pendingRelease{minHold: m, due: from})
}

// Forget ends the release of a claim that no longer owns its row.
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
		if from.Before(r.next) { // otherwise run would scan all pending releases for each new one
			background.Notify(r.added)
		}
		return
	}
	r.running, r.next = true, from
	r.group.Go(r.run)
}

// alone reports whether the row stays taken for a minimum time, which only a statement for this
// row can write.
func (p *pendingRelease) alone() bool { return p.minHold != store.MinHold{} }

// Pending returns how many releases have an unknown outcome.
func (r *Releaser) Pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// Close ends the releases in the background. Drain serves those that are still pending.
func (r *Releaser) Close() {
	r.group.Stop()
	r.group.Wait()
}

// run releases until nothing is pending.
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
			continue // time has passed
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

// releaseBackoff has the delays between the releases of one acquisition. The last delay is
// repeated. The first ones are short because a release can overtake the acquiring statement.
var releaseBackoff = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}

// minPending is the minimum time for which releases are repeated after the first reply. A
// statement that was cut off may reach a busy server late, and a short lease ends late if the
// database's clock is set back.
const minPending = 5 * time.Second

// due returns the releases that are due, and when the next one will be. If nothing is
// pending, next is zero and the goroutine must end.
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

// release releases claims in one statement. It returns the claims that still own their rows,
// because transactions have these locked.
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

// record updates the pending releases after a statement that released all of claims or
// skipped some.
func (r *Releaser) record(claims, skipped []store.Claim, all bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		p := r.pending[c]
		owned := slices.Contains(skipped, c)
		switch {
		case p == nil:
		case err == nil && (all || !p.mayBeGranted && !owned):
			delete(r.pending, c)
		default:
			if owned {
				p.mayBeGranted = false // it was granted
			}
			if (err == nil || !store.Transient(err)) && p.until.IsZero() {
				p.until = time.Now().Add(max(p.lease, minPending))
			}
		}
	}
}

// releaseSingly releases rows one by one, by statements that wait for the row lock: a row for
// which many callers compete may always be locked.
func (r *Releaser) releaseSingly(claims []store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		if p := r.pending[c]; p != nil {
			r.startSingle(c, p)
		}
	}
}

// startSingle releases one row, unless that is in flight or too many are. The caller holds mu.
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

// releaseSingle releases one row by a statement that waits for it.
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
			delete(r.pending, c)
		}
		r.mu.Unlock()
	}
	if freed {
		r.freed([]string{c.Name}, next)
	}
	return err
}

func (p *pendingRelease) send(ctx context.Context, repo Repository, c store.Claim) (freed bool, next store.Process, err error) {
	if p.alone() {
		return repo.ReleaseAfter(ctx, c, p.minHold)
	}
	return repo.Release(ctx, c)
}

// Drain releases everything that is pending, and retries until ctx ends: a transaction may
// have a row locked, and a connection may be dead. It returns the name of an acquisition
// that may still be granted, or "".
func (r *Releaser) Drain(ctx context.Context) (mayBeGranted string, err error) {
	for pause := firstPause; ; {
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

// all returns the pending releases: those that statements may share, and the others.
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
			delete(r.pending, c)
			r.mu.Unlock()
			r.freed([]string{c.Name}, next)
		})
	}
	return err
}

// left returns the name of an acquisition that may still be granted, and of one that owns
// its row.
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
