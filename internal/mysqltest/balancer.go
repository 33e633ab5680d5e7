package mysqltest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// balancers are the proxies through which tests reach a server.
var balancers = map[string]struct {
	path, libraries string // in its package, below usr
	args            []string
	config          func(dir, root, listen, backend string, options map[string]string) string
}{
	"haproxy": {
		"sbin/haproxy", "haproxy",
		[]string{"-db", "-f"},
		func(_, _, listen, backend string, options map[string]string) string {
			return fmt.Sprintf(`defaults
	mode tcp
	timeout connect 5s
	timeout client %s
	timeout server %s
listen mysql
	bind %s
	server primary %s
`, options["timeout"], options["timeout"], listen, backend)
		},
	},
	"mysqlrouter": {
		"bin/mysqlrouter", "mysql-router",
		[]string{"-c"},
		func(dir, root, listen, backend string, options map[string]string) string {
			host, port, _ := net.SplitHostPort(listen)
			plugins := ""
			if root != "" {
				plugins = "plugin_folder=" + root + "/usr/lib/mysqlrouter/plugin"
			}
			sharing := "connection_sharing=0\nclient_ssl_mode=PASSTHROUGH\nserver_ssl_mode=AS_CLIENT"
			if options["connection_sharing"] == "1" { // requires a pool, and connections without TLS
				sharing = "connection_sharing=1\nconnection_sharing_delay=0\nclient_ssl_mode=DISABLED\nserver_ssl_mode=DISABLED\n" +
					"[connection_pool]\nmax_idle_server_connections=10"
			}
			return fmt.Sprintf(`[DEFAULT]
%s
logging_folder=
runtime_folder=%s
data_folder=%s
[logger]
level=info
[routing:mysql]
bind_address=%s
bind_port=%s
destinations=%s
routing_strategy=first-available
protocol=classic
%s
`, plugins, dir, dir, host, port, backend, sharing)
		},
	},
}

// NewBalancer starts a "haproxy" or "mysqlrouter" in front of a server for one
// test, stops it at the test's end, and returns its address. It skips the test if there is no such
// program. The option of haproxy is "timeout", the time after which it closes idle connections;
// that of mysqlrouter is "connection_sharing", which is on if it is "1".
func NewBalancer(tb testing.TB, name, backend string, options map[string]string) (addr string) {
	tb.Helper()
	argv, root, err := findBalancer(name)
	if err != nil {
		tb.Skip("NOT TESTED: ", err)
	}
	dir, err := tempDir("")
	if err != nil {
		tb.Fatal(err)
	}
	guard, err := newGuard(dir)
	if err != nil {
		os.RemoveAll(dir)
		tb.Fatal(err)
	}
	tb.Cleanup(guard.release)
	for range 3 { // another process may take the port
		addr = freeAddr()
		if err = startBalancer(tb, guard, dir, argv, root, name, addr, backend, options); err == nil {
			return addr
		}
	}
	tb.Fatal(err)
	return ""
}

// findBalancer searches the same places as scripts/proxies.sh, which can fetch a missing proxy. root is
// the directory into which the proxy was unpacked, or "" if it is installed.
func findBalancer(name string) (argv []string, root string, err error) {
	for _, path := range []string{name, "/usr/sbin/" + name, "/usr/bin/" + name, "/usr/local/sbin/" + name, "/usr/local/bin/" + name} {
		if path, err := exec.LookPath(path); err == nil {
			return []string{path}, "", nil
		}
	}
	root = filepath.Join(cacheDir(), "proxies", name)
	if argv = extractedArgv(root, balancers[name].path, balancers[name].libraries); argv == nil {
		err = errors.New("mysqltest: no " + name + " found: run scripts/proxies.sh")
	}
	return argv, root, err
}

// startBalancer starts a proxy, waits until it listens, and stops it at the test's end.
func startBalancer(tb testing.TB, guard *guard, dir string, argv []string, root, name, addr, backend string, options map[string]string) error {
	config, logFile := filepath.Join(dir, "config"), filepath.Join(dir, "log")
	if err := os.WriteFile(config, []byte(balancers[name].config(dir, root, addr, backend, options)), 0o600); err != nil {
		return err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := guard.command(append(append(argv[:len(argv):len(argv)], balancers[name].args...), config)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		guard.ended()
		close(ended)
	}()
	logged := func() string {
		out, _ := os.ReadFile(logFile)
		return strings.TrimSpace(string(out))
	}
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			return fmt.Errorf("mysqltest: %s did not start:\n%s", name, logged())
		default:
		}
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			tb.Cleanup(func() {
				if tb.Failed() {
					tb.Logf("log of %s:\n%s", name, logged())
				}
				cmd.Process.Kill()
				<-ended
			})
			return nil
		}
	}
	cmd.Process.Kill()
	<-ended
	return fmt.Errorf("mysqltest: %s was not ready in time:\n%s", name, logged())
}
