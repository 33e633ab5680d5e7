package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// soak is how long the tests with several processes run: MYSQLLOCK_SOAK, or
// what a suite can bear.
func soak(t *testing.T) time.Duration {
	s := os.Getenv("MYSQLLOCK_SOAK")
	if s == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, "MYSQLLOCK_SOAK")
	return d
}

// A job is the input of a worker process: which cycles to run, where, and under which label.
type job struct{ Turns, DSN, Label string }

// A report is the output of a worker.
type report struct {
	Turns, Guarded, Lost int64
	Errors               []string
	Stats                mysqllock.Stats
}

const (
	jobVariable = "MYSQLLOCK_TEST_JOB"
	goroutines  = 32 // of a worker
	contested   = "contested"
)

// exitIfWorker makes this process a worker if a test has started it as one.
func exitIfWorker() {
	if text := os.Getenv(jobVariable); text != "" {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			panic(err)
		}
		r := work(j)
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil || len(r.Errors) > 0 {
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// A worker takes turns until its input ends, as it does when the test ends.
type worker struct {
	job
	db     *sql.DB
	locker *mysqllock.Locker

	turns, guarded, lost atomic.Int64

	mu     sync.Mutex // guards the following
	errors []string
}

func work(j job) report {
	w := &worker{job: j}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(30 * time.Second)
		debug.SetTraceback("all")
		panic("this worker does not end")
	}()

	turn, lease := w.registered, 30*time.Second
	if j.Turns == "fenced" {
		turn, lease = w.fenced, time.Second
	}
	var err error
	if w.db, err = sql.Open("mysql", j.DSN); err != nil {
		panic(err)
	}
	w.db.SetMaxOpenConns(6)
	w.db.SetMaxIdleConns(6)
	w.locker, err = mysqllock.New(w.db, mysqllock.WithIdentity(j.Label), mysqllock.WithLease(lease), mysqllock.WithPollInterval(30*time.Millisecond))
	if err != nil {
		panic(err)
	}

	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := turn(ctx, i); err != nil {
					w.complain(err)
					cancel()
				}
			}
		})
	}
	wg.Wait()
	if err := w.locker.Close(); err != nil {
		w.complain(err)
	}
	return report{w.turns.Load(), w.guarded.Load(), w.lost.Load(), w.errors, w.locker.Stats()}
}

func (w *worker) complain(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors = append(w.errors, fmt.Sprintf("%s: %v", w.Label, err))
}

// acquire returns nil and nil when the worker has to end.
func (w *worker) acquire(ctx context.Context, lease time.Duration) (*mysqllock.Lock, error) {
	k, err := w.locker.Lock(ctx, contested, lease)
	if err != nil && ctx.Err() != nil && (errors.Is(err, mysqllock.ErrNotAcquired) || errors.Is(err, mysqllock.ErrUnavailable)) {
		return nil, nil
	}
	return k, err
}

// The register shows two holders at once: a holder that enters must find no other inside and
// the value that the last one left, read without a lock; one that leaves must find itself.
const (
	createRegister = `CREATE TABLE register (id INT PRIMARY KEY, inside VARCHAR(255) NOT NULL, turns INT NOT NULL)`
	createTurns    = `CREATE TABLE turns (id INT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED NOT NULL UNIQUE, worker VARCHAR(255) NOT NULL)`
)

// A session is a pool or a transaction.
type session interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// registered is one turn of a lock that nothing must end but its Unlock.
func (w *worker) registered(turnCtx context.Context, i int) error {
	lease := mysqllock.AutoRenew
	if i%2 == 1 {
		lease = 30 * time.Second
	}
	k, err := w.acquire(turnCtx, lease)
	if k == nil {
		return err
	}
	me := fmt.Sprintf("%s, goroutine %d, token %d", w.Label, i, k.Token())
	if i%8 < 2 {
		err = w.guardedTurn(k, me)
	} else {
		err = w.plainTurn(k, me)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", me, err)
	}
	w.turns.Add(1)
	return nil
}

