// Package httpowner makes each request to a net/http server an owner of locks:
//
//	server := &http.Server{Handler: httpowner.Handler(mux)}
//
// Whatever is called with the request's context can then re-enter the locks that
// the request holds.
package httpowner

import (
	"net/http"

	"github.com/mysqllock/mysqllock"
)

// Handler returns a handler that calls next with a request whose context starts an
// owner, and with w as it is: it may still be flushed, hijacked or upgraded. The
// goroutines of a request share its locks, and do not exclude each other. A lock
// is not released by the end of its request, only its context ends: unlock it.
//
// Answer 409 for [mysqllock.ErrNotAcquired], 503 for [mysqllock.ErrUnavailable], and
// 500 for other errors of an acquire, as examples/http does.
//
// Put it outside of handlers that take locks. Within them it would start another
// owner, for whom their locks are those of somebody else.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(mysqllock.WithOwner(r.Context())))
	})
}
