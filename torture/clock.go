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

// A clock is the wall clock of the server, which can be set.
type clock struct {
	dir  string
	file *os.File // the seconds that are added, as the server has them mapped
}

// newClock makes a clock; the server has to be started in its environment.
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

func (c *clock) set(offset time.Duration) error {
	_, err := c.file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(offset/time.Second)), 0)
	return err
}

func (c *clock) remove() {
	c.file.Close()
	os.RemoveAll(c.dir)
}

// frozen is how long a statement may go by the time at which it began, while
// it waits for the transactions of the workers.
const frozen = statementTimeout + time.Second

// step sets the clock of the database an hour forward and then back.
//
// Forward, every lease ends: a lock held then is void. Back, a lease that
// was written meanwhile has an hour to run, which an operator would end by force,
// as is done here; and a statement that is under way still goes by the other time.
func step(ctx context.Context, _ *rand.Rand, t *torture) bool {
	forward := event{Kind: "revoke", Call: now()}
	if err := t.clock.set(time.Hour); err != nil {
		t.fail(violation{"nemesis", "", err.Error()})
		return false
	}
	forward.Ret = now().add(time.Millisecond) // a reading that was on its way
	t.tell(forward)
	<-ctx.Done()
	back := event{Kind: "revoke", Call: now()}
	if err := t.clock.set(0); err != nil {
		t.fail(violation{"nemesis", "", err.Error()})
		return false
	}
	for try := 0; ; try++ {
		err := t.sweep()
		if err == nil {
			break
		}
		if try == 300 {
			t.fail(violation{"nemesis", "", "leases of an hour cannot be ended: " + err.Error()})
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
	back.Ret = now().add(frozen)
	t.tell(back)
	return true
}

// sweep ends the sessions and the leases that have too long to run: a lock that is bound to
// such a session later would outlive its process. A process trusts its session for less
// than frozen without a renewal.
func (t *torture) sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := t.db.ExecContext(ctx, `UPDATE mysqllock SET expires_at = '1970-01-01'
WHERE name BETWEEN x'00' AND x'01' AND expires_at > UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE`)
	if err != nil {
		return err
	}
	// No method frees permits by force, or lists claims.
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