func (w *worker) plainTurn(k *mysqllock.Lock, me string) error {
	if err := w.enter(w.db, k, me); err != nil {
		return err
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	if rand.N(4) == 0 {
		if err := k.Extend(ctx, 40*time.Second); err != nil {
			return err
		}
	}
	if rand.N(4) == 0 {
		again, err := w.locker.TryLock(context.WithoutCancel(k.Context()), contested, 0, mysqllock.AutoRenew)
		if err != nil {
			return err
		}
		if again.Token() != k.Token() {
			return fmt.Errorf("re-entered with token %d", again.Token())
		}
		if rand.N(2) == 0 {
			k, again = again, k
		}
		if err := again.Unlock(); err != nil {
			return err
		}
	}
	if err := k.Err(); err != nil {
		return err
	}
	if err := w.leave(w.db, me); err != nil {
		return err
	}
	return k.Unlock()
}

// guardedTurn unlocks before its transaction ends, which nobody may notice.
func (w *worker) guardedTurn(k *mysqllock.Lock, me string) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := k.Guard(ctx, tx); err != nil {
		return err
	}
	if err := w.enter(tx, k, me); err != nil {
		return err
	}
	if err := w.leave(tx, me); err != nil {
		return err
	}
	if err := k.Unlock(); err != nil {
		return err
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	w.guarded.Add(1)
	return tx.Commit()
}

func (w *worker) enter(s session, k *mysqllock.Lock, me string) error {
	var turns int
	if err := s.QueryRowContext(ctx, "SELECT turns FROM register").Scan(&turns); err != nil {
		return err
	}
	res, err := s.ExecContext(ctx, "UPDATE register SET inside = ?, turns = ? WHERE inside = '' AND turns = ?", me, turns+1, turns)
	if err := one(res, err, "two holders: there was somebody inside"); err != nil {
		return err
	}
	_, err = s.ExecContext(ctx, "INSERT INTO turns (token, worker) VALUES (?, ?)", k.Token(), w.Label)
	return err
}

func (w *worker) leave(s session, me string) error {
	res, err := s.ExecContext(ctx, "UPDATE register SET inside = '' WHERE inside = ?", me)
	return one(res, err, "two holders: somebody else is inside")
}

// one fails unless a statement has changed one row.
func one(res sql.Result, err error, otherwise string) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errors.New(otherwise), err)
	}
	return nil
}

// The fence remembers the highest token that entered; visits are by the clock of
// this machine, which all workers share, and left_at is a moment before one at
// which the worker trusted its lease.
const (
	createFence  = `CREATE TABLE fence (id INT PRIMARY KEY, token BIGINT UNSIGNED NOT NULL)`
	createVisits = `CREATE TABLE visits (token BIGINT UNSIGNED PRIMARY KEY, worker VARCHAR(255) NOT NULL, entered_at BIGINT NOT NULL, left_at BIGINT NOT NULL)`
)

// fenced is one turn of a lock that is lost now and then.
func (w *worker) fenced(turnCtx context.Context, i int) error {
	lease := mysqllock.AutoRenew
	if i%2 == 1 {
		lease = 200*time.Millisecond + rand.N(400*time.Millisecond)
	}
	k, err := w.acquire(turnCtx, lease)
	if k == nil {
		return err
	}
	entered := time.Now().UnixNano()
	if err := w.visit(k, entered); errors.Is(err, mysqllock.ErrLost) {
		if k.Err() == nil {
			return fmt.Errorf("token %d: the lease is trusted after the guard has found it lost: %w", k.Token(), err)
		}
		w.lost.Add(1)
	} else if err != nil {
		return fmt.Errorf("token %d: %w", k.Token(), err)
	}
	w.turns.Add(1)

	hold := rand.N(3 * time.Millisecond)
	if rand.N(20) == 0 {
		hold = 700 * time.Millisecond // through renewals, or to the end of a fixed lease
	}
	var left int64 // the last moment of trust
	for end := time.Now().Add(hold); ; time.Sleep(time.Millisecond) {
		now := time.Now()
		if k.Err() != nil {
			break
		}
		left = now.UnixNano()
		if now.After(end) {
			break
		}
	}
	if err := k.Unlock(); err != nil && !errors.Is(err, mysqllock.ErrLost) {
		return err
	}
	if left > 0 {
		_, err = w.db.ExecContext(ctx, "UPDATE visits SET left_at = ? WHERE token = ?", left, k.Token())
	}
	return err
}

