package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// tokenRange is how many tokens one tenure of a row covers: those of the owners
// to whom a lock passes on inside the process. Two tenures are at least as far apart, unless
// one goes on where the tokens of the other were used up.
const tokenRange = 256

// A term is one hold of one owner, as the history tells it. A permit is a term of its slot.
// A hold that was detached and attached, or became shared, is two terms.
type term struct {
	holder    string
	name      string
	shared    bool
	limit     int // of the caller of a semaphore; 0 if it is not known
	from      *term
	next      *term   // of which it is from
	refused   int     // attempts to attach it that failed
	refusedAt instant // when the first of them found it lost; 0 if it did not
	token     uint64
	base      uint64 // of its tenure: the token that is in the row
	call, ret instant
	trust     instant // the last moment at which Err is known to have said nil; 0: none
	promised  instant // the row was the holder's until then, unless it was given or taken away
	signal    instant // when the Context told the loss; 0: it did not
	outcome   string  // of Unlock: "unlocked", "unknown", "lost", "closed"; "detached", "downgraded"; "" if the process died
	unlock    span
	after     time.Duration // the lock stays taken until then, since the grant, or since it was detached
	void      bool          // the row was taken away or moved in time during its tenure
	late      bool          // if void, it may have been granted after that
}

// A span is a time in which something happened.
type span struct{ from, to instant }

func (s span) meets(t span) bool { return s.from <= t.to && t.from <= s.to }

// A void is what may free a lock under its holder: ForceUnlock, a row that was
// deleted, a step of the clock. The promise that another's grant comes after
// the holder was told is not given for the terms that it meets.
type void struct {
	name  string // "": all names
	taken bool   // the row certainly was, by the end of the span
	span
}

// A history is what happened in one cycle.
type history struct {
	terms  []*term
	voids  []void
	waits  []event           // calls of TryLock that failed
	pauses map[string][]span // by worker: SIGSTOP, or its heart stood still
	// What the end of earlier cycles has left: the highest token of each name, and that of
	// the exclusive holds.
	tokens, exclusives map[string]uint64
}

// A violation is what must not be.
type violation struct {
	rule string
	name string
	text string
}

func (v violation) String() string { return fmt.Sprintf("%s: %q: %s", v.rule, v.name, v.text) }

// newHistory reads events, which are in order for each worker.
func newHistory(events []event) (*history, []violation) {
	h := &history{pauses: map[string][]span{}, tokens: map[string]uint64{}}
	type key struct {
		hold, name string
		token      uint64
	}
	open, holds := map[key]*term{}, map[string]*term{}
	forcing := map[string]event{}
	var wrong []violation
	for _, e := range events {
		k := key{e.key(), e.Name, e.Token}
		t := open[k]
		switch e.Kind {
		case "grant":
			if t != nil {
				wrong = append(wrong, violation{"token repeated", e.Name, fmt.Sprintf("%d was granted twice to %s", e.Token, e.Holder)})
			}
			t = &term{holder: e.Holder, name: e.Name, shared: e.Mode == shared, limit: e.Limit, token: e.Token, call: e.Call, ret: e.Ret, trust: e.Trust}
			if e.Lease > 0 {
				t.promised = e.Call.add(e.Lease)
			}
			if before := holds[e.From]; before != nil {
				if t.from = before; before.next != nil {
					wrong = append(wrong, violation{"attached twice", e.Name, fmt.Sprintf("%v and %v", before.next, t)})
				}
				before.next = t
			}
			open[k], holds[k.hold] = t, t
			h.terms = append(h.terms, t)
		case "trust":
			t.trust = max(t.trust, e.Trust)
		case "extend":
			t.promised = max(t.promised, e.Call.add(e.Lease))
		case "shorten":
			t.promised = 0
		case "term":
			t.trust = max(t.trust, e.Trust)
			t.outcome, t.signal, t.unlock, t.after = e.Outcome, e.Signal, span{e.Call, e.Ret}, e.Lease
		case "refused":
			if before := holds[e.From]; before != nil {
				late := e.Lease > 0 && e.Ret.sub(e.Call) > e.Lease/2 // a grant would be
				if before.refused++; e.Outcome == "lost" && before.refused == 1 && !late {
					before.refusedAt = e.Ret
				}
			}
		case "forcing":
			forcing[e.Holder+"\x00"+e.Name+"\x00"+fmt.Sprint(e.Call)] = e
		case "force":
			delete(forcing, e.Holder+"\x00"+e.Name+"\x00"+fmt.Sprint(e.Call))
			switch e.Outcome {
			case "freed":
				h.voids = append(h.voids, void{e.Name, true, span{e.Call, e.Ret}})
			case "unknown":
				h.voids = append(h.voids, void{e.Name, false, span{e.Call, never}})
			}
		case "void":
			h.voids = append(h.voids, void{e.Name, e.Outcome == "taken", span{e.Call, e.Ret}})
		case "stall":
			h.pauses[workerOf(e.Holder)] = append(h.pauses[workerOf(e.Holder)], span{e.Call, e.Ret})
		case "wait":
			h.waits = append(h.waits, e)
		case "wrong":
			wrong = append(wrong, violation{"wrong answer", e.Name, e.Holder + ": " + e.Outcome})
		}
	}
	for _, e := range forcing {
		h.voids = append(h.voids, void{e.Name, false, span{e.Call, never}})
	}
	// Of a release that was sent twice, the second finds the lock lost if another took
	// it after the first.
	for _, e := range events {
		for _, t := range h.terms {
			if e.Kind == "fault" && e.Name == "repeated statements" && t.outcome == "lost" && t.unlock.meets(span{e.Call, e.Ret}) {
				t.promised = min(t.promised, t.unlock.from)
			}
		}
	}
	h.arrange()
	return h, wrong
}

