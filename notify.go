package mysqllock

import "context"

// A Notifier publishes releases to other processes, through a message queue that they share. A
// message only makes waiters check the row sooner. One that is lost, late, duplicated or false
// costs time, but never correctness. Both methods must return soon after ctx has ended, because
// [Locker.Close] waits for them.
type Notifier interface {
	// Publish announces that name was released. It runs in the background after each
	// release; ctx limits it to a few seconds.
	Publish(ctx context.Context, name string) error
	// Subscribe calls released for every name that any process publishes, and
	// blocks until ctx ends. If it returns sooner, it is called again after a
	// second.
	Subscribe(ctx context.Context, released func(name string)) error
}
