package main

import (
	"context"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"

	"github.com/mysqllock/mysqllock/internal/wire"
)

// proxyErrorNumbers are answers of proxies, or of servers behind them, to statements of
// which nobody knows whether they were executed: backend gone, lost, a group that
// does not decide, rolls back, an account with too many connections, interrupted,
// no backend in time.
var proxyErrorNumbers = []uint16{2006, 2013, 3100, 3101, 1226, 1317, 1907, 9001}

// changes matches the library's statements that change rows: their reply is one packet.
var changes = regexp.MustCompile(`(?s)^(/\*.*?\*/\s*)*(UPDATE|INSERT)\b.*mysqllock`)

// ofLocks reports whether a statement changes a lock. "" is a prepared one: the
// library alone prepares, and only those.
func ofLocks(query string) bool { return query == "" || changes.MatchString(query) }

// proxyErrors answers statements with errors, whether they were executed or not.
func proxyErrors(ctx context.Context, r *rand.Rand, t *torture) bool {
	return t.meddle(ctx, r, func(own *rand.Rand, query string) (i wire.Interference) {
		i.Error = proxyErrorNumbers[own.IntN(len(proxyErrorNumbers))]
		i.NotSent = own.IntN(2) == 0
		return i
	})
}

// repeatStatements sends statements twice. No proxy does so within a transaction, in
// which ForceUnlock changes the row.
func repeatStatements(ctx context.Context, r *rand.Rand, t *torture) bool {
	return t.meddle(ctx, r, func(_ *rand.Rand, query string) wire.Interference {
		return wire.Interference{Repeat: !strings.Contains(query, "SET token = GREATEST(token + 256,")}
	})
}

// meddle does something to a share of the statements of some workers.
func (t *torture) meddle(ctx context.Context, r *rand.Rand, do func(r *rand.Rand, query string) wire.Interference) bool {
	share := []int{2, 10, 50}[r.IntN(3)] // in a hundred
	for _, i := range r.Perm(len(t.workers))[:1+r.IntN(len(t.workers))] {
		var mu sync.Mutex
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		t.workers[i].wire.Interfere(func(query string) (none wire.Interference) {
			mu.Lock()
			defer mu.Unlock()
			if !ofLocks(query) || own.IntN(100) >= share {
				return none
			}
			return do(own, query)
		})
		defer t.workers[i].wire.Interfere(nil)
	}
	<-ctx.Done()
	return true
}
