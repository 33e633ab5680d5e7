package undo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// batchTimeout limits a statement that releases a batch at Close. singleTimeout limits the
	// statements that release its locked rows one by one, before the batch is tried again.
	batchTimeout  = time.Second
	singleTimeout = 500 * time.Millisecond
	// maxSingle limits the number of statements in flight that release one row and may wait for it.
	maxSingle = 4
)

// firstBackoff has the delays between tries at Close.
var firstBackoff = background.Backoff{Delay: 10 * time.Millisecond, Max: 3 * time.Second}

// ReleaseAll releases rows in batches, and retries locked rows until ctx ends. After each statement
// that released n > 0 rows, it calls freed with the names that the statement contained. unknown means
// that a statement without a reply may have released rows, which others may have acquired since.
func ReleaseAll(ctx context.Context, repo Repository, claims []store.Claim, freed func(names []string, n int64, next store.Process)) (unknown bool, err error) {
	var failed error
	for pause := firstBackoff; len(claims) > 0; {
		var still []store.Claim
		for part := range slices.Chunk(claims, store.BatchSize) {
			left, maybe, err := releaseOrWait(ctx, repo, part, freed)
			if err != nil {
				failed = err
			}
			unknown = unknown || maybe
			still = append(still, left...)
		}
		if claims = still; len(claims) > 0 && !pause.Wait(ctx) {
			if failed == nil {
				failed = store.ErrRowLocked
			}
			return unknown, fmt.Errorf("%d not released, the first %q: %w", len(claims), store.NameOf(claims[0].Name), failed)
		}
	}
	return unknown, nil
}

// releaseOrWait releases claims with one statement, and then one by one those whose rows were
// locked. It returns the claims that it did not release. unknown is as in ReleaseAll.
func releaseOrWait(ctx context.Context, repo Repository, claims []store.Claim, freed func(names []string, n int64, next store.Process)) (left []store.Claim, unknown bool, err error) {
	limited, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	n, next, left, err := releaseBatch(limited, repo, claims)
	if n > 0 {
		freed(store.Names(claims), n, next)
	}
	if err != nil {
		return claims, store.OutcomeUnknown(err), err
	}
	var mu sync.Mutex // protects left
	unknown = releaseEach(ctx, repo, slices.Clone(left), func(c store.Claim, next store.Process) {
		freed([]string{c.Name}, 1, next)
		mu.Lock()
		defer mu.Unlock()
		left = slices.DeleteFunc(left, func(l store.Claim) bool { return l == c })
	})
	return left, unknown, nil
}

// releaseBatch releases claims with one statement. It returns how many it released, and the claims
// that still own their rows because these were locked.
func releaseBatch(ctx context.Context, repo Repository, claims []store.Claim) (freed int64, next store.Process, skipped []store.Claim, err error) {
	freed, next, err = repo.ReleaseAll(ctx, claims)
	if err == nil && freed != int64(len(claims)) {
		skipped, err = store.StillOwned(ctx, repo, claims)
	}
	return freed, next, skipped, err
}

// releaseEach releases rows with one statement each, which waits for the row lock, until
// singleTimeout has passed. unknown is as in ReleaseAll.
func releaseEach(ctx context.Context, repo Repository, claims []store.Claim, freed func(c store.Claim, next store.Process)) (unknown bool) {
	ctx, cancel := context.WithTimeout(ctx, singleTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var maybe atomic.Bool
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
			ok, next, err := repo.Release(ctx, c)
			if err == nil && ok {
				freed(c, next)
			} else if store.OutcomeUnknown(err) {
				maybe.Store(true)
			}
			<-slots
		})
	}
	wg.Wait()
	return maybe.Load()
}
