package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/cobra"

	"github.com/mysqllock/mysqllock"
)

// The results of a check. A failure makes locks unsafe or impossible.
const (
	fine    = "ok"
	warning = "warning"
	failed  = "failed"
	skipped = "skipped"
)

// A finding is the outcome of one check.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Found  string `json:"found"`
	Mend   string `json:"mend,omitempty"`
}

func newDoctor(from *source) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [--json]",
		Short: "Check whether locks can work here, and name what to fix",
		Long: `Check the DSN, the server and its version, what the session is like, whether
commits are durable, the privileges, the table, the clocks, how many locks are
held, what a proxy between may spoil, and how long a round trip takes. Nothing
is written. A server that gives no answer for 5 s is given up. The exit status
is 1 if something is wrong; a warning is not.`,
		Example: `  mysqllock doctor
  mysqllock doctor --json | jq -r '.checks[] | select(.status != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d := examine(c.Context(), from)
			sick := slices.ContainsFunc(d.findings, func(f finding) bool { return f.Status == failed })
			var err error
			if asJSON {
				err = writeJSON(c.OutOrStdout(), map[string]any{"ok": !sick, "checks": d.findings})
			} else {
				err = d.write(c)
			}
			if err == nil && sick {
				err = exit{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write a JSON object")
	return c
}

// A doctor runs the checks on one connection, and those that need two on a further one.
type doctor struct {
	findings []finding
	db       *sql.DB
	conn     *sql.Conn
	table    string // quoted
	name     string
	shared   bool // a proxy lets others use the connection between our statements
}

func (d *doctor) found(status, check, mend, format string, args ...any) {
	if status == fine {
		mend = ""
	}
	d.findings = append(d.findings, finding{check, status, printable(fmt.Sprintf(format, args...)), mend})
}

func (d *doctor) write(c *cobra.Command) error {
	var b strings.Builder
	for _, f := range d.findings {
		fmt.Fprintf(&b, "%-8s %-11s %s\n", f.Status, f.Check, f.Found)
		if f.Mend != "" {
			fmt.Fprintf(&b, "%20s → %s\n", "", f.Mend)
		}
	}
	_, err := io.WriteString(c.OutOrStdout(), b.String())
	return err
}

// answerTimeout limits the connection attempt and each check. The check of the signal sleeps for three
// seconds if signals do not arrive.
const answerTimeout = 5 * time.Second

func examine(ctx context.Context, from *source) *doctor {
	d := &doctor{name: from.table}
	config, origin, err := from.config()
	if err != nil {
		d.found(failed, "dsn", "see mysqllock --help", "%v", err)
		return d
	}
	d.table, _ = quoteTable(from.table)
	if origin == "--dsn" {
		d.found(warning, "dsn", "set MYSQLLOCK_DSN or write ~/.my.cnf: --dsn is seen by everybody in ps", "%s, from --dsn", where(config))
	} else {
		d.found(fine, "dsn", "", "%s, from %s", where(config), origin)
	}
	if d.db, err = openConfig(config); err == nil {
		defer d.db.Close()
		err = answered(ctx, func(ctx context.Context) (err error) {
			d.conn, err = d.db.Conn(ctx)
			return err
		})
	}
	if err != nil {
		d.found(failed, "connection", connectionAdvice(err), "%v", err)
		return d
	}
	defer d.conn.Close()
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"statements", d.checkStatements}, // before anything changes the session
		{"latency", d.checkLatency},
		{"version", d.checkVersion},
		{"session", d.checkVariables},
		{"clock", d.checkClock},
		{"table", d.checkTable},
		{"privileges", d.checkPrivileges},
		{"locks", d.countLocks},
		{"connection", d.checkConnection},
		{"servers", d.checkServers},
		{"signal", d.checkSignal},
	} {
		err := answered(ctx, check.run)
		if err != nil {
			d.found(failed, check.name, connectionAdvice(err), "cannot be checked: %v", err)
		}
		if errors.Is(err, errNoAnswer) {
			break // the others would have no answer either
		}
	}
	return d
}

var errNoAnswer = fmt.Errorf("no answer within %v", answerTimeout)

// answered runs fn, which returns errNoAnswer if it takes too long.
func answered(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	err := fn(ctx)
	if err != nil && context.Cause(ctx) == errNoAnswer {
		return errNoAnswer
	}
	return err
}

func connectionAdvice(err error) string {
	switch number(err) {
	case 0:
		return "check host, port and socket, that the server runs, and what is between"
	case 1045, 1698:
		return "check user and password, and for which hosts the account is"
	case 1044:
		return "let the account use the database: GRANT SELECT, INSERT, UPDATE ON database.table TO it"
	case 1049:
		return "create the database, or name the right one"
	case 1040, 1203, 1226:
		return "the server, or the account, has no connection to spare: raise max_connections or close some"
	}
	return ""
}

func number(err error) uint16 {
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		return refused.Number
	}
	return 0
}

// checkStatements sends the statements that acquire and release a lock, for a lock that cannot exist, so that
// nothing is written. They are the first on their connection, as in an application: a proxy that shares
// connections between its clients may refuse LAST_INSERT_ID there, and allow it after a SET.
func (d *doctor) checkStatements(ctx context.Context) error {
	for _, statement := range []string{
		`UPDATE %s SET holds = 1, token = LAST_INSERT_ID(token + 256), expires_at = UTC_TIMESTAMP(6)
