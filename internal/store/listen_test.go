package store

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A signal is not delayed by other processes that listen and are signalled at the same time. On
// MariaDB, two connections in SLEEP make a KILL QUERY take 2 s now and then, and block each
// other meanwhile.
func TestSignalsToManyListeners(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		const limit = 1500 * time.Millisecond
		all := stores(5)
		releaser := all[0]
		granted(t, releaser, "held", time.Hour)
		var wg sync.WaitGroup
		end := time.Now().Add(4 * time.Second)
		for _, s := range all[1:] {
			g, err := s.Acquire(ctx, AcquireRequest{Claim: Claim{"held", NewOwnerID(s.self)}, EnlistAs: s.self, Lease: time.Hour})
			require.NoError(t, err)
			require.Zero(t, g.Token)
			wg.Go(func() {
				defer s.CloseListener()
				signalled := 0
				for time.Now().Before(end) {
					woken := make(chan struct{})
					wg.Go(func() {
						defer close(woken)
						w, err := s.Listen(ctx, []string{"held"}, time.Minute)
						assert.NoError(t, err)
						assert.Equal(t, Wakeup{Signalled: true}, w)
					})
					for waits := true; waits; { // a signal before the statement began is lost
						time.Sleep(time.Duration(rand.IntN(600)) * time.Microsecond)
						start := time.Now()
						_, err := releaser.Signal(ctx, s.self)
						assert.NoError(t, err)
						assert.Less(t, time.Since(start), limit, "a signal")
						select {
						case <-woken:
							waits = false
							signalled++
						case <-time.After(10 * time.Millisecond):
						}
					}
				}
				t.Log(signalled, "times signalled")
			})
		}
		wg.Wait()
	})
}
