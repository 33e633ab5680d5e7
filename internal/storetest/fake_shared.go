package storetest

import (
	"context"
	"errors"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Downgrade implements [store.Store.Downgrade].
func (s *Store) Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (g store.Grant, next store.Process, err error) {
	return g, 0, errors.ErrUnsupported
}
