package lease

import "time"

// The methods in this file are for tests in which a timer fires late or early.

// Timer returns the timer of a loss.
func (ls *Lease) Timer() *time.Timer { return ls.timer }

// SessionTimer returns the timer of the session's loss.
func (d *Watchdog) SessionTimer() *time.Timer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session.loss
}
