//go:build !unix

package mysqltest

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// There are no private servers and brokers on these systems: newGuard returns an error.

const noHang = 0

// Pause returns an error.
func (s *Server) Pause() error { return errExternal }

// Continue returns an error.
func (s *Server) Continue() error { return errExternal }

func (s *Server) kill() {}

func (s *Server) reap(int) bool { return true }

// Pause does nothing.
func (b *Broker) Pause() {}

// Continue does nothing.
func (b *Broker) Continue() {}

type guard struct{}

func newGuard(string) (*guard, error) {
	return nil, errors.New("mysqltest: there are no private servers on this system: set MYSQLLOCK_TEST_MYSQL_DSN and MYSQLLOCK_TEST_MARIADB_DSN")
}

func (*guard) command(argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }
func (*guard) ended()                           {}
func (*guard) release()                         {}

// Suspend returns an error.
func Suspend(*os.Process) error { return errors.ErrUnsupported }

// Resume returns an error.
func Resume(*os.Process) error { return errors.ErrUnsupported }

// ProcessorTime returns 0.
func ProcessorTime() time.Duration { return 0 }
