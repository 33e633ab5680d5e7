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

// handoffFaults are faults of direct handoffs, and of requests that are sent together.
var handoffFaults = []fault{
	{"waiter killed after the lock was granted to it", "worker", killGrantee, 4 * time.Second},
	{"holder killed between the release and the signal", "proxy", killReleaser, 3 * time.Second},
	{"listeners' connections killed", "kill", killListeners, 3 * time.Second},
	{"half of the rows locked", "rows", lockRows, 3 * time.Second},
}

// killGrantee stops a worker, so that it cannot learn of a grant, and kills it when a release has
// granted it a lock. It kills the worker in any case.
func killGrantee(ctx context.Context, r *rand.Rand, t *testRun) bool {
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
			grantedByRelease := strings.Contains(lock.Owner, "=")
			granted = granted || grantedByRelease && workerOf(lock.Holder) == p.name
		}
		sleep(ctx, 2*time.Millisecond)
	}
	p.kill()
	t.record(event{Kind: "stall", Holder: p.name, Call: from, Ret: now().add(20 * time.Millisecond)})
	return t.replace(w, p) && granted
}

// killReleaser waits until a worker signals another process by KILL QUERY, drops the signal, and
// kills the worker.
func killReleaser(ctx context.Context, r *rand.Rand, t *testRun) bool {
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

// killListeners kills, or interrupts, connections that wait for a signal, or that read after a
// signal what was granted.
func killListeners(ctx context.Context, r *rand.Rand, t *testRun) (done bool) {
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

// lockRows locks about half of the rows, so that requests that are sent together find some locked.
func lockRows(ctx context.Context, r *rand.Rand, t *testRun) bool {
	return t.holdRowLocks(ctx, "SELECT COUNT(*) FROM mysqllock FORCE INDEX (PRIMARY) WHERE CRC32(name) % 2 = ? FOR UPDATE SKIP LOCKED", r.IntN(2))
}
