package mysqllock

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of this file and of notify_test.go run by the clock of a bubble,
// which stands still while anybody is busy: what they say of times is exact.

var bg = context.Background()

// fakeRepo is the table in memory. It judges by the clock of the bubble, notes
// every statement, and lets a statement meet a fault.
type fakeRepo struct {
	t       *testing.T
	born    time.Time
	servers sync.WaitGroup // statements under way

	mu        sync.Mutex // guards the following
	rows      map[string]fakeRow
	sessions  map[store.SessionID]time.Time // when they expire
	forced    bool                          // reported by the next renewal of a session
	moved     bool                          // likewise
	locked    map[string]chan struct{}      // rows that a transaction has locked; closed when it ends
	tokens    uint64
	terms     int // grants that were not relinquished
	listeners map[store.Process]chan struct{}
	full      bool // the pool: listening takes a connection that is needed
	faults    map[string]fault
	sends     []statement
	wrote     []int // what each renewal and extension of a row wrote into holds; 0: nothing
}

type fakeRow struct {
	owner   string
	holds   int
	token   uint64
	expires time.Time
	freed   time.Time // when it was released or taken away last
	waiters string    // ids of processes, 19 digits each
	session store.SessionID

	acquired time.Time // by the last grant
}

// nextWaiter returns the head of the wait queue, 0 if that is empty.
func (r fakeRow) nextWaiter() store.Process {
	if r.waiters == "" {
		return 0
	}
	p, err := strconv.ParseUint(r.waiters[:19], 10, 64)
	if err != nil {
		panic(err)
	}
	return store.Process(p)
}

// lists reports whether a process waits, by either of its ids.
func (r fakeRow) lists(p store.Process) bool {
	return strings.Contains(r.waiters, p.String()) || strings.Contains(r.waiters, p.Polling().String())
}

// full reports whether the wait queue is full.
func (r fakeRow) full() bool { return len(r.waiters) > 1000 }

// handoverSilent is how long a row is kept for a process that can only look.
const handoverSilent = 1500 * time.Millisecond

// keptUntil is when nothing keeps the row any more.
func (f *fakeRepo) keptUntil(r fakeRow) time.Time {
	if session := f.sessions[r.session]; session.After(r.expires) {
		return session
	}
	return r.expires
}

// forMe reports whether a process may take the row.
func (f *fakeRepo) forMe(r fakeRow, p store.Process, now time.Time) bool {
	since, kept := r.expires, store.ReservedFor
	if r.freed.After(since) {
		since = r.freed
	}
	if !r.nextWaiter().CanListen() {
		kept = handoverSilent
	}
	return !f.keptUntil(r).After(now) && (r.nextWaiter() == 0 || r.nextWaiter() == p || r.nextWaiter() == p.Polling() || now.Sub(since) > kept)
}

// unlist is the list without a process' id.
func (r fakeRow) unlist(p store.Process) string { return strings.ReplaceAll(r.waiters, p.String(), "") }

type statement struct {
	op   string
	at   time.Duration
	rows int
}

// A fault is what befalls a statement between its process and the table, where
// serve executes it. It returns when the answer arrives.
type fault func(ctx context.Context, serve func()) error

var (
	errBroken   = mysql.ErrInvalidConn
	errDeadlock = &mysql.MySQLError{Number: 1213, Message: "Deadlock found"}
	errDenied   = &mysql.MySQLError{Number: 1142, Message: "UPDATE command denied"}
)

// none: the statement is executed and answered.
func none(_ context.Context, serve func()) error { serve(); return nil }

// fails: the statement is not executed.
func fails(err error) fault { return func(context.Context, func()) error { return err } }

// hangs: the statement does not arrive, and there is no error.
func hangs(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() }

// cut: the answer is lost with the connection.
func cut(_ context.Context, serve func()) error { serve(); return errBroken }

// mute: the answer is lost, and there is no error.
func mute(ctx context.Context, serve func()) error { serve(); return hangs(ctx, nil) }

// late: the statement takes d to arrive, whether or not anybody waits for it.
func late(d time.Duration) fault { return after(d, none) }

// slow: the answer takes d.
func slow(d time.Duration) fault {
	return func(_ context.Context, serve func()) error { serve(); time.Sleep(d); return nil }
}

// overtaken: the connection breaks, and the statement arrives d later.
func overtaken(d time.Duration) fault {
	return func(_ context.Context, serve func()) error { time.AfterFunc(d, serve); return errBroken }
}

// after lets d pass before the fault.
func after(d time.Duration, flt fault) fault {
	return func(ctx context.Context, serve func()) error { time.Sleep(d); return flt(ctx, serve) }
}

// first lets n statements meet one fault, and all later ones the other.
func first(n int64, flt, rest fault) fault {
	var sent atomic.Int64
	return func(ctx context.Context, serve func()) error {
		if sent.Add(1) <= n {
			return flt(ctx, serve)
		}
		return rest(ctx, serve)
	}
}

// inBubble runs a test on an empty table.
func inBubble(t *testing.T, test func(t *testing.T, f *fakeRepo)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRepo{
			t: t, born: time.Now(),
			rows: map[string]fakeRow{}, sessions: map[store.SessionID]time.Time{}, locked: map[string]chan struct{}{}, faults: map[string]fault{},
			listeners: map[store.Process]chan struct{}{},
		}
		t.Cleanup(func() {
			f.servers.Wait()
			assert.Zero(t, f.terms, "grants without HoldEnded")
		})
		test(t, f)
	})
}

// What most tests do without.
func withSignal(c *config) error  { c.signal = true; return nil }
func withHandoff(c *config) error { c.handoff = true; return nil }

// A side is the table as one process sees it.
type side struct {
	*fakeRepo
	me store.Process
}

// locker returns a Locker on the table, as another process would have.
func (f *fakeRepo) locker(opts ...Option) *Locker {
	c := config{lease: DefaultLease, poll: time.Second, log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		require.NoError(f.t, opt(&c))
	}
	me := store.NewProcess()
	l := newLocker(side{f, me}, me, c)
	f.t.Cleanup(func() {
		start := time.Now()
		l.Close()
		assert.LessOrEqual(f.t, time.Since(start), 10*time.Second, "Close")
	})
	return l
}

// now is the time since the beginning of the test.
func (f *fakeRepo) now() time.Duration { return time.Since(f.born) }

// until sleeps until the test has taken so long.
func (f *fakeRepo) until(at time.Duration) {
	f.t.Helper()
	require.Less(f.t, f.now(), at, "too late")
	time.Sleep(at - f.now())
	synctest.Wait()
}

// sent returns when the statements of a kind were sent, and for how many rows.
func (f *fakeRepo) sent(op string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var times []string
	for _, s := range f.sends {
		if s.op == op {
			at := s.at.String()
			if s.rows > 1 {
				at += fmt.Sprintf("*%d", s.rows)
			}
			times = append(times, at)
		}
	}
	return strings.Join(times, " ")
}

// counts returns how many statements of each kind were sent.
func (f *fakeRepo) counts() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, s := range f.sends {
		n[s.op]++
	}
	var counts []string
	for _, op := range slices.Sorted(maps.Keys(n)) {
		counts = append(counts, fmt.Sprint(op, " ", n[op]))
	}
	return strings.Join(counts, ", ")
}

// meet makes the statements of the given kinds meet a fault from now on.
func (f *fakeRepo) meet(flt fault, ops ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		f.faults[op] = flt
	}
}

// take frees the row by force, and gives it to another process, a caller that has it.
func (f *fakeRepo) take(name string, lease time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens++
	f.forced = true
	f.rows[name] = fakeRow{owner: "another", holds: 1, token: f.tokens, expires: time.Now().Add(lease), waiters: f.rows[name].waiters}
}

// free frees the row, a caller that has it.
func (f *fakeRepo) free(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows[name] = fakeRow{token: f.rows[name].token, waiters: f.rows[name].waiters}
}

