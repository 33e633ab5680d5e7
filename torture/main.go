// Torture brings the worst day to the library, on a private server: processes
// that take locks in every way, a nemesis that breaks what can break, and a
// history of it all that is checked.
//
//	go run . -server mysql -length 30m -seed 42
//	go run . -server mariadb -length 60m -out results/mariadb.md
//
// Tables of long runs are kept in results, from which docs/reliability.md has its
// figures: go test ./docs -run TestLongRuns -update, in the root of the repository.
//
// A run that finds something exits with 1 and leaves its seed, the history of
// the cycle and a picture of it in a directory that it names.
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
	server  string
	length  time.Duration
	rounds  int // at least
	wall    bool
	cycle   time.Duration
	cycles  string // the kind of all cycles; "" for all kinds
	seed    uint64
	workers int
	served  time.Duration // after a restart, waiters have to be served within it
	settled time.Duration // when all have unlocked, nothing may be held for longer
	out     string        // "" prints only
	dir     string        // of what a failing run leaves
	log     func(format string, args ...any)
}

func main() {
	exitIfWorker()
	o := options{log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	flag.StringVar(&o.server, "server", "mysql", "`kind` of the server: mysql or mariadb")
	flag.DurationVar(&o.length, "length", time.Minute, "for how long")
	flag.DurationVar(&o.cycle, "cycle", 25*time.Second, "length of a cycle of faults, after which all is checked")
	flag.StringVar(&o.cycles, "cycles", "", "make all cycles of one `kind`: mixed, stepped, calm or queued")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64N(1e9), "of all that is random")
	flag.IntVar(&o.workers, "workers", 4, "processes")
	flag.DurationVar(&o.served, "served", 3*time.Second, "bound for the time from a restart until each lock has been had by one who waited, if nothing else is wrong")
	flag.DurationVar(&o.settled, "settled", 2*time.Second, "bound for the time from the last unlock, with the database well, until no lock is held")
	flag.BoolVar(&o.wall, "wall", true, "build the workers with a wall clock that jumps")
	flag.StringVar(&o.out, "out", "", "`file` to which the table of results is added, as markdown, if nothing was found")
	flag.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "torture"), "`directory` for what a failing run leaves")
	flag.Parse()
	if !slices.Contains([]string{"", mixed, stepped, calm, queued}, o.cycles) {
		fmt.Fprintf(os.Stderr, "torture: no kind of cycles: %q\n", o.cycles)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := run(ctx, o)
	if report != nil {
		fmt.Print(report.table())
		if o.out != "" && err == nil {
			err = report.add(o.out, command())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// command is the one that makes the same run again.
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