WHERE name = x'00' AND @@autocommit AND IF(expires_at <= UTC_TIMESTAMP(6), 1, 0 * LAST_INSERT_ID(-1))`,
		`UPDATE %s SET holds = 0 * LAST_INSERT_ID(0), released_at = UTC_TIMESTAMP(6), expires_at = '1970-01-01' WHERE name = x'00' AND @@autocommit`,
	} {
		_, err := d.conn.ExecContext(ctx, fmt.Sprintf(statement, d.table))
		switch number(err) {
		case 0:
			if err != nil {
				return err
			}
		case 1044, 1054, 1109, 1142, 1143, 1146, 1290, 1792, 1836, 1223: // the table, privileges, read-only: other checks report these in detail
			d.found(skipped, "statements", "", "%v", err)
			return nil
		case 3566: // ER_NO_ACCESS_TO_NATIVE_FCT
			d.found(failed, "statements", "a proxy shares connections between its clients: let it give each one its own (MySQL Router: connection_sharing=0)",
				"a lock cannot be acquired: %v", err)
			return nil
		default:
			d.found(failed, "statements", "", "a lock cannot be acquired or released: %v", err)
			return nil
		}
	}
	d.found(fine, "statements", "", "those that acquire and release a lock are taken on a fresh connection")
	return nil
}

func (d *doctor) checkLatency(ctx context.Context) error {
	var took []time.Duration
	for begun := time.Now(); len(took) < 20 && time.Since(begun) < answerTimeout/2; {
		start := time.Now()
		if _, err := d.conn.ExecContext(ctx, "DO 0"); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	status := fine
	median, most := took[len(took)/2], took[len(took)-1]
	if median > 100*time.Millisecond {
		status = warning
	}
	d.found(status, "latency", "each acquire and each release is a round trip: run closer to the server",
		"a round trip takes %s, at most %s of %d", rounded(median), rounded(most), len(took))
	return nil
}

var versionNumbers = regexp.MustCompile(`(\d+)\.(\d+)`)

func (d *doctor) checkVersion(ctx context.Context) error {
	var v string
	if err := d.conn.QueryRowContext(ctx, "SELECT VERSION()").Scan(&v); err != nil {
		return err
	}
	product, major, minor := "MySQL", 8, 0
	if strings.Contains(v, "MariaDB") {
		product, major, minor = "MariaDB", 10, 6
	}
	status, mend := fine, ""
	numbers := versionNumbers.FindStringSubmatch(strings.TrimPrefix(v, "5.5.5-")) // a prefix of old replication
	switch {
	case strings.Contains(v, "TiDB") || strings.Contains(v, "Vitess") || numbers == nil:
		status, mend = warning, "mysqllock is made for MySQL and MariaDB: test locks under load here before you rely on them"
	default:
		first, _ := strconv.Atoi(numbers[1])
		second, _ := strconv.Atoi(numbers[2])
		if first < major || first == major && second < minor {
			status, mend = failed, fmt.Sprintf("mysqllock needs %s %d.%d or later", product, major, minor)
		}
	}
	d.found(status, "version", mend, "%s %s", product, v)
	return nil
}

// checkVariables uses SHOW VARIABLES, because the servers have different variables.
func (d *doctor) checkVariables(ctx context.Context) error {
	rows, err := d.conn.QueryContext(ctx, `SHOW SESSION VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only',
