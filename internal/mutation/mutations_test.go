package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The source still contains what each mutation replaces, and the tests that it names exist.
func TestMutations(t *testing.T) {
	root, err := moduleRoot()
	require.NoError(t, err)
	var suite strings.Builder
	for _, pkg := range packagesWithTests {
		source, err := testsOf(filepath.Join(root, pkg))
		require.NoError(t, err)
		suite.WriteString(source)
	}
	for _, m := range mutations {
		source, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err)
		_, err = m.apply(string(source))
		assert.NoError(t, err)
		for _, name := range testName.FindAllString(m.tests, -1) {
			assert.True(t, strings.Contains(suite.String(), "func "+name+"("), "%s: no %s", m.what, name)
		}
	}
}

// README shows the output of the command: a row for each mutation, each with a test that fails.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var shown, want []string
	for _, m := range regexp.MustCompile(`(?m)^\| (.+) \| [\w/]+\.(?:go|sql) \| Test`).FindAllStringSubmatch(string(page), -1) {
		shown = append(shown, m[1])
	}
	for _, m := range mutations {
		want = append(want, m.what)
	}
	require.Equal(t, want, shown)
}
