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

// orphanage frees the rows of acquisitions that came to nothing. It has a
// goroutine of its own, because it must not hold up renewals.
type releaser struct {
	repo  releaseStore
	bound time.Duration                            // of a statement
	freed func(names []string, heir store.Process) // called, without locks, when rows were freed
	log   *slog.Logger

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // guards the following, and the fields of every orphan
	pending map[store.Claim]*pendingRelease
	single  int           // releases of one row under way
	running bool          // the goroutine runs; it ends when it has nothing to do
	added   chan struct{} // capacity 1
}

// An orphan is an acquisition that this process does not want and whose
// outcome, or whose release, it does not know. A statement under way can still
// grant it, so it is released again and again, until its lease must be over
// although the statement was executed only when the database answered again.
type pendingRelease struct {
	lease        time.Duration
	mayBeGranted bool      // a statement that would take the row may be under way
	until        time.Time // zero while the database has not answered
	due          time.Time
	tries        int
	last         bool // the try after until was made
	// A release of it alone is under way, which waits for the row.
	single bool
}

func newReleaser(repo releaseStore, bound time.Duration, freed func([]string, store.Process), log *slog.Logger) *releaser {
	o := &releaser{
		repo: repo, bound: bound, freed: freed, log: log,
		pending: map[store.Claim]*pendingRelease{}, added: make(chan struct{}, 1),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// close ends the goroutine and waits for it.
func (o *releaser) close() {
	o.mu.Lock()
	o.cancel()
	o.mu.Unlock()
	o.done.Wait()
}

// take makes sure that an unwanted acquisition, made or prolonged for the given
// lease, holds nothing from the given time on. It is a ghost if it may yet be
// granted.
func (o *releaser) add(c store.Claim, lease time.Duration, ghost bool, from time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending[c] = &pendingRelease{lease: lease, mayBeGranted: ghost, due: from}
	if o.running {
		notify(o.added)
	} else if o.ctx.Err() == nil {
		o.running = true
		o.done.Go(o.run)
	}
}

// run serves the orphans until there are none.
func (o *releaser) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next := o.due()
		for part := range slices.Chunk(due, store.BatchSize) {
			if passedOver, err := o.free(o.ctx, part); err == nil {
				o.freeEach(passedOver)
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
		case <-o.ctx.Done():
			return
		case <-o.added:
		case <-timer.C:
		}
	}
}

// The delays between the attempts to free an orphan; the last is repeated. The
// statement that would take the row can be overtaken by the one that frees it.
var releaseBackoff = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}

// minUndo is how long an orphan is released at least after the first answer. A
// statement that was cut off may reach a busy server late, and a lease that is
// short does not end in time if the database's clock is set back.
const minPending = 5 * time.Second

// due returns the orphans that are due, and when the others will be. If there
// are none, the goroutine has to end.
func (o *releaser) due() (due []store.Claim, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for c, p := range o.pending {
		over := !p.until.IsZero() && !now.Before(p.until)
		switch {
		case p.last:
			delete(o.pending, c)
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
	o.running = !next.IsZero()
	return due, next
}

// free releases orphans in one statement, and looks at the rows of those that
// were not found: nothing but a ghost can yet become ours. It returns those whose
// rows are still theirs: somebody has them locked.
func (o *releaser) free(ctx context.Context, claims []store.Claim) (passedOver []store.Claim, err error) {
	ctx, cancel := store.WithRetryLimit(ctx, o.bound)
	defer cancel()
	names := store.Names(claims)
	freed, heir, err := o.repo.ReleaseAll(ctx, claims)
	all := freed == int64(len(claims))
	if err == nil && !all {
		passedOver, err = store.StillOwned(ctx, o.repo, claims)
	}
	if err != nil {
		o.log.Debug("mysqllock: release in the background failed, trying again", "locks", len(claims), "first", names[0], "err", err)
	}
	o.mu.Lock()
	for _, c := range claims {
		p := o.pending[c]
		mine := slices.Contains(passedOver, c)
		switch {
		case p == nil:
		case err == nil && (all || !p.mayBeGranted && !mine):
			delete(o.pending, c)
		default:
			if mine {
				p.mayBeGranted = false // it was granted
			}
			if (err == nil || !store.Transient(err)) && p.until.IsZero() {
				p.until = time.Now().Add(max(p.lease, minPending))
			}
		}
	}
	o.mu.Unlock()
	if freed > 0 {
		o.freed(names, heir)
	}
	return passedOver, err
}

// freeEach releases rows one by one, by statements that wait for them: where
// others always want the row, it is always locked.
func (o *releaser) freeEach(claims []store.Claim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range claims {
		p := o.pending[c]
		if p == nil || p.single || o.single == maxSingle || o.ctx.Err() != nil {
			continue
		}
		p.single = true
		o.single++
		o.done.Go(func() {
			ctx, cancel := context.WithTimeout(o.ctx, o.bound)
			freed, heir, err := o.repo.Release(ctx, c)
			cancel()
			o.mu.Lock()
			p.single = false
			o.single--
			if err == nil && freed && o.pending[c] == p {
				delete(o.pending, c)
			}
			o.mu.Unlock()
			if freed {
				o.freed([]string{c.Name}, heir)
			}
		})
	}
}

// releaseEach releases rows one by one, by statements that wait for them, until
// ctx ends.
func releaseEach(ctx context.Context, repo releaseStore, claims []store.Claim, freed func(c store.Claim, next store.Process)) {
	var wg sync.WaitGroup
	places := make(chan struct{}, maxSingle)
	for _, c := range claims {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			if ok, next, err := repo.Release(ctx, c); err == nil && ok {
				freed(c, next)
			}
			<-places
		})
	}
	wg.Wait()
}

// lastCall tries to free every orphan until ctx ends: somebody may have a row
// locked, and a connection may be dead. ghost is one that may yet be granted, "" if
// there is none.
func (o *releaser) drain(ctx context.Context) (ghost string, err error) {
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		o.mu.Lock()
		claims := slices.Collect(maps.Keys(o.pending))
		o.mu.Unlock()
		for part := range slices.Chunk(claims, store.BatchSize) {
			if err = o.drainOnce(ctx, part); err != nil {
				break
			}
		}
		ghost, held := o.left()
		switch {
		case err != nil && !store.Transient(err):
			return "", err
		case err == nil && held == "":
			return ghost, nil
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

func (o *releaser) drainOnce(ctx context.Context, claims []store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, closeBound/3)
	defer cancel()
	passedOver, err := o.free(ctx, claims)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, singleBound)
		defer cancel()
		releaseEach(ctx, o.repo, passedOver, func(c store.Claim, next store.Process) {
			o.mu.Lock()
			delete(o.pending, c)
			o.mu.Unlock()
			o.freed([]string{c.Name}, next)
		})
	}
	return err
}

// singleBound is for how long Close waits for rows one by one before it tries all
// of them again.
const singleBound = closeBound / 6

// left returns an orphan that may yet be granted, and one that has its row.
func (o *releaser) left() (ghost, held string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c, p := range o.pending {
		if p.mayBeGranted {
			ghost = c.Name
		} else {
			held = c.Name
		}
	}
	return ghost, held
}
