package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// Where a privilege is missing, the error names it.
func TestMissingPrivilege(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		owner := e.locker(t)
		require.NoError(t, acquire(t, owner, "known", mysqllock.AutoRenew).Unlock())
		tryLock := func(name string) func(l *mysqllock.Locker) error {
			return func(l *mysqllock.Locker) error {
				_, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
				return err
			}
		}
		inspect := func(l *mysqllock.Locker) error { _, err := l.Inspect(ctx, "known"); return err }
		list := func(l *mysqllock.Locker) error { _, err := l.List(ctx); return err }
		force := func(l *mysqllock.Locker) error { _, err := l.ForceUnlock(ctx, "known"); return err }
		purge := func(l *mysqllock.Locker) error { _, err := l.Purge(ctx, time.Hour); return err }
		create := func(l *mysqllock.Locker) error { return l.CreateTable(ctx) }
		for i, c := range []struct {
			granted, missing string
			do               func(l *mysqllock.Locker) error
		}{
			{"SELECT, UPDATE", "INSERT", tryLock("new")},
			{"SELECT, INSERT", "UPDATE", tryLock("known")},
			{"INSERT, UPDATE", "SELECT", tryLock("known")},
			{"INSERT, UPDATE", "SELECT", inspect},
			{"INSERT, UPDATE", "SELECT", list},
			{"INSERT, UPDATE", "SELECT", force},
			{"SELECT, INSERT, UPDATE", "DELETE", purge},
			{"SELECT, INSERT, UPDATE, DELETE", "CREATE", create},
		} {
			t.Run(fmt.Sprint(i, " ", c.missing), func(t *testing.T) {
				config := e.account(t, c.granted, "mysqllock")
				if c.missing == "DELETE" { // is asked for only when there is something to delete
					require.NoError(t, acquire(t, owner, "idle", mysqllock.AutoRenew).Unlock())
					_, err := e.db(t, "").Exec("UPDATE mysqllock SET released_at = '2000-01-01' WHERE name = 'idle'")
					require.NoError(t, err)
				}
				table := "mysqllock"
				if c.missing == "CREATE" { // is asked for only if the table does not exist
					table = "missing"
				}
				start := time.Now()
				err := c.do(newLocker(t, openAs(t, config), mysqllock.WithTable(table)))
				var refused *mysql.MySQLError
				require.ErrorAs(t, err, &refused)
				require.ErrorContains(t, err, "a privilege is missing")
				require.Contains(t, refused.Message, c.missing)
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
				require.Less(t, time.Since(start), 30*time.Second, "at once, whatever the wait")
				requireSafe(t, err.Error())
				requireHeld(t, owner, "known", false)
			})
		}

		// CREATE alone suffices to create the table.
		_, err := e.db(t, "").Exec("DROP TABLE mysqllock")
		require.NoError(t, err)
		require.NoError(t, create(newLocker(t, openAs(t, e.account(t, "CREATE", "mysqllock")))))
		require.NoError(t, acquire(t, owner, "known", mysqllock.AutoRenew).Unlock())

		// An account that is not let in misses no privilege.
		config := e.account(t, "SELECT", "mysqllock")
		config.Passwd = "another"
		err = tryLock("known")(newLocker(t, openAs(t, config)))
		var refused *mysql.MySQLError
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, "account")
		require.NotContains(t, err.Error(), "privilege")
	})
}

// secrets are the forms in which a password could be written down.
func secrets(word string) []string {
	return []string{
		word, url.QueryEscape(word), url.PathEscape(word), fmt.Sprintf("%x", word), fmt.Sprintf("%X", word),
		base64.StdEncoding.EncodeToString([]byte(word)),
	}
}