func (w *worker) visit(k *mysqllock.Lock, entered int64) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := k.Guard(ctx, tx); err != nil {
		return err
	}
	var last uint64
	if err := tx.QueryRowContext(ctx, "SELECT token FROM fence FOR UPDATE").Scan(&last); err != nil {
		return err
	}
	if last >= k.Token() {
		return fmt.Errorf("guarded, but token %d was here", last)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE fence SET token = ?", k.Token()); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO visits VALUES (?, ?, ?, 0)", k.Token(), w.Label, entered); err != nil {
		return err
	}
	w.guarded.Add(1)
	return tx.Commit()
}

// A process is a worker as the test sees it.
type process struct {
	label          string
	cmd            *exec.Cmd
	input          io.Closer
	output, stderr bytes.Buffer
	ended          chan struct{} // closed after the following is set
	err            error
}

func startWorker(t *testing.T, e env, turns, label string) *process {
	text, err := json.Marshal(job{turns, e.server.DSN(e.database, "interpolateParams=true"), label})
	require.NoError(t, err)
	executable, err := os.Executable()
	require.NoError(t, err)
	p := &process{label: label, cmd: exec.Command(executable), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.stderr
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// stopWorkers ends workers, once each has written to a table, and returns what
// they have to say.
func stopWorkers(t *testing.T, db *sql.DB, table string, workers map[string]*process) map[string]report {
	eventually(t, "every process has its turns", func() bool {
		counts := turnsOf(t, db, table)
		for label, p := range workers {
			select {
			case <-p.ended: // not in peace
				return true
			default:
			}
			if counts[label] == 0 {
				return false
			}
		}
		return true
	})
	for _, p := range workers {
		p.input.Close()
	}
	reports := map[string]report{}
	for label, p := range workers {
		<-p.ended
		var r report
		assert.NoError(t, errors.Join(p.err, json.Unmarshal(p.output.Bytes(), &r)), "%s%s", &p.output, &p.stderr)
		reports[label] = r
	}
	require.False(t, t.Failed())
	return reports
}

func (e env) create(t *testing.T, statements ...string) *sql.DB {
	db := e.db(t, "")
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err)
	}
	return db
}

// turnsOf counts the rows of each worker in a table.
func turnsOf(t *testing.T, db *sql.DB, table string) map[string]int {
	rows, err := db.Query("SELECT worker, COUNT(*) FROM " + table + " GROUP BY worker")
	require.NoError(t, err)
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var worker string
		var n int
		require.NoError(t, rows.Scan(&worker, &n))
		counts[worker] = n
	}
	require.NoError(t, rows.Err())
	return counts
}

func TestMutualExclusion(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.create(t, createRegister, "INSERT INTO register VALUES (1, '', 0)", createTurns)
		workers := map[string]*process{}
		for i := range 4 {
			p := startWorker(t, e, "registered", fmt.Sprint("worker ", i+1))
			workers[p.label] = p
		}
		time.Sleep(soak(t))
		reports := stopWorkers(t, db, "turns", workers)

		rows, err := db.Query("SELECT token FROM turns ORDER BY id")
		require.NoError(t, err)
		defer rows.Close()
		var last uint64
		var turns, guarded, told, reentered int64
		for rows.Next() {
			var token uint64
			require.NoError(t, rows.Scan(&token))
			require.Greater(t, token, last)
			last = token
			turns++
		}
		require.NoError(t, rows.Err())
		for label, r := range reports {
			require.Zero(t, r.Stats.Lost, label)
			guarded += r.Guarded
			told += r.Turns
			reentered += r.Stats.Reentered
		}
		var counted int64
		var inside string
		require.NoError(t, db.QueryRow("SELECT inside, turns FROM register").Scan(&inside, &counted))
		require.Empty(t, inside)
		require.Equal(t, turns, counted)
		require.Equal(t, turns, told, "by the workers")
		requireHeld(t, e.locker(t), contested, false)
		t.Logf("%d turns, %d of them guarded, %d re-entries, no violation: %v", turns, guarded, reentered, turnsOf(t, db, "turns"))
	})
}

