package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A release of a permit locks the row of the wait queue first, like every statement that locks
// both, and waits for a process that joins the queue.
func TestReleaseOfAPartWaitsForItsQueue(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		s, other := all[0], all[1]
		granted(t, s, QueueName(Permit, "x"), time.Minute)
		c := granted(t, s, SlotKey("x", 7), time.Minute)
		tx, err := other.db.BeginTxx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET waiters = '" + other.self.String() + "' WHERE name = " + literal(QueueOf(c.Name)))
		require.NoError(t, err)
		released := make(chan Process, 1)
		go func() {
			_, next, _ := s.Release(ctx, c)
			released <- next
		}()
		select {
		case <-released:
			require.Fail(t, "it did not wait")
		case <-time.After(200 * time.Millisecond):
		}
		var name string
		require.NoError(t, other.db.Get(&name, "SELECT name FROM mysqllock WHERE name = "+literal(c.Name)+" FOR UPDATE SKIP LOCKED"))
		require.NoError(t, tx.Commit())
		require.Equal(t, other.self, <-released)
	})
}
