package wake

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// MaxListen limits a Listen, because the statement blocks ALTER TABLE while it sleeps.
	MaxListen = 5 * time.Second
	// StopTimeout is how long Close waits for a Listen to end after it has signalled it.
	StopTimeout = 300 * time.Millisecond
	// minListenBackoff is the delay after the second failure in succession. It doubles, up to
	// maxListenBackoff, until Listen succeeds.
	minListenBackoff = time.Second
	maxListenBackoff = time.Minute
	// falseWakeBackoff is the delay after more than MaxFalseWakes wake-ups, plus one for each wait
	// queue, without a grant: a proxy may have sent the listener to a replica.
	falseWakeBackoff = 10 * time.Second
	MaxFalseWakes    = 20
)

// A listener waits for signals on its own connection, if signals are enabled. Only the poller's goroutine
// calls listen, granted and close.
type listener struct {
	env
	listening context.Context // of Listen; ends within StopTimeout after Waker.Close

	// Only listen and close use the following fields.
	timedOut bool // the last Listen ended without a wake-up
	backoff  background.Backoff

	open       atomic.Bool  // this process can be signalled
	works      atomic.Bool  // a signal has arrived, and none was missed since
	falseWakes atomic.Int64 // wake-ups since the last grant

	mu           sync.Mutex // protects following fields
	claimedUntil time.Time  // the latest end of a claim; until then, the end of each shared hold signals this process
	retryAt      time.Time  // no Listen begins before this time
}

var errFalseWakes = errors.New("many wake-ups without a grant")

// canListen reports whether this process listens for signals while it waits.
func (l *listener) canListen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Signal && !time.Now().Before(l.retryAt)
}

// Signalled reports whether signals reach this process, as far as it knows: one has arrived, and every
// release that was found since then came with a signal.
func (l *listener) Signalled() bool { return l.works.Load() }

// Claimed records that the head of a name has claimed it, and waits until others no longer hold it
// shared. Signals are not false then.
func (l *listener) Claimed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claimedUntil = time.Now().Add(store.ClaimLease)
}

// listen waits for a signal. After an error the caller must close the listener.
func (l *listener) listen(names []string, d time.Duration) (store.Wakeup, error) {
	l.open.Store(true)
	wakeup, err := l.repo.Listen(l.listening, names, d)
	if wakeup.Forced {
		l.Forced()
		wakeup.Forced = false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if wakeup != (store.Wakeup{}) && !(wakeup.Signalled && time.Now().Before(l.claimedUntil)) {
		if l.falseWakes.Add(1) > int64(MaxFalseWakes+l.queues.Len()) {
			err = errFalseWakes
		}
	}
	switch {
	case wakeup.Signalled:
		l.works.Store(true)
	case wakeup.Name != "" && l.timedOut: // the row was released without a signal
		l.works.Store(false)
	}
	l.timedOut = err == nil && wakeup == (store.Wakeup{})
	if err == nil {
		l.backoff = background.Backoff{}
	} else {
		l.failed(err)
	}
	return wakeup, err
}

// granted reads which of the names releases have granted to this process. It makes new grants ready
// for the heads of these names, and returns the names.
func (l *listener) granted(names []string, g *grants) (ready []string) {
	ctx, cancel := context.WithTimeout(l.listening, signalTimeout)
	defer cancel()
	found, _ := l.repo.Granted(ctx, names) // after an error, a statement of the head finds the grant
	for _, grant := range found {
		if g.put(grant) {
			ready = append(ready, grant.Claim.Name)
		}
	}
	return ready
}

// failed sets the delay until the next Listen after an error. There is no delay after a first failure,
// unless the pool lacks connections, or the server threads. The caller holds mu.
func (l *listener) failed(err error) {
	pause := maxListenBackoff
	switch first := l.backoff.Delay == 0; {
	case err == store.ErrPoolTooSmall, err == store.ErrThreadsLimited:
	case err == errFalseWakes:
		pause = falseWakeBackoff
		l.falseWakes.Store(0)
	default:
		if first {
			l.backoff = background.Backoff{Delay: minListenBackoff, Max: maxListenBackoff}
		}
		if first && err != store.ErrPoolInUse {
			return // the connection may have been broken
		}
		pause = l.backoff.Next()
	}
	l.works.Store(false)
	l.retryAt = time.Now().Add(pause)
}

// close closes the listener's connection.
func (l *listener) close() {
	l.repo.CloseListener()
	l.timedOut = false
	l.open.Store(false)
}