// No error or log record contains the password, whatever fails and at every log level; and a
// hostile name adds no line of its own.
func TestNoSecretsInErrorsAndLogs(t *testing.T) {
	const hostile = "\u202e'; DROP TABLE mysqllock; -- \u2028level=ERROR msg=\"forged\" %s"
	ways := map[string]func(c *mysql.Config, p *wire.Proxy){
		"nothing":           func(*mysql.Config, *wire.Proxy) {},
		"wrong user":        func(c *mysql.Config, _ *wire.Proxy) { c.User = "nobody" },
		"wrong password":    func(c *mysql.Config, _ *wire.Proxy) { c.Passwd += "2" },
		"wrong database":    func(c *mysql.Config, _ *wire.Proxy) { c.DBName = "none" },
		"no database":       func(c *mysql.Config, _ *wire.Proxy) { c.DBName = "" },
		"port closed":       func(c *mysql.Config, _ *wire.Proxy) { c.Addr = "127.0.0.1:1" },
		"no such host":      func(c *mysql.Config, _ *wire.Proxy) { c.Addr = "nowhere.invalid:3306" },
		"no such socket":    func(c *mysql.Config, _ *wire.Proxy) { c.Net, c.Addr = "unix", "/nonexistent/socket" },
		"no such network":   func(c *mysql.Config, _ *wire.Proxy) { c.Net = "pigeon" },
		"TLS":               func(c *mysql.Config, _ *wire.Proxy) { c.TLSConfig = "true" },
		"wrong variable":    func(c *mysql.Config, _ *wire.Proxy) { c.Params = map[string]string{"nonsense": "1"} },
		"refused":           func(_ *mysql.Config, p *wire.Proxy) { p.Refuse(true) },
		"black hole":        func(c *mysql.Config, p *wire.Proxy) { c.Timeout = 200 * time.Millisecond; p.BlackHole(true) },
		"cut in the middle": func(_ *mysql.Config, p *wire.Proxy) { p.CutAfterNextCommand() },
	}
	onEach(t, func(t *testing.T, e env) {
		for what, spoil := range ways {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				name := hostile + what // an acquire that was cut off may hold it for a moment
				proxy := wire.New(t, e.server.Addr())
				config := e.account(t, "ALL PRIVILEGES", "mysqllock")
				config.Addr = proxy.Addr()
				spoil(config, proxy)
				j := &journal{}
				var spoken bytes.Buffer // by the driver; guarded by j.mu
				config.Logger = log.New(lockedWriter{&j.mu, &spoken}, "", 0)
				dsn := config.FormatDSN()
				var errs []error
				tell := func(err error) { errs = append(errs, err) }

				connector, err := mysql.NewConnector(config)
				tell(err)
				if err == nil {
					db := sql.OpenDB(connector)
					defer db.Close()
					l, err := mysqllock.New(db, mysqllock.WithLogger(j.logger()), mysqllock.WithLease(time.Second))
					require.NoError(t, err)
					k, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
					tell(err)
					short, cancel := context.WithTimeout(ctx, 2*time.Second)
					defer cancel()
					_, err = l.TryLock(short, "other", 300*time.Millisecond, mysqllock.AutoRenew)
					tell(err)
					_, err = l.Inspect(short, name)
					tell(err)
					_, err = l.List(short)
					tell(err)
					tell(l.CreateTable(short))
					if k != nil { // and then the network fails
						require.NoError(t, l.Do(ctx, "done", time.Second, mysqllock.AutoRenew, func(context.Context) error { return nil }))
						proxy.Refuse(true)
						proxy.Cut()
						requireOver(t, k, mysqllock.ErrLost)
						tell(k.Extend(short, time.Second))
						tell(k.Unlock())
						_, err = l.ForceUnlock(short, name)
						tell(err)
						_, err = l.Purge(short, time.Hour)
						tell(err)
					}
					tell(l.Close())
				}

				text, jsons := j.take()
				for _, line := range text {
					requireSafe(t, line)
					require.True(t, strings.HasPrefix(line, "time="), line)
				}
				if what == "nothing" {
					require.Contains(t, strings.Join(text, "\n"), "renewal failed")
					require.Contains(t, strings.Join(text, "\n"), "lock lost")
				}
				j.mu.Lock()
				said := strings.Join(append(text, jsons...), "\n") + spoken.String()
				j.mu.Unlock()
				for _, err := range errs {
					if err != nil {
						requireSafe(t, strings.ReplaceAll(err.Error(), "\n", " ")) // of errors.Join
						said += fmt.Sprintf("%v %+v %#v\n", err, err, err)
						for ; err != nil; err = errors.Unwrap(err) {
							said += fmt.Sprintf("%#v\n", err)
						}
					}
				}
				for _, word := range append(secrets(config.Passwd), secrets(password)...) {
					require.NotContains(t, said, word)
				}
				require.NotContains(t, said, dsn)
			})
		}
	})
}

