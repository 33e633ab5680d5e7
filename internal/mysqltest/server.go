// Package mysqltest runs private MySQL and MariaDB servers for tests and demos.
//
// A server lives in a temporary directory of its own, in memory where the
// system has /dev/shm (StartIn: on a disk of the caller's choice), and ends with
// the process that started it, even if that is killed. If MYSQLLOCK_TEST_MYSQL_DSN
// or MYSQLLOCK_TEST_MARIADB_DSN is set, tests use that server instead. Windows has
// no private servers. With MYSQLLOCK_TEST_MARIADB=11.8, MariaDB is that version,
// from scripts/mariadb-11.8.sh. MYSQLLOCK_SERVER_OPTIONS has flags for every private server.
//
// A Broker is the same for the message servers of the notifiers, NewBalancer for proxies.
package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Kinds are the servers that every test of the library runs against.
var Kinds = []string{"mysql", "mariadb"}

// startTimeout bounds one start of a server.
const startTimeout = time.Minute

var (
	errExternal = errors.New("mysqltest: the server is not ours: it was given by a DSN in the environment")
	errStopped  = errors.New("mysqltest: the server was stopped for good")
	errKilled   = errors.New("mysqltest: the server is not running")
)

// Server is a running server. Its methods may be called from several goroutines.
type Server struct {
	Kind    string // one of Kinds, or MariaDB118
	Version string // as SELECT VERSION() returns it

	config  *mysql.Config // how it is reached, without a database
	program *program      // nil if the server is not ours, then there is neither guard nor directory
	flags   []string
	env     []string // beside the environment of this process
	dir     string
	guard   *guard

	mu      sync.Mutex // guards the following fields, held while it starts and ends
	pid     int        // 0 while it does not run
	paused  bool       // stopped by Pause
	stopped bool       // the guard is released, the directory removed
}

// Start starts a server of a kind, with flags added to its command line, and
// returns when it answers. The account root has no password. A flag may be for one kind alone:
// "mysql:--flag".
func Start(kind string, flags ...string) (*Server, error) {
	return StartIn("", kind, flags...)
}

// StartIn is Start with the files of the server in a new directory within
// parent, so that they are on a disk whose fsync counts; "" is Start's choice.
func StartIn(parent, kind string, flags ...string) (*Server, error) {
	return started(parent, &Server{Kind: kind, flags: flags})
}

// StartEnv is Start with "name=value" pairs added to the environment of the server.
func StartEnv(env []string, kind string, flags ...string) (*Server, error) {
	return started("", &Server{Kind: kind, flags: flags, env: env})
}

func started(parent string, s *Server) (*Server, error) {
	if err := s.launch(parent); err != nil {
		return nil, err
	}
	return s, nil
}

// launch makes s a running server.
func (s *Server) launch(parent string) (err error) {
	if dsn := os.Getenv(dsnVariable(s.Kind)); dsn != "" {
		if err := s.wrap(dsn); err != nil {
			return fmt.Errorf("mysqltest: %s: %w", dsnVariable(s.Kind), err)
		}
		return nil
	}
	if s.program, err = find(s.Kind); err != nil {
		return err
	}
	if s.dir, err = tempDir(parent); err != nil {
		return err
	}
	if s.guard, err = newGuard(s.dir); err != nil {
		os.RemoveAll(s.dir)
		return err
	}
	if err := s.create(); err != nil {
		s.Stop()
		return err
	}
	return nil
}

// dsnVariable is the environment variable with the DSN of a server to be used instead of a private one.
func dsnVariable(kind string) string {
	return "MYSQLLOCK_TEST_" + strings.ToUpper(kind) + "_DSN"
}

// wrap makes s a handle to a server that runs already.
func (s *Server) wrap(dsn string) (err error) {
	if s.config, err = mysql.ParseDSN(dsn); err != nil {
		return err
	}
	s.config.DBName = ""
	s.Version, err = hello(s.Kind, s.config)
	return err
}

