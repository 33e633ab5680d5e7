// Package docs_test checks what the documents say: links, commands, queries and
// names. It also has the code that they show.
package docs_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// open stands for the way in which the service opens its pool.
func open() (*mysqllock.Locker, *sql.DB) {
	db, _ := mysqltest.Open(mysqltest.Example{}, "mariadb")
	locker, err := mysqllock.New(db)
	if err == nil {
		err = locker.CreateTable(context.Background())
	}
	if err != nil {
		panic(err)
	}
	return locker, db
}

// newDB returns a database of its own, with the table.
func newDB(t *testing.T, kind string) *sql.DB {
	db, _ := mysqltest.Open(t, kind)
	locker, err := mysqllock.New(db)
	require.NoError(t, err)
	defer locker.Close()
	require.NoError(t, locker.CreateTable(t.Context()))
	return db
}

const root = ".."

// files returns the files of the repository whose names end so, by their paths
// from its root.
func files(t *testing.T, suffix string) map[string]string {
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		found[filepath.ToSlash(name)] = string(text)
		return err
	}))
	return found
}

// guides are README and the pages of this directory.
func guides(t *testing.T) map[string]string {
	found := files(t, ".md")
	for name := range found {
		if name != "README.md" && !strings.HasPrefix(name, "docs/") {
			delete(found, name)
		}
	}
	return found
}

// A block is fenced code.
type block struct {
	language, text string
	line           int
	before         string // the line above it
}

var fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")

func blocks(page string) (found []block) {
	for _, at := range fence.FindAllStringSubmatchIndex(page, -1) {
		above := strings.TrimRight(page[:at[0]], "\n")
		found = append(found, block{
			language: page[at[2]:at[3]], text: page[at[4]:at[5]],
			line:   strings.Count(page[:at[0]], "\n") + 1,
			before: above[strings.LastIndexByte(above, '\n')+1:],
		})
	}
	return found
}

var (
	span     = regexp.MustCompile("`[^`\n]+`")
	indented = regexp.MustCompile(`(?m)^    .*$`)
)

// prose is a page without its code; code is what is left out, in lines.
func prose(page string) (text, code string) {
	var left []string
	cut := func(pattern *regexp.Regexp) {
		page = pattern.ReplaceAllStringFunc(page, func(s string) string {
			left = append(left, strings.Trim(s, "`"))
			return strings.Repeat("\n", strings.Count(s, "\n"))
		})
	}
	cut(fence)
	cut(indented)
	text = page
	cut(span)
	return text, strings.Join(left, "\n")
}

var (
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)
	inlined = regexp.MustCompile(`\]\(([^)\s]+)(?: "[^"]*")?\)`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors are the fragments under which GitHub has the headings of a page.
func anchors(page string) map[string]bool {
	text, _ := prose(page)
	seen := map[string]int{}
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		title := strings.ToLower(linked.ReplaceAllString(m[1], "$1"))
		slug := strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '-'
			case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c):
				return c
			}
			return -1
		}, title)
		if n := seen[slug]; n > 0 {
			found[fmt.Sprintf("%s-%d", slug, n)] = true
		} else {
			found[slug] = true
		}
		seen[slug]++
	}
	return found
}

func TestAnchors(t *testing.T) {
	require.Equal(t,
		map[string]bool{"what-holds": true, "a-b--c": true, "what-holds-1": true, "guard": true},
		anchors("# What holds?\n## `A, b` & C\n```\n# no\n```\n### What holds\n#### [Guard](x.md)\n"))
}

// Links lead to files and headings that are there. Of others, only the form is
// looked at: tests need no network.
func TestLinks(t *testing.T) {
	pages := files(t, ".md")
	for name, page := range pages {
		text, _ := prose(page)
		for _, m := range inlined.FindAllStringSubmatch(text, -1) {
			target := m[1]
			u, err := url.Parse(target)
			if err != nil {
				t.Errorf("%s: %s: %v", name, target, err)
				continue
			}
			if u.Scheme != "" {
				if u.Scheme != "https" && u.Scheme != "http" || !strings.Contains(u.Host, ".") {
					t.Errorf("%s: %s: want https://host/…", name, target)
				}
				continue
			}
			path := name
			if u.Path != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), u.Path))
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil || strings.HasPrefix(path, "..") {
				t.Errorf("%s: %s: no such file", name, target)
			} else if u.Fragment != "" && !anchors(pages[path])[u.Fragment] {
				t.Errorf("%s: %s: no such heading", name, target)
			}
		}
	}
}

