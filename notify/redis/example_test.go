package redisnotify_test

import (
	"database/sql"
	"log"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/mysqllock/mysqllock"
	redisnotify "github.com/mysqllock/mysqllock/notify/redis"
)

func Example() {
	db, err := sql.Open("mysql", "user:password@tcp(mysql:3306)/service")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	client := redis.NewClient(&redis.Options{Addr: "redis:6379"})
	defer client.Close()

	notifier, err := redisnotify.New(client)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := mysqllock.New(db, mysqllock.WithNotifier(notifier))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
}