// remove deletes the row.
func (f *fakeRepo) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.rows, name)
}

// left is what is left of the row's lease; 0 if nobody holds it.
func (f *fakeRepo) left(name string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, time.Until(f.keptUntil(f.rows[name])))
}

// block locks a row in a transaction, until unblock is called.
func (f *fakeRepo) block(name string) (unblock func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := make(chan struct{})
	f.locked[name] = end
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.locked, name)
		close(end)
	}
}

// unblocked waits until no transaction has the row locked.
func (f *fakeRepo) unblocked(name string) {
	f.mu.Lock()
	end := f.locked[name]
	f.mu.Unlock()
	if end != nil {
		<-end
	}
}

// A pending is a call of TryLock under way.
type pending struct {
	f    *fakeRepo
	done chan struct{} // closed when it has returned; then the following are set
	lock *Lock
	err  error
	at   time.Duration
}

// try calls TryLock in a goroutine, and returns when that waits, or is done.
func (f *fakeRepo) try(l *Locker, ctx context.Context, name string, wait, lease time.Duration) *pending {
	p := &pending{f: f, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.lock, p.err = l.TryLock(ctx, name, wait, lease)
		p.at = f.now()
	}()
	synctest.Wait()
	return p
}

// acquired is a lock that must be had at once.
func (f *fakeRepo) acquired(l *Locker, ctx context.Context, name string, lease time.Duration) *Lock {
	f.t.Helper()
	return f.try(l, ctx, name, 0, lease).granted(f.now())
}

func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *pending) wait() {
	p.f.t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Hour):
		require.FailNow(p.f.t, "TryLock did not return")
	}
}

// granted requires that the call got the lock at that time.
func (p *pending) granted(at time.Duration) *Lock {
	p.f.t.Helper()
	p.wait()
	require.NoError(p.f.t, p.err)
	require.Equal(p.f.t, at, p.at, "granted at")
	return p.lock
}

// refused requires that the call ended at that time with an error that matches all.
func (p *pending) refused(at time.Duration, all ...error) {
	p.f.t.Helper()
	p.wait()
	require.Error(p.f.t, p.err)
	for _, err := range all {
		require.ErrorIs(p.f.t, p.err, err)
	}
	require.Equal(p.f.t, at, p.at, "refused at")
}

// requireEnd requires that the handle ends at that time, for that reason.
func (f *fakeRepo) requireEnd(k *Lock, at time.Duration, why error) {
	f.t.Helper()
	select {
	case <-k.Context().Done():
	case <-time.After(time.Hour):
		require.FailNow(f.t, "the context did not end")
	}
	synctest.Wait()
	require.Equal(f.t, at, f.now(), "ended at")
	require.Equal(f.t, why, context.Cause(k.Context()))
	require.Equal(f.t, why, k.Err())
}

// send is a statement: execute is what it does to the table, if it arrives, and now the time
// by which it judges. Once it has arrived it is executed, even if its caller has left.
func send[T any](ctx context.Context, f *fakeRepo, op string, names []string, execute func(now time.Time) T) (answer T, sent time.Time, err error) {
	sent = time.Now()
	if ctx.Err() != nil {
		return answer, sent, store.NotSent{Err: ctx.Err()}
	}
	f.mu.Lock()
	f.sends = append(f.sends, statement{op, f.now(), len(names)})
	flt := f.faults[op]
	f.mu.Unlock()

	var result T
	serve := func() {
		now := time.Now() // stands still while the statement waits for a row
		if op == "acquire" || op == "extend" || op == "release" {
			f.unblocked(names[0])
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		result = execute(now)
	}
	if flt == nil {
		flt = none
	}
	answered := make(chan error, 1)
	f.servers.Go(func() { answered <- flt(ctx, serve) })
	select {
	case err = <-answered:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return answer, sent, err
	}
	return result, sent, nil
}

func (f side) Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error) {
	g, sent, err := send(ctx, f.fakeRepo, "acquire", []string{req.Name}, func(now time.Time) store.Grant {
		r := f.rows[req.Name]
		switch {
		case req.Replaces != "" && (r.owner != req.Replaces || req.Replaced > 0 && r.token != req.Replaced):
			return store.Grant{}
		case req.Replaces != "":
			f.tokens += store.TokenRange
			r = fakeRow{req.Owner, 1, f.tokens, now.Add(req.Lease), r.freed, r.waiters, 0, now}
			f.rows[req.Name] = r
		case f.forMe(r, f.me, now):
			if first := r.nextWaiter(); first != 0 && first != f.me && first != f.me.Polling() {
				r.waiters = r.waiters[19:] // it did not come
			}
			r.waiters = r.unlist(f.me)
			r.waiters = r.unlist(f.me.Polling())
			f.tokens += store.TokenRange
			r = fakeRow{req.Owner, 1, f.tokens, now.Add(req.Lease), r.freed, r.waiters, 0, now}
			f.rows[req.Name] = r
		case r.owner != req.Owner:
			if req.EnlistAs != 0 && !r.lists(f.me) && !r.full() {
				r.waiters += req.EnlistAs.String()
				f.rows[req.Name] = r
			}
			if !f.keptUntil(r).After(now) {
				return store.Grant{Remaining: store.ReservedFor, Reserved: true}
			}
			return store.Grant{Remaining: f.keptUntil(r).Sub(now)}
		}
		return store.Grant{Token: r.token, Claim: req.Claim}
	})
	if g.Token > 0 {
		f.mu.Lock()
		f.terms++
		f.mu.Unlock()
	}
	g.Sent = sent
	return g, err
}

func (f side) Probe(ctx context.Context, c store.Claim) (store.RowState, error) {
	state, _, err := send(ctx, f.fakeRepo, "probe", []string{c.Name}, func(now time.Time) store.RowState {
		switch r := f.rows[c.Name]; {
		case r.owner != c.Owner && f.keptUntil(r).After(now):
			return store.RowHeld
		case f.locked[c.Name] != nil:
			return store.RowLocked
		}
		return store.RowFree
	})
	return state, err
}

// prolong extends the row of a claim to lease from now on, and reports whether the row is the
// claim's and whether it has changed. The caller holds mu.
func (f *fakeRepo) prolong(c store.Claim, now time.Time, lease time.Duration, holds int, session store.SessionID) (owned, changed bool) {
	old := f.rows[c.Name]
	if old.owner != c.Owner {
		return false, false
	}
	r := old
	f.wrote = append(f.wrote, holds)
	if holds > 0 {
		r.holds = holds
	}
	if until := now.Add(lease); until.After(r.expires) {
		r.expires = until
	}
	r.session = max(r.session, session)
	f.rows[c.Name] = r
	return true, r != old
}

// release frees the row of a claim. The caller holds mu.
func (f *fakeRepo) releaseLocked(c store.Claim, now time.Time) (freed int64, nextWaiter store.Process) {
	r := f.rows[c.Name]
	if r.owner != c.Owner {
		return 0, 0
	}
	f.rows[c.Name] = fakeRow{token: r.token, freed: now, waiters: r.waiters}
	return 1, r.nextWaiter()
}

func (f *fakeRepo) Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (bool, time.Time, error) {
	return send(ctx, f, "extend", []string{c.Name}, func(now time.Time) bool {
		owned, _ := f.prolong(c, now, lease, holds, session)
		return owned
	})
}

func (f *fakeRepo) BeginSession(ctx context.Context, id store.SessionID, lease time.Duration) (time.Time, error) {
	begun, sent, err := send(ctx, f, "begin", []string{""}, func(now time.Time) bool {
		until, old := f.sessions[id]
		if old && !until.After(now) {
			return false
		}
		f.sessions[id] = now.Add(lease)
		return true
	})
	if err == nil && !begun {
		err = store.ErrSessionDead
	}
	return sent, err
}

