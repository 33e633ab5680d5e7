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
