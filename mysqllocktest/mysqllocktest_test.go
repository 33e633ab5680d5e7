package mysqllocktest_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

// bubble runs a test by the clock of a synctest bubble, which requires that nothing is left
// behind.
func bubble(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	}
}

// inBoth runs a test by the real clock and by that of a bubble.
func inBoth(t *testing.T, test func(t *testing.T)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t)
	})
	t.Run("bubble", bubble(test))
}

func acquire(t *testing.T, l *mysqllock.Locker, name string, wait, lease time.Duration) *mysqllock.Lock {
	t.Helper()
	lock, err := l.TryLock(t.Context(), name, wait, lease)
	require.NoError(t, err)
	return lock
}

func share(t *testing.T, l *mysqllock.Locker, name string) *mysqllock.Lock {
	t.Helper()
	lock, err := l.TryRLock(t.Context(), name, time.Minute, mysqllock.AutoRenew)
	require.NoError(t, err)
	return lock
}

func busy(t *testing.T, l *mysqllock.Locker, name string) {
	t.Helper()
	_, err := l.TryLock(t.Context(), name, 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
}

func TestNew(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		locker := mysqllocktest.New(t, mysqllock.WithIdentity("me"), mysqllock.WithTable("db.locks"))
		require.NoError(t, locker.CreateTable(t.Context()))
		lock := acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		again, err := locker.TryLock(lock.Context(), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, lock.Token(), again.Token())
		busy(t, locker, "x")
		busy(t, locker, "x")
		require.NoError(t, again.Unlock())
		busy(t, locker, "x")

		info, err := locker.Inspect(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "me", info.Holder)
		require.Equal(t, lock.Token(), info.Token)
		infos, err := locker.List(t.Context())
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.NoError(t, lock.Unlock())
		require.ErrorIs(t, lock.Unlock(), mysqllock.ErrNotHeld)
		deleted, err := locker.Purge(t.Context(), 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted)
		require.Greater(t, acquire(t, locker, "x", 0, time.Minute).Token(), lock.Token())
		require.Positive(t, locker.Stats().Statements)
		mysqllocktest.New(t).TryLock(t.Context(), "x", 0, time.Hour) // has a table of its own
	})
}

// A lock that becomes shared keeps its holder's label.
func TestHolderAfterADowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := mysqllocktest.New(t, mysqllock.WithIdentity("me"))
		lock := acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		shared, err := locker.TryRLock(lock.Context(), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, lock.Unlock())
		synctest.Wait()
		info, err := locker.Inspect(t.Context(), "x")
		require.NoError(t, err)
		require.Len(t, info.Holders, 1)
		require.Equal(t, "me", info.Holders[0].Holder)
		require.NoError(t, shared.Unlock())
	})
}

// A fatal records what ends a test.
type fatal struct {
	testing.TB
	args []any
}

func (f *fatal) Fatal(args ...any) {
	f.args = args
	runtime.Goexit()
}

func TestAnInvalidOptionEndsTheTest(t *testing.T) {
	f := &fatal{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		mysqllocktest.New(f, mysqllock.WithLease(0))
	}()
	<-done
	require.ErrorContains(t, f.args[0].(error), "WithLease")
}

func TestTwoProcessesExcludeEachOther(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		busy(t, second, "x")
		start := time.Now()
		time.AfterFunc(50*time.Millisecond, func() { lock.Unlock() })
		next := acquire(t, second, "x", time.Minute, mysqllock.AutoRenew)
		require.Less(t, time.Since(start), 10*time.Second)
		require.Greater(t, next.Token(), lock.Token())
	})
}

