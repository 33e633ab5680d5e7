package store

import "sync"

// maxHints limits the entries of a hints.
const maxHints = 1024

// hints remembers something about names or sessions that saves a statement, or wakes a call sooner. A
// missing or outdated entry does no other harm. It drops all entries when there are too many.
type hints[K comparable, V any] struct {
	mu     sync.Mutex // protects values
	values map[K]V
}

// get returns the zero value for a key without an entry.
func (h *hints[K, V]) get(key K) V {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.values[key]
}

func (h *hints[K, V]) set(key K, v V) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.values == nil || len(h.values) == maxHints {
		h.values = map[K]V{}
	}
	h.values[key] = v
}

func (h *hints[K, V]) remove(key K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.values, key)
}
