package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// endpoints are the addresses of the servers. Workers receive them as JSON.
type endpoints struct {
	DSN   string // with a database
	Redis string // "" if there is none
	Etcd  string // the same
}

// mysqlAddr returns the address in the DSN.
func (e endpoints) mysqlAddr() string {
	c, _ := mysql.ParseDSN(e.DSN)
	return c.Addr
}

// withMySQLAddr returns the endpoints with another address of the MySQL server.
func (e endpoints) withMySQLAddr(addr string) endpoints {
	c, _ := mysql.ParseDSN(e.DSN)
	c.Addr = addr
	e.DSN = c.FormatDSN()
	return e
}

// servers are the private servers of a run. They end when this process ends, however that happens.
type servers struct {
	endpoints
	mysql        *mysqltest.Server
	admin        *sql.DB
	guards       []*guard
	versions     []string
	ownQuestions int64 // statements of this program that do not count: see questions
}

const database = "mysqllock_bench"

var products = map[string]string{"mysql": "MySQL", "mariadb": "MariaDB"} // by kind

const schema = `
CREATE TABLE bare (name VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL);
CREATE TABLE handmade (name VARCHAR(255) PRIMARY KEY, owner VARCHAR(64) NOT NULL, expires_at DATETIME(6) NOT NULL);
INSERT INTO bare VALUES ('', 0);
`

