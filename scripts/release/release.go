package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// A release is the proof for one version.
type release struct {
	version   string
	dir       string // temporary
	tree      string // a clone, in which the release commit is made
	proxy     string // what GOPROXY names
	anonymous bool   // the commit is for the proof alone
	tagged    bool   // there is nothing to commit
}

// env is that of a go command with an empty module cache, which gets the modules of this
// release from the proxy, and all others from the downloads of the usual cache, or as usual.
func (r *release) env() ([]string, error) {
	usual, err := output(r.dir, nil, "go", "env", "GOPROXY", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	ordinary, cache, _ := strings.Cut(usual, "\n")
	return []string{
		"GOPROXY=file://" + filepath.ToSlash(r.proxy) + ",file://" + filepath.ToSlash(cache) + "/cache/download," + ordinary,
		"GONOSUMDB=" + rootPath + "," + rootPath + "/*",
		"GOMODCACHE=" + filepath.Join(r.dir, "modcache"),
		"GOBIN=" + filepath.Join(r.dir, "bin"),
		"GOFLAGS=-trimpath -buildvcs=false", // so that the build cache serves every module cache
		"GOWORK=off",
	}, nil
}

// prepare makes the release commit in a clone of the repository, and tags it.
func (r *release) prepare(top string) error {
	if _, err := output(r.dir, nil, "git", "clone", "--quiet", "--shared", "--no-tags", top, r.tree); err != nil {
		return err
	}
	if err := checkModules(r.tree); err != nil {
		return err
	}
	if err := r.serve(""); err != nil { // nested modules are not in it, so it is final
		return err
	}
	env, err := r.env()
	if err != nil {
		return err
	}
	for _, dir := range published[1:] {
		log.Print("preparing ", dir)
		at := filepath.Join(r.tree, dir)
		if _, err := output(at, env, "go", "mod", "edit", "-dropreplace", rootPath, "-require", rootPath+"@"+r.version); err != nil {
			return err
		}
		if _, err := output(at, env, "go", "mod", "tidy"); err != nil {
			return err
		}
	}
	changed, err := output(r.tree, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if r.tagged && changed != "" {
		return fmt.Errorf("HEAD is no release commit; that would change\n%s", changed)
	}
	for line := range strings.Lines(changed) {
		line = strings.TrimSpace(line)
		if name := filepath.Base(line); name != "go.mod" && name != "go.sum" {
			return fmt.Errorf("the release commit would change %s", line)
		}
	}
	if changed != "" {
		if err := r.commit(); err != nil {
			return err
		}
	}
	for _, dir := range published[1:] {
		if err := r.serve(dir); err != nil {
			return err
		}
	}
	return nil
}

// commit makes the release commit and its tags.
func (r *release) commit() error {
	args := []string{"commit", "--quiet", "--all", "-m", "Release " + r.version}
	if r.anonymous {
		args = append([]string{"-c", "user.name=proof", "-c", "user.email=proof@localhost"}, args...)
	}
	if _, err := output(r.tree, nil, "git", args...); err != nil {
		return err
	}
	for _, tag := range tags(r.version) {
		if _, err := output(r.tree, nil, "git", "tag", tag); err != nil {
			return err
		}
	}
	return nil
}

// serve puts the module in a directory of the clone's last commit into the proxy.
// (https://go.dev/ref/mod#goproxy-protocol)
func (r *release) serve(dir string) error {
	m := module.Version{Path: modulePath(dir), Version: r.version}
	at := filepath.Join(r.proxy, filepath.FromSlash(m.Path), "@v") // none of the paths has capitals
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(r.tree, dir, "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": r.version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"list": []byte(r.version + "\n"), r.version + ".mod": mod, r.version + ".info": info} {
		if err := os.WriteFile(filepath.Join(at, name), data, 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(at, r.version+".zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := zip.CreateFromVCS(f, m, r.tree, "HEAD", dir); err != nil {
		return err
	}
	return f.Close()
}

// prove uses the release as a stranger does.
func (r *release) prove() error {
	env, err := r.env()
	if err != nil {
		return err
	}
	program := filepath.Join(r.dir, "program")
	if err := os.Mkdir(program, 0o755); err != nil {
		return err
	}
	if _, err := output(program, env, "go", "mod", "init", "example.com/program"); err != nil {
		return err
	}
	var imports strings.Builder
	get := []string{"get"}
	for _, dir := range published {
		at := filepath.Join(r.tree, dir)
		log.Print("vetting ", modulePath(dir))
		if _, err := output(at, append(env, "GOFLAGS=-mod=readonly -trimpath -buildvcs=false"), "go", "vet", "./..."); err != nil {
			return fmt.Errorf("the released module in %q: %w", dir, err)
		}
		packages, err := output(at, env, "go", "list", "-f", "{{if .GoFiles}}{{.Name}} {{.ImportPath}}{{end}}", "./...")
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(packages, "\n") {
			name, path, _ := strings.Cut(line, " ")
			if name != "" && name != "main" && !strings.Contains(path+"/", "/internal/") {
				fmt.Fprintf(&imports, "\t_ %q\n", path)
			}
		}
		if dir != command {
			get = append(get, modulePath(dir)+"@"+r.version)
		}
	}
	log.Print("a program that imports all of these:\n", strings.TrimSuffix(imports.String(), "\n"))
	source := "package main\n\nimport (\n" + imports.String() + ")\n\nfunc main() {}\n"
	if err := os.WriteFile(filepath.Join(program, "main.go"), []byte(source), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{get, {"vet", "./..."}, {"build", "-o", filepath.Join(r.dir, "bin", "program"), "."}, {"install", modulePath(command) + "@" + r.version}} {
		log.Print("go ", strings.Join(args, " "))
		if _, err := output(program, env, "go", args...); err != nil {
			return err
		}
	}
	told, err := output(r.dir, nil, filepath.Join(r.dir, "bin", "mysqllock"), "--version")
	if err == nil && !strings.Contains(told, r.version) {
		err = fmt.Errorf("mysqllock --version: %s", told)
	}
	return err
}
