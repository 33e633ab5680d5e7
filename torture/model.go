package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/anishathalye/porcupine"
)

// What the model of one lock does, as porcupine is told.
type action struct {
	kind        string // "acquire", "downgrade", "attach", "release", "void", "init"
	token, base uint64
	holder      string
	shared      bool
	reader      rune // of shared: the hold
	late        bool // of acquire: it may be of a tenure that was voided
	clean       bool // of release: Unlock said that the lock was released
}

// state is that of one lock: its exclusive holder, the shared ones, the last token and whether
// shared holds may have it, and up to which token all were voided.
type state struct {
	held, last, voided uint64
	readers            string // sorted
	phase              bool
}

// The model is a read-write lock with leases. An exclusive acquisition needs a lock that
// nobody holds, and gets a token that is higher than any before; a shared one needs a lock
// that nobody holds exclusively, and may have the token of other shared ones. A lease that
// ends is a release that happens at some time after the last moment at which the holder
// trusted it. A void frees the lock under its holders; what the process of such a
// tenure still passes on, until it is told, changes nothing.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, _ any) (bool, any) {
		now, a := s.(state), in.(action)
		next := now
		reads := strings.ContainsRune(now.readers, a.reader)
		switch a.kind {
		case "init":
			return true, state{last: a.token, phase: a.shared}
		case "acquire":
			if a.base <= now.voided && a.late {
				return true, now
			}
			if next.phase, next.last = a.shared, a.token; a.shared {
				next.readers = withReader(now.readers, a.reader)
				return now.held == 0 && (a.token > now.last || a.token == now.last && now.phase), next
			}
			next.held = a.token
			return now.held == 0 && now.readers == "" && a.token > now.last, next
		case "downgrade":
			if now.held != a.token {
				return a.base <= now.voided, now
			}
			next.held, next.readers = 0, withReader(now.readers, a.reader)
			return true, next
		case "attach":
			return a.base <= now.voided || now.held == a.token || a.shared && reads, now
		case "release":
			switch {
			case a.shared && reads:
				next.readers = strings.Replace(now.readers, string(a.reader), "", 1)
				return true, next
			case a.shared:
				return a.base <= now.voided, now
			case now.held == a.token:
				next.held = 0
				return true, next
			}
			return a.base <= now.voided || !a.clean && now.last >= a.token, now
		case "void":
			next.held, next.readers, next.voided = 0, "", now.last
			return true, next
		}
		panic(a.kind)
	},
	DescribeOperation: func(in, _ any) string {
		a := in.(action)
		switch {
		case a.kind == "void":
			return "voided"
		case a.kind == "release" && !a.clean:
			return fmt.Sprintf("%d of %s ends", a.token, a.holder)
		case a.shared:
			return fmt.Sprintf("%s %d by %s, shared", a.kind, a.token, a.holder)
		default:
			return fmt.Sprintf("%s %d by %s", a.kind, a.token, a.holder)
		}
	},
	DescribeState: func(s any) string {
		now := s.(state)
		if now.readers != "" {
			return fmt.Sprintf("held shared by %d, %d", utf8.RuneCountInString(now.readers), now.last)
		}
		if now.held == 0 {
			return fmt.Sprintf("free, last %d", now.last)
		}
		return fmt.Sprintf("held, %d", now.held)
	},
}

// withReader adds a reader to sorted ones.
func withReader(readers string, reader rune) string {
	all := append([]rune(readers), reader)
	slices.Sort(all)
	return string(all)
}

