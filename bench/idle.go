package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// idle measures what processes cost that wait while nothing changes hands.
func (b *bench) idle() error {
	s := b.report.section("Waiting processes", `
Statements that the server got each second for each process that waits, while the
lock is held and nothing changes hands (with the renewals of the holder).`)
	s.table = newTable("", "1 waiting", fmt.Sprintf("%d waiting", many))
	team, err := newCrew(b.servers.sites, many+1)
	if err != nil {
		return err
	}
	defer team.dismiss()
	var worst float64
	for _, r := range []*rival{ourselves, polling, getLock, handmade} {
		if err := team.warm(b.ctx, len(team.workers), r, 1); err != nil {
			return err
		}
		if err := b.look(); err != nil {
			return err
		}
		var told []string
		for _, waiting := range []int{1, many} {
			rate, err := b.idleRate(team, r, waiting)
			if err != nil {
				return err
			}
			told = append(told, digits(rate))
			b.report.waitingCosts[waiters{r, waiting}] = rate
			if r == ourselves {
				worst = max(worst, rate)
			}
		}
		s.table.add(r, told...)
	}
	b.report.goal(goalIdle, digits(worst), worst <= 2)
	return nil
}

// idleRate is the number of statements per second and waiting process.
func (b *bench) idleRate(team *crew, r *rival, waiting int) (float64, error) {
	name := fmt.Sprintf("idle-%d", now())
	timeout := time.After(time.Minute)
	for i := range waiting + 1 {
		if err := team.tell(i, order{Do: "turn", Rival: r.name, Name: name, Hold: time.Hour}); err != nil {
			return 0, err
		}
		if i == 0 {
			if h, err := team.hear(b.ctx, timeout); err != nil || h.Say != "acquired" {
				return 0, cmp.Or(err, errors.New("a free lock was not acquired"))
			}
		}
	}
	d := pick(b, 5*time.Second, 300*time.Millisecond)
	if r == ourselves {
		d = pick(b, 10*time.Second, d)
	}
	rate, err := b.statementRate(d, func() error {
		select {
		case h := <-team.words:
			return fmt.Errorf("%s: unexpected word %q", r.name, h.Say)
		default:
			return nil
		}
	})
	if err != nil {
		return 0, err
	}
	for i := range waiting + 1 {
		if err := team.tell(i, order{Do: "stop", Name: name}); err != nil {
			return 0, err
		}
	}
	for over := 0; over < waiting+1; {
		h, err := team.hear(b.ctx, timeout)
		if err != nil {
			return 0, err
		}
		if h.Say == "over" {
			over++
		}
	}
	return rate / float64(waiting), nil
}

// statementRate is the number of statements that the server gets each second,
// when all has settled; still tells at the end whether all is as it was.
func (b *bench) statementRate(d time.Duration, still func() error) (float64, error) {
	if err := b.settle(); err != nil {
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
	return float64(after-before) / time.Since(start).Seconds(), still()
}