// A rowState is the part of a row that determines the owner of the lock.
type rowState struct {
	Owner, Expires, Released string
	Token                    uint64
}

// released reports whether the id was ended; the row is as long as before.
func (r rowState) released() bool { return len(r.Owner) > 20 && r.Owner[0] == '-' }

func rowsOf(t *testing.T, db *sql.DB) map[string]rowState {
	t.Helper()
	found, err := db.Query("SELECT name, owner, expires_at, released_at, token FROM mysqllock WHERE name > x'01'") // not the sessions
	require.NoError(t, err)
	defer found.Close()
	rows := map[string]rowState{}
	for found.Next() {
		var name string
		var r rowState
		require.NoError(t, found.Scan(&name, &r.Owner, &r.Expires, &r.Released, &r.Token))
		rows[name] = r
	}
	require.NoError(t, found.Err())
	return rows
}

// Whatever handles are left from, and in whatever order they are used: a row
// changes hands only by its holder, at the end of its lease, and by ForceUnlock.
func TestOnlyTheHolderReleases(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		seed := rand.Uint64()
		defer func() {
			if t.Failed() {
				t.Log("seed:", seed)
			}
		}()
		r := rand.New(rand.NewPCG(seed, 0))
		names := []string{"a", "a ", "A", "á", "'"}
		var lockers []*mysqllock.Locker
		for range 3 {
			lockers = append(lockers, e.locker(t, mysqllock.WithLease(time.Hour))) // no renewal writes meanwhile
		}
		live := map[string]*mysqllock.Lock{} // as the rows say
		var stale []*mysqllock.Lock
		of := map[*mysqllock.Lock]*mysqllock.Locker{}
		// deceived reports whether a Locker has yet to learn that it lost the name.
		deceived := func(l *mysqllock.Locker, name string) bool {
			return slices.ContainsFunc(stale, func(k *mysqllock.Lock) bool { return of[k] == l && k.Name() == name && k.Err() == nil })
		}
		retire := func(name string) {
			if live[name] != nil {
				stale = append(stale, live[name])
			}
			delete(live, name)
		}
		counts := map[string]int{}
		for range 400 {
			name := names[r.IntN(len(names))]
			n := r.IntN(len(lockers))
			before := rowsOf(t, db)
			touched := name // the one name whose row may change
			var op string
			switch r.IntN(8) {
			case 0, 1:
				op = "acquire"
				if live[name] == nil && !deceived(lockers[n], name) {
					live[name] = acquire(t, lockers[n], name, mysqllock.AutoRenew)
					of[live[name]] = lockers[n]
					break
				}
				touched = ""
				_, err := lockers[n].TryLock(ctx, name, 0, mysqllock.AutoRenew)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			case 2:
				op = "unlock"
				if k := live[name]; k != nil {
					require.NoError(t, k.Unlock())
					require.True(t, rowsOf(t, db)[name].released())
					retire(name)
				} else {
					touched = ""
				}
			case 3:
				op = "force"
				freed, err := lockers[n].ForceUnlock(ctx, name)
				require.NoError(t, err)
				require.Equal(t, live[name] != nil, freed)
				retire(name)
			case 4:
				op = "expiry" // that the holder does not see, as if its clock stood still
				_, err := db.Exec("UPDATE mysqllock SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE name = CAST(? AS BINARY) AND owner <> ''", name)
				require.NoError(t, err)
				if k := live[name]; k != nil {
					retire(name)
					if deceived(lockers[n], name) { // and no call of this process asks the database
						_, err := db.Exec("UPDATE mysqllock SET owner = 'stranger', expires_at = '2999-01-01', token = token + 256 WHERE name = CAST(? AS BINARY)", name)
						require.NoError(t, err)
						require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
						require.Equal(t, "stranger", rowsOf(t, db)[name].Owner)
						_, err = lockers[n].ForceUnlock(ctx, name)
						require.NoError(t, err)
					} else {
						live[name] = acquire(t, lockers[n], name, time.Minute)
						of[live[name]] = lockers[n]
					}
				}
			default:
				touched = ""
				if len(stale) == 0 {
					continue
				}
				k := stale[r.IntN(len(stale))]
				var err error
				switch r.IntN(3) {
				case 0:
					op = "stale unlock"
					err = k.Unlock()
				case 1:
					op = "stale extend"
					err = k.Extend(ctx, time.Hour)
				case 2:
					op = "stale guard"
					tx, begin := db.Begin()
					require.NoError(t, begin)
					err = k.Guard(ctx, tx)
					require.NoError(t, tx.Rollback())
				}
				require.Error(t, err, op)
				require.True(t, errors.Is(err, mysqllock.ErrLost) || errors.Is(err, mysqllock.ErrNotHeld), "%s: %v", op, err)
			}
			counts[op]++
			for other, row := range before {
				if other != touched {
					require.Equal(t, row, rowsOf(t, db)[other], "%s of %q changed %q", op, name, other)
				}
			}
		}
		t.Log(counts)
		// Close releases what is held, not what was lost.
		held := rowsOf(t, db)
		require.NoError(t, lockers[0].Close())
		after := rowsOf(t, db)
		for name, k := range live {
			if k.Err() == nil {
				require.Equal(t, held[name], after[name])
			}
		}
	})
}

