package mysqllock

import (
	"context"
	"fmt"
)

type holderKey struct{}

// A holderLabel is the argument of WithHolder, checked once.
type holderLabel struct {
	label string
	err   error
}

// WithHolder returns a context with a label, such as a request id or the name of a job, which
// operators see as the holder of the locks that are acquired with the context; it replaces the
// label of [WithIdentity]. The label must have 1 to 255 bytes of UTF-8 without control characters;
// otherwise every call that acquires with the context returns an error. Re-entry does not change
// the holder. A local handoff, and a shared lock that another goroutine of the process holds
// already, cost no statement only between calls with the same label.
func WithHolder(ctx context.Context, label string) context.Context {
	h := holderLabel{label: label}
	if err := checkText(label); err != nil {
		h.err = fmt.Errorf("WithHolder: %w", err)
	}
	return context.WithValue(ctx, holderKey{}, h)
}

// holderOf returns the label of ctx, or "" if it has none.
func holderOf(ctx context.Context) (label string, err error) {
	h, _ := ctx.Value(holderKey{}).(holderLabel)
	return h.label, h.err
}
