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
	many      = 8  // waiting processes, where there are many
	crewSize  = 72 // eight locks with 8 waiting processes
	quickCrew = 9
	maxChains = 18 // locks of a rival at the same time
	// enoughHandoffs are how many of ours the goal for the greatest needs, in all judged rows together.
	enoughHandoffs = 2000
	judgedRows     = 4
)

// holds are for how long a lock is kept before it is passed on.
var holds = []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second}

// handoff measures how long a lock that is released is nobody's while other
// processes wait for it.
func (b *bench) handoff() error {
	s := b.report.section("Handoff to another process", fmt.Sprintf(`
From the return of release in one process to that of acquire in another, while 1
or %d processes wait, ms. A lock is held for the given time, more or less by up
to a quarter at random. A process that has released waits again as soon as another
process has the lock. Statements are all that the server got, per handoff, where
only one of the rivals used it. Extra ones are those beyond the acquire, the
release, and what the waiting of the processes costs by itself, which is in the
table above.`, many))
	s.table = newTable("", "hold", "waiting", "p50", "p90", "p99", "max", "handoffs", "statements", "extra")
	team, err := newCrew(b.servers.sites, pick(b, crewSize, quickCrew))
	if err != nil {
		return err
	}
	defer team.dismiss()
	rivals := b.servers.present(ourselves, polling, getLock, handmade, redisLock, redSync, etcd)
	for _, r := range rivals {
		if err := team.warm(b.ctx, len(team.workers), r, 1); err != nil {
			return err
		}
	}

	var cells []*cell
	for _, hold := range pick(b, holds, holds[:1]) {
		for _, waiting := range []int{1, many} {
			var row, quietest map[*rival]*cell
			said, err := b.repeat(func() error {
				row = map[*rival]*cell{}
				for _, r := range rivals {
					row[r] = &cell{rival: r, hold: hold, waiting: waiting}
				}
				return b.handoffs(team, rivals, row)
			}, func() { quietest = row })
			if err != nil {
				return err
			}
			for _, r := range rivals {
				cells = append(cells, quietest[r])
			}
			s.noise = append(s.noise, fmt.Sprintf("%s, %d waiting: %s", holdTitle(hold), waiting, said))
		}
	}
	b.tellHandoffs(s, cells)
	return nil
}

// handoffs measures a row: all rivals with one hold and one number of waiting processes.
func (b *bench) handoffs(team *crew, rivals []*rival, row map[*rival]*cell) error {
	ours := row[ourselves]
	if ours.hold >= time.Second {
		// So long a hold leaves the machine idle, and several can use it at
		// the same time, one of them with the MySQL server to itself.
		if err := b.pass(team, 24*time.Second, b.handoffTarget, pickCells(row, ourselves, redisLock, redSync, etcd)...); err != nil {
			return err
		}
		return b.pass(team, 24*time.Second, 0, pickCells(row, polling, getLock, handmade)...)
	}
	d := pick(b, 2500*time.Millisecond, 300*time.Millisecond)
	err := b.interleave(pick(b, 2, 1), rivals, func(r *rival) error { return b.pass(team, d, 0, row[r]) })
	if err != nil || !slices.Contains(judgedHolds, ours.hold) {
		return err
	}
	judged := slices.DeleteFunc(slices.Clone(rivals), func(r *rival) bool { return r != ourselves && r != etcd })
	for len(ours.took) < b.handoffTarget {
		if err := b.interleave(1, judged, func(r *rival) error { return b.pass(team, 4*d, 0, row[r]) }); err != nil {
			return err
		}
	}
	return nil
}

// A cell is one rival with one time of holding and one number of waiting processes.
type cell struct {
	rival   *rival
	hold    time.Duration
	waiting int

	took       samples
	turns      int
	waited     time.Duration // by all processes together
	statements int64         // all that the server got meanwhile
	mixed      bool          // others used it too
}

// waiters are the key for what waiting costs.
type waiters struct {
	rival *rival
	n     int // processes
}

func pickCells(row map[*rival]*cell, rivals ...*rival) (cells []*cell) {
	for _, r := range rivals {
		if row[r] != nil {
			cells = append(cells, row[r])
		}
	}
	return cells
}

// perTurn is the number of statements per handoff, and of the extra ones. It is
// not known where others used the server.
func (b *bench) perTurn(c *cell) (all, extra float64) {
	if !c.rival.mysql || c.mixed || c.turns == 0 {
		return nan, nan
	}
	all = float64(c.statements) / float64(c.turns)
	waiting := b.report.waitingCosts[waiters{c.rival, c.waiting}] * c.waited.Seconds() / float64(c.turns)
	return all, max(0, all-2-waiting)
}

// A chain is a lock that is passed on among some processes.
type chain struct {
	cell    *cell
	name    string
	members []int

	holder             int // -1 before the first
	idle               int // has released and not been told to wait again, -1 if nobody
	running            int // members with a turn that is not over
	stopped            bool
	acquired, released samples // instants
}

var chains int // made in this run: each has a name of its own

// newChains has as many as the workers suffice for, but only so many that one
// rarely works while another does.
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

