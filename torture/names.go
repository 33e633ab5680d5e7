package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// names are the locks of a cycle: a few that everybody wants, and many others. A few are
// requested in both modes, and a few are semaphores.
type names struct {
	Epoch int
	Hot   int
	Warm  int
	Rare  int
	RW    int
	Sem   int
}

// mostPermits is the greatest limit that a caller gives a semaphore.
const mostPermits = 6

func (n names) pick(r *rand.Rand) string {
	if r.IntN(10) == 0 {
		return n.name("sem", r.IntN(n.Sem))
	}
	return n.pickLock(r)
}

// pickLock picks no semaphore.
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

// hot reports whether many want the name.
func (n names) hot(name string) bool {
	return strings.HasPrefix(name, "hot-") || isRW(name) || isSem(name)
}

// isRW reports whether a name is requested in both modes.
func isRW(name string) bool { return strings.HasPrefix(name, "rw-") }

// isSem reports whether a name is that of a semaphore, or of one of its slots.
func isSem(name string) bool { return strings.HasPrefix(name, "sem-") }

// limitOf is the limit that most callers give a semaphore, 2 to 4.
func limitOf(name string) int { return 2 + int(name[len("sem-")]-'0')%3 }

// slotName is the name of a slot of a semaphore in the history, and in the tables of the
// application.
func slotName(sem string, slot int) string { return fmt.Sprintf("%s#%d", sem, slot) }

// semOf is the semaphore of a slot; any other name stays as it is.
func semOf(name string) string {
	sem, _, _ := strings.Cut(name, "#")
	return sem
}

// slotOf is the slot whose row a key is, 0 if it is another's.
func slotOf(key string) int {
	_, digits, _ := strings.Cut(key, "\x00s")
	n, _ := strconv.Atoi(digits)
	return n
}

func (n names) name(kind string, i int) string { return fmt.Sprintf("%s-%d.%d", kind, i, n.Epoch) }

// all are the names of locks and slots.
func (n names) all() (all []string) {
	for kind, count := range map[string]int{"hot": n.Hot, "warm": n.Warm, "rare": n.Rare, "rw": n.RW} {
		for i := range count {
			all = append(all, n.name(kind, i))
		}
	}
	for i := range n.Sem {
		for slot := range mostPermits {
			all = append(all, slotName(n.name("sem", i), slot+1))
		}
	}
	return all
}
