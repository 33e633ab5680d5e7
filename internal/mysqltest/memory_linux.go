package mysqltest

import (
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
)

// freeSharedMemory returns how many bytes are free in /dev/shm, or 0 if that does not exist.
func freeSharedMemory() uint64 {
	var shm syscall.Statfs_t
	if syscall.Statfs("/dev/shm", &shm) != nil {
		return 0
	}
	return uint64(shm.Bavail) * uint64(shm.Bsize)
}

// freeMemory returns how many bytes of memory are available, or math.MaxUint64 if that is unknown.
func freeMemory() uint64 {
	info, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(info), "MemAvailable:")
	var kilobytes uint64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return math.MaxUint64
	}
	return kilobytes << 10
}
