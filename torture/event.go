package main

import (
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// An instant is a reading of CLOCK_MONOTONIC, in nanoseconds: all processes of
// a machine read the same clock, which nobody can set. 0 is none.
type instant int64

const never = instant(1<<63 - 1)

func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return instant(ts.Nano())
}

func (i instant) add(d time.Duration) instant { return i + instant(d) }
func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// An event is what a worker tells, one line of JSON each, as it happens: a worker
// may be killed at any moment.
//
//	grant     a lock was acquired: Name, Token, Lease, from Call to Ret; for a permit
//	          Slot and Limit too; From is the hold that it continues, after Detach or a downgrade
//	trust     it was held at Trust, a moment before Err said nil; grant and term may have it too
//	extend    Extend succeeded: Lease, asked for at Call
//	shorten   nothing is promised any more but what another handle asks
//	term      the hold is over: Outcome; for "unlocked" and "unknown" Unlock went
//	          from Call to Ret; Signal is when its Context told ErrLost, 0 if it did not;
//	          Lease is for how long UnlockAfter keeps the lock since it was acquired, and for
//	          "detached" how long the ticket is good for; "downgraded" goes on as a shared hold
//	ticket    a ticket for another worker: Ticket, of the hold From
//	refused   Attach of the ticket of From, with a new Lease, failed, from Call to Ret: Outcome is why
//	forcing   ForceUnlock was called at Call
//	force     it returned at Ret: Outcome "freed", "free" or "unknown"
//	void      somebody took the row away, or moved it in time, from Call to Ret: Outcome "taken" if it was taken
//	wait      a call of TryLock that failed, from Call to Ret: Outcome is why
//	stall     from Call to Ret the process did not run
//	gaveup    Close returned an error: what this Locker held ends with its lease
//	wrong     something that must not be: Outcome tells
//	drained   all turns of the cycle are over
//	ended     the Lockers and pools of the cycle are closed: Counts
type event struct {
	Kind    string        `json:"k"`
	Holder  string        `json:"h,omitempty"` // identity of the Locker
	Name    string        `json:"n,omitempty"`
	Mode    mode          `json:"m,omitempty"`
	Slot    int           `json:"slot,omitempty"`
	Limit   int           `json:"limit,omitempty"` // of the caller of a semaphore
	ID      int64         `json:"i,omitempty"`     // of the hold, in its cycle
	From    string        `json:"f,omitempty"`     // key of another hold
	Ticket  string        `json:"ticket,omitempty"`
	Token   uint64        `json:"t,omitempty"`
	Lease   time.Duration `json:"l,omitempty"` // 0: AutoRenew
	Call    instant       `json:"c,omitempty"`
	Ret     instant       `json:"r,omitempty"`
	Trust   instant       `json:"e,omitempty"`
	Signal  instant       `json:"s,omitempty"`
	Outcome string        `json:"o,omitempty"`
	Counts  counts        `json:"counts,omitempty"`
}

// A mode is that in which a name is held. A permit is an exclusive hold of its slot.
type mode string

const (
	exclusive mode = ""
	shared    mode = "shared"
	permit    mode = "permit"
)

// key names a hold.
func (e event) key() string { return fmt.Sprintf("%s#%d", e.Holder, e.ID) }

type counts map[string]int64

func (c counts) add(d counts) {
	for k, n := range d {
		c[k] += n
	}
}

func (e event) String() string {
	text, _ := json.Marshal(e)
	return string(text)
}