'transaction_read_only', 'tx_read_only', 'transaction_isolation', 'tx_isolation', 'time_zone', 'autocommit', 'log_bin', 'binlog_format',
'innodb_flush_log_at_trx_commit')`)
	if err != nil {
		return err
	}
	defer rows.Close()
	values := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		values[name] = value
	}
	if err := rows.Err(); err != nil {
		return err
	}
	on := func(name string) bool { return values[name] != "" && values[name] != "OFF" }

	const primary = "this is a replica or a demoted primary: let the DSN lead to the primary, and put rejectReadOnly=true into it"
	switch {
	case on("super_read_only") || on("innodb_read_only"):
		d.found(failed, "read-only", primary, "the server is read-only")
	case on("read_only"):
		d.found(failed, "read-only", primary, "the server is read-only, but for privileged accounts")
	case on("transaction_read_only") || on("tx_read_only"):
		d.found(failed, "read-only", "take transaction_read_only out of the DSN or init_connect", "the session is read-only")
	default:
		d.found(fine, "read-only", "", "server and session can write")
	}
	if !on("autocommit") {
		d.found(failed, "session", "take autocommit=0 out of the DSN or init_connect: a lock would be seen by nobody else", "autocommit is off")
	} else {
		d.found(fine, "session", "", "autocommit; isolation %s, time zone %s: any will do",
			cmp.Or(values["transaction_isolation"], values["tx_isolation"]), values["time_zone"])
	}
	switch {
	case !on("log_bin"):
		d.found(fine, "binlog", "", "off")
	case values["binlog_format"] == "STATEMENT":
		d.found(failed, "binlog", "set binlog_format to ROW or MIXED", "format STATEMENT: replicas may get other tokens than the primary")
	default:
		d.found(fine, "binlog", "", "format %s", cmp.Or(values["binlog_format"], "ROW"))
	}
	if flush := values["innodb_flush_log_at_trx_commit"]; flush == "0" {
		d.found(warning, "durability", "set innodb_flush_log_at_trx_commit to 1, or to 2, unless the server is a node of Galera",
			"innodb_flush_log_at_trx_commit=0: after a crash, the server may grant locks again that it granted in its last second")
	} else {
		d.found(fine, "durability", "", "innodb_flush_log_at_trx_commit=%s", flush)
	}
	return nil
}

// checkClock compares clocks for the sake of people: only the server's clock judges leases.
func (d *doctor) checkClock(ctx context.Context) error {
	var micros, behind int64
	start := time.Now()
	err := d.conn.QueryRowContext(ctx,
		"SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE()))").Scan(&micros, &behind)
	if err != nil {
		return err
	}
	here := start.Add(time.Since(start) / 2)
	ahead := time.UnixMicro(micros).Sub(here)
	switch {
	case behind > 2:
		d.found(failed, "clock", "take timestamp=… out of the DSN or init_connect: leases would never end", "NOW() stands still in this session")
	case ahead.Abs() > 10*time.Second:
		d.found(warning, "clock", "run NTP on both: locks go by the server's clock alone, but people compare times",
			"the server's clock differs from that here by %s", rounded(ahead))
	default:
		d.found(fine, "clock", "", "the server's differs from that here by %s", rounded(ahead))
	}
	return nil
}

// A shape is what a table consists of: columns and indexes with what defines them.
type shape map[string]string

var (
	columnLine = regexp.MustCompile(`(?m)^  ([a-z_]+) +([A-Z]+(?:\(\d+\))?(?: UNSIGNED)?)(?: +CHARACTER SET \w+ COLLATE (\w+))?( +NOT NULL)?`)
	keyLine    = regexp.MustCompile(`(?m)^  (?:PRIMARY KEY|(UNIQUE )?KEY (\w+)) \(([a-z_, ]+)\)`)
	intWidth   = regexp.MustCompile(`int\(\d+\)`)
)

// wantedShape reads the library's schema.
func wantedShape() shape {
	want := shape{}
	for _, m := range columnLine.FindAllStringSubmatch(mysqllock.Schema, -1) {
		want["column "+m[1]] = column(strings.ToLower(m[2]), m[3], m[4] == "")
	}
	for _, m := range keyLine.FindAllStringSubmatch(mysqllock.Schema, -1) {
		index := "unique index PRIMARY"
		if m[2] != "" {
			index = strings.ToLower(m[1]) + "index " + m[2]
		}
		want[index] = "(" + strings.ReplaceAll(m[3], " ", "") + ")"
	}
	return want
}

func column(kind, collation string, nullable bool) string {
	text := intWidth.ReplaceAllString(kind, "int")
	if collation != "" {
		text += " " + collation
	}
	if nullable {
		text += " NULL"
	}
	return text
}

// location returns the database and the name of the table.
func (d *doctor) location(ctx context.Context) (database, name string, err error) {
	if database, name, found := strings.Cut(d.name, "."); found {
		return database, name, nil
	}
	err = d.conn.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database)
	return database, d.name, err
}

// shapeOf reads the shape of the server's table. It is empty if there is no such table, or none that the
// account may see.
func (d *doctor) shapeOf(ctx context.Context) (have shape, engine string, err error) {
	database, name, err := d.location(ctx)
	if err != nil {
		return nil, "", err
	}
	have = shape{}
	rows, err := d.conn.QueryContext(ctx, `SELECT CONCAT('column ', COLUMN_NAME), COLUMN_TYPE, COALESCE(COLLATION_NAME, ''), IS_NULLABLE = 'YES'
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?
UNION ALL SELECT CONCAT(IF(NON_UNIQUE, '', 'unique '), 'index ', INDEX_NAME), CONCAT('(', GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX), ')'), '', 0
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? GROUP BY INDEX_NAME, NON_UNIQUE`, database, name, database, name)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	for rows.Next() {
		var part, kind, collation string
		var nullable bool
		if err := rows.Scan(&part, &kind, &collation, &nullable); err != nil {
			return nil, "", err
		}
		have[part] = column(kind, collation, nullable)
	}
	if err := rows.Err(); err != nil || len(have) == 0 {
		return nil, "", err
	}
	var text sql.NullString
	err = d.conn.QueryRowContext(ctx, "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", database, name).Scan(&text)
	return have, text.String, err
}

func (d *doctor) checkTable(ctx context.Context) error {
	have, engine, err := d.shapeOf(ctx)
	if err != nil {
		return err
	}
	if len(have) == 0 {
		d.found(failed, "table", "create it: mysqllock init, or have the statements of mysqllock init --print applied",
			"there is no table %s, or none that this account may see", d.name)
		return nil
	}
	var wrong []string
	for part, want := range wantedShape() {
		switch got, found := have[part]; {
		case !found:
			wrong = append(wrong, part+" is missing")
		case got != want:
			wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", part, got, want))
		}
	}
	slices.Sort(wrong)
	if engine != "InnoDB" {
		wrong = append(wrong, "the engine is "+engine+", not InnoDB")
	}
	if len(wrong) > 0 {
		d.found(failed, "table", "compare with mysqllock init --print; CHANGELOG has the ALTER TABLE for older tables",
			"%s: %s", d.name, strings.Join(wrong, "; "))
		return nil
	}
	d.found(fine, "table", "", "%s is as the library makes it", d.name)
	return nil
}

// checkPrivileges sends statements that need one privilege each, and can match no row.
func (d *doctor) checkPrivileges(ctx context.Context) error {
	var has, lacks []string
	for _, p := range []struct{ privilege, statement string }{
		{"SELECT", "SELECT token FROM %s WHERE name = x'00'"},
		{"INSERT", "INSERT INTO %s (name) SELECT x'00' FROM (SELECT 1 AS one) AS s WHERE one = 0"},
		{"UPDATE", "UPDATE %s SET holds = 0 WHERE name = x'00'"},
		{"DELETE", "DELETE FROM %s WHERE name = x'00'"},
	} {
		_, err := d.conn.ExecContext(ctx, fmt.Sprintf(p.statement, d.table))
		switch number(err) {
		case 1142, 1143:
			lacks = append(lacks, p.privilege)
		case 1146:
			d.found(skipped, "privileges", "", "there is no table to have them on")
			return nil
		case 1290, 1792, 1836, 1223: // read-only or read-locked, which an earlier check reports
			d.found(skipped, "privileges", "", "%v", err)
			return nil
		default:
			if err != nil {
				return err
			}
			has = append(has, p.privilege)
		}
	}
	var user string
	if err := d.conn.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&user); err != nil {
		return err
	}
	needed := slices.DeleteFunc(slices.Clone(lacks), func(p string) bool { return p == "DELETE" })
	switch {
	case len(needed) > 0:
		database, name, err := d.location(ctx)
		if err != nil {
			return err
		}
		d.found(failed, "privileges", fmt.Sprintf("GRANT %s ON `%s`.`%s` TO %s",
			strings.Join(needed, ", "), strings.ReplaceAll(database, "`", "``"), name, quoteAccount(user)),
			"%s may not %s", user, strings.Join(needed, ", "))
	case len(lacks) > 0:
		d.found(fine, "privileges", "", "%s; not DELETE, which mysqllock purge needs", strings.Join(has, ", "))
	default:
		d.found(fine, "privileges", "", "%s", strings.Join(has, ", "))
	}
	return nil
}

