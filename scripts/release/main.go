// Command release proves that a version of the library can be released, and tags it:
//
//	go run . v0.1.0         # proves it for HEAD
//	go run . -tag v0.1.0    # proves it, then makes the release commit and its tags
//	go run . -tagged v0.1.0 # proves that HEAD is a release commit
//
// The nested modules are developed against the checkout (replace). A released one must require
// the released root instead: `go install` refuses replaced modules, and everybody else ignores the
// replacement. So all tags are on a release commit, a child of HEAD that differs from it only in go.mod
// and go.sum of the nested modules. docs/releasing.md has the steps.
//
// The proof serves the modules of that commit from a directory, as a module proxy would. With an
// empty module cache, a program that imports each of their packages is vetted and built, and the
// command is installed.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

const rootPath = "github.com/mysqllock/mysqllock"

// published are the directories of the modules that a program may require.
var published = []string{
	"", "cmd/mysqllock", "notify/redis", "notify/nats", "metrics/prometheus", "metrics/otel", "with/gocron", "with/grpc",
}

// unpublished are those of modules for the development of this one.
var unpublished = []string{"bench", "integration", "scripts/release", "torture"}

// command is the module with a program to install.
const command = "cmd/mysqllock"

func main() {
	log.SetFlags(0)
	tag := flag.Bool("tag", false, "make the release commit and its tags in this repository, if the proof succeeds")
	tagged := flag.Bool("tagged", false, "HEAD is the release commit already: nothing may be left to prepare")
	keep := flag.Bool("keep", false, "keep the directory of the proof")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: release [-tag | -tagged] [-keep] VERSION")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *tag && *tagged {
		flag.Usage()
		os.Exit(2)
	}
	dir, err := os.MkdirTemp("", "mysqllock-release-")
	if err != nil {
		log.Fatal(err)
	}
	err = run(dir, flag.Arg(0), *tag, *tagged)
	if *keep {
		log.Print("kept: ", dir)
	} else {
		exec.Command("chmod", "-R", "u+w", dir).Run() // a module cache is read-only
		os.RemoveAll(dir)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(dir, version string, tag, tagged bool) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	top, err := output(".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	if tag {
		if err := checkTree(top, version); err != nil {
			return err
		}
	}
	r := release{version: version, dir: dir, tree: filepath.Join(dir, "tree"), proxy: filepath.Join(dir, "proxy"), anonymous: !tag, tagged: tagged}
	if err := r.prepare(top); err != nil {
		return err
	}
	if err := r.prove(); err != nil {
		return err
	}
	log.Printf("%s can be released: %s", version, strings.Join(tags(version), " "))
	if !tag {
		return nil
	}
	_, err = output(top, nil, "git", append([]string{"fetch", "--quiet", "--no-tags", r.tree}, refspecs(version)...)...)
	if err == nil {
		log.Printf("Tagged. To publish it: git push origin %s", strings.Join(tags(version), " "))
	}
	return err
}

// checkVersion reports whether all modules can have the version with the paths that they have.
func checkVersion(version string) error {
	if semver.Canonical(version) != version {
		return fmt.Errorf("%q: want a semantic version, such as v0.1.0", version)
	}
	for _, dir := range published {
		if err := module.Check(modulePath(dir), version); err != nil {
			return err
		}
	}
	return nil
}

// checkTree reports whether HEAD can be tagged: committed, with a section in CHANGELOG.
func checkTree(top, version string) error {
	changes, err := output(top, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("not committed:\n%s", changes)
	}
	changelog, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if heading := "\n## [" + version[1:] + "] - "; !strings.Contains(string(changelog), heading) {
		return fmt.Errorf("CHANGELOG.md: no section %q", heading[1:]+"…")
	}
	return nil
}

// checkModules reports whether the nested modules of a tree are those that are known here.
func checkModules(tree string) error {
	list, err := output(tree, nil, "git", "ls-files", "go.mod", "**/go.mod")
	if err != nil {
		return err
	}
	var dirs []string
	for file := range strings.SplitSeq(list, "\n") {
		dirs = append(dirs, strings.TrimSuffix(strings.TrimSuffix(file, "go.mod"), "/"))
	}
	known := slices.Sorted(slices.Values(slices.Concat(published, unpublished)))
	slices.Sort(dirs)
	if !slices.Equal(dirs, known) {
		return fmt.Errorf("the modules are in %q, but scripts/release knows %q", dirs, known)
	}
	return nil
}

func modulePath(dir string) string {
	if dir == "" {
		return rootPath
	}
	return rootPath + "/" + dir
}

// tags are those of a version: the go command finds a nested module by a tag with its directory.
func tags(version string) (all []string) {
	for _, dir := range published {
		all = append(all, strings.TrimPrefix(dir+"/"+version, "/"))
	}
	return all
}

func refspecs(version string) (all []string) {
	for _, tag := range tags(version) {
		all = append(all, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	return all
}

// output runs a command in dir, with additions to the environment, and returns its standard output.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
