package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = instant(time.Millisecond)

// heldBy returns the events of a hold of lock "n", which was requested a millisecond before it was
// granted.
func heldBy(holder string, token uint64, granted, trust, unlock instant) []event {
	e := event{Holder: holder, Name: "n", Token: token}
	grant, trusted, end := e, e, e
	grant.Kind, grant.Call, grant.Ret = "grant", granted-ms, granted
	trusted.Kind, trusted.Trust = "trust", trust
	end.Kind, end.Outcome, end.Call, end.Ret = "end", "unlocked", unlock, unlock+ms
	return []event{grant, trusted, end}
}

// lostBy returns the events of a hold whose loss was reported at lostAt.
func lostBy(holder string, token uint64, granted, trust, lostAt instant) []event {
	events := heldBy(holder, token, granted, trust, lostAt+ms)
	events[2].Outcome, events[2].Signal = "lost", lostAt
	return events
}

// leased changes the events of a hold to those with a fixed lease of 100 ms.
func leased(events []event) []event {
	events[0].Lease = 100 * time.Millisecond
	return events
}

func rulesOf(vs []violation) (rules []string) {
	for _, v := range vs {
		rules = append(rules, v.rule)
	}
	return rules
}

// The checks report the violations in constructed histories, and no others.
func TestPlanted(t *testing.T) {
	forced := event{Kind: "force", Holder: "c/1", Name: "n", Call: 12 * ms, Ret: 13 * ms, Outcome: "freed"}
	tests := map[string]struct {
		events  [][]event
		tokens  map[string]uint64
		rules   []string // broken, according to all checks but the model
		illegal bool     // according to the model
	}{
		"one after the other": {
			events: [][]event{heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms), heldBy("b/1", 2000, 21*ms, 30*ms, 40*ms)},
		},
		"overlap": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 30*ms, 40*ms), heldBy("b/1", 2000, 20*ms, 35*ms, 50*ms)},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"overlap of goroutines of a process": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 30*ms, 40*ms), heldBy("a/1", 1001, 20*ms, 35*ms, 50*ms)},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"overlap after ForceUnlock": {
			events: [][]event{heldBy("a/1", 1000, 10*ms, 30*ms, 40*ms), {forced}, heldBy("b/1", 2000, 20*ms, 35*ms, 50*ms)},
		},
		"overlap of two owners after ForceUnlock of a third": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 15*ms, 16*ms), {forced}, heldBy("b/1", 2000, 20*ms, 35*ms, 50*ms), heldBy("c/1", 3000, 30*ms, 38*ms, 60*ms)},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"falling token": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), heldBy("b/1", 1000, 30*ms, 35*ms, 40*ms)},
			rules:   []string{"overlap", "token fell"},
			illegal: true,
		},
		"falling token after ForceUnlock": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), {forced}, heldBy("b/1", 1000, 30*ms, 35*ms, 40*ms)},
			rules:   []string{"overlap", "token fell"},
			illegal: true,
		},
		"handed over inside the process that lost it to ForceUnlock": {
			events: [][]event{
				heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms),
				{forced},
				heldBy("b/1", 2000, 14*ms, 35*ms, 40*ms), heldBy("a/1", 1001, 16*ms, 22*ms, 23*ms),
			},
		},
		"repeated token": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms), heldBy("b/1", 1000, 30*ms, 35*ms, 40*ms)},
			rules:   []string{"token repeated"},
			illegal: true,
		},
		"token below one of an earlier cycle": {
			events: [][]event{heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms)},
			tokens: map[string]uint64{"n": 1000},
			rules:  []string{"token fell"},
		},
		"loss reported in time": {
			events: [][]event{lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms), heldBy("b/1", 2000, 22*ms, 30*ms, 40*ms)},
		},
		"loss reported late": {
			events: [][]event{lostBy("a/1", 1000, 10*ms, 15*ms, 2000*ms), heldBy("b/1", 2000, 22*ms, 30*ms, 40*ms)},
			rules:  []string{"loss reported late"},
		},
		"loss reported late by a paused process": {
			events: [][]event{
				lostBy("a/1", 1000, 10*ms, 15*ms, 2000*ms), heldBy("b/1", 2000, 22*ms, 30*ms, 40*ms),
				{{Kind: "stall", Holder: "a", Call: 12 * ms, Ret: 2001 * ms}},
			},
		},
		"granted before the end of a fixed lease": {
			events:  [][]event{leased(lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 30*ms, 30*ms, 40*ms)},
			illegal: true,
		},
		"granted after the end of a fixed lease": {
			events: [][]event{leased(lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 110*ms, 130*ms, 140*ms)},
		},
		"granted after the holder died": {
			events: [][]event{leased(lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms))[:2], heldBy("b/1", 2000, 30*ms, 30*ms, 40*ms)},
		},
		"granted before the holder died": {
			events:  [][]event{leased(lostBy("a/1", 1000, 10*ms, 35*ms, 20*ms))[:2], heldBy("b/1", 2000, 30*ms, 30*ms, 40*ms)},
			rules:   []string{"overlap"},
			illegal: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rules, illegal := checkEvents(t, slices.Concat(test.events...), test.tokens)
			require.ElementsMatch(t, test.rules, rules)
			require.Equal(t, test.illegal, illegal, "the model")
		})
	}
}

