package store

import (
	"embed"
	"io/fs"
	"strings"
)

// statements has the text of each statement and fragment, with placeholders for query, by the name of its
// file in sql; {r} qualifies the row's columns. Each file in sql has one statement, after a comment that says
// what it does, why, and what it answers. {>name} includes a file from sql/fragments.
//
// A row is held while its own lease, expires_at, is in the future, or while the session to which it is
// bound is alive. An assignment sees the row either as it was before the statement (sql_mode
// SIMULTANEOUS_ASSIGNMENT of MariaDB) or after the assignments to its left, so each column must be
// assigned after everything that depends on it.
//
// LAST_INSERT_ID(x) returns x in the reply to the statement: a token is positive, the microseconds left
// of another holder's lease are negative, the constants in acquire.go are below those, and the numbers
// of sessions are above all tokens.
// (https://dev.mysql.com/doc/refman/8.4/en/information-functions.html#function_last-insert-id)
var statements = statementFiles{embedded, map[string]string{}}.loadAll()

//go:embed sql
var embedded embed.FS

// statementFiles are the files below the directory sql.
type statementFiles struct {
	fs.FS
	fragments map[string]string // the expanded text of each fragment that was included so far
}

// loadAll returns the texts of all files, as the server receives them apart from the placeholders.
func (f statementFiles) loadAll() map[string]string {
	texts := map[string]string{}
	fs.WalkDir(f, "sql", func(path string, _ fs.DirEntry, err error) error {
		if name, found := strings.CutSuffix(strings.TrimPrefix(path, "sql/"), ".sql"); found {
			texts[name] = f.load(name)
		}
		return err
	})
	return texts
}

// load returns the text of a file on one line, to keep it short. It panics if the file, or one that it
// includes, does not exist.
func (f statementFiles) load(name string) string {
	text := f.expand(name)
	if strings.Contains(text, "--") {
		panic("sql/" + name + ".sql: a comment behind code would comment out the rest")
	}
	return strings.ReplaceAll(strings.ReplaceAll(text, "( ", "("), " )", ")")
}

// expand returns the text of a file without comment lines, and with the fragments that it includes.
func (f statementFiles) expand(name string) string {
	source, err := fs.ReadFile(f, "sql/"+name+".sql")
	if err != nil {
		panic(err)
	}
	var words []string
	for line := range strings.Lines(string(source)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
			words = append(words, strings.Fields(line)...)
		}
	}
	parts := strings.Split(strings.Join(words, " "), "{>")
	for i, part := range parts[1:] {
		fragment, rest, found := strings.Cut(part, "}")
		if !found {
			panic("sql/" + name + ".sql: {> without }")
		}
		if _, known := f.fragments[fragment]; !known {
			f.fragments[fragment] = f.expand("fragments/" + fragment)
		}
		parts[i+1] = f.fragments[fragment] + rest
	}
	return strings.Join(parts, "")
}
