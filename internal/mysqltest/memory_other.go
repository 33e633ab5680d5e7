//go:build !linux

package mysqltest

import "math"

func freeSharedMemory() uint64 { return 0 }

func freeMemory() uint64 { return math.MaxUint64 }