// The rows of a table have as many cells as its head.
func TestTables(t *testing.T) {
	for name, page := range files(t, ".md") {
		text, _ := prose(page)
		cells := 0
		for i, line := range strings.Split(text, "\n") {
			line = strings.TrimSpace(span.ReplaceAllString(line, "code"))
			switch n := strings.Count(line, "|"); {
			case !strings.HasPrefix(line, "|"):
				cells = 0
			case cells == 0:
				cells = n
			case n != cells || !strings.HasSuffix(line, "|"):
				t.Errorf("%s:%d: want %d cells", name, i+1, cells-1)
			}
		}
	}
}

// Every page can be reached from README.
func TestReachable(t *testing.T) {
	pages := files(t, ".md")
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if page, ok := pages[name]; ok && !seen[name] {
			seen[name] = true
			text, _ := prose(page)
			for _, m := range inlined.FindAllStringSubmatch(text, -1) {
				path, _, _ := strings.Cut(m[1], "#")
				visit(filepath.ToSlash(filepath.Join(filepath.Dir(name), path)))
			}
		}
	}
	visit("README.md")
	for name := range pages {
		if strings.HasPrefix(name, "docs/") && !seen[name] {
			t.Errorf("README does not lead to %s", name)
		}
	}
}

// README's way to a first program leads to one that runs, on both servers.
func TestFirstProgram(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^    mkdir first(?:.*\n    )+go run \.$`).FindString(string(page))
	require.NotEmpty(t, commands)
	dsn := regexp.MustCompile(`export MYSQLLOCK_DSN='[^']*'`)
	require.Regexp(t, dsn, commands)
	commands = dsn.ReplaceAllString(commands, ":") // ours is there already
	commands = strings.TrimSuffix(commands, "go run .") + "go build ."
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(checkout, filepath.Join(dir, "mysqllock")))
	sh := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	sh.Dir = dir
	sh.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := sh.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, kind := range mysqltest.Kinds {
		s := mysqltest.Shared(t, kind)
		first := exec.CommandContext(t.Context(), filepath.Join(dir, "first", "first"), "-work", "0s")
		first.Env = append(os.Environ(), "MYSQLLOCK_DSN="+s.DSN(mysqltest.NewDatabase(t, s), ""))
		out, err := first.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "shipped\n", kind)
	}
}

// A module that a program may import tells the import path, which is not the
// name of the package, and leads to how it is taken.
func TestNestedModules(t *testing.T) {
	found := 0
	for name, text := range files(t, "go.mod") {
		dir := filepath.ToSlash(filepath.Dir(name))
		packages := regexp.MustCompile(`(?m)^package ([a-z]+)$`)
		var own string
		for source, code := range files(t, ".go") {
			if filepath.ToSlash(filepath.Dir(source)) == dir && !strings.HasSuffix(source, "_test.go") {
				own = packages.FindStringSubmatch(code)[1]
			}
		}
		if dir == "." || dir == "integration" || own == "main" {
			continue
		}
		found++
		path := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(text)[1]
		page, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
		require.NoError(t, err)
		require.Contains(t, string(page), "Package `"+own+"`, import path `"+path+"`")
		require.Contains(t, string(page), "README.md#your-own-program")
	}
	require.GreaterOrEqual(t, found, 6)
}

