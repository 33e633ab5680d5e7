package mysqllock

import (
	"context"
	"database/sql"
	_ "embed"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
	"github.com/mysqllock/mysqllock/internal/wake"
)

// Schema is the CREATE TABLE statement of the library's table, with the default name.
// [Locker.CreateTable] executes it.
//
//go:embed schema.sql
var Schema string

// A table has the methods of package store that a Locker needs; their comments are there. A
// repository is the subset that the parts of a Locker share. Tests replace both by a fake.
type (
	table interface {
		repository
		operator
		CreateTable(ctx context.Context) error
		Guard(ctx context.Context, tx store.Queryer, c store.Claim, token uint64) error
		Statements() int64
		Close()
	}
	operator interface {
		Inspect(ctx context.Context, name string) (store.Info, error)
		List(ctx context.Context) ([]store.Info, error)
		Permits(ctx context.Context, name string) ([]store.Info, error)
		ForceUnlock(ctx context.Context, name string) (freed []store.Claim, next store.Process, err error)
		Purge(ctx context.Context, idle time.Duration) (deleted int64, err error)
	}
	repository interface {
		acquirer
		handover
		lease.Repository
		undo.Repository
		outage.Prober
		wake.Repository
	}
	acquirer interface {
		Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error)
		AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error)
		Confirm(ctx context.Context, c store.Claim) (owned bool, sent time.Time, err error)
		Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (g store.Grant, next store.Process, err error)
		HoldBegan()
		HoldEnded()
	}
	handover interface {
		Detach(ctx context.Context, req store.DetachRequest) (detached bool, next store.Process, sent time.Time, err error)
		Attach(ctx context.Context, req store.AttachRequest) (store.Grant, error)
		KeepShared(ctx context.Context, c store.Claim, id, holder string, m store.MinHold) (kept bool, err error)
	}
)

// A tableDriver is the driver of a pool that has no server, as in package mysqllocktest. It opens
// the table itself, and returns the pool for transactions.
type tableDriver interface {
	OpenTable(self store.Process, label string) (opened any, transactions *sql.DB)
}

// openTable opens the table on db, and returns the pool for transactions.
func openTable(db *sql.DB, c config, self store.Process) (table, *sql.DB, error) {
	if d, ok := db.Driver().(tableDriver); ok {
		opened, transactions := d.OpenTable(self, c.identity)
		return opened.(table), transactions, nil
	}
	opened, err := store.New(db, Schema, c.table, c.identity, self, c.lease)
	return opened, db, err
}
