package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sharedBy makes a hold a shared one.
func sharedBy(events []event) []event {
	for i := range events {
		events[i].Mode = shared
	}
	return events
}

// numbered gives the events of a hold its number, and the key of the hold that it continues.
func numbered(id int64, from string, events []event) []event {
	for i := range events {
		events[i].ID = id
	}
	events[0].From = from
	return events
}

// endedBy gives a hold another outcome of its end, for a time.
func endedBy(outcome string, d time.Duration, events []event) []event {
	events[2].Outcome, events[2].Lease = outcome, d
	return events
}

// Histories of shared locks, tickets and locks that stay taken, and what the checks have to
// find in them.
func TestPlantedModes(t *testing.T) {
	forced := []event{{Kind: "force", Holder: "c/1", Name: "n", Call: 12 * ms, Ret: 13 * ms, Outcome: "freed"}}
	refused := []event{{Kind: "refused", Holder: "b/1", Name: "n", From: "a/1#1", Outcome: "lost", Call: 30 * ms, Ret: 31 * ms}}
	tests := map[string]struct {
		events  [][]event
		tokens  map[string]uint64
		plain   []string
		illegal bool
	}{
		"shared together": {
			events: [][]event{
				heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("a/1", 2000, 30*ms, 50*ms, 60*ms)),
				sharedBy(heldBy("b/1", 2000, 40*ms, 70*ms, 80*ms)), heldBy("c/1", 3000, 90*ms, 95*ms, 99*ms),
			},
		},
		"shared beside exclusive": {
			events:  [][]event{heldBy("a/1", 1000, 10*ms, 30*ms, 40*ms), sharedBy(heldBy("b/1", 2000, 20*ms, 35*ms, 50*ms))},
			plain:   []string{"overlap"},
			illegal: true,
		},
		"exclusive beside shared": {
			events: [][]event{
				sharedBy(heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), sharedBy(heldBy("b/1", 1000, 12*ms, 15*ms, 16*ms)),
				heldBy("c/1", 2000, 20*ms, 35*ms, 36*ms),
			},
			plain:   []string{"overlap"},
			illegal: true,
		},
		"exclusive beside shared after ForceUnlock": {
			events: [][]event{sharedBy(heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), forced, heldBy("c/1", 2000, 20*ms, 35*ms, 36*ms)},
		},
		"joined in the process that was forced": {
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
			plain:   []string{"token fell", "overlap"}, // by the order of tokens
			illegal: true,
		},
		"shared token below an exclusive one": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("b/1", 1000, 30*ms, 35*ms, 40*ms))},
			plain:   []string{"token fell", "overlap"},
			illegal: true,
		},
		"shared token as an exclusive one": {
			events:  [][]event{heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms), sharedBy(heldBy("b/1", 2000, 30*ms, 35*ms, 40*ms))},
			plain:   []string{"token fell"},
			illegal: true,
		},
		"exclusive token as a shared one": {
			events:  [][]event{sharedBy(heldBy("a/1", 2000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 30*ms, 35*ms, 40*ms)},
			plain:   []string{"token fell"},
			illegal: true,
		},
		"shared token of an exclusive hold of an earlier cycle": {
			events: [][]event{sharedBy(heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms))},
			tokens: map[string]uint64{"n": 1000},
			plain:  []string{"token fell"},
		},
		"loss of a shared hold told in time": {
			events: [][]event{
				sharedBy(lostBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), sharedBy(heldBy("b/1", 1000, 12*ms, 12*ms, 14*ms)),
				heldBy("c/1", 2000, 22*ms, 30*ms, 40*ms),
			},
		},
		"loss of a shared hold told late": {
			events: [][]event{sharedBy(lostBy("a/1", 1000, 10*ms, 15*ms, 2000*ms)), heldBy("b/1", 2000, 22*ms, 30*ms, 40*ms)},
			plain:  []string{"loss reported late"},
		},
		"became shared": {
			events: [][]event{
				numbered(1, "", endedBy("downgraded", 0, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				numbered(2, "a/1#1", sharedBy(heldBy("a/1", 1000, 21*ms, 50*ms, 60*ms))),
				sharedBy(heldBy("b/1", 1500, 23*ms, 30*ms, 40*ms)), heldBy("c/1", 2000, 65*ms, 70*ms, 80*ms),
			},
		},
		"became shared, and free between": {
			events: [][]event{
				numbered(1, "", endedBy("downgraded", 0, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 23*ms, 24*ms, 25*ms),
				numbered(2, "a/1#1", sharedBy(heldBy("a/1", 1000, 21*ms, 50*ms, 60*ms))),
			},
			plain:   []string{"overlap"},
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
			plain:   []string{"attached twice", "token repeated"},
			illegal: true,
		},
		"granted while detached": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 68*ms, 70*ms, 80*ms),
			},
			plain:   []string{"freed early"},
			illegal: true,
		},
		"granted, and attached after that": {
			events: [][]event{
				numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))),
				heldBy("c/1", 2000, 30*ms, 31*ms, 32*ms), numbered(2, "a/1#1", heldBy("b/1", 1000, 50*ms, 60*ms, 65*ms)),
			},
			plain:   []string{"token fell", "overlap"},
			illegal: true,
		},
		"ticket refused": {
			events: [][]event{numbered(1, "", endedBy("detached", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))), refused},
			plain:  []string{"ticket refused"},
		},
		"ticket refused when its lease had ended": {
			events: [][]event{numbered(1, "", endedBy("detached", 10*time.Millisecond, heldBy("a/1", 1000, 10*ms, 19*ms, 20*ms))), refused},
		},
		"granted after a time": {
			events: [][]event{endedBy("unlocked", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 110*ms, 120*ms, 130*ms)},
		},
		"granted before that time": {
			events:  [][]event{endedBy("unlocked", 100*time.Millisecond, heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms)), heldBy("b/1", 2000, 90*ms, 120*ms, 130*ms)},
			plain:   []string{"freed early"},
			illegal: true,
		},
		"granted before the time of a shared hold": {
			events: [][]event{
				endedBy("unlocked", 100*time.Millisecond, sharedBy(heldBy("a/1", 1000, 10*ms, 15*ms, 20*ms))),
				sharedBy(heldBy("b/1", 1000, 30*ms, 40*ms, 50*ms)), heldBy("c/1", 2000, 90*ms, 120*ms, 130*ms),
			},
			plain:   []string{"freed early"},
			illegal: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plain, illegal := judge(t, slices.Concat(test.events...), test.tokens)
			require.ElementsMatch(t, test.plain, plain)
			require.Equal(t, test.illegal, illegal, "the model")
		})
	}
}