// countLocks reports what is held. Names have no zero byte; in the keys of other rows, one is
// followed by r for a shared hold, and by s for a permit. In a row of mode 1, the owner is a
// request that waits for the holders of a shared lock.
func (d *doctor) countLocks(ctx context.Context) error {
	var exclusive, names, shared, permits, claims int
	err := d.conn.QueryRowContext(ctx, `SELECT
  COUNT(CASE WHEN LOCATE(x'00', l.name) = 0 AND l.mode <> 1 THEN 1 END),
  COUNT(DISTINCT CASE WHEN LOCATE(x'0072', l.name) THEN SUBSTRING_INDEX(l.name, x'00', 1) END),
  COUNT(CASE WHEN LOCATE(x'0072', l.name) THEN 1 END),
  COUNT(CASE WHEN LOCATE(x'0073', l.name) THEN 1 END),
  COUNT(CASE WHEN l.mode = 1 THEN 1 END)
FROM `+d.table+` AS l LEFT JOIN `+d.table+` AS s ON s.name = CONCAT(x'00', LEFT(l.owner, 19)) AND s.session = l.session
WHERE l.owner <> '' AND (l.expires_at > UTC_TIMESTAMP(6) OR s.expires_at > UTC_TIMESTAMP(6))`).Scan(&exclusive, &names, &shared, &permits, &claims)
	switch number(err) {
	case 0:
		if err != nil {
			return err
		}
	case 1044, 1054, 1142, 1143, 1146: // privileges, the table: other checks report these in detail
		d.found(skipped, "locks", "", "%v", err)
		return nil
	default:
		return err
	}
	d.found(fine, "locks", "", "held: %d exclusively, %d shared by %d processes, %d permits; %d claimed by requests that wait for shared ones",
		exclusive, names, shared, permits, claims)
	return nil
}