// pass passes the locks of cells on for a time, or for longer, until there are so many
// handoffs of the first cell, and adds what it saw to them. A handoff that is under
// way at the end counts, however long it takes.
func (b *bench) pass(team *crew, d time.Duration, least int, cells ...*cell) error {
	byName := map[string]*chain{}
	var onMySQL int
	for _, c := range cells {
		if c.rival.mysql {
			onMySQL++
		}
		for _, ch := range newChains(c, len(team.workers)) {
			byName[ch.name] = ch
		}
	}
	start := time.Now()
	// Statements are counted from when each process has had its turn, and until
	// they are told to stop: to begin and to end a wait costs some, once.
	var from, to tally
	turns, warm := 0, 0
	for _, ch := range byName {
		if ch.cell.rival.mysql {
			warm += len(ch.members) + 1
		}
		for _, m := range ch.members {
			if err := ch.start(team, m); err != nil {
				return err
			}
		}
	}

	end := start.Add(d)
	const step = 10 * time.Second // between looks at the noise
	looked, first := start, 0
	timeout := time.NewTimer(d + time.Minute)
	defer timeout.Stop()
	for active := len(byName); active > 0; {
		h, err := team.hear(b.ctx, timeout.C)
		if err != nil {
			return err
		}
		if time.Since(looked) > step {
			if err := b.look(); err != nil {
				return err
			}
			looked = time.Now()
		}
		ch := byName[h.Name]
		if h.Say == "acquired" {
			if ch.cell.rival.mysql {
				turns++
			}
			if ch.cell == cells[0] {
				first++
			}
			timeout.Reset(d + time.Minute)
		}
		over := time.Now().After(end) && first >= least+len(byName) // the first turn of a lock is no handoff
		if turns == warm && from.at.IsZero() {
			err = b.tally(&from, turns)
		} else if over && to.at.IsZero() {
			err = b.tally(&to, turns)
		}
		if err != nil {
			return err
		}
		if err := ch.hear(team, h, over); err != nil {
			return err
		}
		if ch.running == 0 {
			active--
		}
	}

	for _, ch := range byName {
		ch.cell.took = append(ch.cell.took, ch.handoffs()...)
	}
	if from.at.IsZero() || to.turns <= from.turns {
		return nil // too short to count anything
	}
	for _, c := range cells {
		if !c.rival.mysql {
			continue
		}
		c.statements += to.statements - from.statements
		c.turns += to.turns - from.turns
		c.waited += time.Duration(c.waiting*len(byName)/len(cells)) * to.at.Sub(from.at)
		c.mixed = c.mixed || onMySQL > 1
	}
	return nil
}

// A tally is what was counted until a moment.
type tally struct {
	at         time.Time
	statements int64
	turns      int
}

func (b *bench) tally(t *tally, turns int) (err error) {
	t.at, t.turns = time.Now(), turns
	t.statements, err = b.servers.questions()
	return err
}

// start tells a member to take its turn.
func (ch *chain) start(team *crew, member int) error {
	ch.running++
	jitter := 0.75 + rand.Float64()/2
	hold := time.Duration(jitter * float64(ch.cell.hold))
	return team.tell(member, order{Do: "turn", Rival: ch.cell.rival.name, Name: ch.name, Hold: hold})
}

// hear goes on after a word of a member; last says that the next holder is the last.
func (ch *chain) hear(team *crew, h heard, last bool) error {
	switch h.Say {
	case "acquired":
		ch.acquired = append(ch.acquired, h.At)
		ch.holder = h.from
		if last && !ch.stopped {
			ch.stopped = true
			for _, m := range ch.members {
				if m == ch.idle {
					continue
				}
				if err := team.tell(m, order{Do: "stop", Name: ch.name}); err != nil {
					return err
				}
			}
		}
	case "over":
		ch.running--
		if h.At != 0 {
			ch.released = append(ch.released, h.At)
			ch.idle = h.from
		}
	}
	if ch.stopped || ch.idle < 0 || ch.idle == ch.holder {
		return nil
	}
	member := ch.idle
	ch.idle = -1
	return ch.start(team, member)
}

// handoffs are the times from each release to the acquisition after it. That
// can have been told first, before release returned.
func (ch *chain) handoffs() (took samples) {
	slices.Sort(ch.acquired)
	slices.Sort(ch.released)
	for i := range min(len(ch.acquired)-1, len(ch.released)) {
		took = append(took, max(0, ch.acquired[i+1]-ch.released[i]))
	}
	return took
}

func (b *bench) tellHandoffs(s *section, cells []*cell) {
	var worst float64
	p := &plot{title: b.titled("Handoff to another process"), unit: "ms, p50 and p99"}
	slices.SortStableFunc(cells, func(x, y *cell) int { return cmp.Compare(x.hold, y.hold) })
	for _, c := range cells {
		all, extra := b.perTurn(c)
		p50, p99 := c.took.quantile(0.5), c.took.quantile(0.99)
		s.table.add(c.rival, spaced(c.hold), fmt.Sprint(c.waiting), millis(p50), millis(c.took.quantile(0.9)),
			millis(p99), millis(c.took.quantile(1)), fmt.Sprint(len(c.took)), digits(all), digits(extra))
		if len(p.panels) == 0 || p.panels[len(p.panels)-1].title != holdTitle(c.hold) {
			p.panels = append(p.panels, panel{title: holdTitle(c.hold), series: []string{"1 waiting process", fmt.Sprintf("%d waiting", many)}})
		}
		p.panels[len(p.panels)-1].add(c.rival, mark{value: inMillis(p50), to: inMillis(p99)})
		if c.rival == ourselves && !math.IsNaN(extra) {
			worst = max(worst, extra)
		}
	}
	b.report.goal(goalExtra, "at most "+digits(worst), worst <= 3)
	b.judgeHandoffs(cells)
	s.plot("handoff", p)
}

func (b *bench) judgeHandoffs(cells []*cell) {
	var ours samples
	for _, c := range cells {
		if c.rival != ourselves || !slices.Contains(judgedHolds, c.hold) {
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

// spaced is a whole number and a unit.
func spaced(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}