// Targets of make, and modules of go -C and -replace, are there.
func TestMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	replaced := regexp.MustCompile(`-replace (\S+)=\.\./mysqllock(\S*)`)
	found := 0
	check := func(name, text, pattern string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found++
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: %s: no such target", name, m[0])
			}
		}
	}
	for name, source := range files(t, ".go") {
		check(name, source, "`make ([a-z][a-z-]*)`") // messages, too, tell people what to run
	}
	for name, page := range files(t, ".md") {
		_, code := prose(page)
		check(name, code, `\bmake ([a-z][a-z-]*)`)
		for _, m := range regexp.MustCompile(`\bgo -C (\S+)`).FindAllStringSubmatch(code, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1], "go.mod")); err != nil {
				t.Errorf("%s: %s: no such module", name, m[0])
			}
		}
		for _, m := range replaced.FindAllStringSubmatch(code, -1) {
			module, err := os.ReadFile(filepath.Join(root, m[2], "go.mod"))
			if err != nil || !strings.HasPrefix(string(module), "module "+m[1]+"\n") {
				t.Errorf("%s: %s: not that module", name, m[0])
			}
		}
	}
	require.Positive(t, found)
}

// A part of the suite that fails skips none of the others, and make names it.
func TestSuiteGoesOn(t *testing.T) {
	dir := t.TempDir()
	log, fake := filepath.Join(dir, "log"), filepath.Join(dir, "go")
	require.NoError(t, os.WriteFile(fake, []byte("#!/bin/sh\necho ${PWD##*/} >>"+log+"\n[ ! -d leader ] # fails in the root module\n"), 0o755))
	cmd := exec.CommandContext(t.Context(), "make", "parts", "GO="+fake, "SUITE=test/root test/cmd/mysqllock test/torture")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.Contains(t, string(out), "FAILED: test/root\n")
	ran, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Regexp(t, `^.*\nmysqllock\ntorture\n$`, string(ran))
}

// Scripts, packages and variables of the environment that commands name are there.
func TestCommandLines(t *testing.T) {
	var sources strings.Builder
	for name, text := range files(t, ".go") {
		if !strings.HasPrefix(name, "docs/") {
			sources.WriteString(text)
		}
	}
	for _, text := range files(t, ".sh") {
		sources.WriteString(text)
	}
	script := regexp.MustCompile(`\bscripts/[\w./-]+\.sh\b`)
	goCommand := regexp.MustCompile(`(?m)\bgo (?:test|run|vet|build)\b[^#\n]*?(?: (\./[\w/-]+))`)
	variable := regexp.MustCompile(`\bMYSQLLOCK_[A-Z_]+\b`)
	for name, page := range files(t, ".md") {
		_, code := prose(page)
		for _, path := range script.FindAllString(code, -1) {
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s: %s: no such script", name, path)
			}
		}
		for _, m := range goCommand.FindAllStringSubmatch(code, -1) {
			_, atRoot := os.Stat(filepath.Join(root, m[1]))
			_, here := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])) // a page of a nested module
			if atRoot != nil && here != nil {
				t.Errorf("%s: %s: no such package", name, m[0])
			}
		}
		for _, v := range variable.FindAllString(code, -1) {
			if !strings.Contains(sources.String(), v) {
				t.Errorf("%s: %s: nothing reads it", name, v)
			}
		}
	}
}

// Commands of cmd/mysqllock have the subcommands and flags that are used.
func TestCommands(t *testing.T) {
	known := map[string]bool{"help": true, "completion": true}
	var source strings.Builder
	for name, text := range files(t, ".go") {
		if strings.HasPrefix(name, "cmd/mysqllock/") && !strings.HasSuffix(name, "_test.go") {
			source.WriteString(text)
		}
	}
	for _, m := range regexp.MustCompile(`Use: +"([a-z]+)`).FindAllStringSubmatch(source.String(), -1) {
		known[m[1]] = true
	}
	require.Contains(t, known, "run")
	line := regexp.MustCompile(`(?m)(?:^|[ $])mysqllock ([a-z]+)((?: [^#\n]*)?)`)
	flag := regexp.MustCompile(`--([a-z-]+)`)
	for name, page := range files(t, ".md") {
		_, code := prose(page)
		for _, m := range line.FindAllStringSubmatch(code, -1) {
			if !known[m[1]] {
				t.Errorf("%s: mysqllock %s: no such command", name, m[1])
			}
			own, _, _ := strings.Cut(m[2]+" ", " -- ")
			for _, f := range flag.FindAllStringSubmatch(own, -1) {
				if !strings.Contains(source.String(), `"`+f[1]+`"`) {
					t.Errorf("%s: mysqllock %s --%s: no such flag", name, m[1], f[1])
				}
			}
		}
	}
}