// Processes die with the lock in their hands, and stand still for longer than
// their leases.
func TestMutualExclusionOfTheKilled(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.create(t, createFence, "INSERT INTO fence VALUES (1, 0)", createVisits)
		l := e.locker(t)
		born := 0
		start := func() *process {
			born++
			return startWorker(t, e, "fenced", fmt.Sprint("worker ", born))
		}
		workers := map[string]*process{}
		for range 4 {
			p := start()
			workers[p.label] = p
		}
		killed, holding, paused := 0, 0, 0
		for end := time.Now().Add(soak(t)); time.Now().Before(end); {
			time.Sleep(time.Second + rand.N(time.Second))
			// One dies and one stands still; one of them holds, if anybody does.
			info, err := l.Inspect(ctx, contested)
			require.NoError(t, err)
			var pair []*process
			if p := workers[info.Holder]; p != nil {
				pair = append(pair, p)
			}
			for label, p := range workers {
				if label != info.Holder && len(pair) < 2 {
					pair = append(pair, p)
				}
			}
			i := rand.N(2)
			dying, sleeping := pair[i], pair[1-i]
			require.NoError(t, mysqltest.Suspend(sleeping.cmd.Process))
			time.AfterFunc(1200*time.Millisecond, func() { mysqltest.Resume(sleeping.cmd.Process) })
			dying.kill()
			killed++
			delete(workers, dying.label)
			info, err = l.Inspect(ctx, contested)
			require.NoError(t, err)
			switch {
			case info.Held && info.Holder == dying.label:
				holding++
			case info.Held && info.Holder == sleeping.label:
				paused++
			}
			p := start()
			workers[p.label] = p
		}
		reports := stopWorkers(t, db, "visits", workers)

		rows, err := db.Query("SELECT token, worker, entered_at, left_at FROM visits ORDER BY token")
		require.NoError(t, err)
		defer rows.Close()
		var lastLeft int64
		visits, trusted := 0, 0
		for rows.Next() {
			var token uint64
			var worker string
			var entered, left int64
			require.NoError(t, rows.Scan(&token, &worker, &entered, &left))
			require.GreaterOrEqual(t, entered, lastLeft, "%s entered with token %d while an earlier holder trusted his lease", worker, token)
			lastLeft = max(lastLeft, left)
			visits++
			if left > 0 {
				trusted++
			}
		}
		require.NoError(t, rows.Err())
		require.Greater(t, trusted, visits/2)
		var lost int64
		for _, r := range reports {
			lost += r.Stats.Lost
		}
		require.Positive(t, killed)
		t.Logf("%d turns, %d of them left alive, %d locks lost by the survivors; %d processes killed, %d with the lock in their hands, and as many paused, %d with the lock; no violation: %v",
			visits, trusted, lost, killed, holding, paused, turnsOf(t, db, "visits"))
	})
}

// An acquire that returns an error leaves no lock behind, whenever its context
// ends and whatever breaks.
func TestRandomCancel(t *testing.T) {
	t.Parallel()
	t.Run("cancelled", func(t *testing.T) {
		onEach(t, func(t *testing.T, e env) { testRandomCancel(t, e, 4, nil) })
	})
	t.Run("cut", func(t *testing.T) {
		onEach(t, func(t *testing.T, e env) { testRandomCancel(t, e, 4, wire.New(t, e.server.Addr())) })
	})
	t.Run("cut, one process", func(t *testing.T) { // whose requests are combined
		onEach(t, func(t *testing.T, e env) { testRandomCancel(t, e, 1, wire.New(t, e.server.Addr())) })
	})
}

// testRandomCancel cuts connections too if there is a proxy.
func testRandomCancel(t *testing.T, e env, processes int, proxy *wire.Proxy) {
	const lease, callers, calls, names = 30 * time.Second, 20, 50, 20
	observer := e.locker(t)
	var lockers []*mysqllock.Locker
	for range processes {
		config, err := mysql.ParseDSN(e.server.DSN(e.database, ""))
		require.NoError(t, err)
		if proxy != nil {
			config.Addr, config.Logger = proxy.Addr(), &mysql.NopLogger{}
		}
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		defer db.Close()
		db.SetMaxOpenConns(10)
		db.SetMaxIdleConns(10)
		l, err := mysqllock.New(db, mysqllock.WithLease(lease), mysqllock.WithPollInterval(10*time.Millisecond))
		require.NoError(t, err)
		lockers = append(lockers, l)
	}
	var wg sync.WaitGroup
	var acquired, made atomic.Int64
	// On a busy machine cuts may leave no connection for long enough: then some calls
	// more are made, with fewer cuts, until one acquires.
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for n := 0; n < calls || acquired.Load() == 0 && time.Since(began) < time.Minute; n++ {
				cuts := proxy
				if n >= calls && (i > 0 || n%8 > 0) {
					cuts = nil
				}
				name := fmt.Sprint("n", rand.N(names))
				made.Add(1)
				if cancelledAtRandom(t, lockers[i%len(lockers)], name, lease, cuts) {
					acquired.Add(1)
				}
			}
		})
	}
	wg.Wait()

	start := time.Now()
	for list := make([]mysqllock.Info, 1); len(list) > 0; {
		var err error
		list, err = observer.List(ctx)
		require.NoError(t, err)
		require.False(t, len(list) > 0 && time.Since(start) > 4*time.Second, "left behind: %+v", list)
	}
	t.Logf("%d of %d acquired; nothing held %v after the last", acquired.Load(), made.Load(), time.Since(start))
	require.Positive(t, acquired.Load())
	require.Less(t, acquired.Load(), made.Load())
	for i := range names {
		require.NoError(t, acquire(t, observer, fmt.Sprint("n", i), lease).Unlock())
	}
	for _, l := range lockers {
		stats := l.Stats()
		assert.Zero(t, stats.Held)
		assert.Zero(t, stats.Lost)
		eventually(t, "nobody waits", func() bool { return l.Stats().Waiting == 0 })
		// A statement that was cut off may yet be on its way, for all Close can know.
		if err := l.Close(); proxy == nil {
			assert.NoError(t, err)
		}
	}
	list, err := observer.List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
}

