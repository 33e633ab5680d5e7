package leader_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/leader"
)

const (
	// candidateVariable, with a DSN, makes the program a candidate of the tests.
	candidateVariable = "MYSQLLOCK_TEST_CANDIDATE"

	lease = 3 * time.Second
	// poll is so long that only rings and the ends of leases wake candidates.
	poll = time.Minute
	// late is how much later than it could a busy machine may do something.
	late = 5 * time.Second
)

// candidate is what the processes of the tests are. It tells in lines of its
// output when it leads and when that is over. While it leads, and once more after
// that, it obeys the lines of its input.
func candidate(dsn string) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithLease(lease), mysqllock.WithPollInterval(poll))
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	orders := make(chan string)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			orders <- in.Text()
		}
		stop() // the test has ended
	}()
	leader.Elect(ctx, locker, "leader", func(ctx context.Context, lock *mysqllock.Lock) {
		fmt.Println("leads", lock.Token())
		for ctx.Err() == nil {
			select {
			case <-orders:
				fmt.Println("wrote", write(db, lock))
			case <-ctx.Done():
			}
		}
		if !errors.Is(context.Cause(ctx), mysqllock.ErrLost) {
			fmt.Println("over")
			return
		}
		fmt.Println("lost")
		<-orders // what comes of it has to be refused
		fmt.Println("wrote", write(db, lock))
	})
}

// write writes to two registers: one takes what has no lower token than what it
// has, one what comes in a guarded transaction. It heeds no context, as code does
// that looked at it a moment ago.
func write(db *sql.DB, lock *mysqllock.Lock) string {
	ctx := context.Background()
	result, err := db.ExecContext(ctx, "UPDATE fenced SET token = ?, writes = writes + 1 WHERE token <= ?", lock.Token(), lock.Token())
	if err != nil {
		return err.Error()
	}
	fenced, err := result.RowsAffected()
	if err != nil {
		return err.Error()
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err.Error()
	}
	defer tx.Rollback()
	err = lock.Guard(ctx, tx)
	if errors.Is(err, mysqllock.ErrLost) {
		return fmt.Sprintf("fenced %d, guarded 0", fenced)
	}
	if err != nil {
		return err.Error()
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded (token) VALUES (?)", lock.Token()); err != nil {
		return err.Error()
	}
	if err := tx.Commit(); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("fenced %d, guarded 1", fenced)
}

// A process is a candidate as the test sees it.
type process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // what it tells; closed when it has ended
}

func start(t *testing.T, dsn string, leads chan<- *process) *process {
	program, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(program), lines: make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), candidateVariable+"="+dsn)
	p.cmd.Stderr = os.Stderr
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	output, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(p.lines)
		for in := bufio.NewScanner(output); in.Scan(); {
			if strings.HasPrefix(in.Text(), "leads ") {
				leads <- p
			} else {
				p.lines <- in.Text()
			}
		}
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill() // also if it stands still
		<-ended
		p.cmd.Wait()
	})
	return p
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	require.NoError(t, p.cmd.Process.Signal(sig))
}

// next returns the next line of a process that it tells sooner or later.
func (p *process) next(t *testing.T) string {
	t.Helper()
	return soon(t, p.lines)
}

func (p *process) order(t *testing.T) {
	_, err := fmt.Fprintln(p.input, "write")
	require.NoError(t, err)
}

func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(lease + 4*late):
		t.Fatal("nothing came")
	}
	return v
}

