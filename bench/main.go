// Bench compares mysqllock with other locks that a service might use. It starts
// private servers, all of which flush to a disk before they acknowledge a write.
//
//	go run . -out results/mysql                  all parts: half an hour, longer on a noisy machine
//	go run . -server mariadb -out results/mariadb
//	go run . -run 'handoff|hot'                  some parts, only printed
//	go run . -repeats 0                          no repetitions of noisy parts: half as long on a noisy machine
//	go run . -without redis                      without the rivals on Redis, if there is no redis-server
//	go run . -quick                              a smoke test; the figures mean little
//
// If the server of a rival is missing, the run fails, unless -without excludes it. The report
// names the excluded servers.
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
	noise           *noise // of the measurement in progress, or nil
}

type options struct {
	server        string
	parts         *regexp.Regexp
	without       []string // services whose rivals are not measured
	quick         bool
	handoffTarget int    // smallest number of our handoffs in each row with goals
	repeats       int    // how often a noisy part is measured again, at most
	dir           string // parent of the servers' directories
	out           string // directory of the report; "" only prints it
}

func main() {
	if runRole() {
		return
	}
	var o options
	var parts, without string
	flag.StringVar(&o.server, "server", "mysql", "`kind` of the server: mysql or mariadb")
	flag.StringVar(&parts, "run", "", "`regexp` of the parts to run: uncontended, delayed, idle, handoff, hot, scaling, holding, waiting, memory, modes")
	flag.StringVar(&without, "without", "", "comma-separated `services` to run without: "+strings.Join(services, ", "))
	flag.IntVar(&o.handoffTarget, "handoffs", enoughHandoffs/rowsWithGoals, "measure at least `n` handoffs in each row with goals; one goal requires 2,000 in total")
	flag.IntVar(&o.repeats, "repeats", defaultRepeats, "measure a part again up to `n` times while the machine is noisy")
	flag.BoolVar(&o.quick, "quick", false, "run a small version of every part")
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
		{"handoff", b.handoff}, // repeats each of its rows separately
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
		measure := b.measurePart
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

// pick returns quick in a quick run, and full otherwise.
func pick[T any](b *bench, full, quick T) T {
	if b.quick {
		return quick
	}
	return full
}

// interleave runs a chunk of each rival per round, so that other load on the machine affects all
// rivals alike. Each round samples the noise, and begins with a different rival.
func (b *bench) interleave(rounds int, rivals []*rival, chunk func(r *rival) error) error {
	for round := range rounds {
		if err := b.sampleNoise(); err != nil {
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