func TestTime(t *testing.T) {
	t.Run("a fixed lease ends", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, time.Minute)
		time.Sleep(58 * time.Second)
		require.NoError(t, lock.Err())
		busy(t, second, "x")
		start := time.Now()
		acquire(t, second, "x", time.Minute, mysqllock.AutoRenew)
		require.Less(t, time.Since(start), 3*time.Second)
		<-lock.Context().Done()
		require.ErrorIs(t, lock.Unlock(), mysqllock.ErrLost)
	}))
	t.Run("AutoRenew keeps a lock for hours", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		for range 12 {
			time.Sleep(time.Hour)
			require.NoError(t, lock.Err())
			busy(t, second, "x")
		}
		require.NoError(t, lock.Unlock())
	}))
	t.Run("a wait runs out", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		acquire(t, table.New(), "x", 0, mysqllock.AutoRenew)
		start := time.Now()
		_, err := table.New().TryLock(t.Context(), "x", time.Hour, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.InDelta(t, time.Hour.Seconds(), time.Since(start).Seconds(), 0.1)
	}))
	t.Run("a lock that is forced is lost", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		held, err := second.ForceUnlock(t.Context(), "x")
		require.NoError(t, err)
		require.True(t, held)
		<-lock.Context().Done()
		require.ErrorIs(t, context.Cause(lock.Context()), mysqllock.ErrLost)
		acquire(t, second, "x", 0, mysqllock.AutoRenew)
	}))
}

func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock, err := first.TryLock(mysqllock.WithHolder(t.Context(), "request 7"), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		info, err := second.Inspect(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "request 7", info.Holder)

		ticket, err := lock.Detach(t.Context(), time.Hour)
		require.NoError(t, err)
		busy(t, first, "x")
		attached, err := second.Attach(t.Context(), ticket, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, lock.Token(), attached.Token())

		require.NoError(t, attached.UnlockAfter(24*time.Hour))
		time.Sleep(23 * time.Hour)
		busy(t, first, "x")
		time.Sleep(time.Hour)
		acquire(t, first, "x", 0, mysqllock.AutoRenew)
	})
}

// A server's error has the class that it has there.
func TestUnavailableByAServersError(t *testing.T) {
	for number, want := range map[uint16]error{
		1146: mysqllock.ErrNoTable,
		1040: mysqllock.ErrUnavailable,        // too many connections
		1213: mysqllock.ErrNotAcquired,        // a deadlock
		1142: &mysql.MySQLError{Number: 1142}, // a privilege is missing
	} {
		t.Run(strconv.Itoa(int(number)), bubble(func(t *testing.T) {
			table := mysqllocktest.NewTable(t)
			locker := table.New()
			table.Unavailable(&mysql.MySQLError{Number: number})
			_, err := locker.TryLock(t.Context(), "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, want)
			_, err = locker.List(t.Context())
			require.ErrorIs(t, err, &mysql.MySQLError{Number: number})
			table.Available()
			require.NoError(t, acquire(t, locker, "x", 0, mysqllock.AutoRenew).Unlock())
		}))
	}
}

func TestOutage(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		locker := table.New()
		lock := acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		refused := errors.New("connection refused")
		table.Unavailable(refused)
		for _, wait := range []time.Duration{0, 500 * time.Millisecond} {
			_, err := locker.TryLock(t.Context(), "y", wait, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrUnavailable)
			require.ErrorIs(t, err, refused)
			require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		}
		_, err := locker.Inspect(t.Context(), "x")
		require.ErrorIs(t, err, refused)
		_, err = table.DB().BeginTx(t.Context(), nil)
		require.ErrorIs(t, err, refused)
		require.NoError(t, lock.Err(), "its lease runs")
		table.Available()
		acquire(t, locker, "y", 0, mysqllock.AutoRenew)
		require.NoError(t, lock.Unlock())

		table.Unavailable(&mysql.MySQLError{Number: 1290, Message: "read-only"}) // no use in trying again
		_, err = locker.TryLock(t.Context(), "z", time.Hour, mysqllock.AutoRenew)
		var refusal *mysql.MySQLError
		require.ErrorAs(t, err, &refusal)
	})
	t.Run("locks are lost", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		locker := table.New()
		lock := acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		time.Sleep(time.Hour)
		table.Unavailable(nil)
		start := time.Now()
		<-lock.Context().Done()
		require.ErrorIs(t, lock.Err(), mysqllock.ErrLost)
		require.LessOrEqual(t, time.Since(start), mysqllock.DefaultLease)
		table.Available()
		acquire(t, locker, "x", time.Minute, mysqllock.AutoRenew)
	}))
	t.Run("a waiter goes on when it ends", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		held := acquire(t, table.New(), "x", 0, mysqllock.AutoRenew)
		time.AfterFunc(10*time.Second, func() { table.Unavailable(nil) })
		time.AfterFunc(20*time.Second, table.Available)
		time.AfterFunc(30*time.Second, func() { held.Unlock() })
		start := time.Now()
		acquire(t, table.New(), "x", time.Minute, mysqllock.AutoRenew)
		require.Less(t, time.Since(start), 32*time.Second)
	}))
}

