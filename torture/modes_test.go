package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sharedBy changes the events of a hold to those of a shared one.
func sharedBy(events []event) []event {
	for i := range events {
		events[i].Mode = shared
	}
	return events
}

// numbered sets the ID of a hold in its events, and the key of the hold that it continues.
func numbered(id int64, from string, events []event) []event {
	for i := range events {
		events[i].ID = id
	}
	events[0].From = from
	return events
}

// endedBy sets how a hold ended: with UnlockAfter(d), a ticket with lease d, or a downgrade.
func endedBy(outcome string, d time.Duration, events []event) []event {
	events[2].Outcome, events[2].Lease = outcome, d
	return events
}

// The checks report the violations in constructed histories of shared locks, tickets and
// UnlockAfter.
func TestPlantedModes(t *testing.T) {
	forced := []event{{Kind: "force", Holder: "c/1", Name: "n", Call: 12 * ms, Ret: 13 * ms, Outcome: "freed"}}
	refused := []event{{Kind: "refused", Holder: "b/1", Name: "n", From: "a/1#1", Outcome: "lost", Call: 30 * ms, Ret: 31 * ms}}
	tests := map[string]struct {
		events  [][]event
		tokens  map[string]uint64
		rules   []string // broken, according to all checks but the model
		illegal bool     // according to the model
	}{
		"shared together": {
			events: [][]event{
				heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("a/1", 2000, 30*ms, 50*ms, 60*ms)),
				sharedBy(heldBy("b/1", 2000, 40*ms, 70*ms, 80*ms)), heldBy("c/1", 3000, 90*ms, 95*ms, 99*ms),
			},
		},
		"shared beside exclusive": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 30*ms, 40*ms), sharedBy(heldBy("b/1", 2000, 20*ms, 35*ms, 50*ms))},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"exclusive beside shared": {
			events: [][]event{
				sharedBy(heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), sharedBy(heldBy("b/1", 1000, 12*ms, 15*ms, 16*ms)),
				heldBy("c/1", 2000, 20*ms, 35*ms, 36*ms),
			},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"exclusive beside shared after ForceUnlock": {
			events: [][]event{sharedBy(heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), forced, heldBy("c/1", 2000, 20*ms, 35*ms, 36*ms)},
		},
		"joined in the process that lost it to ForceUnlock": {
			events: [][]event{
				numbered(1, "", sharedBy(heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms))), forced, heldBy("c/1", 2000, 15*ms, 18*ms, 19*ms),
				numbered(2, "", sharedBy(heldBy("a/1", 1000, 25*ms, 30*ms, 31*ms))),
			},
		},
		"joined in another process": {
			events: [][]event{
				sharedBy(heldBy("a/1", 1000, 10*ms, 11*ms, 50*ms)), forced, heldBy("c/1", 2000, 15*ms, 18*ms, 19*ms),
				sharedBy(heldBy("b/1", 1000, 25*ms, 30*ms, 31*ms)),
			},
			rules:   []string{"token fell", "overlap"}, // holds are compared in the order of tokens
			illegal: true,
		},
		"shared token below an exclusive one": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("b/1", 1000, 30*ms, 35*ms, 40*ms))},
			rules:   []string{"token fell", "overlap"},
			illegal: true,
		},
		"shared token equal to an earlier exclusive one": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("b/1", 2000, 30*ms, 35*ms, 40*ms))},
			rules:   []string{"token fell"},
			illegal: true,
		},
		"exclusive token equal to an earlier shared one": {
			events:  [][]event{sharedBy(heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 30*ms, 35*ms, 40*ms)},
			rules:   []string{"token fell"},
			illegal: true,
		},
		"shared token equal to an exclusive one of an earlier cycle": {
			events: [][]event{sharedBy(heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms))},
			tokens: map[string]uint64{"n": 1000},
			rules:  []string{"token fell"},
		},
		"loss of a shared hold reported in time": {
			events: [][]event{
				sharedBy(lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), sharedBy(heldBy("b/1", 1000, 12*ms, 12*ms, 14*ms)),
				heldBy("c/1", 2000, 22*ms, 30*ms, 40*ms),
			},
		},
		"loss of a shared hold reported late": {
			events: [][]event{sharedBy(lostBy("a/1", 1000, 10*ms, 15*ms, 2000*ms)), heldBy("b/1", 2000, 22*ms, 30*ms, 40*ms)},
			rules:  []string{"loss reported late"},
		},
		"downgraded": {
			events: [][]event{
				numbered(1, "", endedBy("downgraded", 0, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				numbered(2, "a/1#1", sharedBy(heldBy("a/1", 1000, 21*ms, 50*ms, 60*ms))),
				sharedBy(heldBy("b/1", 1500, 23*ms, 30*ms, 40*ms)), heldBy("c/1", 2000, 65*ms, 70*ms, 80*ms),
			},
		},
		"downgraded, and free in between": {
			events: [][]event{
				numbered(1, "", endedBy("downgraded", 0, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 23*ms, 24*ms, 25*ms),
				numbered(2, "a/1#1", sharedBy(heldBy("a/1", 1000, 21*ms, 50*ms, 60*ms))),
			},
			rules:   []string{"overlap"},
			illegal: true,
		},
		"attached": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				numbered(2, "a/1#1", heldBy("b/1", 1000, 50*ms, 60*ms, 65*ms)), heldBy("c/1", 2000, 68*ms, 70*ms, 80*ms),
			},
		},
		"attached twice": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				numbered(2, "a/1#1", heldBy("b/1", 1000, 50*ms, 60*ms, 65*ms)), numbered(3, "a/1#1", heldBy("c/1", 1000, 70*ms, 75*ms, 78*ms)),
			},
			rules:   []string{"attached twice", "token repeated"},
			illegal: true,
		},
		"granted while detached": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 68*ms, 70*ms, 80*ms),
			},
			rules:   []string{"freed early"},
			illegal: true,
		},
		"granted while detached, and attached after that": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 30*ms, 31*ms, 32*ms), numbered(2, "a/1#1", heldBy("b/1", 1000, 50*ms, 60*ms, 65*ms)),
			},
			rules:   []string{"token fell", "overlap"},
			illegal: true,
		},
		"ticket refused": {
			events: [][]event{numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))), refused},
			rules:  []string{"ticket refused"},
		},
		"ticket refused after its lease": {
			events: [][]event{numbered(1, "", endedBy("detached", 10*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))), refused},
		},
		"granted after the time of UnlockAfter": {
			events: [][]event{endedBy("unlocked", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 110*ms, 120*ms, 130*ms)},
		},
		"granted before the time of UnlockAfter": {
			events:  [][]event{endedBy("unlocked", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 90*ms, 120*ms, 130*ms)},
			rules:   []string{"freed early"},
			illegal: true,
		},
		"granted before the time of UnlockAfter of a shared hold": {
			events: [][]event{
				endedBy("unlocked", 100*time.Millisecond, sharedBy(heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms))),
				sharedBy(heldBy("b/1", 1000, 30*ms, 40*ms, 50*ms)), heldBy("c/1", 2000, 90*ms, 120*ms, 130*ms),
			},
			rules:   []string{"freed early"},
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

