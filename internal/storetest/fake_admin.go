package storetest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// CreateTable implements [store.Store.CreateTable]. The table exists.
func (s *Store) CreateTable(ctx context.Context) error {
	_, err := s.execute(ctx, func(time.Time) {})
	return err
}

// info returns what operators see of a row. The caller holds mu.
func (t *Table) info(name string, r *row, now time.Time) store.Info {
	info := store.Info{Name: name, Token: r.token, Waiters: len(r.waiters)}
	if until := t.keptUntil(r); until.After(now) {
		info.Held = true
		info.Holder, info.Owner, info.Holds = r.holder, r.owner, r.holds
		info.AcquiredAt = r.acquired.UTC().Truncate(time.Microsecond)
		info.ExpiresAt = until.UTC().Truncate(time.Microsecond)
		info.ExpiresIn = until.Sub(now)
	}
	return info
}

// Inspect implements [store.Store.Inspect].
func (s *Store) Inspect(ctx context.Context, name string) (info store.Info, err error) {
	info.Name = name
	_, err = s.execute(ctx, func(now time.Time) {
		if r := s.table.rows[name]; r != nil {
			info = s.table.info(name, r, now)
		}
	})
	return info, err
}

// List implements [store.Store.List].
func (s *Store) List(ctx context.Context) (infos []store.Info, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		for name, r := range s.table.rows {
			if info := s.table.info(name, r, now); info.Held {
				infos = append(infos, info)
			}
		}
	})
	slices.SortFunc(infos, func(a, b store.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos, err
}

// ForceUnlock implements [store.Store.ForceUnlock].
func (s *Store) ForceUnlock(ctx context.Context, name string) (freed []store.Claim, next store.Process, err error) {
	for {
		var guarded chan struct{} // closed when a transaction ends; nil if none has the name under Guard
		_, err = s.execute(ctx, func(now time.Time) {
			if r := s.table.rows[name]; r != nil && r.guards > 0 {
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
		next = head.head()
	case len(freed) > 0: // guards of shared holds fail from now on
		head.token += store.TokenRange
		head.free(now, "!")
		next = head.head()
	}
	return freed, next
}

// force frees a row that is held, and informs its holder. The caller holds mu.
func (s *Store) force(r *row, now time.Time) {
	p := processOf(r.owner)
	r.token += store.TokenRange
	r.free(now, "!")
	if p != s.self {
		s.table.sessionOf(p).forced++
		s.table.signal(p)
	}
}

// Purge implements [store.Store.Purge]. It leaves sessions as they are.
func (s *Store) Purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	_, err = s.execute(ctx, func(now time.Time) {
		for name, r := range s.table.rows {
			used := later(r.expires, r.released)
			if used.After(now.Add(-idle)) || s.table.keptUntil(r).After(now) || r.guards > 0 {
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
