package mysqllock

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

// BenchmarkHotLock passes one lock between 64 goroutines.
func BenchmarkHotLock(b *testing.B) {
	self := store.NewProcess()
	c := config{lease: DefaultLease, poll: time.Second, signal: true, handoff: true, log: slog.New(slog.DiscardHandler)}
	l := newLocker(fakestore.NewTable().NewStore(self), self, c)
	defer l.Close()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				k, err := l.Lock(bg, "x", AutoRenew)
				if err != nil {
					b.Error(err)
					return
				}
				k.Unlock()
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "turns/s")
}
