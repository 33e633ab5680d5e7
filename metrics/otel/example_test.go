package otelmysqllock_test

import (
	"context"
	"database/sql"
	"log"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/mysqllock/mysqllock"
	otelmysqllock "github.com/mysqllock/mysqllock/metrics/otel"
)

func Example() {
	db, err := sql.Open("mysql", "user:password@tcp(mysql:3306)/service")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	traces := sdktrace.NewTracerProvider() // with an exporter; or otel.SetTracerProvider
	meters := sdkmetric.NewMeterProvider() // with a reader; or otel.SetMeterProvider
	defer traces.Shutdown(context.Background())
	defer meters.Shutdown(context.Background())
	opts := []otelmysqllock.Option{
		otelmysqllock.WithTracerProvider(traces),
		otelmysqllock.WithMeterProvider(meters),
		otelmysqllock.WithAttributes(attribute.String("mysqllock.table", "mysqllock")),
	}

	observer, err := otelmysqllock.NewObserver(opts...)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := mysqllock.New(db, mysqllock.WithObserver(observer))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if _, err := otelmysqllock.RegisterStats(locker, opts...); err != nil {
		log.Fatal(err)
	}
}