// The exit statuses of run, in the page of the command, are those of its help.
func TestExitStatuses(t *testing.T) {
	dir := filepath.Join(root, "cmd", "mysqllock")
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	source, err := os.ReadFile(filepath.Join(dir, "main.go"))
	require.NoError(t, err)
	var told, helped []string
	for _, m := range regexp.MustCompile(`(?m)^\| (1\d\d[^|]*) \|`).FindAllStringSubmatch(string(page), -1) {
		told = append(told, strings.Split(m[1], ", ")...)
	}
	for _, m := range regexp.MustCompile(`(?m)^  (1\d\d\S*)  `).FindAllStringSubmatch(string(source), -1) {
		helped = append(helped, m[1])
	}
	require.Greater(t, len(told), 5)
	require.ElementsMatch(t, helped, told)
}

// Go code comes from files that are compiled, most of it from examples that run.
// A comment "// ..." stands for what is left out.
func TestSnippets(t *testing.T) {
	flat := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	var all strings.Builder
	for _, text := range files(t, ".go") {
		all.WriteString(flat(text) + "\n")
	}
	sources := all.String()
	found := 0
	for name, page := range files(t, ".md") {
		for _, b := range blocks(page) {
			if b.language != "go" {
				continue
			}
			found++
			for part := range strings.SplitSeq(b.text, "// ...") {
				part, _, _ = strings.Cut(part, " // yours") // a remark of the pages of notify
				if !strings.Contains(sources, flat(part)) {
					t.Errorf("%s:%d: not in any source:\n%s", name, b.line, part)
				}
			}
		}
	}
	require.Greater(t, found, 5)
}

// What looks like a name of the library is one: With…, Err… and the like in
// code, and names that follow a link to a source file.
func TestNames(t *testing.T) {
	sources := files(t, ".go")
	var library strings.Builder
	for name, text := range sources {
		if (!strings.Contains(name, "/") || strings.HasPrefix(name, "notify/")) && !strings.HasSuffix(name, "_test.go") {
			library.WriteString(text)
		}
	}
	has := func(text, name string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(text)
	}
	exported := regexp.MustCompile(`\b(?:With|Err)[A-Z]\w*|\b(?:TryLock|ForceUnlock|Stats|Locker)\.[A-Z]\w*`)
	placed := regexp.MustCompile("\\]\\(([^)]+\\.(?:go|sql))\\):?((?:,? `[\\w.]+`)+)")
	names := regexp.MustCompile("`([\\w.]+)`")
	test := regexp.MustCompile(`\bTest[A-Z]\w+`)
	reproduction := regexp.MustCompile(`(?m)^scripts/reproduce\.sh .*$`) // of a test as it was called then
	var tests strings.Builder
	for name, text := range sources {
		if strings.HasSuffix(name, "_test.go") {
			tests.WriteString(text)
		}
	}
	for name, page := range guides(t) {
		text, code := prose(page)
		for _, s := range exported.FindAllString(strings.Join(span.FindAllString(text, -1), "\n"), -1) {
			if i := strings.IndexByte(s, '.'); !has(library.String(), s[i+1:]) {
				t.Errorf("%s: %s is not in the library", name, s)
			}
		}
		for _, s := range test.FindAllString(reproduction.ReplaceAllString(code, ""), -1) {
			if !strings.Contains(tests.String(), "func "+s+"(") {
				t.Errorf("%s: there is no %s", name, s)
			}
		}
		for _, m := range placed.FindAllStringSubmatch(text, -1) {
			path := filepath.ToSlash(filepath.Join(filepath.Dir(name), m[1]))
			source, err := os.ReadFile(filepath.Join(root, path))
			require.NoError(t, err)
			for _, n := range names.FindAllStringSubmatch(m[2], -1) {
				if !has(string(source), n[1]) {
					t.Errorf("%s: %s has no %s", name, path, n[1])
				}
			}
		}
	}
}

