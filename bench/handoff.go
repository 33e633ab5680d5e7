package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	manyWaiting         = 8  // waiting processes in the rows with many of them
	handoffWorkers      = 72 // enough for eight locks with a holder and 8 waiting processes each
	quickHandoffWorkers = 9
	maxChains           = 18 // locks of one rival that are measured at the same time
	// enoughHandoffs is how many of our handoffs the goal for the slowest one needs, in all rows
	// with goals together.
	enoughHandoffs = 2000
	rowsWithGoals  = 4
)

// holdTimes are how long a lock is held before its release.
var holdTimes = []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second}

// handoff measures the time from the release of a lock in one process to its acquisition in
// another one, which waits for it.
func (b *bench) handoff() error {
	s := b.report.section("Handoff to another process", fmt.Sprintf(`
Time from the return of release in one process to the return of acquire in
another, in ms, while 1 or %d processes wait. Each hold lasts the given time ± a
random part of up to a quarter. A process that has released the lock waits for it
again as soon as another process has acquired it. Statements are all those that the
server received, per handoff, if no other rival used it at the same time. Extra
statements are those besides the acquire, the release and what waiting costs
anyway, which the table above shows.`, manyWaiting))
	s.table = newTable("", "hold", "waiting", "p50", "p90", "p99", "max", "handoffs", "statements", "extra")
	group, err := startWorkers(b.servers.endpoints, pick(b, handoffWorkers, quickHandoffWorkers))
	if err != nil {
		return err
	}
	defer group.stop()
	rivals := b.servers.available(ourselves, polling, getLock, handmade, redisLock, redSync, etcd)
	for _, r := range rivals {
		if err := group.warm(b.ctx, len(group.workers), r, 1); err != nil {
			return err
		}
	}

	var cells []*cell
	for _, hold := range pick(b, holdTimes, holdTimes[:1]) {
		for _, waiting := range []int{1, manyWaiting} {
			var row, quietest map[*rival]*cell
			summary, err := b.repeatWhileNoisy(func() error {
				row = map[*rival]*cell{}
				for _, r := range rivals {
					row[r] = &cell{rival: r, hold: hold, waiting: waiting}
				}
				return b.handoffs(group, rivals, row)
			}, func() { quietest = row })
			if err != nil {
				return err
			}
			for _, r := range rivals {
				cells = append(cells, quietest[r])
			}
			s.noise = append(s.noise, fmt.Sprintf("%s, %d waiting: %s", holdTitle(hold), waiting, summary))
		}
	}
	b.reportHandoffs(s, cells)
	return nil
}

// handoffs measures a row: all rivals with one hold time and one number of waiting processes.
func (b *bench) handoffs(group *workerGroup, rivals []*rival, row map[*rival]*cell) error {
	ours := row[ourselves]
	if ours.hold >= time.Second {
		// With such long holds the machine is mostly idle, so several rivals are measured at the
		// same time. Only one of the first group uses the MySQL server.
		if err := b.measureHandoffs(group, 24*time.Second, b.handoffTarget, pickCells(row, ourselves, redisLock, redSync, etcd)...); err != nil {
			return err
		}
		return b.measureHandoffs(group, 24*time.Second, 0, pickCells(row, polling, getLock, handmade)...)
	}
	d := pick(b, 2500*time.Millisecond, 300*time.Millisecond)
	err := b.interleave(pick(b, 2, 1), rivals, func(r *rival) error { return b.measureHandoffs(group, d, 0, row[r]) })
	if err != nil || !slices.Contains(holdsWithGoals, ours.hold) {
		return err
	}
	inGoals := slices.DeleteFunc(slices.Clone(rivals), func(r *rival) bool { return r != ourselves && r != etcd })
	for len(ours.took) < b.handoffTarget {
		if err := b.interleave(1, inGoals, func(r *rival) error { return b.measureHandoffs(group, 4*d, 0, row[r]) }); err != nil {
			return err
		}
	}
	return nil
}

// A cell is one rival with one hold time and one number of waiting processes.
type cell struct {
	rival   *rival
	hold    time.Duration
	waiting int

	took samples // times of handoffs

	// The server's statements are counted for a part of the time only: see measureHandoffs.
	acquisitions int
	waited       time.Duration // the sum of all processes
	statements   int64         // all that the server received
	mixed        bool          // other rivals used the server, too
}

// A waitingKey is the key of report.waitingCosts.
type waitingKey struct {
	rival     *rival
	processes int
}

func pickCells(row map[*rival]*cell, rivals ...*rival) (cells []*cell) {
	for _, r := range rivals {
		if row[r] != nil {
			cells = append(cells, row[r])
		}
	}
	return cells
}

