package store

import (
	"context"
	"errors"
)

// acquireShared acquires a name together with others that hold it shared.
func (s *Store) acquireShared(ctx context.Context, req AcquireRequest) (Grant, error) {
	return Grant{}, errors.ErrUnsupported
}