// RenewSession is noted as a renewal of one row.
func (f *fakeRepo) RenewSession(ctx context.Context, id store.SessionID, lease time.Duration) (store.SessionRenewal, error) {
	type answer struct{ alive, forced, moved bool }
	a, sent, err := send(ctx, f, "renew", []string{""}, func(now time.Time) (a answer) {
		if a.alive = f.sessions[id].After(now); a.alive {
			f.sessions[id] = now.Add(lease)
			a.forced, f.forced = f.forced, false
			a.moved, f.moved = f.moved, false
		}
		return a
	})
	if err == nil && !a.alive {
		err = store.ErrSessionDead
	}
	return store.SessionRenewal{Forced: a.forced, Moved: a.moved, Sent: sent}, err
}

func (f *fakeRepo) CountBound(ctx context.Context, id store.SessionID) (int, error) {
	n, _, err := send(ctx, f, "count", []string{""}, func(now time.Time) int { return len(f.boundTo(id)) })
	return n, err
}

func (f *fakeRepo) Bound(ctx context.Context, id store.SessionID) ([]store.Claim, time.Time, error) {
	return send(ctx, f, "bound", []string{""}, func(now time.Time) []store.Claim { return f.boundTo(id) })
}

// boundTo returns the rows that are bound to a session. The caller holds mu.
func (f *fakeRepo) boundTo(id store.SessionID) (claims []store.Claim) {
	for name, r := range f.rows {
		if r.session == id {
			claims = append(claims, store.Claim{Name: name, Owner: r.owner})
		}
	}
	return claims
}

func (f *fakeRepo) EndSession(ctx context.Context, id store.SessionID) error {
	_, _, err := send(ctx, f, "end", []string{""}, func(now time.Time) bool {
		f.sessions[id] = now
		return true
	})
	return err
}

func (f *fakeRepo) Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int, session store.SessionID) (int, time.Time, error) {
	return send(ctx, f, "renew", store.Names(cs), func(now time.Time) (renewed int) {
		for _, c := range cs {
			if f.locked[c.Name] == nil {
				if _, changed := f.prolong(c, now, lease, holds, session); changed {
					renewed++
				}
			}
		}
		return renewed
	})
}

func (f *fakeRepo) Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error) {
	owned, _, err := send(ctx, f, "owned", store.Names(cs), func(now time.Time) []store.Claim {
		return slices.DeleteFunc(slices.Clone(cs), func(c store.Claim) bool { return f.rows[c.Name].owner != c.Owner })
	})
	return owned, err
}

func (f *fakeRepo) Confirm(ctx context.Context, c store.Claim) (bool, time.Time, error) {
	return send(ctx, f, "confirm", []string{c.Name}, func(now time.Time) bool { return f.rows[c.Name].owner == c.Owner })
}

func (f side) Look(ctx context.Context, names []string) (map[string]store.Row, time.Time, error) {
	return send(ctx, f.fakeRepo, "look", names, func(now time.Time) map[string]store.Row {
		found := map[string]store.Row{}
		for _, name := range names {
			if r, ok := f.rows[name]; ok {
				found[name] = store.Row{Owner: r.owner, Lease: r.expires.Sub(now), Remaining: f.keptUntil(r).Sub(now), Next: r.nextWaiter(), Waiting: r.lists(f.me) || r.full(), Listed: r.lists(f.me)}
			}
		}
		return found
	})
}

func (f *fakeRepo) Release(ctx context.Context, c store.Claim) (bool, store.Process, error) {
	freed, nextWaiter, err := f.freeing(ctx, "release", []store.Claim{c})
	return freed > 0, nextWaiter, err
}

// No row is granted by a release: the Lockers on this table do not ask for that.
func (f *fakeRepo) ReleaseToNext(context.Context, store.Claim, string) (bool, store.Process, error) {
	panic("ReleaseToNext")
}

func (f *fakeRepo) Granted(context.Context, []string) ([]store.Grant, error) { return nil, nil }

func (f *fakeRepo) ReleaseAll(ctx context.Context, cs []store.Claim) (int64, store.Process, error) {
	return f.freeing(ctx, "releaseAll", cs)
}

func (f *fakeRepo) freeing(ctx context.Context, op string, cs []store.Claim) (int64, store.Process, error) {
	type answer struct {
		freed      int64
		nextWaiter store.Process
	}
	a, _, err := send(ctx, f, op, store.Names(cs), func(now time.Time) (a answer) {
		for _, c := range cs {
			if op == "releaseAll" && f.locked[c.Name] != nil {
				continue
			}
			freed, nextWaiter := f.releaseLocked(c, now)
			a.freed += freed
			a.nextWaiter = max(a.nextWaiter, nextWaiter)
		}
		return a
	})
	return a.freed, a.nextWaiter, err
}

func (f *fakeRepo) RemoveWaiter(ctx context.Context, names []string, p store.Process) (store.Process, bool, error) {
	type answer struct {
		removed    int
		nextWaiter store.Process
	}
	a, _, err := send(ctx, f, "unlist", names, func(now time.Time) (a answer) {
		for _, name := range names {
			r, ok := f.rows[name]
			if !ok || f.locked[name] != nil || !r.lists(p) {
				continue
			}
			a.removed++
			first := r.nextWaiter() == p || r.nextWaiter() == p.Polling()
			r.waiters = r.unlist(p)
			r.waiters = r.unlist(p.Polling())
			if f.rows[name] = r; first && !f.keptUntil(r).After(now) {
				a.nextWaiter = max(a.nextWaiter, r.nextWaiter())
			}
		}
		return a
	})
	return a.nextWaiter, a.removed == len(names), err
}

func (f *fakeRepo) Signal(ctx context.Context, p store.Process) (bool, error) {
	alive, _, err := send(ctx, f, "signal", nil, func(time.Time) bool {
		listens := f.listeners[p]
		if listens != nil {
			background.Notify(listens)
		}
		return listens != nil
	})
	return alive, err
}

func (f side) Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error) {
	f.mu.Lock()
	listens := f.listeners[f.me]
	if listens == nil {
		listens = make(chan struct{}, 1)
		f.listeners[f.me] = listens
	}
	f.mu.Unlock()
	h, _, err := send(ctx, f.fakeRepo, "listen", names, func(now time.Time) (h store.Wakeup) {
		select {
		case <-listens: // nothing slept
		default:
		}
		for _, name := range names {
			r, ok := f.rows[name]
			h.Missing = h.Missing || !ok
			if (f.forMe(r, f.me, now) || !r.lists(f.me) && !r.full()) && (h.Name == "" || name < h.Name) {
				h.Name = name
			}
		}
		if h.Missing {
			h.Name = ""
		}
		return h
	})
	if err != nil || h != (store.Wakeup{}) {
		return h, err
	}
	select {
	case <-listens:
		return store.Wakeup{Signalled: true}, nil
	case <-time.After(d):
		return store.Wakeup{}, nil
	case <-ctx.Done():
		return store.Wakeup{}, ctx.Err()
	}
}

func (f *fakeRepo) PoolInUse() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

func (f *fakeRepo) PoolTooSmall() bool { return false }

func (f side) CloseListener() {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listeners, f.me)
}

func (f *fakeRepo) HoldBegan() {} // Granted returns nothing

func (f *fakeRepo) HoldEnded() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.terms--
}

func TestRenewedEachThird(t *testing.T) {
	for name, c := range map[string]struct {
		opts    []Option
		renewed string
	}{
		"default":    {nil, "10s 20s 30s 40s 50s 1m0s"},
		"lease 45 s": {[]Option{WithLease(45 * time.Second)}, "15s 30s 45s 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(c.opts...)
				k := f.acquired(l, bg, "x", AutoRenew)
				f.until(65 * time.Second)
				require.NoError(t, k.Err())
				require.NoError(t, k.Context().Err())
				require.NoError(t, k.Unlock())
				require.Equal(t, ErrNotHeld, context.Cause(k.Context()))
				require.Equal(t, 65*time.Second, f.now())
				require.Zero(t, f.left("x"))

				time.Sleep(time.Hour)
				require.Equal(t, c.renewed, f.sent("renew"), "nothing after Unlock")
				require.Equal(t, "1m5s", f.sent("release"))
				require.Equal(t, fmt.Sprintf("acquire 1, begin 1, bound 1, release 1, renew %d", strings.Count(c.renewed, "s")), f.counts())
			})
		})
	}
}

