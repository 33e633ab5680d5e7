package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// slowCommit is the time of a commit above which the server is not healthy.
const slowCommit = 500 * time.Millisecond

// lostReply is how long the library waits for the reply to a statement that its caller has
// abandoned.
const lostReply = 2 * time.Second

// awaitReleases waits until no lock is held, and reports those that are held for too long. Time in
// which the server is slow to commit, for example because the disk stalls, does not count.
func (t *testRun) awaitReleases(ctx context.Context, kind string) (left []violation, err error) {
	maxLease := longestLease + time.Second
	if kind == stepped {
		maxLease += time.Hour
	}
	began, limit := now(), t.released
	since := began // the last time the server was not healthy
	if began.sub(t.lastPacketLoss()) < lostReply {
		limit += lostReply
	}
	for {
		sent := now()
		_, err = t.db.ExecContext(ctx, "UPDATE heartbeat SET beats = beats + 1")
		if err != nil && sent.sub(began) > time.Minute {
			return nil, err
		}
		if err != nil || now().sub(sent) > slowCommit {
			since = now()
			t.log("the server took %v to commit: %v", since.sub(sent), err)
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		rows, err := t.heldRows(ctx)
		if err != nil {
			return nil, err
		}
		if kind == stepped { // a fixed lease may have ended before the clock was set back
			rows = slices.DeleteFunc(rows, func(r heldRow) bool { return r.left <= maxLease && t.reportedLost(r) })
		}
		t.mu.Lock()
		left = checkLeftovers(rows, func(holder string) bool { return t.dead[workerOf(holder)] || t.dead[holder] }, maxLease)
		t.mu.Unlock()
		if len(left) == 0 {
			t.report.released = max(t.report.released, sent.sub(since))
			return nil, nil
		}
		if sent.sub(since) > limit {
			return left, nil
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// reportedLost reports whether the holder of a row has reported a lock of that name as lost.
func (t *testRun) reportedLost(r heldRow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.events, func(e event) bool {
		return e.Kind == "end" && e.Outcome == "lost" && e.Name == r.name && e.Holder == r.holder
	})
}

// lastPacketLoss returns when a fault that drops packets without an error last ended.
func (t *testRun) lastPacketLoss() (last instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.events {
		if e.Kind == "fault" && (e.Name == "black hole" || strings.HasPrefix(e.Name, "half open")) {
			last = max(last, e.Ret)
		}
	}
	return last
}

// heldRows returns the rows that List reports, and other rows with a live lease, such as the
// claims of exclusive requests.
func (t *testRun) heldRows(ctx context.Context) (rows []heldRow, err error) {
	infos, err := t.locker.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		rows = append(rows, heldRow{i.Name, i.Holder, i.ExpiresIn})
	}
	leased, err := t.db.QueryContext(ctx, `SELECT REPLACE(name, x'00', '/'), holder, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)
FROM mysqllock WHERE name > x'01' AND RIGHT(name, 2) <> x'0073' AND expires_at > UTC_TIMESTAMP(6)`)
	if err != nil {
		return nil, err
	}
	defer leased.Close()
	for leased.Next() {
		var r heldRow
		var micros int64
		if err := leased.Scan(&r.name, &r.holder, &micros); err != nil {
			return nil, err
		}
		r.left = time.Duration(micros) * time.Microsecond
		rows = append(rows, r)
	}
	return rows, leased.Err()
}

// dumpRows returns the rows of the table as text, one a line.
func (t *testRun) dumpRows() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rows, err := t.db.QueryContext(ctx, `SELECT CONCAT_WS(' ', REPLACE(name, x'00', '/'), 'mode', mode, owner, holder, 'token', token, 'session', session,
  'acquired', acquired_at, 'expires', expires_at, 'released', released_at, 'waiters', waiters, 'now', UTC_TIMESTAMP(6)) FROM mysqllock ORDER BY name`)
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var row string
		if rows.Scan(&row) == nil {
			fmt.Fprintln(&b, row)
		}
	}
	return b.String()
}