// Three processes lead one after the other. The time between two leaders is a
// moment if the first steps down, and what is left of its lease if it is killed or
// stands still. When that one goes on, its context is over, and what it writes all
// the same is refused.
func TestFailover(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, dsn string) {
		for _, s := range []string{
			"CREATE TABLE fenced (id INT PRIMARY KEY, token BIGINT NOT NULL, writes INT NOT NULL) ENGINE = InnoDB",
			"INSERT INTO fenced VALUES (1, 0, 0)",
			"CREATE TABLE guarded (id INT AUTO_INCREMENT PRIMARY KEY, token BIGINT NOT NULL) ENGINE = InnoDB",
		} {
			_, err := db.Exec(s)
			require.NoError(t, err)
		}
		locker := newLocker(t, db)
		inspect := func() mysqllock.Info {
			info, err := locker.Inspect(t.Context(), "leader")
			require.NoError(t, err)
			return info
		}
		leads := make(chan *process, 10)
		for range 3 {
			start(t, dsn, leads)
		}
		candidates := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool { return inspect().Waiters == n }, 4*late, 10*time.Millisecond)
		}

		first := soon(t, leads)
		candidates(2)
		first.order(t)
		require.Equal(t, "wrote fenced 1, guarded 1", first.next(t))
		last := inspect()
		stepped := time.Now()
		first.signal(t, syscall.SIGTERM)
		second := soon(t, leads)
		t.Logf("stepped down: the next one leads %v after SIGTERM", time.Since(stepped).Round(time.Millisecond/10))
		require.Equal(t, "over", first.next(t))
		info := inspect()
		require.True(t, info.AcquiredAt.Before(last.ExpiresAt), "not by the end of the lease")
		require.Greater(t, info.Token, last.Token)

		candidates(1)
		second.order(t)
		require.Equal(t, "wrote fenced 1, guarded 1", second.next(t))
		killed := time.Now()
		second.signal(t, syscall.SIGKILL)
		for range second.lines { // until it has ended
		}
		last = inspect()
		third := soon(t, leads)
		info = inspect()
		t.Logf("killed: the next one leads %v after SIGKILL, %v after the end of the lease", time.Since(killed).Round(time.Millisecond), info.AcquiredAt.Sub(last.ExpiresAt))
		require.Greater(t, info.Token, last.Token)
		require.False(t, info.AcquiredAt.Before(last.ExpiresAt), "not before the end of the lease")
		require.Less(t, info.AcquiredAt.Sub(last.ExpiresAt), late)

		fourth := start(t, dsn, leads)
		candidates(1)
		third.order(t)
		require.Equal(t, "wrote fenced 1, guarded 1", third.next(t))
		stopped := time.Now()
		require.NoError(t, mysqltest.Suspend(third.cmd.Process))
		last = inspect()
		require.Same(t, fourth, soon(t, leads))
		info = inspect()
		t.Logf("stands still: the next one leads %v after SIGSTOP", time.Since(stopped).Round(time.Millisecond))
		require.Greater(t, info.Token, last.Token)
		require.Less(t, info.AcquiredAt.Sub(last.ExpiresAt), late)
		fourth.order(t)
		require.Equal(t, "wrote fenced 1, guarded 1", fourth.next(t))

		third.order(t)
		require.NoError(t, mysqltest.Resume(third.cmd.Process))
		// The order may be the first that it sees.
		told := []string{third.next(t), third.next(t)}
		if told[1] == "lost" {
			third.order(t)
			require.Equal(t, "wrote fenced 0, guarded 0", third.next(t))
		} else {
			require.Equal(t, "lost", told[0])
			told[0] = told[1]
		}
		require.Equal(t, "wrote fenced 0, guarded 0", told[0])

		// It is a candidate again.
		candidates(1)
		fourth.signal(t, syscall.SIGTERM)
		require.Same(t, third, soon(t, leads))
		third.order(t)
		require.Equal(t, "wrote fenced 1, guarded 1", third.next(t))

		var writes, guarded, tokens int
		require.NoError(t, db.QueryRow("SELECT writes, (SELECT COUNT(*) FROM guarded), (SELECT COUNT(DISTINCT token) FROM guarded) FROM fenced").Scan(&writes, &guarded, &tokens))
		require.Equal(t, []int{5, 5, 5}, []int{writes, guarded, tokens})
	})
}
