package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// names are the numbers of locks of each kind in a cycle: contended, less contended and rare ones,
// those requested in both modes, and semaphores. Names of different epochs differ.
type names struct {
	Epoch int
	Hot   int
	Warm  int
	Rare  int
	RW    int
	Sem   int
}

// maxLimit is the greatest limit that a caller gives a semaphore.
const maxLimit = 6

func (n names) name(kind string, i int) string { return fmt.Sprintf("%s-%d.%d", kind, i, n.Epoch) }

// all returns the names of all locks and slots.
func (n names) all() (all []string) {
	for kind, count := range map[string]int{"hot": n.Hot, "warm": n.Warm, "rare": n.Rare, "rw": n.RW} {
		for i := range count {
			all = append(all, n.name(kind, i))
		}
	}
	for i := range n.Sem {
		for slot := range maxLimit {
			all = append(all, slotName(n.name("sem", i), slot+1))
		}
	}
	return all
}

// pick returns a random name of a lock or a semaphore.
func (n names) pick(r *rand.Rand) string {
	if r.IntN(10) == 0 {
		return n.name("sem", r.IntN(n.Sem))
	}
	return n.pickLock(r)
}

// pickLock returns a random name of a lock.
func (n names) pickLock(r *rand.Rand) string {
	switch k := r.IntN(100); {
	case k < 20:
		return n.name("hot", r.IntN(n.Hot))
	case k < 55:
		return n.name("rw", r.IntN(n.RW))
	case k < 80:
		return n.name("warm", r.IntN(n.Warm))
	default:
		return n.name("rare", r.IntN(n.Rare))
	}
}

// isContended reports whether many clients request the name at the same time.
func isContended(name string) bool {
	return strings.HasPrefix(name, "hot-") || isReadWrite(name) || isSemaphore(name)
}

// isReadWrite reports whether a name is requested in both modes.
func isReadWrite(name string) bool { return strings.HasPrefix(name, "rw-") }

// isSemaphore reports whether a name is that of a semaphore or of one of its slots.
func isSemaphore(name string) bool { return strings.HasPrefix(name, "sem-") }

// limitOf returns the limit that most callers give a semaphore, 2 to 4.
func limitOf(name string) int { return 2 + int(name[len("sem-")]-'0')%3 }

// slotName returns the name of a slot of a semaphore in the history and in the tables of the
// application.
func slotName(semaphore string, slot int) string { return fmt.Sprintf("%s#%d", semaphore, slot) }

// isSlot reports whether a name is a slotName.
func isSlot(name string) bool { return strings.Contains(name, "#") }

// semaphoreOf returns the semaphore of a slot. It returns any other name unchanged.
func semaphoreOf(name string) string {
	semaphore, _, _ := strings.Cut(name, "#")
	return semaphore
}

// slotOf returns the slot that has the key of a row of the library's table, or 0 if none has.
func slotOf(key string) int {
	_, digits, _ := strings.Cut(key, "\x00s")
	n, _ := strconv.Atoi(digits)
	return n
}
