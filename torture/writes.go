package main

import "fmt"

// A write is a line of a log table, which a transaction writes together with its change. The lines
// are in the order of the commits.
type write struct {
	name  string
	token uint64
	value uint64 // that the transaction wrote to the guarded row, or read there
	read  bool   // whether it only read
}

// A written is the state of a row after the writes so far.
type written struct {
	token, value uint64 // of the last write
	read         uint64 // the highest token of a reader
}

// checkRegister reports writes to the fenced register with a token below one that the register had
// seen. It updates state.
func checkRegister(log []write, state map[string]written) (found []violation) {
	for _, w := range log {
		if last := state[w.name]; w.token < last.token {
			found = append(found, violation{"stale write", w.name, fmt.Sprintf("token %d, after %d", w.token, last.token)})
		}
		state[w.name] = written{token: w.token}
	}
	return found
}

// checkGuarded reports guarded transactions of stale holders, and lost updates. A transaction adds
// one to the value that it read, or only reads if its lock is shared. rows has the values at the
// end. checkGuarded updates state.
func checkGuarded(log []write, rows map[string]uint64, state map[string]written) (found []violation) {
	for _, w := range log {
		last := state[w.name]
		if w.read {
			if w.token < last.token || w.value != last.value {
				found = append(found, violation{"stale read", w.name, fmt.Sprintf("token %d read %d, after token %d had made it %d", w.token, w.value, last.token, last.value)})
			}
			last.read = max(last.read, w.token)
			state[w.name] = last
			continue
		}
		if w.token < max(last.token, last.read) {
			found = append(found, violation{"stale commit", w.name, fmt.Sprintf("token %d, after %d", w.token, max(last.token, last.read))})
		}
		if w.value != last.value+1 {
			found = append(found, violation{"lost update", w.name, fmt.Sprintf("token %d made it %d, after token %d had made it %d", w.token, w.value, last.token, last.value)})
		}
		state[w.name] = written{token: w.token, value: w.value, read: last.read}
	}
	for name, value := range rows {
		if last := state[name]; value != last.value {
			found = append(found, violation{"lost update", name, fmt.Sprintf("it is %d, after token %d had made it %d", value, last.token, last.value)})
		}
	}
	return found
}