// permitBy changes the events of a hold to those of a permit, acquired by a caller with a limit.
func permitBy(slot, limit int, events []event) []event {
	for i := range events {
		events[i].Mode, events[i].Slot, events[i].Name, events[i].Limit = permit, slot, slotName("sem-0.0", slot), limit
	}
	return events
}

func TestPlantedPermits(t *testing.T) {
	tests := map[string]struct {
		events [][]event
		rules  []string // broken
	}{
		"as many permits as the limit": {
			events: [][]event{permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 20*ms, 40*ms, 50*ms))},
		},
		"one slot twice": {
			events: [][]event{permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(1, 2, heldBy("b/1", 2000, 20*ms, 40*ms, 50*ms))},
			rules:  []string{"overlap"},
		},
		"more permits than the limit": {
			events: [][]event{
				permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(3, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
			rules: []string{"too many permits", "over the limit"},
		},
		"more permits than the limit, granted at the same time": {
			events: [][]event{
				permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 10*ms, 40*ms, 50*ms)),
				permitBy(3, 2, heldBy("c/1", 1000, 10*ms, 40*ms, 50*ms)),
			},
			rules: []string{"too many permits"},
		},
		"by a caller with a smaller limit than others": {
			events: [][]event{
				permitBy(3, 4, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(4, 4, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(1, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
			rules: []string{"over the limit"},
		},
		"after another permit had ended": {
			events: [][]event{
				permitBy(3, 4, heldBy("a/1", 1000, 10*ms, 15*ms, 16*ms)), permitBy(4, 4, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(1, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rules, _ := checkEvents(t, slices.Concat(test.events...), nil)
			require.ElementsMatch(t, test.rules, rules)
		})
	}
}

// A long history of both modes is split into chunks, and a violation is found in any of them.
func TestPlantedInALongSharedHistory(t *testing.T) {
	var events []event
	at := func(i int) instant { return instant(i) * 10 * ms }
	const n = 2 * chunkLength
	for i := range n {
		token := uint64(i/4+1) * 1000
		if i%4 == 3 {
			events = append(events, heldBy("a/1", token+500, at(i)+ms, at(i)+3*ms, at(i)+5*ms)...)
			continue
		}
		events = append(events, numbered(int64(2*i), "", sharedBy(heldBy("a/1", token, at(i)+ms, at(i)+3*ms, at(i)+5*ms)))...)
		events = append(events, numbered(int64(2*i), "", sharedBy(heldBy("b/1", token, at(i)+ms, at(i)+3*ms, at(i)+6*ms)))...)
	}
	h, _ := newHistory(events)
	require.Greater(t, len(chunks(h.holds, nil)), 3)
	wrong, _ := h.checkModel("", time.Minute)
	require.Empty(t, wrong)
	require.Empty(t, h.checkTokens())
	for _, i := range []int{4, n / 2, n - 4} {
		h, _ := newHistory(append(events[:len(events):len(events)], heldBy("c/1", uint64(i/4+1)*1000+400, at(i)+2*ms, at(i)+4*ms, at(i)+6*ms)...))
		wrong, _ := h.checkModel("", time.Minute)
		require.NotEmpty(t, wrong, i)
		require.NotEmpty(t, h.checkOverlap())
	}
}
