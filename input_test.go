package mysqllock_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// The fuzz targets run their seeds with the suite, and longer by make fuzz.

// patient is how long a free lock is waited for on a machine that stands still.
const patient = 10 * time.Second

// databases returns one on every server, for all inputs of a fuzz target.
func databases(f *testing.F) map[string]env {
	envs := map[string]env{}
	for _, kind := range mysqltest.Kinds {
		s := mysqltest.Shared(f, kind)
		e := env{server: s, database: mysqltest.NewDatabase(f, s)}
		require.NoError(f, e.locker(f).CreateTable(ctx))
		envs[kind] = e
	}
	return envs
}

// confined returns an account that can do everything in the database, and
// nothing outside it.
func (e env) confined(t testing.TB) *mysql.Config {
	return e.account(t, "ALL PRIVILEGES", "*")
}

// account creates an account with privileges on a table of the database.
func (e env) account(t testing.TB, privileges, table string) *mysql.Config {
	root := e.db(t, "")
	c, err := mysql.ParseDSN(e.server.DSN(e.database, ""))
	require.NoError(t, err)
	c.User, c.Passwd = fmt.Sprintf("u%d", time.Now().UnixNano()%1e12), password
	user := c.User + "@'%'"
	for _, statement := range []string{
		"CREATE USER " + user + " IDENTIFIED BY '" + password + "'",
		"GRANT " + privileges + " ON `" + e.database + "`." + table + " TO " + user,
	} {
		_, err := root.Exec(statement)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_, err := root.Exec("DROP USER " + user)
		require.NoError(t, err)
	})
	return c
}

const password = "pass:w/ord@secret"

func openAs(t testing.TB, c *mysql.Config) *sql.DB {
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}

