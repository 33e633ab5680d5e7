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

// An action is an input of the model of one lock.
type action struct {
	kind              string // "acquire", "downgrade", "attach", "release", "revoke", "init"
	token, firstToken uint64
	holder            string
	shared            bool
	reader            rune // identifies a shared hold
	local             bool // of acquire: as in holdRecord
	unlocked          bool // of release: Unlock reported that the lock was released
}

// A state is the state of one lock in the model.
type state struct {
	heldToken   uint64 // of the exclusive holder; 0 if none
	readers     string // the shared holds, sorted
	lastToken   uint64
	lastShared  bool   // the last token is that of shared holds, which others may have, too
	revokedUpTo uint64 // all holds with tokens up to this one were revoked
}

// model is a read-write lock with leases. An exclusive request is granted if nobody holds the lock,
// with a higher token than any before. A shared request is granted if nobody holds the lock
// exclusively, and may get the token of other shared holds. An expired lease is a release at some
// time after the last instant at which the holder trusted it. A revocation frees the lock while it
// is held; what the process of a revoked hold grants locally, until it finds the loss, changes
// nothing.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, _ any) (bool, any) {
		now, a := s.(state), in.(action)
		next := now
		reading := strings.ContainsRune(now.readers, a.reader)
		switch a.kind {
		case "init":
			return true, state{lastToken: a.token, lastShared: a.shared}
		case "acquire":
			if a.firstToken <= now.revokedUpTo && a.local {
				return true, now
			}
			if next.lastShared, next.lastToken = a.shared, a.token; a.shared {
				next.readers = withReader(now.readers, a.reader)
				return now.heldToken == 0 && (a.token > now.lastToken || a.token == now.lastToken && now.lastShared), next
			}
			next.heldToken = a.token
			return now.heldToken == 0 && now.readers == "" && a.token > now.lastToken, next
		case "downgrade":
			if now.heldToken != a.token {
				return a.firstToken <= now.revokedUpTo, now
			}
			next.heldToken, next.readers = 0, withReader(now.readers, a.reader)
			return true, next
		case "attach":
			return a.firstToken <= now.revokedUpTo || now.heldToken == a.token || a.shared && reading, now
		case "release":
			switch {
			case a.shared && reading:
				next.readers = strings.Replace(now.readers, string(a.reader), "", 1)
				return true, next
			case a.shared:
				return a.firstToken <= now.revokedUpTo, now
			case now.heldToken == a.token:
				next.heldToken = 0
				return true, next
			}
			return a.firstToken <= now.revokedUpTo || !a.unlocked && now.lastToken >= a.token, now
		case "revoke":
			next.heldToken, next.readers, next.revokedUpTo = 0, "", now.lastToken
			return true, next
		}
		panic(a.kind)
	},
	DescribeOperation: func(in, _ any) string {
		a := in.(action)
		switch {
		case a.kind == "revoke":
			return "revoked"
		case a.kind == "release" && !a.unlocked:
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
			return fmt.Sprintf("held shared by %d, %d", utf8.RuneCountInString(now.readers), now.lastToken)
		}
		if now.heldToken == 0 {
			return fmt.Sprintf("free, last %d", now.lastToken)
		}
		return fmt.Sprintf("held, %d", now.heldToken)
	},
}

// withReader returns the sorted readers with another one.
func withReader(readers string, reader rune) string {
	all := append([]rune(readers), reader)
	slices.Sort(all)
	return string(all)
}

