package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exported calls f with the doc comment and the declaration of each exported function and method
// that a program can call. A method of an unexported type is none.
func exported(t *testing.T, f func(name, dir string, decl *ast.FuncDecl)) {
	for file, source := range files(t, ".go") {
		dir := path.Dir(file)
		public := slices.Contains(linkedPackages, dir) && !strings.HasPrefix(dir, "internal") || dir == "mysqllocktest"
		if !public || strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok || !function.Name.IsExported() {
				continue
			}
			name := function.Name.Name
			if function.Recv != nil {
				receiver := function.Recv.List[0].Type
				if pointer, ok := receiver.(*ast.StarExpr); ok {
					receiver = pointer.X
				}
				of, ok := receiver.(*ast.Ident)
				if !ok || !of.IsExported() {
					continue
				}
				name = of.Name + "_" + name
			}
			f(name, dir, function)
		}
	}
}

// What returns an error says which.
func TestErrorsAreDocumented(t *testing.T) {
	says := regexp.MustCompile(`\berrors?\b|\bErr[A-Z]|\bcause\b`)
	found := 0
	exported(t, func(name, dir string, decl *ast.FuncDecl) {
		if !assert.NotEmpty(t, decl.Doc.Text(), "%s: %s has no comment", dir, name) || decl.Type.Results == nil {
			return
		}
		results := decl.Type.Results.List
		if last, ok := results[len(results)-1].Type.(*ast.Ident); ok && last.Name == "error" {
			found++
			assert.Regexp(t, says, decl.Doc.Text(), "%s: the comment of %s names no error", dir, name)
		}
	})
	require.Greater(t, found, 30)
}

// withoutExample are functions of the root package whose examples are in other packages, or that
// few programs call, or that differ from another by WaitForever alone.
var withoutExample = []string{
	"AcquireInfo_Outcome", "HoldInfo_Outcome", "Locker_RLock", "Semaphore_Acquire", "Semaphore_ForceUnlock", "Semaphore_ForceUnlockSlot",
	"WithNotifier", "WithObserver", "WithoutHandoff", "WithoutSignal",
}

// Each function of the root package that a user calls first has an example, or is called in one, whose
// output is checked.
func TestExamples(t *testing.T) {
	example := regexp.MustCompile(`(?ms)^func Example(\w*)\(\) \{\n(.*?)^\}`)
	called := ""
	for file, source := range files(t, ".go") {
		if path.Dir(file) != "." || !strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range example.FindAllStringSubmatch(source, -1) {
			assert.Regexp(t, `// (?:Unordered o|O)utput:`, m[2], "%s: Example%s has no output", file, m[1])
			called += m[2]
		}
	}
	exported(t, func(name, dir string, _ *ast.FuncDecl) {
		_, method, ok := strings.Cut(name, "_")
		if !ok {
			method = name
		}
		if dir == "." && !slices.Contains(withoutExample, name) {
			assert.True(t, strings.Contains(called, "."+method+"("), "no example calls %s", name)
		}
	})
}