func TestRenewalOutlivesTheCallersContext(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx, cancel := context.WithCancelCause(bg)
		k := f.acquired(l, ctx, "x", AutoRenew)
		f.until(5 * time.Second)
		gone := fmt.Errorf("gone")
		cancel(gone)
		require.Equal(t, gone, context.Cause(k.Context()))
		f.until(65 * time.Second)
		require.Equal(t, "10s 20s 30s 40s 50s 1m0s", f.sent("renew"))
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// requireLost requires that the handle is lost at that time, and that every method reports
// so: until its Unlock, after it, and when its owner re-enters.
func (f *fakeRepo) requireLost(k *Lock, owner context.Context, at time.Duration) {
	f.t.Helper()
	f.requireEnd(k, at, ErrLost)
	before := f.counts()
	require.ErrorIs(f.t, k.Extend(bg, time.Minute), ErrLost)
	_, err := k.locker.TryLock(owner, k.Name(), 0, AutoRenew)
	require.ErrorIs(f.t, err, ErrLost, "re-entry")
	require.ErrorIs(f.t, k.Unlock(), ErrLost)
	for range 2 {
		require.ErrorIs(f.t, k.Err(), ErrNotHeld)
		require.ErrorIs(f.t, k.Extend(bg, time.Minute), ErrNotHeld)
		require.ErrorIs(f.t, k.Unlock(), ErrNotHeld)
	}
	require.Equal(f.t, ErrLost, context.Cause(k.Context()))
	require.Equal(f.t, at, f.now())
	require.Equal(f.t, before, f.counts(), "all this needs no statement")
}

// A lock is lost when its lease less the margin has passed since the last
// statement that succeeded was sent. The margin of 30 s is 1 s.
func TestLossWithoutAnAnswer(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		grant, renewal, rest fault
		lost                 time.Duration
		renewals             int
	}{
		"renewals hang":                 {none, hangs, hangs, 29 * s, 4},
		"renewals fail":                 {none, after(s/3, fails(errBroken)), after(s/3, fails(errBroken)), 29 * s, 15},
		"renewals are refused":          {none, after(s/3, fails(errDenied)), after(s/3, fails(errDenied)), 29 * s, 15},
		"answers are lost":              {none, mute, mute, 29 * s, 4},
		"connections are cut":           {none, after(s/3, cut), after(s/3, cut), 29 * s, 15},
		"the grant is on its way back":  {slow(2 * s), hangs, hangs, 29 * s, 4},
		"the grant is on its way":       {late(9 * s), hangs, hangs, 29 * s, 4},
		"a renewal is on its way back":  {none, slow(4 * s), hangs, 39 * s, 5},
		"a renewal is on its way":       {none, late(4 * s), hangs, 39 * s, 5},
		"the first renewal has no echo": {none, mute, none, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				f.meet(c.grant, "acquire")
				f.meet(first(1, c.renewal, c.rest), "renew")
				p := f.try(l, owner, "x", WaitForever, AutoRenew)
				p.wait()
				require.NoError(t, p.err)
				if c.lost == 0 {
					f.until(time.Hour)
					require.NoError(t, p.lock.Err())
					return
				}
				f.until(c.lost - 1)
				require.NoError(t, p.lock.Err())
				f.requireLost(p.lock, owner, c.lost)
				require.GreaterOrEqual(t, f.left("x"), time.Second, "nobody else can have it yet")
				require.Len(t, strings.Fields(f.sent("renew")), c.renewals)

				// What is left in the table is freed, as soon as the database answers.
				f.until(c.lost + 10*time.Second)
				require.Zero(t, f.left("x"))
				require.Len(t, strings.Fields(f.sent("renew")), c.renewals)
				require.EqualValues(t, 1, l.Stats().Lost)
				require.Zero(t, l.Stats().Held)
			})
		})
	}
}

// The timer of a loss may fire late, as after a pause of the whole process. Err and the other
// methods report the loss in time nevertheless.
func TestLossWithALateTimer(t *testing.T) {
	for name, ask := range map[string]func(f *fakeRepo, k *Lock, owner context.Context) error{
		"Err":    func(_ *fakeRepo, k *Lock, _ context.Context) error { return k.Err() },
		"Extend": func(_ *fakeRepo, k *Lock, _ context.Context) error { return k.Extend(bg, time.Minute) },
		"Unlock": func(_ *fakeRepo, k *Lock, _ context.Context) error { return k.Unlock() },
		"re-entry": func(f *fakeRepo, k *Lock, owner context.Context) error {
			return f.try(k.locker, owner, "x", 0, AutoRenew).err
		},
		"a renewal answered now": func(_ *fakeRepo, k *Lock, _ context.Context) error {
			k.locker.watchdog.Extended(k.hold.lease.Load(), time.Now().Add(-time.Second), DefaultLease)
			return k.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k := f.acquired(l, owner, "x", 30*time.Second)
				k.hold.lease.Load().Timer().Stop()
				f.until(29 * time.Second)
				require.NoError(t, k.Context().Err())
				require.ErrorIs(t, ask(f, k, owner), ErrLost)
				require.Equal(t, 29*time.Second, f.now())
				require.Error(t, k.Context().Err())
				require.EqualValues(t, 1, l.Stats().Lost)
				require.Equal(t, "acquire 1, look 7", f.counts(), "no renewal, no release")
			})
		})
	}
}

// A timer that fires as its lease is prolonged loses nothing, and fires again.
func TestLossTimerThatIsTooEarly(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", 20*time.Second)
		f.until(5 * time.Second)
		k.hold.lease.Load().Timer().Reset(0)
		synctest.Wait()
		require.NoError(t, k.Err())
		f.requireEnd(k, 19*time.Second, ErrLost)
	})
}

// What a renewal brings for a lease that has ended sets no timer.
func TestEndedLeaseStaysEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(time.Second)
		require.NoError(t, k.Unlock())
		l.watchdog.Extended(k.hold.lease.Load(), time.Now(), DefaultLease)
		require.False(t, l.watchdog.Alive(k.hold.lease.Load()))
		require.False(t, k.hold.lease.Load().Timer().Stop(), "a timer was left running")
		require.Empty(t, f.sent("renew"))
	})
}

// After Close every handle returns ErrClosed, also one that was lost or unlocked.
func TestHandlesAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		lost, unlocked, held := f.acquired(l, bg, "x", time.Second), f.acquired(l, bg, "y", AutoRenew), f.acquired(l, bg, "z", AutoRenew)
		require.NoError(t, unlocked.Unlock())
		f.requireEnd(lost, 900*time.Millisecond, ErrLost)
		require.NoError(t, l.Close())
		for k, cause := range map[*Lock]error{lost: ErrLost, unlocked: ErrNotHeld, held: ErrClosed} {
			require.Equal(t, cause, context.Cause(k.Context()), "what ended it first")
			require.ErrorIs(t, k.Err(), ErrClosed)
			require.ErrorIs(t, k.Extend(bg, time.Minute), ErrClosed)
			require.ErrorIs(t, k.Unlock(), ErrClosed)
		}
	})
}

