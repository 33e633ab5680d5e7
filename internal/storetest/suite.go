// Package storetest has the contract of the store as one suite of tests, for the servers and for
// the store in memory.
package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Repository has the methods of [store.Store] that the contract covers.
type Repository interface {
	Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error)
	AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error)
	Confirm(ctx context.Context, c store.Claim) (mine bool, sent time.Time, err error)
	HoldEnded()
	Probe(ctx context.Context, c store.Claim) (store.RowState, error)

	Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (g store.Grant, next store.Process, err error)

	Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int, session store.SessionID) (renewed int, sent time.Time, err error)
	Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (mine bool, sent time.Time, err error)
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)
	Release(ctx context.Context, c store.Claim) (freed bool, next store.Process, err error)
	ReleaseToNext(ctx context.Context, c store.Claim, grant string) (freed bool, next store.Process, err error)
	Granted(ctx context.Context, names []string) ([]store.Grant, error)
	ReleaseAll(ctx context.Context, cs []store.Claim) (freed int64, next store.Process, err error)
	RemoveWaiter(ctx context.Context, names []string, p store.Process) (next store.Process, all bool, err error)
	ForceUnlock(ctx context.Context, name string) (freed []store.Claim, next store.Process, err error)
	ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (freed bool, next store.Process, err error)
	Detach(ctx context.Context, req store.DetachRequest) (detached bool, next store.Process, sent time.Time, err error)
	Attach(ctx context.Context, req store.AttachRequest) (store.Grant, error)
	KeepShared(ctx context.Context, c store.Claim, id, holder string, m store.MinHold) (kept bool, err error)

	BeginSession(ctx context.Context, id store.SessionID, lease time.Duration) (sent time.Time, err error)
	RenewSession(ctx context.Context, id store.SessionID, lease time.Duration) (store.SessionRenewal, error)
	CountBound(ctx context.Context, id store.SessionID) (n int, err error)
	Bound(ctx context.Context, id store.SessionID) (claims []store.Claim, sent time.Time, err error)
	EndSession(ctx context.Context, id store.SessionID) error

	Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error)
	CloseListener()
	PoolInUse() bool
	Signal(ctx context.Context, p store.Process) (alive bool, err error)

	Inspect(ctx context.Context, name string) (store.Info, error)
	List(ctx context.Context) ([]store.Info, error)
	Permits(ctx context.Context, name string) ([]store.Info, error)
	Purge(ctx context.Context, idle time.Duration) (deleted int64, err error)
}

// Label is that of the stores that newTable, the argument of Run, returns.
const Label = "label"

// Run tests that a store keeps the contract. newTable returns a function that opens an empty
// table for a process.
func Run[R Repository](t *testing.T, newTable func(t *testing.T) (newStore func(self store.Process) R)) {
	for _, c := range contract {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			newStore := newTable(t)
			c.test(t, func() *process { return newProcess(t, newStore) })
		})
	}
}

// A clause is one sentence of the contract, and its test on an empty table.
type clause struct {
	sentence string
	test     func(t *testing.T, newProcess func() *process)
}

var contract = slices.Concat(grants, waitQueues, directHandoffs, holds, handovers, sessions, forcedReleases, signals, operations, batches, parts, permits, sharedHolds, claims, sharedForcedReleases, downgrades)

var ctx = context.Background()

const (
	// Leases that must not end during a test, or that are awaited.
	long, short = time.Hour, 200 * time.Millisecond
	// mostLong is less than what is left of a long lease during a test.
	mostLong = 50 * time.Minute
	// testTimeout is when a test gives up. It is long, because the servers share a busy machine.
	testTimeout = 30 * time.Second

	maxWaiters         = 53 // of a row's wait queue
	reservedForPolling = 1500 * time.Millisecond
)

// A process is one process of a test. The methods that it adds to its store require success.
type process struct {
	Repository
	t    *testing.T
	self store.Process
}

func newProcess[R Repository](t *testing.T, newStore func(self store.Process) R) *process {
	self := store.NewProcess()
	p := &process{newStore(self), t, self}
	t.Cleanup(p.CloseListener)
	return p
}

func (p *process) claim(name string) store.Claim {
	return store.Claim{Name: name, Owner: store.NewOwnerID(p.self)}
}

// acquire sends a request, again after a deadlock.
func (p *process) acquire(req store.AcquireRequest) store.Grant {
	p.t.Helper()
	for start := time.Now(); ; {
		g, err := p.Acquire(ctx, req)
		if store.Contended(err) && time.Since(start) < testTimeout {
			continue
		}
		require.NoError(p.t, err)
		if g.Token > 0 {
			p.t.Cleanup(p.HoldEnded)
		}
		return g
	}
}

// try requests a row with a claim of its own.
func (p *process) try(name string, lease time.Duration, enlistAs store.Process) (store.Claim, store.Grant) {
	p.t.Helper()
	c := p.claim(name)
	return c, p.acquire(store.AcquireRequest{Claim: c, Lease: lease, EnlistAs: enlistAs})
}

