package fakestore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// CreateTable implements [store.Store.CreateTable]. The table exists.
func (s *Store) CreateTable(ctx context.Context) error {
	_, err := s.execute(ctx, func(time.Time) {})
	return err
}

// info returns what operators see of a row. The caller holds mu.
func (t *Table) info(key string, r *row, now time.Time) store.Info {
	info := store.Info{Name: store.NameOf(key), Shared: store.ModeOf(key) == store.Shared, Slot: store.SlotOf(key), Token: r.token}
	head := t.rows[store.QueueOf(key)]
	if head != nil {
		info.Waiters = len(head.waiters)
	}
	// A lock that may be held shared has an owner while a request claims it. An exclusive hold
	// has a shared one of its process beside it while it is downgraded.
	claimed := r == head && r.mode == inPhase
	hidden := info.Shared && head != nil && head.mode != inPhase && t.keptUntil(head).After(now)
	if until := t.keptUntil(r); until.After(now) && !claimed && !hidden && !isSemaphore(key) {
		info.Held = true
		info.Holder, info.Owner, info.Holds = r.holder, r.owner, r.holds
		if s := t.sessions[store.ProcessOf(r.owner)]; s != nil && r.holder == "" && store.Granted(r.owner) {
			info.Holder = s.label
		}
		info.AcquiredAt = r.acquired.UTC().Truncate(time.Microsecond)
		info.ExpiresAt = until.UTC().Truncate(time.Microsecond)
		info.ExpiresIn = until.Sub(now)
	}
	return info
}

// infos returns what operators see of those rows that are held and whose keys match, in order of
// keys. The caller holds mu.
func (t *Table) infos(now time.Time, match func(key string) bool) (infos []store.Info) {
	for _, key := range slices.Sorted(maps.Keys(t.rows)) {
		if info := t.info(key, t.rows[key], now); info.Held && match(key) {
			infos = append(infos, info)
		}
	}
	return infos
}

// Inspect implements [store.Store.Inspect].
func (s *Store) Inspect(ctx context.Context, name string) (lock store.Info, err error) {
	lock = store.Info{Name: name}
	_, err = s.execute(ctx, func(now time.Time) {
		if r := s.table.rows[name]; r != nil {
			lock = s.table.info(name, r, now)
		}
		lock = store.SumUp(lock, s.table.infos(now, func(key string) bool {
			return store.NameOf(key) == name && store.ModeOf(key) == store.Shared
		}))
	})
	return lock, err
}

// List implements [store.Store.List].
func (s *Store) List(ctx context.Context) (infos []store.Info, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		infos = s.table.infos(now, func(string) bool { return true })
	})
	return infos, err
}

// Permits implements [store.Store.Permits].
func (s *Store) Permits(ctx context.Context, name string) (infos []store.Info, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		infos = s.table.infos(now, func(key string) bool { return store.NameOf(key) == name && store.SlotOf(key) > 0 })
	})
	return infos, err
}

// ForceUnlock implements [store.Store.ForceUnlock].
func (s *Store) ForceUnlock(ctx context.Context, name string) (freed []store.Claim, next store.Process, err error) {
	for {
		var guarded chan struct{} // closed when a transaction ends; nil if none has the name, which is held, under Guard
		_, err = s.execute(ctx, func(now time.Time) {
			if r := s.table.rows[name]; r != nil && r.guards > 0 && (s.table.keptUntil(r).After(now) || s.table.heldShared(name, now)) {
				guarded = s.table.unguarded
				return
			}
			freed, next = s.forceAll(name, now)
		})
		if guarded == nil {
			return freed, next, err
		}
		select {
		case <-guarded:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// forceAll frees a name from all its holders. The caller holds mu.
func (s *Store) forceAll(name string, now time.Time) (freed []store.Claim, next store.Process) {
	head := s.table.rows[name]
	for _, key := range s.table.sharedKeys(name) {
		if r := s.table.rows[key]; s.table.keptUntil(r).After(now) {
			freed = append(freed, store.Claim{Name: key, Owner: r.owner})
			s.force(r, now)
		}
	}
	switch {
	case head == nil:
	case s.table.keptUntil(head).After(now):
		freed = append(freed, store.Claim{Name: name, Owner: head.owner})
		s.force(head, now)
		next = s.headOf(name)
	case len(freed) > 0: // guards of shared holds fail from now on
		head.token = nextToken(head, now)
		head.free(now, "!")
		next = head.head().Listening()
	}
	return freed, next
}

// force frees a row that is held, and informs its holder. The caller holds mu.
func (s *Store) force(r *row, now time.Time) {
	p := store.ProcessOf(r.owner)
	r.token = nextToken(r, now)
	r.free(now, "!")
	if p != 0 && p != s.self {
		s.table.sessionOf(p).forced++
		s.table.signal(p)
	}
}

// Purge implements [store.Store.Purge]. It leaves sessions as they are.
func (s *Store) Purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		for name, r := range s.table.rows {
			used := later(r.expires, r.released)
			if used.After(now.Add(-idle)) || s.table.keptUntil(r).After(now) || r.guards > 0 || r.reserved(now) || r.mode != neverShared && s.table.heldShared(name, now) {
				continue
			}
			delete(s.table.rows, name)
			s.table.highWater = max(s.table.highWater, r.token)
			deleted++
		}
	})
	return deleted, err
}

// Statements implements [store.Store.Statements].
func (s *Store) Statements() int64 { return s.statements.Load() }

// Close implements [store.Store.Close].
func (s *Store) Close() {}
