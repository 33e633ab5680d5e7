// Package background runs goroutines that have an owner, and their delays.
package background

import (
	"context"
	"sync"
	"time"
)

// A Group is the goroutines of one owner. They must end soon after Ctx.
type Group struct {
	Ctx    context.Context // ended by Stop
	cancel context.CancelFunc
	mu     sync.Mutex // held while done is changed: none is added after Stop
	done   sync.WaitGroup
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	g := new(Group)
	g.Ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Go runs fn as a goroutine of the group, unless the group was stopped.
func (g *Group) Go(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Ctx.Err() == nil {
		g.done.Go(fn)
	}
}

// Stop ends Ctx. No goroutine starts after it.
func (g *Group) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancel()
}

// Wait waits for the goroutines of a group that was stopped.
func (g *Group) Wait() { g.done.Wait() }

// A Backoff is a delay between tries, which doubles up to Max.
type Backoff struct {
	Delay time.Duration // the next one
	Max   time.Duration
}

// Next returns the delay before the next try.
func (b *Backoff) Next() time.Duration {
	d := b.Delay
	b.Delay = min(2*d, b.Max)
	return d
}

// Wait sleeps for the delay before the next try. It returns false if ctx ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.Next()):
		return true
	}
}

// Notify sends to a channel of capacity 1, unless it is full.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
