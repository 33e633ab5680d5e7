package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/mysqllock/mysqllock/internal/wire"
)

// handoffFaults are those of direct handoffs, and of what is sent together.
var handoffFaults = []fault{
	{"waiter killed after the lock was granted to it", "worker", killGrantee, 4 * time.Second},
	{"holder killed between the release and the signal", "proxy", killReleaser, 3 * time.Second},
	{"listeners' connections killed", "kill", killListeners, 3 * time.Second},
	{"half of the rows locked", "rows", lockRows, 3 * time.Second},
}

// killGrantee stops a worker, so that it cannot find a grant, and kills it as soon as one of its
// requests is granted.
func killGrantee(ctx context.Context, r *rand.Rand, t *torture) bool {
	w := t.workers[r.IntN(len(t.workers))]
	p := w.process.Load()
	from := now()
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	granted := false
	for !granted && ctx.Err() == nil {
		locks, err := t.locker.List(ctx)
		if err != nil {
			break
		}
		for _, lock := range locks {
			granted = granted || strings.Contains(lock.Owner, "=") && workerOf(lock.Holder) == p.name
		}
		sleep(ctx, 2*time.Millisecond)
	}
	p.kill()
	t.tell(event{Kind: "stall", Holder: p.name, Call: from, Ret: now().add(20 * time.Millisecond)})
	return t.replace(w, p) && granted
}

// killReleaser kills a worker that is about to signal the next owner of a lock.
func killReleaser(ctx context.Context, r *rand.Rand, t *torture) bool {
	w := t.workers[r.IntN(len(t.workers))]
	signals := make(chan struct{}, 1)
	w.wire.Interfere(func(query string) (i wire.Interference) {
		if strings.HasPrefix(query, "KILL QUERY") {
			select {
			case signals <- struct{}{}:
			default:
			}
			i = wire.Interference{Error: 2013, NotSent: true}
		}
		return i
	})
	defer w.wire.Interfere(nil)
	select {
	case <-signals:
	case <-ctx.Done():
		return false
	}
	return t.replace(w, w.process.Load())
}

// killListeners kills connections that wait for a signal, or read what was granted after one.
func killListeners(ctx context.Context, r *rand.Rand, t *torture) (done bool) {
	for ctx.Err() == nil {
		ids, err := t.connections(ctx, `info LIKE '%SLEEP(%' OR info LIKE '%GET\_LOCK(%' OR info LIKE '%AS micros%'`)
		if err != nil {
			return done
		}
		for _, id := range ids {
			if r.IntN(3) == 0 {
				_, err := t.db.ExecContext(ctx, fmt.Sprintf("KILL %s%d", []string{"", "QUERY "}[r.IntN(2)], id))
				done = done || err == nil
			}
		}
		sleep(ctx, exponential(r, 50*time.Millisecond))
	}
	return done
}

// lockRows locks the rows of every other lock, so that batches find some of theirs locked.
func lockRows(ctx context.Context, r *rand.Rand, t *torture) bool {
	return t.lock(ctx, "SELECT COUNT(*) FROM mysqllock FORCE INDEX (PRIMARY) WHERE CRC32(name) % 2 = ? FOR UPDATE SKIP LOCKED", r.IntN(2))
}
