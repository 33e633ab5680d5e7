// Package mysqltest runs private MySQL and MariaDB servers for tests and demos.
//
// A server has its own temporary directory, in memory if the system has /dev/shm; StartIn uses a
// directory of the caller's choice. The server ends when the process that started it ends, even if that
// is killed. There are no private servers on Windows.
//
// If MYSQLLOCK_TEST_MYSQL_DSN or MYSQLLOCK_TEST_MARIADB_DSN is set, tests use that server instead. With
// MYSQLLOCK_TEST_MARIADB=11.8, MariaDB is that version, which scripts/mariadb-11.8.sh fetches.
// MYSQLLOCK_SERVER_OPTIONS has flags for every private server.
//
// NewBroker starts the message servers of the notifiers in the same way, and NewBalancer starts proxies.
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
	errExternal = errors.New("mysqltest: the server cannot be controlled: it was given by a DSN in the environment")
	errStopped  = errors.New("mysqltest: the server was stopped by Stop")
	errKilled   = errors.New("mysqltest: the server is not running")
)

// A Server is a running server. Its methods may be called concurrently.
type Server struct {
	Kind    string // one of Kinds, or MariaDB118
	Version string // as SELECT VERSION() returns it

	config  *mysql.Config // of connections to it, without a database
	program *program      // nil if a DSN names the server, which then has no guard and no directory
	flags   []string
	env     []string // in addition to the environment of this process
	dir     string
	guard   *guard

	mu      sync.Mutex // guards the following fields; held while the server starts and ends
	pid     int        // 0 while it is not running
	paused  bool       // stopped by Pause
	stopped bool       // the guard is released, the directory removed
}

// Start starts a server of a kind with additional flags, and returns when it accepts queries. The account
// root has no password. A flag such as "mysql:--flag" is only for servers of that kind.
func Start(kind string, flags ...string) (*Server, error) {
	return StartIn("", kind, flags...)
}

// StartIn is like Start, but puts the files of the server into a new directory in parent, for example to
// have them on a disk. "" means the same directory as Start.
func StartIn(parent, kind string, flags ...string) (*Server, error) {
	return launched(parent, &Server{Kind: kind, flags: flags})
}

// StartEnv is like Start, but adds "name=value" pairs to the environment of the server.
func StartEnv(env []string, kind string, flags ...string) (*Server, error) {
	return launched("", &Server{Kind: kind, flags: flags, env: env})
}

func launched(parent string, s *Server) (*Server, error) {
	if err := s.launch(parent); err != nil {
		return nil, err
	}
	return s, nil
}

// launch starts the server, or connects to the one that the environment names.
func (s *Server) launch(parent string) (err error) {
	if dsn := os.Getenv(dsnVariable(s.Kind)); dsn != "" {
		if err := s.connect(dsn); err != nil {
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

// dsnVariable returns the environment variable with the DSN of a server to use instead of a private one.
func dsnVariable(kind string) string {
	return "MYSQLLOCK_TEST_" + strings.ToUpper(kind) + "_DSN"
}

// connect makes s a handle to a server that is already running.
func (s *Server) connect(dsn string) (err error) {
	if s.config, err = mysql.ParseDSN(dsn); err != nil {
		return err
	}
	s.config.DBName = ""
	s.Version, err = versionOf(s.Kind, s.config)
	return err
}

// tempDir creates a directory in parent. If that is "", the directory is in memory, where fsync costs
// nothing, unless /dev/shm is too small for a server, as it often is in containers.
func tempDir(parent string) (string, error) {
	if parent != "" {
		return os.MkdirTemp(parent, "mysqllock-")
	}
	if freeSharedMemory() > 1<<30 {
		if dir, err := os.MkdirTemp("/dev/shm", "mysqllock-"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "mysqllock-")
}

// create initialises the server and starts it on a free port.
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

// freeAddr returns an address that is currently free. Its port is below those that the system assigns to
// outgoing connections, so that it stays free between Kill and Restart.
func freeAddr() string {
	for {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(15000)))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
}

// start runs the server and waits until it accepts queries. The caller holds mu.
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

	// Connect to the socket: another server may listen on the port.
	socket := mysql.NewConfig()
	socket.User, socket.Net, socket.Addr = "root", "unix", s.Socket()
	socket.Logger = &mysql.NopLogger{}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		version, err := versionOf(s.Kind, socket)
		if err == nil {
			if s.Version == "" { // only the first start writes it, because readers do not lock mu
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

// versionOf returns the version of a running server, or an error if it is of another kind.
func versionOf(kind string, config *mysql.Config) (version string, err error) {
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
		return "", fmt.Errorf("mysqltest: the server is not %s, but %s", kind, version)
	}
	return version, nil
}

// argv returns the server's command line.
func (s *Server) argv() []string {
	_, port, _ := net.SplitHostPort(s.Addr())
	var strict []string // flags that managed servers often have
	if s.Kind == "mysql" {
		strict = []string{"--sql-require-primary-key=ON"}
	}
	return slices.Concat(s.program.argv, s.program.flags(), strict, s.tlsFlags(), []string{
		"--datadir=" + filepath.Join(s.dir, "data"),
		"--socket=" + s.Socket(),
		"--tmpdir=" + s.dir, // its own: when MariaDB starts, it deletes temporary files of other servers in the same directory
		"--bind-address=127.0.0.1",
		"--port=" + port,
	}, s.allFlags())
}

// flags returns the flags for both initialisation and start. They make the server small, without a binary
// log.
func (p *program) flags() []string {
	// The pools of tests that run in parallel need more connections than the default of 151. With a
	// buffer pool of 16 MB, statements that needed a page waited for up to 0.9 s on MariaDB, and 0.5 s
	// on MySQL, while four connections created and dropped databases.
	flags := []string{"--max-connections=1000", "--skip-log-bin", "--performance-schema=OFF", "--innodb-buffer-pool-size=64M"}
	if p.kind == "mysql" {
		flags = append(flags, "--innodb-redo-log-capacity=32M", "--mysqlx=OFF", "--secure-file-priv=NULL")
	} else {
		flags = append(flags, "--innodb-log-file-size=32M")
	}
	if os.Getuid() == 0 {
		flags = append(flags, "--user=root") // otherwise the server refuses to run as root
	}
	return flags
}

// Addr returns the server's TCP address.
func (s *Server) Addr() string { return s.config.Addr }

// Socket returns the path of the server's socket, or "" if the environment names the server.
func (s *Server) Socket() string {
	if s.program == nil {
		return ""
	}
	return filepath.Join(s.dir, "socket") // at most 107 characters are allowed
}

// PID returns the process id of the server, or 0 if it is not running or the environment names it.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// DSN returns a data source name for the driver. The database may be "", as may params, which have the
// form "parseTime=true&loc=UTC".
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

// Restart kills the server if it is running, starts it with the same address and files, and returns when
// it accepts queries.
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

// Stop ends the server and removes its directory. It cannot be restarted. A second call does nothing.
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

// Log returns the end of the server's error log, or "" if the server was stopped or the environment names it.
func (s *Server) Log() string {
	const tail = 4096
	if s.program == nil {
		return ""
	}
	log, _ := os.ReadFile(s.logFile())
	return string(log[max(0, len(log)-tail):])
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "error.log") }
