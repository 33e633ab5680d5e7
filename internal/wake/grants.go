package wake

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// grants has the grants that releases of other processes have made to this one. Finding a grant
// changes nothing in its row, so the process remembers each grant that it has found. That way, each
// is taken by one head or given back, and then never found again.
type grants struct {
	mu    sync.Mutex             // protects following fields
	ready map[string]store.Grant // by name: the grants that are found but not taken yet
	found map[string]foundGrant  // by name: the grant that was found last
	swept time.Time              // when old entries were last removed from found
}

type foundGrant struct {
	owner string
	at    time.Time
}

// rememberGrants is how long, at least, a grant is remembered. No statement reports it after
// GrantLease, unless the database's clock was set back.
const rememberGrants = time.Minute

func newGrants() *grants {
	return &grants{ready: map[string]store.Grant{}, found: map[string]foundGrant{}}
}

// remember records that a grant was found, and reports whether it was found for the first time. The
// caller holds mu.
func (g *grants) remember(c store.Claim) bool {
	if g.found[c.Name].owner == c.Owner {
		return false
	}
	now := time.Now()
	if now.Sub(g.swept) > rememberGrants {
		maps.DeleteFunc(g.found, func(_ string, f foundGrant) bool { return now.Sub(f.at) > rememberGrants })
		g.swept = now
	}
	g.found[c.Name] = foundGrant{c.Owner, now}
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

// take takes the grant that is ready for a name, if there is one.
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

// claim takes a grant that the caller has found in its row. It returns false if the grant was taken
// before.
func (g *grants) claim(c store.Claim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ready, ok := g.ready[c.Name]; ok && ready.Claim == c {
		delete(g.ready, c.Name)
		return true
	}
	return g.remember(c)
}
