package httpowner_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	httpowner "github.com/mysqllock/mysqllock/with/http"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// onEach runs a test with a Locker on each kind of server.
func onEach(t *testing.T, test func(t *testing.T, locker *mysqllock.Locker)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, _ := mysqltest.Open(t, kind)
			locker, err := mysqllock.New(db)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, locker.Close()) })
			require.NoError(t, locker.CreateTable(t.Context()))
			test(t, locker)
		})
	}
}

// serve starts a server, and returns how to send it a request.
func serve(t *testing.T, handle http.HandlerFunc) (get func(ctx context.Context) (*http.Response, error)) {
	server := httptest.NewServer(httpowner.Handler(handle))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			return nil, err
		}
		return server.Client().Do(r)
	}
}

// soon receives what is to come without delay, on a machine that is busy.
func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return v
}

// text returns the body of an answer.
func text(t *testing.T, response *http.Response, err error) string {
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// try takes a lock without waiting, and says what came of it.
func try(r *http.Request, locker *mysqllock.Locker) (*mysqllock.Lock, string) {
	lock, err := locker.TryLock(r.Context(), "order:42", 0, mysqllock.AutoRenew)
	if err != nil {
		return nil, "refused"
	}
	return lock, "granted"
}

// Two calls of one request re-enter; two requests at once exclude each other; and
// the next one, on the same connection, is somebody else, even to a lock that was
// left behind.
func TestOwner(t *testing.T) {
	onEach(t, func(t *testing.T, locker *mysqllock.Locker) {
		inside, proceed := make(chan struct{}, 1), make(chan struct{})
		var mu sync.Mutex
		var kept []*mysqllock.Lock
		get := serve(t, func(w http.ResponseWriter, r *http.Request) {
			first, what := try(r, locker)
			if first == nil {
				fmt.Fprint(w, what)
				return
			}
			_, again := try(r, locker)
			mu.Lock()
			kept = append(kept, first) // is not unlocked
			mu.Unlock()
			inside <- struct{}{}
			select {
			case <-proceed:
			case <-r.Context().Done():
			}
			fmt.Fprint(w, what, ", ", again)
		})

		answer := make(chan string)
		go func() {
			response, err := get(t.Context())
			if !assert.NoError(t, err) {
				close(answer)
				return
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			assert.NoError(t, err)
			answer <- string(body)
		}()
		soon(t, inside)
		response, err := get(t.Context())
		require.Equal(t, "refused", text(t, response, err), "another one is at it")
		close(proceed)
		require.Equal(t, "granted, granted", soon(t, answer))
		require.EqualValues(t, 1, locker.Stats().Reentered)
		for range 3 {
			response, err := get(t.Context())
			require.Equal(t, "refused", text(t, response, err), "the lock was left behind")
		}
		require.EqualValues(t, 1, locker.Stats().Reentered)

		mu.Lock()
		defer mu.Unlock()
		require.NoError(t, kept[0].Err(), "the request has ended, the lock has not")
		require.ErrorIs(t, kept[0].Context().Err(), context.Canceled, "but its context has")
	})
}

// A response that is streamed under the lock is one request, and ends with its
// client.
func TestStreaming(t *testing.T) {
	onEach(t, func(t *testing.T, locker *mysqllock.Locker) {
		ended := make(chan error, 1)
		get := serve(t, func(w http.ResponseWriter, r *http.Request) {
			ended <- func() error {
				lock, _ := try(r, locker)
				if lock == nil {
					return fmt.Errorf("refused")
				}
				defer lock.Unlock()
				for part := 1; ; part++ {
					again, what := try(r, locker)
					if again == nil {
						return fmt.Errorf("part %d is refused", part)
					}
					again.Unlock()
					fmt.Fprintln(w, "part", part, what)
					if err := http.NewResponseController(w).Flush(); err != nil {
						return err
					}
					if part == 3 {
						<-lock.Context().Done()
						return context.Cause(lock.Context())
					}
				}
			}()
		})
		ctx, cancel := context.WithCancel(t.Context())
		response, err := get(ctx)
		require.NoError(t, err)
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		for part := 1; part <= 3; part++ {
			require.True(t, lines.Scan(), lines.Err())
			require.Equal(t, fmt.Sprintf("part %d granted", part), lines.Text())
		}
		cancel()
		require.ErrorIs(t, soon(t, ended), context.Canceled)
		lock, err := locker.TryLock(t.Context(), "order:42", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err, "it was given back")
		require.NoError(t, lock.Unlock())
	})
}
