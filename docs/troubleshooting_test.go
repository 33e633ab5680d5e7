package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// linkedPackages are the directories whose errors and log records a program that uses the library can meet.
var linkedPackages = []string{
	".", "internal/background", "internal/lease", "internal/outage", "internal/queue", "internal/store", "internal/undo",
	"internal/wake", "leader", "metrics/otel", "metrics/prometheus", "notify/nats", "notify/redis", "with/gocron", "with/grpc", "with/http",
}

var (
	verb    = regexp.MustCompile(`%[-+# 0]*[0-9.]*[a-zA-Z]`)
	letters = regexp.MustCompile(`[a-z]{2}`)
)

// messages are the texts of errors, and of debug records, in Go source; "…" stands for what a
// call fills in.
func messages(t *testing.T, name, source string) (found []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		function, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		receiver := ""
		switch x := function.X.(type) {
		case *ast.Ident:
			receiver = x.Name
		case *ast.SelectorExpr:
			receiver = x.Sel.Name
		}
		switch receiver + "." + function.Sel.Name {
		case "errors.New", "fmt.Errorf", "log.Debug", "Log.Debug":
			literal, ok := call.Args[0].(*ast.BasicLit)
			require.True(t, ok, "%s: the text of an error is not a literal", name)
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if text = verb.ReplaceAllString(text, "…"); letters.MatchString(text) {
				found = append(found, text)
			}
		}
		return true
	})
	return found
}

func TestMessages(t *testing.T) {
	require.Equal(t, []string{"lost", "mysqllock: not done", "list …: …"}, messages(t, "x.go", `package x
var a, b, c = errors.New("lost"), fmt.Errorf("%w: %w", d, e), l.x.log.Debug("mysqllock: not done", "err", err)
func init() { _ = fmt.Errorf("list %q: %-3d", f) }`))
}

// troubleshooting.md has each text of an error and of a debug record, and no other; operations.md
// has the other log records.
func TestTroubleshooting(t *testing.T) {
	page, err := os.ReadFile("troubleshooting.md")
	require.NoError(t, err)
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`.*?`(?:, `.*?`)*) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, text := range strings.Split(strings.Trim(m[1], "`"), "`, `") {
			explained[text] = true
		}
	}
	written := map[string]bool{}
	for name, source := range files(t, ".go") {
		if slices.Contains(linkedPackages, path.Dir(name)) && !strings.HasSuffix(name, "_test.go") {
			for _, text := range messages(t, name, source) {
				written[text] = true
				assert.True(t, explained[text], "%s: troubleshooting.md has no row `%s`", name, text)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(explained)) {
		assert.True(t, written[text], "troubleshooting.md: there is no message `%s`", text)
	}
}
