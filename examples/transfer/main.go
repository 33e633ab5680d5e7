// Transfer runs four processes that transfer money between two accounts, two of them in each direction.
// Each transfer locks both accounts and is one transaction.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	tellers   = 4
	transfers = 8 // of each teller
	sum       = 200
)

var teller = flag.Int("teller", 0, "be the teller of this number")

func main() {
	flag.Parse()
	run := parent
	if *teller > 0 {
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
	from, to := "a", "b"
	if *teller%2 == 0 {
		from, to = to, from
	}
	for i := range transfers {
		if err := transfer(context.Background(), locker, from, to, 1+i); err != nil {
			return err
		}
	}
	return nil
}

func transfer(ctx context.Context, locker *mysqllock.Locker, from, to string, amount int) error {
	// Whatever the order of the names, two transfers never wait for each other.
	names := []string{"account:" + from, "account:" + to}
	locks, err := locker.TryLockAll(ctx, names, 30*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	defer locks.Unlock()

	// DoTx re-enters the first lock and puts the transaction under it. The transaction must be
	// under the other lock, too.
	return locker.DoTx(locks.Context(), names[0], 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := locks.Lock(names[1]).Guard(ctx, tx); err != nil {
			return err
		}
		return move(ctx, tx, from, to, amount)
	})
}

// move reads both balances and writes new ones: without the locks, some would be overwritten.
func move(ctx context.Context, tx *sql.Tx, from, to string, amount int) error {
	balances := map[string]int{}
	for _, id := range []string{from, to} {
		var balance int
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM example_account WHERE id = ?", id).Scan(&balance); err != nil {
			return err
		}
		balances[id] = balance
	}
	time.Sleep(5 * time.Millisecond) // is the customer solvent?
	balances[from] -= amount
	balances[to] += amount
	for id, balance := range balances {
		if _, err := tx.ExecContext(ctx, "UPDATE example_account SET balance = ? WHERE id = ?", balance, id); err != nil {
			return err
		}
	}
	fmt.Printf("teller %d: %d from %s to %s: %3d + %3d = %d\n", *teller, amount, from, to, balances["a"], balances["b"], balances["a"]+balances["b"])
	return nil
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	if err := demo.Prepare(dsn,
		"DROP TABLE IF EXISTS example_account",
		"CREATE TABLE example_account (id VARCHAR(10) PRIMARY KEY, balance INT NOT NULL) ENGINE = InnoDB",
		fmt.Sprintf("INSERT INTO example_account VALUES ('a', %d), ('b', %d)", sum/2, sum/2),
	); err != nil {
		return err
	}
	var args [][]string
	for i := range tellers {
		args = append(args, []string{fmt.Sprintf("-teller=%d", i+1)})
	}
	done := 0
	err = demo.Run(dsn, args, func(line string) error {
		done++
		fmt.Println(line)
		return nil
	})
	if err != nil {
		return err
	}
	return check(dsn, done)
}

// check compares the balances with those before. As many amounts went to each side.
func check(dsn string, done int) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	var a, b int
	err = db.QueryRow("SELECT SUM(IF(id = 'a', balance, 0)), SUM(IF(id = 'b', balance, 0)) FROM example_account").Scan(&a, &b)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d transfers, %d + %d = %d\n", done, a, b, a+b)
	if done != tellers*transfers || a != sum/2 || b != sum/2 {
		return errors.New("money was lost or made")
	}
	fmt.Println("ok: no transfer was lost, and none waited for another for ever")
	return nil
}
