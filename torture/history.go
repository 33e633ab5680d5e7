package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A history is what happened in one cycle.
type history struct {
	holds       []*holdRecord
	revocations []revocation
	failedWaits []event           // calls of TryLock, TryRLock and TryAcquire that failed
	pauses      map[string][]span // by worker: spans in which it did not run

	// The highest tokens of earlier cycles by name, of all holds and of exclusive ones.
	tokens, exclusives map[string]uint64
}

// A holdRecord is one hold in the history. A hold that is attached after Detach, or downgraded,
// continues as another holdRecord. A permit is a hold of the name of its slot.
type holdRecord struct {
	holder string // identity of the Locker
	name   string
	shared bool
	limit  int // of the semaphore, as the caller gave it; 0 if unknown

	prev, next *holdRecord // the hold that this one continues, and the one that continues it
	refusals   int         // failed attempts to attach it
	refusedAt  instant     // when the first attempt to attach it reported it lost; 0 if it did not

	token      uint64
	firstToken uint64        // of the token range, as in the row
	call, ret  instant       // of the request
	trust      instant       // the last instant at which Err is known to have returned nil; 0 if none
	promised   instant       // the row is the holder's until then, unless released or revoked
	lostAt     instant       // when the Context ended with ErrLost; 0 if it did not
	outcome    string        // as in the event end; "" if the process died
	unlock     span          // of the call that ended the hold
	minimum    time.Duration // the argument of UnlockAfter, or the lease of the ticket

	revoked bool // a revocation overlaps a hold of the same row
	local   bool // may have been granted without a statement, so, if revoked, after the revocation
}

// A span is a period of time that includes both ends.
type span struct{ from, to instant }

func (s span) overlaps(t span) bool { return s.from <= t.to && t.from <= s.to }

// A revocation may free a lock while it is held: ForceUnlock, a deleted row, or a step of the
// server's clock. The promise that a loss is reported before another owner's grant does not apply
// to the holds that it overlaps.
type revocation struct {
	name  string // "" means all names
	taken bool   // the row is known to be gone by the end of the span
	span
}

func (r revocation) concerns(name string) bool { return r.name == "" || r.name == name }

// tokenRange is the number of tokens that a grant covers, for handoffs inside the process. When all
// of them are used, the process may replace the grant by another one and continue with the next
// token.
const tokenRange = 256

// maxDrift is how far the clocks of the server and of the processes may drift apart during the
// longest lease.
const maxDrift = 5 * time.Millisecond

// newHistory builds a history from events, which are in order for each worker. It also returns the
// violations that the events themselves report.
func newHistory(events []event) (*history, []violation) {
	b := historyBuilder{
		history: &history{pauses: map[string][]span{}, tokens: map[string]uint64{}},
		byToken: map[holdToken]*holdRecord{}, byKey: map[string]*holdRecord{}, forcing: map[string]event{},
	}
	for _, e := range events {
		b.add(e)
	}
	h := b.history
	for _, e := range b.forcing {
		h.revocations = append(h.revocations, revocation{e.Name, false, span{e.Call, never}})
	}
	// A release that a proxy sends twice reports the lock as lost if another owner acquired it in
	// between, so the first of the two may have released it.
	for _, e := range events {
		for _, hold := range h.holds {
			if e.Kind == "fault" && e.Name == "repeated statements" && hold.outcome == "lost" && hold.unlock.overlaps(span{e.Call, e.Ret}) {
				hold.promised = min(hold.promised, hold.unlock.from)
			}
		}
	}
	h.annotate()
	return h, b.wrong
}

// A historyBuilder builds a history from events.
type historyBuilder struct {
	history *history
	byToken map[holdToken]*holdRecord
	byKey   map[string]*holdRecord // by the keys of events
	forcing map[string]event       // calls of ForceUnlock that have not returned
	wrong   []violation
}

// A holdToken identifies a hold by what all its events have in common.
type holdToken struct {
	key, name string
	token     uint64
}

func (b *historyBuilder) add(e event) {
	h, hold := b.history, b.byToken[holdToken{e.key(), e.Name, e.Token}]
	switch e.Kind {
	case "grant":
		b.addHold(e)
	case "trust":
		hold.trust = max(hold.trust, e.Trust)
	case "extend":
		hold.promised = max(hold.promised, e.Call.add(e.Lease))
	case "shorten":
		hold.promised = 0
	case "end":
		hold.trust = max(hold.trust, e.Trust)
		hold.outcome, hold.lostAt, hold.unlock, hold.minimum = e.Outcome, e.Signal, span{e.Call, e.Ret}, e.Lease
	case "refused":
		if prev := b.byKey[e.From]; prev != nil {
			// Attach also reports a loss if its grant arrives too late.
			late := e.Lease > 0 && e.Ret.sub(e.Call) > e.Lease/2
			if prev.refusals++; e.Outcome == "lost" && prev.refusals == 1 && !late {
				prev.refusedAt = e.Ret
			}
		}
	case "forcing":
		b.forcing[e.Holder+"\x00"+e.Name+"\x00"+fmt.Sprint(e.Call)] = e
	case "force":
		delete(b.forcing, e.Holder+"\x00"+e.Name+"\x00"+fmt.Sprint(e.Call))
		switch e.Outcome {
		case "freed":
			h.revocations = append(h.revocations, revocation{e.Name, true, span{e.Call, e.Ret}})
		case "unknown":
			h.revocations = append(h.revocations, revocation{e.Name, false, span{e.Call, never}})
		}
	case "revoke":
		h.revocations = append(h.revocations, revocation{e.Name, e.Outcome == "taken", span{e.Call, e.Ret}})
	case "stall":
		h.pauses[workerOf(e.Holder)] = append(h.pauses[workerOf(e.Holder)], span{e.Call, e.Ret})
	case "wait":
		h.failedWaits = append(h.failedWaits, e)
	case "wrong":
		b.wrong = append(b.wrong, violation{"wrong answer", e.Name, e.Holder + ": " + e.Outcome})
	}
}

