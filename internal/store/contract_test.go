package store_test

import (
	"testing"

	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/storetest"
)

// Each server keeps the contract that the fake keeps.
func TestContract(t *testing.T) {
	store.OnEach(t, storetest.Run[*store.Store])
}
