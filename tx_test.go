package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/wire"
)

func isLost(err error) bool        { return errors.Is(err, mysqllock.ErrLost) }
func isUnavailable(err error) bool { return errors.Is(err, mysqllock.ErrUnavailable) }

// An account has a balance, which transactions change.
type account struct{ db *sql.DB }

func (e env) newAccount(t testing.TB) account {
	db := e.db(t, "")
	_, err := db.Exec("CREATE TABLE account (id INT PRIMARY KEY, cents INT)")
	require.NoError(t, err)
	_, err = db.Exec("INSERT INTO account VALUES (1, 0)")
	require.NoError(t, err)
	return account{db}
}

func (account) add(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents + 1")
	return err
}

// addAnyway is add for a function whose context has ended.
func (a account) addAnyway(_ context.Context, tx *sql.Tx) error { return a.add(ctx, tx) }

func (a account) require(t testing.TB, cents int) {
	t.Helper()
	var found int
	require.NoError(t, a.db.QueryRow("SELECT cents FROM account").Scan(&found))
	require.Equal(t, cents, found)
}

func TestDoTx(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l, other, a := newLocker(t, e.through(t, proxy)), e.locker(t), e.newAccount(t)
		do := func(fn func(context.Context, *sql.Tx) error) error {
			return l.DoTx(ctx, "x", 0, mysqllock.AutoRenew, nil, fn)
		}
		require.NoError(t, do(a.add))
		a.require(t, 1)
		requireHeld(t, other, "x", false)
		proxy.Reset()
		before := l.Stats().Statements
		require.NoError(t, do(func(context.Context, *sql.Tx) error { return nil }))
		require.Equal(t, before+3, l.Stats().Statements, "the lock, the guard, the release")
		require.Equal(t, 5, proxy.RoundTrips(), "and the begin and the commit of the caller's transaction")

		// The lock is held, by the context of fn, and the transaction is under Guard.
		require.NoError(t, do(func(ctx context.Context, tx *sql.Tx) error {
			again, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.NoError(t, again.Unlock())
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err = other.ForceUnlock(short, "x")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return a.add(ctx, tx)
		}))
		a.require(t, 2)

		failed := errors.New("no money")
		require.ErrorIs(t, do(func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, a.add(ctx, tx))
			return failed
		}), failed)
		a.require(t, 2)
		require.PanicsWithValue(t, "bug", func() {
			do(func(ctx context.Context, tx *sql.Tx) error {
				require.NoError(t, a.add(ctx, tx))
				panic("bug")
			})
		})
		a.require(t, 2)
		requireHeld(t, other, "x", false)

		k := acquire(t, other, "x", mysqllock.AutoRenew)
		require.ErrorIs(t, do(func(context.Context, *sql.Tx) error { panic("not called") }), mysqllock.ErrNotAcquired)
		require.NoError(t, k.Unlock())
		err := do(func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() })
		require.ErrorIs(t, err, sql.ErrTxDone)
		require.ErrorContains(t, err, "fn ended the transaction")
		require.Zero(t, l.Stats().Held)
	})
}

// The options are those of the transaction: every isolation level, and read-only, is guarded.
func TestDoTxOptions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, a := e.locker(t), e.locker(t), e.newAccount(t)
		for _, opts := range []*sql.TxOptions{
			nil,
			{},
			{Isolation: sql.LevelReadUncommitted},
			{Isolation: sql.LevelReadCommitted},
			{Isolation: sql.LevelRepeatableRead},
			{Isolation: sql.LevelSerializable},
			{ReadOnly: true},
			{Isolation: sql.LevelSerializable, ReadOnly: true},
		} {
			err := l.DoTx(ctx, "x", time.Second, mysqllock.AutoRenew, opts, func(ctx context.Context, tx *sql.Tx) error {
				short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				_, err := other.ForceUnlock(short, "x")
				require.ErrorIs(t, err, context.DeadlineExceeded, "%+v", opts)
				if opts != nil && opts.ReadOnly {
					require.ErrorContains(t, a.add(ctx, tx), "READ ONLY")
				} else {
					require.NoError(t, a.add(ctx, tx))
				}
				return nil
			})
			require.NoError(t, err, "%+v", opts)
		}
		a.require(t, 6)
	})
}

