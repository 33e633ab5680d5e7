package prommysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	prommysqllock "github.com/mysqllock/mysqllock/metrics/prometheus"
)

// dsn stands for the service's own.
func dsn() string {
	_, dsn := mysqltest.Open(mysqltest.Example{}, "mariadb")
	return dsn
}

// A service with a handler that works under a lock, and an endpoint for Prometheus.
func Example() {
	db, err := sql.Open("mysql", dsn())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	durations := prommysqllock.NewDurations("mysqllock")
	locker, err := mysqllock.New(db, mysqllock.WithObserver(durations.Observer()))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(prommysqllock.NewCollector(locker, "mysqllock"), durations)

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST /orders/{id}/ship", func(w http.ResponseWriter, r *http.Request) {
		lock, err := locker.TryLock(r.Context(), "order:"+r.PathValue("id"), time.Second, mysqllock.AutoRenew)
		switch {
		case errors.Is(err, mysqllock.ErrNotAcquired): // another request holds the lock
			http.Error(w, "it is being worked on, try again", http.StatusConflict)
			return
		case errors.Is(err, mysqllock.ErrUnavailable): // the database does not answer
			w.Header().Set("Retry-After", "1")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		case err != nil:
			log.Print(err)
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		defer lock.Unlock()
		fmt.Fprintln(w, "shipped") // sent when the handler has returned
	})
	if err := locker.CreateTable(context.Background()); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(mux) // http.ListenAndServe in a service
	defer server.Close()

	fmt.Print(fetch("POST", server.URL+"/orders/42/ship"))
	for line := range strings.Lines(fetch("GET", server.URL+"/metrics")) {
		if strings.HasPrefix(line, "mysqllock_acquired_total") || strings.HasPrefix(line, `mysqllock_hold_duration_seconds_count{mode="exclusive"`) {
			fmt.Print(line)
		}
	}
	// Output:
	// shipped
	// mysqllock_acquired_total{table="mysqllock"} 1
	// mysqllock_hold_duration_seconds_count{mode="exclusive",outcome="closed",table="mysqllock"} 0
	// mysqllock_hold_duration_seconds_count{mode="exclusive",outcome="error",table="mysqllock"} 0
	// mysqllock_hold_duration_seconds_count{mode="exclusive",outcome="lost",table="mysqllock"} 0
	// mysqllock_hold_duration_seconds_count{mode="exclusive",outcome="released",table="mysqllock"} 1
}

func fetch(method, url string) string {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		log.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	return string(body)
}
