package main

import (
	"fmt"
	"os"
	"time"
)

// noiseBound is how much slower than at another time a flush or a bare UPDATE may be
// while something is measured, or it is measured again.
const noiseBound = 1.5

const defaultRepeats = 2

// Noise is what the rest of the machine does, by how long a flush of 512 bytes and a bare
// UPDATE take before, during and after a measurement: medians, one a look.
type noise struct{ flushes, updates samples }

// factor is how much the slowest look differs from the fastest, of many looks without the
// outermost tenths.
func (n *noise) factor() float64 {
	spread := func(s samples) float64 {
		low, high := extent(s)
		return float64(high) / float64(max(low, 1))
	}
	return max(spread(n.flushes), spread(n.updates))
}

func extent(s samples) (low, high time.Duration) { return s.quantile(0.1), s.quantile(0.9) }

func (n *noise) String() string {
	told := func(s samples) string {
		low, high := extent(s)
		return millis(low) + " to " + millis(high) + " ms"
	}
	return fmt.Sprintf("a flush took %s, a bare UPDATE %s, by %d looks", told(n.flushes), told(n.updates), len(n.flushes))
}

// look measures the noise once.
func (b *bench) look() error {
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
		b.servers.asked++
		updates = append(updates, now()-start)
	}
	b.noise.flushes = append(b.noise.flushes, flush)
	b.noise.updates = append(b.noise.updates, updates.quantile(0.5))
	return nil
}

// repeat measures, again if the noise exceeds its bound, and calls keep after each run that was
// the quietest so far. It returns what to say of the noise.
func (b *bench) repeat(measure func() error, keep func()) (said string, err error) {
	defer func() { b.noise = nil }()
	var quietest *noise
	runs := 0
	for quietest == nil || quietest.factor() > noiseBound && runs <= pick(b, b.repeats, 0) {
		runs++
		b.noise = &noise{}
		if err := b.look(); err != nil {
			return "", err
		}
		if err := measure(); err != nil {
			return "", err
		}
		if err := b.look(); err != nil {
			return "", err
		}
		if quietest == nil || b.noise.factor() < quietest.factor() {
			quietest = b.noise
			keep()
		}
	}
	said = quietest.String()
	if runs > 1 {
		said += fmt.Sprintf("; the quietest of %d runs", runs)
	}
	if quietest.factor() > noiseBound {
		said += fmt.Sprintf("; **noisy**: more than %s × between two looks", digits(noiseBound))
	}
	return said, nil
}

// quietly measures a part by repeat.
func (b *bench) quietly(part func() error) error {
	whole := b.report
	defer func() { b.report = whole }()
	var quietest *report
	said, err := b.repeat(func() error {
		b.report = whole.fork()
		return part()
	}, func() { quietest = b.report })
	if err == nil {
		whole.join(quietest, said)
	}
	return err
}

// timeFlush is the median time of n writes of 512 bytes that are flushed.
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
