package main

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const dies = true // a COMMAND with its mysqllock

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (outside, inside *os.File) {
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { outside.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	inside, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { inside.Close() })
	return outside, inside
}

// In the foreground of a terminal, ^C reaches COMMAND from there, once; it can
// read what is typed; and what another process sends is passed on.
func TestTerminal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		outside, inside := openTerminal(t)
		r := e.command(t, "", `
			trap 'echo INT >>INT' INT
			trap 'echo USR1 >USR1' USR1
			echo up >up
			while [ ! -e INT ]; do sleep 0.01; done # in read, a signal that comes just before it blocks would wait
			while ! read line; do :; done
			echo "$line" >line
			while [ ! -e USR1 ]; do sleep 0.01; done`)
		r.Stdin = inside
		r.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		r.begin(t)
		r.waitFor(t, "up")
		_, err := outside.WriteString("\x03")
		require.NoError(t, err)
		require.Equal(t, "INT", r.waitFor(t, "INT"))
		_, err = outside.WriteString("typed\n")
		require.NoError(t, err)
		require.Equal(t, "typed", r.waitFor(t, "line"))
		require.NoError(t, r.Process.Signal(syscall.SIGUSR1))
		require.Equal(t, 0, r.status(t))
		require.Equal(t, "INT", r.waitFor(t, "INT"), "it came more than once")
		require.False(t, e.held(t, "job"))
	})
}
