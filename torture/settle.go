package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// slowCommit is how long a commit takes on a server that is well, at most.
const slowCommit = 500 * time.Millisecond

// lostReply is how long the library waits for the reply to a statement whose caller has left.
const lostReply = 2 * time.Second

// settle waits until nothing is held any more, and finds what is in the end. While the server is slow
// to commit, as beside a disk that stalls, the time does not count.
func (t *torture) settle(ctx context.Context, kind string) (left []violation, err error) {
	longest := longestLease + time.Second
	if kind == stepped {
		longest += time.Hour
	}
	began, bound := now(), t.settled
	start := began
	if start.sub(t.packetsVanished()) < lostReply {
		bound += lostReply
	}
	for {
		asked := now()
		_, err = t.db.ExecContext(ctx, "UPDATE heartbeat SET beats = beats + 1")
		if err != nil && asked.sub(began) > time.Minute {
			return nil, err
		}
		if err != nil || now().sub(asked) > slowCommit {
			start = now()
			t.log("the server took %v to commit: %v", start.sub(asked), err)
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		rows, err := t.held(ctx)
		if err != nil {
			return nil, err
		}
		if kind == stepped { // the clock may have been set back since the end of a fixed lease
			rows = slices.DeleteFunc(rows, func(h heldRow) bool { return h.left <= longest && t.hasLost(h) })
		}
		t.mu.Lock()
		left = checkLeftovers(rows, func(holder string) bool { return t.dead[workerOf(holder)] || t.dead[holder] }, longest)
		t.mu.Unlock()
		if len(left) == 0 {
			t.report.settled = max(t.report.settled, asked.sub(start))
			return nil, nil
		}
		if asked.sub(start) > bound {
			return left, nil
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// hasLost reports whether the holder of a row has been told that it lost a lock of that name.
func (t *torture) hasLost(h heldRow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.events, func(e event) bool {
		return e.Kind == "end" && e.Outcome == "lost" && e.Name == h.name && e.Holder == h.holder
	})
}

// packetsVanished is when packets last vanished without an error.
func (t *torture) packetsVanished() (last instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.events {
		if e.Kind == "fault" && (e.Name == "black hole" || strings.HasPrefix(e.Name, "half open")) {
			last = max(last, e.Ret)
		}
	}
	return last
}

// held are the rows that are held, as the library tells, and those that a lease keeps, as are
// claims of names that are held shared.
func (t *torture) held(ctx context.Context) (rows []heldRow, err error) {
	infos, err := t.locker.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		rows = append(rows, heldRow{i.Name, i.Holder, i.ExpiresIn})
	}
	kept, err := t.db.QueryContext(ctx, `SELECT REPLACE(name, x'00', '/'), holder, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)
FROM mysqllock WHERE name > x'01' AND RIGHT(name, 2) <> x'0073' AND expires_at > UTC_TIMESTAMP(6)`)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	for kept.Next() {
		var h heldRow
		var micros int64
		if err := kept.Scan(&h.name, &h.holder, &micros); err != nil {
			return nil, err
		}
		h.left = time.Duration(micros) * time.Microsecond
		rows = append(rows, h)
	}
	return rows, kept.Err()
}

// rows are those of the table now, as text.
func (t *torture) rows() string {
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