// hostile are names and labels that a careless statement, log or terminal falls
// for.
var hostile = []string{
	"order:42", "Foo", "foo", "foo ", " foo", "foo\u00a0", "fóó", "fo\u0301o\u0301", "ﬀ", "ß", "ı", "İ", "表", "😀", "👩‍👩‍👧", "e\u0301\u0323",
	"'", `"`, "`", `\`, `\'`, "''", "--", "/*", "/*!", "*/", ";", "#", "%", "_", "?", ":x", "@x", "{name}", "{", "}", "x''", "0x00", "NULL", "",
	"' OR '1'='1", "'; DROP TABLE mysqllock; -- ", "a') OR 1=1 -- ", "\u02bc OR 1=1", "\xbf\x27 OR 1=1", "\x83\x5c'",
	"\x00", "a\x00b", "\n", "a\r\nlevel=ERROR msg=forged", "\t", "\x1b[2J", "\x7f", "\u0080", "\u009b2J", "\u0085", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80",
	"\u202egnp.exe", "\u2066x\u2069", "\u200b", "\u200d", "\ufeff", "\u2028level=ERROR", "\u2029", "\ufffd", "\ufffe", "\U000e0041", "\U0010ffff",
	"msg=forged level=ERROR", `","level":"ERROR","msg":"forged`, "%!s(MISSING)", "%n%s%x",
	strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("é", 127), strings.Repeat("é", 128), strings.Repeat("😀", 63) + "abc",
	strings.Repeat("\u202e", 85), strings.Repeat("'", 255), strings.Repeat(`\`, 255), strings.Repeat("a", 254) + " ", strings.Repeat("a", 5000),
}

// valid reports whether a name or label is valid as documented.
func valid(s string) bool {
	if len(s) < 1 || len(s) > 255 || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < 0x20 || 0x7f <= r && r < 0xa0 {
			return false
		}
	}
	return true
}

// requireSafe requires that a message is short, and that a terminal shows it as
// it is: no escape, no line, no text from right to left is in it.
func requireSafe(t testing.TB, message string) {
	t.Helper()
	require.Less(t, len(message), 4000)
	require.True(t, utf8.ValidString(message), "%q", message)
	for _, r := range message {
		require.True(t, strconv.IsPrint(r), "%U in %q", r, message)
	}
}

// journal is a log in the two formats of slog.
type journal struct {
	mu         sync.Mutex // guards both buffers
	text, json bytes.Buffer
}

func (j *journal) logger() *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	return slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(lockedWriter{&j.mu, &j.text}, options),
		slog.NewJSONHandler(lockedWriter{&j.mu, &j.json}, options),
	))
}

type lockedWriter struct {
	mu  *sync.Mutex
	buf *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// take returns what was logged since the last call, line by line.
func (j *journal) take() (text, json []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	text, json = lines(j.text.String()), lines(j.json.String())
	j.text.Reset()
	j.json.Reset()
	return text, json
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// lookalikes are other names that a comparison of text could take for name.
func lookalikes(name string) []string {
	all := []string{
		name + " ", " " + name, name + "\u0301", name + "\u200b", name + "\u00a0", name + name,
		strings.TrimRight(name, " "), strings.TrimSpace(name), strings.ToUpper(name), strings.ToLower(name), strings.ToTitle(name),
		strings.ReplaceAll(name, "é", "e\u0301"), strings.ReplaceAll(name, "e\u0301", "é"), strings.ReplaceAll(name, "ß", "ss"),
		strings.ReplaceAll(name, "'", "''"), strings.ReplaceAll(name, `\`, `\\`), fmt.Sprintf("x'%x'", name), fmt.Sprintf("%x", name),
		name[:len(name)-1], name[:len(name)-1] + "?", name[1:],
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == name || !valid(s) })
	slices.Sort(all)
	return slices.Compact(all)
}

// A valid name locks itself and nothing else, and comes back byte by byte; an
// invalid one locks nothing; neither does harm where it is shown.
func FuzzName(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	type side struct {
		holder, other *mysqllock.Locker
		journal       *journal
	}
	sides := map[string]side{}
	for kind, e := range databases(f) {
		j := &journal{}
		db := openAs(f, e.confined(f))
		sides[kind] = side{newLocker(f, db, mysqllock.WithLogger(j.logger())), newLocker(f, db), j}
	}
	f.Fuzz(func(t *testing.T, name string) {
		for kind, s := range sides {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				k, err := s.holder.TryLock(ctx, name, patient, mysqllock.AutoRenew)
				if !valid(name) {
					_, inspect := s.holder.Inspect(ctx, name)
					_, force := s.holder.ForceUnlock(ctx, name)
					do := s.holder.Do(ctx, name, 0, mysqllock.AutoRenew, nil)
					for _, err := range []error{err, inspect, force, do} {
						require.ErrorIs(t, err, mysqllock.ErrInvalidName)
						requireSafe(t, err.Error())
					}
					return
				}
				require.NoError(t, err)
				held := map[string]*mysqllock.Lock{name: k}
				for _, like := range lookalikes(name) {
					k, err := s.other.TryLock(ctx, like, patient, mysqllock.AutoRenew)
					require.NoError(t, err, "%q is not %q", like, name)
					held[like] = k
				}
				_, err = s.other.TryLock(ctx, name, 0, mysqllock.AutoRenew)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				requireSafe(t, err.Error())
				list, err := s.other.List(ctx)
				require.NoError(t, err)
				require.Len(t, list, len(held))
				for _, info := range list {
					require.Contains(t, held, info.Name)
					require.Equal(t, held[info.Name].Token(), info.Token)
				}
				require.Equal(t, k.Token(), requireHeld(t, s.other, name, true).Token)
				require.Equal(t, name, requireHeld(t, s.other, name, true).Name)

				// The loss is an error, and a line of the log.
				freed, err := s.holder.ForceUnlock(ctx, name)
				require.NoError(t, err)
				require.True(t, freed)
				err = k.Unlock()
				require.ErrorIs(t, err, mysqllock.ErrLost)
				requireSafe(t, err.Error())
				text, jsons := s.journal.take()
				require.Len(t, text, 1)
				requireSafe(t, text[0])
				require.Len(t, jsons, 1)
				require.False(t, strings.ContainsFunc(jsons[0], func(r rune) bool { return r < ' ' || 0x7f <= r && r < 0xa0 || r == '\u2028' || r == '\u2029' }), "%q", jsons[0])
				var record struct{ Level, Msg, Name string }
				require.NoError(t, json.Unmarshal([]byte(jsons[0]), &record))
				require.Equal(t, "ERROR", record.Level)
				require.Equal(t, name, record.Name)

				for like, k := range held {
					if like != name {
						require.NoError(t, k.Unlock())
					}
				}
				purged, err := s.other.Purge(ctx, 0)
				require.NoError(t, err)
				require.EqualValues(t, len(held), purged)
			})
		}
	})
}

// A holder's label is shown as it was given, or refused.
func FuzzIdentity(f *testing.F) {
	for _, label := range hostile {
		f.Add(label)
	}
	dbs := map[string]*sql.DB{}
	others := map[string]*mysqllock.Locker{}
	for kind, e := range databases(f) {
		dbs[kind], others[kind] = openAs(f, e.confined(f)), e.locker(f)
	}
	f.Fuzz(func(t *testing.T, label string) {
		for kind, db := range dbs {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				j := &journal{}
				l, err := mysqllock.New(db, mysqllock.WithIdentity(label), mysqllock.WithLogger(j.logger()))
				if !valid(label) {
					require.ErrorContains(t, err, "WithIdentity")
					requireSafe(t, err.Error())
					return
				}
				require.NoError(t, err)
				k := acquire(t, l, "x", mysqllock.AutoRenew)
				require.Equal(t, label, requireHeld(t, others[kind], "x", true).Holder)
				var holder string
				require.NoError(t, db.QueryRow("SELECT holder FROM mysqllock WHERE name = 'x'").Scan(&holder))
				require.Equal(t, label, holder)
				_, err = others[kind].TryLock(ctx, "x", 0, mysqllock.AutoRenew)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				requireSafe(t, err.Error())
				require.NoError(t, k.Unlock())
				require.NoError(t, l.Close())
				text, _ := j.take()
				require.Empty(t, text)
			})
		}
	})
}

// New refuses a table's name, or every statement means the table of that name.
func FuzzTable(f *testing.F) {
	for _, name := range hostile {
		f.Add(name)
	}
	for _, name := range []string{
		"mysqllock", "Locks", "my-locks", "$", "$x", "-", "--", "0", "42", "1e5", "0x1F", "a.b", "a.b.c", ".", ".a", "a.", "`a`", "a`.`b",
		// What the statements call their own.
		"w", "s", "l", "a", "mine", "hit", "name", "owner", "token", "guard", "waiters", "trusted",
		"select", "table", "NULL", "group", "rank", "mysql.user", "information_schema.tables", "mysql.mysqllock",
		strings.Repeat("t", 64), strings.Repeat("t", 65),
	} {
		f.Add(name)
	}
	type side struct {
		env
		db *sql.DB
	}
	sides := map[string]side{}
	for kind, e := range databases(f) {
		sides[kind] = side{e, openAs(f, e.confined(f))}
	}
	f.Fuzz(func(t *testing.T, name string) {
		for kind, s := range sides {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				for _, table := range []string{name, s.database + "." + name} {
					l, err := mysqllock.New(s.db, mysqllock.WithTable(table))
					if err != nil {
						require.ErrorContains(t, err, "WithTable")
						requireSafe(t, err.Error())
						continue
					}
					defer l.Close()
					if err := l.CreateTable(ctx); err != nil { // in a database that this account may not use
						require.Contains(t, table, ".")
						require.NotEqual(t, table, s.database+"."+name)
						requireSafe(t, err.Error())
						_, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
						require.Error(t, err)
						require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
						requireSafe(t, err.Error())
						continue
					}
					testTable(t, s.db, l, strings.TrimPrefix(table, s.database+"."))
				}
			})
		}
	})
}

// testTable uses the table with every kind of statement, and drops it.
func testTable(t *testing.T, db *sql.DB, l *mysqllock.Locker, table string) {
	quoted := "`" + strings.ReplaceAll(table, "`", "``") + "`"
	defer func() {
		if table != "mysqllock" {
			_, err := db.Exec("DROP TABLE " + quoted)
			require.NoError(t, err)
		}
	}()
	var n int
	require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND CAST(table_name AS BINARY) = ?", table).Scan(&n))
	require.Equal(t, 1, n, "%q", table)

	k := acquire(t, l, "x", mysqllock.AutoRenew)
	require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM "+quoted+" WHERE name = 'x'").Scan(&n))
	require.Equal(t, 1, n, "%q", table)
	require.NoError(t, k.Extend(ctx, time.Minute))
	tx, err := db.Begin()
	require.NoError(t, err)
	require.NoError(t, k.Guard(ctx, tx))
	require.NoError(t, tx.Commit())
	_, err = l.TryLock(ctx, "x", 10*time.Millisecond, mysqllock.AutoRenew) // is refused, waits, is removed
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	other := newLocker(t, db, mysqllock.WithTable(table))
	_, err = other.TryLock(ctx, "x", 10*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	list, err := other.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, k.Unlock())
	acquire(t, l, "y", mysqllock.AutoRenew)
	freed, err := other.ForceUnlock(ctx, "y")
	require.NoError(t, err)
	require.True(t, freed)
	acquire(t, l, "z", mysqllock.AutoRenew)
	require.NoError(t, l.Close()) // releases in a batch
	requireHeld(t, other, "z", false)
	// Purge passes over a row from whose list a waiter that left is being removed.
	eventually(t, "a waiter that left", func() bool { return requireHeld(t, other, "x", false).Waiters == 0 })
	purged, err := other.Purge(ctx, 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, purged)
	require.NoError(t, acquire(t, other, "x", mysqllock.AutoRenew).Unlock()) // a first row beside a high-water row
	_, err = other.Purge(ctx, 0)
	require.NoError(t, err)
	require.NoError(t, other.Close())
}

// refusing are settings under which a lock would be wrong, so that it must be
// refused.
var refusing = []string{"autocommit=0", "timestamp=1000000000", "tx_read_only=1", "transaction_read_only=1"}

// With any mixture of session settings in a DSN, locks are right or refused; bits choose from
// sessions and refusing.
func FuzzSession(f *testing.F) {
	names := slices.Sorted(maps.Keys(sessions))
	var all uint64
	for i := range names {
		all |= 1 << i
	}
	refused := func(i int) uint64 { return 1 << (len(names) + i) }
	require.Less(f, len(names)+len(refusing), 64)

	f.Add("", "", "", "", "", uint64(0))
	f.Add("", "", "", "", "", all)
	f.Add("", "", "", "", "", all>>1)
	for i := range refusing {
		f.Add("", "", "", "", "", refused(i))
		f.Add("gbk", "", "", "+09:00", "ANSI", all|refused(i))
	}
	f.Add("latin1", "latin1_swedish_ci", "Local", "SYSTEM", "TRADITIONAL", uint64(0))
	f.Add("gbk", "gbk_chinese_ci", "Asia/Shanghai", "+08:00", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES", uint64(0x5555555555))
	f.Add("sjis", "sjis_bin", "Asia/Tokyo", "+09:00", "PAD_CHAR_TO_FULL_LENGTH", uint64(0x2aaaaaaaaa))
	f.Add("binary", "binary", "UTC", "+13:00", "", uint64(0))
	f.Add("swe7", "", "", "", "", uint64(0))
	f.Add("utf16", "utf16_bin", "", "", "", uint64(0))
	f.Add("utf8mb4", "utf8mb4_unicode_ci", "Europe/London", "-13:59", "ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO", uint64(0xffff))
	f.Add("nonsense,utf8mb4", "utf8mb4_german2_ci", "", "+14:00", "ORACLE,EMPTY_STRING_IS_NULL", uint64(0))
	f.Add("nonsense", "nonsense", "No/Where", "nonsense", "nonsense", uint64(0))
	f.Add("'", "`", "\x00", "' OR 1", "'; DROP TABLE mysqllock; -- ", uint64(0))

	type side struct {
		env
		config *mysql.Config
		other  *mysqllock.Locker
	}
	sides := map[string]side{}
	for kind, e := range databases(f) {
		sides[kind] = side{e, e.confined(f), e.locker(f)}
	}
	f.Fuzz(func(t *testing.T, charset, collation, loc, zone, mode string, bits uint64) {
		for kind, s := range sides {
			params := map[string]string{}
			for i, name := range names {
				if bits&(1<<i) == 0 || onlyOn[name] != "" && onlyOn[name] != kind {
					continue
				}
				for _, param := range sessions[name] {
					if level, ok := strings.CutPrefix(param, "isolation="); ok {
						param, _ = url.QueryUnescape(isolation(s.env, level))
					}
					key, value, _ := strings.Cut(param, "=")
					params[key] = value
				}
			}
			wrong := false
			for i, param := range refusing {
				if bits&refused(i) != 0 && (!strings.Contains(param, "read_only") || strings.HasPrefix(param, "tx_") == (kind == "mariadb")) {
					key, value, _ := strings.Cut(param, "=")
					params[key] = value
					wrong = true
				}
			}
			for key, value := range map[string]string{"charset": charset, "collation": collation, "loc": loc} {
				if value != "" {
					params[key] = value
				}
			}
			for key, value := range map[string]string{"time_zone": zone, "sql_mode": mode} {
				if value != "" {
					params[key] = "'" + value + "'"
				}
			}
			dsn := s.config.FormatDSN()
			values := url.Values{}
			for key, value := range params {
				values.Set(key, value)
			}
			dsn += map[bool]string{true: "&", false: "?"}[strings.Contains(dsn, "?")] + values.Encode()
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				testMixedSession(t, dsn, wrong, s.other)
			})
		}
	})
}

