package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// hot measures one lock that everybody wants all the time.
func (b *bench) hot() error {
	const goroutines = 64
	s := b.report.section("One hot lock", fmt.Sprintf(`
%d goroutines, in one process or divided between two, have one empty turn after
the other. A process' share of the time is what passed from each of its turns to
the next turn of anybody.`, goroutines))
	s.table = newTable("", "1 process, turns/s", "2 processes, turns/s", "least share of turns", "least share of time")
	team, err := newCrew(b.servers.sites, 2)
	if err != nil {
		return err
	}
	defer team.dismiss()
	rivals := b.servers.present(ourselves, alone, getLock, handmade, redisLock, redSync, etcd)
	for _, r := range rivals {
		if err := team.warm(b.ctx, 2, r, goroutines); err != nil {
			return err
		}
	}

	var results [3]map[*rival]*heat // by number of processes
	for _, processes := range []int{1, 2} {
		results[processes] = map[*rival]*heat{}
		for _, r := range rivals {
			results[processes][r] = &heat{}
		}
		d := pick(b, 2*time.Second, 200*time.Millisecond)
		err := b.interleave(pick(b, 2, 1), rivals, func(r *rival) error {
			return b.heat(team, processes, r, goroutines/processes, d, results[processes][r])
		})
		if err != nil {
			return err
		}
	}

	p := &plot{title: b.titled(fmt.Sprintf("One hot lock, %d goroutines", goroutines)), unit: "turns per second"}
	p.panels = []panel{{title: "in 1 process"}, {title: "in 2 processes"}}
	for _, r := range rivals {
		one, two := results[1][r], results[2][r]
		turns, shared := two.shares()
		s.table.add(r, digits(one.rate()), digits(two.rate()), percent(turns), percent(shared))
		p.panels[0].add(r, mark{value: one.rate()})
		p.panels[1].add(r, mark{value: two.rate()})
		if r == ourselves {
			b.report.goal(goalHot, digits(one.rate()), one.rate() >= 400_000)
			b.report.goal(goalShare, percent(shared), shared >= 0.45)
		}
	}
	s.plot("hot", p)
	return nil
}

// heat is what some runs of a rival came to.
type heat struct {
	lasted time.Duration
	turns  [2]int           // by process
	time   [2]time.Duration // from a turn of the process to the next of anybody
}

func (h *heat) rate() float64 { return float64(h.turns[0]+h.turns[1]) / h.lasted.Seconds() }

// shares are the least of a process, of turns and of time.
func (h *heat) shares() (turns, time float64) {
	turns = float64(min(h.turns[0], h.turns[1])) / float64(h.turns[0]+h.turns[1])
	time = float64(min(h.time[0], h.time[1])) / float64(h.time[0]+h.time[1])
	return turns, time
}

// heat lets a rival run once, and adds what came of it.
func (b *bench) heat(team *crew, processes int, r *rival, goroutines int, d time.Duration, sum *heat) error {
	o := order{Do: "hot", Rival: r.name, Name: fmt.Sprintf("hot-%d", now()), Goroutines: goroutines}
	o.From = now() + pick(b, 300*time.Millisecond, 50*time.Millisecond)
	o.To = o.From + d
	for i := range processes {
		if err := team.tell(i, o); err != nil {
			return err
		}
	}
	sum.lasted += d
	type owned struct {
		span
		process int
	}
	var spans []owned
	timeout := time.After(d + time.Minute)
	for range processes {
		h, err := team.hear(b.ctx, timeout)
		if err != nil {
			return err
		}
		sum.turns[h.from] += h.Turns
		for _, s := range h.Spans {
			spans = append(spans, owned{s, h.from})
		}
	}
	slices.SortFunc(spans, func(x, y owned) int { return cmp.Compare(x.First, y.First) })
	for i, s := range spans {
		next := o.To
		if i+1 < len(spans) {
			next = spans[i+1].First
		}
		sum.time[s.process] += next - s.First
	}
	return nil
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "–" // nobody had a turn
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}
