package main

import (
	"fmt"
	"slices"
	"time"
)

// A violation is a broken promise of the library, or a failure of the run itself.
type violation struct {
	rule string
	name string // of the lock; "" if the violation is not about one
	text string
}

func (v violation) String() string { return fmt.Sprintf("%s: %q: %s", v.rule, v.name, v.text) }

// checkTokens reports tokens that repeat or fall: a grant that was requested after another grant
// had returned must have a higher token. Only a process whose hold was revoked may grant lower ones
// locally, until it finds the loss.
func (h *history) checkTokens() (found []violation) {
	shared, exclusive := h.byMode()
	for name, holds := range shared {
		found = append(found, h.checkSharedTokens(name, holds, exclusive[name])...)
	}
	for name, holds := range exclusive {
		earliest := never // return of a grant with a higher token
		var higher *holdRecord
		for i := len(holds) - 1; i >= 0; i-- {
			hold := holds[i]
			if hold.token <= h.tokens[name] {
				found = append(found, violation{"token fell", name, fmt.Sprintf("%v, but %d was granted in an earlier cycle", hold, h.tokens[name])})
			}
			if i > 0 && holds[i-1].token == hold.token && hold.prev != holds[i-1] {
				found = append(found, violation{"token repeated", name, fmt.Sprintf("%v and %v", holds[i-1], hold)})
			}
			if hold.call > earliest && !(hold.revoked && hold.local) {
				found = append(found, violation{"token fell", name, fmt.Sprintf("%v, after %v", hold, higher)})
			}
			if hold.ret < earliest {
				earliest, higher = hold.ret, hold
			}
		}
	}
	return found
}

// checkOverlap reports owners that trusted their leases at the same time, unless both held the lock
// shared. It needs no exception for paused processes, because trust is what Err reported.
func (h *history) checkOverlap() (found []violation) {
	for name, holds := range h.byName() {
		var last, lastShared *holdRecord // the ones trusted longest
		for _, hold := range holds {
			for _, before := range []*holdRecord{last, lastShared} {
				if before != nil && !(before.shared && hold.shared) && hold.ret <= before.trust {
					found = append(found, violation{"overlap", name, fmt.Sprintf("%v was trusted when another had %v", before, hold)})
				}
			}
			longest := &last
			if hold.shared {
				longest = &lastShared
			}
			if !hold.revoked && (*longest == nil || hold.trust > (*longest).trust) {
				*longest = hold
			}
		}
	}
	return found
}

// handoffTrust is how long a process hands a lock over after a statement has found that it owns the
// row.
const handoffTrust = 2 * time.Millisecond

// checkHandoffs reports locks that a process handed over although their rows had been taken away
// more than handoffTrust before.
func (h *history) checkHandoffs() (found []violation) {
	_, exclusive := h.byMode()
	for name, holds := range exclusive {
		for i, hold := range holds {
			if i == 0 || hold.token == hold.firstToken || holds[i-1].firstToken != hold.firstToken {
				continue
			}
			last, granted := holds[i-1], instant(0) // when the row was granted
			for j := i - 1; j >= 0 && holds[j].firstToken == hold.firstToken; j-- {
				granted = holds[j].ret
			}
			for _, r := range h.revocations {
				if r.taken && r.concerns(name) && r.from > granted && last.outcome == "unlocked" && last.unlock.from > r.to.add(handoffTrust) {
					found = append(found, violation{"handed over", name, fmt.Sprintf("%v, to %v, after the row was taken away from %d to %d", last, hold, r.from, r.to)})
				}
			}
		}
	}
	return found
}

// lossReports summarizes when losses were reported.
type lossReports struct {
	margin time.Duration // the shortest time from the report to another owner's grant
	early  int           // reported before another owner's grant
	paused int           // reported later, because the process was paused
}

func (r *lossReports) add(other lossReports) {
	if other.early > 0 && (r.early == 0 || other.margin < r.margin) {
		r.margin = other.margin
	}
	r.early += other.early
	r.paused += other.paused
}