// take acquires a row that must be free.
func (p *process) take(name string, lease time.Duration) store.Claim {
	p.t.Helper()
	c, g := p.try(name, lease, 0)
	require.NotZero(p.t, g.Token, "%+v", g)
	return c
}

// refused requires that the row is not free.
func (p *process) refused(name string) store.Grant {
	p.t.Helper()
	_, g := p.try(name, long, 0)
	require.Zero(p.t, g.Token)
	require.False(p.t, g.Locked)
	return g
}

// waits joins the wait queue of a row that must not be free.
func (p *process) waits(name string) {
	p.t.Helper()
	_, g := p.try(name, long, p.self)
	require.Zero(p.t, g.Token)
}

// takeWhenFree acquires a row as soon as it is free. refused, if it is not nil, gets the
// refusals before.
func (p *process) takeWhenFree(name string, lease time.Duration, refused func(store.Grant)) store.Claim {
	p.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c, g := p.try(name, lease, 0)
		if g.Token > 0 {
			return c
		}
		require.Less(p.t, time.Since(start), testTimeout)
		if refused != nil {
			refused(g)
		}
	}
}

// requireSince requires that d has passed since start. The clocks may differ by the
// microseconds that the database does not have.
func requireSince(t *testing.T, start time.Time, d time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, time.Since(start), d-time.Millisecond)
}

// row reads a row that must exist.
func (p *process) row(name string) store.Row {
	p.t.Helper()
	rows, _, err := p.Look(ctx, []string{name})
	require.NoError(p.t, err)
	require.Contains(p.t, rows, name)
	return rows[name]
}

func (p *process) extend(c store.Claim, lease time.Duration, session store.SessionID) (mine bool) {
	p.t.Helper()
	mine, _, err := p.Extend(ctx, c, lease, 1, session)
	require.NoError(p.t, err)
	return mine
}

func (p *process) release(c store.Claim) (freed bool, next store.Process) {
	p.t.Helper()
	freed, next, err := p.Release(ctx, c)
	require.NoError(p.t, err)
	return freed, next
}

// releaseBesideOthers releases a row although an acquire of this process, which was cancelled, may
// still wait for it: the release must not wait beside that, and may find the row locked.
func (p *process) releaseBesideOthers(c store.Claim) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		freed, _, err := p.Release(ctx, c)
		if store.Contended(err) && time.Since(start) < testTimeout {
			continue
		}
		assert.NoError(p.t, err)
		assert.True(p.t, freed)
		return
	}
}

// force frees a name that nobody holds shared, and returns its owner, "" if it was free.
func (p *process) force(name string) (owner string, next store.Process) {
	p.t.Helper()
	freed, next, err := p.ForceUnlock(ctx, name)
	require.NoError(p.t, err)
	if len(freed) > 0 {
		require.Equal(p.t, []store.Claim{{Name: name, Owner: freed[0].Owner}}, freed)
		owner = freed[0].Owner
	}
	return owner, next
}

// owns reports whether the claim owns its row. Each way to ask must return the same.
func (p *process) owns(c store.Claim) bool {
	p.t.Helper()
	mine, _, err := p.Confirm(ctx, c)
	require.NoError(p.t, err)
	owned, err := p.Owned(ctx, []store.Claim{c})
	require.NoError(p.t, err)
	assert.Equal(p.t, mine, slices.Contains(owned, c), "Confirm and Owned")
	return mine
}

// begin begins the first session.
func (p *process) begin(lease time.Duration) store.SessionID {
	p.t.Helper()
	id := p.self.FirstSession()
	_, err := p.BeginSession(ctx, id, lease)
	require.NoError(p.t, err)
	return id
}

// takeBound acquires a row and binds it to a session.
func (p *process) takeBound(name string, lease time.Duration, id store.SessionID) store.Claim {
	p.t.Helper()
	c := p.take(name, lease)
	require.True(p.t, p.extend(c, lease, id))
	return c
}

// takeExpired acquires a row whose lease ends at once.
func (p *process) takeExpired(name string) store.Claim {
	p.t.Helper()
	c := p.take(name, time.Microsecond)
	time.Sleep(time.Millisecond)
	return c
}

// takeKept acquires a row that only a session keeps.
func (p *process) takeKept(name string, id store.SessionID) store.Claim {
	p.t.Helper()
	c := p.takeBound(name, time.Microsecond, id)
	time.Sleep(time.Millisecond)
	return c
}

// bound returns the claims of the rows that a session keeps.
func (p *process) bound(id store.SessionID) []store.Claim {
	p.t.Helper()
	claims, _, err := p.Bound(ctx, id)
	require.NoError(p.t, err)
	n, err := p.CountBound(ctx, id)
	require.NoError(p.t, err)
	require.Len(p.t, claims, n)
	return claims
}
