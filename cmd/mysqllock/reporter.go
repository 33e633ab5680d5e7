package main

import (
	"bytes"
	"io"
	"time"
)

// A reporter writes to stderr in the background, and drops lines if that is not read: a full pipe,
// or a terminal after ^S, must delay neither renewals nor the end of a COMMAND whose lock is lost.
type reporter struct {
	lines   chan []byte   // nil is the end
	written chan struct{} // closed when the lines before the end are written
}

// flushTimeout limits Close.
const flushTimeout = time.Second

func newReporter(w io.Writer) *reporter {
	r := &reporter{make(chan []byte, 64), make(chan struct{})}
	go func() {
		defer close(r.written)
		for line := <-r.lines; line != nil; line = <-r.lines {
			w.Write(line)
		}
	}()
	return r
}

// Write never blocks, and returns no error.
func (r *reporter) Write(line []byte) (int, error) {
	select {
	case r.lines <- bytes.Clone(line):
	default:
	}
	return len(line), nil
}

// close waits until the lines are written, for at most flushTimeout. Later lines are lost.
func (r *reporter) close() {
	limit := time.After(flushTimeout)
	select {
	case r.lines <- nil:
	case <-limit:
		return
	}
	select {
	case <-r.written:
	case <-limit:
	}
}