// A failed renewal is tried again soon, for as long as it takes, and neither the
// watchdog nor the next acquisition of the name takes any harm
// (https://github.com/redisson/redisson/issues/2515, 3712).
func TestFailedRenewalIsTriedAgain(t *testing.T) {
	for name, err := range map[string]error{"broken": errBroken, "deadlock": errDeadlock, "denied": errDenied} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				k := f.acquired(l, bg, "x", AutoRenew)
				f.meet(fails(err), "renew")
				f.until(19500 * time.Millisecond)
				f.meet(none, "renew")
				f.until(45 * time.Second)
				require.Equal(t, "10s 11s 12s 13s 14s 15s 16s 17s 18s 19s 20s 20s 30s 40s", f.sent("renew"), "the row, and then the session")
				require.NoError(t, k.Err())
				require.EqualValues(t, 10, l.Stats().RenewalErrors)
				require.EqualValues(t, 4, l.Stats().Renewals)
				require.NoError(t, k.Unlock())

				// With the watchdog at rest, after a loss, and while it tries to free.
				f.until(2 * time.Minute)
				k = f.acquired(l, bg, "x", AutoRenew)
				f.meet(fails(err), "renew", "releaseAll")
				f.requireEnd(k, 2*time.Minute+29*time.Second, ErrLost)
				require.ErrorIs(t, k.Unlock(), ErrLost)
				f.meet(none, "renew")
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				k = p.granted(2*time.Minute + 30*time.Second)
				f.until(time.Hour)
				require.NoError(t, k.Err())
				require.NoError(t, k.Unlock())
			})
		})
	}
}

func TestRenewalThatFindsTheRowLost(t *testing.T) {
	for name, take := range map[string]func(f *fakeRepo){
		"taken": func(f *fakeRepo) { f.take("x", time.Hour) },
		"freed": func(f *fakeRepo) { f.free("x") },
		"gone":  func(f *fakeRepo) { f.remove("x") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k, y := f.acquired(l, owner, "x", AutoRenew), f.acquired(l, owner, "y", AutoRenew)
				f.until(time.Second)
				take(f)
				next := f.try(l, bg, "x", WaitForever, time.Minute)
				require.False(t, next.over())
				f.requireLost(k, owner, 10*time.Second)
				synctest.Wait()
				require.Equal(t, name != "taken", next.over(), "the next waiter is served")
				f.until(35 * time.Second)
				require.Equal(t, "10s*2 20s 30s", f.sent("renew"))
				require.Equal(t, "10s*2", strings.Fields(f.sent("look"))[0])
				require.NoError(t, y.Err())
				require.Empty(t, f.sent("releaseAll"))
				require.Empty(t, f.sent("release"))
			})
		})
	}
}

// An answer that arrives after the loss changes nothing for the handle, and the row that it
// prolonged is freed for the next owner.
func TestLateRenewalDoesNotRevive(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(WithPollInterval(time.Hour)), f.locker()
		owner := WithOwner(bg)
		k := f.acquired(l, owner, "x", AutoRenew)
		f.meet(fails(errBroken), "renew")
		f.until(27500 * time.Millisecond)
		f.meet(slow(2*time.Second), "renew")
		next := f.try(l, bg, "x", WaitForever, AutoRenew)
		foreign := f.try(other, bg, "x", WaitForever, AutoRenew)
		f.requireLost(k, owner, 29*time.Second)
		require.Equal(t, 29*time.Second, f.left("x"), "prolonged at 28 s")
		k2 := next.granted(30 * time.Second)
		require.Equal(t, "30s", f.sent("releaseAll"))
		require.ErrorIs(t, k.Err(), ErrNotHeld)
		require.False(t, foreign.over())

		f.until(2 * time.Minute)
		require.Equal(t, "30s", f.sent("releaseAll"), "it was freed: no more is sent")
		require.NoError(t, k2.Unlock())
		foreign.granted(2*time.Minute + 500*time.Millisecond)
	})
}

// A row that a transaction has locked is passed over, and holds up no other.
func TestRowPassedOver(t *testing.T) {
	for name, c := range map[string]struct {
		blocked time.Duration
		lost    bool
	}{
		"for a while": {13500 * time.Millisecond, false},
		"for good":    {time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				x, y, z := f.acquired(l, bg, "x", AutoRenew), f.acquired(l, bg, "y", AutoRenew), f.acquired(l, bg, "z", AutoRenew)
				f.until(9 * time.Second)
				time.AfterFunc(c.blocked-f.now(), f.block("y"))
				f.until(13400 * time.Millisecond)
				require.Equal(t, 26600*time.Millisecond, f.left("x"))
				require.Equal(t, 16600*time.Millisecond, f.left("y"))
				require.Equal(t, "10s*3 11s 12s 13s", f.sent("look"))
				if c.lost {
					f.requireEnd(y, 29*time.Second, ErrLost)
				}
				f.until(35 * time.Second)
				if !c.lost {
					require.NoError(t, y.Err())
					require.Equal(t, "10s*3 11s 12s 13s 20s 30s", f.sent("renew"))
					require.Equal(t, "10s", f.sent("extend"), "a row that was skipped is bound by a statement of its own")
				}
				require.NoError(t, x.Err())
				require.NoError(t, z.Err())
				require.Equal(t, c.lost, l.Stats().RenewalErrors > 0)
				f.until(90 * time.Second)
			})
		})
	}
}

// A renewal that waited for a locked row until the lock was lost holds nothing.
func TestSingleRenewalAfterTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(), f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		unblock := f.block("x")
		f.meet(fails(errBroken), "release") // which would wait for the row
		f.requireEnd(k, 29*time.Second, ErrLost)
		f.until(35300 * ms)
		unblock()
		synctest.Wait()
		f.acquired(other, bg, "x", AutoRenew)
		require.Equal(t, "10s", f.sent("extend"))
	})
}

// A renewal that is answered while Unlock is under way is no reason to release the
// row in the background: Unlock would find it released, and report a loss.
func TestUnlockDuringASingleRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.meet(ignored, "renew")
		f.meet(slow(time.Second), "extend")
		f.meet(late(time.Second), "release")
		f.until(10500 * ms)
		require.NoError(t, k.Unlock())
		require.Equal(t, 11500*ms, f.now())
		require.Empty(t, f.sent("releaseAll"))
	})
}

// The end of one lock does not hasten the renewal of another.
func TestRenewedWhenDue(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		x := f.acquired(l, bg, "x", AutoRenew)
		f.until(4 * time.Second)
		f.acquired(l, bg, "y", AutoRenew)
		f.until(5 * time.Second)
		require.NoError(t, x.Unlock())
		f.until(30 * time.Second)
		require.Equal(t, "14s 24s", f.sent("renew"))
	})
}

// The margin grows with a long lease, as the difference of two clocks does.
func TestMargin(t *testing.T) {
	for length, want := range map[time.Duration]time.Duration{
		10 * ms: ms, time.Second: 100 * ms, DefaultLease: time.Second, 15 * time.Minute: time.Second, 24 * time.Hour: 86400 * ms,
	} {
		require.Equal(t, want, lease.Margin(length), length)
	}
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		k := f.acquired(f.locker(WithLease(time.Second)), bg, "x", AutoRenew)
		require.NoError(t, k.Extend(bg, time.Hour))
		f.until(30 * time.Minute) // checked since, which prolongs no trust
		f.meet(hangs, "renew", "look", "releaseAll")
		f.until(time.Hour - 3700*ms)
		require.NoError(t, k.Err())
		f.until(time.Hour - 3600*ms)
		require.Equal(t, ErrLost, k.Err())
		f.meet(none, "releaseAll")
	})
}

// A statement that writes the row also writes how many handles are open, if the row may
// have another number.
func TestHoldsAreWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		k := f.acquired(f.locker(), bg, "x", AutoRenew)
		f.until(5 * time.Second)
		inner := f.acquired(k.locker, k.Context(), "x", AutoRenew)
		f.meet(cut, "renew") // the one at 10 s is executed, but not answered
		f.until(10 * time.Second)
		f.meet(none, "renew")
		third := f.acquired(k.locker, k.Context(), "x", AutoRenew)
		f.until(15 * time.Second)
		require.Equal(t, []int{2, 3}, f.wrote)
		require.NoError(t, third.Unlock())
		f.until(55 * time.Second)
		require.Len(t, f.wrote, 2, "the session keeps the row as it is")
		require.NoError(t, k.Extend(bg, time.Minute))
		require.NoError(t, inner.Unlock())
		f.until(80 * time.Second)
		require.NoError(t, k.Extend(bg, time.Minute))
		require.Equal(t, []int{2, 3, 2, 1}, f.wrote)
		require.Equal(t, 1, f.rows["x"].holds)
	})
}