func quoteAccount(account string) string {
	at := strings.LastIndexByte(account, '@')
	if at < 0 {
		return quoteText(account) // a role
	}
	return printable(quoteText(account[:at]) + "@" + quoteText(account[at+1:]))
}

// checkConnection finds proxies that give each statement another connection.
func (d *doctor) checkConnection(ctx context.Context) error {
	mark := strconv.FormatUint(rand.Uint64(), 36)
	if _, err := d.conn.ExecContext(ctx, "SET @mysqllock_doctor = '"+mark+"'"); err != nil {
		return err
	}
	ids := map[uint64]bool{}
	kept := true
	for range 5 {
		var id uint64
		var got sql.NullString
		if err := d.conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), @mysqllock_doctor").Scan(&id, &got); err != nil {
			return err
		}
		ids[id] = true
		kept = kept && got.String == mark
	}
	const pinned = "let the proxy keep the session of a connection (ProxySQL: multiplexing off for this user; RDS Proxy: pinning), or use mysqllock.WithoutSignal"
	d.shared = len(ids) > 1 || !kept
	switch {
	case len(ids) > 1:
		d.found(warning, "connection", pinned, "a proxy spreads the statements of one connection over %d", len(ids))
	case !kept:
		d.found(warning, "connection", pinned, "a proxy does not keep variables between statements")
	default:
		d.found(fine, "connection", "", "it stays the same between statements, and keeps its state")
	}
	return nil
}

