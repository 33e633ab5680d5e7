package mysqllock

import (
	"testing"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

// BenchmarkFurtherSharedHold acquires a lock that the process already holds shared.
func BenchmarkFurtherSharedHold(b *testing.B) {
	self := store.NewProcess()
	l := onStore(b, self, fakestore.NewTable().NewStore(self))
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

// BenchmarkLockUnlock acquires and releases a lock that nobody else wants.
func BenchmarkLockUnlock(b *testing.B) {
	self := store.NewProcess()
	l := onStore(b, self, fakestore.NewTable().NewStore(self))
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.TryLock(bg, "x", 0, AutoRenew)
		if err != nil {
			b.Fatal(err)
		}
		k.Unlock()
	}
}

// BenchmarkReentry re-enters a lock, and unlocks that handle.
func BenchmarkReentry(b *testing.B) {
	self := store.NewProcess()
	l := onStore(b, self, fakestore.NewTable().NewStore(self))
	k, err := l.Lock(bg, "x", AutoRenew)
	if err != nil {
		b.Fatal(err)
	}
	ctx := k.Context()
	b.ReportAllocs()
	for b.Loop() {
		again, err := l.TryLock(ctx, "x", 0, AutoRenew)
		if err != nil {
			b.Fatal(err)
		}
		again.Unlock()
	}
}
