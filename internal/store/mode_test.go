package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestKeys(t *testing.T) {
	p := NewProcess()
	for _, c := range []struct {
		key, name, queue string
		mode             Mode
		slot             int
	}{
		{"a", "a", "a", Exclusive, 0},
		{"a s 1", "a s 1", "a s 1", Exclusive, 0},
		{sharedKey("a", p, 0), "a", "a", Shared, 0},
		{QueueName(Permit, "a"), "a", "a\x00s", Permit, 0},
		{SlotKey("a", 10_000), "a", "a\x00s", Permit, 10_000},
		{SlotKey("é", 7), "é", "é\x00s", Permit, 7},
	} {
		assert.Equal(t, c.name, NameOf(c.key), "%q", c.key)
		assert.Equal(t, c.queue, QueueOf(c.key), "%q", c.key)
		assert.Equal(t, c.mode, ModeOf(c.key), "%q", c.key)
		assert.Equal(t, c.slot, SlotOf(c.key), "%q", c.key)
		assert.LessOrEqual(t, len(c.key), 300)
	}
	assert.Less(t, SlotKey("a", 9), SlotKey("a", 10))
}
