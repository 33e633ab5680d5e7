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

// brokers are the message servers that the notifiers of this repository use.
var brokers = map[string]struct {
	flags func(port string) []string
	ready string // the text in the log once connections are accepted
}{
	"redis-server": {
		func(port string) []string {
			return []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"}
		},
		"Ready to accept connections",
	},
	"nats-server": {
		func(port string) []string { return []string{"--addr", "127.0.0.1", "--port", port} },
		"Server is ready",
	},
}

// A Broker is a private message server that writes nothing to disk. Like a Server, it ends when the
// process that started it ends. Its methods must not be called concurrently.
type Broker struct {
	Addr string // its TCP address, which is the same after Restart

	tb         testing.TB
	name, path string
	dir        string
	guard      *guard
	cmd        *exec.Cmd
	ended      chan struct{} // closed when cmd has ended
}

// NewBroker starts a "redis-server" or "nats-server" for one test, and stops it at the test's end. If
// that fails, the test fails.
func NewBroker(tb testing.TB, name string) *Broker {
	tb.Helper()
	b := &Broker{tb: tb, name: name}
	var err error
	if b.path, err = FindBroker(name); err != nil {
		tb.Fatal(err)
	}
	if b.dir, err = tempDir(""); err != nil {
		tb.Fatal(err)
	}
	if b.guard, err = newGuard(b.dir); err != nil {
		os.RemoveAll(b.dir)
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("log of %s:\n%s", name, b.log())
		}
		b.Kill()
		b.guard.release()
	})
	for range 3 { // another process may take the port
		b.Addr = freeAddr()
		if err = b.start(); err == nil {
			return b
		}
	}
	tb.Fatal(err)
	return nil
}

// FindBroker returns the path of a message server. It searches the same places as
// scripts/brokers.sh, which can fetch a missing one.
func FindBroker(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name, filepath.Join(cacheDir(), "brokers", name)} {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("mysqltest: no %s found: run scripts/brokers.sh", name)
}

// start runs the broker and waits until it accepts connections.
func (b *Broker) start() error {
	log, err := os.Create(b.logFile()) // truncates the log, so that the text of readiness is from this start
	if err != nil {
		return err
	}
	defer log.Close()
	_, port, _ := net.SplitHostPort(b.Addr)
	b.cmd = b.guard.command(append([]string{b.path}, brokers[b.name].flags(port)...)...)
	b.cmd.Dir, b.cmd.Stdout, b.cmd.Stderr = b.dir, log, log
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		return err
	}
	b.ended = make(chan struct{})
	go func() {
		b.cmd.Wait()
		b.guard.ended()
		close(b.ended)
	}()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if strings.Contains(b.log(), brokers[b.name].ready) {
			return nil
		}
		select {
		case <-b.ended:
			return fmt.Errorf("mysqltest: %s did not start:\n%s", b.name, b.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
	b.Kill()
	return errors.New("mysqltest: " + b.name + " was not ready in time")
}

// Kill ends the broker at once (SIGKILL). If it is not running, Kill does nothing.
func (b *Broker) Kill() {
	if b.cmd != nil {
		b.cmd.Process.Kill()
		<-b.ended
	}
}

// Restart kills the broker if it is running, and starts it with the same address.
func (b *Broker) Restart() {
	b.tb.Helper()
	b.Kill()
	if err := b.start(); err != nil {
		b.tb.Fatal(err)
	}
}

func (b *Broker) log() string {
	log, _ := os.ReadFile(b.logFile())
	return string(log)
}

func (b *Broker) logFile() string { return filepath.Join(b.dir, "log") }
