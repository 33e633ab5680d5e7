// Http is a service in which one request at a time ships an order. A request that arrives while
// another one ships the same order waits briefly, and then gets 409. While the database does not
// answer, requests get 503.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
	httpowner "github.com/mysqllock/mysqllock/with/http"
)

const (
	lockWait = 300 * time.Millisecond // how long a request waits for the lock
	work     = time.Second
)

type service struct {
	locker *mysqllock.Locker
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/ship", s.ship)
	// Each request is an owner: whatever it calls with its context can re-enter the
	// locks that it holds.
	return httpowner.Handler(mux)
}

func (s *service) ship(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	// ctx ends with the request, and if the lock is lost.
	err := s.locker.Do(r.Context(), "order:"+id, lockWait, mysqllock.AutoRenew, func(ctx context.Context) error {
		return s.pack(ctx, id)
	})
	if err != nil {
		fail(w, err)
		return
	}
	fmt.Fprintf(w, "order %s shipped\n", id)
}

// fail replies with the status for an error.
func fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, mysqllock.ErrNotAcquired): // another request works on it
		http.Error(w, "the order is being worked on, try again", http.StatusConflict)
	case errors.Is(err, mysqllock.ErrUnavailable): // the database does not answer
		log.Print(err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	default: // also ErrLost: the work may have overlapped with another request's
		log.Print(err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}

// pack also locks the order, because it has other callers. If ship calls it, it
// re-enters the lock, which costs nothing.
func (s *service) pack(ctx context.Context, id string) error {
	return s.locker.Do(ctx, "order:"+id, lockWait, mysqllock.AutoRenew, func(ctx context.Context) error {
		select {
		case <-time.After(work):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func main() {
	listen := flag.String("listen", "", `serve on this address, like ":8080", until interrupted (default: try it out and exit)`)
	flag.Parse()
	dsn, stop, err := demo.Database()
	if err != nil {
		log.Fatal(err)
	}
	err = run(dsn, *listen)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(dsn, listen string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		return err
	}
	defer locker.Close() // releases the locks that are still held
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := locker.CreateTable(ctx); err != nil {
		return err
	}

	address := listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: (&service{locker}).routes(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	if listen == "" {
		err = tryOut("http://"+listener.Addr().String(), locker)
	} else {
		log.Printf("serving on %s", listener.Addr())
		select {
		case err = <-served:
		case <-ctx.Done():
		}
	}
	// Requests in progress end before the locks are released.
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(shutdown))
}

// tryOut sends requests for two orders at once, and checks the answers.
func tryOut(url string, locker *mysqllock.Locker) error {
	start := time.Now()
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		answers  = map[string]map[int]int{"17": {}, "42": {}} // the number of replies by status
		problems error
	)
	for _, id := range []string{"42", "42", "42", "17"} {
		wg.Go(func() {
			status, text, err := post(url + "/orders/" + id + "/ship")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = errors.Join(problems, err)
				return
			}
			answers[id][status]++
			fmt.Printf("%5.2f s  POST /orders/%s/ship  %d  %s", time.Since(start).Seconds(), id, status, text)
		})
	}
	wg.Wait()
	switch {
	case problems != nil:
		return problems
	case answers["42"][200] != 1 || answers["42"][409] != 2:
		return fmt.Errorf("order 42 was answered %v, want 200 once and 409 twice", answers["42"])
	case answers["17"][200] != 1:
		return fmt.Errorf("order 17 was answered %v, want 200", answers["17"])
	}
	stats := locker.Stats()
	fmt.Printf("\nacquired %d, not acquired %d, re-entered %d\n", stats.Acquired, stats.NotAcquired, stats.Reentered)
	if stats.Reentered != 2 {
		return errors.New("pack did not re-enter the lock")
	}
	fmt.Println("ok: order 42 was shipped once, and order 17 did not wait for it")
	return nil
}

func post(url string) (status int, text string, err error) {
	response, err := http.Post(url, "", nil)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
