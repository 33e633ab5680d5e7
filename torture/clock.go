package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed preload/clock.c
var clockSource []byte

// A clock sets the wall clock of a server.
type clock struct {
	dir  string
	file *os.File // has the seconds to add; the server maps it into its memory
}

// newClock builds the library that preload/clock.c describes. The server must be started with the
// environment that env returns.
func newClock() (_ *clock, err error) {
	c := &clock{}
	if c.dir, err = os.MkdirTemp("", "torture-clock-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.remove()
		}
	}()
	source := filepath.Join(c.dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o644); err != nil {
		return nil, err
	}
	out, err := exec.Command(compiler(), "-O2", "-Wall", "-shared", "-fPIC", "-o", c.library(), source, "-ldl").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the clock needs a C compiler, see scripts/compiler.sh: %w\n%s", err, out)
	}
	if c.file, err = os.Create(filepath.Join(c.dir, "offset")); err != nil {
		return nil, err
	}
	return c, c.set(0)
}

func compiler() string {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return "cc"
}

func (c *clock) library() string { return filepath.Join(c.dir, "clock.so") }

func (c *clock) env() []string {
	return []string{"LD_PRELOAD=" + c.library(), "TORTURE_CLOCK=" + c.file.Name()}
}

// set makes the clock of the server differ from that of the machine by offset.
func (c *clock) set(offset time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset/time.Second)), 0)
	return err
}

func (c *clock) remove() {
	c.file.Close()
	os.RemoveAll(c.dir)
}

// staleTime is how long a statement may use the time at which it began, because it waits for
// transactions of the workers. It is longer than any time for which a process trusts its session
// without a renewal.
const staleTime = statementTimeout + time.Second

// stepClock sets the server's clock forward by an hour, and back when ctx ends.
//
// The first step ends all leases, so it revokes all locks. After the second step, leases that were
// written in between have an hour left. stepClock ends them by force, as an operator would.
// Statements that are being executed still use the time from before the step.
func stepClock(ctx context.Context, _ *rand.Rand, t *testRun) bool {
	forward := event{Kind: "revoke", Call: now()}
	if err := t.clock.set(time.Hour); err != nil {
		t.recordViolation(violation{"nemesis", "", err.Error()})
		return false
	}
	forward.Ret = now().add(time.Millisecond) // for threads that are reading the clock
	t.record(forward)
	<-ctx.Done()
	back := event{Kind: "revoke", Call: now()}
	if err := t.clock.set(0); err != nil {
		t.recordViolation(violation{"nemesis", "", err.Error()})
		return false
	}
	for try := 0; ; try++ {
		err := t.endLongLeases()
		if err == nil {
			break
		}
		if try == 300 {
			t.recordViolation(violation{"nemesis", "", "leases of an hour cannot be ended: " + err.Error()})
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
	back.Ret = now().add(staleTime)
	t.record(back)
	return true
}

// endLongLeases ends all sessions and leases with more than 30 minutes left. It includes sessions,
// because a lock that is bound to one later would stay held long after its process has died.
func (t *testRun) endLongLeases() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := t.db.ExecContext(ctx, `UPDATE mysqllock SET expires_at = '1970-01-01'
WHERE name BETWEEN x'00' AND x'01' AND expires_at > UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE`)
	if err != nil {
		return err
	}
	// There is no ForceUnlock for permits, and List does not report claims.
	_, err = t.db.ExecContext(ctx, `UPDATE mysqllock SET token = token + 256, owner = INSERT(owner, 1, 1, '!'), holds = 0, session = 0, expires_at = '1970-01-01'
WHERE name LIKE 'sem-%' AND expires_at > UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE`)
	if err != nil {
		return err
	}
	rows, err := t.db.QueryContext(ctx, `SELECT name FROM mysqllock
WHERE name > x'01' AND expires_at > UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return err
		}
		name, _, _ := strings.Cut(key, "\x00")
		if _, err := t.locker.ForceUnlock(ctx, name); err != nil {
			return err
		}
	}
	return rows.Err()
}
