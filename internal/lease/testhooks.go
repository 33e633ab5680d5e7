package lease

// The methods in this file are for tests in which a timer fires late or early.

// StopTimer stops the timer of a loss, and reports whether it was running.
func (ls *Lease) StopTimer() bool { return ls.timer.Stop() }

// StopSessionTimer stops the timer of the session's loss.
func (d *Watchdog) StopSessionTimer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.loss.Stop()
}

// Fire acts as the timer of a lease.
func (d *Watchdog) Fire(ls *Lease) { d.onTimer(ls) }

// Expire ends a lease as if it had expired.
func (d *Watchdog) Expire(ls *Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(ls)
}