// cancelledAtRandom reports whether it got the lock, which it gives back.
func cancelledAtRandom(t *testing.T, l *mysqllock.Locker, name string, lease time.Duration, proxy *wire.Proxy) bool {
	// Mostly within the time of a statement, however busy the machine is.
	moment := func() time.Duration { return rand.N(5 * time.Millisecond << rand.N(8)) }
	cause := errors.New("client went away")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(moment(), func() { cancel(cause) }).Stop()
	if proxy != nil && rand.N(8) == 0 {
		cut := []func(){proxy.Cut, proxy.CutAfterNextCommand, proxy.CutBeforeNextReply}[rand.N(3)]
		defer time.AfterFunc(moment(), cut).Stop()
	}
	wait := []time.Duration{0, time.Millisecond, rand.N(10 * time.Millisecond), time.Minute, mysqllock.WaitForever}[rand.N(5)]
	k, err := l.TryLock(ctx, name, wait, []time.Duration{mysqllock.AutoRenew, lease}[rand.N(2)])
	switch {
	case err == nil:
		err = k.Unlock()
		if proxy == nil {
			assert.NoError(t, err)
		}
		assert.NotErrorIs(t, err, mysqllock.ErrLost)
		assert.NotErrorIs(t, err, mysqllock.ErrNotHeld)
	case proxy == nil:
		// On a machine this busy, the database may leave all that is asked without an
		// answer while a caller waits.
		assert.NotEqual(t, errors.Is(err, mysqllock.ErrNotAcquired), errors.Is(err, mysqllock.ErrUnavailable), "one sentinel: %v", err)
	}
	return k != nil
}

// Ten thousand locks cost what a few statements cost.
func TestTenThousandHeld(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		const n, acquirers, rounds = 10_000, 16, 3
		db := e.db(t, "")
		db.SetMaxOpenConns(acquirers)
		db.SetMaxIdleConns(acquirers)
		l := newLocker(t, db, mysqllock.WithLease(9*time.Second), loggedTo(t))
		start := time.Now()
		locks := make([]*mysqllock.Lock, n)
		var wg sync.WaitGroup
		for first := range acquirers {
			wg.Go(func() {
				for i := first; i < n; i += acquirers {
					var err error
					if locks[i], err = l.TryLock(ctx, fmt.Sprint("n", i), time.Minute, mysqllock.AutoRenew); !assert.NoError(t, err) {
						return
					}
				}
			})
		}
		wg.Wait()
		require.False(t, t.Failed())
		acquiring := time.Since(start)

		// From the last renewal of some to the last renewal of the same, three later.
		before, cpu, start := l.Stats(), mysqltest.ProcessorTime(), time.Now()
		after := before
		eventually(t, "the renewals", func() bool {
			after = l.Stats()
			return after.Renewals-before.Renewals >= rounds*n
		})
		elapsed := time.Since(start)
		perRound := float64(after.Statements-before.Statements) / rounds
		t.Logf("%d locks acquired in %v; renewed %d times in %v by %.1f statements and, with all other tests of this process, %v of CPU each time",
			n, acquiring.Round(time.Millisecond), rounds, elapsed.Round(time.Millisecond), perRound, ((mysqltest.ProcessorTime() - cpu) / rounds).Round(time.Millisecond))
		require.LessOrEqual(t, perRound, 20.)
		require.Zero(t, after.Lost)
		require.Equal(t, n, after.Held)
		for _, k := range locks {
			require.NoError(t, k.Err())
		}

		start = time.Now()
		require.NoError(t, l.Close())
		t.Logf("released by Close in %v", time.Since(start).Round(time.Millisecond))
		list, err := e.locker(t).List(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
		require.EqualValues(t, n, l.Stats().Released)
	})
}