func TestGuard(t *testing.T) {
	begin := func(t *testing.T, db *sql.DB) *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { tx.Rollback() })
		return tx
	}
	// A lock x of the first of two Lockers, and a transaction that guards it.
	guarded := func(t *testing.T) (*mysqllocktest.Table, *mysqllock.Locker, *mysqllock.Locker, *mysqllock.Lock, *sql.Tx) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		tx := begin(t, table.DB())
		require.NoError(t, lock.Guard(t.Context(), tx))
		return table, first, second, lock, tx
	}
	t.Run("no other owner takes the lock over before the transaction ends", func(t *testing.T) {
		inBoth(t, func(t *testing.T) {
			table := mysqllocktest.NewTable(t)
			first, second := table.New(), table.New()
			lock := acquire(t, first, "x", 0, 50*time.Millisecond)
			tx, also := begin(t, table.DB()), begin(t, table.DB())
			require.NoError(t, lock.Guard(t.Context(), tx))
			require.NoError(t, lock.Guard(t.Context(), also))
			<-lock.Context().Done()
			busy(t, second, "x")
			require.NoError(t, also.Rollback())
			time.AfterFunc(300*time.Millisecond, func() { tx.Commit() })
			start := time.Now()
			acquire(t, second, "x", time.Minute, time.Minute)
			require.GreaterOrEqual(t, time.Since(start), 250*time.Millisecond)
			require.ErrorIs(t, lock.Guard(t.Context(), begin(t, table.DB())), mysqllock.ErrLost)
		})
	})
	t.Run("it is released under Guard", bubble(func(t *testing.T) {
		_, first, second, lock, tx := guarded(t)
		require.NoError(t, lock.Unlock())
		busy(t, first, "x")
		busy(t, second, "x")
		require.NoError(t, tx.Commit())
		acquire(t, second, "x", 0, mysqllock.AutoRenew)
	}))
	t.Run("an outage ends the transaction", bubble(func(t *testing.T) {
		table, first, second, lock, tx := guarded(t)
		table.Unavailable(nil)
		require.Error(t, lock.Guard(t.Context(), tx))
		table.Available()
		require.Error(t, lock.Guard(t.Context(), tx))
		require.NoError(t, lock.Unlock())
		lock = acquire(t, second, "x", 0, mysqllock.AutoRenew)
		next := begin(t, table.DB())
		require.NoError(t, lock.Guard(t.Context(), next))
		require.Error(t, tx.Commit())
		require.NoError(t, lock.Unlock())
		busy(t, first, "x")
	}))
	t.Run("ForceUnlock waits", bubble(func(t *testing.T) {
		table, _, second, lock, tx := guarded(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := second.ForceUnlock(ctx, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.AfterFunc(time.Hour, func() { tx.Commit() })
		held, err := second.ForceUnlock(t.Context(), "x")
		require.NoError(t, err)
		require.True(t, held)
		require.ErrorIs(t, lock.Guard(t.Context(), begin(t, table.DB())), mysqllock.ErrLost)
		require.ErrorIs(t, lock.Err(), mysqllock.ErrLost)
	}))
	t.Run("a free lock is forced at once", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, lock.Guard(t.Context(), begin(t, table.DB())))
		require.NoError(t, lock.Unlock())
		held, err := second.ForceUnlock(t.Context(), "x")
		require.NoError(t, err)
		require.False(t, held)
	}))
	t.Run("it keeps out a set of locks", bubble(func(t *testing.T) {
		_, _, second, lock, tx := guarded(t)
		require.NoError(t, lock.Unlock())
		_, err := second.TryLockAll(t.Context(), []string{"w", "x", "y"}, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Commit())
		set, err := second.TryLockAll(t.Context(), []string{"w", "x", "y"}, time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Greater(t, set.Lock("x").Token(), lock.Token())
	}))
	t.Run("of a shared lock, it keeps out exclusive owners, and of an exclusive lock, shared ones", func(t *testing.T) {
		inBoth(t, func(t *testing.T) {
			table := mysqllocktest.NewTable(t)
			first, second, third := table.New(), table.New(), table.New()
			shared := share(t, first, "x")
			tx := begin(t, table.DB())
			require.NoError(t, shared.Guard(t.Context(), tx))
			require.NoError(t, shared.Unlock())
			busy(t, second, "x")
			require.NoError(t, share(t, third, "x").Unlock())
			time.AfterFunc(300*time.Millisecond, func() { tx.Commit() })
			start := time.Now()
			lock := acquire(t, second, "x", time.Minute, mysqllock.AutoRenew)
			require.GreaterOrEqual(t, time.Since(start), 250*time.Millisecond)

			tx = begin(t, table.DB())
			require.NoError(t, lock.Guard(t.Context(), tx))
			require.NoError(t, lock.Unlock())
			_, err := first.TryRLock(t.Context(), "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
			require.NoError(t, tx.Rollback())
			require.Greater(t, share(t, first, "x").Token(), lock.Token())
		})
	})
	t.Run("a lock becomes shared when the transaction has ended", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		ctx := mysqllock.WithOwner(t.Context())
		lock, err := first.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		shared, err := first.TryRLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		tx := begin(t, table.DB())
		require.NoError(t, lock.Guard(ctx, tx))
		require.NoError(t, lock.Unlock())
		_, err = second.TryRLock(t.Context(), "x", time.Second, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Commit())
		_, err = second.TryRLock(t.Context(), "x", time.Minute, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, shared.Err())
	}))
	t.Run("a transaction that follows on its connection ends it", bubble(func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		first, second := table.New(), table.New()
		lock := acquire(t, first, "x", 0, mysqllock.AutoRenew)
		conn, err := table.DB().Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		for range 2 { // the second one commits the first
			_, err = conn.ExecContext(t.Context(), "BEGIN")
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "DELETE FROM event")
			require.NoError(t, err)
			require.NoError(t, lock.Guard(t.Context(), conn))
		}
		require.Len(t, table.Committed(), 1)
		_, err = conn.ExecContext(t.Context(), "COMMIT")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock())
		acquire(t, second, "x", 0, mysqllock.AutoRenew)
	}))
	t.Run("what is no open transaction is refused", bubble(func(t *testing.T) {
		table, other := mysqllocktest.NewTable(t), mysqllocktest.NewTable(t)
		lock := acquire(t, table.New(), "x", 0, mysqllock.AutoRenew)
		require.ErrorContains(t, lock.Guard(t.Context(), table.DB()), "pool")
		require.ErrorContains(t, lock.Guard(t.Context(), begin(t, other.DB())), "row")
		ended := begin(t, table.DB())
		require.NoError(t, ended.Commit())
		require.ErrorIs(t, lock.Guard(t.Context(), ended), sql.ErrTxDone)

		conn, err := table.DB().Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		require.ErrorContains(t, lock.Guard(t.Context(), conn), "no transaction is open")
		_, err = conn.ExecContext(t.Context(), "BEGIN")
		require.NoError(t, err)
		require.NoError(t, lock.Guard(t.Context(), conn))
		_, err = conn.ExecContext(t.Context(), "COMMIT")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.ErrorIs(t, lock.Guard(t.Context(), conn), sql.ErrConnDone)
		require.NoError(t, lock.Err(), "these leave the hold as it is")
	}))
}

