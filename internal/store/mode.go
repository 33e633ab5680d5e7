package store

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Mode is the way in which a request wants to hold a name.
type Mode uint8

const (
	Exclusive Mode = iota // the lock, for one owner
	Shared                // the lock, together with other owners in this mode
	Permit                // one of the slots of a semaphore
)

func (m Mode) String() string {
	switch m {
	case Shared:
		return "shared"
	case Permit:
		return "permit"
	default:
		return "exclusive"
	}
}

// The keys of rows. The key of a lock's row is the name of the lock. Other keys have a suffix after a
// zero byte, which names cannot contain:
//
//	name                    an exclusive lock, and the wait queue of the name
//	name 00 r process nn    a shared hold of a process; nn, two to four digits, is almost always 00
//	name 00 s               the wait queue of a semaphore, never held
//	name 00 s nnnnn         a slot of a semaphore
//	00 process              the session of a process
const (
	sharedSuffix    = "\x00r"
	semaphoreSuffix = "\x00s"
)

// ClaimLease is how long a name stays claimed, after its last attempt, for an exclusive request that
// waits until shared holds have ended (see Grant.Claimed).
const ClaimLease = 5 * time.Second

// MaxPermits is the largest limit of a semaphore. Slot numbers have five digits in keys.
const MaxPermits = 10_000

// QueueName returns the key of the row that has the wait queue for requests for name in mode m.
func QueueName(m Mode, name string) string {
	if m == Permit {
		return name + semaphoreSuffix
	}
	return name
}

// QueueOf returns the key of the row that has the wait queue for the row with the given key.
func QueueOf(key string) string { return QueueName(ModeOf(key), NameOf(key)) }

// NameOf returns the name of the lock or semaphore to which the row with the given key belongs.
func NameOf(key string) string {
	name, _, _ := strings.Cut(key, "\x00")
	return name
}

// ModeOf returns the mode in which the row with the given key is held.
func ModeOf(key string) Mode {
	_, suffix, _ := strings.Cut(key, "\x00")
	switch {
	case strings.HasPrefix(suffix, "r"):
		return Shared
	case strings.HasPrefix(suffix, "s"):
		return Permit
	default:
		return Exclusive
	}
}

// sharedKey returns the key of a process's shared hold of a name; n distinguishes several of them.
func sharedKey(name string, p Process, n int) string {
	return fmt.Sprintf("%s%s%s%02d", name, sharedSuffix, p, n)
}

// isSemaphore reports whether key is that of a semaphore's wait queue.
func isSemaphore(key string) bool { return strings.HasSuffix(key, semaphoreSuffix) }

// SlotKey returns the key of a slot. The first slot is 1.
func SlotKey(name string, slot int) string {
	return fmt.Sprintf("%s%s%05d", name, semaphoreSuffix, slot)
}

// SlotOf returns the slot whose row has the given key, or 0 if it is not the row of a slot.
func SlotOf(key string) int {
	_, digits, found := strings.Cut(key, semaphoreSuffix)
	if !found {
		return 0
	}
	slot, _ := strconv.Atoi(digits)
	return slot
}
