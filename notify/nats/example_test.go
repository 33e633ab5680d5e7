package natsnotify_test

import (
	"database/sql"
	"log"

	_ "github.com/go-sql-driver/mysql"
	"github.com/nats-io/nats.go"

	"github.com/mysqllock/mysqllock"
	natsnotify "github.com/mysqllock/mysqllock/notify/nats"
)

func Example() {
	db, err := sql.Open("mysql", "user:password@tcp(mysql:3306)/service")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	conn, err := nats.Connect("nats://nats:4222", nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	notifier, err := natsnotify.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := mysqllock.New(db, mysqllock.WithNotifier(notifier))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
}
