//go:build !unix

package demo

import "errors"

func startServer(string) (dsn string, stop func(), err error) {
	return "", nil, errors.New("private servers run on Unix only: give a database with -dsn")
}
