package wake

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A row lists this process in its wait queue while a transaction has it locked.
type row struct {
	Repository
	locked time.Time // until then

	mu       sync.Mutex // protects following fields
	removed  time.Time  // when this process was removed from the wait queue
	released []string   // the contexts of the releases
}

func (r *row) RemoveWaiter(context.Context, []string, store.Process) (store.Process, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.locked) {
		return 0, false, nil
	}
	r.removed = time.Now()
	return 0, true, nil
}

func (r *row) Look(_ context.Context, names []string) (map[string]store.Row, time.Time, error) {
	return map[string]store.Row{names[0]: {Owner: "other", Listed: true}}, time.Now(), nil
}

func (r *row) ReleaseToNext(ctx context.Context, _ store.Claim, _ string) (bool, store.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = append(r.released, fmt.Sprint(ctx))
	return true, 0, nil
}

// No process waits.
type noQueues struct{}

func (noQueues) Wake(string)     {}
func (noQueues) Has(string) bool { return false }
func (noQueues) Len() int        { return 0 }

// A slowNotifier takes 30 ms for each message.
type slowNotifier struct{ published []string }

func (n *slowNotifier) Publish(ctx context.Context, name string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(30 * time.Millisecond):
		n.published = append(n.published, name)
		return nil
	}
}

func (n *slowNotifier) Subscribe(ctx context.Context, _ func(string)) error {
	<-ctx.Done()
	return ctx.Err()
}

func newWaker(repo Repository, n Notifier) *Waker {
	return New(repo, noQueues{}, Config{Self: store.NewProcess(), Interval: time.Second, Signal: true, Notifier: n, Log: slog.New(slog.DiscardHandler)})
}

// Others wait while this process is in a wait queue, or a row is granted to it. So Close leaves the queues
// before it publishes its last releases, which can take longer than it waits for them.
func TestCloseLeavesBeforeItPublishes(t *testing.T) {
	for name, c := range map[string]struct{ releases, published int }{
		"some": {10, 10},
		"many": {100, 33}, // in the second for which Close may send
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				repo, n, began := &row{}, &slowNotifier{}, time.Now()
				w := newWaker(repo, n)
				w.ExpectGrant("x")
				grant := store.Grant{Claim: store.Claim{Name: "y", Owner: "o"}}
				require.True(t, w.grants.put(grant))
				for i := range c.releases {
					w.Released([]string{fmt.Sprint(i)}, 0)
				}
				synctest.Wait()
				w.Close()
				require.Len(t, repo.released, 1)
				require.Equal(t, 30*time.Millisecond, repo.removed.Sub(began))
				require.Len(t, n.published, c.published)
			})
		})
	}
}

// Close tries again to leave the wait queue of a row that is locked for a quarter of a second.
func TestCloseLeavesALockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		repo := &row{locked: began.Add(250 * time.Millisecond)}
		w := newWaker(repo, nil)
		w.ExpectGrant("x")
		w.Close()
		require.Equal(t, 310*time.Millisecond, repo.removed.Sub(began))
	})
}

// No hold uses a grant that is given back, so its release leaves the reserved connection to the locks
// that are held.
func TestGrantIsGivenBackBesideTheReservedConnection(t *testing.T) {
	notHeld := fmt.Sprint(store.NotHeld(t.Context()))
	key := notHeld[strings.LastIndex(notHeld, ".WithValue"):]
	for name, giveBack := range map[string]func(w *Waker, c store.Claim){
		"Leave":    func(w *Waker, c store.Claim) { w.Leave(c.Name) },
		"GiveBack": func(w *Waker, c store.Claim) { w.TakeGrant(c.Name); w.GiveBack(c) },
		"Close":    func(w *Waker, _ store.Claim) { w.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				repo := &row{}
				w := newWaker(repo, nil)
				defer w.Close()
				w.ExpectGrant("x")
				c := store.Claim{Name: "x", Owner: "o"}
				require.True(t, w.grants.put(store.Grant{Claim: c}))
				giveBack(w, c)
				synctest.Wait()
				require.Len(t, repo.released, 1)
				require.Contains(t, repo.released[0], key)
			})
		})
	}
}