// A small pool, and one that the application uses up, will do.
func TestPool(t *testing.T) {
	tests := map[string]func(t *testing.T, e env){
		"one connection":        testPoolOfOne,
		"connections all taken": testPoolTaken,
		"storm":                 testPoolStorm,
	}
	onEach(t, func(t *testing.T, e env) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, e)
			})
		}
	})
}

// poolLease is long enough that no renewal fails on a busy machine: the
// connection that it would cost goes to a process that waits for one.
const poolLease = 6 * time.Second

// loggedTo shows in the output of the test what a Locker met.
func loggedTo(t *testing.T) mysqllock.Option {
	return mysqllock.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil)))
}

// renewed waits until a Locker has renewed n leases more.
func renewed(t *testing.T, l *mysqllock.Locker, n int64) {
	t.Helper()
	n += l.Stats().Renewals
	eventually(t, "renewals", func() bool { return l.Stats().Renewals >= n })
}

func testPoolOfOne(t *testing.T, e env) {
	db := e.db(t, "")
	db.SetMaxOpenConns(1)
	l := newLocker(t, db, mysqllock.WithLease(poolLease), mysqllock.WithPollInterval(50*time.Millisecond), loggedTo(t))
	other := e.locker(t)
	k := acquire(t, l, "one", mysqllock.AutoRenew)
	again, err := l.TryLock(k.Context(), "one", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	require.NoError(t, k.Extend(ctx, 2*poolLease))
	require.NoError(t, again.Unlock())
	renewed(t, l, 2)
	require.NoError(t, k.Err())

	// The transaction has the connection; the guard needs no other.
	tx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, k.Guard(ctx, tx))
	require.NoError(t, tx.Commit())

	elsewhere := acquire(t, other, "elsewhere", mysqllock.AutoRenew)
	got := make(chan *mysqllock.Lock)
	go func() {
		k, err := l.TryLock(ctx, "elsewhere", time.Minute, mysqllock.AutoRenew)
		assert.NoError(t, err)
		got <- k
	}()
	eventually(t, "waiting", func() bool { return l.Stats().Waiting == 1 })
	renewed(t, l, 1)
	require.NoError(t, elsewhere.Unlock())
	waited := <-got
	require.NotNil(t, waited)
	require.NoError(t, waited.Unlock())

	require.NoError(t, k.Err())
	require.NoError(t, k.Unlock())
	requireHeld(t, l, "one", false)
	for i := range 20 {
		acquire(t, l, fmt.Sprint("one ", i), mysqllock.AutoRenew)
	}
	renewed(t, l, 20)
	require.NoError(t, l.Close())
	require.Zero(t, l.Stats().Lost)
	require.EqualValues(t, 22, l.Stats().Released)
	require.Zero(t, db.Stats().InUse)
	for i := range 20 {
		requireHeld(t, other, fmt.Sprint("one ", i), false)
	}
}

func testPoolTaken(t *testing.T, e env) {
	db := e.db(t, "")
	db.SetMaxOpenConns(3)
	l, other := newLocker(t, db, mysqllock.WithLease(poolLease), loggedTo(t)), e.locker(t)
	var locks []*mysqllock.Lock
	for i := range 5 {
		locks = append(locks, acquire(t, l, fmt.Sprint("taken ", i), mysqllock.AutoRenew))
	}
	var taken []*sql.Conn
	for { // until none comes, though all are open
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		conn, err := db.Conn(ctx)
		cancel()
		if err == nil {
			defer conn.Close()
			taken = append(taken, conn)
		} else if db.Stats().InUse == 3 {
			break
		}
	}
	require.Len(t, taken, 2)
	renewed(t, l, int64(3*len(locks)))
	for i, k := range locks {
		require.NoError(t, k.Err())
		require.NoError(t, k.Extend(ctx, 2*poolLease))
		tx, err := taken[0].BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, tx.Rollback())
		require.NoError(t, k.Unlock())
		requireHeld(t, other, fmt.Sprint("taken ", i), false)
	}
	require.Zero(t, l.Stats().Lost)
	eventually(t, "the Locker's connection is back", func() bool { return db.Stats().InUse == len(taken) })
}

