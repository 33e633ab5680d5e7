package leader_test

import (
	"context"
	"database/sql"
	"log"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/leader"
)

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := sql.Open("mysql", "user:password@tcp(mysql:3306)/service?rejectReadOnly=true")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	err = leader.Elect(ctx, locker, "leader:mailer", func(ctx context.Context, lock *mysqllock.Lock) {
		log.Print("leads with token ", lock.Token())
		for ctx.Err() == nil { // until the process ends, or the lock is lost
			select {
			case <-time.After(time.Minute):
				log.Print("sends the queued mail")
			case <-ctx.Done():
			}
		}
	})
	log.Print(err)
}
