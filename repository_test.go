package mysqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// through returns a pool whose connections go through p, with further DSN
// parameters "a=b&c=d", unescaped.
func (e env) through(t testing.TB, p *wire.Proxy, params ...string) *sql.DB {
	for i, param := range params {
		name, value, _ := strings.Cut(param, "=")
		params[i] = name + "=" + url.QueryEscape(value)
	}
	dsn := e.server.DSN(e.database, strings.Join(params, "&"))
	dsn = strings.Replace(dsn, e.server.Addr(), p.Addr(), 1)
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// sessions are what a DSN can ask of the session. The statements must be right,
// and cost the same, under each.
var sessions = map[string][]string{
	"default":               {},
	"interpolateParams":     {"interpolateParams=true"},
	"clientFoundRows":       {"clientFoundRows=true"},
	"parseTime":             {"parseTime=true"},
	"parseTime, loc":        {"parseTime=true", "loc=America/New_York"},
	"time_zone east":        {"time_zone='+12:45'", "parseTime=true", "loc=Asia/Tokyo"},
	"time_zone west":        {"time_zone='-11:30'"},
	"sql_mode none":         {"sql_mode=''"},
	"sql_mode ANSI":         {"sql_mode='ANSI,ANSI_QUOTES'"},
	"sql_mode backslash":    {"sql_mode='NO_BACKSLASH_ESCAPES'"},
	"sql_mode strict":       {"sql_mode='STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,ONLY_FULL_GROUP_BY'"},
	"sql_mode pads":         {"sql_mode='PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,PIPES_AS_CONCAT,REAL_AS_FLOAT,NO_UNSIGNED_SUBTRACTION,IGNORE_SPACE'"},
	"sql_mode truncates":    {"sql_mode='TIME_TRUNCATE_FRACTIONAL'"},
	"sql_mode at once":      {"sql_mode='SIMULTANEOUS_ASSIGNMENT'"},
	"sql_mode Oracle":       {"sql_mode='ORACLE'"},
	"sql_mode SQL Server":   {"sql_mode='MSSQL'"},
	"read uncommitted":      {"isolation=READ-UNCOMMITTED"},
	"read committed":        {"isolation=READ-COMMITTED"},
	"repeatable read":       {"isolation=REPEATABLE-READ"},
	"serializable":          {"isolation=SERIALIZABLE"},
	"latin1":                {"charset=latin1"},
	"gbk":                   {"charset=gbk"},
	"sjis":                  {"charset=sjis"},
	"utf8mb4_bin":           {"charset=utf8mb4", "collation=utf8mb4_bin"},
	"utf8mb4_turkish_ci":    {"collation=utf8mb4_turkish_ci"},
	"compress":              {"compress=true"},
	"multiStatements":       {"multiStatements=true"},
	"rejectReadOnly":        {"rejectReadOnly=true"},
	"columnsWithAlias":      {"columnsWithAlias=true"},
	"no liveness check":     {"checkConnLiveness=false"},
	"sql_safe_updates":      {"sql_safe_updates=1"},
	"sql_select_limit":      {"sql_select_limit=1"},
	"completion_type CHAIN": {"completion_type=1"},
	"completion_type ends":  {"completion_type=2"},
	"old lock timeout":      {"innodb_lock_wait_timeout=1"},
	"big_tables, no unique": {"unique_checks=0", "foreign_key_checks=0"},
	"sql_auto_is_null":      {"sql_auto_is_null=1"},
	"div_precision":         {"div_precision_increment=0"},
	"last insert id":        {"auto_increment_increment=7", "auto_increment_offset=3"},
	"empty is NULL":         {"sql_mode='EMPTY_STRING_IS_NULL'"},
	"no index extensions":   {"optimizer_switch='use_index_extensions=off'"},
	"no extended keys":      {"optimizer_switch='extended_keys=off'"},
	"subqueries derived":    {"optimizer_switch='subquery_to_derived=on'"},
	"connection in utf16":   {"character_set_connection=utf16"},
}

// onlyOn names the parameters that one kind of server has.
var onlyOn = map[string]string{
	"sql_mode truncates": "mysql", "sql_mode at once": "mariadb", "sql_mode Oracle": "mariadb", "sql_mode SQL Server": "mariadb",
	"empty is NULL": "mariadb", "no extended keys": "mariadb", "no index extensions": "mysql", "subqueries derived": "mysql",
}

func (e env) session(t testing.TB, p *wire.Proxy, name string) *sql.DB {
	params := append([]string(nil), sessions[name]...)
	for i, param := range params {
		if level, ok := strings.CutPrefix(param, "isolation="); ok {
			params[i], _ = url.QueryUnescape(isolation(e, level))
		}
	}
	return e.through(t, p, params...)
}

// One pass through everything, on every session: with what it costs on the wire.
func TestSessions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for name := range sessions {
			if kind := onlyOn[name]; kind != "" && kind != e.server.Kind {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				testSession(t, e, name)
			})
		}
	})
}