// checkServers finds proxies that send reads to replicas.
func (d *doctor) checkServers(ctx context.Context) error {
	const query = "SELECT CONCAT(@@server_id, ' ', @@hostname, ':', @@port)"
	servers := map[string]bool{}
	ask := func(q interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	},
	) error {
		var server string
		err := q.QueryRowContext(ctx, query).Scan(&server)
		servers[server] = true
		return err
	}
	for range 4 {
		conn, err := d.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close() // not before all are open
		if err := ask(conn); err != nil {
			return err
		}
	}
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := ask(tx); err != nil {
		return err
	}
	if len(servers) > 1 {
		d.found(failed, "servers", "all statements must go to the primary: switch read/write splitting and balancing off for this account",
			"the DSN leads to %d servers", len(servers))
		return nil
	}
	d.found(fine, "servers", "", "all connections lead to one")
	return nil
}

// checkSignal wakes a statement that sleeps as the library wakes a waiter.
func (d *doctor) checkSignal(ctx context.Context) error {
	const mend = "waiters poll each second instead; for no vain tries make Lockers with mysqllock.WithoutSignal, or let the proxy pass KILL QUERY on"
	if d.shared {
		d.found(skipped, "signal", mend, "KILL QUERY could hit somebody else's statement")
		return nil
	}
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	listener := "mysqllock:doctor:" + strconv.FormatUint(rand.Uint64(), 36)
	var granted sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('"+listener+"', 0)").Scan(&granted); err != nil || granted.Int64 != 1 {
		d.found(warning, "signal", mend, "GET_LOCK is not granted: %v", err)
		return nil
	}
	defer conn.ExecContext(ctx, "DO RELEASE_LOCK('"+listener+"')")
	const sleep = 3 * time.Second
	slept := make(chan time.Duration)
	go func() {
		start := time.Now()
		var interrupted sql.NullInt64
		conn.QueryRowContext(ctx, fmt.Sprintf("SELECT SLEEP(%d)", int(sleep.Seconds()))).Scan(&interrupted)
		slept <- time.Since(start)
	}()
	var refused error
	for {
		// The statement may not sleep yet: a signal that finds none is lost.
		select {
		case took := <-slept:
			if refused != nil || took >= sleep {
				d.found(warning, "signal", mend, "a waiter cannot be woken by KILL QUERY: %v", refused)
			} else {
				d.found(fine, "signal", "", "waiters can be woken by KILL QUERY")
			}
			return nil
		case <-time.After(20 * time.Millisecond):
			_, refused = d.conn.ExecContext(ctx, "KILL QUERY IS_USED_LOCK('"+listener+"')")
		}
	}
}