func testPoolStorm(t *testing.T, e env) {
	db := e.db(t, "")
	db.SetMaxOpenConns(2)
	l, other := newLocker(t, db, mysqllock.WithLease(poolLease), loggedTo(t)), e.locker(t)
	first, second := acquire(t, l, "storm 1", mysqllock.AutoRenew), acquire(t, l, "storm 2", mysqllock.AutoRenew)
	storming, calm := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer calm()
	for range 50 {
		wg.Go(func() {
			for storming.Err() == nil {
				db.ExecContext(storming, "DO SLEEP(0.2)")
			}
		})
	}
	renewed(t, l, 3*2)
	require.NoError(t, first.Err())
	require.NoError(t, first.Extend(ctx, 2*poolLease))
	again, err := l.TryLock(first.Context(), "storm 1", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	require.NoError(t, again.Unlock())
	require.NoError(t, first.Unlock())
	requireHeld(t, other, "storm 1", false)
	require.NoError(t, second.Err())
	calm()
	wg.Wait()
	require.NoError(t, acquire(t, l, "storm 1", mysqllock.AutoRenew).Unlock())
	require.NoError(t, second.Unlock())
	require.Zero(t, l.Stats().Lost)
	eventually(t, "all connections are back", func() bool { return db.Stats().InUse == 0 })
}

// A caller that has unlocked everything has given everything back.
func TestConnectionsReturn(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, limit := range []int{0, 1, 2, 10} {
			t.Run(fmt.Sprint("pool of ", limit), func(t *testing.T) {
				t.Parallel()
				testConnectionsReturn(t, e, limit)
			})
		}
	})
}

func testConnectionsReturn(t *testing.T, e env, limit int) {
	e.database = mysqltest.NewDatabase(t, e.server) // its sessions are ours
	other := e.locker(t)
	require.NoError(t, other.CreateTable(ctx))
	db := e.db(t, "")
	db.SetMaxOpenConns(limit)
	db.SetMaxIdleConns(10)
	l := newLocker(t, db, mysqllock.WithLease(10*time.Second), mysqllock.WithPollInterval(20*time.Millisecond))

	everything := func(i int) {
		name := fmt.Sprint("n", i%3)
		request, cancel := context.WithTimeout(ctx, time.Duration(i%10)*5*time.Millisecond)
		defer cancel()
		lease := time.Minute
		if i%2 == 0 {
			lease = 100 * time.Millisecond // to run out
		}
		if k, err := l.TryLock(request, name, time.Minute, lease); err == nil && i%2 == 0 {
			<-k.Context().Done()
			k.Unlock()
		} else if err == nil {
			assert.NoError(t, k.Unlock())
		}
		k, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
		if !assert.NoError(t, err) {
			return
		}
		_, err = l.TryLock(ctx, name, 0, time.Minute)
		assert.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		if i%4 == 0 {
			tx, err := db.Begin()
			if assert.NoError(t, err) {
				assert.NoError(t, k.Guard(ctx, tx))
				assert.NoError(t, tx.Rollback())
			}
		}
		assert.NoError(t, k.Extend(ctx, 20*time.Second))
		if i%5 == 0 {
			_, err := l.ForceUnlock(ctx, name)
			assert.NoError(t, err)
			assert.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
			return
		}
		assert.NoError(t, k.Unlock())
	}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { everything(i) })
	}
	wg.Wait()
	require.False(t, t.Failed())
	eventually(t, "all connections are back", func() bool { return db.Stats().InUse == 0 })
	require.Zero(t, l.Stats().Held)
	list, err := other.List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
	n, err := l.Purge(ctx, 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)

	require.Zero(t, db.Stats().InUse)
	conn, err := e.db(t, "lock_wait_timeout=5").Conn(ctx)
	require.NoError(t, err)
	defer conn.Close()
	// An open transaction that has used the table would keep this waiting.
	_, err = conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE")
	require.NoError(t, err, "a transaction is open, or a session has the table locked")
	_, err = conn.ExecContext(ctx, "UNLOCK TABLES")
	require.NoError(t, err)
}
