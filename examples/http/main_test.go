//go:build unix

package main

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func TestFail(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{
		{fmt.Errorf("acquire: %w", mysqllock.ErrNotAcquired), 409},
		{fmt.Errorf("acquire: %w: %w", mysqllock.ErrUnavailable, errors.New("connection refused")), 503},
		{mysqllock.ErrNoTable, 500},
		{errors.Join(errors.New("not packed"), mysqllock.ErrLost), 500},
	} {
		w := httptest.NewRecorder()
		fail(w, c.err)
		require.Equal(t, c.status, w.Code, "%v", c.err)
		require.Equal(t, c.status == 503, w.Header().Get("Retry-After") != "", "%v", c.err)
	}
}

// In an outage every request gets 503, whether it asks the database itself, queues
// behind another one, or times out: 409 would say that another request holds the lock.
func TestOutage(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			proxy := wire.New(t, server.Addr())
			config, err := mysql.ParseDSN(server.DSN(mysqltest.NewDatabase(t, server), ""))
			require.NoError(t, err)
			config.Addr = proxy.Addr()
			db, err := sql.Open("mysql", config.FormatDSN())
			require.NoError(t, err)
			t.Cleanup(func() { db.Close() })
			locker, err := mysqllock.New(db)
			require.NoError(t, err)
			t.Cleanup(func() { locker.Close() })
			require.NoError(t, locker.CreateTable(t.Context()))
			site := httptest.NewServer((&service{locker}).routes())
			t.Cleanup(site.Close)
			ship := func(id string) (int, bool) {
				answer, err := http.Post(site.URL+"/orders/"+id+"/ship", "", nil)
				if !assert.NoError(t, err) {
					return 0, false
				}
				answer.Body.Close()
				return answer.StatusCode, answer.Header.Get("Retry-After") != ""
			}
			all503 := func(when string) {
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() {
						status, retry := ship(fmt.Sprint(i % 4))
						assert.Equal(t, 503, status, when)
						assert.True(t, retry, "Retry-After is missing")
					})
				}
				wg.Wait()
			}

			status, _ := ship("0")
			require.Equal(t, 200, status)
			proxy.BlackHole(true)
			all503("the database does not answer")
			proxy.Refuse(true)
			proxy.Cut()
			all503("the database refuses connections")
			proxy.BlackHole(false)
			proxy.Refuse(false)
			require.Eventually(t, func() bool { status, _ := ship("0"); return status == 200 }, time.Minute, 10*time.Millisecond, "it recovers")
		})
	}
}
