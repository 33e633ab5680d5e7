// Queue has a process that receives orders, locks each of them, and puts it into a queue with a
// ticket. Another process takes the ticket, ships the order under the same lock, and unlocks it.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

// delivery is how long an order stays locked until a worker begins with it, at most.
const delivery = time.Minute

var role = flag.String("role", "", `be the process that receives orders ("shop") or ships them ("worker")`)

func main() {
	flag.Parse()
	run := parent
	if *role != "" {
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
	defer locker.Close() // detached locks stay held
	ctx := context.Background()
	if *role == "worker" {
		return work(ctx, db, locker)
	}
	for _, order := range []string{"41", "42", "42", "43"} {
		if err := receive(ctx, db, locker, order); err != nil {
			return err
		}
	}
	return nil
}

// receive locks an order and leaves it to a worker.
func receive(ctx context.Context, db *sql.DB, locker *mysqllock.Locker, order string) error {
	ctx = mysqllock.WithHolder(ctx, "shop, order "+order) // for operators
	lock, err := locker.TryLock(ctx, "order:"+order, 0, mysqllock.AutoRenew)
	if errors.Is(err, mysqllock.ErrNotAcquired) {
		fmt.Printf("shop    order %s  refused: it is being shipped\n", order)
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Unlock() // unless it is detached
	ticket, err := lock.Detach(ctx, delivery)
	if err != nil {
		return err
	}
	fmt.Printf("shop    order %s  locked and queued     token %d\n", order, lock.Token())
	// If this fails, or the message is lost, the order is unlocked after delivery.
	_, err = db.ExecContext(ctx, "INSERT INTO example_queue (shipment, ticket) VALUES (?, ?)", order, string(ticket))
	return err
}

// work ships the orders of the queue.
func work(ctx context.Context, db *sql.DB, locker *mysqllock.Locker) error {
	rows, err := db.QueryContext(ctx, "SELECT shipment, ticket FROM example_queue ORDER BY id")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var order, ticket string
		if err := rows.Scan(&order, &ticket); err != nil {
			return err
		}
		if err := ship(ctx, locker, order, mysqllock.Ticket(ticket)); err != nil {
			return err
		}
	}
	return rows.Err()
}

func ship(ctx context.Context, locker *mysqllock.Locker, order string, ticket mysqllock.Ticket) error {
	lock, err := locker.Attach(ctx, ticket, mysqllock.AutoRenew)
	if errors.Is(err, mysqllock.ErrLost) { // the ticket was used before, or is too old
		fmt.Printf("worker  order %s  dropped: it was delivered before\n", order)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("worker  order %s  shipped and unlocked  token %d\n", order, lock.Token())
	return lock.Unlock()
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	if err := demo.Prepare(dsn,
		"DROP TABLE IF EXISTS example_queue",
		"CREATE TABLE example_queue (id INT AUTO_INCREMENT PRIMARY KEY, shipment VARCHAR(20) NOT NULL, ticket TEXT NOT NULL) ENGINE = InnoDB",
	); err != nil {
		return err
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()

	locker, err := mysqllock.New(db)
	if err != nil {
		return err
	}
	defer locker.Close()

	tokens := map[string]int{} // how often each was printed
	line := func(text string) error {
		fmt.Println(text)
		if _, token, found := strings.Cut(text, "token "); found {
			tokens[token]++
		}
		return nil
	}
	if err := demo.Run(dsn, [][]string{{"-role=shop"}}, line); err != nil {
		return err
	}
	if err := inspect(locker, true); err != nil {
		return err
	}
	// Queues deliver some messages twice.
	if _, err := db.Exec("INSERT INTO example_queue (shipment, ticket) SELECT shipment, ticket FROM example_queue WHERE shipment = '42'"); err != nil {
		return err
	}
	if err := demo.Run(dsn, [][]string{{"-role=worker"}}, line); err != nil {
		return err
	}
	if err := inspect(locker, false); err != nil {
		return err
	}
	for token, n := range tokens {
		if n != 2 || len(tokens) != 3 {
			return fmt.Errorf("token %s was seen %d times", token, n)
		}
	}
	fmt.Println("ok: 3 orders were locked by one process and shipped once each by another, with the same token")
	return nil
}

// inspect prints the state of an order's lock, while no process has a handle to it.
func inspect(locker *mysqllock.Locker, held bool) error {
	info, err := locker.Inspect(context.Background(), "order:42")
	if err != nil {
		return err
	}
	if info.Held != held {
		return fmt.Errorf("order:42 held: %t", info.Held)
	}
	if held {
		fmt.Printf("\nthe shop has ended; order:42 stays held, holder: %s\n\n", info.Holder)
	} else {
		fmt.Printf("\norder:42 is free\n")
	}
	return nil
}