// testSharedInSession shares a lock, makes an exclusive request wait for it, and makes an
// exclusive hold shared.
func testSharedInSession(t *testing.T, l, other *mysqllock.Locker, db *sql.DB, name string) {
	mine, theirs := rlock(t, l, name, time.Minute), rlock(t, other, name, time.Minute)
	_, err := l.TryLock(ctx, name, 0, time.Minute)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.Len(t, requireHeld(t, l, name, true).Holders, 2)
	writer := try(func() (*mysqllock.Lock, error) { return l.TryLock(ctx, name, 20*time.Second, mysqllock.AutoRenew) })
	writer.requireWaits(t, 100*time.Millisecond)
	tx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, mine.Guard(ctx, tx))
	require.NoError(t, tx.Commit())
	require.NoError(t, errors.Join(mine.Unlock(), theirs.Unlock()))
	k := writer.lock(t)
	require.Greater(t, k.Token(), mine.Token())
	shared, err := l.TryRLock(k.Context(), name, 0, time.Minute)
	require.NoError(t, err)
	require.NoError(t, k.Unlock())
	require.NoError(t, rlock(t, other, name, time.Minute).Unlock())
	freed, err := other.ForceUnlock(ctx, name)
	require.NoError(t, err)
	require.True(t, freed)
	require.ErrorIs(t, shared.Unlock(), mysqllock.ErrLost)
}

// testPermitsInSession takes permits, waits for one, keeps one after its Unlock, and gives one to
// another process.
func testPermitsInSession(t *testing.T, l, other *mysqllock.Locker, db *sql.DB, name string) {
	here, there := l.Semaphore(name, 2), other.Semaphore(name, 2)
	mine, theirs := permit(t, here, time.Minute), permit(t, there, time.Minute)
	requireNoPermit(t, here)
	holders, err := here.Holders(ctx)
	require.NoError(t, err)
	require.Len(t, holders, 2)
	next := try(func() (*mysqllock.Lock, error) { return here.TryAcquire(ctx, 20*time.Second, mysqllock.AutoRenew) })
	next.requireWaits(t, 100*time.Millisecond)
	ticket, err := mine.Detach(ctx, time.Minute)
	require.NoError(t, err)
	mine, err = other.Attach(ctx, ticket, time.Minute)
	require.NoError(t, err)
	require.NoError(t, errors.Join(mine.UnlockAfter(50*time.Millisecond), theirs.Unlock()))
	k := next.lock(t)
	tx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, k.Guard(ctx, tx))
	require.NoError(t, tx.Commit())
	require.NoError(t, k.Unlock())
}

