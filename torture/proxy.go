package main

import (
	"context"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"

	"github.com/mysqllock/mysqllock/internal/wire"
)

// proxyErrorNumbers has errors that proxies, or servers behind them, report for statements that may
// have been executed: the backend is gone or lost, a replication group fails or rolls back, the
// account has too many connections, the statement was interrupted, no backend replied in time.
var proxyErrorNumbers = []uint16{2006, 2013, 3100, 3101, 1226, 1317, 1907, 9001}

// changes matches the library's statements that change rows. Their reply is a single packet.
var changes = regexp.MustCompile(`(?s)^(/\*.*?\*/\s*)*(UPDATE|INSERT)\b.*mysqllock`)

// changesLock reports whether a statement changes a lock. query is "" for a prepared statement: only
// the library prepares statements, and only such ones.
func changesLock(query string) bool { return query == "" || changes.MatchString(query) }

// proxyErrors replaces the replies to statements by errors, and does not send half of the statements.
func proxyErrors(ctx context.Context, r *rand.Rand, t *testRun) bool {
	return t.interfere(ctx, r, func(r *rand.Rand, query string) (i wire.Interference) {
		i.Error = proxyErrorNumbers[r.IntN(len(proxyErrorNumbers))]
		i.NotSent = r.IntN(2) == 0
		return i
	})
}

// repeatStatements sends statements twice, except the one of ForceUnlock: no proxy repeats a
// statement within a transaction.
func repeatStatements(ctx context.Context, r *rand.Rand, t *testRun) bool {
	return t.interfere(ctx, r, func(_ *rand.Rand, query string) wire.Interference {
		return wire.Interference{Repeat: !strings.Contains(query, "SET token = GREATEST(token + 256,")}
	})
}

// interfere interferes with a random share of the statements of some workers. choose returns what to
// do to each of them.
func (t *testRun) interfere(ctx context.Context, r *rand.Rand, choose func(r *rand.Rand, query string) wire.Interference) bool {
	percent := []int{2, 10, 50}[r.IntN(3)]
	for _, i := range r.Perm(len(t.workers))[:1+r.IntN(len(t.workers))] {
		var mu sync.Mutex // protects r
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		t.workers[i].wire.Interfere(func(query string) (none wire.Interference) {
			mu.Lock()
			defer mu.Unlock()
			if !changesLock(query) || r.IntN(100) >= percent {
				return none
			}
			return choose(r, query)
		})
		defer t.workers[i].wire.Interfere(nil)
	}
	<-ctx.Done()
	return true
}
