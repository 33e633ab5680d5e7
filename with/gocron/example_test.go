package gocronlock_test

import (
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	_ "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/mysqllock/mysqllock"
	gocronlock "github.com/mysqllock/mysqllock/with/gocron"
)

func Example() {
	db, err := sql.Open("mysql", "user:password@tcp(mysql:3306)/service")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	scheduler, err := gocron.NewScheduler(
		gocron.WithDistributedLocker(gocronlock.New(locker, 10*time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	defer scheduler.Shutdown() // before locker.Close: jobs under way come to their end
	_, err = scheduler.NewJob(
		gocron.CronJob("*/5 * * * *", false),
		gocron.NewTask(func() { log.Print("on this host") }),
		gocron.WithName("report"), // the same on each host
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, err error) {
			if !errors.Is(err, mysqllock.ErrNotAcquired) { // else it runs on another
				log.Print(job, ": ", err)
			}
		})),
	)
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	select {}
}
