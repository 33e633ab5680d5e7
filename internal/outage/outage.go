// Package outage distinguishes a lock that another owner holds from a database that does not
// reply.
package outage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// A statement without a reply is probed after ProbeAfter, and then every ProbeInterval. If the
	// call must end before that, it starts the first probe, unless its statement was sent less
	// than ProbeSoon ago.
	ProbeAfter    = 400 * time.Millisecond
	ProbeInterval = time.Second
	ProbeSoon     = 15 * time.Millisecond
	// If the last reply was that the lock is held, a statement without a reply counts as an
	// outage after replyTimeout; if the last reply was a grant to this process, after
	// replyTimeoutAfterHold.
	replyTimeout          = 3 * ProbeInterval / 2
	replyTimeoutAfterHold = ProbeInterval
	// If the database replies to other statements, a statement without a reply counts as an
	// outage after slowReply.
	slowReply = 500 * time.Millisecond
)

// ErrNoAnswer is the error of a statement that was cut off, or that had no reply when its call
// ended. It does not wrap context.DeadlineExceeded, because the caller set no such time limit.
var (
	ErrNoAnswer     = errors.New("the database did not answer in time")
	errNoConnection = errors.New("the pool had no connection to the database in time")
)

// unanswered returns the error of a statement whose time limit passed before its reply.
func unanswered(err error) error {
	var partly store.PartlySent
	var notSent store.NotSent
	switch {
	case errors.As(err, &partly):
		return store.PartlySent{Err: unanswered(partly.Err)}
	case errors.As(err, new(store.PoolExhausted)):
		return store.NotSent{Err: errNoConnection}
	case errors.As(err, &notSent):
		return store.NotSent{Err: unanswered(notSent.Err)}
	case err == context.DeadlineExceeded || err == context.Canceled:
		return ErrNoAnswer
	default:
		return fmt.Errorf("%w (%v)", ErrNoAnswer, err)
	}
}

// Describe returns err, or that of unanswered if a time limit or a cancellation has cut the
// statement off.
func Describe(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return unanswered(err)
	}
	return err
}

// DescribeIn is Describe for a statement with the context ctx, whose end may also have made the driver return
// another error.
func DescribeIn(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return unanswered(err)
	}
	return Describe(err) // the DSN may have time limits, too
}

// A Detector finds out why statements have no reply.
type Detector struct {
	repo      Prober
	group     *background.Group
	began     time.Time
	lastReply atomic.Int64 // to an attempt or a probe, as the time since began
}

// A Prober reads what blocks the statement of a claim.
type Prober interface {
	Probe(ctx context.Context, c store.Claim) (store.RowState, error)
}

// NewDetector returns a Detector. It must be closed.
func NewDetector(repo Prober) *Detector {
	return &Detector{repo: repo, group: background.NewGroup(), began: time.Now()}
}

// Close ends the probes that Verdict has started, and waits for them.
func (d *Detector) Close() {
	d.group.Stop()
	d.group.Wait()
}

func (d *Detector) replied() { d.lastReply.Store(int64(time.Since(d.began))) }

// repliedAfter reports whether the database has replied to any statement since t.
func (d *Detector) repliedAfter(t time.Time) bool {
	return time.Duration(d.lastReply.Load()) > t.Sub(d.began)
}

// A Waiter is the head of a wait queue. Refuse ends those calls behind it that do not wait, and does not
// block.
type Waiter interface{ Refuse() }

// Evidence is what the last replies have shown about a lock. The waiters of its queue share it.
type Evidence struct {
	mu       sync.Mutex // protects following fields
	head     Waiter     // the waiter that sent the last statement
	claim    store.Claim
	answered bool      // that statement was granted or refused
	asked    time.Time // when it was sent, or was last known to wait for other statements; zero before the first
	known    bool      // the last reply shows that the lock is held, or its row locked
	granted  bool      // that reply was a grant to this process, whose hold may have ended
	failed   error     // the last reply, if it was an error
	probing  bool      // a probe was sent
	probed   bool      // that probe was answered
	lookErr  error     // of the poller's last look for the head
}

