// Torture tests the library under faults, on a private server: worker processes use locks in every
// way, a nemesis injects faults, and the history of it all is checked.
//
//	go run . -server mysql -length 30m -seed 42
//	go run . -server mariadb -length 60m -out results/mariadb.md
//
// The tables of long runs are kept in results. To update the figures in docs/reliability.md from
// them, run in the root of the repository: go test ./docs -run TestLongRuns -update
//
// The first violation ends a run with exit status 1. The run then writes the history of the cycle,
// a plot of it and the seed to a directory, whose name it prints.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	server    string // "mysql" or "mariadb"
	length    time.Duration
	minCycles int
	wall      bool // workers have a wall clock that jumps
	cycle     time.Duration
	cycles    string // the kind of all cycles; "" for all kinds
	seed      uint64
	workers   int
	served    time.Duration // limit from a restart until waiters are served
	released  time.Duration // limit from the last unlock until no lock is held
	out       string        // file for the table of results; "" if it is only printed
	dir       string        // where a failed run writes its files
	log       func(format string, args ...any)
}

func main() {
	exitIfWorker()
	o := options{log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	flag.StringVar(&o.server, "server", "mysql", "`kind` of the server: mysql or mariadb")
	flag.DurationVar(&o.length, "length", time.Minute, "how long to run; the last cycle is completed")
	flag.DurationVar(&o.cycle, "cycle", 25*time.Second, "length of a cycle of faults, at whose end the history is checked")
	flag.StringVar(&o.cycles, "cycles", "", "run only cycles of this `kind`: mixed, stepped, calm or queued")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64N(1e9), "seed of the random choices")
	flag.IntVar(&o.workers, "workers", 4, "number of worker processes")
	flag.DurationVar(&o.served, "served", 3*time.Second, "time within which, after a restart without other faults, each lock that was waited for must be granted to a waiter")
	flag.DurationVar(&o.released, "released", 2*time.Second, "time within which, after the last unlock, no lock may be held; it does not count while the server is slow to commit")
	flag.BoolVar(&o.wall, "wall", true, "build workers with a wall clock that jumps")
	flag.StringVar(&o.out, "out", "", "`file` to append the table of results to, as Markdown, if there was no violation")
	flag.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "torture"), "`directory` for the files of a failed run")
	flag.Parse()
	if !slices.Contains([]string{"", mixed, stepped, calm, queued}, o.cycles) {
		fmt.Fprintf(os.Stderr, "torture: unknown kind of cycles: %q\n", o.cycles)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := run(ctx, o)
	if report != nil {
		fmt.Print(report.table())
		if o.out != "" && err == nil {
			err = report.appendTo(o.out, command())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// command returns the command that repeats this run.
func command() string {
	var b strings.Builder
	fmt.Fprintf(&b, "go -C torture run . -server=%s", flag.Lookup("server").Value)
	flag.VisitAll(func(f *flag.Flag) {
		switch {
		case f.Name == "server", f.Name == "dir", f.Name == "out":
		case f.Name == "seed", f.Value.String() != f.DefValue:
			fmt.Fprintf(&b, " -%s=%v", f.Name, f.Value)
		}
	})
	return b.String()
}
