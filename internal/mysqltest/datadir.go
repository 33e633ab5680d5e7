package mysqltest

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// initDatadir creates a data directory. The server initialises the first one for its version and flags,
// which takes MySQL seconds. A copy in the cache is then the template for later ones.
func (p *program) initDatadir(datadir string, guard *guard, extraFlags []string) error {
	flags := append(p.flags(), extraFlags...)
	key := crc32.ChecksumIEEE([]byte(p.version + strings.Join(flags, " ")))
	template := filepath.Join(cacheDir(), fmt.Sprintf("datadir-%s-%08x", p.kind, key))
	if os.CopyFS(datadir, os.DirFS(template)) == nil {
		return nil
	}

	// There is no template, or it belongs to another user.
	if err := os.RemoveAll(datadir); err != nil {
		return err
	}
	if err := os.Mkdir(datadir, 0o700); err != nil {
		return err
	}
	argv := slices.Concat(p.argv, flags, []string{"--datadir=" + datadir})
	var input io.Reader
	if p.kind == "mysql" {
		argv = append(argv, "--initialize-insecure")
	} else {
		argv = append(argv, "--bootstrap")
		sql, err := p.bootstrapSQL()
		if err != nil {
			return err
		}
		input = bytes.NewReader(sql)
	}
	cmd := guard.command(argv...)
	cmd.Stdin = input
	out, err := cmd.CombinedOutput()
	guard.ended()
	if err != nil {
		return fmt.Errorf("mysqltest: initialise %s: %w\n%s", p.version, err, out)
	}
	os.Remove(filepath.Join(datadir, "auto.cnf")) // the server's UUID, not to be shared
	saveTemplate(template, datadir)
	return nil
}

// bootstrapSQL returns the SQL that mariadb-install-db feeds to the server. That script is not used,
// because it changes the owner of installed files if root runs it.
func (p *program) bootstrapSQL() ([]byte, error) {
	tables, err := p.readShared("system_tables.sql")
	if err != nil {
		return nil, err
	}
	rows, err := p.readShared("system_tables_data.sql")
	if err != nil {
		return nil, err
	}
	return slices.Concat([]byte("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"), tables, rows), nil
}

// readShared reads one of the SQL files of MariaDB. Their prefix changed in version 11.
func (p *program) readShared(name string) ([]byte, error) {
	for _, dir := range p.share {
		for _, prefix := range []string{"mariadb_", "mysql_"} {
			sql, err := os.ReadFile(filepath.Join(dir, prefix+name))
			if !errors.Is(err, os.ErrNotExist) {
				return sql, err
			}
		}
	}
	return nil, fmt.Errorf("mysqltest: %s has no %s in any of %q", p.version, name, p.share)
}

// saveTemplate puts a copy of datadir in the cache, all of it or nothing. If it fails, later servers
// start more slowly.
func saveTemplate(template, datadir string) {
	if os.MkdirAll(filepath.Dir(template), 0o755) != nil {
		return
	}
	tmp, err := os.MkdirTemp(filepath.Dir(template), "datadir-tmp-")
	if err != nil {
		return
	}
	if os.CopyFS(tmp, os.DirFS(datadir)) != nil || os.Rename(tmp, template) != nil {
		os.RemoveAll(tmp)
	}
}
