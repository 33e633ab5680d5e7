// Command mutation removes necessary conditions from the source of the library, one at a time, and runs
// the tests that must then fail:
//
//	go run ./internal/mutation [-run regexp] [-timeout duration] [-v]
//
// It works on a copy. It exits with 1 if the tests pass without a condition, or if no test ran.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	run     = flag.String("run", "", "run only the mutations whose description matches `regexp`")
	verbose = flag.Bool("v", false, "print the output of the tests")
	timeout = flag.Duration("timeout", 3*time.Minute, "time limit of the tests of each mutation")
)

func main() {
	flag.Parse()
	survivors, err := mutate()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if survivors > 0 {
		fmt.Printf("%d mutations survived\n", survivors)
		os.Exit(1)
	}
}

func mutate() (survivors int, err error) {
	chosen, err := regexp.Compile(*run)
	if err != nil {
		return 0, err
	}
	root, err := moduleRoot()
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "mysqllock-mutation-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, sources{os.DirFS(root)}); err != nil {
		return 0, err
	}
	// The tests use the servers that were fetched for the checkout.
	if os.Getenv("MYSQLLOCK_CACHE") == "" {
		os.Setenv("MYSQLLOCK_CACHE", filepath.Join(root, ".cache"))
	}
	fmt.Println("| removed condition | file | a test that fails | s |\n|---|---|---|---:|")
	for _, m := range mutations {
		if !chosen.MatchString(m.what) {
			continue
		}
		start := time.Now()
		failed, err := m.test(work)
		switch {
		case err != nil:
			fmt.Fprintf(os.Stderr, "%s: %v\n", m.what, err)
			survivors++
			failed = "**not run**"
		case failed == "":
			survivors++
			failed = "**none**"
		}
		fmt.Printf("| %s | %s | %s | %.0f |\n", m.what, m.file, failed, time.Since(start).Seconds())
	}
	return survivors, nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/mysqllock/mysqllock").Output()
	return strings.TrimSpace(string(out)), err
}

// apply returns source without the condition. source must contain it exactly once.
func (m mutation) apply(source string) (string, error) {
	if n := strings.Count(source, m.old); n != 1 {
		return "", fmt.Errorf("%s: %q occurs %d times in %s", m.what, m.old, n, m.file)
	}
	return strings.Replace(source, m.old, m.new, 1), nil
}

// pattern returns the argument of go test -run. Unless it names subtests, it matches whole names.
func (m mutation) pattern() string {
	if strings.Contains(m.tests, "/") {
		return m.tests
	}
	return "^(" + m.tests + ")$"
}

// packagesWithTests are the packages whose tests a mutation may name.
var packagesWithTests = []string{".", "./internal/store", "./internal/queue", "./internal/wake", "./internal/undo", "./internal/lease"}

var testName = regexp.MustCompile(`\bTest\w+`)

// packages returns the packages that have tests of the mutation, so that no others are built.
func (m mutation) packages(dir string) (found []string, err error) {
	for _, pkg := range packagesWithTests {
		source, err := testsOf(filepath.Join(dir, pkg))
		if err != nil {
			return nil, err
		}
		has := func(name string) bool { return strings.Contains(source, "func "+name+"(") }
		if slices.ContainsFunc(testName.FindAllString(m.tests, -1), has) {
			found = append(found, pkg)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no package has a test of %s", m.tests)
	}
	return found, nil
}

// testsOf returns the source of all tests in a directory.
func testsOf(dir string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	var all strings.Builder
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		all.Write(source)
	}
	return all.String(), err
}

var (
	failure  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	panicked = regexp.MustCompile(`(?m)^github\.com/mysqllock/mysqllock[\w/]*\.(Test\w+)`)
)

// test runs the tests of a mutation on the copy in dir. It returns the name of one that fails, or "" if all
// pass.
func (m mutation) test(dir string) (failed string, err error) {
	path := filepath.Join(dir, m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutant, err := m.apply(string(source))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, []byte(mutant), 0o644); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, source, 0o644)) }()

	packages, err := m.packages(dir)
	if err != nil {
		return "", err
	}
	args := []string{"test", "-count=1", "-failfast", "-vet=off", "-timeout=" + timeout.String(), "-run=" + m.pattern()}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Dir = dir
	out, ended := cmd.CombinedOutput()
	if *verbose {
		os.Stderr.Write(out)
	}
	if ended == nil {
		return "", nil
	}
	for _, message := range []*regexp.Regexp{failure, panicked} {
		if names := message.FindAllStringSubmatch(string(out), -1); len(names) > 0 {
			return names[len(names)-1][1], nil
		}
	}
	return "", fmt.Errorf("no test ran: %w\n%s", ended, out)
}
