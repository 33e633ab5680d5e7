package main

import (
	"fmt"
	"os"
	"time"
)

// noiseBound is the noise.factor above which a measurement is repeated.
const noiseBound = 1.5

const defaultRepeats = 2

// A noise shows how much other load on the machine varied during a measurement: the times of a flush
// of 512 bytes and of a bare UPDATE, before, during and after it. Each sample is a median.
type noise struct{ flushes, updates samples }

// factor returns the ratio of the slowest to the fastest sample, without the outermost tenths if
// there are many.
func (n *noise) factor() float64 {
	spread := func(s samples) float64 {
		low, high := s.extent()
		return float64(high) / float64(max(low, 1))
	}
	return max(spread(n.flushes), spread(n.updates))
}

func (s samples) extent() (low, high time.Duration) { return s.quantile(0.1), s.quantile(0.9) }

func (n *noise) String() string {
	format := func(s samples) string {
		low, high := s.extent()
		return millis(low) + " to " + millis(high) + " ms"
	}
	return fmt.Sprintf("a flush took %s, a bare UPDATE %s, in %d samples", format(n.flushes), format(n.updates), len(n.flushes))
}

// sampleNoise adds a sample to the noise of the measurement in progress, if there is one.
func (b *bench) sampleNoise() error {
	if b.noise == nil {
		return nil
	}
	n := pick(b, 31, 5)
	flush, err := timeFlush(b.dir, n)
	if err != nil {
		return err
	}
	var updates samples
	for range n {
		start := now()
		if _, err := b.servers.admin.ExecContext(b.ctx, "UPDATE bare SET n = n + 1 WHERE name = ''"); err != nil {
			return err
		}
		b.servers.ownQuestions++
		updates = append(updates, now()-start)
	}
	b.noise.flushes = append(b.noise.flushes, flush)
	b.noise.updates = append(b.noise.updates, updates.quantile(0.5))
	return nil
}

// repeatWhileNoisy calls measure, and again while the noise exceeds its bound, up to b.repeats times.
// It calls keep after each run that is the quietest so far, and returns a summary of that run's noise.
func (b *bench) repeatWhileNoisy(measure func() error, keep func()) (summary string, err error) {
	defer func() { b.noise = nil }()
	var quietest *noise
	runs := 0
	for quietest == nil || quietest.factor() > noiseBound && runs <= pick(b, b.repeats, 0) {
		runs++
		b.noise = &noise{}
		if err := b.sampleNoise(); err != nil {
			return "", err
		}
		if err := measure(); err != nil {
			return "", err
		}
		if err := b.sampleNoise(); err != nil {
			return "", err
		}
		if quietest == nil || b.noise.factor() < quietest.factor() {
			quietest = b.noise
			keep()
		}
	}
	summary = quietest.String()
	if runs > 1 {
		summary += fmt.Sprintf("; the quietest of %d runs", runs)
	}
	if quietest.factor() > noiseBound {
		summary += fmt.Sprintf("; **noisy**: two samples differed by more than %s ×", digits(noiseBound))
	}
	return summary, nil
}

// measurePart measures a part, repeats it while it is noisy, and adds its quietest run to the report.
func (b *bench) measurePart(part func() error) error {
	whole := b.report
	defer func() { b.report = whole }()
	var quietest *report
	summary, err := b.repeatWhileNoisy(func() error {
		b.report = whole.fork()
		return part()
	}, func() { quietest = b.report })
	if err == nil {
		whole.merge(quietest, summary)
	}
	return err
}

// timeFlush returns the median time of n writes of 512 bytes, each with a flush.
func timeFlush(dir string, n int) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "mysqllock-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took samples
	for range n {
		start := time.Now()
		f.Write(make([]byte, 512))
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	return took.quantile(0.5), nil
}
