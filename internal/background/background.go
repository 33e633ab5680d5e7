// Package background has groups of background goroutines, and delays between retries.
package background

import (
	"context"
	"sync"
	"time"
)

// A Group is a set of goroutines that end together. They must return soon after Ctx has ended.
type Group struct {
	Ctx    context.Context // ended by Stop
	cancel context.CancelFunc
	mu     sync.Mutex // held by Go and Stop, so that no goroutine is added after Stop
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

// Stop ends Ctx. No goroutine starts afterwards.
func (g *Group) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancel()
}

// Wait waits for the goroutines of a group that was stopped.
func (g *Group) Wait() { g.done.Wait() }

// AfterFunc is [time.AfterFunc], but fn returns the delay after which AfterFunc calls it again, or 0
// to stop.
func AfterFunc(d time.Duration, fn func() (again time.Duration)) *time.Timer {
	var timer *time.Timer
	created := make(chan struct{})
	timer = time.AfterFunc(d, func() {
		<-created
		if again := fn(); again > 0 {
			timer.Reset(again)
		}
	})
	close(created)
	return timer
}

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

// Wait sleeps before the next try. It returns false if ctx ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(b.Next()):
		return true
	}
}

// Notify sends to a channel of capacity 1, unless the channel is full.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
