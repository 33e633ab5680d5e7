package storetest

import (
	"testing"
	"testing/synctest"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

func newFake(*testing.T) func(self store.Process) *fakestore.Store {
	table := fakestore.NewTable()
	return func(self store.Process) *fakestore.Store {
		s := table.NewStore(self)
		s.Label = Label
		return s
	}
}

// The fake keeps the contract by the real clock.
func TestFake(t *testing.T) { Run(t, newFake) }

// It does so by the clock of a bubble, too.
func TestFakeInABubble(t *testing.T) {
	for _, c := range contract {
		t.Run(c.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newStore := newFake(t)
				c.test(t, func() *process { return newProcess(t, newStore) })
			})
		})
	}
}
