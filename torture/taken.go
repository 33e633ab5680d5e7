package main

import "fmt"

// successor is the first of later terms, by token, that exclude t.
func (t *term) successor(later []*term) (next *term) {
	for _, u := range later {
		if u.token > t.token && !(t.shared && u.shared) && (next == nil || u.ret < next.ret) {
			next = u
		}
	}
	return next
}

// checkTaken finds locks that were granted to another while they had to stay taken: after
// UnlockAfter, or for the lease of a ticket; and tickets that were refused in that time.
func (h *history) checkTaken() (found []violation) {
	for name, terms := range h.byName() {
		for i, t := range terms {
			until := t.granted().call.add(t.after - slew)
			switch {
			case t.after == 0 || t.void || t.next != nil:
				continue
			case t.outcome == "detached":
				until = t.unlock.from.add(t.after - slew)
				if t.refusedAt != 0 && t.refusedAt < until {
					found = append(found, violation{"ticket refused", name, fmt.Sprintf("%v, at %d, good until %d", t, t.refusedAt, until)})
				}
				if t.refused > 0 {
					continue // what is refused may have been released
				}
			case t.outcome != "unlocked":
				continue
			}
			if next := t.successor(terms[i+1:]); next != nil && next.ret < until {
				found = append(found, violation{"freed early", name, fmt.Sprintf("%v, to stay taken until %d: %v", t, until, next)})
			}
		}
	}
	return found
}