// arrange sorts the terms by name and token, and finds tenures and what is void.
func (h *history) arrange() {
	slices.SortStableFunc(h.terms, func(a, b *term) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.token, b.token), cmp.Compare(a.call, b.call))
	})
	_, exclusive := h.byMode()
	for _, terms := range exclusive {
		for first := 0; first < len(terms); {
			t, next := terms[first], first+1
			for next < len(terms) && terms[next].tenant() == t.tenant() &&
				(terms[next].token < t.token+tokenRange || terms[next].token == terms[next-1].token+1) {
				next++
			}
			h.tenure(terms[first:next])
			for _, same := range terms[first:next] {
				same.base, same.late = t.token, same.token != t.token
			}
			first = next
		}
	}
	h.arrangeShared()
}

// tenure finds out whether terms of one row are void.
func (h *history) tenure(terms []*term) {
	whole := span{terms[0].call, terms[0].end()}
	for _, t := range terms {
		whole = span{min(whole.from, t.call), max(whole.to, t.end())}
	}
	name := terms[0].name
	voided := slices.ContainsFunc(h.voids, func(v void) bool { return (v.name == "" || v.name == name) && v.meets(whole) })
	for _, t := range terms {
		t.void = t.void || voided
	}
}

// tenant is the Locker that a hold was granted to at first.
func (t *term) tenant() string {
	return t.granted().holder
}

// granted is the term as which a hold was granted at first.
func (t *term) granted() *term {
	for t.from != nil {
		t = t.from
	}
	return t
}

// end is the last moment at which the term is known to have lasted.
func (t *term) end() instant {
	end := max(t.ret, t.trust, t.signal)
	switch t.outcome {
	case "unlocked":
		end = max(end, t.unlock.to)
		if t.after > 0 {
			end = max(end, t.ret.add(t.after))
		}
	case "detached", "downgraded":
		end = max(end, t.unlock.to.add(t.after))
	}
	return end
}

func (t *term) String() string {
	return fmt.Sprintf("token %d of %s (called %d, granted %d, trusted until %d, told %d, %s %d)",
		t.token, t.holder, t.call, t.ret, t.trust, t.signal, cmp.Or(t.outcome, "died"), t.unlock.from)
}

// byMode are the terms of each name, by token, those that are shared and the others.
func (h *history) byMode() (shared, exclusive map[string][]*term) {
	shared, exclusive = map[string][]*term{}, map[string][]*term{}
	for _, t := range h.terms {
		if t.shared {
			shared[t.name] = append(shared[t.name], t)
		} else {
			exclusive[t.name] = append(exclusive[t.name], t)
		}
	}
	return shared, exclusive
}

// byName are the terms of each name, by token.
func (h *history) byName() map[string][]*term {
	names := map[string][]*term{}
	for _, t := range h.terms {
		names[t.name] = append(names[t.name], t)
	}
	return names
}

// checkTokens finds tokens that repeat, or fall in the order of time: a grant
// that was asked for after another had returned must have a higher token. Only a
// tenure that was voided may pass on inside its process before it is told.
func (h *history) checkTokens() (found []violation) {
	shared, exclusive := h.byMode()
	for name, terms := range shared {
		found = append(found, h.checkSharedTokens(name, terms, exclusive[name])...)
	}
	for name, terms := range exclusive {
		earliest := never // return of a grant with a higher token
		var its *term
		for i := len(terms) - 1; i >= 0; i-- {
			t := terms[i]
			if t.token <= h.tokens[name] {
				found = append(found, violation{"token fell", name, fmt.Sprintf("%v, but %d was granted in an earlier cycle", t, h.tokens[name])})
			}
			if i > 0 && terms[i-1].token == t.token && t.from != terms[i-1] {
				found = append(found, violation{"token repeated", name, fmt.Sprintf("%v and %v", terms[i-1], t)})
			}
			if t.call > earliest && !(t.void && t.late) {
				found = append(found, violation{"token fell", name, fmt.Sprintf("%v, after %v", t, its)})
			}
			if t.ret < earliest {
				earliest, its = t.ret, t
			}
		}
	}
	return found
}