// A fixed lease ends by itself: its row is never renewed, only checked.
func TestFixedLeaseEnds(t *testing.T) {
	for lease, looks := range map[time.Duration]string{
		10 * time.Millisecond: "",
		time.Second:           "",
		3 * time.Second:       "1s 2s",
		9 * time.Second:       "3s 5s 6.333333333s 7.333333333s",
	} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k := f.acquired(l, owner, "x", lease)
				f.requireLost(k, owner, lease-lease/10)
				require.Equal(t, lease/10, f.left("x"))
				time.Sleep(time.Minute)
				require.Equal(t, looks, f.sent("look"))
				require.Empty(t, f.sent("renew"))
				require.Empty(t, f.sent("releaseAll"))
			})
		})
	}
}

// A fixed lease that was taken away by force is reported when its row is checked, or at its own
// end if that is earlier.
func TestFixedLeaseTakenAway(t *testing.T) {
	for lease, told := range map[time.Duration]time.Duration{
		30 * time.Second:       10 * time.Second,
		3 * time.Second:        time.Second,
		2 * time.Second:        time.Second,
		900 * time.Millisecond: 810 * time.Millisecond,
	} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k := f.acquired(l, owner, "x", lease)
				f.until(100 * time.Millisecond)
				f.take("x", time.Hour)
				f.requireLost(k, owner, told)
				require.Empty(t, f.sent("renew"))
			})
		})
	}
}

// Re-entry sends nothing, and gives the lock back with the last handle, in
// whatever order they are unlocked.
func TestHandles(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				var locks []*Lock
				for _, lease := range []time.Duration{AutoRenew, time.Second, AutoRenew} {
					locks = append(locks, f.acquired(l, owner, "x", lease))
				}
				require.Equal(t, "acquire 1", f.counts())
				require.EqualValues(t, 2, l.Stats().Reentered)
				require.Equal(t, 1, l.Stats().Held)
				for i, n := range order {
					require.NoError(t, locks[n].Err())
					require.Equal(t, locks[0].Token(), locks[n].Token())
					require.Equal(t, i < 3, f.left("x") > 0)
					require.NoError(t, locks[n].Unlock())
					require.ErrorIs(t, locks[n].Unlock(), ErrNotHeld)
					f.requireEnd(locks[n], 0, ErrNotHeld)
				}
				require.Equal(t, "acquire 1, release 1", f.counts())
				require.Zero(t, f.left("x"))

				again := f.acquired(l, owner, "x", AutoRenew)
				require.Greater(t, again.Token(), locks[0].Token())
			})
		})
	}
}

// Without an owner in the context there is no re-entry.
func TestAnotherOwnerDoesNotReenter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.try(l, bg, "x", 0, AutoRenew).refused(0, ErrNotAcquired)
		f.try(l, WithOwner(k.Context()), "x", 0, AutoRenew).refused(0, ErrNotAcquired)
		f.try(l, k.Context(), "x", 0, AutoRenew).granted(0)
		require.Equal(t, "acquire 1", f.counts())
	})
}

// A short fixed lease in a longer one, on a row that lasts longer than both, goes on for its time
// when the longer one is given up.
func TestShortLeaseInALongOne(t *testing.T) {
	for name, outer := range map[string]func(f *fakeRepo, l *Locker) *Lock{
		"kept by a session": func(f *fakeRepo, l *Locker) *Lock {
			k := f.acquired(l, WithOwner(bg), "x", AutoRenew)
			f.until(61 * time.Second)
			require.NotZero(f.t, f.row("x").session)
			return k
		},
		"handed over": func(f *fakeRepo, l *Locker) *Lock {
			_, k := f.handedOver(l, "x", AutoRenew, 10*time.Second)
			return k
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				k := outer(f, l)
				start := f.now()
				inner, err := l.TryLock(k.Context(), "x", 0, 500*time.Millisecond)
				require.NoError(t, err)
				require.NoError(t, k.Unlock())
				require.NoError(t, inner.Err())
				f.until(start + 440*time.Millisecond)
				require.NoError(t, inner.Err())
				require.Positive(t, inner.Remaining())
				f.until(start + 500*time.Millisecond - ms/2)
				require.Positive(t, f.left("x"), "released before its time")
				f.until(start + 510*time.Millisecond)
				require.Equal(t, ErrLost, inner.Err())
				require.Zero(t, f.left("x"))
			})
		})
	}
}

// A handle's lease is what it requests of the hold, which lasts as long as any requests.
func TestLeasesOfAHold(t *testing.T) {
	const s = time.Second
	type step struct {
		at    time.Duration
		enter time.Duration // the lease of a further handle, or
		leave int           // the number of the handle to unlock
	}
	for name, c := range map[string]struct {
		steps []step
		until time.Duration // so long the row promises it; 0: for ever
		renew string
	}{
		"fixed in auto":            {[]step{{0, AutoRenew, 0}, {s, 2 * s, 0}}, 0, "10s 20s 30s 40s 50s 1m0s"},
		"fixed in auto, auto gone": {[]step{{0, AutoRenew, 0}, {s, 2 * s, 0}, {12 * s, -1, 1}}, 40 * s, "10s 20s 30s"},
		"fixed in auto, auto gone at once": {
			[]step{{0, AutoRenew, 0}, {s, 2 * s, 0}, {s + 1, -1, 1}}, 30 * s, "",
		},
		"longer fixed in auto, auto gone": {
			[]step{{0, AutoRenew, 0}, {s, 50 * s, 0}, {2 * s, -1, 1}}, 51 * s, "10s",
		},
		"auto in fixed":            {[]step{{0, 3 * s, 0}, {s / 2, AutoRenew, 0}}, 0, "1s 11s 21s 31s 41s 51s 1m1s"},
		"auto in fixed, auto gone": {[]step{{0, 3 * s, 0}, {s / 2, AutoRenew, 0}, {2 * s, -1, 2}}, 31 * s, "1s 11s 21s"},
		"auto in long fixed":       {[]step{{0, 60 * s, 0}, {s, AutoRenew, 0}}, 0, "11s 21s 31s 41s 51s 1m1s"},
		"auto in fixed, fixed gone": {
			[]step{{0, 3 * s, 0}, {s / 2, AutoRenew, 0}, {2 * s, -1, 1}}, 0, "1s 11s 21s 31s 41s 51s 1m1s",
		},
		"shorter fixed in fixed": {[]step{{0, 10 * s, 0}, {s, 3 * s, 0}}, 10 * s, ""},
		"longer fixed in fixed":  {[]step{{0, 3 * s, 0}, {s / 2, 10 * s, 0}}, 10*s + s/2, "1s"},
		"longer fixed in fixed, gone before its renewal": {
			[]step{{0, 3 * s, 0}, {s / 2, 10 * s, 0}, {s/2 + 1, -1, 2}}, 3 * s, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				var open []*Lock
				for _, step := range c.steps {
					if step.at > 0 {
						f.until(step.at)
					}
					before := f.counts()
					if step.leave > 0 {
						require.NoError(t, open[step.leave-1].Unlock())
						open = slices.Delete(open, step.leave-1, step.leave)
						require.Equal(t, before, f.counts())
						continue
					}
					open = append(open, f.acquired(l, owner, "x", step.enter))
					if step.at > 0 {
						require.Equal(t, before, f.counts())
					}
				}
				if c.until > 0 {
					// The row is promised until then, and the handles are good until then, less the margin.
					f.until(c.until*9/10 - s)
					require.NoError(t, open[0].Err())
					if f.row("x").session == 0 {
						require.InDelta(t, c.until, f.now()+f.left("x"), float64(2*time.Millisecond))
					}
					f.until(c.until + 2*time.Millisecond)
					require.Zero(t, f.left("x"), "it ends by itself, or is released")
					require.ErrorIs(t, open[0].Err(), ErrLost)
				} else {
					f.until(65 * s)
					require.NoError(t, open[0].Err())
				}
				require.Equal(t, c.renew, f.sent("renew"))
				require.Empty(t, f.sent("extend"))
			})
		})
	}
}

