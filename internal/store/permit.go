package store

import (
	"context"
	"errors"
)

// acquirePermit acquires a free slot of a semaphore.
func (s *Store) acquirePermit(ctx context.Context, req AcquireRequest) (Grant, error) {
	return Grant{}, errors.ErrUnsupported
}