// statementsPerHandoff returns the number of all statements per handoff, and of the extra ones, or
// NaN if other rivals used the server.
func (b *bench) statementsPerHandoff(c *cell) (all, extra float64) {
	if !c.rival.mysql || c.mixed || c.acquisitions == 0 {
		return nan, nan
	}
	all = float64(c.statements) / float64(c.acquisitions)
	waiting := b.report.waitingCosts[waitingKey{c.rival, c.waiting}] * c.waited.Seconds() / float64(c.acquisitions)
	return all, max(0, all-2-waiting)
}

// A chain is a lock that its member processes acquire one after the other.
type chain struct {
	cell    *cell
	name    string
	members []int // indices of workers

	holder             int // the last member that acquired the lock, -1 at first
	idle               int // the member that has released the lock and does not wait for it yet, or -1
	running            int // members in a cycle
	stopped            bool
	acquired, released samples // by now()
}

var chains int // how many this process has made, for unique names

// newChains makes as many chains as there are workers for, but only so many that two of them are
// rarely active at the same time.
func newChains(c *cell, workers int) []*chain {
	size := c.waiting + 1
	n := min(workers/size, maxChains)
	if !c.rival.slow {
		n = min(n, max(1, int(c.hold/(30*time.Millisecond))))
	}
	var result []*chain
	for i := range n {
		chains++
		ch := &chain{cell: c, name: fmt.Sprintf("chain-%d-%d", now(), chains), holder: -1, idle: -1}
		for m := range size {
			ch.members = append(ch.members, i*size+m)
		}
		result = append(result, ch)
	}
	return result
}

// measureHandoffs runs the chains of cells for d, or longer, until the first cell has had least
// handoffs, and adds the results to the cells. Handoffs that are in progress at the end are
// counted, however long they take.
func (b *bench) measureHandoffs(group *workerGroup, d time.Duration, least int, cells ...*cell) error {
	byName := map[string]*chain{}
	var onMySQL int
	for _, c := range cells {
		if c.rival.mysql {
			onMySQL++
		}
		for _, ch := range newChains(c, len(group.workers)) {
			byName[ch.name] = ch
		}
	}
	start := time.Now()
	// Statements are counted after each process has acquired the lock once, and until the first
	// stop, because beginning and ending a wait costs some statements, too.
	var from, to tally
	acquisitions, warmup := 0, 0
	for _, ch := range byName {
		if ch.cell.rival.mysql {
			warmup += len(ch.members) + 1
		}
		for _, m := range ch.members {
			if err := ch.start(group, m); err != nil {
				return err
			}
		}
	}

	end := start.Add(d)
	const noiseInterval = 10 * time.Second
	lastNoise, first := start, 0
	timeout := time.NewTimer(d + time.Minute)
	defer timeout.Stop()
	for active := len(byName); active > 0; {
		e, err := group.receive(b.ctx, timeout.C)
		if err != nil {
			return err
		}
		if time.Since(lastNoise) > noiseInterval {
			if err := b.sampleNoise(); err != nil {
				return err
			}
			lastNoise = time.Now()
		}
		ch := byName[e.Name]
		if e.Kind == "acquired" {
			if ch.cell.rival.mysql {
				acquisitions++
			}
			if ch.cell == cells[0] {
				first++
			}
			timeout.Reset(d + time.Minute)
		}
		over := time.Now().After(end) && first >= least+len(byName) // the first acquisition of a lock is no handoff
		if acquisitions == warmup && from.at.IsZero() {
			err = b.tally(&from, acquisitions)
		} else if over && to.at.IsZero() {
			err = b.tally(&to, acquisitions)
		}
		if err != nil {
			return err
		}
		if err := ch.handle(group, e, over); err != nil {
			return err
		}
		if ch.running == 0 {
			active--
		}
	}

	for _, ch := range byName {
		ch.cell.took = append(ch.cell.took, ch.handoffs()...)
	}
	if from.at.IsZero() || to.acquisitions <= from.acquisitions {
		return nil // too short to count statements
	}
	for _, c := range cells {
		if !c.rival.mysql {
			continue
		}
		c.statements += to.statements - from.statements
		c.acquisitions += to.acquisitions - from.acquisitions
		c.waited += time.Duration(c.waiting*len(byName)/len(cells)) * to.at.Sub(from.at)
		c.mixed = c.mixed || onMySQL > 1
	}
	return nil
}

// A tally has the counts up to a time.
type tally struct {
	at           time.Time
	statements   int64
	acquisitions int
}

func (b *bench) tally(t *tally, acquisitions int) (err error) {
	t.at, t.acquisitions = time.Now(), acquisitions
	t.statements, err = b.servers.questions()
	return err
}

