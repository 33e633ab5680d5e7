package store

import (
	"context"
	"errors"
)

// acquireShared acquires a name together with others that hold it shared.
func (s *Store) acquireShared(ctx context.Context, req AcquireRequest) (Grant, error) {
	return Grant{}, errors.ErrUnsupported
}

// Downgrade is replaced.
func (s *Store) Downgrade(ctx context.Context, from Claim, to AcquireRequest) (g Grant, next Process, err error) {
	return Grant{}, 0, errors.ErrUnsupported
}