func TestDB(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		ctx, db := t.Context(), table.DB()
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
		require.NoError(t, err)
		result, err := tx.ExecContext(ctx, "UPDATE account SET cents = cents - ? WHERE id = ?", 10, "alice")
		require.NoError(t, err)
		n, err := result.RowsAffected()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.ErrorIs(t, tx.QueryRowContext(ctx, "SELECT cents FROM account").Scan(new(int)), sql.ErrNoRows)
		require.Empty(t, table.Committed())
		_, err = db.ExecContext(ctx, "DELETE FROM event")
		require.NoError(t, err)
		require.NoError(t, tx.Commit())

		aborted, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		stmt, err := aborted.PrepareContext(ctx, "DELETE FROM account WHERE id = ?")
		require.NoError(t, err)
		_, err = stmt.ExecContext(ctx, "bob")
		require.NoError(t, err)
		require.NoError(t, aborted.Rollback())

		failed, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		_, err = failed.ExecContext(ctx, "DELETE FROM account")
		require.NoError(t, err)
		table.Unavailable(nil)
		require.Error(t, db.PingContext(ctx))
		table.Available()
		_, err = failed.ExecContext(ctx, "DELETE FROM account")
		require.ErrorIs(t, err, mysql.ErrInvalidConn, "the outage has rolled it back")
		require.ErrorIs(t, failed.Commit(), mysql.ErrInvalidConn)
		require.NoError(t, db.PingContext(ctx))

		require.Equal(t, []mysqllocktest.Statement{
			{Query: "DELETE FROM event"},
			{Query: "UPDATE account SET cents = cents - ? WHERE id = ?", Args: []any{int64(10), "alice"}},
		}, table.Committed())
	})
}