// permitBy makes a hold one of a slot, by a caller with a limit.
func permitBy(slot, limit int, events []event) []event {
	for i := range events {
		events[i].Mode, events[i].Slot, events[i].Name, events[i].Limit = permit, slot, slotName("sem-0.0", slot), limit
	}
	return events
}

func TestPlantedPermits(t *testing.T) {
	tests := map[string]struct {
		events [][]event
		plain  []string
	}{
		"as many as the limit": {
			events: [][]event{permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 20*ms, 40*ms, 50*ms))},
		},
		"a slot twice": {
			events: [][]event{permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(1, 2, heldBy("b/1", 2000, 20*ms, 40*ms, 50*ms))},
			plain:  []string{"overlap"},
		},
		"more than the limit": {
			events: [][]event{
				permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(3, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
			plain: []string{"too many permits", "over the limit"},
		},
		"more than the limit, at the same time": {
			events: [][]event{
				permitBy(1, 2, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(2, 2, heldBy("b/1", 1000, 10*ms, 40*ms, 50*ms)),
				permitBy(3, 2, heldBy("c/1", 1000, 10*ms, 40*ms, 50*ms)),
			},
			plain: []string{"too many permits"},
		},
		"with a smaller limit than others": {
			events: [][]event{
				permitBy(3, 4, heldBy("a/1", 1000, 10*ms, 40*ms, 50*ms)), permitBy(4, 4, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(1, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
			plain: []string{"over the limit"},
		},
		"when one had ended": {
			events: [][]event{
				permitBy(3, 4, heldBy("a/1", 1000, 10*ms, 15*ms, 16*ms)), permitBy(4, 4, heldBy("b/1", 1000, 11*ms, 40*ms, 50*ms)),
				permitBy(1, 2, heldBy("c/1", 1000, 20*ms, 40*ms, 50*ms)),
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plain, _ := judge(t, slices.Concat(test.events...), nil)
			require.ElementsMatch(t, test.plain, plain)
		})
	}
}

// A long history of both modes is cut, and what is wrong is found in every piece.
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
	require.Greater(t, len(chunks(h.terms, nil)), 3)
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