// checkEvents returns the rules that a history breaks, and whether the model finds it illegal.
func checkEvents(t *testing.T, events []event, tokens map[string]uint64) (rules []string, illegal bool) {
	h, found := newHistory(events)
	h.tokens, h.exclusives = tokens, tokens
	found = append(found, h.checkOverlap()...)
	found = append(found, h.checkTokens()...)
	found = append(found, h.checkMinimumHolds()...)
	found = append(found, h.checkPermits()...)
	_, late := h.checkLossReports()
	found = append(found, late...)
	wrong, unknown := h.checkModel("", time.Minute)
	require.Zero(t, unknown)
	return rulesOf(found), len(wrong) > 0
}

// A long history is split into chunks, and a violation is found in any of them.
func TestPlantedInALongHistory(t *testing.T) {
	var events []event
	at := func(i int) instant { return instant(i) * 10 * ms }
	const n = 3 * chunkLength
	for i := range n {
		events = append(events, heldBy("a/1", uint64(i+1)*1000, at(i)+ms, at(i)+3*ms, at(i)+5*ms)...)
	}
	h, _ := newHistory(events)
	require.Greater(t, len(chunks(h.holds, nil)), 3)
	wrong, _ := h.checkModel("", time.Minute)
	require.Empty(t, wrong)
	for _, i := range []int{1, n / 2, n - 2} {
		h, _ := newHistory(append(events[:len(events):len(events)], heldBy("b/1", uint64(i+1)*1000+500, at(i)+2*ms, at(i)+4*ms, at(i)+6*ms)...))
		wrong, _ := h.checkModel("", time.Minute)
		require.NotEmpty(t, wrong, i)
		require.NotEmpty(t, h.checkOverlap())
	}
}

func TestPlantedWrites(t *testing.T) {
	state := map[string]written{"n": {token: 5}}
	require.Empty(t, checkRegister([]write{{"n", 5, 0, false}, {"m", 1, 0, false}, {"n", 7, 0, false}}, state))
	require.Equal(t, []string{"stale write"}, rulesOf(checkRegister([]write{{"n", 6, 0, false}}, state)))

	state = map[string]written{"n": {5, 10, 0}}
	require.Empty(t, checkGuarded([]write{{"n", 5, 11, false}, {"n", 7, 12, false}}, map[string]uint64{"n": 12, "m": 0}, state))
	require.Equal(t, []string{"stale commit"}, rulesOf(checkGuarded([]write{{"n", 6, 13, false}}, nil, state)))
	require.Equal(t, []string{"lost update"}, rulesOf(checkGuarded([]write{{"n", 8, 13, false}}, nil, state)))
	require.Equal(t, []string{"lost update"}, rulesOf(checkGuarded(nil, map[string]uint64{"n": 12}, state)))

	state = map[string]written{"n": {5, 10, 0}}
	require.Empty(t, checkGuarded([]write{{"n", 9, 10, true}, {"n", 5, 10, true}, {"n", 12, 11, false}}, nil, state))
	require.Equal(t, []string{"stale read"}, rulesOf(checkGuarded([]write{{"n", 14, 10, true}}, nil, state)))
	require.Equal(t, []string{"stale read"}, rulesOf(checkGuarded([]write{{"n", 9, 11, true}}, nil, state)))
	require.Equal(t, []string{"stale commit"}, rulesOf(checkGuarded([]write{{"n", 13, 12, false}}, nil, state)))
}

func TestPlantedLeftovers(t *testing.T) {
	dead := func(holder string) bool { return holder == "dead" }
	rows := []heldRow{{"m", "dead", time.Second}, {"n", "alive", time.Second}, {"o", "dead", time.Hour}}
	require.Equal(t, []string{"left behind", "left behind"}, rulesOf(checkLeftovers(rows, dead, 5*time.Second)))
}

func TestCheckService(t *testing.T) {
	wait := event{Kind: "wait", Holder: "b/1", Name: "n", Call: 10 * ms, Ret: 9000 * ms}
	h, _ := newHistory(append(heldBy("a/1", 1000, 100*ms, 100*ms, 200*ms), wait))
	longest, unserved := h.checkService(99*ms+1, 3*time.Second)
	require.Empty(t, unserved)
	require.InDelta(t, time.Millisecond, longest, 1e5)
	_, unserved = h.checkService(150*ms, 3*time.Second)
	require.Equal(t, []string{"not served"}, rulesOf(unserved))
}
