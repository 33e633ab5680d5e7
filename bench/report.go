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

// A report is what a run came to, as Markdown with plots.
type report struct {
	head     string
	server   string
	quick    bool // too few samples to judge by
	sections []*section
	drawings map[string]drawing // by file name, without .svg
	goals    map[string]outcome // by text
	used     map[*rival]bool

	waitingCosts map[waiters]float64 // by idle, for handoff: statements per second and process
}

type section struct {
	report      *report
	title, text string
	table       *table
	image       string   // a key of drawings
	noise       []string // what to say of it; of several measurements, each
}

// A drawing can be written as an SVG file.
type drawing interface{ svg() string }

type outcome struct {
	measured string
	met      bool
}

// The goals, in the words of the table.
const (
	goalUncontended = "acquire and release ≤ 1.15 × two bare UPDATEs, prepared"
	goalDelayed     = "≤ 1.03 × with 1 ms of network delay"
	goalWorst       = "none of 2,000 of these handoffs above 250 ms"
	goalExtra       = "≤ 3 extra statements per handoff"
	goalIdle        = "≤ 2 statements per second and waiting process"
	goalHot         = "hot lock, 1 process: ≥ 400,000 turns a second"
	goalShare       = "hot lock, 2 processes: each gets at least 45 % of the time"
	goalAcquireMany = "64 goroutines acquire 10,000 locks in ≤ 1.5 s"
	goalCloseMany   = "Close releases 10,000 locks in ≤ 0.5 s"
	goalReentry     = "re-entry and Unlock: under 1 µs, 0 statements, ≤ 3 allocations"
	goalHolding     = "10,000 held locks: ≤ 20 statements per renewal interval"
	goalHoldingCPU  = "10,000 held locks: ≤ 2 % of one core on either side"
	goalJoin        = "a further shared hold in a process: under 1 µs with its Unlock, 0 statements"
	goalAll         = "100 locks at once: ≤ 3 × the time of one"
	goalWriter      = "an exclusive request among readers waits ≤ 1.5 × the longest read"
)

// onMySQL is a goal of a row of handoffs for that server alone.
const onMySQL = "p50 ≤ 1.0 ms"

// judgedHolds are those of the holds for which handoffs have goals.
var judgedHolds = holds[1:]

// handoffGoals are the goals of a row: the median, beside etcd; the median on MySQL; the tail.
func handoffGoals(hold time.Duration, waiting int) [3]string {
	row := fmt.Sprintf("handoff, %s, %d waiting: ", holdTitle(hold), waiting)
	return [3]string{
		row + "p50 ≤ 0.75 × that of etcd",
		row + onMySQL,
		row + "p99 ≤ 8 ms",
	}
}

// scalingGoals are by the number of goroutines.
var scalingGoals = map[int]float64{1: 0.85, 4: 0.85, 16: 1, 64: 2, 256: 4}

func goalScaling(n int) string {
	return fmt.Sprintf("distinct names, %d goroutines: ≥ %s × two bare UPDATEs", n, digits(scalingGoals[n]))
}

func allGoals() []string {
	goals := []string{goalUncontended, goalDelayed}
	for _, hold := range judgedHolds {
		for _, waiting := range []int{1, many} {
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
	r := &report{server: o.server, quick: o.quick, drawings: map[string]drawing{}, goals: map[string]outcome{}, used: map[*rival]bool{}, waitingCosts: map[waiters]float64{}}
	flags := ""
	if o.repeats != defaultRepeats || o.handoffTarget != enoughHandoffs/judgedRows {
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
	r.head = fmt.Sprintf(`# mysqllock beside its rivals, on %s

Written by `+"`%s`"+` on %s.

%sEach table was measured in one run, with the rivals by turns in small chunks.
All servers ran on this machine and flush what they acknowledge:
innodb_flush_log_at_trx_commit=1, appendfsync always, etcd as it is shipped.
Below each table is how long a flush of 512 bytes and a bare UPDATE took before,
during and after it. Where that varied by more than %s ×, it was measured
again, up to %d times, and the quietest run is shown.

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
	return &report{drawings: maps.Clone(r.drawings), goals: map[string]outcome{}, waitingCosts: map[waiters]float64{}}
}

// join adds what a fork of the report contains. said is of its noise.
func (r *report) join(part *report, said string) {
	for _, s := range part.sections {
		s.report, s.noise = r, []string{said}
		r.sections = append(r.sections, s)
	}
	r.drawings = part.drawings
	maps.Copy(r.goals, part.goals)
	maps.Copy(r.waitingCosts, part.waitingCosts)
}

// section begins one. Its parts are shown in the order of title, text, plot, table, noise.
func (r *report) section(title, text string) *section {
	s := &section{report: r, title: title, text: strings.TrimSpace(text)}
	r.sections = append(r.sections, s)
	return s
}

// plot shows a drawing in the section, unless an earlier one shows it.
func (s *section) plot(name string, d drawing) {
	if s.report.drawings[name] == nil {
		s.image = name
	}
	s.report.drawings[name] = d
}

func (r *report) goal(text, measured string, met bool) { r.goals[text] = outcome{measured, met} }

// write prints the report and, if out is not "", writes it there.
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

// goalTable compares the goals that were measured.
func (r *report) goalTable() string {
	t := newTable("goal", "measured", "met")
	for _, text := range allGoals() {
		o, ok := r.goals[text]
		switch {
		case r.server != "mysql" && strings.HasSuffix(text, onMySQL):
		case !ok:
			t.addRow(false, text, "not in this run", "–")
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

// A table has a head and rows of as many cells.
type table struct {
	rows   [][]string
	rivals map[*rival]bool
}

func newTable(head ...string) *table {
	return &table{rows: [][]string{head}, rivals: map[*rival]bool{}}
}

// add adds the row of a rival; ours is bold.
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

// String is the table as Markdown, with all columns but the first to the right.
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
