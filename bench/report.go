package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A report has the results of a run, and writes them as Markdown with plots.
type report struct {
	head     string
	server   string
	quick    bool // too few samples to check goals
	sections []*section
	drawings map[string]drawing // by file name, without .svg
	goals    map[string]outcome // by the text of the goal
	used     map[*rival]bool

	waitingCosts map[waitingKey]float64 // set by idle, used by handoff: statements per second and process
}

type section struct {
	report      *report
	title, text string
	table       *table
	image       string   // a key of drawings
	noise       []string // a summary for each measurement
}

// A drawing is a plot that can be written as an SVG file.
type drawing interface{ svg() string }

type outcome struct {
	measured string
	met      bool
}

// The goals, as the table shows them.
const (
	goalUncontended = "acquire and release ≤ 1.15 × two bare UPDATEs, prepared"
	goalDelayed     = "≤ 1.03 × with 1 ms of network delay"
	goalWorst       = "none of 2,000 of these handoffs above 250 ms"
	goalExtra       = "≤ 3 extra statements per handoff"
	goalIdle        = "≤ 2 statements per second and waiting process"
	goalHot         = "hot lock, 1 process: ≥ 400,000 acquisitions per second"
	goalShare       = "hot lock, 2 processes: each has at least 45 % of the time"
	goalAcquireMany = "64 goroutines acquire 10,000 locks in ≤ 1.5 s"
	goalCloseMany   = "Close releases 10,000 locks in ≤ 0.5 s"
	goalReentry     = "re-entry and Unlock: under 1 µs, 0 statements, ≤ 3 allocations"
	goalHolding     = "10,000 held locks: ≤ 20 statements per renewal interval"
	goalHoldingCPU  = "10,000 held locks: ≤ 2 % of one core on either side"
	goalJoin        = "a further shared hold in a process: under 1 µs with its Unlock, 0 statements"
	goalAll         = "100 locks at once: ≤ 3 × the time of one"
	goalWriter      = "an exclusive request among readers waits ≤ 1.5 × the longest read"
)

// goalOnMySQL is the end of a goal for handoffs that is only checked on MySQL.
const goalOnMySQL = "p50 ≤ 1.0 ms"

// holdsWithGoals are the hold times for which handoffs have goals.
var holdsWithGoals = holdTimes[1:]

// handoffGoals returns the goals of a row: the median relative to etcd, the median on MySQL, and the
// 99th percentile.
func handoffGoals(hold time.Duration, waiting int) [3]string {
	row := fmt.Sprintf("handoff, %s, %d waiting: ", holdTitle(hold), waiting)
	return [3]string{
		row + "p50 ≤ 0.75 × that of etcd",
		row + goalOnMySQL,
		row + "p99 ≤ 8 ms",
	}
}

// scalingGoals are the smallest rates relative to two bare UPDATEs, by the number of goroutines.
var scalingGoals = map[int]float64{1: 0.85, 4: 0.85, 16: 1, 64: 2, 256: 4}

func goalScaling(n int) string {
	return fmt.Sprintf("distinct names, %d goroutines: ≥ %s × two bare UPDATEs", n, digits(scalingGoals[n]))
}

func allGoals() []string {
	goals := []string{goalUncontended, goalDelayed}
	for _, hold := range holdsWithGoals {
		for _, waiting := range []int{1, manyWaiting} {
			texts := handoffGoals(hold, waiting)
			goals = append(goals, texts[:]...)
		}
	}
	goals = append(goals, goalWorst, goalExtra, goalIdle)
	for _, n := range slices.Sorted(maps.Keys(scalingGoals)) {
		goals = append(goals, goalScaling(n))
	}
	return append(goals, goalAcquireMany, goalCloseMany, goalHot, goalShare, goalReentry, goalHolding, goalHoldingCPU, goalJoin, goalAll, goalWriter)
}

func newReport(s *servers, o options) *report {
	r := &report{server: o.server, quick: o.quick, drawings: map[string]drawing{}, goals: map[string]outcome{}, used: map[*rival]bool{}, waitingCosts: map[waitingKey]float64{}}
	flags := ""
	if o.repeats != defaultRepeats || o.handoffTarget != enoughHandoffs/rowsWithGoals {
		flags = fmt.Sprintf("-repeats %d -handoffs %d ", o.repeats, o.handoffTarget)
	}
	command, warning := "make bench SERVER="+s.mysql.Kind, ""
	if parts := o.parts.String(); parts != "" {
		command = "go run . " + flags + "-server " + o.server + " -run '" + parts + "'"
	} else if flags != "" {
		command += " BENCHFLAGS='" + flags + "-out results/" + o.server + "'"
	}
	if o.quick {
		command = "go run . -server " + o.server + " -quick"
		warning = "**This was a quick run: the figures mean little.**\n\n"
	}
	if len(o.without) > 0 {
		warning += "**Not measured, by `-without`: " + strings.Join(o.without, ", ") + ".**\n\n"
	}
	r.head = fmt.Sprintf(`# mysqllock compared with its rivals, on %s

Written by `+"`%s`"+` on %s.

%sEach table was measured in one run, which alternated between the rivals in small
chunks. All servers ran on this machine, and flushed each write to disk before they
acknowledged it: innodb_flush_log_at_trx_commit=1, appendfsync always, and etcd's
defaults. Below each table are the times of a flush of 512 bytes and of a bare
UPDATE before, during and after the measurement. If they varied by more than %s ×,
the table was measured again, up to %d times; it shows the quietest run.

- %s
- %s
- %s, %s
`, s.versions[0], command, time.Now().Format("2 January 2006"), warning,
		digits(noiseBound), o.repeats, strings.Join(s.versions, ", "), machine(), runtime.Version(), kernel())
	return r
}

