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

// initDatadir creates a data directory. The first one of a version, and of a list of further flags, is
// initialised by the server, which takes MySQL seconds. A copy of it in the cache is the template of later
// ones.
func (p *program) initDatadir(datadir string, guard *guard, further []string) error {
	flags := append(p.flags(), further...)
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
	keep(template, datadir)
	return nil
}

// bootstrapSQL is what mariadb-install-db feeds to the server. That script
// itself, if root calls it, changes the owner of installed files.
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

// readShared reads one of MariaDB's own SQL files; their prefix changed with version 11.
func (p *program) readShared(name string) ([]byte, error) {
	for _, dir := range p.share {
		for _, prefix := range []string{"mariadb_", "mysql_"} {
			sql, err := os.ReadFile(filepath.Join(dir, prefix+name))
			if !errors.Is(err, os.ErrNotExist) {
				return sql, err
			}
		}
	}
	return nil, fmt.Errorf("mysqltest: %s without %s in any of %q", p.version, name, p.share)
}

// keep puts a copy of datadir in the cache, all of it or nothing. A failure only costs time.
func keep(template, datadir string) {
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
