package wake

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The poller does not end if a waiter came as it was about to.
func TestPollerStaysForANewWaiter(t *testing.T) {
	p := &poller{running: true, watched: map[string]*watch{"x": {}}}
	require.False(t, p.stop())
	require.True(t, p.running)
	clear(p.watched)
	require.True(t, p.stop())
	require.False(t, p.running)
}