// An owner is its whole id: not the process, not a prefix, not a pattern.
func TestOwnersAreComparedWhole(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, l := e.db(t, ""), e.locker(t)
		for i := range 20 { // so that ids have common prefixes
			require.NoError(t, acquire(t, l, fmt.Sprint(i), mysqllock.AutoRenew).Unlock())
		}
		for _, other := range []func(owner string) string{
			func(owner string) string { return owner[:len(owner)-1] },
			func(owner string) string { return owner + "0" },
			func(owner string) string { return owner[1:] },
			func(owner string) string { return "0" + owner },
			func(owner string) string { process, _, _ := strings.Cut(owner, "-"); return process },
			func(owner string) string { process, _, _ := strings.Cut(owner, "-"); return process + "-" },
			func(owner string) string { process, _, _ := strings.Cut(owner, "-"); return process + "-zzz" },
			func(owner string) string {
				_, serial, _ := strings.Cut(owner, "-")
				return "4000000000000000000-" + serial
			},
			func(owner string) string { return strings.ToUpper(owner) + "Z" },
			func(string) string { return "%" },
			func(string) string { return "0" },
			func(string) string { return "' OR '1'='1" },
		} {
			for what, use := range map[string]func(k *mysqllock.Lock) error{
				"unlock": func(k *mysqllock.Lock) error { return k.Unlock() },
				"extend": func(k *mysqllock.Lock) error { return k.Extend(ctx, time.Hour) },
			} {
				k := acquire(t, l, "x", mysqllock.AutoRenew)
				id := other(requireHeld(t, l, "x", true).Owner)
				_, err := db.Exec("UPDATE mysqllock SET owner = ? WHERE name = 'x'", id)
				require.NoError(t, err)
				before := rowsOf(t, db)
				require.ErrorIs(t, use(k), mysqllock.ErrLost, "%s with %q in the row", what, id)
				require.Equal(t, before, rowsOf(t, db))
				_, err = l.ForceUnlock(ctx, "x")
				require.NoError(t, err)
				k.Unlock()
			}
		}
		// In a batch, too, as Close sends it.
		closing := e.locker(t)
		for i := range 3 {
			acquire(t, closing, fmt.Sprint("batch ", i), mysqllock.AutoRenew)
		}
		_, err := db.Exec("UPDATE mysqllock SET owner = CONCAT(owner, '0') WHERE name = 'batch 1'")
		require.NoError(t, err)
		before := rowsOf(t, db)["batch 1"]
		require.NoError(t, closing.Close())
		after := rowsOf(t, db)
		require.Equal(t, before, after["batch 1"])
		require.True(t, after["batch 0"].released())
		require.True(t, after["batch 2"].released())
	})
}
