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

// A report is what a run has to tell.
type report struct {
	options
	version string
	elapsed time.Duration
	cycles  int
	counts  counts
	faults  map[string]int
	losses  lossReports
	// The longest from a server's first answer after a restart to a waiter's grant.
	served, servedAmidFaults time.Duration
	// The longest from the last unlock, the database being well, until no lock was held.
	settled time.Duration

	// The most connections of a worker at once, beside a guard that is held open.
	connections int

	busy    int // restarts at which the machine had too much else to do
	unknown int // histories that porcupine did not get through in time
}

func newReport(o options) *report {
	return &report{options: o, counts: counts{}, faults: map[string]int{}}
}

func (r *report) made() (n int) {
	for _, m := range r.faults {
		n += m
	}
	return n
}

// line is the state of the run in a line.
func (r *report) line() string {
	return fmt.Sprintf("%v, %d lock cycles (%.0f/s), %d grants, %d losses, %d faults, smallest margin %v",
		r.elapsed.Round(time.Second), r.counts["cycles"], float64(r.counts["cycles"])/r.elapsed.Seconds(),
		r.counts["grants"], r.counts["lost"], r.made(), r.losses.margin.Round(time.Microsecond))
}

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
	row("restarts not judged, the machine was too busy", r.busy)
	row("longest until nothing was left of failed calls", r.settled.Round(time.Millisecond))
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

// add puts the table below those of other runs.
func (r *report) add(path, command string) error {
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
