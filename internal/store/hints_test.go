package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHints(t *testing.T) {
	var h hints[string, int]
	h.remove("a")
	require.Zero(t, h.get("a"))
	h.set("a", 1)
	h.set("a", 2)
	require.Equal(t, 2, h.get("a"))
	h.remove("a")
	require.Zero(t, h.get("a"))
	for i := range 3 * maxHints {
		h.set(fmt.Sprint(i), i)
		require.LessOrEqual(t, len(h.values), maxHints)
		require.Equal(t, i, h.get(fmt.Sprint(i)))
	}
}