// start makes a member begin a cycle.
func (ch *chain) start(group *workerGroup, member int) error {
	ch.running++
	jitter := 0.75 + rand.Float64()/2
	hold := time.Duration(jitter * float64(ch.cell.hold))
	return group.send(member, command{Op: "cycle", Rival: ch.cell.rival.name, Name: ch.name, Hold: hold})
}

// handle processes an event of a member: once the lock has a new holder, the previous one waits for
// it again. If last is true, an acquisition stops the chain.
func (ch *chain) handle(group *workerGroup, e workerEvent, last bool) error {
	switch e.Kind {
	case "acquired":
		ch.acquired = append(ch.acquired, e.At)
		ch.holder = e.worker
		if last && !ch.stopped {
			ch.stopped = true
			for _, m := range ch.members {
				if m == ch.idle {
					continue
				}
				if err := group.send(m, command{Op: "stop", Name: ch.name}); err != nil {
					return err
				}
			}
		}
	case "done":
		ch.running--
		if e.At != 0 {
			ch.released = append(ch.released, e.At)
			ch.idle = e.worker
		}
	}
	if ch.stopped || ch.idle < 0 || ch.idle == ch.holder {
		return nil
	}
	member := ch.idle
	ch.idle = -1
	return ch.start(group, member)
}

// handoffs returns the times from each release to the next acquisition. A waiter may acquire the
// lock before release returns to the last holder; that counts as 0.
func (ch *chain) handoffs() (took samples) {
	slices.Sort(ch.acquired)
	slices.Sort(ch.released)
	for i := range min(len(ch.acquired)-1, len(ch.released)) {
		took = append(took, max(0, ch.acquired[i+1]-ch.released[i]))
	}
	return took
}

func (b *bench) reportHandoffs(s *section, cells []*cell) {
	var worst float64
	p := &plot{title: b.titled("Handoff to another process"), unit: "ms, p50 and p99"}
	slices.SortStableFunc(cells, func(x, y *cell) int { return cmp.Compare(x.hold, y.hold) })
	for _, c := range cells {
		all, extra := b.statementsPerHandoff(c)
		p50, p99 := c.took.quantile(0.5), c.took.quantile(0.99)
		s.table.add(c.rival, spaced(c.hold), fmt.Sprint(c.waiting), millis(p50), millis(c.took.quantile(0.9)),
			millis(p99), millis(c.took.quantile(1)), fmt.Sprint(len(c.took)), digits(all), digits(extra))
		if len(p.panels) == 0 || p.panels[len(p.panels)-1].title != holdTitle(c.hold) {
			p.panels = append(p.panels, panel{title: holdTitle(c.hold), series: []string{"1 waiting process", fmt.Sprintf("%d waiting", manyWaiting)}})
		}
		p.panels[len(p.panels)-1].add(c.rival, mark{value: inMillis(p50), to: inMillis(p99)})
		if c.rival == ourselves && !math.IsNaN(extra) {
			worst = max(worst, extra)
		}
	}
	b.report.goal(goalExtra, "at most "+digits(worst), worst <= 3)
	b.checkHandoffGoals(cells)
	s.plot("handoff", p)
}

func (b *bench) checkHandoffGoals(cells []*cell) {
	var ours samples
	for _, c := range cells {
		if c.rival != ourselves || !slices.Contains(holdsWithGoals, c.hold) {
			continue
		}
		goals := handoffGoals(c.hold, c.waiting)
		p50, p99 := c.took.quantile(0.5), c.took.quantile(0.99)
		ours = append(ours, c.took...)
		for _, other := range cells {
			if other.rival == etcd && other.hold == c.hold && other.waiting == c.waiting {
				ratio := float64(p50) / float64(other.took.quantile(0.5))
				b.report.goal(goals[0], digits(ratio)+" ×", ratio <= 0.75)
			}
		}
		if b.server == "mysql" {
			b.report.goal(goals[1], millis(p50)+" ms", p50 <= time.Millisecond)
		}
		b.report.goal(goals[2], millis(p99)+" ms", p99 <= 8*time.Millisecond)
	}
	if len(ours) > 0 {
		worst := ours.quantile(1)
		b.report.goal(goalWorst, fmt.Sprintf("at most %s ms of %s", millis(worst), thousands(int64(len(ours)))),
			worst <= 250*time.Millisecond && len(ours) >= enoughHandoffs)
	}
}

func holdTitle(hold time.Duration) string {
	return "held for " + spaced(hold)
}

// spaced formats a whole number of seconds or milliseconds with a space before the unit.
func spaced(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}