func testSession(t *testing.T, e env, session string) {
	lock := "naïve '" + session + `' \`
	proxy := wire.New(t, e.server.Addr())
	db := e.session(t, proxy, session)
	l := newLocker(t, db, mysqllock.WithLease(4*time.Second), mysqllock.WithIdentity("ø'"+`"\`))
	other := e.locker(t)

	costs := func(what string, commands, roundTrips int, fn func()) {
		t.Helper()
		if session == "completion_type CHAIN" && what != "guard" {
			commands, roundTrips = 2*commands, 2*roundTrips // it ends what the application may have left open
		}
		proxy.Reset()
		fn()
		assert.Equal(t, commands, proxy.Commands(), "commands: %s", what)
		assert.Equal(t, roundTrips, proxy.RoundTrips(), "round trips: %s", what)
	}
	try := func(owner context.Context, lease time.Duration) *mysqllock.Lock {
		t.Helper()
		k, err := l.TryLock(owner, lock, 0, lease)
		require.NoError(t, err)
		return k
	}
	refused := func() {
		t.Helper()
		_, err := l.TryLock(ctx, lock, 0, time.Minute)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	}

	// The first grant ever looks at the session and inserts the row.
	first := try(ctx, mysqllock.AutoRenew)
	require.NoError(t, first.Unlock())
	var k *mysqllock.Lock
	costs("acquire", 1, 1, func() { k = try(ctx, time.Minute) })
	require.Greater(t, k.Token(), first.Token())
	costs("re-entry and its unlock", 0, 0, func() { require.NoError(t, try(k.Context(), time.Minute).Unlock()) })
	costs("extend", 1, 1, func() { require.NoError(t, k.Extend(ctx, 2*time.Minute)) })
	info := requireHeld(t, other, lock, true)
	require.Equal(t, "ø'"+`"\`, info.Holder)
	require.InDelta(t, 120, info.ExpiresIn.Seconds(), 5)
	costs("inspect", 1, 1, func() {
		owned, err := l.Inspect(ctx, lock)
		require.NoError(t, err)
		require.Equal(t, info.ExpiresAt, owned.ExpiresAt)
		require.Equal(t, info.AcquiredAt, owned.AcquiredAt)
		require.Equal(t, info.Holder, owned.Holder)
	})
	costs("release", 1, 1, func() { require.NoError(t, k.Unlock()) })
	requireHeld(t, other, lock, false)

	victim := e.locker(t)
	held := acquire(t, victim, lock, mysqllock.AutoRenew)
	costs("refused", 1, 1, refused)
	for i := range 3 { // sql_select_limit
		acquire(t, victim, fmt.Sprint(lock, i), mysqllock.AutoRenew)
	}
	list, err := l.List(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 4)
	freed, err := l.ForceUnlock(ctx, lock)
	require.NoError(t, err)
	require.True(t, freed)

	// More than one in a renewal.
	beside := acquire(t, l, lock+" beside", mysqllock.AutoRenew)
	// A guard of a transaction of that session; renewals beside it, and a takeover that waits for it.
	k = try(ctx, mysqllock.AutoRenew)
	require.Greater(t, k.Token(), held.Token())
	tx, err := db.Begin()
	require.NoError(t, err)
	costs("guard", 1, 1, func() { require.NoError(t, k.Guard(ctx, tx)) })
	renewals := l.Stats().Renewals
	eventually(t, "renewals under a guard", func() bool { return l.Stats().Renewals >= renewals+2 }) // one of each
	require.NoError(t, k.Err())
	require.NoError(t, beside.Err())
	require.NoError(t, k.Unlock())
	require.NoError(t, beside.Unlock())
	_, err = other.TryLock(ctx, lock, 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.NoError(t, tx.Commit()) // with CHAIN, the next transaction begins
	next := acquire(t, other, lock, 10*time.Millisecond)
	require.Greater(t, next.Token(), k.Token())

	// Expired: taken over in one statement.
	requireOver(t, next, mysqllock.ErrLost)
	time.Sleep(10 * time.Millisecond)
	costs("takeover", 1, 1, func() { k = try(ctx, mysqllock.AutoRenew) })
	require.Greater(t, k.Token(), next.Token())
	require.NoError(t, k.Unlock())
	_, err = l.Purge(ctx, time.Hour)
	require.NoError(t, err)
	if session != "empty is NULL" { // there the server refuses the table
		require.NoError(t, l.CreateTable(ctx))
	}
	// Several locks: without rows, with rows, and both.
	for i, names := range [][]string{{lock + "a", lock + "B"}, {lock + "a", lock + "B"}, {lock + "a", lock + "b", lock + "ß"}} {
		var s *mysqllock.LockSet
		acquireAll := func() {
			s, err = l.TryLockAll(ctx, names, 0, time.Minute)
			require.NoError(t, err)
		}
		if session == "completion_type CHAIN" && i == 1 {
			acquireAll() // both statements on one connection, which is cleared once
		} else {
			costs("acquire all", 2, 2, acquireAll)
		}
		for _, name := range names {
			require.Equal(t, s.Lock(names[0]).Token(), requireHeld(t, other, name, true).Token)
		}
		costs("release all", 1, 1, func() { require.NoError(t, s.Unlock()) })
	}
	testSharedInSession(t, l, other, db, lock)
	testPermitsInSession(t, l, other, db, lock)
	// The sessions of the pool are as they were: nothing is left open in them.
	k = try(ctx, mysqllock.AutoRenew)
	requireHeld(t, other, lock, true)
	require.NoError(t, k.Unlock())

	// Waiting for another process, and making it wait.
	there, here := e.locker(t, rarely), newLocker(t, db, rarely)
	for range 2 {
		k = acquire(t, there, lock, mysqllock.AutoRenew)
		got := waiting(t, here, lock, 1)
		start := time.Now()
		require.NoError(t, k.Unlock())
		k = get(t, got)
		got = waiting(t, there, lock, 1)
		require.NoError(t, k.Unlock())
		require.NoError(t, get(t, got).Unlock())
		require.Less(t, time.Since(start), 4*time.Second, "signalled, not polled")
	}
	// Who gives up is not waited for.
	k = acquire(t, there, lock, mysqllock.AutoRenew)
	_, err = here.TryLock(ctx, lock, 30*time.Millisecond, mysqllock.AutoRenew)
	if !errors.Is(err, mysqllock.ErrUnavailable) { // the machine may be too busy for an answer in 100 ms
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	}
	eventually(t, "still listed", func() bool { return requireHeld(t, there, lock, true).Waiters == 0 })
	// One statement where the row does not promise enough.
	require.NoError(t, k.Unlock())
	short := acquire(t, here, lock, 3*time.Second)
	passed := make(chan *mysqllock.Lock, 1)
	go func() { passed <- acquire(t, here, lock, time.Minute) }()
	eventually(t, "not waiting", func() bool { return here.Stats().Waiting == 1 })
	require.NoError(t, short.Unlock())
	k = get(t, passed)
	require.Greater(t, k.Token(), short.Token())
	require.Equal(t, k.Token(), requireHeld(t, there, lock, true).Token)
	require.NoError(t, k.Unlock())
}

// Sessions under which a lock would be wrong are refused.
func TestSessionsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		readOnly := "transaction_read_only=1"
		if e.server.Kind == "mariadb" {
			readOnly = "tx_read_only=1"
		}
		for param, why := range map[string]string{
			"autocommit=0": "autocommit", "timestamp=1000000000": "timestamp", "timestamp=UNIX_TIMESTAMP()": "timestamp", readOnly: "read-only",
		} {
			l := newLocker(t, e.db(t, param))
			for range 2 {
				_, err := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
				require.ErrorContains(t, err, why)
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
			}
			requireHeld(t, e.locker(t), "x", false)
		}
		// One that turns bad later is refused too: by what the driver knows of it, or by
		// the statements.
		opaque := func(conn driver.Conn) driver.Conn { return opaqueConn{conn} }
		for open, db := range map[int]*sql.DB{1: e.db(t, ""), 4: e.wrappedBy(t, opaque)} { // in a pool of one, none waits for a row
			db.SetMaxOpenConns(open)
			l := newLocker(t, db)
			require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
			_, err := db.Exec("SET autocommit = 0")
			require.NoError(t, err)
			for _, name := range []string{"x", "new"} {
				_, err = l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
				require.ErrorContains(t, err, "autocommit")
				requireHeld(t, e.locker(t), name, false)
			}
		}
	})
}

// A server without SKIP LOCKED is refused at the first use. It took locks, and lost
// each of them after one lease.
func TestServerTooOld(t *testing.T) {
	t.Parallel()
	const version = "10.5.26-MariaDB-log"
	server := mysqltest.New(t, "mariadb", "--version="+version)
	e := env{server, mysqltest.NewDatabase(t, server)}
	_, err := e.db(t, "").Exec(mysqllock.Schema)
	require.NoError(t, err)
	l := e.locker(t)
	for _, use := range []func() error{
		func() error { _, err := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew); return err },
		func() error { _, err := l.Inspect(ctx, "x"); return err },
		func() error { return l.CreateTable(ctx) },
	} {
		err := use()
		require.ErrorContains(t, err, "requires MySQL 8.0 or MariaDB 10.6, or later; the server is \""+version+"\"")
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
	}
}

// Errors match the sentinel of their class, and only that.
func TestErrors(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		_, err := e.locker(t, mysqllock.WithTable("other")).TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNoTable)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorContains(t, err, "CreateTable")
		var refused *mysql.MySQLError
		require.ErrorAs(t, err, &refused)

		l := e.locker(t)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		_, err = e.db(t, "").Exec("RENAME TABLE mysqllock TO hidden")
		require.NoError(t, err)
		for _, err := range []error{k.Extend(ctx, time.Minute), k.Unlock()} {
			require.ErrorIs(t, err, mysqllock.ErrNoTable)
			require.NotContains(t, err.Error(), "UPDATE ", "no SQL text")
		}
		_, err = l.List(ctx)
		require.ErrorIs(t, err, mysqllock.ErrNoTable)

		// A waiter also gets the error when the table is dropped.
		_, err = e.db(t, "").Exec("RENAME TABLE hidden TO mysqllock")
		require.NoError(t, err)
		acquire(t, e.locker(t), "y", mysqllock.AutoRenew)
		told := make(chan error)
		go func() {
			_, err := l.TryLock(ctx, "y", time.Minute, mysqllock.AutoRenew)
			told <- err
		}()
		eventually(t, "waiting", func() bool { return l.Stats().Waiting == 1 })
		_, err = e.db(t, "").Exec("RENAME TABLE mysqllock TO hidden")
		require.NoError(t, err)
		require.ErrorIs(t, <-told, mysqllock.ErrNoTable)
		_, err = e.db(t, "").Exec("RENAME TABLE hidden TO mysqllock")
		require.NoError(t, err)

		closed := e.db(t, "")
		l = newLocker(t, closed)
		require.NoError(t, closed.Close())
		_, err = l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
		require.ErrorContains(t, err, "database is closed")
	})
}

func TestTableInAnotherDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, err := sql.Open("mysql", e.server.DSN("", ""))
		require.NoError(t, err)
		defer db.Close()
		l := newLocker(t, db, mysqllock.WithTable(e.database+".my-locks$"))
		require.NoError(t, l.CreateTable(ctx))
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		_, err = l.Purge(ctx, 0)
		require.NoError(t, err)
	})
}

// A table may be called what a statement calls something else.
func TestTableNamedLikeAnAlias(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, name := range []string{"w", "s", "l", "a", "mine"} {
			l := e.locker(t, mysqllock.WithTable(name))
			require.NoError(t, l.CreateTable(ctx))
			for range 2 { // a first grant, and one of a row
				require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
			}
		}
	})
}

// The privileges that the documentation names suffice, and nothing is asked of
// the server that needs more.
func TestPrivileges(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		account := func(privileges string) *sql.DB { return openAs(t, e.account(t, privileges, "mysqllock")) }
		db := account("SELECT, INSERT, UPDATE")
		l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		require.NoError(t, k.Extend(ctx, time.Second))
		tx, err := db.Begin()
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, tx.Commit())
		eventually(t, "renewal", func() bool { return l.Stats().Renewals > 0 })
		_, err = l.List(ctx)
		require.NoError(t, err)
		_, err = l.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		_, err = l.Purge(ctx, 0)
		require.ErrorContains(t, err, "DELETE for Purge")
		require.NoError(t, l.CreateTable(ctx), "which exists")
		require.ErrorContains(t, newLocker(t, db, mysqllock.WithTable("missing")).CreateTable(ctx), "CREATE for CreateTable")

		// They suffice to wake each other; of another account, the signal is denied,
		// and the poller looks.
		other := e.locker(t)
		for _, to := range []*mysqllock.Locker{newLocker(t, db), newLocker(t, account("SELECT, INSERT, UPDATE"))} {
			k := acquire(t, l, "signalled", mysqllock.AutoRenew)
			got := waiting(t, to, "signalled", 1)
			require.NoError(t, k.Unlock())
			start := time.Now()
			k = get(t, got)
			require.Less(t, time.Since(start), 5*time.Second)
			require.NoError(t, k.Unlock())
			require.Zero(t, requireHeld(t, other, "signalled", false).Waiters)
		}

		all := newLocker(t, account("SELECT, INSERT, UPDATE, DELETE, CREATE"))
		require.NoError(t, all.CreateTable(ctx))
		_, err = all.Purge(ctx, 0)
		require.NoError(t, err)

		_, err = newLocker(t, account("SELECT")).TryLock(ctx, "x", time.Second, mysqllock.AutoRenew)
		require.ErrorContains(t, err, "privilege is missing")
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NotContains(t, err.Error(), password)
	})
}

// The table is what the code and the documentation take it to be.
func TestSchema(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		columns := map[string]string{}
		rows, err := db.Query(`SELECT column_name, column_type, column_comment FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = 'mysqllock'`)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var name, kind, comment string
			require.NoError(t, rows.Scan(&name, &kind, &comment))
			columns[name] = kind
			require.NotEmpty(t, comment, name)
		}
		require.Equal(t, map[string]string{
			"name": "varbinary(300)", "owner": "varchar(64)", "holder": "varchar(255)",
			// With a display width on MariaDB.
			"mode": columns["mode"], "holds": columns["holds"], "token": columns["token"], "session": columns["session"],
			"waiters":     "varchar(1024)",
			"acquired_at": "datetime(6)", "expires_at": "datetime(6)", "released_at": "datetime(6)", "name_text": "varchar(255)",
		}, columns)
		require.Contains(t, columns["holds"], "unsigned")
		require.Contains(t, columns["token"], "bigint")
		require.Contains(t, columns["session"], "bigint")

		// Schema is one statement, which CreateTable applies.
		l := e.locker(t)
		_, err = db.Exec("DROP TABLE mysqllock")
		require.NoError(t, err)
		_, err = db.Exec(mysqllock.Schema)
		require.NoError(t, err)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		n, err := l.Purge(ctx, 0) // makes the high-water row that CreateTable would have made
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

// A name of any length can be held in any mode: name_text has room for what the name of its row
// is in text.
func TestLongestName(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for _, letter := range []string{"x", "é"} {
			name := strings.Repeat(letter, 255/len(letter))
			k, err := l.TryRLock(ctx, name, 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.NoError(t, k.Unlock())
			k, err = l.Semaphore(name, 10_000).TryAcquire(ctx, 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.NoError(t, k.Unlock())
			require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
			var text string
			require.NoError(t, e.db(t, "").QueryRow("SELECT GROUP_CONCAT(DISTINCT name_text) FROM mysqllock WHERE name LIKE CONCAT(?, '%')", name).Scan(&text))
			require.Equal(t, name, text)
		}
	})
}

// The query that schema.sql gives to people shows names, holders, modes and times as text: of
// binary columns, clients show hexadecimal digits.
func TestQueryForPeople(t *testing.T) {
	query := strings.ReplaceAll(regexp.MustCompile("(?s)--   (SELECT .*?);\n").FindStringSubmatch(mysqllock.Schema)[1], "--", "")
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithIdentity("web-1"))
		acquire(t, l, "ключ 😀", mysqllock.AutoRenew)
		require.NoError(t, acquire(t, l, "released", mysqllock.AutoRenew).Unlock())
		rlock(t, l, "s 😀", mysqllock.AutoRenew)
		_, err := l.Semaphore("p 😀", 1).TryAcquire(ctx, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = e.locker(t).Semaphore("p 😀", 1).TryAcquire(ctx, 50*time.Millisecond, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired) // and has left the row of a wait queue
		rows, err := e.db(t, "").Query(query)
		require.NoError(t, err, query)
		defer rows.Close()
		types, err := rows.ColumnTypes()
		require.NoError(t, err)
		columns := make([]sql.NullString, len(types))
		targets := make([]any, len(types))
		for i := range columns {
			targets[i] = &columns[i]
			require.NotContains(t, types[i].DatabaseTypeName(), "BINARY", types[i].Name())
		}
		found := map[string]string{}
		for rows.Next() {
			require.NoError(t, rows.Scan(targets...))
			found[columns[0].String] = columns[4].String
			require.Equal(t, "web-1", columns[1].String)
			require.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}$`, columns[2].String)
		}
		require.Equal(t, map[string]string{"ключ 😀": "exclusive", "s 😀": "shared", "p 😀": "slot 1"}, found)
	})
}

