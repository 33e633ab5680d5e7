// Stock runs five processes that sell a product of which there are ten pieces. Each sale is a
// transaction under the lock: ten are sold, none twice.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	pieces  = 10
	sellers = 5
)

var seller = flag.Int("seller", 0, "be the seller of this number")

var errSoldOut = errors.New("sold out")

func main() {
	flag.Parse()
	run := parent
	if *seller > 0 {
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
	locker, err := mysqllock.New(db, mysqllock.WithPollInterval(20*time.Millisecond))
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx := context.Background()
	if err := locker.CreateTable(ctx); err != nil { // all five may call it at once
		return err
	}
	for {
		time.Sleep(rand.N(200 * time.Millisecond)) // until a customer comes
		piece, err := sell(ctx, db, locker)
		if errors.Is(err, errSoldOut) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("seller %d sold piece %2d\n", *seller, piece)
	}
}

// sell sells one piece and returns its number, or errSoldOut.
func sell(ctx context.Context, db *sql.DB, locker *mysqllock.Locker) (piece int, err error) {
	lock, err := locker.TryLock(ctx, "product:1", 30*time.Second, mysqllock.AutoRenew)
	if err != nil {
		return 0, err
	}
	defer lock.Unlock()
	ctx = lock.Context()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	// First in the transaction: until it ends, no other process can get the lock, even if
	// the lease of this one ends before.
	if err := lock.Guard(ctx, tx); err != nil {
		return 0, err
	}

	var left int
	if err := tx.QueryRowContext(ctx, "SELECT pieces FROM example_product WHERE id = 1").Scan(&left); err != nil {
		return 0, err
	}
	if left == 0 {
		return 0, errSoldOut
	}
	time.Sleep(20 * time.Millisecond) // the customer pays
	if _, err := tx.ExecContext(ctx, "INSERT INTO example_sale (piece, seller) VALUES (?, ?)", left, *seller); err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE example_product SET pieces = ? WHERE id = 1", left-1); err != nil {
		return 0, err
	}
	return left, tx.Commit()
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, statement := range []string{
		"DROP TABLE IF EXISTS example_product, example_sale",
		"CREATE TABLE example_product (id INT PRIMARY KEY, pieces INT NOT NULL) ENGINE = InnoDB",
		// There is no unique key on piece, because the lock must prevent a second sale.
		"CREATE TABLE example_sale (id INT AUTO_INCREMENT PRIMARY KEY, piece INT NOT NULL, seller INT NOT NULL) ENGINE = InnoDB",
		fmt.Sprintf("INSERT INTO example_product VALUES (1, %d)", pieces),
	} {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}

	var processes []*exec.Cmd
	for i := range sellers {
		p := demo.Process(dsn, fmt.Sprintf("-seller=%d", i+1))
		if err := p.Start(); err != nil {
			return err
		}
		processes = append(processes, p)
	}
	for _, p := range processes {
		err = errors.Join(err, p.Wait())
	}
	if err != nil {
		return err
	}

	var left, sales, sold int
	err = db.QueryRow(`SELECT (SELECT pieces FROM example_product), COUNT(*), COUNT(DISTINCT piece) FROM example_sale`).
		Scan(&left, &sales, &sold)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d sales of %d different pieces, %d left\n", sales, sold, left)
	if sales != pieces || sold != pieces || left != 0 {
		return errors.New("sold too many or too few")
	}
	fmt.Println("ok: each piece was sold once")
	return nil
}
