package lease

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// An oneOfTwo renews and binds only the second of two rows, because the first is locked.
type oneOfTwo struct {
	Repository
	rows    map[string]store.Row
	renewed func() // called after the renewal
	owned   []store.Claim
}

func (r *oneOfTwo) Renew(_ context.Context, cs []store.Claim, _ time.Duration, _ int, _ store.SessionID) (int, time.Time, error) {
	sent := time.Now()
	r.renewed()
	return len(cs) - 1, sent, nil
}

func (r *oneOfTwo) Look(context.Context, []string) (map[string]store.Row, time.Time, error) {
	return r.rows, time.Now(), nil
}

func (r *oneOfTwo) Owned(context.Context, []store.Claim) ([]store.Claim, error) { return r.owned, nil }

func (r *oneOfTwo) Extend(context.Context, store.Claim, time.Duration, int, store.SessionID) (bool, time.Time, error) {
	return false, time.Now(), store.ErrRowLocked
}

func (r *oneOfTwo) EndSession(context.Context, store.SessionID) error { return nil }

type noHolder struct{}

func (noHolder) LeaseLost() {}

// A row that expires late does not show whether a renewal has bound it. If the batch has renewed a
// lease that ends before the rows are read, the number of renewed rows does not show it, either.
func TestLeaseOfALockedRowIsNotBound(t *testing.T) {
	const length = 30 * time.Second
	long, brief := store.Claim{Name: "long", Owner: "a"}, store.Claim{Name: "brief", Owner: "b"}
	for name, row := range map[string]store.Row{
		"unlocked meanwhile": {Owner: brief.Owner, Lease: length, Remaining: length},
		"taken meanwhile":    {Owner: "other", Lease: length, Remaining: length},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				repo := &oneOfTwo{rows: map[string]store.Row{
					long.Name:  {Owner: long.Owner, Lease: 2 * length, Remaining: 2 * length},
					brief.Name: row,
				}, owned: []store.Claim{long}}
				d := New(repo, Config{Self: store.NewProcess(), Length: length, Log: slog.New(slog.DiscardHandler), Reported: func(int, int, error) {}})
				defer d.Close()
				now := time.Now()
				a := d.Start(long, now, 2*length, Request{Auto: true}, noHolder{})
				b := d.Start(brief, now, length, Request{Auto: true}, noHolder{})
				d.session = &session{id: d.lastSession + 1, length: length, loss: time.NewTimer(length), next: time.NewTimer(length)}
				repo.renewed = func() {
					if row.Owner == brief.Owner {
						d.Stop(b)
					}
				}
				d.renewBatch(batch{renewal: renewal{length: length, session: d.session}, leases: []*Lease{a, b}, began: now})
				synctest.Wait()
				require.True(t, d.Alive(a))
				require.Nil(t, a.session)
			})
		})
	}
}