// Extend makes the row's lease, and the trust in it, last longer from now, by
// one statement; never shorter.
func TestExtendByTheClock(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		lease, extend time.Duration
		fault         fault
		took          time.Duration
		lost          time.Duration // 0: never; else 1 s before the end of the row's lease
		extends       string
	}{
		"fixed":                 {3 * s, 10 * s, none, 0, 11 * s, "2s"},
		"fixed, shorter":        {10 * s, 3 * s, none, 0, 9 * s, "2s"},
		"auto":                  {AutoRenew, 3 * s, none, 0, 0, "2s"},
		"auto, longer":          {AutoRenew, 2 * time.Minute, none, 0, 0, "2s"},
		"on its way back":       {3 * s, 10 * s, slow(s / 2), s / 2, 11 * s, "2s"},
		"deadlocks":             {3 * s, 10 * s, first(3, fails(errDeadlock), none), 70 * time.Millisecond, 11070 * time.Millisecond, "2s 2.01s 2.03s 2.07s"},
		"the connection is cut": {3 * s, 10 * s, first(1, cut, none), 10 * time.Millisecond, 11010 * time.Millisecond, "2s 2.01s"},
		"the request gets lost": {9 * s, 10 * s, first(1, hangs, none), 1510 * time.Millisecond, 12510 * time.Millisecond, "2s 3.51s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				k := f.acquired(l, bg, "x", c.lease)
				f.until(2 * s)
				f.meet(c.fault, "extend")
				require.NoError(t, k.Extend(bg, c.extend))
				require.Equal(t, 2*s+c.took, f.now())
				if c.lost == 0 {
					require.Equal(t, max(30*s, 2*s+c.extend), f.now()+f.left("x"))
					f.until(time.Hour)
					require.NoError(t, k.Err())
				} else {
					require.Equal(t, c.lost+s, f.now()+f.left("x"))
					f.requireEnd(k, c.lost, ErrLost)
					require.Empty(t, f.sent("renew"))
				}
				require.Equal(t, c.extends, f.sent("extend"))
			})
		})
	}
}

func TestExtendThatFails(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		fault fault
		bound time.Duration // of the context
		take  bool
		err   error
		at    time.Duration
		lost  bool
	}{
		"taken":                {none, time.Hour, true, ErrLost, s, true},
		"hangs":                {hangs, 3 * s, false, context.DeadlineExceeded, 4 * s, false},
		"broken":               {fails(errBroken), 3 * s, false, errBroken, 4 * s, false},
		"denied":               {fails(errDenied), time.Hour, false, errDenied, s, false},
		"hangs until the loss": {hangs, time.Hour, false, ErrLost, 10*s + 630*time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				k := f.acquired(l, bg, "x", 10*s)
				f.until(s)
				if c.take {
					f.take("x", time.Hour)
				}
				f.meet(c.fault, "extend")
				ctx, cancel := context.WithTimeout(bg, c.bound)
				defer cancel()
				require.ErrorIs(t, k.Extend(ctx, time.Minute), c.err)
				require.Equal(t, c.at, f.now())
				require.Equal(t, c.lost, k.Err() == ErrLost)
			})
		})
	}
}

// An Extend that arrived too late, or was never answered, does not revive the handle, and does
// not keep the row from others.
func TestLateExtendHoldsNothing(t *testing.T) {
	for name, flt := range map[string]fault{"late": slow(time.Second), "mute": mute, "cut": first(1, cut, hangs)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k := f.acquired(l, owner, "x", 3*time.Second)
				next := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.until(2500 * time.Millisecond)
				f.meet(flt, "extend")
				require.ErrorIs(t, k.Extend(bg, time.Hour), ErrLost)
				require.ErrorIs(t, k.Unlock(), ErrLost)
				f.until(10 * time.Second)
				require.True(t, next.over(), "left of the row: %v", f.left("x"))
				f.until(10 * time.Minute)
				require.NoError(t, next.lock.Err())
				require.LessOrEqual(t, len(strings.Fields(f.sent("releaseAll"))), 5, "it was freed: no more is sent")
			})
		})
	}
}

// An Extend on its way for a handle that is unlocked meanwhile takes nothing from
// the handles that are left.
func TestExtendOfAHandleUnlockedMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		k, left := f.acquired(l, owner, "x", AutoRenew), f.acquired(l, owner, "x", AutoRenew)
		f.meet(slow(time.Second), "extend")
		time.AfterFunc(500*time.Millisecond, func() { assert.NoError(t, k.Unlock()) })
		require.ErrorIs(t, k.Extend(bg, time.Minute), ErrNotHeld)
		f.until(5 * time.Second)
		f.checkTrust(left)
		f.until(time.Hour)
		require.NoError(t, left.Unlock())
	})
}

// ignored: the statement was killed, and its answer is that it matched nothing
// (MariaDB 11.8).
func ignored(context.Context, func()) error { return nil }

// A statement that matched nothing is no loss while the row is the lock's own.
func TestKilledStatement(t *testing.T) {
	t.Run("Unlock", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			l := f.locker()
			k := f.acquired(l, bg, "x", AutoRenew)
			f.meet(first(2, ignored, none), "release")
			require.NoError(t, k.Unlock())
			require.Zero(t, f.left("x"))
			require.Equal(t, "acquire 1, owned 2, release 3", f.counts())
			require.EqualValues(t, 1, l.Stats().Released)
		})
	})
	t.Run("Unlock, always", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			k := f.acquired(f.locker(), bg, "x", AutoRenew)
			f.meet(ignored, "release")
			require.ErrorIs(t, k.Unlock(), errNotMatched)
			require.LessOrEqual(t, f.now(), unlockTimeout)
			synctest.Wait()
			require.Zero(t, f.left("x"), "released in the background")
		})
	})
	t.Run("Extend", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			k := f.acquired(f.locker(), bg, "x", 3*time.Second)
			f.meet(first(2, ignored, none), "extend")
			require.NoError(t, k.Extend(bg, 10*time.Second))
			require.Equal(t, "acquire 1, extend 3, owned 2", f.counts())
			f.until(5 * time.Second)
			require.NoError(t, k.Err())
			f.meet(ignored, "extend")
			require.ErrorIs(t, k.Extend(bg, time.Minute), errNotMatched)
		})
	})
	t.Run("Close", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			l := f.locker()
			f.acquired(l, bg, "x", AutoRenew)
			f.meet(ignored, "releaseAll")
			require.NoError(t, l.Close())
			require.Zero(t, f.left("x"))
		})
	})
	t.Run("release in the background", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			k := f.acquired(f.locker(), bg, "x", AutoRenew)
			f.meet(first(1, fails(errDenied), none), "release")
			f.meet(ignored, "releaseAll")
			require.ErrorIs(t, k.Unlock(), errDenied)
			synctest.Wait()
			require.Zero(t, f.left("x"))
			require.Equal(t, "acquire 1, look 1, release 2, releaseAll 1", f.counts())
		})
	})
	t.Run("renewal", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fakeRepo) {
			k := f.acquired(f.locker(), bg, "x", AutoRenew)
			f.meet(ignored, "renew")
			f.meet(first(1, ignored, none), "extend")
			f.until(time.Hour)
			require.NoError(t, k.Err())
		})
	})
}

