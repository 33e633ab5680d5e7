package mysqllock

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

// BenchmarkHotLock passes one lock between 64 goroutines.
func BenchmarkHotLock(b *testing.B) {
	self := store.NewProcess()
	l := onStore(b, self, fakestore.NewTable().NewStore(self))
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
