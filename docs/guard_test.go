package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mysqllock/mysqllock"
)

var errTooLittle = errors.New("too little money")

// withdraw subtracts cents from an account. It commits only while lock is held.
func withdraw(ctx context.Context, lock *mysqllock.Lock, db *sql.DB, account, cents int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := lock.Guard(ctx, tx); err != nil { // before anything is read
		return err
	}
	if err := subtract(ctx, tx, account, cents); err != nil {
		return err
	}
	return tx.Commit()
}

func subtract(ctx context.Context, tx *sql.Tx, account, cents int) error {
	var balance int
	if err := tx.QueryRowContext(ctx, "SELECT cents FROM account WHERE id = ?", account).Scan(&balance); err != nil {
		return err
	}
	if balance < cents {
		return errTooLittle
	}
	_, err := tx.ExecContext(ctx, "UPDATE account SET cents = ? WHERE id = ?", balance-cents, account)
	return err
}

func Example_doTx() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	db.Exec("CREATE TABLE account (id INT PRIMARY KEY, cents INT NOT NULL)")
	db.Exec("INSERT INTO account VALUES (1, 100)")
	for _, cents := range []int{60, 50} {
		err := locker.DoTx(ctx, "account:1", 3*time.Second, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			return subtract(ctx, tx, 1, cents)
		})
		fmt.Println(err)
	}
	var cents int
	db.QueryRow("SELECT cents FROM account").Scan(&cents)
	fmt.Println(cents)
	// Output:
	// <nil>
	// too little money
	// 40
}

func Example_guard() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	db.Exec("CREATE TABLE account (id INT PRIMARY KEY, cents INT NOT NULL)")
	db.Exec("INSERT INTO account VALUES (1, 100)")
	stale, err := locker.TryLock(ctx, "account:1", 0, 10*time.Minute)
	if err != nil {
		panic(err)
	}
	fmt.Println(withdraw(stale.Context(), stale, db, 1, 10))

	// The lease of a paused process expires, and another process takes the lock.
	db.Exec("UPDATE mysqllock SET expires_at = UTC_TIMESTAMP(6) WHERE name = 'account:1'")
	other, err := mysqllock.New(db)
	if err != nil {
		panic(err)
	}
	defer other.Close()
	err = other.Do(ctx, "account:1", time.Second, mysqllock.AutoRenew, func(context.Context) error {
		// The first holder does not know: it still trusts its lease.
		fmt.Println(stale.Err())
		fmt.Println(errors.Is(withdraw(stale.Context(), stale, db, 1, 10), mysqllock.ErrLost))
		return nil
	})
	fmt.Println(err)
	var cents int
	db.QueryRow("SELECT cents FROM account").Scan(&cents)
	fmt.Println(cents)
	// Output:
	// <nil>
	// <nil>
	// true
	// <nil>
	// 90
}

var errStale = errors.New("a later holder has written")

// put writes a setting, unless a later holder has written it.
func put(ctx context.Context, db *sql.DB, id, value string, token uint64) error {
	res, err := db.ExecContext(ctx, `UPDATE setting SET value = ?, token = ?, writes = writes + 1
WHERE id = ? AND token <= ?`, value, token, id, token)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errStale, err)
	}
	return nil
}

func Example_conditionalWrite() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	db.Exec("CREATE TABLE setting (id VARCHAR(64) PRIMARY KEY, value TEXT, token BIGINT UNSIGNED NOT NULL, writes INT NOT NULL)")
	db.Exec("INSERT INTO setting VALUES ('colour', 'grey', 0, 0)")
	earlier, later := twoTokens(ctx, locker, "setting:colour")

	fmt.Println(put(ctx, db, "colour", "green", later))
	fmt.Println(put(ctx, db, "colour", "green", later)) // the same holder again
	fmt.Println(put(ctx, db, "colour", "red", earlier))
	var colour string
	db.QueryRow("SELECT value FROM setting").Scan(&colour)
	fmt.Println(colour)
	// Output:
	// <nil>
	// <nil>
	// a later holder has written
	// green
}

// publish writes a version of the report under a name that no other holder
// writes to.
func publish(dir string, token uint64, report []byte) error {
	unfinished := filepath.Join(dir, fmt.Sprintf("unfinished-%020d", token))
	if err := os.WriteFile(unfinished, report, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, filepath.Join(dir, fmt.Sprintf("report-%020d", token)))
}

// current is the report of the latest holder that has published one.
func current(dir string) ([]byte, error) {
	names, err := filepath.Glob(filepath.Join(dir, "report-*"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(slices.Max(names))
}

func Example_file() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	dir, err := os.MkdirTemp("", "report-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	earlier, later := twoTokens(ctx, locker, "report")

	fmt.Println(publish(dir, later, []byte("of the later holder")))
	fmt.Println(publish(dir, earlier, []byte("of the earlier one, which was slow")))
	report, err := current(dir)
	fmt.Println(string(report), err)
	// Output:
	// <nil>
	// <nil>
	// of the later holder <nil>
}

// charge charges the card of an order, once.
func charge(ctx context.Context, lock *mysqllock.Lock, api, order string, cents int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/charges", strings.NewReader(strconv.Itoa(cents)))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", "charge:"+order)                    // the same for every caller
	req.Header.Set("Fencing-Token", strconv.FormatUint(lock.Token(), 10)) // for an API that compares it
	if err := lock.Err(); err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err // may have been charged: retry with the same key
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// payments is a third party that supports idempotency keys and tokens.
type payments struct {
	mu      sync.Mutex // guards the fields below
	charged map[string]string
	highest uint64
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	token, _ := strconv.ParseUint(r.Header.Get("Fencing-Token"), 10, 64)
	if token < p.highest {
		http.Error(w, "a later holder was here", http.StatusPreconditionFailed)
		return
	}
	p.highest = token
	p.charged[r.Header.Get("Idempotency-Key")] = r.URL.Path
}

func Example_thirdParty() {
	ctx := context.Background()
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	bank := &payments{charged: map[string]string{}}
	server := httptest.NewServer(bank)
	defer server.Close()

	stale, err := locker.TryLock(ctx, "order:42", 0, 10*time.Minute)
	if err != nil {
		panic(err)
	}
	db.Exec("UPDATE mysqllock SET expires_at = UTC_TIMESTAMP(6) WHERE name = 'order:42'")
	other, err := mysqllock.New(db)
	if err != nil {
		panic(err)
	}
	defer other.Close()
	lock, err := other.TryLock(ctx, "order:42", time.Second, mysqllock.AutoRenew)
	if err != nil {
		panic(err)
	}
	fmt.Println(charge(lock.Context(), lock, server.URL, "42", 1999))
	fmt.Println(charge(lock.Context(), lock, server.URL, "42", 1999)) // as if the reply had been lost
	fmt.Println(charge(stale.Context(), stale, server.URL, "42", 1999))
	fmt.Println(len(bank.charged), "charge")
	// Output:
	// <nil>
	// <nil>
	// 412 Precondition Failed
	// 1 charge
}

// twoTokens returns the tokens of two successive holders.
func twoTokens(ctx context.Context, locker *mysqllock.Locker, name string) (earlier, later uint64) {
	for _, token := range []*uint64{&earlier, &later} {
		lock, err := locker.TryLock(ctx, name, time.Second, mysqllock.AutoRenew)
		if err != nil {
			panic(err)
		}
		*token = lock.Token()
		if err := lock.Unlock(); err != nil {
			panic(err)
		}
	}
	return earlier, later
}
