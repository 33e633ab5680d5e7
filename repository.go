package mysqllock

import (
	"context"
	_ "embed"
	"time"

	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
	"github.com/mysqllock/mysqllock/internal/wake"
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
		wake.Repository
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
		sessionStore
		Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int, session store.SessionID) (renewed int, sent time.Time, err error)
		Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (mine bool, sent time.Time, err error)
		Confirm(ctx context.Context, c store.Claim) (mine bool, sent time.Time, err error)
	}
	sessionStore interface {
		BeginSession(ctx context.Context, id store.SessionID, lease time.Duration) (sent time.Time, err error)
		RenewSession(ctx context.Context, id store.SessionID, lease time.Duration) (forced bool, sent time.Time, err error)
		EndSession(ctx context.Context, id store.SessionID) error
	}
)