func startServers(o options) (s *servers, err error) {
	s = &servers{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := checkDisk(o); err != nil {
		return s, err
	}
	err = s.startMySQL(o)
	if !slices.Contains(o.without, "redis") {
		err = errors.Join(err, s.startRedis(o))
	}
	if !slices.Contains(o.without, "etcd") {
		err = errors.Join(err, s.startEtcd(o))
	}
	return s, err
}

// services are the servers that rivals use besides MySQL.
var services = []string{"redis", "etcd"}

// checkServices returns an error if a service is missing, but not excluded.
func (o options) checkServices() error {
	for _, name := range o.without {
		if !slices.Contains(services, name) {
			return fmt.Errorf("-without %s: unknown service; the services are %s", name, strings.Join(services, ", "))
		}
	}
	if slices.Contains(o.without, "redis") {
		return nil
	}
	if _, err := mysqltest.FindBroker("redis-server"); err != nil {
		return errors.New("redis-server not found: run scripts/brokers.sh redis to fetch it, or exclude the rivals on Redis with -without redis")
	}
	return nil // etcd is linked in
}

// checkDisk returns an error if the directory is in memory, where a flush costs nothing.
func checkDisk(o options) error {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var fs unix.Statfs_t
	if err := unix.Statfs(o.dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", o.dir, err)
	}
	if kind := int64(fs.Type); (kind == tmpfs || kind == ramfs) && !o.quick {
		return fmt.Errorf("%s is in memory: choose a directory on a disk with -dir", o.dir)
	}
	return nil
}

func (s *servers) startMySQL(o options) (err error) {
	// mysqltest's servers are small; these sizes are the defaults of a server.
	flags := []string{"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=128M", "--max-connections=2000"}
	if o.server == "mysql" {
		flags = append(flags, "--innodb-redo-log-capacity=100M")
	} else {
		flags = append(flags, "--innodb-log-file-size=96M")
	}
	if s.mysql, err = mysqltest.StartIn(o.dir, o.server, flags...); err != nil {
		return err
	}
	s.DSN = s.mysql.DSN(database, "")
	s.versions = append(s.versions, products[o.server]+" "+s.mysql.Version)

	db, err := sql.Open("mysql", s.mysql.DSN("", "multiStatements=true"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec("DROP DATABASE IF EXISTS " + database + "; CREATE DATABASE " + database + "; USE " + database + ";" + schema); err != nil {
		return err
	}
	if s.admin, err = sql.Open("mysql", s.DSN); err != nil {
		return err
	}
	var flush, binlog int
	if err := s.admin.QueryRow("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin").Scan(&flush, &binlog); err != nil {
		return err
	}
	if flush != 1 || binlog != 0 {
		return fmt.Errorf("the server has innodb_flush_log_at_trx_commit=%d and log_bin=%d; want 1 and 0", flush, binlog)
	}
	locker, err := mysqllock.New(s.admin)
	if err != nil {
		return err
	}
	defer locker.Close()
	return locker.CreateTable(context.Background())
}

// setFlushing sets whether the server flushes at each commit. It is off only while many locks are
// acquired outside the measured time.
func (s *servers) setFlushing(on bool) error {
	value := 2
	if on {
		value = 1
	}
	_, err := s.admin.Exec(fmt.Sprintf("SET GLOBAL innodb_flush_log_at_trx_commit = %d", value))
	return err
}

// questions returns the number of statements that the MySQL server has received, without those of
// questions itself and of sampleNoise.
func (s *servers) questions() (n int64, err error) {
	var name string
	err = s.admin.QueryRow("SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	s.ownQuestions++
	return n - s.ownQuestions, err
}

func (s *servers) startRedis(o options) error {
	path, err := mysqltest.FindBroker("redis-server")
	if err != nil {
		return err
	}
	s.Redis = freeAddr()
	_, port, _ := net.SplitHostPort(s.Redis)
	err = s.startGuarded(o.dir, nil, func(dir string) []string {
		return []string{path, "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always"}
	})
	if err != nil {
		return err
	}
	db := redis.NewClient(&redis.Options{Addr: s.Redis})
	defer db.Close()
	return eventually(func() error {
		info, err := db.Info(context.Background(), "server").Result()
		if err != nil {
			return fmt.Errorf("redis-server: %w", err)
		}
		_, rest, _ := strings.Cut(info, "redis_version:")
		number, _, _ := strings.Cut(rest, "\r")
		s.versions = append(s.versions, "Redis "+number)
		return nil
	})
}

// startEtcd starts this program as an etcd server, in a process of its own.
func (s *servers) startEtcd(o options) error {
	s.Etcd = freeAddr()
	err := s.startGuarded(o.dir, []string{roleVariable + "=etcd"}, func(dir string) []string {
		return []string{executable(), dir, s.Etcd, freeAddr()}
	})
	if err != nil {
		return err
	}
	s.versions = append(s.versions, "etcd "+version.Version)
	return eventually(func() error {
		conn, err := net.Dial("tcp", s.Etcd)
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		return conn.Close()
	})
}

// serveEtcd is the main function of a process that is an etcd server with the default options.
func serveEtcd(dir, client, peer string) error {
	c := embed.NewConfig()
	c.Dir, c.LogLevel = filepath.Join(dir, "etcd"), "error"
	c.ListenClientUrls = []url.URL{{Scheme: "http", Host: client}}
	c.AdvertiseClientUrls = c.ListenClientUrls
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: peer}}
	c.AdvertisePeerUrls = c.ListenPeerUrls
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-server.Err()
}

func (s *servers) stop() {
	if s.admin != nil {
		s.admin.Close()
	}
	if s.mysql != nil {
		s.mysql.Stop()
	}
	for _, g := range s.guards {
		g.release()
	}
}

// guardScript runs a server in directory $1 until its input ends. That happens when this process
// ends, however it does.
const guardScript = `
dir=$1; shift
"$@" >"$dir/log" 2>&1 &
cat >/dev/null
kill -9 $!
wait
rm -rf "$dir"
`

// A guard is a process that runs a server, and outlives this process to clean up after it.
type guard struct {
	cmd   *exec.Cmd
	input io.Closer
}

// release makes the guard clean up now, and waits for it.
func (g *guard) release() {
	g.input.Close()
	g.cmd.Wait()
}

// startGuarded starts a server with its own directory, under a guard.
func (s *servers) startGuarded(parent string, env []string, argv func(dir string) []string) error {
	dir, err := os.MkdirTemp(parent, "mysqllock-bench-")
	if err != nil {
		return err
	}
	cmd := exec.Command("sh", slices.Concat([]string{"-c", guardScript, "sh", dir}, argv(dir))...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that ^C does not reach it
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	s.guards = append(s.guards, &guard{cmd, input})
	return nil
}

// eventually calls fn until it succeeds, for up to 20 s, and returns its last error.
func eventually(fn func() error) (err error) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = fn(); err == nil {
			return nil
		}
	}
	return err
}

func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no port is free
	}
	defer l.Close()
	return l.Addr().String()
}

// roleVariable is set in the processes that run this program again: to "etcd", or for a worker to
// the endpoints.
const roleVariable = "MYSQLLOCK_BENCH_ROLE"

// runRole runs this process as an etcd server or as a worker, if it was started as one. It returns
// false in the process that the user has started.
func runRole() bool {
	role := os.Getenv(roleVariable)
	var err error
	switch {
	case role == "":
		return false
	case role == "etcd":
		err = serveEtcd(os.Args[1], os.Args[2], os.Args[3])
	default:
		var e endpoints
		if err = json.Unmarshal([]byte(role), &e); err == nil {
			err = runWorker(e, os.Stdin, os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	return true
}

func executable() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}
