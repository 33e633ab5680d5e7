package mysqllocktest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

// A payments service locks the account of each request.
type payments struct {
	locker *mysqllock.Locker
	db     *sql.DB
	bank   func(ctx context.Context, account string) error
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	account := r.URL.Query().Get("account")
	var err error
	if r.URL.Path == "/charge" {
		err = p.charge(r.Context(), account)
	} else {
		err = p.transfer(r.Context(), account)
	}
	switch {
	case errors.Is(err, mysqllock.ErrNotAcquired):
		http.Error(w, "another request changes the account", http.StatusConflict)
	case errors.Is(err, mysqllock.ErrUnavailable):
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	case err != nil: // also ErrLost
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// charge calls the bank under the lock, and records that under Guard.
func (p *payments) charge(ctx context.Context, account string) error {
	lock, err := p.locker.TryLock(ctx, "account:"+account, 100*time.Millisecond, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	ctx = lock.Context()
	if err := p.bank(ctx, account); err != nil {
		return err
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := lock.Guard(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO charge (account) VALUES (?)", account); err != nil {
		return err
	}
	return tx.Commit()
}

// transfer makes two entries in the ledger.
func (p *payments) transfer(ctx context.Context, account string) error {
	return p.locker.DoTx(ctx, "account:"+account, 100*time.Millisecond, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO ledger (account, cents) VALUES (?, ?)", account, -100); err != nil {
			return err
		}
		if err := p.bank(ctx, account); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO ledger (account, cents) VALUES (?, ?)", "shop", 100)
		return err
	})
}

func Example() {
	t := new(test) // stands for the *testing.T of a test
	defer t.end()

	table := mysqllocktest.NewTable(t)
	locker := table.New()
	ok := func(context.Context, string) error { return nil }
	service := &payments{locker: locker, db: table.DB(), bank: ok}
	post := func(path string) int {
		w := httptest.NewRecorder()
		service.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path+"?account=alice", nil))
		return w.Code
	}

	fmt.Println("free:", post("/charge"), post("/transfer"))
	for _, s := range table.Committed() {
		fmt.Println(" ", s.Query, s.Args)
	}

	other := table.New() // another process
	lock, err := other.TryLock(t.Context(), "account:alice", 0, mysqllock.AutoRenew)
	fmt.Println("held elsewhere:", post("/charge"), post("/transfer"), err)
	lock.Unlock()

	table.Unavailable(errors.New("connection refused"))
	fmt.Println("no database:", post("/charge"), post("/transfer"))
	table.Available()

	service.bank = func(ctx context.Context, account string) error {
		_, err := locker.ForceUnlock(ctx, "account:"+account)
		return err
	}
	fmt.Println("lost while the bank is called:", post("/charge"))
	fmt.Println("statements:", len(table.Committed()), "locks held:", locker.Stats().Held)

	// Output:
	// free: 200 200
	//   INSERT INTO charge (account) VALUES (?) [alice]
	//   INSERT INTO ledger (account, cents) VALUES (?, ?) [alice -100]
	//   INSERT INTO ledger (account, cents) VALUES (?, ?) [shop 100]
	// held elsewhere: 409 409 <nil>
	// no database: 503 503
	// lost while the bank is called: 500
	// statements: 3 locks held: 0
}

// A test stands for the *testing.T of a test, which examples do not have.
type test struct {
	testing.TB
	cleanups []func()
}

func (t *test) Helper()                  {}
func (t *test) Context() context.Context { return context.Background() }
func (t *test) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }

func (t *test) end() {
	for i := range t.cleanups {
		t.cleanups[len(t.cleanups)-1-i]()
	}
}
