package undo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// batchTimeout limits a statement that releases a batch at Close, singleTimeout those
	// that release its locked rows one by one before all are tried again.
	batchTimeout  = time.Second
	singleTimeout = 500 * time.Millisecond
	// maxSingle limits the statements that release one row and may wait for it.
	maxSingle = 4
)

// firstPause has the delays between the tries at Close.
var firstPause = background.Backoff{Delay: 10 * time.Millisecond, Max: 3 * time.Second}

// ReleaseAll releases rows in batches. It retries locked rows until ctx ends, and calls freed
// with the names of each statement that released n rows.
func ReleaseAll(ctx context.Context, repo Repository, claims []store.Claim, freed func(names []string, n int64, next store.Process)) error {
	var failed error
	for pause := firstPause; len(claims) > 0; {
		var still []store.Claim
		for part := range slices.Chunk(claims, store.BatchSize) {
			left, err := releaseOrWait(ctx, repo, part, freed)
			if err != nil {
				failed = err
			}
			still = append(still, left...)
		}
		if claims = still; len(claims) > 0 && !pause.Wait(ctx) {
			if failed == nil {
				failed = store.ErrRowLocked
			}
			return fmt.Errorf("%d not released, the first %q: %w", len(claims), store.NameOf(claims[0].Name), failed)
		}
	}
	return nil
}

// releaseOrWait releases claims in one statement, and those that it skips one by one. It
// returns the claims that it did not release.
func releaseOrWait(ctx context.Context, repo Repository, claims []store.Claim, freed func(names []string, n int64, next store.Process)) ([]store.Claim, error) {
	limited, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	n, next, left, err := releaseBatch(limited, repo, claims)
	if n > 0 {
		freed(store.Names(claims), n, next)
	}
	if err != nil {
		return claims, err
	}
	var mu sync.Mutex // protects left
	releaseEach(ctx, repo, slices.Clone(left), func(c store.Claim, next store.Process) {
		freed([]string{c.Name}, 1, next)
		mu.Lock()
		defer mu.Unlock()
		left = slices.DeleteFunc(left, func(l store.Claim) bool { return l == c })
	})
	return left, nil
}

// releaseBatch releases claims in one statement. It returns how many it released, and those
// that still own their rows, which were locked.
func releaseBatch(ctx context.Context, repo Repository, claims []store.Claim) (freed int64, next store.Process, skipped []store.Claim, err error) {
	freed, next, err = repo.ReleaseAll(ctx, claims)
	if err == nil && freed != int64(len(claims)) {
		skipped, err = store.StillOwned(ctx, repo, claims)
	}
	return freed, next, skipped, err
}

// releaseEach releases rows one by one, by statements that wait for the row, until
// singleTimeout has passed.
func releaseEach(ctx context.Context, repo Repository, claims []store.Claim, freed func(c store.Claim, next store.Process)) {
	ctx, cancel := context.WithTimeout(ctx, singleTimeout)
	defer cancel()
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