// Statements use indexes and lock the rows that they name only, however small
// or large the table is.
func TestRowLocks(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		for _, rows := range []int{0, 2000} {
			if rows > 0 {
				_, err := db.Exec(fmt.Sprintf("INSERT INTO mysqllock (name) WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000) SELECT CONCAT('a', n) FROM s UNION ALL SELECT CONCAT('z', n) FROM s LIMIT %d", rows))
				require.NoError(t, err)
				_, err = db.Exec("ANALYZE TABLE mysqllock")
				require.NoError(t, err)
			}
			l := e.locker(t, mysqllock.WithLease(3*time.Second))
			locks := []*mysqllock.Lock{}
			for _, name := range []string{"b1", "b 'hex' ☃", "y", "stuck", "~"} {
				locks = append(locks, acquire(t, l, fmt.Sprint(name, rows), mysqllock.AutoRenew))
			}
			// A transaction has locked one of our rows, and one that is free.
			tx, err := db.Begin()
			require.NoError(t, err)
			for _, name := range []string{locks[3].Name(), ""} {
				require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = ? FOR UPDATE", name).Scan(&name))
			}
			requireOver(t, locks[3], mysqllock.ErrLost)
			for i, k := range locks {
				if i != 3 {
					require.NoError(t, k.Err(), "row %s", k.Name())
					require.NoError(t, k.Unlock())
				}
			}
			start := time.Now()
			_, err = l.TryLock(ctx, locks[3].Name(), 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.Less(t, time.Since(start), time.Second)
			require.NoError(t, tx.Rollback())
			eventually(t, "the statement left behind is undone", func() bool {
				k, err := e.locker(t).TryLock(ctx, locks[3].Name(), 0, mysqllock.AutoRenew)
				return err == nil && k.Unlock() == nil
			})
		}
	})
}

// First grants, grants of purged names and grants of known names, all at once: every call is
// served, and nothing but acquires and releases costs a statement.
func TestContention(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var wg sync.WaitGroup
		for range 8 {
			l := e.locker(t, mysqllock.WithPollInterval(20*time.Millisecond))
			for range 2 {
				wg.Go(func() {
					for i := range 15 {
						k, err := l.TryLock(ctx, fmt.Sprint("n", i), time.Minute, time.Minute)
						if assert.NoError(t, err) {
							assert.NoError(t, k.Unlock())
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

// With a binary log, as every primary has one.
func TestBinaryLog(t *testing.T) {
	t.Parallel()
	for kind, flags := range map[string][]string{
		"mysql":   {"--log-bin=bin", "--server-id=1"},
		"mariadb": {"--log-bin=bin", "--server-id=1", "--binlog-format=MIXED"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind, flags...)
			e := env{server, mysqltest.NewDatabase(t, server)}
			require.NoError(t, e.locker(t).CreateTable(ctx))
			var logged bool
			require.NoError(t, e.db(t, "").QueryRow("SELECT @@log_bin").Scan(&logged))
			require.True(t, logged)
			testSession(t, e, "default")
			testSession(t, e, "read committed")
		})
	}
}
