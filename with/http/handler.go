// Package httpowner makes each request to a net/http server an owner of locks:
//
//	server := &http.Server{Handler: httpowner.Handler(mux)}
//
// Functions that are called with the request's context can then re-enter the locks that the request
// holds.
package httpowner

import (
	"net/http"

	"github.com/mysqllock/mysqllock"
)

// Handler returns a handler that calls next with a request whose context has a new owner. It does not
// wrap the ResponseWriter, which can still be flushed, hijacked or upgraded. The goroutines of a request
// share its locks, and do not exclude each other. The end of a request ends the contexts of its locks,
// but does not release them: unlock each.
//
// Reply with 409 to [mysqllock.ErrNotAcquired], with 503 to [mysqllock.ErrUnavailable], and with 500 to
// other errors of an acquire, as examples/http does.
//
// Handler must wrap all handlers that acquire locks. Inside such a handler, it would start another
// owner, which cannot re-enter the locks of the outer one.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(mysqllock.WithOwner(r.Context())))
	})
}
