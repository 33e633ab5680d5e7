package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// killGrantee stops a worker to which the next release of a lock would grant it, so that it cannot
// learn of the grant, and kills it when a release has granted it a lock. Once it has stopped a worker,
// it kills it in any case.
func killGrantee(ctx context.Context, r *rand.Rand, t *testRun) bool {
	w := t.awaitDirectHead(ctx)
	if w == nil {
		return false
	}
	p := w.process.Load()
	from := now()
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	known, err := t.grantsTo(ctx, p)
	granted := false
	for !granted && err == nil {
		sleep(ctx, 2*time.Millisecond)
		var grants []string
		grants, err = t.grantsTo(ctx, p)
		granted = slices.ContainsFunc(grants, func(owner string) bool { return !slices.Contains(known, owner) })
	}
	p.kill()
	t.record(event{Kind: "stall", Holder: p.name, Call: from, Ret: now().add(20 * time.Millisecond)})
	return t.replace(w, p) && granted
}

// awaitDirectHead waits until a worker is the head of a wait queue under an id that accepts grants by
// releases, and returns its slot. It returns nil if ctx ends before.
func (t *testRun) awaitDirectHead(ctx context.Context) *workerSlot {
	for ctx.Err() == nil {
		var holder string // of the session of the process
		err := t.db.QueryRowContext(ctx, `SELECT p.holder FROM mysqllock AS l
			JOIN mysqllock AS p ON p.name = CONCAT(x'00', IF(l.waiters < '8', '5', '6'), SUBSTRING(l.waiters, 2, 18))
			WHERE l.waiters >= '7' LIMIT 1`).Scan(&holder)
		for _, w := range t.workers {
			if err == nil && w.process.Load().name == workerOf(holder) {
				return w
			}
		}
		sleep(ctx, 2*time.Millisecond)
	}
	return nil
}

// grantsTo returns the owner ids of the locks that releases have granted to a worker.
func (t *testRun) grantsTo(ctx context.Context, p *process) (owners []string, err error) {
	locks, err := t.locker.List(ctx)
	for _, lock := range locks {
		if strings.Contains(lock.Owner, "=") && workerOf(lock.Holder) == p.name {
			owners = append(owners, lock.Owner)
		}
	}
	return owners, err
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
