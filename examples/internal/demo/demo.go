// Package demo provides the examples with a database.
package demo

import (
	"bufio"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

var (
	dsnFlag    = flag.String("dsn", "", "database to run on (default: that of MYSQLLOCK_DSN, else a private server is started)")
	serverFlag = flag.String("server", "", "private server to start: mysql or mariadb (default: whichever is found first)")
)

// Database returns the data source name of a database to run on, and prints a line about it.
// stop ends the server that was started for it, if any.
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

// Prepare creates the table of locks, and executes statements.
func Prepare(dsn string, statements ...string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, statement := range append([]string{mysqllock.Schema}, statements...) {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}
	return nil
}

// Run runs further processes of the running program (see Process), all at once, until the last
// has ended. It calls line for each line of their output, in the order in which they wrote it;
// without line, it prints them.
func Run(dsn string, args [][]string, line func(string) error) error {
	output, input, err := os.Pipe() // one for all processes, so that it keeps the order
	if err != nil {
		return err
	}
	defer output.Close()
	var processes []*exec.Cmd
	for _, args := range args {
		p := Process(dsn, args...)
		p.Stdout = input
		if err = p.Start(); err != nil {
			break
		}
		processes = append(processes, p)
	}
	input.Close()
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if line == nil {
			fmt.Println(lines.Text())
		} else {
			err = errors.Join(err, line(lines.Text()))
		}
	}
	for _, p := range processes {
		err = errors.Join(err, p.Wait())
	}
	return err
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
