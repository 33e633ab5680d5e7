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

// WithHolder returns a context for acquiring locks whose holder operators then see as label (a
// request id, a job), instead of the label of [WithIdentity]. The label has 1 to 255 bytes of
// UTF-8 without control characters; otherwise every call that acquires under the context returns
// an error that says so. Re-entry does not change the holder. A lock is handed over within the
// process, and a shared hold joins another one of the process, without a statement only if the
// holder is the same.
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