// addHold adds the hold of a grant.
func (b *historyBuilder) addHold(e event) {
	k := holdToken{e.key(), e.Name, e.Token}
	if b.byToken[k] != nil {
		b.wrong = append(b.wrong, violation{"token repeated", e.Name, fmt.Sprintf("%d was granted twice to %s", e.Token, e.Holder)})
	}
	hold := &holdRecord{holder: e.Holder, name: e.Name, shared: e.Mode == shared, limit: e.Limit, token: e.Token, call: e.Call, ret: e.Ret, trust: e.Trust}
	if e.Lease > 0 {
		hold.promised = e.Call.add(e.Lease)
	}
	if prev := b.byKey[e.From]; prev != nil {
		if hold.prev = prev; prev.next != nil {
			b.wrong = append(b.wrong, violation{"attached twice", e.Name, fmt.Sprintf("%v and %v", prev.next, hold)})
		}
		prev.next = hold
	}
	b.byToken[k], b.byKey[k.key] = hold, hold
	b.history.holds = append(b.history.holds, hold)
}

// annotate sorts the holds by name and token, and sets firstToken, local and revoked.
func (h *history) annotate() {
	slices.SortStableFunc(h.holds, func(a, b *holdRecord) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.token, b.token), cmp.Compare(a.call, b.call))
	})
	_, exclusive := h.byMode()
	for _, holds := range exclusive {
		for begin := 0; begin < len(holds); {
			first, end := holds[begin], begin+1
			for end < len(holds) && holds[end].firstHolder() == first.firstHolder() &&
				(holds[end].token < first.token+tokenRange || holds[end].token == holds[end-1].token+1) {
				end++
			}
			h.markRevoked(holds[begin:end])
			for _, hold := range holds[begin:end] {
				hold.firstToken, hold.local = first.token, hold.token != first.token
			}
			begin = end
		}
	}
	h.annotateShared()
}

// markRevoked marks holds that had one row as revoked if a revocation overlaps any of them.
func (h *history) markRevoked(holds []*holdRecord) {
	whole := span{holds[0].call, holds[0].end()}
	for _, hold := range holds {
		whole = span{min(whole.from, hold.call), max(whole.to, hold.end())}
	}
	name := holds[0].name
	revoked := slices.ContainsFunc(h.revocations, func(r revocation) bool { return r.concerns(name) && r.overlaps(whole) })
	for _, hold := range holds {
		hold.revoked = hold.revoked || revoked
	}
}

// byMode returns the shared and the exclusive holds of each name, by token.
func (h *history) byMode() (shared, exclusive map[string][]*holdRecord) {
	shared, exclusive = map[string][]*holdRecord{}, map[string][]*holdRecord{}
	for _, hold := range h.holds {
		if hold.shared {
			shared[hold.name] = append(shared[hold.name], hold)
		} else {
			exclusive[hold.name] = append(exclusive[hold.name], hold)
		}
	}
	return shared, exclusive
}

// byName returns the holds of each name, by token.
func (h *history) byName() map[string][]*holdRecord {
	names := map[string][]*holdRecord{}
	for _, hold := range h.holds {
		names[hold.name] = append(names[hold.name], hold)
	}
	return names
}

// firstHolder returns the holder to which the hold was granted originally.
func (hold *holdRecord) firstHolder() string { return hold.first().holder }

// first returns the hold as it was granted originally, which this one continues.
func (hold *holdRecord) first() *holdRecord {
	for hold.prev != nil {
		hold = hold.prev
	}
	return hold
}

// end returns the last instant at which the hold is known to have lasted.
func (hold *holdRecord) end() instant {
	end := max(hold.ret, hold.trust, hold.lostAt)
	switch hold.outcome {
	case "unlocked":
		end = max(end, hold.unlock.to)
		if hold.minimum > 0 {
			end = max(end, hold.ret.add(hold.minimum))
		}
	case "detached", "downgraded":
		end = max(end, hold.unlock.to.add(hold.minimum))
	}
	return end
}

// released returns when the lock was released, at the earliest and at the latest.
func (hold *holdRecord) released() (from, to instant) {
	switch hold.outcome {
	case "unlocked":
		from, to = hold.unlock.from, hold.unlock.to
		if hold.minimum > 0 {
			from, to = max(from, hold.first().call.add(hold.minimum-maxDrift)), max(to, hold.end())
		}
		return from, to
	case "detached":
		if hold.refusals > 0 { // a failed Attach may have released the lock
			return hold.unlock.from, never
		}
		return hold.unlock.from.add(hold.minimum - maxDrift), never
	case "unknown", "downgraded":
		return hold.unlock.from, never
	case "closed", "": // a process that was killed may have unlocked before it wrote the event
		return max(hold.trust, hold.call), never
	}
	if hold.shared { // a fixed lease may end before that of the row, which other holds share
		return max(hold.trust, hold.call), never
	}
	return max(hold.trust, hold.call, hold.promised.add(-maxDrift)), never
}

func (hold *holdRecord) String() string {
	return fmt.Sprintf("token %d of %s (called %d, granted %d, trusted until %d, reported lost %d, %s %d)",
		hold.token, hold.holder, hold.call, hold.ret, hold.trust, hold.lostAt, cmp.Or(hold.outcome, "died"), hold.unlock.from)
}
