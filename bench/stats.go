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

// now returns the time of CLOCK_MONOTONIC, which is the same in all processes of a machine.
// [time.Since] reads that clock without a system call.
func now() time.Duration { return startMonotonic + time.Since(startTime) }

var startMonotonic, startTime = monotonic(), time.Now()

func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every kernel has this clock
	}
	return time.Duration(t.Nano())
}

type samples []time.Duration

// quantile returns the q-quantile, or 0 if there are no samples.
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

// millis formats a duration as digits does, in milliseconds.
func millis(d time.Duration) string { return digits(inMillis(d)) }

func inMillis(d time.Duration) float64 { return d.Seconds() * 1000 }

// digits formats x with two or three significant digits, and NaN and infinities as "–".
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

// cpuOfSelf returns the CPU time that this process has used.
func cpuOfSelf() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf returns the CPU time that another process has used. ok is false if the system does not
// provide it.
func cpuOf(pid int) (used time.Duration, ok bool) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may contain spaces
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
