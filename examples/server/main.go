// Server runs a private server for programs of your own. It prints the DSN of a
// database with nothing but the table of locks, and removes the server when it is
// interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	if err := demo.Prepare(dsn); err != nil {
		return err
	}
	fmt.Printf("export MYSQLLOCK_DSN='%s'\n", dsn)
	<-ctx.Done()
	return nil
}
