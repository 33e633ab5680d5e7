package failover_test

import (
	"testing"
	"time"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestUp(t *testing.T) {
	s := time.Now()
	mysqltest.NewGalera(t, 3)
	t.Log(time.Since(s))
}
