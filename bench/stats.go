package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// now is an instant that compares between the processes of one machine: [time.Since] reads the
// same clock, CLOCK_MONOTONIC, without a system call.
func now() time.Duration { return began + time.Since(beganAt) }

var began, beganAt = monotonic(), time.Now()

func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every kernel has this clock
	}
	return time.Duration(t.Nano())
}

type samples []time.Duration

// quantile returns 0 if there are no samples.
func (s samples) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(s))), len(s)-1)]
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// millis formats milliseconds with three digits that count.
func millis(d time.Duration) string { return digits(inMillis(d)) }

func inMillis(d time.Duration) float64 { return d.Seconds() * 1000 }

// digits formats a figure with two or three digits that count, "–" if there is none.
func digits(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "–"
	case a == math.Trunc(a):
		return thousands(int64(x))
	case a < 0.0095:
		return fmt.Sprintf("%.3f", x)
	case a < 9.95:
		return fmt.Sprintf("%.2f", x)
	case a < 99.5:
		return fmt.Sprintf("%.1f", x)
	}
	return thousands(int64(math.Round(x)))
}

// thousands formats 12345 as 12,345.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// cpuOfSelf is the CPU time that this process has used.
func cpuOfSelf() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf is the CPU time that another process has used. ok is false where the
// system does not tell.
func cpuOf(pid int) (used time.Duration, ok bool) {
	const tick = 10 * time.Millisecond // of every Linux
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have blanks
	fields := strings.Fields(rest)
	var user, system int64
	if len(fields) < 13 {
		return 0, false
	}
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return time.Duration(user+system) * tick, true
}

var nan = math.NaN()
