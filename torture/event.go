package main

import (
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// An instant is a reading of CLOCK_MONOTONIC, in nanoseconds. All processes of a machine read the
// same clock, and nobody can set it. 0 means that there is none.
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

// An event is an entry of the history. A worker may be killed at any moment, so it writes each
// event at once, as a line of JSON. Call and Ret are the instants before and after the call that
// the event is about.
//
//	grant     a lock was acquired, with Token and Lease, and for a permit Slot and Limit;
//	          From is the hold that this one continues, after Detach or a downgrade
//	trust     Err returned nil right after the instant Trust; grant and end may have Trust, too
//	extend    Extend succeeded, with Lease
//	shorten   from now on, the lease in the row may be shorter than the one requested
//	end       the hold ended, with Outcome; Signal is when its Context ended with ErrLost, or 0;
//	          if "unlocked", Lease is the argument of UnlockAfter, or 0; if "detached", it is the
//	          lease of the ticket; if "downgraded", the hold continues as a shared one
//	ticket    Ticket, of the hold From, is for another worker to attach
//	refused   Attach of the ticket of From failed because of Outcome; Lease is the requested one
//	forcing   ForceUnlock was called
//	force     ForceUnlock returned: Outcome is "freed", "free" or "unknown"
//	revoke    a row was deleted or the server's clock stepped; Outcome is "taken" if the row is
//	          known to be gone
//	wait      TryLock, TryRLock or TryAcquire failed because of Outcome
//	stall     the process did not run from Call to Ret
//	gaveup    Close returned an error: the locks of this Locker end with their leases
//	wrong     the library returned a wrong result, described by Outcome
//	drained   all clients of the cycle have stopped
//	closed    the Lockers and the pool of the cycle are closed; Counts has its counts
type event struct {
	Kind    string        `json:"k"`
	Holder  string        `json:"h,omitempty"` // identity of the Locker
	Name    string        `json:"n,omitempty"`
	Mode    mode          `json:"m,omitempty"`
	Slot    int           `json:"slot,omitempty"`
	Limit   int           `json:"limit,omitempty"` // of the semaphore, as the caller gave it
	ID      int64         `json:"i,omitempty"`     // of the hold, unique in the worker's cycle
	From    string        `json:"f,omitempty"`     // key of another hold
	Ticket  string        `json:"ticket,omitempty"`
	Token   uint64        `json:"t,omitempty"`
	Lease   time.Duration `json:"l,omitempty"` // 0 is AutoRenew
	Call    instant       `json:"c,omitempty"`
	Ret     instant       `json:"r,omitempty"`
	Trust   instant       `json:"e,omitempty"`
	Signal  instant       `json:"s,omitempty"`
	Outcome string        `json:"o,omitempty"`
	Counts  counts        `json:"counts,omitempty"`
}

// A mode is how a name is held. A permit is an exclusive hold of its slot.
type mode string

const (
	exclusive mode = ""
	shared    mode = "shared"
	permit    mode = "permit"
)

// key identifies the hold that the event is about.
func (e event) key() string { return fmt.Sprintf("%s#%d", e.Holder, e.ID) }

// counts are the numbers of the table of results, by label.
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