// The table of records in operations.md has all that the library logs above
// debug, and nothing else.
func TestLogRecords(t *testing.T) {
	page, err := os.ReadFile("operations.md")
	require.NoError(t, err)
	told := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (error|warn|info) \\| `([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		told[m[2]] = m[1]
	}
	logged := map[string]string{}
	call := regexp.MustCompile(`[lL]og\.(Error|Warn|Info|Log)\((?:[\w.]+, [\w.()]+, )?"mysqllock: ([^"]+)"`)
	for name, text := range files(t, ".go") {
		if strings.Contains(name, "/") && !strings.HasPrefix(name, "internal/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(text, -1) {
			level := strings.ToLower(m[1])
			if level == "log" { // decided as it runs
				level = told[m[2]]
			}
			logged[m[2]] = level
		}
	}
	require.Equal(t, logged, told)
}

// Every column of the table is explained in operations.md.
func TestColumns(t *testing.T) {
	page, err := os.ReadFile("operations.md")
	require.NoError(t, err)
	columns := regexp.MustCompile(`(?m)^  ([a-z_]+) +[A-Z]`).FindAllStringSubmatch(mysqllock.Schema, -1)
	require.GreaterOrEqual(t, len(columns), 10)
	for _, c := range columns {
		require.Contains(t, string(page), "\n| `"+c[1]+"` |")
	}
}

// Queries run on both servers, and those that read find what they are to find:
// a lock that is held, by its own lease or by a session, exclusively or shared, waited for,
// guarded, long held, expired, and idle, and a permit.
func TestQueries(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			for name, page := range guides(t) {
				for _, b := range blocks(page) {
					if b.language == "sql" {
						t.Run(fmt.Sprintf("%s:%d", name, b.line), func(t *testing.T) { runQueries(t, kind, b) })
					}
				}
			}
		})
	}
}

var (
	before = regexp.MustCompile(`^<!-- before: (.*) -->$`) // what a block needs; else occupy
	reads  = regexp.MustCompile(`^(?:SELECT|WITH)\b`)
)

func runQueries(t *testing.T, kind string, b block) {
	db := newDB(t, kind)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := db.Conn(ctx) // SET is for a session
	require.NoError(t, err)
	defer conn.Close()
	var database string
	require.NoError(t, conn.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database))
	service := fmt.Sprintf("service%d", rand.Uint32())
	if strings.Contains(b.text, "service") {
		_, err := conn.ExecContext(ctx, "CREATE USER "+service)
		require.NoError(t, err)
		defer conn.ExecContext(ctx, "DROP USER "+service)
	}
	if m := before.FindStringSubmatch(b.before); m != nil {
		_, err := conn.ExecContext(ctx, m[1])
		require.NoError(t, err)
	} else {
		occupy(ctx, t, db)
	}
	for statement := range strings.SplitSeq(b.text, ";\n") {
		statement = strings.TrimSpace(statement)
		statement = strings.ReplaceAll(statement, "db.mysqllock", database+".mysqllock")
		statement = strings.ReplaceAll(statement, "service", service)
		if statement == "" {
			continue
		}
		rows, err := conn.QueryContext(ctx, statement)
		require.NoError(t, err, statement)
		found, unknown := 0, 0
		var names, held []string
		columns, err := rows.Columns()
		require.NoError(t, err)
		for rows.Next() {
			found++
			row := make([]sql.NullString, len(columns))
			targets := make([]any, len(columns))
			for i := range row {
				targets[i] = &row[i]
			}
			require.NoError(t, rows.Scan(targets...))
			if i := slices.IndexFunc(columns, func(c string) bool { return c == "name" || c == "name_text" }); i >= 0 {
				names = append(names, row[i].String)
			}
			if i := slices.Index(columns, "held"); i >= 0 {
				held = append(held, row[i].String)
			}
			if i := slices.Index(columns, "connection"); i >= 0 && !row[i].Valid {
				unknown++
			}
		}
		require.NoError(t, rows.Err(), statement)
		require.NoError(t, rows.Close())
		if reads.MatchString(statement) {
			require.Positive(t, found, "finds nothing: %s", statement)
			require.Zero(t, unknown, "does not find the connection: %s", statement)
			if slices.Contains(columns, "held") {
				require.Subset(t, held, []string{"exclusive", "shared", "slot 1"}, statement)
			}
			switch {
			case slices.Contains(columns, "expired_at"):
				require.Contains(t, names, "job:dead")
				require.NotContains(t, names, "job:kept", "its session is alive: %s", statement)
				require.NotContains(t, names, "job:done", "UnlockAfter ended it: %s", statement)
			case slices.Contains(columns, "acquired_at"):
				require.Contains(t, names, "job:kept", "its session is alive: %s", statement)
				require.NotContains(t, names, "claimed", "nobody holds it: %s", statement)
				if slices.Contains(columns, "slot") {
					require.Subset(t, names, []string{"catalog", "api", "order:42"})
				}
			}
		}
	}
}