// A statement that has no answer delays the renewals of no other lock.
func TestRenewalBesideAHangingOne(t *testing.T) {
	for name, flt := range map[string]fault{"hangs": hangs, "slow": slow(5 * time.Second)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				long := f.acquired(l, bg, "long", AutoRenew)
				f.until(9900 * ms)
				short := f.acquired(l, owner, "short", 1500*ms)
				f.meet(first(1, flt, none), "renew") // the one for long, at 10 s
				f.until(10100 * ms)
				kept := f.acquired(l, owner, "short", AutoRenew)
				f.until(time.Minute)
				require.NoError(t, kept.Err())
				require.NoError(t, short.Err())
				require.NoError(t, long.Err())
			})
		})
	}
}

// Many statements that have no answer take no more than a few connections, and
// those that are nearest to their loss go first when the database answers again.
func TestHangingRenewalsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		var locks []*Lock
		for i := range 20 { // of leases that no batch has in common
			name := fmt.Sprint(i)
			f.acquired(l, owner, name, time.Duration(30+i)*time.Second)
			locks = append(locks, f.acquired(l, owner, name, time.Duration(90+i)*time.Second))
		}
		var mu sync.Mutex // protects following variables
		var sending []context.Context
		most := 0
		f.meet(func(ctx context.Context, serve func()) error {
			mu.Lock()
			sending = append(slices.DeleteFunc(sending, func(ctx context.Context) bool { return ctx.Err() != nil }), ctx)
			most = max(most, len(sending))
			mu.Unlock()
			return hangs(ctx, serve)
		}, "renew")
		f.until(17 * time.Second)
		require.Equal(t, 4, most)
		f.meet(none, "renew")
		f.until(50 * time.Second)
		for _, k := range locks {
			require.NoError(t, k.Err())
		}
	})
}

// Locks that were taken at different times come to be renewed together.
func TestRenewedInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		const n = 10_000
		locks := make([]*Lock, n)
		for i := range locks {
			var err error
			locks[i], err = l.TryLock(bg, fmt.Sprint(i), 0, AutoRenew)
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
		sent := func() int { return len(strings.Fields(f.sent("renew"))) }
		for f.until(31 * time.Second); f.now() < 5*time.Minute; {
			before := sent()
			f.until(f.now() + 10*time.Second)
			require.Equal(t, 1, sent()-before, "at %v: all are bound to one session", f.now())
		}
		for _, k := range locks {
			require.NoError(t, k.Err())
		}
		require.Equal(t, n, l.Stats().Held)
		require.Zero(t, l.Stats().Lost)
		require.Empty(t, f.sent("look"))
		require.LessOrEqual(t, len(strings.Fields(f.sent("count"))), 9, "one a lease")
		require.NoError(t, l.Close())
		require.Len(t, strings.Fields(f.sent("releaseAll")), (n+store.BatchSize-1)/store.BatchSize)
	})
}

// dice are safe for concurrent use. A seed makes runs alike, not the same:
// goroutines run in any order.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (d *dice) below(n int) int { return int(d.time(time.Duration(n))) }

func (d *dice) time(most time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.rnd.Int64N(int64(most)))
}

// fault befalls two statements in five.
func (d *dice) fault(ctx context.Context, serve func()) error {
	long := d.time(10 * time.Second)
	faults := []fault{
		hangs, mute, cut, after(long, cut), late(long), slow(long), overtaken(long), fails(errDeadlock), fails(errDenied),
	}
	if i := d.below(20); i < len(faults) {
		return faults[i](ctx, serve)
	}
	return slow(d.time(50*time.Millisecond))(ctx, serve)
}

// Whatever befalls the statements of three processes, a lock that is trusted is
// one whose row is held, and when all is quiet nothing is left behind.
func TestRandomFaults(t *testing.T) {
	ops := []string{"acquire", "extend", "renew", "look", "release", "releaseAll"}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				d := &dice{rnd: rand.New(rand.NewPCG(seed, seed))}
				f.meet(d.fault, ops...)
				b := &bus{takes: 3 * time.Millisecond}
				var lockers []*Locker
				var workers sync.WaitGroup
				for range 3 {
					l := f.locker(WithLease(3*time.Second), WithNotifier(b))
					lockers = append(lockers, l)
					owner := WithOwner(bg)
					for _, ctx := range []context.Context{bg, bg, owner, owner} {
						workers.Go(func() { f.work(l, ctx, d) })
					}
				}
				workers.Wait()
				f.meet(none, ops...)
				f.until(f.now() + time.Minute)
				for _, l := range lockers {
					require.Positive(t, l.Stats().Acquired)
					require.Zero(t, l.Stats().Held)
					require.Zero(t, l.Stats().Waiting)
					before := f.counts()
					require.NoError(t, l.Close())
					require.Equal(t, before, f.counts(), "nothing was left to do")
				}
				require.Zero(t, f.left("x"))
				require.Zero(t, f.left("y"))
			})
		})
	}
}

// work acquires, checks, extends and unlocks at random.
func (f *fakeRepo) work(l *Locker, owner context.Context, d *dice) {
	var open []*Lock
	var extends sync.WaitGroup
	for range 30 {
		ctx, cancel := context.WithTimeout(owner, d.time(10*time.Second))
		wait := []time.Duration{0, time.Second, 5 * time.Second, WaitForever}[d.below(4)]
		lease := []time.Duration{AutoRenew, AutoRenew, 300 * time.Millisecond, time.Second, 10 * time.Second}[d.below(5)]
		if k, err := l.TryLock(ctx, []string{"x", "y"}[d.below(2)], wait, lease); err == nil {
			open = append(open, k)
		}
		cancel()
		for range d.below(3) {
			time.Sleep(d.time(2 * time.Second))
			for _, k := range open {
				f.checkTrust(k)
			}
		}
		if len(open) > 0 && d.below(2) == 0 {
			k := open[d.below(len(open))]
			extends.Go(func() {
				ctx, cancel := context.WithTimeout(bg, d.time(5*time.Second))
				defer cancel()
				k.Extend(ctx, time.Second+d.time(20*time.Second))
				f.checkTrust(k)
			})
		}
		for len(open) > 0 && d.below(3) > 0 {
			i := d.below(len(open))
			open[i].Unlock()
			open = slices.Delete(open, i, i+1)
		}
	}
	for _, k := range open {
		k.Unlock()
	}
	extends.Wait()
}

// checkTrust requires that a handle that is good has the row.
func (f *fakeRepo) checkTrust(k *Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[k.Name()]
	if k.Err() == nil {
		assert.Equal(f.t, k.hold.lease.Load().Claim.Owner, r.owner)
		assert.Greater(f.t, time.Until(f.keptUntil(r)), time.Duration(0))
	}
}

// requireCause requires that the context of a handle has ended for that reason.
func (f *fakeRepo) requireCause(k *Lock, why error) {
	f.t.Helper()
	require.Error(f.t, k.Context().Err())
	require.Equal(f.t, why, context.Cause(k.Context()))
}

// A session whose row is locked again and again, as by many forced releases at once, is
// tried often: it must be found unlocked once.
func TestSessionRowLockedAgainAndAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(WithLease(time.Second))
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(400 * time.Millisecond) // bound
		f.meet(first(20, fails(store.ErrRowLocked), none), "renew")
		f.until(10 * time.Second)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// alter changes the table.
func (f *fakeRepo) alter(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// row returns a copy of a row.
func (f *fakeRepo) row(name string) fakeRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[name]
}

// kept returns the numbers of all sessions that have begun.
func (f *fakeRepo) kept() []store.SessionID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.sessions))
}

// lastSession returns the number of the last session that has begun.
func (f *fakeRepo) lastSession() store.SessionID { return slices.Max(f.kept()) }

// Downgrade is not needed here: no test on this table shares a lock.
func (f *fakeRepo) Downgrade(context.Context, store.Claim, store.AcquireRequest) (store.Grant, store.Process, error) {
	return store.Grant{}, 0, nil
}

// KeepShared is not needed either.
func (f *fakeRepo) KeepShared(context.Context, store.Claim, string, string, store.MinHold) (bool, error) {
	return false, nil
}
