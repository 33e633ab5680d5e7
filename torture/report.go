package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A report has the figures of a run.
type report struct {
	options
	version string // of the server
	elapsed time.Duration
	cycles  int
	counts  counts
	faults  map[string]int // number of each fault
	losses  lossReports

	// The longest time from the server's first reply after a restart to a waiter's grant.
	served, servedAmidFaults time.Duration
	// The longest time from the last unlock, with the server healthy, until no lock was held.
	released time.Duration

	connections int // the most that a worker had at once, beside open guards
	overloaded  int // restarts after which the machine was overloaded
	unknown     int // chunks of histories that porcupine could not check in time
}

func newReport(o options) *report {
	return &report{options: o, counts: counts{}, faults: map[string]int{}}
}

func (r *report) faultCount() (n int) {
	for _, m := range r.faults {
		n += m
	}
	return n
}

// line summarizes the run so far in one line.
func (r *report) line() string {
	return fmt.Sprintf("%v, %d lock cycles (%.0f/s), %d grants, %d losses, %d faults, smallest margin %v",
		r.elapsed.Round(time.Second), r.counts["cycles"], float64(r.counts["cycles"])/r.elapsed.Seconds(),
		r.counts["grants"], r.counts["lost"], r.faultCount(), r.losses.margin.Round(time.Microsecond))
}

// table returns all figures as a Markdown table.
func (r *report) table() string {
	var b strings.Builder
	row := func(what string, value any) { fmt.Fprintf(&b, "| %s | %v |\n", what, value) }
	fmt.Fprintf(&b, "| %s | |\n|---|---:|\n", r.version)
	row("length", r.elapsed.Round(time.Second))
	row("seed", r.seed)
	row("cycles of faults", r.cycles)
	row("lock cycles (acquired and released)", r.counts["cycles"])
	row("smallest time between the report of a loss and another owner's grant", r.losses.margin.Round(time.Microsecond))
	row("losses reported before another owner's grant", r.losses.early)
	row("losses reported later, by a process that had been paused", r.losses.paused)
	row("longest until a waiter was served after a restart", r.served.Round(time.Millisecond))
	row("longest until a waiter was served after a restart, amid other faults", r.servedAmidFaults.Round(time.Millisecond))
	row("restarts not judged, the machine was too busy", r.overloaded)
	row("longest until nothing was left of failed calls", r.released.Round(time.Millisecond))
	row(fmt.Sprintf("most connections of a process beside an open guard, pool of %d", queuedPool), r.connections)
	row("histories too long for porcupine", r.unknown)
	for _, what := range slices.Sorted(maps.Keys(r.counts)) {
		if what != "cycles" {
			row(what, r.counts[what])
		}
	}
	for _, what := range slices.Sorted(maps.Keys(r.faults)) {
		row("fault: "+what, r.faults[what])
	}
	return b.String()
}

// appendTo appends the table to a file, under the command that repeats the run.
func (r *report) appendTo(path, command string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "## `%s`\n\n%s\n", command, r.table())
	return errors.Join(err, f.Close())
}
