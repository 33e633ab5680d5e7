//go:build !unix

package mysqltest

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// These systems have no private servers or brokers: newGuard refuses both.

const noHang = 0

// Pause fails.
func (s *Server) Pause() error { return errExternal }

// Continue fails.
func (s *Server) Continue() error { return errExternal }

func (s *Server) kill() {}

func (s *Server) reap(int) bool { return true }

// Pause does nothing.
func (b *Broker) Pause() {}

// Continue does nothing.
func (b *Broker) Continue() {}

type guard struct{}

func newGuard(string) (*guard, error) {
	return nil, errors.New("mysqltest: no private servers on this system: set MYSQLLOCK_TEST_MYSQL_DSN and MYSQLLOCK_TEST_MARIADB_DSN")
}

func (*guard) command(argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }
func (*guard) ended()                           {}
func (*guard) release()                         {}

// Suspend fails.
func Suspend(*os.Process) error { return errors.ErrUnsupported }

// Resume fails.
func Resume(*os.Process) error { return errors.ErrUnsupported }

// ProcessorTime returns 0.
func ProcessorTime() time.Duration { return 0 }