// checkOverlap finds two owners who trusted their lease at the same time, unless both held
// the lock shared. It holds for processes that stood still too: what they believed was
// asked of Err.
func (h *history) checkOverlap() (found []violation) {
	for name, terms := range h.byName() {
		var last, lastShared *term // the one trusted longest
		for _, t := range terms {
			for _, before := range []*term{last, lastShared} {
				if before != nil && !(before.shared && t.shared) && t.ret <= before.trust {
					found = append(found, violation{"overlap", name, fmt.Sprintf("%v was trusted when another had %v", before, t)})
				}
			}
			longest := &last
			if t.shared {
				longest = &lastShared
			}
			if !t.void && (*longest == nil || t.trust > (*longest).trust) {
				*longest = t
			}
		}
	}
	return found
}

// confirmedFor is how long a process hands a lock on after it has seen the row as
// its own.
const confirmedFor = 2 * time.Millisecond

// checkHandoffs finds locks that were handed on inside a process after their rows
// had been taken away, and the holder before could know.
func (h *history) checkHandoffs() (found []violation) {
	_, exclusive := h.byMode()
	for name, terms := range exclusive {
		for i, t := range terms {
			if i == 0 || t.token == t.base || terms[i-1].base != t.base {
				continue
			}
			last, granted := terms[i-1], instant(0) // of the row
			for j := i - 1; j >= 0 && terms[j].base == t.base; j-- {
				granted = terms[j].ret
			}
			for _, v := range h.voids {
				if v.taken && (v.name == "" || v.name == name) && v.from > granted && last.outcome == "unlocked" && last.unlock.from > v.to.add(confirmedFor) {
					found = append(found, violation{"handed on", name, fmt.Sprintf("%v, to %v, after the row was taken away from %d to %d", last, t, v.from, v.to)})
				}
			}
		}
	}
	return found
}

// A margin is how long before another's grant a loss was told.
type margin struct {
	smallest time.Duration
	told     int // losses that were told before another was granted the lock
	stood    int // that were told late because the process did not run
}

func (m *margin) merge(n margin) {
	if n.told > 0 && (m.told == 0 || n.smallest < m.smallest) {
		m.smallest = n.smallest
	}
	m.told += n.told
	m.stood += n.stood
}

// checkSignals finds losses that were told only after another had the lock,
// while the process ran.
func (h *history) checkSignals() (m margin, found []violation) {
	for name, terms := range h.byName() {
		for i, t := range terms {
			if t.signal == 0 || t.void {
				continue
			}
			next := t.successor(terms[i+1:])
			if next == nil {
				continue
			}
			switch before := next.ret.sub(t.signal); {
			case before > 0:
				m.merge(margin{smallest: before, told: 1})
			case h.stood(t, next.ret):
				m.stood++
			default:
				found = append(found, violation{"loss reported late", name, fmt.Sprintf("%v was told %v after %v", t, -before, next)})
			}
		}
	}
	return m, found
}

// stood reports whether the process of a term, which should have reported a loss
// before an instant, was paused around it.
func (h *history) stood(t *term, before instant) bool {
	late := span{before.add(-20 * time.Millisecond), t.signal}
	return slices.ContainsFunc(h.pauses[workerOf(t.holder)], late.meets)
}

// served tells how long after a restart it took until of each lock that somebody
// waited for then, a waiter had it, and finds those that nobody had in time.
func (h *history) served(restart instant, bound time.Duration) (longest time.Duration, found []violation) {
	first := map[string]instant{} // grant to somebody who waited
	for _, t := range h.terms {
		name := semaphoreOf(t.name)
		if t.call < restart && t.ret > restart && (first[name] == 0 || t.ret < first[name]) {
			first[name] = t.ret
		}
	}
	for _, w := range h.waits {
		if w.Call < restart && w.Ret > restart.add(bound) && first[w.Name] == 0 {
			first[w.Name] = w.Ret
		}
	}
	for name, at := range first {
		d := at.sub(restart)
		longest = max(longest, d)
		if d > bound {
			found = append(found, violation{"not served", name, fmt.Sprintf("for %v after the server answered at %d", d, restart)})
		}
	}
	return longest, found
}

// A held is a row that the table says is held.
type held struct {
	name, holder string
	left         time.Duration
}

// checkLeftovers finds rows that nobody holds when every worker that lives has
// unlocked everything. What the dead held ends with its lease.
func checkLeftovers(rows []held, dead func(holder string) bool, longest time.Duration) (found []violation) {
	for _, r := range rows {
		if dead(r.holder) && r.left <= longest {
			continue
		}
		found = append(found, violation{"left behind", r.name, fmt.Sprintf("held by %s for another %v", r.holder, r.left)})
	}
	return found
}
