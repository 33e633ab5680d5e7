package main

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// A sharedGroup is the shared holds of a process that may have had one row together, because each
// overlaps another in time.
type sharedGroup struct {
	holds      []*holdRecord
	token      uint64
	continuing bool // some of them continue other holds, and keep the tokens of those
	end        instant
}

// annotateShared sets firstToken, local and revoked of shared holds, and marks those that continue
// a revoked hold as revoked. A hold that joins the row of another hold of its process may be
// granted after the row was taken away, until the process finds that.
func (h *history) annotateShared() {
	all, _ := h.byMode()
	for _, holds := range all {
		byHolder := map[string][]*holdRecord{}
		for _, hold := range holds {
			hold.firstToken = hold.token
			byHolder[hold.holder] = append(byHolder[hold.holder], hold)
		}
		for _, own := range byHolder {
			for _, g := range sharedGroups(own) {
				h.markRevoked(g.holds)
				for _, hold := range g.holds {
					hold.local = len(g.holds) > 1
				}
			}
		}
	}
	for _, holds := range all {
		for _, hold := range holds {
			for prev := hold.prev; prev != nil; prev = prev.prev {
				hold.revoked = hold.revoked || prev.revoked
			}
		}
	}
}

// sharedGroups groups the shared holds of one holder.
func sharedGroups(holds []*holdRecord) (all []*sharedGroup) {
	holds = slices.Clone(holds)
	slices.SortStableFunc(holds, func(a, b *holdRecord) int { return cmp.Compare(a.call, b.call) })
	for _, hold := range holds {
		merged := &sharedGroup{token: hold.token, continuing: hold.prev != nil}
		all = slices.DeleteFunc(all, func(g *sharedGroup) bool {
			same := hold.call <= g.end && (g.token == hold.token || g.continuing || hold.prev != nil)
			if same {
				merged.holds = append(merged.holds, g.holds...)
				merged.end, merged.continuing = max(merged.end, g.end), merged.continuing || g.continuing
			}
			return same
		})
		merged.holds, merged.end = append(merged.holds, hold), max(merged.end, hold.end())
		all = append(all, merged)
	}
	return all
}

// checkSharedTokens reports shared holds whose tokens are not between those of the exclusive holds
// before and after them.
func (h *history) checkSharedTokens(name string, shared, exclusive []*holdRecord) (found []violation) {
	exclusiveBefore, sharedBefore := highestBefore(exclusive), highestBefore(shared)
	for _, hold := range shared {
		if hold.token <= h.exclusives[name] {
			found = append(found, violation{"token fell", name, fmt.Sprintf("%v, shared, but %d was granted in an earlier cycle", hold, h.exclusives[name])})
		}
		before := exclusiveBefore(hold.call)
		if before == nil || hold.token > before.token || hold.revoked && hold.local || hold.prev != nil && hold.token == before.token {
			continue
		}
		found = append(found, violation{"token fell", name, fmt.Sprintf("%v, shared, after %v", hold, before)})
	}
	for _, hold := range exclusive {
		if before := sharedBefore(hold.call); before != nil && hold.token <= before.token && !(hold.revoked && hold.local) {
			found = append(found, violation{"token fell", name, fmt.Sprintf("%v, after %v, shared", hold, before)})
		}
	}
	return found
}

// highestBefore returns a function that returns the hold with the highest token among those that
// were granted before an instant, or nil.
func highestBefore(holds []*holdRecord) func(at instant) *holdRecord {
	holds = slices.Clone(holds)
	slices.SortFunc(holds, func(a, b *holdRecord) int { return cmp.Compare(a.ret, b.ret) })
	highest := make([]*holdRecord, len(holds)) // up to each index
	for i, hold := range holds {
		if highest[i] = hold; i > 0 && highest[i-1].token > hold.token {
			highest[i] = highest[i-1]
		}
	}
	return func(at instant) *holdRecord {
		if i := sort.Search(len(holds), func(i int) bool { return holds[i].ret >= at }); i > 0 {
			return highest[i-1]
		}
		return nil
	}
}

// checkPermits reports semaphores of which more permits were trusted than the limits of their
// holders allow, and permits that were granted while as many as the caller's limit were certainly
// held.
func (h *history) checkPermits() (found []violation) {
	semaphores := map[string][]*holdRecord{}
	for _, hold := range h.holds {
		if isSlot(hold.name) {
			semaphores[semaphoreOf(hold.name)] = append(semaphores[semaphoreOf(hold.name)], hold)
		}
	}
	for name, holds := range semaphores {
		slices.SortFunc(holds, func(a, b *holdRecord) int { return cmp.Compare(a.ret, b.ret) })
		var live []*holdRecord // earlier ones that may still be trusted
		for _, hold := range holds {
			live = slices.DeleteFunc(live, func(other *holdRecord) bool { return other.trust < hold.call })
			limit := hold.first().limit
			trusted, certain := 1, 0
			for _, other := range live {
				if other.trust >= hold.ret && hold.trust != 0 {
					trusted, limit = trusted+1, max(limit, other.first().limit)
				}
				if other.ret < hold.call && other.trust > hold.ret {
					certain++
				}
			}
			if trusted > limit {
				found = append(found, violation{"too many permits", name, fmt.Sprintf("%d, at %v, limit %d", trusted, hold, limit)})
			}
			if hold.prev == nil && certain >= hold.limit {
				found = append(found, violation{"over the limit", name, fmt.Sprintf("%v, limit %d, while %d were held", hold, hold.limit, certain)})
			}
			if !hold.revoked {
				live = append(live, hold)
			}
		}
	}
	return found
}
