// Bench measures mysqllock beside what else a service might use for locks, on
// private servers, all of which flush to a disk what they acknowledge.
//
//	go run . -out results/mysql                  everything, half an hour, more on a noisy machine
//	go run . -server mariadb -out results/mariadb
//	go run . -run 'handoff|hot'                  some parts, printed only
//	go run . -repeats 0                          half as long on a noisy machine, which the report shows
//	go run . -without redis                      no rivals on Redis, for want of a redis-server
//	go run . -quick                              whether it still works; the figures mean little
//
// A rival whose server is missing fails the run, unless it is excluded. The report names
// those that are.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A bench is one run of the chosen parts.
type bench struct {
	options
	ctx     context.Context
	servers *servers
	report  *report

	uncontendedPlot plot   // shared by two parts
	noise           *noise // of what is being measured
}

type options struct {
	server        string
	parts         *regexp.Regexp
	without       []string // services, of which no rival is measured
	quick         bool
	handoffTarget int    // of ours, where the greatest is judged
	repeats       int    // of a part that was noisy, at most
	dir           string // of the servers' files
	out           string // "" prints only
}

func main() {
	if playRole() {
		return
	}
	var o options
	var parts, without string
	flag.StringVar(&o.server, "server", "mysql", "`kind` of the server: mysql or mariadb")
	flag.StringVar(&parts, "run", "", "`regexp` of the parts to run: uncontended, delayed, idle, handoff, hot, scaling, holding, waiting, memory, modes")
	flag.StringVar(&without, "without", "", "services without which to run, separated by commas: "+strings.Join(services, ", "))
	flag.IntVar(&o.handoffTarget, "handoffs", enoughHandoffs/judgedRows, "measure at least `n` handoffs of each row that has goals; 2,000 in all meet the goal")
	flag.IntVar(&o.repeats, "repeats", defaultRepeats, "measure a part again up to `n` times while the machine is noisy")
	flag.BoolVar(&o.quick, "quick", false, "make everything small")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "`directory`, on a real disk, for the servers' files")
	flag.StringVar(&o.out, "out", "", "`directory` to write README.md and the plots to")
	flag.Parse()

	if without != "" {
		o.without = strings.Split(without, ",")
	}
	var err error
	if o.parts, err = regexp.Compile(parts); err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if err := o.checkServices(); err != nil {
		return err
	}
	s, err := startServers(o)
	if err != nil {
		return err
	}
	defer s.stop()
	b := &bench{options: o, ctx: ctx, servers: s, report: newReport(s, o)}
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"uncontended", b.uncontended},
		{"delayed", b.delayed},
		{"idle", b.idle},
		{"handoff", b.handoff}, // repeats each of its rows by itself
		{"hot", b.hot},
		{"scaling", b.scaling},
		{"holding", b.holding},
		{"waiting", b.waiting},
		{"modes", b.modes},
		{"memory", b.memory},
	} {
		if !o.parts.MatchString(part.name) {
			continue
		}
		start := time.Now()
		measure := b.quietly
		if part.name == "handoff" {
			measure = func(run func() error) error { return run() }
		}
		if err := measure(part.run); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %.0f s\n", part.name, time.Since(start).Seconds())
	}
	return b.report.write(o.out)
}

// pick returns what suits the run.
func pick[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}

// interleave runs a chunk of each rival in turn, for a number of rounds, so that
// what else the machine does hits all alike. Each round begins with another, after a look at
// the noise.
func (b *bench) interleave(rounds int, rivals []*rival, chunk func(r *rival) error) error {
	for round := range rounds {
		if err := b.look(); err != nil {
			return err
		}
		for i := range rivals {
			r := rivals[(i+round)%len(rivals)]
			if err := chunk(r); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if b.ctx.Err() != nil {
				return context.Cause(b.ctx)
			}
		}
	}
	return nil
}