// tempDir is in parent, or in memory if possible, where fsync costs nothing.
// Containers often have a /dev/shm that is too small for a server.
func tempDir(parent string) (string, error) {
	if parent != "" {
		return os.MkdirTemp(parent, "mysqllock-")
	}
	if roomInMemory() > 1<<30 {
		if dir, err := os.MkdirTemp("/dev/shm", "mysqllock-"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "mysqllock-")
}

// create initialises the server and starts it on a port that nobody else has.
func (s *Server) create() (err error) {
	if err := s.program.initDatadir(filepath.Join(s.dir, "data"), s.guard, s.initFlags()); err != nil {
		return err
	}
	if err := s.certify(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 10 {
		s.config = mysql.NewConfig()
		s.config.User, s.config.Net, s.config.Addr = "root", "tcp", freeAddr()
		if s.requiresTLS() {
			s.config.TLSConfig = "skip-verify"
		}
		if err = s.start(); err == nil {
			return nil
		}
		if !strings.Contains(s.Log(), "Bind on TCP/IP port") {
			return err
		}
	}
	return err
}

// freeAddr returns an address that is free at this moment. Its port is below
// those that the system gives to outgoing connections, so that nobody gets it
// by chance between a Kill and a Restart.
func freeAddr() string {
	for {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(15000)))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
}

// start runs the server and waits until it answers. The caller holds mu.
func (s *Server) start() error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.guard.command(s.argv()...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), s.env...), log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pid = cmd.Process.Pid
	cmd.Process.Release() // reap waits for it, without a goroutine

	// Asked by its socket, which cannot be another server's, as the port can.
	socket := mysql.NewConfig()
	socket.User, socket.Net, socket.Addr = "root", "unix", s.Socket()
	socket.Logger = &mysql.NopLogger{}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		version, err := hello(s.Kind, socket)
		if err == nil {
			if s.Version == "" { // at the first start; nobody writes it later
				s.Version = version
			}
			return nil
		}
		if s.reap(noHang) || time.Now().After(deadline) {
			s.kill()
			return fmt.Errorf("mysqltest: %s did not start: %w\n%s", s.program.version, err, s.Log())
		}
	}
}

// hello asks a server for its version, which must be of the kind.
func hello(kind string, config *mysql.Config) (version string, err error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return "", err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return "", err
	}
	if product, _, _ := strings.Cut(kind, "-"); kindOf(version) != product {
		return "", fmt.Errorf("mysqltest: the server is not %s, it is %s", kind, version)
	}
	return version, nil
}

// argv is the server's command line.
func (s *Server) argv() []string {
	_, port, _ := net.SplitHostPort(s.Addr())
	var strict []string
	if s.Kind == "mysql" {
		strict = []string{"--sql-require-primary-key=ON"} // as managed servers have it
	}
	return slices.Concat(s.program.argv, s.program.flags(), strict, s.tlsFlags(), []string{
		"--datadir=" + filepath.Join(s.dir, "data"),
		"--socket=" + s.Socket(),
		"--tmpdir=" + s.dir, // in one that it shares, a MariaDB that starts deletes the others' files
		"--bind-address=127.0.0.1",
		"--port=" + port,
	}, s.allFlags())
}

// flags are those that initialisation and start have in common: a small server without a binary log.
func (p *program) flags() []string {
	// The suite's pools, many at a time, want more connections than the default of 151.
	// With a buffer pool of 16 MB, statements that need a page waited for up to 0.9 s on MariaDB, and
	// 0.5 s on MySQL, while four connections created and dropped databases.
	flags := []string{"--max-connections=1000", "--skip-log-bin", "--performance-schema=OFF", "--innodb-buffer-pool-size=64M"}
	if p.kind == "mysql" {
		flags = append(flags, "--innodb-redo-log-capacity=32M", "--mysqlx=OFF", "--secure-file-priv=NULL")
	} else {
		flags = append(flags, "--innodb-log-file-size=32M")
	}
	if os.Getuid() == 0 {
		flags = append(flags, "--user=root") // else it refuses to run
	}
	return flags
}

// Addr is the server's TCP address.
func (s *Server) Addr() string { return s.config.Addr }

// Socket is the path of the server's socket, "" if the server is not ours.
func (s *Server) Socket() string {
	if s.program == nil {
		return ""
	}
	return filepath.Join(s.dir, "socket") // a socket's path may have 107 characters
}

// PID is the process id of the server, 0 if it does not run or is not ours.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// DSN is a data source name for the driver: the database may be "", as may
// params, which is like "parseTime=true&loc=UTC".
func (s *Server) DSN(dbname, params string) string {
	config := s.config.Clone()
	config.DBName = dbname
	dsn := config.FormatDSN()
	switch {
	case params == "":
		return dsn
	case strings.Contains(dsn, "?"):
		return dsn + "&" + params
	default:
		return dsn + "?" + params
	}
}

// Kill ends the server at once (SIGKILL) and keeps its files. If it is not running, Kill does nothing.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	s.kill()
	return nil
}

// Restart kills the server if it runs, starts it with the same address and
// files, and returns when it answers.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	s.kill()
	return s.start()
}

// check returns an error unless this process can end and start the server. The caller holds mu.
func (s *Server) check() error {
	switch {
	case s.program == nil:
		return errExternal
	case s.stopped:
		return errStopped
	}
	return nil
}

// Stop ends the server for good and removes its directory. A second call does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check() != nil {
		return
	}
	s.kill()
	s.guard.release()
	s.stopped = true
}

// Log is the end of the server's error log, "" if the server is not ours or was stopped.
func (s *Server) Log() string {
	const tail = 4096
	if s.program == nil {
		return ""
	}
	log, _ := os.ReadFile(s.logFile())
	return string(log[max(0, len(log)-tail):])
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "error.log") }
