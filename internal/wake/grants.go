package wake

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// grants has what releases of other processes have granted to this one. To find a grant changes
// nothing in its row, so the process remembers each one that it has found: a grant is taken by one
// head, or given back, and never found again.
type grants struct {
	mu      sync.Mutex             // protects following fields
	ready   map[string]store.Grant // by name: found, and not taken yet
	found   map[string]foundGrant  // by name: the last one
	sweepAt int                    // the size of found at which old ones are forgotten
}

type foundGrant struct {
	owner string
	at    time.Time
}

const (
	// rememberGrants is how long a grant is remembered at least. After GrantLease, no statement
	// reports it, unless the database's clock was set back.
	rememberGrants = time.Minute
	minSweep       = 1024
)

func newGrants() *grants {
	return &grants{ready: map[string]store.Grant{}, found: map[string]foundGrant{}, sweepAt: minSweep}
}

// remember records that a grant was found, and reports whether that is new. The caller holds mu.
func (g *grants) remember(c store.Claim) bool {
	if g.found[c.Name].owner == c.Owner {
		return false
	}
	if len(g.found) >= g.sweepAt {
		for name, f := range g.found {
			if time.Since(f.at) > rememberGrants {
				delete(g.found, name)
			}
		}
		g.sweepAt = max(minSweep, 2*len(g.found))
	}
	g.found[c.Name] = foundGrant{c.Owner, time.Now()}
	return true
}

// put makes a grant ready for the head of its name. It returns false if it was found before.
func (g *grants) put(grant store.Grant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.remember(grant.Claim) {
		return false
	}
	g.ready[grant.Claim.Name] = grant
	return true
}

// take returns the grant of a name that is ready, if there is one.
func (g *grants) take(name string) (grant store.Grant, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	grant, ok = g.ready[name]
	delete(g.ready, name)
	return grant, ok
}

func (g *grants) takeAll() []store.Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.Collect(maps.Values(g.ready))
	clear(g.ready)
	return all
}

// claim takes a grant that the caller has found in its row. mine is false if it was taken before.
// wasReady means that it was found before, but not taken.
func (g *grants) claim(c store.Claim) (mine, wasReady bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ready, ok := g.ready[c.Name]; ok && ready.Claim == c {
		delete(g.ready, c.Name)
		return true, true
	}
	return g.remember(c), false
}
