package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// idle measures the statements that waiting processes send while the lock does not change hands.
func (b *bench) idle() error {
	s := b.report.section("Waiting processes", `
Statements that the server received per second and waiting process while the lock
did not change hands. They include the renewals of the holder.`)
	s.table = newTable("", "1 waiting", fmt.Sprintf("%d waiting", manyWaiting))
	group, err := startWorkers(b.servers.endpoints, manyWaiting+1)
	if err != nil {
		return err
	}
	defer group.stop()
	var worst float64
	for _, r := range []*rival{ourselves, polling, getLock, handmade} {
		if err := group.warm(b.ctx, len(group.workers), r, 1); err != nil {
			return err
		}
		if err := b.sampleNoise(); err != nil {
			return err
		}
		var cells []string
		for _, waiting := range []int{1, manyWaiting} {
			rate, err := b.idleRate(group, r, waiting)
			if err != nil {
				return err
			}
			cells = append(cells, digits(rate))
			b.report.waitingCosts[waitingKey{r, waiting}] = rate
			if r == ourselves {
				worst = max(worst, rate)
			}
		}
		s.table.add(r, cells...)
	}
	b.report.goal(goalIdle, digits(worst), worst <= 2)
	return nil
}

// idleRate returns the number of statements per second and waiting process.
func (b *bench) idleRate(group *workerGroup, r *rival, waiting int) (float64, error) {
	name := fmt.Sprintf("idle-%d", now())
	timeout := time.After(time.Minute)
	for i := range waiting + 1 {
		if err := group.send(i, command{Op: "cycle", Rival: r.name, Name: name, Hold: time.Hour}); err != nil {
			return 0, err
		}
		if i == 0 {
			if e, err := group.receive(b.ctx, timeout); err != nil || e.Kind != "acquired" {
				return 0, cmp.Or(err, errors.New("a free lock was not acquired"))
			}
		}
	}
	d := pick(b, 5*time.Second, 300*time.Millisecond)
	if r == ourselves {
		d = pick(b, 10*time.Second, d)
	}
	rate, err := b.statementRate(d)
	if err != nil {
		return 0, err
	}
	select {
	case e := <-group.events:
		return 0, fmt.Errorf("%s: unexpected event %q", r.name, e.Kind)
	default:
	}
	for i := range waiting + 1 {
		if err := group.send(i, command{Op: "stop", Name: name}); err != nil {
			return 0, err
		}
	}
	for done := 0; done < waiting+1; {
		e, err := group.receive(b.ctx, timeout)
		if err != nil {
			return 0, err
		}
		if e.Kind == "done" {
			done++
		}
	}
	return rate / float64(waiting), nil
}

// statementRate returns the number of statements per second that the server receives once all
// waiters have made their first attempts.
func (b *bench) statementRate(d time.Duration) (float64, error) {
	if err := b.awaitFirstAttempts(); err != nil {
		return 0, err
	}
	before, err := b.servers.questions()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := b.sleep(d); err != nil {
		return 0, err
	}
	after, err := b.servers.questions()
	if err != nil {
		return 0, err
	}
	return float64(after-before) / time.Since(start).Seconds(), nil
}
