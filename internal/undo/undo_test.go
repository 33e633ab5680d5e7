package undo

import (
	"context"
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
		defer r.Close()
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
		r.Close()
		mayBeGranted, err := r.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, c.Name, mayBeGranted)
	})
}
