package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// query returns the text of a statement, or of a fragment, whose file in sql has the given name. pairs has the
// names of placeholders, each followed by its text. Without a text there, {label} is the label of this process,
// and {dead} a session that is known to be dead. These are always the same: {t} is the table; {self}, {polling}
// and {direct} are the ids of this process; {session} is the name of its session row. The texts are literals and
// numbers, because arguments would cost a second round trip with every DSN without interpolateParams.
func (s *Store) query(name string, pairs ...string) string {
	statement, found := statements[name]
	if !found {
		panic("no sql/" + name + ".sql")
	}
	var b strings.Builder
	b.Grow(2 * len(statement))
	for {
		text, rest, more := strings.Cut(statement, "{")
		b.WriteString(text)
		if !more {
			return b.String()
		}
		var placeholder string
		placeholder, statement, _ = strings.Cut(rest, "}")
		if i := slices.Index(s.constants, placeholder); i >= 0 {
			b.WriteString(s.constants[i+1])
		} else if i := slices.Index(pairs, placeholder); i >= 0 {
			b.WriteString(pairs[i+1])
		} else if placeholder == "label" {
			b.WriteString(s.label)
		} else if placeholder == "dead" {
			b.WriteString(strconv.FormatUint(s.dead.Load(), 10))
		}
	}
}

// literal returns a literal that every database session reads as the same bytes. It quotes a text only
// if all its bytes are safe under every client charset (sjis and gbk swallow a backslash) and sql_mode
// (ANSI_QUOTES, NO_BACKSLASH_ESCAPES); _binary prevents a conversion from the charset of the
// connection. Any other text becomes hexadecimal.
func literal(s string) string {
	if s == "" {
		return "x''" // because '' is NULL under EMPTY_STRING_IS_NULL
	}
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _.:/@=,+-"
	if strings.Trim(s, safe) != "" {
		return fmt.Sprintf("x'%x'", s)
	}
	return "_binary'" + s + "'"
}

func literals(ss []string) string {
	quoted := make([]string, len(ss))
	for i, s := range ss {
		quoted[i] = literal(s)
	}
	return strings.Join(quoted, ",")
}

// QuoteTable checks and quotes "table" or "db.table".
func QuoteTable(name string) (string, error) {
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("%q has more than one dot; want table or db.table", Shorten(name))
	}
	for i, part := range parts {
		if part == "" || len(part) > 64 {
			return "", fmt.Errorf("%q: an identifier has 1 to 64 characters", Shorten(name))
		}
		for _, c := range part {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '$' || c == '-') {
				return "", fmt.Errorf("%q: %q is not allowed; want letters, digits, _, $ and -", Shorten(name), c)
			}
		}
		parts[i] = "`" + part + "`"
	}
	return strings.Join(parts, "."), nil
}

// Shorten returns a name for an error message. If the name is too long to be valid, it returns only the
// beginning.
func Shorten(name string) string {
	if len(name) > 255 {
		return name[:252] + "..."
	}
	return name
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// duration converts microseconds to a Duration, limited to the range of a Duration.
func duration(micros int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(max(-most, min(micros, most))) * time.Microsecond
}

// claimLists returns the placeholders of a statement for many claims.
func claimLists(cs []Claim) []string {
	owned := make([]string, len(cs))
	for i, c := range cs {
		owned[i] = c.Name + c.Owner
	}
	return []string{"names", literals(Names(cs)), "owned", literals(owned), "count", strconv.Itoa(len(cs))}
}

// get reads one row by a statement.
func (s *Store) get(ctx context.Context, conn *sqlx.Conn, dest any, statement string, pairs ...string) error {
	s.statements.Add(1)
	return conn.GetContext(ctx, dest, s.query(statement, pairs...))
}

// selectAll reads all rows of a statement.
func (s *Store) selectAll(ctx context.Context, conn *sqlx.Conn, dest any, statement string, pairs ...string) error {
	s.statements.Add(1)
	return conn.SelectContext(ctx, dest, s.query(statement, pairs...))
}

// getReserved is get on the reserved connection.
func (s *Store) getReserved(ctx context.Context, dest any, statement string, pairs ...string) error {
	return s.onReservedConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return s.get(ctx, conn, dest, statement, pairs...)
	})
}

// A command is a statement without result rows.
type command struct {
	text     func() string
	prepared string // the text to prepare, with arguments instead of literals; "" if there is none
	args     []any
}

func (s *Store) command(statement string, pairs ...string) command {
	return command{text: func() string { return s.query(statement, pairs...) }}
}

// A reply is what the server answers to a command.
type reply struct {
	rows   int64     // how many rows the command changed
	answer int64     // the number that it passed to LAST_INSERT_ID; 0 if none, or if the table has a trigger
	sent   time.Time // before the command was sent
}

// next returns the process that the answer names, by the id under which it can be signalled, or 0.
func (r reply) next() Process {
	if r.answer <= 1 { // 1 means that no process waits
		return 0
	}
	return Process(r.answer).Listening()
}

// exec executes a command. If the time limit of the database session ends it, exec repeats it without
// that limit. The caller must not have returned the connection to the pool, because reading a Result would
// wait for the next statement there.
func (s *Store) exec(ctx context.Context, conn *sqlx.Conn, c command) (r reply, err error) {
	r.sent = time.Now()
	res, err := s.execLimited(ctx, conn, c)
	if errorNumber(err) == 1969 { // rolled back because of MariaDB's max_statement_time; MySQL limits only reads
		s.statements.Add(1)
		res, err = conn.ExecContext(ctx, unlimited(c.text()))
	}
	if err != nil {
		return r, err
	}
	if r.answer, err = res.LastInsertId(); err == nil {
		r.rows, err = res.RowsAffected()
	}
	return r, err
}

func (s *Store) execLimited(ctx context.Context, conn *sqlx.Conn, c command) (sql.Result, error) {
	s.statements.Add(1)
	if c.prepared != "" && !s.wideCharset.Load() {
		if res, ok, err := s.prepared.exec(ctx, conn, c.prepared, c.args); ok {
			return res, err
		}
	}
	return conn.ExecContext(ctx, c.text())
}

// unlimited lifts MariaDB's time limit from a statement, which may already begin with a comment that
// sets another variable.
func unlimited(statement string) string {
	const lift = "/*M! SET STATEMENT max_statement_time = 60"
	if rest, found := strings.CutPrefix(statement, "/*M! SET STATEMENT "); found {
		return lift + ", " + rest
	}
	return lift + " FOR */ " + statement
}

// execForAnswer is exec for a command whose answer is not 0 if it changes a row: if the table has a trigger,
// the reply lacks that number, so execForAnswer reads it.
func (s *Store) execForAnswer(ctx context.Context, conn *sqlx.Conn, c command) (r reply, err error) {
	r, err = s.exec(ctx, conn, c)
	if err == nil && r.rows > 0 && r.answer == 0 {
		if err = s.get(ctx, conn, &r.answer, "answer"); err != nil {
			err = PartlySent{err}
		}
	}
	return r, err
}
