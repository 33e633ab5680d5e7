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

const (
	// batchTimeout limits a statement of Drain that releases a batch. singleTimeout limits the
	// statements that release its locked rows one by one, before the batch is tried again.
	batchTimeout  = time.Second
	singleTimeout = 500 * time.Millisecond
	// maxSingle limits the number of statements in flight that release one row and may wait for it.
	maxSingle = 4
)

// firstBackoff has the delays between the tries of Drain.
var firstBackoff = background.Backoff{Delay: 10 * time.Millisecond, Max: 3 * time.Second}

// ReleaseAll releases rows in batches, as Drain does. After each statement that released rows, it calls
// freed with the names that the statement contained. It returns how many rows were released. unknown
// means that a statement without a reply may have released rows, too, which others may have acquired
// since.
func ReleaseAll(ctx context.Context, repo Repository, claims []store.Claim, freed func(names []string, next store.Process)) (released int64, unknown bool, err error) {
	r := New(repo, batchTimeout, freed, slog.New(slog.DiscardHandler))
	for _, c := range claims {
		r.pending[c] = &pendingRelease{}
	}
	_, err = r.Drain(ctx)
	return r.released, r.unknown, err
}

// Drain stops the background goroutines, and sends all pending releases. It retries until ctx ends
// after a transient error, because a transaction may have a row locked, or a connection may be dead;
// and while the server is read-only. It returns the name of an acquisition that may still be granted,
// or "".
func (r *Releaser) Drain(ctx context.Context) (mayBeGranted string, err error) {
	r.group.Stop()
	r.group.Wait()
	for pause := firstBackoff; ; {
		claims, alone := r.all()
		err = r.releaseEach(ctx, alone)
		for part := range slices.Chunk(claims, store.BatchSize) {
			err = cmp.Or(r.drainBatch(ctx, part), err)
		}
		mayBeGranted, held := r.left()
		switch {
		case err == nil && held == "":
			return mayBeGranted, nil
		case err == nil:
			err = store.ErrRowLocked
		}
		retry := store.Transient(err) || store.Demoted(err) // the next connection may lead to the new primary
		if !retry || !pause.Wait(ctx) {
			return "", fmt.Errorf("%d not released, the first %q: %w", r.Pending(), store.NameOf(cmp.Or(held, mayBeGranted)), err)
		}
	}
}

// all returns the pending releases: those that can share a statement, and those that cannot.
func (r *Releaser) all() (claims, alone []store.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, p := range r.pending {
		if p.alone() {
			alone = append(alone, c)
		} else {
			claims = append(claims, c)
		}
	}
	return claims, alone
}

// drainBatch releases claims with one statement, and then one by one those whose rows were locked.
func (r *Releaser) drainBatch(ctx context.Context, claims []store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	skipped, err := r.release(ctx, claims)
	r.releaseEach(ctx, skipped) // after an error, the next batch tries again
	return err
}

// releaseEach releases rows with one statement each, which waits for the row lock, until
// singleTimeout has passed. It returns the last error.
func (r *Releaser) releaseEach(ctx context.Context, claims []store.Claim) (err error) {
	ctx, cancel := context.WithTimeout(ctx, singleTimeout)
	defer cancel()
	next := make(chan store.Claim, len(claims))
	for _, c := range claims {
		next <- c
	}
	close(next)
	var wg sync.WaitGroup
	for range min(maxSingle, len(claims)) {
		wg.Go(func() {
			for c := range next {
				if ctx.Err() != nil {
					return
				}
				if failed := r.releaseSingle(ctx, c); failed != nil {
					r.mu.Lock()
					err = failed
					r.mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
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
