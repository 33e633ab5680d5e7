package main

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// A source has the flags that choose the database and the table.
type source struct {
	dsn, file, group, table string
}

// config returns how to reach the database, and from where that is known.
func (s *source) config() (c *mysql.Config, origin string, err error) {
	variable := os.Getenv("MYSQLLOCK_DSN")
	switch {
	case s.dsn != "":
		origin = "--dsn"
		c, err = parseDSN(s.dsn)
	case s.file != "":
		origin = s.file
		c, err = readOptions(s.file, s.group)
	case variable != "":
		origin = "MYSQLLOCK_DSN"
		c, err = parseDSN(variable)
	default:
		var home string
		if home, err = os.UserHomeDir(); err == nil {
			origin = filepath.Join(home, ".my.cnf")
			c, err = readOptions(origin, s.group)
		}
		if origin == "" || errors.Is(err, fs.ErrNotExist) {
			return nil, "", usage("no database is given: set MYSQLLOCK_DSN to user:password@tcp(host:3306)/database, or write ~/.my.cnf")
		}
	}
	if err != nil {
		return nil, "", usage("%s: %w", origin, err)
	}
	if _, err := quoteTable(s.table); err != nil {
		return nil, "", err
	}
	if c.DBName == "" && !strings.Contains(s.table, ".") {
		return nil, "", usage("%s names no database: want …/database at the end of a DSN, database=… in an option file, or --table database.table", origin)
	}
	c.Logger = &mysql.NopLogger{} // the same comes as errors
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.ConnectionAttributes == "" {
		c.ConnectionAttributes = "program_name:mysqllock"
	}
	return c, origin, nil
}

// parseDSN never repeats a part of the DSN that may hold the password: the
// driver's errors may.
func parseDSN(dsn string) (*mysql.Config, error) {
	c, err := mysql.ParseDSN(dsn)
	if err == nil {
		return c, nil
	}
	slash := strings.LastIndexByte(dsn, '/')
	base, _, _ := strings.Cut(dsn[slash+1:], "?")
	if _, baseErr := mysql.ParseDSN(dsn[:slash+1] + base); baseErr == nil {
		return nil, err // about the parameters, which follow the password
	}
	return nil, errors.New("this is no DSN: want user:password@tcp(host:3306)/database or user:password@unix(/path/to/socket)/database")
}

func (s *source) open() (*sql.DB, error) {
	c, _, err := s.config()
	if err != nil {
		return nil, err
	}
	return openConfig(c)
}

func openConfig(c *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, usage("%w", err)
	}
	return sql.OpenDB(connector), nil
}

// locker returns a Locker and what closes it and its pool.
func (s *source) locker(opts ...mysqllock.Option) (l *mysqllock.Locker, closeBoth func() error, err error) {
	db, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	l, err = mysqllock.New(db, append(opts, mysqllock.WithTable(s.table))...)
	if err != nil {
		db.Close()
		return nil, nil, usage("%w", err)
	}
	return l, func() error { return errors.Join(l.Close(), db.Close()) }, nil
}

var identifiers = regexp.MustCompile(`^([A-Za-z0-9_$-]{1,64}\.)?[A-Za-z0-9_$-]{1,64}$`)

// quoteTable checks and quotes the name of a table as mysqllock.WithTable does.
func quoteTable(name string) (string, error) {
	if !identifiers.MatchString(name) {
		return "", usage("--table %q: want table or database.table, of letters, digits, _, $ and -", name)
	}
	return "`" + strings.ReplaceAll(name, ".", "`.`") + "`", nil
}

// where describes a way to a database, without the password.
func where(c *mysql.Config) string {
	addr := c.Addr
	if c.Net != "tcp" {
		addr = c.Net + ":" + addr
	}
	return printable(fmt.Sprintf("%s at %s, database %s", c.User, addr, c.DBName))
}

// fromOptions converts the options of an option file to the configuration of a DSN.
func fromOptions(options map[string]string) (*mysql.Config, error) {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = options["user"], options["password"], options["database"]
	host, port := options["host"], options["port"]
	switch {
	case options["socket"] != "" && (host == "" || host == "localhost"):
		c.Net, c.Addr = "unix", options["socket"]
	default:
		if host == "" {
			host = "localhost"
		}
		if port == "" {
			port = "3306"
		}
		c.Net, c.Addr = "tcp", net.JoinHostPort(host, port)
	}
	switch mode := strings.ToUpper(options["ssl-mode"]); mode {
	case "", "PREFERRED":
		c.TLSConfig = "preferred"
	case "DISABLED":
		c.TLSConfig = "false"
	case "REQUIRED":
		c.TLSConfig = "skip-verify"
	case "VERIFY_IDENTITY":
		c.TLSConfig = "true"
	default:
		return nil, fmt.Errorf("ssl-mode=%s is not supported here: give a DSN with tls=…", mode)
	}
	if c.Net == "unix" {
		c.TLSConfig = "" // as the servers' own clients do
	}
	// An option that demands more security must not be ignored.
	for name := range options {
		if (strings.HasPrefix(name, "ssl") || strings.HasPrefix(name, "tls")) && name != "ssl-mode" {
			return nil, fmt.Errorf("the option %s is not supported here: give a DSN with tls=…", name)
		}
	}
	if c.User == "" {
		c.User = os.Getenv("USER")
	}
	return c, nil
}
