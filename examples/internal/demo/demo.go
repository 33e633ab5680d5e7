// Package demo gives an example a database to run on.
package demo

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/go-sql-driver/mysql"
)

var (
	dsnFlag    = flag.String("dsn", "", "database to run on (default: that of MYSQLLOCK_DSN, else a private server is started)")
	serverFlag = flag.String("server", "", "private server to start: mysql or mariadb (default: whichever is found first)")
)

// Database returns the data source name of a database to run on and says in one
// line what it is; stop ends the server that was started for it, if any.
func Database() (dsn string, stop func(), err error) {
	dsn, stop, origin := *dsnFlag, func() {}, "as given"
	if dsn == "" {
		dsn = os.Getenv("MYSQLLOCK_DSN")
	}
	if dsn == "" {
		if dsn, stop, err = startServer(*serverFlag); err != nil {
			return "", nil, err
		}
		origin = "private server, database and table made for this run"
	}
	where, err := describe(dsn)
	if err != nil {
		stop()
		return "", nil, err
	}
	fmt.Printf("%s: %s\n\n", where, origin)
	return dsn, stop, nil
}

func describe(dsn string) (string, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return "", err
	}
	if config.DBName == "" {
		return "", errors.New("the DSN names no database: want user:password@tcp(host:port)/database")
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var version string
	if err := db.QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		return "", err
	}
	product := "MySQL"
	if strings.Contains(version, "MariaDB") {
		product = "MariaDB"
	}
	version, _, _ = strings.Cut(version, "-")
	return fmt.Sprintf("%s %s on %s, database %s", product, version, config.Addr, config.DBName), nil
}

// Process is a further process of the running program, with other arguments,
// that finds the database in MYSQLLOCK_DSN.
func Process(dsn string, args ...string) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "MYSQLLOCK_DSN="+dsn)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}
