package main

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"
)

// A group is the shared holds of a process that may have had one row together: their times
// are connected.
type group struct {
	terms []*term
	token uint64
	mixed bool // of more than one token: a hold that became shared keeps its own
	end   instant
}

// arrangeShared finds which shared terms are void: a hold that joins the row of another hold of
// its process may do so after it was taken away, until that is known.
func (h *history) arrangeShared() {
	all, _ := h.byMode()
	for _, terms := range all {
		byHolder := map[string][]*term{}
		for _, t := range terms {
			t.base = t.token
			byHolder[t.holder] = append(byHolder[t.holder], t)
		}
		for _, own := range byHolder {
			for _, g := range groups(own) {
				h.tenure(g.terms)
				for _, t := range g.terms {
					t.late = len(g.terms) > 1
				}
			}
		}
	}
	for _, terms := range all {
		for _, t := range terms {
			for before := t.from; before != nil; before = before.from {
				t.void = t.void || before.void
			}
		}
	}
}

func groups(terms []*term) (all []*group) {
	terms = slices.Clone(terms)
	slices.SortStableFunc(terms, func(a, b *term) int { return cmp.Compare(a.call, b.call) })
	for _, t := range terms {
		mine := &group{token: t.token, mixed: t.from != nil}
		all = slices.DeleteFunc(all, func(g *group) bool {
			same := t.call <= g.end && (g.token == t.token || g.mixed || t.from != nil)
			if same {
				mine.terms, mine.end, mine.mixed = append(mine.terms, g.terms...), max(mine.end, g.end), mine.mixed || g.mixed
			}
			return same
		})
		mine.terms, mine.end = append(mine.terms, t), max(mine.end, t.end())
		all = append(all, mine)
	}
	return all
}

// checkSharedTokens finds shared terms whose tokens do not lie between those of the
// exclusive terms before and after them.
func (h *history) checkSharedTokens(name string, shared, exclusive []*term) (found []violation) {
	highest := func(terms []*term) func(before instant) *term {
		terms = slices.Clone(terms)
		slices.SortFunc(terms, func(a, b *term) int { return cmp.Compare(a.ret, b.ret) })
		highest := make([]*term, len(terms))
		for i, t := range terms {
			if highest[i] = t; i > 0 && highest[i-1].token > t.token {
				highest[i] = highest[i-1]
			}
		}
		return func(before instant) *term {
			if i := sort.Search(len(terms), func(i int) bool { return terms[i].ret >= before }); i > 0 {
				return highest[i-1]
			}
			return nil
		}
	}
	exclusiveBefore, sharedBefore := highest(exclusive), highest(shared)
	for _, t := range shared {
		if t.token <= h.exclusives[name] {
			found = append(found, violation{"token fell", name, fmt.Sprintf("%v, shared, but %d was granted in an earlier cycle", t, h.exclusives[name])})
		}
		before := exclusiveBefore(t.call)
		if before == nil || t.token > before.token || t.void && t.late || t.from != nil && t.token == before.token {
			continue
		}
		found = append(found, violation{"token fell", name, fmt.Sprintf("%v, shared, after %v", t, before)})
	}
	for _, t := range exclusive {
		if before := sharedBefore(t.call); before != nil && t.token <= before.token && !(t.void && t.late) {
			found = append(found, violation{"token fell", name, fmt.Sprintf("%v, after %v, shared", t, before)})
		}
	}
	return found
}

// checkPermits finds semaphores of which more permits were trusted than their holders' limits
// allow, and callers who got a permit while as many as their limit were held for certain.
func (h *history) checkPermits() (found []violation) {
	semaphores := map[string][]*term{}
	for _, t := range h.terms {
		if isSlot(t.name) {
			semaphores[semaphoreOf(t.name)] = append(semaphores[semaphoreOf(t.name)], t)
		}
	}
	for name, terms := range semaphores {
		slices.SortFunc(terms, func(a, b *term) int { return cmp.Compare(a.ret, b.ret) })
		var live []*term // those before that may still be trusted
		for _, t := range terms {
			live = slices.DeleteFunc(live, func(u *term) bool { return u.trust < t.call })
			limit := t.granted().limit
			trusted, certain := 1, 0
			for _, u := range live {
				if u.trust >= t.ret && t.trust != 0 {
					trusted, limit = trusted+1, max(limit, u.granted().limit)
				}
				if u.ret < t.call && u.trust > t.ret {
					certain++
				}
			}
			if trusted > limit {
				found = append(found, violation{"too many permits", name, fmt.Sprintf("%d, at %v, limit %d", trusted, t, limit)})
			}
			if t.from == nil && certain >= t.limit {
				found = append(found, violation{"over the limit", name, fmt.Sprintf("%v, limit %d, while %d were held", t, t.limit, certain)})
			}
			if !t.void {
				live = append(live, t)
			}
		}
	}
	return found
}

// slew is what the clocks of database and processes may differ by in the longest lease.
const slew = 5 * time.Millisecond
