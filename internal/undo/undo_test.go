package undo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A recorder frees every row, and records when and how many.
type recorder struct {
	Repository
	began time.Time
	sent  []string
}

func (r *recorder) ReleaseAll(_ context.Context, cs []store.Claim) (int64, store.Process, error) {
	r.sent = append(r.sent, fmt.Sprintf("%v*%d", time.Since(r.began), len(cs)))
	return int64(len(cs)), 0, nil
}

// Many locks that are lost at once are released at one time. Only the first of them makes
// the Releaser look at all.
func TestManyReleasesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := &recorder{began: time.Now()}
		r := New(repo, time.Second, func([]string, store.Process) {}, slog.New(slog.DiscardHandler))
		defer r.Drain(t.Context())
		at := time.Now().Add(time.Minute)
		r.Add(store.Claim{Name: "first", Owner: "o"}, math.MaxInt64, false, at)
		synctest.Wait()
		for i := range 100 {
			r.Add(store.Claim{Name: fmt.Sprint(i), Owner: "o"}, math.MaxInt64, false, at)
			require.Empty(t, r.added)
		}
		r.Add(store.Claim{Name: "sooner", Owner: "o"}, math.MaxInt64, false, at.Add(-30*time.Second))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, "30s*1 1m0s*101", strings.Join(repo.sent, " "))
	})
}

// A claim for which several acquiring statements were sent is released again after a release has
// freed its row, until the last of them can no longer be executed.
func TestReleaseAfterSeveralStatements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := &recorder{began: time.Now()}
		r := New(repo, time.Second, func([]string, store.Process) {}, slog.New(slog.DiscardHandler))
		c := store.Claim{Name: "x", Owner: "o"}
		r.Add(c, time.Minute, true, time.Now())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, "0s*1", strings.Join(repo.sent, " "))
		repo.began, repo.sent = time.Now(), nil
		r.AddSeveral(c, 2*time.Second, time.Now())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, "0s*1 100ms*1 300ms*1 800ms*1 1.8s*1 2.8s*1 3.8s*1 4.8s*1 5s*1", strings.Join(repo.sent, " "))
		require.Zero(t, r.Pending())
		r.AddSeveral(c, 2*time.Second, time.Now())
		synctest.Wait()
		mayBeGranted, err := r.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, c.Name, mayBeGranted)
	})
}

// A lostReply loses the reply to the release of one row, and skips that row in batches until then.
type lostReply struct {
	Repository
	single bool // the row was released on its own
}

func (r *lostReply) ReleaseAll(context.Context, []store.Claim) (int64, store.Process, error) {
	return 0, 0, nil
}

func (r *lostReply) Release(context.Context, store.Claim) (bool, store.Process, error) {
	r.single = true
	return false, 0, errors.New("broken")
}

func (r *lostReply) Look(context.Context, []string) (map[string]store.Row, time.Time, error) {
	if r.single {
		return nil, time.Time{}, nil
	}
	return map[string]store.Row{"x": {Owner: "o"}}, time.Time{}, nil
}

func (r *lostReply) Owned(context.Context, []store.Claim) ([]store.Claim, error) { return nil, nil }

// A row whose release had no reply may have been released, and then acquired by another owner.
func TestReleaseWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, unknown, err := ReleaseAll(t.Context(), &lostReply{}, []store.Claim{{Name: "x", Owner: "o"}}, func([]string, store.Process) {})
		require.NoError(t, err)
		require.True(t, unknown)
	})
}
