// Command mysqllock runs commands under locks, and lists, shows and frees locks, for
// cron jobs, deploy scripts and operators.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mysqllock/mysqllock"
)

// The exit statuses, unless it is that of COMMAND. 126 and 127 are as in shells, env(1) and
// timeout(1), which also use 125 for their own errors.
const (
	exitFailed      = 1   // doctor found something wrong; unlock was not confirmed; stdout is full
	exitUnavailable = 120 // run: the database did not answer, for the whole wait
	exitNotAcquired = 121 // another owner held the lock for the whole wait
	exitLost        = 122 // the lock was lost while COMMAND ran
	exitDatabase    = 123 // the database returned an error; except for run, also if it could not be reached
	exitUsage       = 125 // wrong flags, arguments, DSN or option file
	exitCannotRun   = 126 // COMMAND exists, but cannot be run
	exitNotFound    = 127 // COMMAND does not exist
	exitSignal      = 128 // plus the number of the signal that ended COMMAND, or the wait
)

const exitCodes = `Exit status:
  120  run: the database could not be reached or did not answer, for the whole wait
  121  run: another owner held the lock for the whole wait (see --conflict-exit-code)
  122  run: the lock was lost while COMMAND ran
  123  the database refused; other commands than run: it could not be reached
  125  wrong flags, arguments, DSN or option file
  126  run: COMMAND cannot be run
  127  run: COMMAND was not found
  128+n  run: COMMAND, or the wait for the lock, was ended by signal n
    1  doctor found something wrong; unlock was not confirmed
Any other status of run is that of COMMAND.`

// Tests shorten the bounds.
var (
	operationBound = 15 * time.Second // of an operation that uses the database and does not wait for a lock
	purgeBound     = 5 * time.Minute  // of a purge that deletes nothing
)

// bounded returns a context that ends after operationBound.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, operationBound, fmt.Errorf("given up after %v", operationBound))
}

// An exit is an error with the exit status of the program; err is nil if everything was
// printed already.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string { return fmt.Sprint(e.err) }
func (e exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return exit{exitUsage, fmt.Errorf(format, args...)} }

func main() {
	os.Exit(status(os.Stderr, newRoot().Execute()))
}

// status prints an error, and returns the exit status.
func status(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	e := exit{exitUsage, err} // an error of cobra
	errors.As(err, &e)
	if e.err != nil {
		fmt.Fprintln(stderr, "mysqllock:", plain(e.err))
	}
	return e.code
}

// plain returns the text of an error, without the library's name, safe to print.
func plain(err error) string {
	return printable(strings.TrimPrefix(err.Error(), "mysqllock: "))
}

func newRoot() *cobra.Command {
	from := new(source)
	root := &cobra.Command{
		Use:   "mysqllock",
		Short: "Locks in MySQL or MariaDB: run commands under them, show and mend them",
		Long: `Locks in MySQL or MariaDB: run commands under them, show and mend them.

The database is that of --dsn, or else of --defaults-file, or else of the variable
MYSQLLOCK_DSN, or else of ~/.my.cnf. A DSN is user:password@tcp(host:3306)/database
or user:password@unix(/path/to/socket)/database. Everybody on the machine can read
the --dsn of a running program in ps: better use MYSQLLOCK_DSN or an option file.

` + exitCodes,
		Example: `  export MYSQLLOCK_DSN='app:secret@tcp(db.internal:3306)/app'
  mysqllock init
  mysqllock run nightly-report --wait 0 -- /usr/local/bin/report
  mysqllock run thumbnails --slots 3 -- ./thumbnails.sh
  mysqllock ls
  mysqllock unlock --force nightly-report`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&from.dsn, "dsn", "", "`DSN` of the database, password and all: seen by everybody in ps, so prefer MYSQLLOCK_DSN")
	flags.StringVar(&from.file, "defaults-file", "", "option `file` to take user, password, host, port, socket and database from (default ~/.my.cnf)")
	flags.StringVar(&from.group, "defaults-group", "mysqllock", "`group` of the option file that is read beside [client]")
	flags.StringVar(&from.table, "table", "mysqllock", "`table`, or database.table, of the locks")
	root.MarkFlagsMutuallyExclusive("dsn", "defaults-file")
	root.AddCommand(newRun(from), newLs(from), newShow(from), newUnlock(from), newInit(from), newPurge(from), newDoctor(from), newBench(from))
	for _, c := range root.Commands() {
		c.DisableFlagsInUseLine = true
		runE := c.RunE
		c.RunE = func(c *cobra.Command, args []string) error { return classified(runE(c, args)) }
	}
	return root
}

// classified gives errors of the library their status.
func classified(err error) error {
	var e exit
	var unwritten *fs.PathError // of stdout
	switch {
	case err == nil || errors.As(err, &e):
		return err
	case errors.As(err, &unwritten):
		return exit{exitFailed, err}
	case errors.Is(err, mysqllock.ErrInvalidName), errors.Is(err, mysqllock.ErrInvalidLease), errors.Is(err, mysqllock.ErrInvalidLimit):
		return exit{exitUsage, err}
	case errors.Is(err, mysqllock.ErrUnavailable):
		return exit{exitUnavailable, err}
	case errors.Is(err, mysqllock.ErrNoTable):
		return exit{exitDatabase, fmt.Errorf("%w\nmysqllock init creates the table", err)}
	case errors.Is(err, context.DeadlineExceeded):
		return exit{exitDatabase, fmt.Errorf("%w\nthe database did not answer in time", err)}
	}
	return exit{exitDatabase, err}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
