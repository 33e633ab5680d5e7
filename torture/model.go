package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// What the model of one lock does, as porcupine is told.
type action struct {
	kind        string // "acquire", "release", "void"
	token, base uint64
	holder      string
	clean       bool // of release: Unlock said that the lock was released
}

// state is that of one lock: its holder, the last token and the tenure that it
// is of, and up to which tenure all were voided.
type state struct{ held, last, base, voided uint64 }

// The model is a lock with leases. An acquisition needs a lock that nobody
// holds, and gets a token that is higher than any before. A lease that ends is a
// release that happens at some time after the last moment at which the holder
// trusted it. A void frees the lock under its holder; what the process of that
// tenure still passes on, until it is told, changes nothing.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, _ any) (bool, any) {
		now, a := s.(state), in.(action)
		switch a.kind {
		case "init":
			return true, state{last: a.token, base: a.token}
		case "acquire":
			if a.base <= now.voided && a.token != a.base {
				return true, now
			}
			next := now
			next.held, next.last, next.base = a.token, a.token, a.base
			return now.held == 0 && a.token > now.last, next
		case "release":
			if now.held == a.token {
				now.held = 0
				return true, now
			}
			return a.base <= now.voided || !a.clean && now.last >= a.token, now
		case "void":
			now.held, now.voided = 0, now.base
			return true, now
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
		default:
			return fmt.Sprintf("%s %d by %s", a.kind, a.token, a.holder)
		}
	},
	DescribeState: func(s any) string {
		now := s.(state)
		if now.held == 0 {
			return fmt.Sprintf("free, last %d", now.last)
		}
		return fmt.Sprintf("held, %d", now.held)
	},
}

// slew is what the clocks of database and processes may differ by in the
// longest lease.
const slew = 5 * time.Millisecond

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
	for _, t := range terms {
		do(action{kind: "acquire", token: t.token, base: t.base, holder: t.holder}, t.call, t.ret)
		end := action{kind: "release", token: t.token, base: t.base, holder: t.holder, clean: t.outcome == "unlocked"}
		switch t.outcome {
		case "unlocked":
			do(end, t.unlock.from, t.unlock.to)
		case "unknown":
			do(end, t.unlock.from, never)
		case "closed", "": // who was killed may have unlocked before he could tell
			do(end, max(t.trust, t.call), never)
		default:
			do(end, max(t.trust, t.call, t.promised.add(-slew)), never)
		}
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
	return ops
}

// chunkLength bounds what porcupine looks at at once: its memory grows with the square.
const chunkLength = 1000

// chunks cuts the history of one lock where nothing was under way and everything
// had been unlocked, so that nothing but the last token matters further on.
func chunks(terms []*term, voids []void) [][]porcupine.Operation {
	var all [][]porcupine.Operation
	first := 0
	var latest instant // of what the terms until now have left
	from := instant(0)
	cut := func(last int, to instant) {
		var mine []void
		for _, v := range voids {
			if v.meets(span{from, to}) {
				mine = append(mine, v)
			}
		}
		ops := operations(terms[first:last], mine)
		if first > 0 {
			before := action{kind: "init", token: terms[first-1].token}
			ops = slices.Insert(ops, 0, porcupine.Operation{Input: before, Call: int64(from - 2), Return: int64(from - 1)})
			for i := range ops[1:] {
				ops[i+1].Call = max(ops[i+1].Call, int64(from))
			}
		}
		all = append(all, ops)
		first, from = last, to
	}
	for i, t := range terms {
		latest = max(latest, t.end())
		quiet := t.outcome == "unlocked" && !t.void && i+1 < len(terms) && terms[i+1].call > latest && !terms[i+1].void
		if 2*(i+1-first) >= chunkLength && quiet {
			cut(i+1, latest+1)
		}
	}
	if first < len(terms) {
		cut(len(terms), never)
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