// Sent records that the head's statement is about to be sent.
func (e *Evidence) Sent(head Waiter, c store.Claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.head != head {
		e.head, e.lookErr = head, nil
	}
	e.claim, e.answered, e.asked, e.probing, e.probed = c, false, time.Now(), false, false
}

// Failed records an error of the head's statement. It ignores the error of a statement that was
// only cut off, or has waited too long for a lock: a probe finds out whether that is of the row, or
// of the table.
func (e *Evidence) Failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if errors.Is(err, ErrNoAnswer) || store.LockWaitTimedOut(err) || e.known && !e.granted && errors.Is(err, errNoConnection) {
		return
	}
	e.known, e.granted, e.failed = store.Contended(err), false, nil
	if !e.known {
		e.failed = err
	}
}

// Looked records the error, or nil, of a look by the poller for the head.
func (e *Evidence) Looked(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lookErr = err
}

// LookErr returns the error of the poller's last look, or nil if the head has a statement in flight.
func (e *Evidence) LookErr() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.answered {
		return nil
	}
	return e.lookErr
}

// Answered records that the database has granted or refused the head's statement.
func (d *Detector) Answered(e *Evidence, head Waiter, granted bool) {
	d.replied()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.head == head { // otherwise its hold has already ended, or it adopted one
		e.answered, e.known, e.granted, e.failed, e.lookErr = true, true, granted, nil, nil
	}
}

// Probe finds out, with another statement, what blocks the head's statement.
func (d *Detector) Probe(ctx context.Context, e *Evidence, head Waiter, c store.Claim) store.RowState {
	ctx, cancel := context.WithTimeout(ctx, ProbeInterval)
	defer cancel()
	state, err := d.repo.Probe(ctx, c)
	err = DescribeIn(ctx, err)
	d.Probed(e, head, state, err)
	return state
}

// Probed records what blocks the head's statement, as found by a probe or a refusal, unless the statement
// is no longer in flight.
func (d *Detector) Probed(e *Evidence, head Waiter, state store.RowState, err error) {
	if err == nil {
		d.replied()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.head != head || e.answered {
		return
	}
	e.probed = true
	switch {
	case err != nil:
		e.known, e.failed = false, err
	case state == store.RowFree:
		e.failed = nil // the database answers, but not this statement
	default:
		e.known, e.granted, e.failed, e.asked = true, false, nil, time.Now()
		e.lookErr = nil
		if state == store.RowLocked {
			head.Refuse()
		}
	}
}

// A Verdict is why it is unknown whether another owner holds a lock. It is zero if that is known.
type Verdict struct {
	Err     error
	Probing bool // a probe is in flight
	Slow    bool // the database replies to other statements, and has had little time for this one
}

// Verdict judges the evidence about a lock.
func (d *Detector) Verdict(e *Evidence) Verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.lookErr != nil:
		return Verdict{Err: e.lookErr}
	case e.failed != nil:
		return Verdict{Err: e.failed}
	case e.answered:
		return Verdict{}
	case e.asked.IsZero(): // the head is about to send
		return Verdict{Err: ErrNoAnswer, Probing: true}
	case !e.known && (e.probed || d.repliedAfter(e.asked)):
		return Verdict{Err: ErrNoAnswer, Slow: time.Since(e.asked) < slowReply}
	case !e.known && time.Since(e.asked) < 2*ProbeAfter:
		if head, c := e.head, e.claim; !e.probing && time.Since(e.asked) >= ProbeSoon { // before, the reply itself may arrive
			e.probing = true
			d.group.Go(func() { d.Probe(d.group.Ctx, e, head, c) })
		}
		return Verdict{Err: ErrNoAnswer, Probing: true}
	case !e.known, time.Since(e.asked) > replyTimeout, e.granted && time.Since(e.asked) > replyTimeoutAfterHold:
		return Verdict{Err: ErrNoAnswer}
	}
	return Verdict{}
}