// occupy brings the table into a state in which every query has something to
// find, until the test ends.
func occupy(ctx context.Context, t *testing.T, db *sql.DB) {
	locker, err := mysqllock.New(db)
	require.NoError(t, err)
	t.Cleanup(func() { locker.Close() })
	_, err = db.ExecContext(ctx, `INSERT INTO mysqllock (name, owner, holder, holds, token, acquired_at, expires_at, released_at) VALUES
('job:dead', 'x-1', 'app-3:811', 1, 1000, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6) - INTERVAL 59 MINUTE, '1970-01-01'),
('job:long', 'y-1', 'app-4:907', 1, 2000, UTC_TIMESTAMP(6) - INTERVAL 3 HOUR, UTC_TIMESTAMP(6) + INTERVAL 5 SECOND, '1970-01-01'),
('job:done', '+5000000000000000004-1', 'app-8:2', 0, 2500, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6) - INTERVAL 5 MINUTE, '1970-01-01'),
('job:idle', '-9-1', 'app-5:12', 0, 3000, UTC_TIMESTAMP(6) - INTERVAL 90 DAY, '1970-01-01', UTC_TIMESTAMP(6) - INTERVAL 90 DAY)`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO mysqllock (name, mode, owner, holder, token, acquired_at, expires_at) VALUES
('claimed', 1, '5000000000000000003-1', 'app-7:5', 5000, UTC_TIMESTAMP(6) - INTERVAL 3 HOUR, UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE)`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO mysqllock (name, owner, holder, holds, token, session, acquired_at, expires_at) VALUES
('job:kept', '5000000000000000001-1', 'app-6:77', 1, 4000, 5000000000000000002, UTC_TIMESTAMP(6) - INTERVAL 4 HOUR, UTC_TIMESTAMP(6) - INTERVAL 3 HOUR),
(CONCAT(x'00', '5000000000000000001'), '', 'app-6:77', 0, 0, 5000000000000000002, '1970-01-01', UTC_TIMESTAMP(6) + INTERVAL 20 SECOND)`)
	require.NoError(t, err)

	_, err = locker.TryRLock(ctx, "catalog", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	_, err = locker.Semaphore("api", 3).TryAcquire(ctx, 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	lock, err := locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	tx, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	require.NoError(t, lock.Guard(ctx, tx))

	other, err := mysqllock.New(db)
	require.NoError(t, err)
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.Lock(waiting, "order:42", mysqllock.AutoRenew)
	}()
	t.Cleanup(func() { cancel(); <-done; other.Close() })
	listening := `SELECT COUNT(IS_USED_LOCK(CONCAT('mysqllock:', LEFT(waiters, 19)))) FROM mysqllock WHERE name = 'order:42'`
	require.Eventually(t, func() bool {
		var n int
		return db.QueryRowContext(ctx, listening).Scan(&n) == nil && n == 1
	}, 20*time.Second, 10*time.Millisecond)
}
