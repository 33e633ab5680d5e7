package mysqllocktest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

// newPayments returns the service of the example, whose bank agrees, and how to send it
// requests.
func newPayments(t *testing.T) (table *mysqllocktest.Table, service *payments, post func(path string) (status int)) {
	table = mysqllocktest.NewTable(t)
	service = &payments{
		locker: table.New(), db: table.DB(),
		bank: func(context.Context, string) error { return nil },
	}
	return table, service, func(path string) int {
		w := httptest.NewRecorder()
		service.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path+"?account=alice", nil))
		return w.Code
	}
}

func TestPayments(t *testing.T) {
	for _, path := range []string{"/charge", "/transfer"} {
		t.Run("free"+path, func(t *testing.T) {
			inBoth(t, func(t *testing.T) {
				table, service, post := newPayments(t)
				require.Equal(t, http.StatusOK, post(path))
				require.NotEmpty(t, table.Committed())
				require.Zero(t, service.locker.Stats().Held)
			})
		})
		t.Run("held"+path, func(t *testing.T) {
			inBoth(t, func(t *testing.T) {
				table, _, post := newPayments(t)
				theirs := acquire(t, table.New(), "account:alice", 0, mysqllock.AutoRenew)
				require.Equal(t, http.StatusConflict, post(path))
				require.Empty(t, table.Committed())
				require.NoError(t, theirs.Unlock())
				require.Equal(t, http.StatusOK, post(path))
			})
		})
		t.Run("unavailable"+path, func(t *testing.T) {
			inBoth(t, func(t *testing.T) {
				table, _, post := newPayments(t)
				table.Unavailable(nil)
				require.Equal(t, http.StatusServiceUnavailable, post(path))
				table.Available()
				require.Equal(t, http.StatusOK, post(path))
			})
		})
		t.Run("one after the other"+path, bubble(func(t *testing.T) {
			table, service, post := newPayments(t)
			inside, most := 0, 0
			service.bank = func(context.Context, string) error {
				inside++
				most = max(most, inside)
				time.Sleep(time.Millisecond)
				inside--
				return nil
			}
			statuses := make(chan int)
			for range 20 {
				go func() { statuses <- post(path) }()
			}
			for range 20 {
				require.Equal(t, http.StatusOK, <-statuses)
			}
			require.Equal(t, 1, most)
			require.GreaterOrEqual(t, len(table.Committed()), 20)
		}))
		t.Run("an outage that outlasts the lease"+path, bubble(func(t *testing.T) {
			table, service, post := newPayments(t)
			service.bank = func(context.Context, string) error {
				table.Unavailable(nil)
				time.Sleep(mysqllock.DefaultLease)
				table.Available()
				return nil
			}
			require.Equal(t, http.StatusInternalServerError, post(path))
			require.Empty(t, table.Committed())
			require.EqualValues(t, 1, service.locker.Stats().Lost)
		}))
	}
	t.Run("lost", func(t *testing.T) {
		inBoth(t, func(t *testing.T) {
			table, service, post := newPayments(t)
			service.bank = func(ctx context.Context, account string) error {
				_, err := service.locker.ForceUnlock(ctx, "account:"+account)
				return err
			}
			require.Equal(t, http.StatusInternalServerError, post("/charge"))
			require.Empty(t, table.Committed())
		})
	})
}

func TestSlowBank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, service, post := newPayments(t)
		other := table.New()
		service.bank = func(ctx context.Context, account string) error {
			time.Sleep(time.Hour) // takes no time in a bubble
			_, err := other.TryLock(ctx, "account:"+account, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "the lock is renewed")
			return nil
		}
		require.Equal(t, http.StatusOK, post("/charge"))
	})
}