// operations returns the history of one lock for porcupine, in the order of calls.
func operations(holds []*holdRecord, revocations []revocation) []porcupine.Operation {
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
	for _, r := range revocations {
		do(action{kind: "revoke", holder: "nemesis"}, r.from, r.to)
	}
	readers := map[*holdRecord]rune{} // a shared hold and those that continue it have the same rune
	for _, hold := range holds {
		a := action{token: hold.token, firstToken: hold.firstToken, holder: hold.holder, shared: hold.shared, local: hold.local}
		switch {
		case hold.shared && (hold.prev == nil || !hold.prev.shared):
			readers[hold] = rune(len(readers) + 1)
			a.reader = readers[hold]
		case hold.shared:
			readers[hold] = readers[hold.prev]
			a.reader = readers[hold]
		}
		switch a.kind = "acquire"; {
		case hold.prev != nil && hold.shared && !hold.prev.shared:
			a.kind = "downgrade"
		case hold.prev != nil:
			a.kind = "attach"
		}
		do(a, hold.call, hold.ret)
		if hold.next != nil {
			continue
		}
		a.kind, a.unlocked = "release", hold.outcome == "unlocked"
		from, to := hold.released()
		do(a, from, to)
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
	return ops
}

// chunkLength limits the operations that porcupine checks at once, because its memory grows with
// their square.
const chunkLength = 1000

// chunks splits the history of one lock where all locks had been unlocked and no call was in
// progress, so that the next chunk depends only on the last token.
func chunks(holds []*holdRecord, revocations []revocation) [][]porcupine.Operation {
	holds = slices.Clone(holds)
	slices.SortStableFunc(holds, func(a, b *holdRecord) int { return cmp.Compare(a.call, b.call) })
	lowest := make([]uint64, len(holds)+1) // token from each index on
	lowest[len(holds)] = 1<<64 - 1
	for i, hold := range slices.Backward(holds) {
		lowest[i] = min(lowest[i+1], hold.token)
	}
	var all [][]porcupine.Operation
	first := 0         // hold of the chunk
	var latest instant // end of the holds so far
	from := instant(0)
	before := action{kind: "init"}
	split := func(end int, to instant, after action) {
		var overlapping []revocation
		for _, r := range revocations {
			if r.overlaps(span{from, to}) {
				overlapping = append(overlapping, r)
			}
		}
		ops := operations(holds[first:end], overlapping)
		if first > 0 {
			ops = slices.Insert(ops, 0, porcupine.Operation{Input: before, Call: int64(from - 2), Return: int64(from - 1)})
			for i := range ops[1:] {
				ops[i+1].Call = max(ops[i+1].Call, int64(from))
			}
		}
		all = append(all, ops)
		first, from, before = end, to, after
	}
	highest := action{kind: "init"}
	for i, hold := range holds {
		latest = max(latest, hold.end())
		if hold.token > highest.token {
			highest.token, highest.shared = hold.token, false
		}
		highest.shared = highest.shared || hold.shared && hold.token == highest.token
		higher := lowest[i+1] > highest.token || lowest[i+1] == highest.token && highest.shared
		idle := hold.outcome == "unlocked" && !hold.revoked && i+1 < len(holds) && holds[i+1].call > latest && !holds[i+1].revoked
		if 2*(i+1-first) >= chunkLength && idle && higher {
			split(i+1, latest+1, highest)
		}
	}
	if first < len(holds) {
		split(len(holds), never, highest)
	}
	return all
}

// checkModel checks the history of every lock by porcupine, and plots the illegal ones in dir. It
// also returns how many chunks porcupine could not check within limit.
func (h *history) checkModel(dir string, limit time.Duration) (found []violation, unknown int) {
	for name, holds := range h.byName() {
		var revocations []revocation
		for _, r := range h.revocations {
			if r.concerns(name) {
				revocations = append(revocations, r)
			}
		}
		for _, ops := range chunks(holds, revocations) {
			switch result, info := porcupine.CheckOperationsVerbose(model, ops, limit); result {
			case porcupine.Unknown:
				unknown++
			case porcupine.Illegal:
				text := "the history is not that of a lock"
				if dir != "" {
					path := filepath.Join(dir, fmt.Sprintf("%s.html", name))
					if err := plot(path, info); err == nil {
						text += ", see " + path
					}
				}
				found = append(found, violation{"model", name, text})
			}
		}
	}
	return found, unknown
}

func plot(path string, info porcupine.LinearizationInfo) error {
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
