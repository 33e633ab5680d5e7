package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// hot measures one lock for which all goroutines always compete.
func (b *bench) hot() error {
	const goroutines = 64
	s := b.report.section("One hot lock", fmt.Sprintf(`
%d goroutines, in one process or divided between two, acquire and release one lock
as often as they can. A process's share of the time is the sum of the times from
each of its acquisitions to the next acquisition by any process.`, goroutines))
	s.table = newTable("", "1 process, acquisitions/s", "2 processes, acquisitions/s", "smallest share of acquisitions", "smallest share of time")
	group, err := startWorkers(b.servers.endpoints, 2)
	if err != nil {
		return err
	}
	defer group.stop()
	rivals := b.servers.available(ourselves, noHandoff, getLock, handmade, redisLock, redSync, etcd)
	for _, r := range rivals {
		if err := group.warm(b.ctx, 2, r, goroutines); err != nil {
			return err
		}
	}

	var results [3]map[*rival]*hotResult // by number of processes
	for _, processes := range []int{1, 2} {
		results[processes] = map[*rival]*hotResult{}
		for _, r := range rivals {
			results[processes][r] = &hotResult{}
		}
		d := pick(b, 2*time.Second, 200*time.Millisecond)
		err := b.interleave(pick(b, 2, 1), rivals, func(r *rival) error {
			return b.runHot(group, processes, r, goroutines/processes, d, results[processes][r])
		})
		if err != nil {
			return err
		}
	}

	p := &plot{title: b.titled(fmt.Sprintf("One hot lock, %d goroutines", goroutines)), unit: "acquisitions per second"}
	p.panels = []panel{{title: "in 1 process"}, {title: "in 2 processes"}}
	for _, r := range rivals {
		one, two := results[1][r], results[2][r]
		ofAcquisitions, ofTime := two.smallestShares()
		s.table.add(r, digits(one.rate()), digits(two.rate()), percent(ofAcquisitions), percent(ofTime))
		p.panels[0].add(r, mark{value: one.rate()})
		p.panels[1].add(r, mark{value: two.rate()})
		if r == ourselves {
			b.report.goal(goalHot, digits(one.rate()), one.rate() >= 400_000)
			b.report.goal(goalShare, percent(ofTime), ofTime >= 0.45)
		}
	}
	s.plot("hot", p)
	return nil
}

// A hotResult is the sum of several runs of a rival.
type hotResult struct {
	duration     time.Duration
	acquisitions [2]int           // by process
	time         [2]time.Duration // by process: from each acquisition to the next one by any process
}

func (h *hotResult) rate() float64 {
	return float64(h.acquisitions[0]+h.acquisitions[1]) / h.duration.Seconds()
}

// smallestShares returns the share of the process that has less, of the acquisitions and of the time.
func (h *hotResult) smallestShares() (ofAcquisitions, ofTime float64) {
	ofAcquisitions = float64(min(h.acquisitions[0], h.acquisitions[1])) / float64(h.acquisitions[0]+h.acquisitions[1])
	ofTime = float64(min(h.time[0], h.time[1])) / float64(h.time[0]+h.time[1])
	return ofAcquisitions, ofTime
}

// runHot runs a rival once and adds the result to sum.
func (b *bench) runHot(group *workerGroup, processes int, r *rival, goroutines int, d time.Duration, sum *hotResult) error {
	cmd := command{Op: "hot", Rival: r.name, Name: fmt.Sprintf("hot-%d", now()), Goroutines: goroutines}
	cmd.From = now() + pick(b, 300*time.Millisecond, 50*time.Millisecond)
	cmd.To = cmd.From + d
	for i := range processes {
		if err := group.send(i, cmd); err != nil {
			return err
		}
	}
	sum.duration += d
	type processSpan struct {
		span
		process int
	}
	var spans []processSpan
	timeout := time.After(d + time.Minute)
	for range processes {
		e, err := group.receive(b.ctx, timeout)
		if err != nil {
			return err
		}
		sum.acquisitions[e.worker] += e.Acquisitions
		for _, s := range e.Spans {
			spans = append(spans, processSpan{s, e.worker})
		}
	}
	slices.SortFunc(spans, func(x, y processSpan) int { return cmp.Compare(x.First, y.First) })
	for i, s := range spans {
		next := cmd.To
		if i+1 < len(spans) {
			next = spans[i+1].First
		}
		sum.time[s.process] += next - s.First
	}
	return nil
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "–" // no process acquired the lock
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}