// A service may create the Locker itself.
func TestALockerOnTheTablesPool(t *testing.T) {
	table := mysqllocktest.NewTable(t)
	locker, err := mysqllock.New(table.DB(), mysqllock.WithoutSignal(), mysqllock.WithoutHandoff())
	require.NoError(t, err)
	defer locker.Close()
	acquire(t, locker, "x", 0, mysqllock.AutoRenew)
	busy(t, table.New(), "x")
}

// The end of a test ends everything, whatever it left behind.
func TestCleanup(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 10 {
		t.Run("", func(t *testing.T) {
			table := mysqllocktest.NewTable(t)
			first, second := table.New(), table.New()
			acquire(t, first, "x", 0, mysqllock.AutoRenew)
			go second.TryLock(context.Background(), "x", mysqllock.WaitForever, mysqllock.AutoRenew)
			for second.Stats().Waiting == 0 {
				runtime.Gosched()
			}
			table.Unavailable(nil)
		})
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// anotherDriver returns a pool of connections of db, a pool of a table, by a driver that is not
// the table's.
func anotherDriver(t *testing.T, db *sql.DB) *sql.DB {
	other := sql.OpenDB(foreign{db})
	t.Cleanup(func() { other.Close() })
	return other
}

type foreign struct{ db *sql.DB }

func (f foreign) Driver() driver.Driver { return nil }

func (f foreign) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.db.Driver().(driver.Connector).Connect(ctx)
	return foreignConn{conn}, err
}

// A foreignConn converts the arguments of statements as drivers do by default.
type foreignConn struct{ driver.Conn }

func (c foreignConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c foreignConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	panic("the library sends nothing")
}

func TestGuardOfAnotherDriver(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		db := anotherDriver(t, mysqllocktest.NewTable(t).DB())
		locker := table.New()
		lock := acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		require.ErrorContains(t, lock.Guard(t.Context(), db), "pool")
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, lock.Guard(t.Context(), tx))
		held, err := locker.ForceUnlock(t.Context(), "x")
		require.NoError(t, err)
		require.True(t, held, "the table does not wait for the transaction")
		require.ErrorIs(t, lock.Guard(t.Context(), tx), mysqllock.ErrLost)

		lock = acquire(t, locker, "x", 0, mysqllock.AutoRenew)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, lock.Guard(ctx, tx), context.Canceled)
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, lock.Guard(t.Context(), tx), sql.ErrTxDone)
		require.NoError(t, lock.Err())
	})
}
