// Workers runs eight processes that call a slow service that allows three calls at a time. A semaphore
// admits them: each call has one of three permits.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	workers = 8
	calls   = 3 // of each worker
	limit   = 3 // calls at a time
)

var (
	worker = flag.Int("worker", 0, "be the worker of this number")
	url    = flag.String("url", "", "of the service")
)

func main() {
	flag.Parse()
	run := parent
	if *worker > 0 {
		run = child
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func child() error {
	db, err := sql.Open("mysql", os.Getenv("MYSQLLOCK_DSN"))
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		return err
	}
	defer locker.Close()
	permits := locker.Semaphore("service", limit)
	for range calls {
		if err := call(context.Background(), permits); err != nil {
			return err
		}
	}
	return nil
}

// call calls the service while it holds a permit.
func call(ctx context.Context, permits *mysqllock.Semaphore) error {
	permit, err := permits.TryAcquire(ctx, 30*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer permit.Unlock()

	// Each permit that is held has a different slot, which can represent one of the service's
	// connections, ports or licences.
	request, err := http.NewRequestWithContext(permit.Context(), http.MethodPost, fmt.Sprintf("%s/%d?worker=%d", *url, permit.Slot(), *worker), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("worker %d: the service answers %s", *worker, response.Status)
	}
	return nil
}

// A service serves one call of each slot at a time, and counts.
type service struct {
	mu           sync.Mutex
	running      [limit + 1]bool // by slot
	at           int             // calls at this moment
	served, most int
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	slot, err := strconv.Atoi(r.URL.Path[1:])
	if err != nil || slot < 1 || slot > limit || !s.begin(slot, r.FormValue("worker")) {
		http.Error(w, "no such slot, or it is in use", http.StatusTooManyRequests)
		return
	}
	time.Sleep(100 * time.Millisecond)
	s.end(slot)
}

func (s *service) begin(slot int, worker string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[slot] {
		return false
	}
	s.running[slot] = true
	s.at++
	s.served++
	s.most = max(s.most, s.at)
	fmt.Printf("worker %s calls, slot %d, %d at a time\n", worker, slot, s.at)
	return true
}

func (s *service) end(slot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[slot] = false
	s.at--
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	if err := demo.Prepare(dsn); err != nil {
		return err
	}
	slow := new(service)
	server := httptest.NewServer(slow)
	defer server.Close()

	var args [][]string
	for i := range workers {
		args = append(args, []string{fmt.Sprintf("-worker=%d", i+1), "-url", server.URL})
	}
	if err := demo.Run(dsn, args, nil); err != nil {
		return err
	}
	fmt.Printf("\n%d calls of %d processes, up to %d at a time\n", slow.served, workers, slow.most)
	if slow.served != workers*calls || slow.most != limit {
		return errors.New("too many or too few")
	}
	fmt.Println("ok: the limit was reached and never exceeded")
	return nil
}
