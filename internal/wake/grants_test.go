package wake

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A grant is taken by one head, or given back, and not found again.
func TestGrantIsFoundOnce(t *testing.T) {
	g := newGrants()
	c := store.Claim{Name: "x", Owner: "first"}
	require.True(t, g.put(store.Grant{Claim: c, Token: 1}))
	require.False(t, g.put(store.Grant{Claim: c, Token: 1}))
	require.True(t, g.claim(c))
	_, ok := g.take("x")
	require.False(t, ok)
	require.False(t, g.claim(c))
	require.False(t, g.put(store.Grant{Claim: c}))

	c.Owner = "second"
	require.True(t, g.put(store.Grant{Claim: c, Token: 2}))
	grant, ok := g.take("x")
	require.True(t, ok)
	require.Equal(t, uint64(2), grant.Token)
	require.False(t, g.claim(c))

	c.Owner = "third"
	require.True(t, g.claim(c))
	require.False(t, g.put(store.Grant{Claim: c}))
}

// Grants are remembered for a minute, and their number is bounded.
func TestFoundGrantsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrants()
		for i := range 100 {
			for j := range 100 {
				require.True(t, g.put(store.Grant{Claim: store.Claim{Name: fmt.Sprint(i, "/", j), Owner: "o"}}))
				_, ok := g.take(fmt.Sprint(i, "/", j))
				require.True(t, ok)
			}
			require.False(t, g.put(store.Grant{Claim: store.Claim{Name: fmt.Sprint(i, "/", 0), Owner: "o"}}))
			time.Sleep(10 * time.Second)
			require.LessOrEqual(t, len(g.found), 1400)
		}
	})
}