func testMixedSession(t *testing.T, dsn string, wrong bool, other *mysqllock.Locker) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return // the driver's own matter
	}
	defer db.Close()
	db.SetMaxOpenConns(2)
	if err := db.Ping(); err != nil {
		require.NotContains(t, err.Error(), password)
		return // the driver's or the server's own matter
	}
	const name = `naïve 'lock' \ "表"`
	l := newLocker(t, db, mysqllock.WithIdentity("ø'"+`"\`))
	first, err := l.TryLock(ctx, name, patient, mysqllock.AutoRenew)
	if wrong {
		require.Error(t, err)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		requireHeld(t, other, name, false)
		return
	}
	require.NoError(t, err, "%s", dsn)
	last := first.Token()
	require.NoError(t, first.Unlock())
	for range 2 {
		k := acquire(t, l, name, mysqllock.AutoRenew)
		require.Greater(t, k.Token(), last)
		_, err = other.TryLock(ctx, name, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Extend(ctx, time.Minute))
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		seen := requireHeld(t, other, name, true)
		require.Equal(t, "ø'"+`"\`, seen.Holder)
		require.InDelta(t, 60, seen.ExpiresIn.Seconds(), 5)
		require.InDelta(t, 60, info.ExpiresIn.Seconds(), 5)
		info.ExpiresIn, seen.ExpiresIn = 0, 0
		require.Equal(t, seen, info)
		tx, err := db.Begin()
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, tx.Commit())
		require.NoError(t, k.Unlock())

		theirs := acquire(t, other, name, time.Minute)
		require.Greater(t, theirs.Token(), k.Token())
		_, err = l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		list, err := l.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, name, list[0].Name)
		freed, err := l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, freed)
		require.ErrorIs(t, theirs.Unlock(), mysqllock.ErrLost)
		last = theirs.Token()

		for range 101 { // until statements are prepared, which are then to be right, too
			k := acquire(t, l, name, mysqllock.AutoRenew)
			require.Greater(t, k.Token(), last)
			last = k.Token()
			require.NoError(t, k.Unlock())
		}
	}
	acquire(t, l, name, mysqllock.AutoRenew)
	require.NoError(t, l.Close())
	requireHeld(t, other, name, false)
}

