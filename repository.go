package mysqllock

import (
	"context"
	_ "embed"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Schema is the table that the library keeps its locks in, as one CREATE TABLE
// statement for the default name. [Locker.CreateTable] applies it.
//
//go:embed schema.sql
var Schema string

// repository is what terms and waiters need of the table. Each method is one
// statement and one round trip, but for acquire on a name that has no row yet or
// for which others wait (two) and on the very first call (two more, to look at
// the session).
//
// Every statement is conditional on the owner id of one acquisition and safe to
// repeat. sent is the instant before the request left this process: the
// database cannot have judged the statement by an earlier time. An heir is the
// process that has waited longest for a row that a statement freed, 0 if none;
// of several rows, any that has one.
type repository interface {
	// acquire takes the row if nobody holds it. Every grant is followed by one
	// call of relinquish.
	Acquire(ctx context.Context, b store.AcquireRequest) (store.Grant, error)
	// probe tells what keeps the claim's statement, which is under way, from being
	// answered. It waits for nobody.
	Probe(ctx context.Context, c store.Claim) (store.RowState, error)
	// extend prolongs one lease, and leaves holds as it is if that is 0. It waits for
	// the row if a transaction has it locked, or returns errRowLocked if this process
	// waits for that row already, or for too many. The end of ctx ends the call, not
	// the statement.
	Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error)
	// renew prolongs many, passing over rows that somebody has locked, and leaves
	// holds as it is if that is 0. Those that were passed over, gone, or already
	// promised for longer are not counted in renewed.
	Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int) (renewed int, sent time.Time, err error)
	// look reads what the rows of the names say; a name without row is missing.
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	// owned returns the claims whose rows are still theirs. It reads what was
	// committed, at every isolation level: a look may see a change of owner that is
	// rolled back later.
	Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)
	// confirm reports whether a row is the claim's. Its answer may be false by
	// mistake, as that of look, but never true. The end of ctx ends the call, not the
	// statement.
	Confirm(ctx context.Context, c store.Claim) (mine bool, sent time.Time, err error)
	// release frees the row if it is still the claim's, and waits for it as extend
	// does.
	Release(ctx context.Context, c store.Claim) (freed bool, heir store.Process, err error)
	// releaseAll frees many, passing over rows that somebody has locked.
	ReleaseAll(ctx context.Context, cs []store.Claim) (freed int64, heir store.Process, err error)
	// relinquish tells that a granted term is over.
	HoldEnded()

	// listen blocks until the process is rung, d has passed, or there is cause to
	// ask for one of the names. Only one call may be under way.
	Listen(ctx context.Context, names []string, d time.Duration) (store.Wakeup, error)
	// hush ends the listening: from then on the process cannot be rung.
	CloseListener()
	// usedUp tells whether listening takes a connection that is needed.
	PoolInUse() bool
	// ring ends the call of listen of a process; alive is false if it does not
	// listen.
	Signal(ctx context.Context, p store.Process) (alive bool, err error)
	// strike takes a process off the lists of those who wait, passing over rows that
	// somebody has locked. all is false if it was struck off fewer than all.
	RemoveWaiter(ctx context.Context, names []string, p store.Process) (heir store.Process, all bool, err error)
}
