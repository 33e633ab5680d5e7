// Withserver starts a server from a Docker image, runs a command with MYSQLLOCK_DSN set to its DSN, and
// stops the server:
//
//	go run ./withserver -image mariadb:11 -- COMMAND…
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/testcontainers/testcontainers-go"

	"github.com/mysqllock/mysqllock/integration/server"
)

func main() {
	image := flag.String("image", "mariadb:11", "the `image` of the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *image, flag.Args())
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		fmt.Fprintln(os.Stderr, "withserver:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, image string, command []string) error {
	if len(command) == 0 {
		return errors.New("no command; see -help")
	}
	if err := server.Check(ctx); err != nil {
		return err
	}
	c, dsn, err := server.Start(ctx, image)
	defer testcontainers.TerminateContainer(c)
	if err != nil {
		return err
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS examples"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "MYSQLLOCK_DSN="+dsn+"examples")
	return cmd.Run()
}
