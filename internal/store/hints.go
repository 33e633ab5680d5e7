package store

import "sync"

// maxHints limits the names of a hints.
const maxHints = 1024

// hints remembers something about names that saves a statement, or wakes a call sooner. A missing or
// outdated entry does no other harm. It drops all entries when there are too many.
type hints[V any] struct {
	mu     sync.Mutex // protects values
	values map[string]V
}

// get returns the zero value for a name without an entry.
func (h *hints[V]) get(name string) V {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.values[name]
}

func (h *hints[V]) set(name string, v V) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.values == nil || len(h.values) == maxHints {
		h.values = map[string]V{}
	}
	h.values[name] = v
}

func (h *hints[V]) remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.values, name)
}