func machine() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return fmt.Sprintf("%d cores", runtime.NumCPU())
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return fmt.Sprintf("%d cores of %s", runtime.NumCPU(), strings.TrimSpace(value))
		}
	}
	return fmt.Sprintf("%d cores", runtime.NumCPU())
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return runtime.GOOS
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// fork returns a report for one run of a part.
func (r *report) fork() *report {
	return &report{drawings: maps.Clone(r.drawings), goals: map[string]outcome{}, waitingCosts: map[waitingKey]float64{}}
}

// merge adds the contents of a fork of the report, with a summary of its noise.
func (r *report) merge(part *report, noise string) {
	for _, s := range part.sections {
		s.report, s.noise = r, []string{noise}
		r.sections = append(r.sections, s)
	}
	r.drawings = part.drawings
	maps.Copy(r.goals, part.goals)
	maps.Copy(r.waitingCosts, part.waitingCosts)
}

// section adds a section. It is written in the order of title, text, plot, table, noise.
func (r *report) section(title, text string) *section {
	s := &section{report: r, title: title, text: strings.TrimSpace(text)}
	r.sections = append(r.sections, s)
	return s
}

// plot adds a drawing to the section, or replaces the one of that name in an earlier section.
func (s *section) plot(name string, d drawing) {
	if s.report.drawings[name] == nil {
		s.image = name
	}
	s.report.drawings[name] = d
}

func (r *report) goal(text, measured string, met bool) { r.goals[text] = outcome{measured, met} }

// write writes the report to the directory out, and prints the goals. If out is "", it prints the report.
func (r *report) write(out string) error {
	text := r.markdown()
	if out == "" {
		_, err := io.WriteString(os.Stdout, text)
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	errs := []error{os.WriteFile(filepath.Join(out, "README.md"), []byte(text), 0o644)}
	for name, d := range r.drawings {
		errs = append(errs, os.WriteFile(filepath.Join(out, name+".svg"), []byte(d.svg()), 0o644))
	}
	fmt.Print(r.goalTable())
	return errors.Join(errs...)
}

func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString(r.head)
	b.WriteString("\n## Goals\n\n" + r.goalTable())
	for _, s := range r.sections {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", s.title, s.text)
		if s.image != "" {
			fmt.Fprintf(&b, "\n![%s](%s.svg)\n", s.title, s.image)
		}
		b.WriteString("\n" + s.table.String())
		switch len(s.noise) {
		case 0:
		case 1:
			b.WriteString("\nNoise: " + s.noise[0] + ".\n")
		default:
			b.WriteString("\nNoise:\n\n- " + strings.Join(s.noise, "\n- ") + "\n")
		}
		for rival := range s.table.rivals {
			r.used[rival] = true
		}
	}
	if len(r.used) > 0 {
		b.WriteString("\n## The rivals\n\n")
		for _, rival := range allRivals() {
			if r.used[rival] {
				fmt.Fprintf(&b, "- **%s**: %s.\n", rival.name, rival.note)
			}
		}
	}
	return b.String()
}

// goalTable returns the table of goals, with what was measured.
func (r *report) goalTable() string {
	t := newTable("goal", "measured", "met")
	for _, text := range allGoals() {
		o, ok := r.goals[text]
		switch {
		case r.server != "mysql" && strings.HasSuffix(text, goalOnMySQL):
		case !ok:
			t.addRow(false, text, "not measured", "–")
		case r.quick:
			t.addRow(false, text, o.measured, "–")
		case o.met:
			t.addRow(false, text, o.measured, "yes")
		default:
			t.addRow(false, text, o.measured, "**no**")
		}
	}
	return t.String()
}

// A table has a header and rows, all with the same number of cells.
type table struct {
	rows   [][]string
	rivals map[*rival]bool
}

func newTable(header ...string) *table {
	return &table{rows: [][]string{header}, rivals: map[*rival]bool{}}
}

// add adds the row of a rival. Our own row is bold.
func (t *table) add(r *rival, cells ...string) {
	t.rivals[r] = true
	t.addRow(r == ourselves, slices.Concat([]string{r.name}, cells)...)
}

func (t *table) addRow(bold bool, cells ...string) {
	if bold {
		for i, cell := range cells {
			cells[i] = "**" + cell + "**"
		}
	}
	t.rows = append(t.rows, cells)
}

// String returns the table as Markdown. All columns but the first are aligned to the right.
func (t *table) String() string {
	var b strings.Builder
	for i, row := range t.rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|---|" + strings.Repeat("---:|", len(row)-1) + "\n")
		}
	}
	return b.String()
}
