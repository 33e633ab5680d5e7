//go:build unix

package demo

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

const database = "examples"

// startServer starts a private server of a kind, or the first that is found.
func startServer(kind string) (dsn string, stop func(), err error) {
	kinds := mysqltest.Kinds
	if kind != "" {
		kinds = []string{kind}
	}
	var failed []error
	for _, kind := range kinds {
		server, err := mysqltest.Start(kind)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if err := createDatabase(server.DSN("", "")); err != nil {
			server.Stop()
			return "", nil, err
		}
		return server.DSN(database, ""), server.Stop, nil
	}
	return "", nil, fmt.Errorf("%w\nor give a database with -dsn", errors.Join(failed...))
}

func createDatabase(dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec("CREATE DATABASE IF NOT EXISTS " + database)
	return err
}
