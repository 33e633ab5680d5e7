package mysqllock

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A releaser releases acquisitions that nobody uses until their outcome is known. It has
// a goroutine of its own, so that it never delays a renewal.
type releaser struct {
	repo  releaseStore
	bound time.Duration                            // time limit of a statement
	freed func(names []string, next store.Process) // called without locks after a release
	log   *slog.Logger

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // protects following fields, and those of every pendingRelease
	pending map[store.Claim]*pendingRelease
	single  int           // releases of one row in flight
	running bool          // the goroutine runs; it ends when nothing is pending
	next    time.Time     // when the first one is due, as far as the goroutine knows
	added   chan struct{} // capacity 1
}

// A pendingRelease is an acquisition that is not wanted any more, and whose outcome or
// release is unknown. A statement in flight may still grant it. So it is released again
// and again, until its lease must have ended even if the statement was executed only when
// the database replied again.
type pendingRelease struct {
	lease        time.Duration
	mayBeGranted bool      // a statement that would take the row may be in flight
	until        time.Time // the end of the retries; zero until the database replies
	due          time.Time
	tries        int
	last         bool // the try after until has been made
	single       bool // a release of this row alone is in flight, and may wait for the row
}

func newReleaser(repo releaseStore, bound time.Duration, freed func([]string, store.Process), log *slog.Logger) *releaser {
	r := &releaser{
		repo: repo, bound: bound, freed: freed, log: log,
		pending: map[store.Claim]*pendingRelease{}, added: make(chan struct{}, 1),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// close ends the goroutine and waits for it.
func (r *releaser) close() {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.done.Wait()
}

// add makes sure that an acquisition, made or extended for the given lease, holds nothing
// after the given time. mayBeGranted is set if its statement may still be in flight.
func (r *releaser) add(c store.Claim, lease time.Duration, mayBeGranted bool, from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[c] = &pendingRelease{lease: lease, mayBeGranted: mayBeGranted, due: from}
	if r.running {
		if from.Before(r.next) { // else each of many would have all of them looked at
			notify(r.added)
		}
	} else if r.ctx.Err() == nil {
		r.running, r.next = true, from
		r.done.Go(r.run)
	}
}

// run releases until nothing is pending.
func (r *releaser) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := r.due()
		for part := range slices.Chunk(due, store.BatchSize) {
			if skipped, err := r.free(r.ctx, part); err == nil {
				r.freeEach(skipped)
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
		case <-r.ctx.Done():
			return
		case <-r.added:
		case <-timer.C:
		}
	}
}

// releaseBackoff has the delays between the releases of one acquisition; the last one is
// repeated. A release can overtake the statement that acquires.
var releaseBackoff = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}

// minPending is how long releases are repeated at least after the first reply. A statement
// that was cut off may reach a busy server late, and a short lease ends late if the
// database's clock is set back.
const minPending = 5 * time.Second

// due returns the releases that are due, and when the next one will be. If nothing is
// pending, next is zero and the goroutine must end.
func (r *releaser) due() (due []store.Claim, next time.Time) {
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
			due = append(due, c)
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

// free releases claims in one statement, and then looks at the rows that it did not match.
// It returns the claims that still own their rows: transactions have these locked.
func (r *releaser) free(ctx context.Context, claims []store.Claim) (skipped []store.Claim, err error) {
	ctx, cancel := store.WithRetryLimit(ctx, r.bound)
	defer cancel()
	names := store.Names(claims)
	freed, next, err := r.repo.ReleaseAll(ctx, claims)
	all := freed == int64(len(claims))
	if err == nil && !all {
		skipped, err = store.StillOwned(ctx, r.repo, claims)
	}
	if err != nil {
		r.log.Debug("mysqllock: release in the background failed, trying again", "locks", len(claims), "first", names[0], "err", err)
	}
	r.mu.Lock()
	for _, c := range claims {
		p := r.pending[c]
		mine := slices.Contains(skipped, c)
		switch {
		case p == nil:
		case err == nil && (all || !p.mayBeGranted && !mine):
			delete(r.pending, c)
		default:
			if mine {
				p.mayBeGranted = false // it was granted
			}
			if (err == nil || !store.Transient(err)) && p.until.IsZero() {
				p.until = time.Now().Add(max(p.lease, minPending))
			}
		}
	}
	r.mu.Unlock()
	if freed > 0 {
		r.freed(names, next)
	}
	return skipped, err
}

// freeEach releases rows one by one, by statements that wait for the row: where many
// callers compete for a row, it is always locked.
func (r *releaser) freeEach(claims []store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range claims {
		p := r.pending[c]
		if p == nil || p.single || r.single == maxSingle || r.ctx.Err() != nil {
			continue
		}
		p.single = true
		r.single++
		r.done.Go(func() {
			ctx, cancel := context.WithTimeout(store.NotHeld(r.ctx), r.bound)
			freed, next, err := r.repo.Release(ctx, c)
			cancel()
			r.mu.Lock()
			p.single = false
			r.single--
			if err == nil && freed && r.pending[c] == p {
				delete(r.pending, c)
			}
			r.mu.Unlock()
			if freed {
				r.freed([]string{c.Name}, next)
			}
		})
	}
}

// releaseEach releases rows one by one, by statements that wait for the row, until ctx
// ends.
func releaseEach(ctx context.Context, repo releaseStore, claims []store.Claim, freed func(c store.Claim, next store.Process)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxSingle)
	for _, c := range claims {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			if ok, next, err := repo.Release(ctx, c); err == nil && ok {
				freed(c, next)
			}
			<-slots
		})
	}
	wg.Wait()
}

// drain releases everything that is pending, and retries until ctx ends: a transaction may
// have a row locked, and a connection may be dead. It returns the name of an acquisition
// that may still be granted, or "".
func (r *releaser) drain(ctx context.Context) (mayBeGranted string, err error) {
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		r.mu.Lock()
		claims := slices.Collect(maps.Keys(r.pending))
		r.mu.Unlock()
		for part := range slices.Chunk(claims, store.BatchSize) {
			if err = r.drainOnce(ctx, part); err != nil {
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
			err = fmt.Errorf("%q not released: %w", held, store.ErrRowLocked)
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(pause):
		}
	}
}

func (r *releaser) drainOnce(ctx context.Context, claims []store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, closeBound/3)
	defer cancel()
	skipped, err := r.free(ctx, claims)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, singleBound)
		defer cancel()
		releaseEach(ctx, r.repo, skipped, func(c store.Claim, next store.Process) {
			r.mu.Lock()
			delete(r.pending, c)
			r.mu.Unlock()
			r.freed([]string{c.Name}, next)
		})
	}
	return err
}

// singleBound is how long Close waits for rows one by one before it tries all of them
// again.
const singleBound = closeBound / 6

// left returns the name of an acquisition that may still be granted, and of one that owns
// its row.
func (r *releaser) left() (mayBeGranted, held string) {
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
