// Package server starts MySQL and MariaDB servers from official Docker images.
package server

import (
	"context"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/mariadb"
	"github.com/testcontainers/testcontainers-go/modules/mysql"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	password     = "mysqllock"
	startTimeout = 2 * time.Minute // from the start of a container until the server accepts queries
)

// Check returns an error that names the remedy if there is no Docker daemon.
func Check(ctx context.Context) error {
	client, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf(`cannot reach a Docker daemon: %w

Start one, so that "docker info" shows a server, or set DOCKER_HOST to its
address. Without Docker, the tests of the root module run on any server: set
MYSQLLOCK_TEST_MYSQL_DSN or MYSQLLOCK_TEST_MARIADB_DSN to its DSN`, err)
	}
	return client.Close()
}

// Kind returns the kind of server, "mysql" or "mariadb", of an image. The image may be on a mirror.
func Kind(image string) (string, error) {
	kind, _, _ := strings.Cut(path.Base(image), ":")
	if kind != "mysql" && kind != "mariadb" {
		return "", fmt.Errorf("%s is not an image of mysql or mariadb", image)
	}
	return kind, nil
}

// Start runs an image, waits until its server accepts queries, and returns the server's DSN, without a
// database. The caller must terminate the container, which may be returned together with an error.
func Start(ctx context.Context, image string) (c testcontainers.Container, dsn string, err error) {
	kind, err := Kind(image)
	if err != nil {
		return nil, "", err
	}
	driver.SetLogger(&driver.NopLogger{}) // do not log that a starting server refuses connections
	opts := []testcontainers.ContainerCustomizer{
		testcontainers.WithTmpfs(map[string]string{"/var/lib/mysql": "rw"}), // where fsync costs nothing
		testcontainers.WithWaitStrategyAndDeadline(startTimeout,
			wait.ForSQL("3306/tcp", "mysql", func(host string, port network.Port) string {
				return rootDSN(net.JoinHostPort(host, port.Port()))
			}).WithStartupTimeout(startTimeout)),
	}
	if kind == "mysql" {
		c, err = mysql.Run(ctx, image, append(opts, mysql.WithUsername("root"), mysql.WithPassword(password))...)
	} else {
		c, err = mariadb.Run(ctx, image, append(opts, mariadb.WithUsername("root"), mariadb.WithPassword(password))...)
	}
	if err != nil {
		return c, "", err
	}
	addr, err := c.PortEndpoint(ctx, "3306/tcp", "")
	return c, rootDSN(addr), err
}

func rootDSN(addr string) string { return "root:" + password + "@tcp(" + addr + ")/" }
