package outage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/require"
)

type head struct{ refused int }

func (h *head) Refuse() { h.refused++ }

type prober struct {
	state store.RowState
	err   error
}

func (p prober) Probe(context.Context, store.Claim) (store.RowState, error) { return p.state, p.err }

// What callers learn at each step of a statement.
func TestVerdict(t *testing.T) {
	broken := errors.New("broken")
	noAnswer := Verdict{Err: ErrNoAnswer}
	for name, c := range map[string]struct {
		happens func(d *Detector, e *Evidence, h *head)
		after   time.Duration
		want    Verdict
		probe   prober
	}{
		"not sent yet":       {want: Verdict{Err: ErrNoAnswer, Probing: true}, happens: func(*Detector, *Evidence, *head) {}},
		"sent":               {want: Verdict{Err: ErrNoAnswer, Probing: true}, happens: sent},
		"no answer for long": {after: 2 * ProbeAfter, want: noAnswer, happens: sent},
		"the database is slow": {want: Verdict{Err: ErrNoAnswer, Slow: true}, happens: func(d *Detector, e *Evidence, h *head) {
			sent(d, e, h)
			time.Sleep(time.Nanosecond)
			d.Probed(e, h, store.RowFree, nil)
		}},
		"too slow": {after: slowReply, want: noAnswer, happens: func(d *Detector, e *Evidence, h *head) {
			sent(d, e, h)
			time.Sleep(time.Nanosecond)
			d.Probed(e, h, store.RowFree, nil)
		}},
		"failed":                 {want: Verdict{Err: broken}, happens: func(d *Detector, e *Evidence, h *head) { sent(d, e, h); e.Failed(broken) }},
		"cut off":                {want: Verdict{Err: ErrNoAnswer, Probing: true}, happens: func(d *Detector, e *Evidence, h *head) { sent(d, e, h); e.Failed(unanswered(context.Canceled)) }},
		"refused":                {want: Verdict{}, happens: refused},
		"look failed":            {want: Verdict{Err: broken}, happens: func(d *Detector, e *Evidence, h *head) { refused(d, e, h); e.Looked(broken) }},
		"refused, then silent":   {after: replyTimeout + 1, want: noAnswer, happens: func(d *Detector, e *Evidence, h *head) { refused(d, e, h); sent(d, e, h) }},
		"refused, then not long": {after: replyTimeout, want: Verdict{}, happens: func(d *Detector, e *Evidence, h *head) { refused(d, e, h); sent(d, e, h) }},
		"held, then silent":      {after: replyTimeoutAfterHold + 1, want: noAnswer, happens: func(d *Detector, e *Evidence, h *head) { sent(d, e, h); d.Answered(e, h, true); sent(d, e, h) }},
		"another head's answer":  {want: Verdict{Err: ErrNoAnswer, Probing: true}, happens: func(d *Detector, e *Evidence, h *head) { d.Answered(e, h, true); sent(d, e, new(head)) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := NewDetector(c.probe)
				defer d.Close()
				var e Evidence
				time.Sleep(time.Second)
				c.happens(d, &e, new(head))
				time.Sleep(c.after)
				require.Equal(t, c.want, d.Verdict(&e))
			})
		})
	}
}

func sent(_ *Detector, e *Evidence, h *head) { e.Sent(h, store.Claim{}) }

func refused(d *Detector, e *Evidence, h *head) { sent(d, e, h); d.Answered(e, h, false) }

// A probe that finds the row locked ends the calls that do not wait.
func TestProbeOfALockedRow(t *testing.T) {
	d := NewDetector(prober{state: store.RowLocked})
	defer d.Close()
	var e Evidence
	var h head
	e.Sent(&h, store.Claim{})
	require.Equal(t, store.RowLocked, d.Probe(t.Context(), &e, &h, store.Claim{}))
	require.Equal(t, 1, h.refused)
	require.Equal(t, Verdict{}, d.Verdict(&e))
	d.Probe(t.Context(), &e, new(head), store.Claim{}) // of a head that has left
	require.Equal(t, 1, h.refused)
}

// A request of which an earlier statement may have changed a row has an unknown outcome, also if a
// later one was not sent in time.
func TestUnansweredStaysUnknown(t *testing.T) {
	for _, err := range []error{store.NotSent{Err: context.DeadlineExceeded}, context.Canceled} {
		require.True(t, store.OutcomeUnknown(Describe(store.PartlySent{Err: err})))
	}
	require.False(t, store.OutcomeUnknown(Describe(store.NotSent{Err: context.DeadlineExceeded})))
}