// operations are the history of one lock for porcupine, by the time of call.
func operations(terms []*term, voids []void) []porcupine.Operation {
	clients := map[string]int{}
	client := func(holder string) int {
		if _, ok := clients[holder]; !ok {
			clients[holder] = len(clients)
		}
		return clients[holder]
	}
	var ops []porcupine.Operation
	do := func(a action, from, to instant) {
		ops = append(ops, porcupine.Operation{ClientId: client(a.holder), Input: a, Call: int64(from), Return: int64(to)})
	}
	for _, v := range voids {
		do(action{kind: "void", holder: "nemesis"}, v.from, v.to)
	}
	readers := map[*term]rune{} // by their first shared term
	for _, t := range terms {
		a := action{token: t.token, base: t.base, holder: t.holder, shared: t.shared, late: t.late}
		switch {
		case t.shared && (t.from == nil || !t.from.shared):
			readers[t] = rune(len(readers) + 1)
			a.reader = readers[t]
		case t.shared:
			readers[t] = readers[t.from]
			a.reader = readers[t]
		}
		switch a.kind = "acquire"; {
		case t.from != nil && t.shared && !t.from.shared:
			a.kind = "downgrade"
		case t.from != nil:
			a.kind = "attach"
		}
		do(a, t.call, t.ret)
		if t.next != nil {
			continue
		}
		a.kind, a.clean = "release", t.outcome == "unlocked"
		from, to := t.released()
		do(a, from, to)
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
	return ops
}

// released is when the lock was released, at the earliest and at the latest.
func (t *term) released() (from, to instant) {
	switch t.outcome {
	case "unlocked":
		from, to = t.unlock.from, t.unlock.to
		if t.after > 0 {
			from, to = max(from, t.granted().call.add(t.after-slew)), max(to, t.end())
		}
		return from, to
	case "detached":
		if t.refused > 0 { // it may have been released then
			return t.unlock.from, never
		}
		return t.unlock.from.add(t.after - slew), never
	case "unknown", "downgraded":
		return t.unlock.from, never
	case "closed", "": // who was killed may have unlocked before he could tell
		return max(t.trust, t.call), never
	}
	if t.shared { // a fixed lease ends before that of the row, which others may share
		return max(t.trust, t.call), never
	}
	return max(t.trust, t.call, t.promised.add(-slew)), never
}

// chunkLength bounds what porcupine looks at at once: its memory grows with the square.
const chunkLength = 1000

// chunks cuts the history of one lock, in the order of calls, where nothing was under way
// and everything had been unlocked, so that nothing but the last token matters further on.
func chunks(terms []*term, voids []void) [][]porcupine.Operation {
	terms = slices.Clone(terms)
	slices.SortStableFunc(terms, func(a, b *term) int { return cmp.Compare(a.call, b.call) })
	lowest := make([]uint64, len(terms)+1) // token of what is called later
	lowest[len(terms)] = 1<<64 - 1
	for i, t := range slices.Backward(terms) {
		lowest[i] = min(lowest[i+1], t.token)
	}
	var all [][]porcupine.Operation
	first := 0
	var latest instant // of what the terms until now have left
	from := instant(0)
	before := action{kind: "init"}
	cut := func(last int, to instant, after action) {
		var mine []void
		for _, v := range voids {
			if v.meets(span{from, to}) {
				mine = append(mine, v)
			}
		}
		ops := operations(terms[first:last], mine)
		if first > 0 {
			ops = slices.Insert(ops, 0, porcupine.Operation{Input: before, Call: int64(from - 2), Return: int64(from - 1)})
			for i := range ops[1:] {
				ops[i+1].Call = max(ops[i+1].Call, int64(from))
			}
		}
		all = append(all, ops)
		first, from, before = last, to, after
	}
	highest := action{kind: "init"}
	for i, t := range terms {
		latest = max(latest, t.end())
		if t.token > highest.token {
			highest.token, highest.shared = t.token, false
		}
		highest.shared = highest.shared || t.shared && t.token == highest.token
		later := lowest[i+1] > highest.token || lowest[i+1] == highest.token && highest.shared
		quiet := t.outcome == "unlocked" && !t.void && i+1 < len(terms) && terms[i+1].call > latest && !terms[i+1].void
		if 2*(i+1-first) >= chunkLength && quiet && later {
			cut(i+1, latest+1, highest)
		}
	}
	if first < len(terms) {
		cut(len(terms), never, highest)
	}
	return all
}

// checkModel has porcupine check every lock, and draws those that are wrong.
func (h *history) checkModel(dir string, bound time.Duration) (found []violation, unknown int) {
	for name, terms := range h.byName() {
		var voids []void
		for _, v := range h.voids {
			if v.name == "" || v.name == name {
				voids = append(voids, v)
			}
		}
		for _, ops := range chunks(terms, voids) {
			switch result, info := porcupine.CheckOperationsVerbose(model, ops, bound); result {
			case porcupine.Unknown:
				unknown++
			case porcupine.Illegal:
				text := "the history is not that of a lock"
				if dir != "" {
					path := filepath.Join(dir, fmt.Sprintf("%s.html", name))
					if err := draw(path, info); err == nil {
						text += ", see " + path
					}
				}
				found = append(found, violation{"model", name, text})
			}
		}
	}
	return found, unknown
}

func draw(path string, info porcupine.LinearizationInfo) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return porcupine.Visualize(model, info, io.Writer(f))
}
