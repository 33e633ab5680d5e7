package mysqllock

import (
	"context"
	_ "embed"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
	"github.com/mysqllock/mysqllock/internal/wake"
)

// Schema is the library's table, as one CREATE TABLE statement for the default name.
// [Locker.CreateTable] applies it.
//
//go:embed schema.sql
var Schema string

// A repository is what the parts of a Locker need of the store, which documents the methods.
// Tests run the Locker on a fake instead.
type (
	repository interface {
		acquirer
		lease.Repository
		undo.Repository
		outage.Prober
		wake.Repository
	}
	acquirer interface {
		Acquire(ctx context.Context, b store.AcquireRequest) (store.Grant, error)
		AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error)
		Confirm(ctx context.Context, c store.Claim) (owned bool, sent time.Time, err error)
		HoldEnded()
	}
)
