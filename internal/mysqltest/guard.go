//go:build unix

package mysqltest

import (
	"os"
	"os/exec"
	"syscall"
)

// guardScript reads the process id of each server that is started in directory $1, and an empty line when
// that server has ended. Its input ends when this process ends, however that happens. Then the script
// kills the server and removes the directory.
const guardScript = `
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "$pid"
for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" && break; sleep 0.1; done
`

// launchScript sends its process id to the guard, and then executes the server, so the server never runs
// without a guard.
const launchScript = `echo $$ >&3; exec "$@" 3>&-`

// A guard is a process that outlives this one and cleans up after it: it kills the server and removes
// its directory.
type guard struct {
	cmd   *exec.Cmd
	input *os.File // closed by release
}

func newGuard(dir string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", guardScript, "sh", dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that ^C does not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	return &guard{cmd, w}, nil
}

// command returns a command that runs a server under the guard. Only one server may run at a time, and
// ended must be called after it has ended.
func (g *guard) command(argv ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", launchScript, "sh"}, argv...)...)
	cmd.ExtraFiles = []*os.File{g.input}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// ended informs the guard that its server has ended.
func (g *guard) ended() {
	g.input.WriteString("\n")
}

// release makes the guard clean up now, and waits for it.
func (g *guard) release() {
	g.input.Close()
	g.cmd.Wait()
}
