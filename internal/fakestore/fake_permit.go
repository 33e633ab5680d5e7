package fakestore

import (
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A semaphore is what the table has of one. Table.mu protects what it points to.
type semaphore struct {
	table *Table
	queue *row // may be nil
	name  string
	now   time.Time
}

// semaphoreOf returns the semaphore whose wait queue is in the row key. The caller holds mu.
func (t *Table) semaphoreOf(key string, now time.Time) semaphore {
	return semaphore{t, t.rows[key], store.NameOf(key), now}
}

// isSemaphore reports whether a row, if it exists, has the wait queue of a semaphore.
func isSemaphore(key string) bool {
	return key == store.QueueName(store.Permit, store.NameOf(key))
}

// slot returns the row of a slot, which may be nil.
func (m semaphore) slot(i int) *row { return m.table.rows[store.SlotKey(m.name, i)] }

// live returns how many slots are held, and how long, at most, until one of them is free.
func (m semaphore) live() (n int, left time.Duration) {
	for i := 1; i <= store.MaxPermits; i++ {
		if r := m.slot(i); r != nil && m.table.keptUntil(r).After(m.now) {
			if until := m.table.keptUntil(r).Sub(m.now); n == 0 || until < left {
				left = until
			}
			n++
		}
	}
	return n, left
}

// open returns a slot up to the limit that a process may take, or 0. It prefers slots that have
// a row. locked is set if a transaction guards one.
func (m semaphore) open(p store.Process, limit int) (open int, locked bool) {
	if n, _ := m.live(); n >= limit {
		return 0, false
	}
	for i := limit; i > 0; i-- {
		switch r := m.slot(i); {
		case r == nil:
			if m.slot(open) == nil {
				open = i
			}
		case m.table.keptUntil(r).After(m.now) || m.reserved(r, p):
		case r.guards > 0:
			locked = true
		default:
			open = i
		}
	}
	return open, locked
}

// reserved reports whether a free slot is reserved for another process.
func (m semaphore) reserved(r *row, p store.Process) bool {
	if m.queue == nil || is(p)(m.queue.head()) {
		return false
	}
	return (&row{expires: r.expires, released: r.released, waiters: m.queue.waiters}).reserved(m.now)
}

// acquirePermit grants a slot of a semaphore. The caller holds mu.
func (s *Store) acquirePermit(req store.AcquireRequest, now time.Time) (g store.Grant) {
	m := s.table.semaphoreOf(req.Name, now)
	slot, locked := m.open(s.self, req.Limit)
	if slot == 0 {
		g = s.refusePermit(m, req)
		if locked {
			g = store.Grant{Locked: true}
		}
		return g
	}
	req.Name = store.SlotKey(m.name, slot)
	r := m.slot(slot)
	switch {
	case r == nil:
		r = s.table.add(req.Name)
		if m.queue != nil {
			m.queue.remove(s.self)
		}
	case m.queue != nil:
		s.leaveWaitQueue(m.queue)
	}
	g.Token, g.Claim = r.grant(req, now), req.Claim
	delete(s.limits, store.QueueOf(req.Name))
	if n, _ := m.live(); m.queue != nil && n < req.Limit {
		g.Next = m.queue.head()
	}
	return g
}

// refusePermit lets the process join the wait queue, if it asks to. The caller holds mu.
func (s *Store) refusePermit(m semaphore, req store.AcquireRequest) store.Grant {
	if req.EnlistAs != 0 {
		if m.queue == nil {
			m.queue = s.table.add(req.Name)
		}
		m.queue.expires = m.now.AddDate(0, 0, 30)
		s.enlist(m.queue, req)
		if s.limits == nil {
			s.limits = map[string]int{}
		}
		s.limits[req.Name] = req.Limit
	}
	if n, left := m.live(); n >= req.Limit {
		return store.Grant{Remaining: left}
	}
	return store.Grant{Remaining: store.ReservedFor, Reserved: true}
}

// permitOpen reports whether a row is that of a semaphore for which this process waits, and a
// slot that it may take. The caller holds mu.
func (s *Store) permitOpen(key string, now time.Time) bool {
	limit := s.limits[key]
	if limit == 0 {
		return false
	}
	open, locked := s.table.semaphoreOf(key, now).open(s.self, limit)
	return open != 0 || locked
}