// checkLossReports reports losses that a running process reported only after another owner had been
// granted the lock.
func (h *history) checkLossReports() (reports lossReports, found []violation) {
	for name, holds := range h.byName() {
		for i, hold := range holds {
			if hold.lostAt == 0 || hold.revoked {
				continue
			}
			next := hold.successor(holds[i+1:])
			if next == nil {
				continue
			}
			switch margin := next.ret.sub(hold.lostAt); {
			case margin > 0:
				reports.add(lossReports{margin: margin, early: 1})
			case h.pausedBefore(hold, next.ret):
				reports.paused++
			default:
				found = append(found, violation{"loss reported late", name, fmt.Sprintf("%v was reported lost %v after %v", hold, -margin, next)})
			}
		}
	}
	return reports, found
}

// pausedBefore reports whether the process of a hold, which had to report a loss by deadline, was
// paused between shortly before that and the report.
func (h *history) pausedBefore(hold *holdRecord, deadline instant) bool {
	late := span{deadline.add(-20 * time.Millisecond), hold.lostAt}
	return slices.ContainsFunc(h.pauses[workerOf(hold.holder)], late.overlaps)
}

// successor returns the first grant among later holds, by token, that excludes the hold.
func (hold *holdRecord) successor(later []*holdRecord) (next *holdRecord) {
	for _, other := range later {
		if other.token > hold.token && !(hold.shared && other.shared) && (next == nil || other.ret < next.ret) {
			next = other
		}
	}
	return next
}

// checkMinimumHolds reports locks that were granted to another owner while they had to stay held,
// after UnlockAfter or for the lease of a ticket, and tickets that were refused in that time.
func (h *history) checkMinimumHolds() (found []violation) {
	for name, holds := range h.byName() {
		for i, hold := range holds {
			until := hold.first().call.add(hold.minimum - maxDrift)
			switch {
			case hold.minimum == 0 || hold.revoked || hold.next != nil:
				continue
			case hold.outcome == "detached":
				until = hold.unlock.from.add(hold.minimum - maxDrift)
				if hold.refusedAt != 0 && hold.refusedAt < until {
					found = append(found, violation{"ticket refused", name, fmt.Sprintf("%v, at %d, good until %d", hold, hold.refusedAt, until)})
				}
				if hold.refusals > 0 {
					continue // a failed Attach may have released the lock
				}
			case hold.outcome != "unlocked":
				continue
			}
			if next := hold.successor(holds[i+1:]); next != nil && next.ret < until {
				found = append(found, violation{"freed early", name, fmt.Sprintf("%v, held until %d at least: %v", hold, until, next)})
			}
		}
	}
	return found
}

// checkService returns the longest time from a restart of the server until a lock that was waited
// for at the restart was granted to a waiter. It reports those that were not granted within limit.
func (h *history) checkService(restart instant, limit time.Duration) (longest time.Duration, found []violation) {
	first := map[string]instant{} // first grant to a waiter
	for _, hold := range h.holds {
		name := semaphoreOf(hold.name)
		if hold.call < restart && hold.ret > restart && (first[name] == 0 || hold.ret < first[name]) {
			first[name] = hold.ret
		}
	}
	for _, w := range h.failedWaits {
		if w.Call < restart && w.Ret > restart.add(limit) && first[w.Name] == 0 {
			first[w.Name] = w.Ret
		}
	}
	for name, at := range first {
		d := at.sub(restart)
		longest = max(longest, d)
		if d > limit {
			found = append(found, violation{"not served", name, fmt.Sprintf("for %v after the server replied at %d", d, restart)})
		}
	}
	return longest, found
}

// A heldRow is a row that is held according to the table.
type heldRow struct {
	name, holder string
	left         time.Duration // of the lease
}

// checkLeftovers reports rows that are held although every live worker has unlocked all its locks.
// Rows of dead holders are held until their leases end, for maxLease at most.
func checkLeftovers(rows []heldRow, dead func(holder string) bool, maxLease time.Duration) (found []violation) {
	for _, r := range rows {
		if dead(r.holder) && r.left <= maxLease {
			continue
		}
		found = append(found, violation{"left behind", r.name, fmt.Sprintf("held by %s for another %v", r.holder, r.left)})
	}
	return found
}
