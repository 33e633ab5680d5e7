package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// MariaDB118 is a further kind of server, which is not in Kinds. scripts/mariadb-11.8.sh fetches it.
const MariaDB118 = "mariadb-11.8"

// Find returns nil if there is a server of a kind, and otherwise an error that names the remedy.
func Find(kind string) error {
	if os.Getenv(dsnVariable(kind)) != "" {
		return nil
	}
	_, err := find(kind)
	return err
}

// isMariaDB118 reports whether servers of a kind are MariaDB 11.8 from the cache. Those of kind "mariadb"
// are, if MYSQLLOCK_TEST_MARIADB is 11.8.
func isMariaDB118(kind string) bool {
	return kind == MariaDB118 || kind == "mariadb" && os.Getenv("MYSQLLOCK_TEST_MARIADB") == "11.8"
}

// A program is the binary of a server.
type program struct {
	kind    string
	argv    []string // the command, and the flags that its location requires
	share   []string // directories that may have its SQL files
	version string   // the output of --version
}

// find searches for a server in the same order as scripts/servers.sh, which can fetch a missing one.
func find(kind string) (*program, error) {
	if isMariaDB118(kind) {
		if p := extracted("mariadb", filepath.Join(cacheDir(), MariaDB118)); p != nil && p.identify() {
			return p, nil
		}
		return nil, errors.New("mysqltest: no MariaDB 11.8 found: run scripts/mariadb-11.8.sh")
	}
	names := map[string][]string{"mysql": {"mysqld"}, "mariadb": {"mariadbd", "mysqld"}}[kind]
	for _, name := range names {
		paths := []string{"/usr/sbin/" + name, "/usr/local/sbin/" + name, "/usr/libexec/" + name}
		if path, err := exec.LookPath(name); err == nil {
			paths = append([]string{path}, paths...)
		}
		for _, path := range paths {
			prefix := filepath.Dir(filepath.Dir(path))
			p := &program{kind: kind, argv: []string{path, "--no-defaults"}, share: []string{
				prefix + "/share/mysql", prefix + "/share/mariadb", "/usr/share/mysql", "/usr/share/mariadb",
			}}
			if p.identify() {
				return p, nil
			}
		}
	}
	if kind == "mysql" {
		if p := extracted("mysql", filepath.Join(cacheDir(), "mysql")); p != nil && p.identify() {
			return p, nil
		}
	}
	return nil, fmt.Errorf("mysqltest: no %s server found: run scripts/servers.sh, or set %s to the DSN of one, "+
		"or use Docker with `make integration`", kind, dsnVariable(kind))
}

// extracted returns a server whose packages were unpacked into root, or nil if they were not.
func extracted(kind, root string) *program {
	share, daemon := root+"/usr/share/"+kind, map[string]string{"mysql": "mysqld", "mariadb": "mariadbd"}[kind]
	argv := extractedArgv(root, "sbin/"+daemon, "mysql/private")
	if argv == nil {
		return nil
	}
	return &program{kind: kind, share: []string{share}, argv: append(argv,
		"--no-defaults", "--basedir="+root+"/usr", "--lc-messages-dir="+share, "--plugin-dir="+root+"/usr/lib/mysql/plugin")}
}

// extractedArgv returns the command of a program whose packages were unpacked into root, or nil if they
// were not. Since they are not installed, the program runs with the loader and the C library among them.
// libraries is the directory of its other libraries, below usr/lib.
func extractedArgv(root, name, libraries string) []string {
	loaders, _ := filepath.Glob(root + "/usr/lib/*/ld-linux*")
	if len(loaders) == 0 {
		return nil
	}
	return []string{loaders[0], "--library-path", filepath.Dir(loaders[0]) + ":" + root + "/usr/lib/" + libraries, root + "/usr/" + name}
}

// identify reports whether the program runs and is of the expected kind. A mysqld is often MariaDB.
func (p *program) identify() bool {
	out, err := exec.Command(p.argv[0], append(p.argv[1:], "--version")...).Output()
	p.version = strings.TrimSpace(string(out))
	return err == nil && kindOf(p.version) == p.kind
}

// kindOf returns the kind of a server with a version string.
func kindOf(version string) string {
	if strings.Contains(version, "MariaDB") {
		return "mariadb"
	}
	return "mysql"
}

// cacheDir returns the directory in which scripts/servers.sh keeps what it has fetched. It is kept between
// test runs.
func cacheDir() string {
	if dir := os.Getenv("MYSQLLOCK_CACHE"); dir != "" {
		return dir
	}
	dir, _ := os.Getwd()
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		mod, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(mod), "module github.com/mysqllock/mysqllock\n") {
			return filepath.Join(dir, ".cache")
		}
	}
	dir, _ = os.UserCacheDir()
	return filepath.Join(dir, "mysqllock")
}
