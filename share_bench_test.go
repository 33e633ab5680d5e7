package mysqllock

import (
	"log/slog"
	"testing"
	"time"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

// BenchmarkFurtherSharedHold acquires a lock that the process already holds shared.
func BenchmarkFurtherSharedHold(b *testing.B) {
	self := store.NewProcess()
	c := config{lease: DefaultLease, poll: time.Second, signal: true, handoff: true, log: slog.New(slog.DiscardHandler)}
	l := newLocker(fakestore.NewTable().NewStore(self), self, c)
	defer l.Close()
	if _, err := l.RLock(bg, "x", AutoRenew); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.RLock(bg, "x", AutoRenew)
		if err != nil {
			b.Fatal(err)
		}
		k.Unlock()
	}
}
