package mysqllock

import (
	"context"
	_ "embed"
	"time"

	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
)

// Schema is the table that the library keeps its locks in, as one CREATE TABLE
// statement for the default name. [Locker.CreateTable] applies it.
//
//go:embed schema.sql
var Schema string

// What the parts of a Locker need of the store, which documents the methods. Tests run the
// Locker on a fake instead.
type (
	repository interface {
		acquirer
		leaseStore
		undo.Repository
		outage.Prober
		waitStore
	}
	acquirer interface {
		Acquire(ctx context.Context, b store.AcquireRequest) (store.Grant, error)
		HoldEnded()
	}
	reader interface {
		Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
		Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)
	}
	// leaseStore is for the watchdog.
	leaseStore interface {
		reader
		Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int) (renewed int, sent time.Time, err error)
		Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error)
		Confirm(ctx context.Context, c store.Claim) (mine bool, sent time.Time, err error)
	}
	// waitQueues are the wait queues of this process. Their methods call nothing back.
	waitQueues interface {
		Wake(name string)
		Has(name string) bool
		Len() int
	}
	// waitStore is for waiters.
	waitStore interface {
		listener
		Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
		RemoveWaiter(ctx context.Context, names []string, p store.Process) (next store.Process, all bool, err error)
	}
	listener interface {
		Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error)
		CloseListener()
		PoolInUse() bool
		Signal(ctx context.Context, p store.Process) (alive bool, err error)
	}
)
