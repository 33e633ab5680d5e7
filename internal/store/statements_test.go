package store

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each file of sql is loaded or included, begins with a comment, which for a statement has a
// truth table, and has only placeholders that some code replaces.
func TestSQLFiles(t *testing.T) {
	var code, sources strings.Builder
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range paths {
		if source, err := os.ReadFile(path); assert.NoError(t, err) && !strings.HasSuffix(path, "_test.go") {
			code.Write(source)
		}
	}
	names := map[string]string{} // of the files, with their sources
	require.NoError(t, fs.WalkDir(embedded, "sql", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		source, err := fs.ReadFile(embedded, path)
		name, found := strings.CutSuffix(strings.TrimPrefix(path, "sql/"), ".sql")
		assert.True(t, found, path)
		names[name] = string(source)
		sources.Write(source)
		return err
	}))
	for name, source := range names {
		fragment, included := strings.CutPrefix(name, "fragments/")
		assert.True(t, strings.Contains(code.String(), `"`+name+`"`) || included && strings.Contains(sources.String(), "{>"+fragment+"}"), "%s is not used", name)
		assert.Regexp(t, `^-- [A-Z]`, source, name)
		if !included {
			assert.Contains(t, source, "\n-- |--", "%s has no truth table", name)
		}
		text := statements[name]
		assert.NotEmpty(t, text, name)
		assert.NotContains(t, text, ";", name)
		assert.Equal(t, strings.Count(text, "("), strings.Count(text, ")"), name)
		for _, placeholder := range regexp.MustCompile(`\{(.*?)\}`).FindAllStringSubmatch(text, -1) {
			assert.Contains(t, code.String(), `"`+placeholder[1]+`"`, "%s: {%s}", name, placeholder[1])
		}
		// Spaces are removed without regard to quotes.
		for _, quoted := range regexp.MustCompile("'[^']*'").FindAllString(source[strings.LastIndex(source, "\n--")+1:], -1) {
			assert.NotRegexp(t, `\s\s|\( | \)`, quoted, name)
		}
	}
}

// The code names only statements that exist.
func TestNamesOfStatements(t *testing.T) {
	position := map[string]int{ // of the name among the arguments
		"query": 0, "command": 0, "batchCommand": 0, "acquireCommand": 1, "claimCommand": 1, "sharedCommand": 2,
		"get": 3, "selectAll": 3, "getReserved": 2, "readInfos": 1, "eachBatch": 1, "writeRow": 4, "send": 0, "lock": 0,
	}
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			called, _ := call.Fun.(*ast.Ident)
			if method, ok := call.Fun.(*ast.SelectorExpr); ok {
				called = method.Sel
			}
			if i, ok := position[fmt.Sprint(called)]; ok && i < len(call.Args) {
				if literal, ok := call.Args[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					assert.NotEmpty(t, statements[strings.Trim(literal.Value, `"`)], "%s: %s", path, literal.Value)
					found++
				}
			}
			return true
		})
	}
	require.Greater(t, found, 70)
}

func TestLoad(t *testing.T) {
	dir := fstest.MapFS{}
	for name, source := range map[string]string{
		"plain":            "-- Comment.\n-- | {>no} |\nSELECT 1\n",
		"lines":            "-- Comment.\r\nSELECT COUNT(\r\n    *\r\n  ),\r\n  -- Comment.\r\n\t2\r\n",
		"hints":            "/*M! SET STATEMENT x = 1 FOR */\nSELECT /*+ MAX_EXECUTION_TIME(1) */ 1",
		"includes":         "-- Comment.\nSELECT {>outer}, ({>inner})",
		"fragments/outer":  "-- Comment.\n2 * {>inner}\n",
		"fragments/inner":  "-- Comment.\n{r}a\n",
		"unknown":          "SELECT {>none}",
		"behind":           "SELECT 1 -- one\n, 2",
		"unfinished":       "SELECT {>inner",
		"fragments/absent": "{>none}",
		"nested":           "SELECT {>absent}",
	} {
		dir["sql/"+name+".sql"] = &fstest.MapFile{Data: []byte(source)}
	}
	files := statementFiles{dir, map[string]string{}}
	for name, want := range map[string]string{
		"plain":    "SELECT 1",
		"lines":    "SELECT COUNT(*), 2",
		"hints":    "/*M! SET STATEMENT x = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1) */ 1",
		"includes": "SELECT 2 * {r}a, ({r}a)",
	} {
		assert.Equal(t, want, files.load(name), name)
	}
	for _, name := range []string{"missing", "unknown", "behind", "unfinished", "nested"} {
		assert.Panics(t, func() { files.load(name) }, name)
	}
}

// A time limit is lifted beside what a statement sets itself.
func TestUnlimited(t *testing.T) {
	require.Equal(t, "/*M! SET STATEMENT max_statement_time = 60 FOR */ UPDATE t", unlimited("UPDATE t"))
	require.Equal(t, "/*M! SET STATEMENT max_statement_time = 60, a = 0 FOR */ UPDATE t", unlimited("/*M! SET STATEMENT a = 0 FOR */ UPDATE t"))
}