// A lock that is lost under the transaction does not undo it: nobody else can have the lock yet.
func TestDoTxAfterALoss(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, a := e.locker(t), e.locker(t), e.newAccount(t)
		committed := false
		require.NoError(t, l.DoTx(ctx, "x", 0, 500*time.Millisecond, nil, func(lockCtx context.Context, tx *sql.Tx) error {
			<-lockCtx.Done()
			require.ErrorIs(t, context.Cause(lockCtx), mysqllock.ErrLost)
			time.Sleep(200 * time.Millisecond)
			_, err := other.TryLock(ctx, "x", time.Second, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			committed = true
			return a.add(ctx, tx)
		}))
		require.True(t, committed)
		a.require(t, 1)
		require.EqualValues(t, 1, l.Stats().Lost)

		failed := errors.New("no money")
		err := l.DoTx(ctx, "x", time.Second, 300*time.Millisecond, nil, func(lockCtx context.Context, tx *sql.Tx) error {
			<-lockCtx.Done()
			require.NoError(t, a.addAnyway(ctx, tx))
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		a.require(t, 1)

		// Close during the transaction.
		closing := e.locker(t)
		require.NoError(t, closing.DoTx(ctx, "x", time.Second, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, closing.Close())
			require.ErrorIs(t, context.Cause(ctx), mysqllock.ErrClosed)
			return a.addAnyway(ctx, tx)
		}))
		a.require(t, 2)
	})
}

// A lock that is lost before the transaction is guarded: nothing is committed, and fn not called.
func TestDoTxWithoutGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, other, a := e.db(t, ""), e.locker(t), e.newAccount(t)
		db.SetMaxOpenConns(1)
		l := newLocker(t, db)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		never := func(context.Context, *sql.Tx) error { panic("not called") }

		// It waits for the only connection when the lock is lost, or the context ends.
		for what, lease := range map[string]time.Duration{"lost": 300 * time.Millisecond, "canceled": time.Minute} {
			var conn *sql.Conn
			taken := make(chan struct{})
			observed := newLocker(t, db, mysqllock.WithObserver(mysqllock.Observer{AcquireEnd: func(context.Context, mysqllock.AcquireInfo) {
				var err error
				conn, err = db.Conn(ctx)
				assert.NoError(t, err)
				close(taken)
			}}))
			short, cancel := context.WithCancel(ctx)
			go func() {
				<-taken
				time.Sleep(600 * time.Millisecond)
				if what == "canceled" {
					cancel()
				}
				time.Sleep(100 * time.Millisecond)
				conn.Close()
			}()
			err := observed.DoTx(short, "x", 5*time.Second, lease, nil, never)
			if what == "lost" {
				require.ErrorIs(t, err, mysqllock.ErrLost)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, mysqllock.ErrLost)
			}
			cancel()
		}

		// By force, which the process has not noticed.
		forced := newLocker(t, db, mysqllock.WithObserver(mysqllock.Observer{AcquireEnd: func(context.Context, mysqllock.AcquireInfo) {
			_, err := other.ForceUnlock(ctx, "x")
			assert.NoError(t, err)
		}}))
		start := time.Now()
		require.ErrorIs(t, forced.DoTx(ctx, "x", 5*time.Second, mysqllock.AutoRenew, nil, never), mysqllock.ErrLost)
		require.Less(t, time.Since(start), 5*time.Second, "in a pool of one")
		a.require(t, 0)
	})
}

// The end of the caller's context rolls the transaction back, as with BeginTx.
func TestDoTxCanceled(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, a := e.locker(t), e.newAccount(t)
		request, cancel := context.WithCancelCause(ctx)
		cause := errors.New("client went away")
		err := l.DoTx(request, "x", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, a.add(ctx, tx))
			cancel(cause)
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, mysqllock.ErrCommitUnknown)
		a.require(t, 0)
		requireHeld(t, l, "x", false)
	})
}

// The outcome of a commit without a reply is unknown, and that of one that was refused is not.
func TestDoTxWhoseCommitFails(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l, a := newLocker(t, e.through(t, proxy)), e.newAccount(t)
		commit := func(i wire.Interference) {
			proxy.Interfere(func(query string) wire.Interference {
				if strings.HasPrefix(strings.ToUpper(query), "COMMIT") {
					return i
				}
				return wire.Interference{}
			})
		}
		commit(wire.Interference{Error: 1213, NotSent: true}) // as on Galera, but not rolled back
		refused := e.through(t, proxy)
		err := newLocker(t, refused).DoTx(ctx, "refused", 0, mysqllock.AutoRenew, nil, a.add)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "unknown")
		require.NoError(t, refused.Close())
		a.require(t, 0)

		commit(wire.Interference{Error: 2013}) // a proxy that lost its backend
		err = l.DoTx(ctx, "x", 0, mysqllock.AutoRenew, nil, a.add)
		require.ErrorIs(t, err, mysqllock.ErrCommitUnknown)
		a.require(t, 1)
		commit(wire.Interference{})

		err = l.DoTx(ctx, "x", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			require.NoError(t, a.add(ctx, tx))
			proxy.CutBeforeNextReply()
			return nil
		})
		require.ErrorIs(t, err, mysqllock.ErrCommitUnknown)
		requireFree(t, l, "x")
	})
}