// Leases of every length are what was asked for, or refused; none of them, and
// no wait, makes the clockwork run wild.
func FuzzLease(f *testing.F) {
	for _, d := range []time.Duration{
		0, 1, -1, time.Microsecond, 10*time.Millisecond - 1, 10 * time.Millisecond, 10*time.Millisecond + 1, 999 * time.Millisecond, time.Second, time.Hour,
		365 * 24 * time.Hour, 100 * 365 * 24 * time.Hour, math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64/2 + 1, math.MinInt64,
	} {
		f.Add(int64(0), int64(d), int64(time.Hour))
		f.Add(int64(d), int64(time.Minute), int64(time.Minute))
		f.Add(int64(time.Millisecond), int64(0), int64(d))
	}
	type side struct {
		db    *sql.DB
		other *mysqllock.Locker
	}
	sides := map[string]side{}
	for kind, e := range databases(f) {
		sides[kind] = side{e.db(f, ""), e.locker(f)}
	}
	f.Fuzz(func(t *testing.T, w, ls, ext int64) {
		wait, lease, longer := time.Duration(w), time.Duration(ls), time.Duration(ext)
		for kind, s := range sides {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				testLease(t, s.db, s.other, wait, lease, longer)
			})
		}
	})
}

func testLease(t *testing.T, db *sql.DB, other *mysqllock.Locker, wait, lease, longer time.Duration) {
	const least = 10 * time.Millisecond
	for option, refused := range map[string]bool{
		"WithLease": lease < time.Second, "WithPollInterval": wait < least,
	} {
		l, err := mysqllock.New(db, map[string]mysqllock.Option{
			"WithLease": mysqllock.WithLease(lease), "WithPollInterval": mysqllock.WithPollInterval(wait),
		}[option])
		if refused {
			require.ErrorContains(t, err, option)
			continue
		}
		require.NoError(t, err)
		k := acquire(t, l, "kept", mysqllock.AutoRenew)
		_, err = l.TryLock(ctx, "kept", time.Millisecond, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Unlock())
		require.NoError(t, l.Close())
	}

	l := newLocker(t, db)
	defer func() { // the next input finds the name free
		require.NoError(t, l.Close())
		eventually(t, "still held", func() bool { return !requireInfo(t, other, "x").Held })
	}()
	start := time.Now()
	k, err := l.TryLock(ctx, "x", wait, lease)
	if lease < 0 || 0 < lease && lease < least {
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
		requireSafe(t, err.Error())
		requireHeld(t, other, "x", false)
		return
	}
	asked := lease
	if lease == mysqllock.AutoRenew {
		asked = mysqllock.DefaultLease
	}
	if errors.Is(err, mysqllock.ErrNotAcquired) { // the answer came when the lease, or a quarter of a second, was over
		require.GreaterOrEqual(t, time.Since(start), min(asked-asked/10, 250*time.Millisecond))
		return
	}
	require.NoError(t, err)
	info := requireInfo(t, other, "x")
	if info.Held || time.Since(start) < asked { // else it may have ended
		require.True(t, info.Held, "%+v", info)
		require.Equal(t, asked.Truncate(time.Microsecond), sub(info.ExpiresAt, info.AcquiredAt))
		require.LessOrEqual(t, info.ExpiresIn, asked)
	}
	if asked < time.Second {
		return
	}
	require.NoError(t, k.Err())
	// Behind it, others sleep: what is left of the longest lease is still a time.
	before := other.Stats().Statements
	_, err = other.TryLock(ctx, "x", 20*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.LessOrEqual(t, other.Stats().Statements-before, int64(8))
	eventually(t, "still listed", func() bool { return requireInfo(t, other, "x").Waiters == 0 })

	err = k.Extend(ctx, longer)
	if longer < least {
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
		requireSafe(t, err.Error())
	} else {
		require.NoError(t, err)
		require.GreaterOrEqual(t, requireInfo(t, other, "x").ExpiresIn, max(asked, longer)-time.Minute)
	}
	require.NoError(t, k.Err())
	require.NoError(t, k.Unlock())
	requireHeld(t, other, "x", false)
}

// sub returns a - b, also where that exceeds a Duration by the time that has passed.
func sub(a, b time.Time) time.Duration {
	return time.Duration(a.UnixMicro()-b.UnixMicro()) * time.Microsecond
}

func requireInfo(t testing.TB, l *mysqllock.Locker, name string) mysqllock.Info {
	t.Helper()
	info, err := l.Inspect(ctx, name)
	require.NoError(t, err)
	return info
}

// However long what was given for a name is, the error is not.
func TestLongNameInAnError(t *testing.T) {
	db, err := sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/none")
	require.NoError(t, err)
	defer db.Close()
	l := newLocker(t, db)
	long := strings.Repeat("\x00", 1<<20)
	_, err = l.TryLock(ctx, long, 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrInvalidName)
	require.ErrorContains(t, err, "1048576 bytes")
	requireSafe(t, err.Error())
	_, err = mysqllock.New(db, mysqllock.WithTable(long))
	require.ErrorContains(t, err, "WithTable")
	requireSafe(t, err.Error())
	_, err = mysqllock.New(db, mysqllock.WithIdentity(long))
	require.ErrorContains(t, err, "WithIdentity")
	requireSafe(t, err.Error())
	require.False(t, errors.Is(err, mysqllock.ErrInvalidName))
}

// A row may promise more than a time.Duration can hold: by hand, or by a lease
// of centuries after some time.
func TestLeaseOfMillennia(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, l, other := e.db(t, ""), e.locker(t), e.locker(t)
		for name, until := range map[string]string{
			"a": "9999-12-31 23:59:59", "b": "2700-01-01",
		} {
			k := acquire(t, l, name, time.Minute)
			_, err := db.Exec("UPDATE mysqllock SET expires_at = ? WHERE name = ?", until, name)
			require.NoError(t, err)
			require.Greater(t, requireHeld(t, other, name, true).ExpiresIn, 250*365*24*time.Hour, until)
			before := other.Stats().Statements
			_, err = other.TryLock(ctx, name, 50*time.Millisecond, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.LessOrEqual(t, other.Stats().Statements-before, int64(8), until)
			require.NoError(t, k.Extend(ctx, time.Second))
			require.NoError(t, k.Unlock())
		}
		purged, err := l.Purge(ctx, math.MaxInt64)
		require.NoError(t, err)
		require.Zero(t, purged)
	})
}

// The error of a statement that finds the table of an earlier version says so.
func TestTableOfAnotherVersion(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		_, err := e.db(t, "").Exec("ALTER TABLE mysqllock DROP COLUMN waiters")
		require.NoError(t, err)
		_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorContains(t, err, "the table is that of another version of the library")
		require.ErrorIs(t, err, &mysql.MySQLError{Number: 1054})
		_, err = l.List(ctx)
		require.ErrorContains(t, err, "the table is that of another version of the library")
	})
}
