package wake

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A Notifier is a message queue that the processes share.
type Notifier interface {
	Publish(ctx context.Context, name string) error
	Subscribe(ctx context.Context, released func(name string)) error
}

// A publisher sends the names of released locks to a notifier, and receives those that other
// processes released.
type publisher struct {
	env
	outbox     chan string // names to publish
	subscribed sync.Once
	lastWarned warned // about errors of Publish; used by the goroutine of serve, and then by drain
}

// publish announces that names were released.
func (p *publisher) publish(names []string) {
	if p.Notifier == nil {
		return
	}
	p.subscribe()
	for _, name := range names {
		name = store.NameOf(name)
		select {
		case p.outbox <- name:
		default: // the others poll
			p.Log.Debug("mysqllock: release not published, the notifier lags", "name", name)
		}
	}
}

// subscribe starts the goroutines that receive from and publish to the notifier, once.
func (p *publisher) subscribe() {
	if p.Notifier != nil {
		p.subscribed.Do(func() {
			p.group.Go(p.receive)
			p.group.Go(p.serve)
		})
	}
}

func (p *publisher) receive() {
	ctx := p.group.Ctx
	pause := background.Backoff{Delay: time.Second, Max: time.Second}
	for lastWarned := (warned{}); ; {
		if err := p.Notifier.Subscribe(ctx, p.released); err != nil && ctx.Err() == nil {
			p.Log.Log(ctx, lastWarned.level(), "mysqllock: notifier: subscribe", "err", err)
		}
		if !pause.Wait(ctx) {
			return
		}
	}
}

// released wakes the heads of both wait queues of a name: those of its lock and of its semaphore. A
// notifier carries only names.
func (p *publisher) released(name string) {
	p.queues.Wake(name)
	p.queues.Wake(store.QueueName(store.Permit, name))
}

// serve publishes names until the group has stopped.
func (p *publisher) serve() {
	for p.group.Ctx.Err() == nil {
		select {
		case name := <-p.outbox:
			p.send(name)
		case <-p.group.Ctx.Done():
		}
	}
}

// drain publishes the names that are still in outbox after serve has ended.
func (p *publisher) drain() {
	for len(p.outbox) > 0 {
		p.send(<-p.outbox)
	}
}

func (p *publisher) send(name string) {
	ctx, cancel := context.WithTimeout(p.sending, 5*time.Second)
	defer cancel()
	if err := p.Notifier.Publish(ctx, name); err != nil {
		p.Log.Log(ctx, p.lastWarned.level(), "mysqllock: notifier: publish", "name", name, "err", err)
	}
}

// warned is the time of the last warning.
type warned time.Time

// level returns the level for another failure: warn, but at most once a minute; otherwise debug.
func (w *warned) level() slog.Level {
	if now := time.Now(); now.Sub(time.Time(*w)) >= time.Minute {
		*w = warned(now)
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
