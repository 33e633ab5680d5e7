package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/assert/yaml"
	"github.com/stretchr/testify/require"
)

// A workflow has what the tests look at.
type workflow struct {
	On          any
	Permissions map[string]string
	Jobs        map[string]struct {
		Timeout     int               `yaml:"timeout-minutes"`
		Permissions map[string]string `yaml:"permissions"`
		Strategy    struct {
			Matrix map[string][]string `yaml:"matrix"`
		}
		Steps []struct{ Uses, Run string }
	}
}

func read(t *testing.T, path ...string) string {
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	require.NoError(t, err)
	return string(text)
}

func workflows(t *testing.T) map[string]workflow {
	found := map[string]workflow{}
	paths, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	require.NoError(t, err)
	for _, path := range paths {
		var w workflow
		name := filepath.Base(path)
		require.NoError(t, yaml.Unmarshal([]byte(read(t, ".github", "workflows", name)), &w), path)
		found[name] = w
	}
	require.Contains(t, found, "ci.yml")
	return found
}

// Workflows run targets of the Makefile, with actions that cannot change, without secrets or the
// right to write.
func TestWorkflows(t *testing.T) {
	makefile := read(t, "Makefile")
	target := regexp.MustCompile(`\bmake ([a-z][a-z/-]*)`)
	pinned := regexp.MustCompile(`uses: [a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\n`)
	targets := map[string]bool{}
	for name, w := range workflows(t) {
		source := read(t, ".github", "workflows", name)
		assert.NotNil(t, w.On, name)
		assert.Equal(t, map[string]string{"contents": "read"}, w.Permissions, name)
		assert.NotContains(t, source, "secrets.", name)
		assert.NotContains(t, source, "pull_request_target", name)
		assert.Len(t, pinned.FindAllString(source, -1), strings.Count(source, "uses:"), "%s: want uses: owner/action@commit # version", name)
		assert.NotEmpty(t, w.Jobs, name)
		for job, j := range w.Jobs {
			assert.Positive(t, j.Timeout, "%s: %s has no timeout-minutes", name, job)
			assert.Empty(t, j.Permissions, "%s: %s", name, job)
			for _, step := range j.Steps {
				assert.True(t, (step.Uses == "") != (step.Run == ""), "%s: %s: want uses or run", name, job)
				for _, m := range target.FindAllStringSubmatch(step.Run, -1) {
					targets[m[1]] = true
					assert.Contains(t, makefile, "\n"+m[1]+":", "%s: %s: no such target", name, job)
				}
			}
		}
	}
	for _, want := range []string{"lint", "platforms", "check", "test", "integration", "fuzz", "torture", "release"} {
		assert.True(t, targets[want], "no workflow runs make %s", want)
	}
}

// The workflow runs the images that integration/ runs by default, and versions.md names them.
func TestImages(t *testing.T) {
	all := regexp.MustCompile(`allImages += "([^"]+)"`).FindStringSubmatch(read(t, "integration", "images_test.go"))
	require.NotNil(t, all)
	images := workflows(t)["ci.yml"].Jobs["images"].Strategy.Matrix["image"]
	require.Equal(t, strings.Split(all[1], ","), images)
	for _, image := range images {
		require.Contains(t, read(t, "docs", "versions.md"), "`"+image+"`")
	}
}

// All modules have one go directive. The workflow tests that version, and the newest.
func TestGoVersion(t *testing.T) {
	directive := regexp.MustCompile(`(?m)^go (\S+)$`)
	lowest := directive.FindStringSubmatch(read(t, "go.mod"))[1]
	for name, text := range files(t, "go.mod") {
		assert.Equal(t, lowest, directive.FindStringSubmatch(text)[1], name)
		assert.NotContains(t, text, "\ntoolchain ", name)
	}
	require.ElementsMatch(t, []string{lowest, "stable"}, workflows(t)["ci.yml"].Jobs["check"].Strategy.Matrix["go"])
	require.Contains(t, read(t, "README.md"), "Go "+strings.TrimSuffix(lowest, ".0"))
}

// The forms of issues are those that GitHub accepts, and lead to pages that are there.
func TestIssueForms(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, ".github", "ISSUE_TEMPLATE", "*.yml"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	kinds := []string{"markdown", "textarea", "input", "dropdown", "checkboxes"}
	for _, path := range append(paths, filepath.Join(root, ".github", "pull_request_template.md")) {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`/blob/main/([\w./-]+)(?:#([\w-]+))?`).FindAllStringSubmatch(string(source), -1) {
			page := read(t, strings.Split(m[1], "/")...)
			assert.True(t, m[2] == "" || anchors(page)[m[2]], "%s: %s", path, m[0])
		}
		if filepath.Ext(path) != ".yml" || filepath.Base(path) == "config.yml" {
			continue
		}
		var form struct {
			Name, Description string
			Body              []struct {
				Type, ID   string
				Attributes map[string]any
			}
		}
		require.NoError(t, yaml.Unmarshal(source, &form), path)
		assert.NotEmpty(t, form.Name, path)
		assert.NotEmpty(t, form.Description, path)
		ids := map[string]bool{}
		for _, b := range form.Body {
			assert.True(t, slices.Contains(kinds, b.Type), "%s: %s", path, b.Type)
			assert.NotEmpty(t, b.Attributes, path)
			assert.False(t, b.Type != "markdown" && ids[b.ID], "%s: %s twice", path, b.ID)
			ids[b.ID] = true
		}
	}
}
