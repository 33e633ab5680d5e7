package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

var update = flag.Bool("update", false, "write the figures of the results into the pages")

// A result is what the runs of torture on one server have told, all together.
type result map[string]string

// together combines the same figure of two runs: numbers and lengths are added,
// of the longest and the smallest times one is taken.
func together(what, a, b string) (string, error) {
	switch {
	case what == "seed":
		return a + ", " + b, nil
	case strings.HasPrefix(what, "longest"), strings.HasPrefix(what, "smallest"), what == "length":
		d, err1 := time.ParseDuration(a)
		e, err2 := time.ParseDuration(b)
		switch {
		case what == "length":
			d += e
		case strings.HasPrefix(what, "smallest"):
			d = min(d, e)
		default:
			d = max(d, e)
		}
		return d.String(), cmp.Or(err1, err2)
	}
	n, err1 := strconv.Atoi(a)
	m, err2 := strconv.Atoi(b)
	return fmt.Sprint(n + m), cmp.Or(err1, err2)
}

var figure = regexp.MustCompile(`(?m)^\| ([^|\n]+) \| ([^|\n]*) ?\|$`)

// resultOf reads the tables that torture has written.
func resultOf(text string) (result, error) {
	r := result{}
	for _, m := range figure.FindAllStringSubmatch(text, -1) {
		what, value := m[1], strings.TrimSpace(m[2])
		if value == "" {
			r["version"] = what
			continue
		}
		if before, ok := r[what]; ok {
			var err error
			if value, err = together(what, before, value); err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
		}
		r[what] = value
	}
	return r, nil
}

func TestResult(t *testing.T) {
	first := "## `x`\n\n| 9.7 | |\n|---|---:|\n| length | 1m0s |\n| seed | 7 |\n| smallest time | 3ms |\n| longest wait | 1s |\n| fault: cut | 4 |\n"
	second := "\n| 9.7 | |\n|---|---:|\n| length | 30m2s |\n| seed | 8 |\n| smallest time | 2ms |\n| longest wait | 3s |\n| fault: cut | 5 |\n| fault: slow | 1 |\n"
	r, err := resultOf(first + second)
	require.NoError(t, err)
	require.Equal(t, result{
		"version": "9.7", "length": "31m2s", "seed": "7, 8", "smallest time": "2ms", "longest wait": "3s",
		"fault: cut": "9", "fault: slow": "1",
	}, r)
}

// figuresOf is the part of reliability.md that is made of results.
func figuresOf(results map[string]result) string {
	var b strings.Builder
	row := func(what string, value func(r result) string) {
		fmt.Fprintf(&b, "| %s |", what)
		for _, kind := range mysqltest.Kinds {
			fmt.Fprintf(&b, " %s |", cmp.Or(value(results[kind]), "–"))
		}
		b.WriteByte('\n')
	}
	named := func(what string) func(result) string { return func(r result) string { return r[what] } }
	row("", func(r result) string { return r["version"] })
	b.WriteString("|---|" + strings.Repeat("---:|", len(mysqltest.Kinds)) + "\n")
	faults := map[string]bool{}
	row("**faults made**", func(r result) string {
		sum := 0
		for what, value := range r {
			if !strings.HasPrefix(what, "fault: ") {
				continue
			}
			faults[what] = true
			if !strings.Contains(what, "of the interfering transaction") { // what came of others
				n, _ := strconv.Atoi(value)
				sum += n
			}
		}
		return strings.TrimPrefix(fmt.Sprint(sum), "0")
	})
	for _, what := range []string{
		"length", "seed", "cycles of faults", "lock cycles (acquired and released)",
		"losses reported before another owner's grant", "smallest time between the report of a loss and another owner's grant",
		"losses reported later, by a process that had been paused",
		"longest until a waiter was served after a restart", "longest until a waiter was served after a restart, amid other faults", "restarts not judged, the machine was too busy",
		"longest until nothing was left of failed calls",
		"guarded commits", "refused by the guard", "refused by the guard before the loss was reported",
		"register writes", "refused by the register", "histories too long for porcupine",
	} {
		row(what, func(r result) string {
			if strings.HasPrefix(what, "longest until a waiter") && r[what] == "0s" {
				return "none was judged"
			}
			return r[what]
		})
	}
	for _, what := range slices.Sorted(maps.Keys(faults)) {
		row(what, named(what))
	}
	return b.String()
}

// The figures of reliability.md are those of torture/results.
func TestLongRuns(t *testing.T) {
	results := map[string]result{}
	for _, kind := range mysqltest.Kinds {
		text, err := os.ReadFile(filepath.Join(root, "torture", "results", kind+".md"))
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		results[kind], err = resultOf(string(text))
		require.NoError(t, err)
	}
	page, err := os.ReadFile("reliability.md")
	require.NoError(t, err)
	part := regexp.MustCompile(`(?s)<!-- figures -->\n.*<!-- end of figures -->`)
	require.True(t, part.Match(page))
	want := part.ReplaceAllLiteralString(string(page), "<!-- figures -->\n"+figuresOf(results)+"<!-- end of figures -->")
	if *update {
		require.NoError(t, os.WriteFile("reliability.md", []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "go test ./docs -run TestLongRuns -update")
}

// reliability.md counts the models and their conditions.
func TestModels(t *testing.T) {
	models, err := filepath.Glob(filepath.Join(root, "internal", "model", "*.pml"))
	require.NoError(t, err)
	tests, err := os.ReadFile(filepath.Join(root, "internal", "model", "model_test.go"))
	require.NoError(t, err)
	page, err := os.ReadFile("reliability.md")
	require.NoError(t, err)
	require.Contains(t, string(page), fmt.Sprintf("%d models", len(models)))
	require.Contains(t, string(page), fmt.Sprintf("any one of %d conditions", strings.Count(string(tests), "-DBUG_")))
}

// reliability.md speaks of every fault of the torture run.
func TestFaults(t *testing.T) {
	var source []byte
	for _, file := range []string{"nemesis.go", "handoff.go"} {
		part, err := os.ReadFile(filepath.Join(root, "torture", file))
		require.NoError(t, err)
		source = append(source, part...)
	}
	page, err := os.ReadFile("reliability.md")
	require.NoError(t, err)
	text, _, _ := strings.Cut(string(page), "<!-- figures -->")
	faults := regexp.MustCompile(`(?m)\{"([^"]+)", "\w+", \w+`).FindAllStringSubmatch(string(source), -1)
	require.GreaterOrEqual(t, len(faults), 27)
	for _, f := range faults {
		assert.Contains(t, text, "`"+f[1]+"`")
	}
}

// Commands that reproduce a bug name commits of this history, and tests that are
// there.
func TestReproductions(t *testing.T) {
	page, err := os.ReadFile("reliability.md")
	require.NoError(t, err)
	commands := regexp.MustCompile("`scripts/reproduce\\.sh (?:-t (\\w+) )?(\\w+) (Test\\w+)(?:/\\w+)?(?: \\./\\w+)?`").FindAllStringSubmatch(string(page), -1)
	require.Len(t, commands, strings.Count(string(page), "`scripts/reproduce.sh "))
	require.NotEmpty(t, commands)
	shallow, err := exec.Command("git", "-C", root, "rev-parse", "--is-shallow-repository").Output()
	if err != nil || strings.TrimSpace(string(shallow)) == "true" {
		t.Skip("not in a clone with its history")
	}
	for _, c := range commands {
		for _, commit := range c[1:3] {
			if commit != "" {
				assert.NoError(t, exec.Command("git", "-C", root, "merge-base", "--is-ancestor", commit, "HEAD").Run(), commit)
			}
		}
	}
}
