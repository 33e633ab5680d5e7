// Package integration runs the tests of the root module on the servers of the
// official Docker images.
package integration

import (
	"bytes"
	"flag"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"

	"github.com/mysqllock/mysqllock/integration/server"
)

const (
	allImages   = "mysql:8.0,mysql:8.4,mysql:9,mariadb:10.6,mariadb:10.11,mariadb:11.4,mariadb:11.8"
	stopTimeout = 30 * time.Second // reserved at the end of the test to remove the container
)

var images = flag.String("images", os.Getenv("MYSQLLOCK_TEST_IMAGES"),
	"comma-separated `list` of images; the default is the value of MYSQLLOCK_TEST_IMAGES, or "+allImages)

// dsnVariables are the environment variables in which the tests of the root module expect the DSN of a
// server, by kind.
var dsnVariables = map[string]string{
	"mysql":   "MYSQLLOCK_TEST_MYSQL_DSN",
	"mariadb": "MYSQLLOCK_TEST_MARIADB_DSN",
}

// The images run one after the other, because tests of leases depend on time.
func TestImages(t *testing.T) {
	require.NoError(t, server.Check(t.Context()))
	if *images == "" {
		*images = allImages
	}
	for image := range strings.SplitSeq(*images, ",") {
		t.Run(image, func(t *testing.T) {
			kind, err := server.Kind(image)
			require.NoError(t, err)
			c, dsn, err := server.Start(t.Context(), image)
			testcontainers.CleanupContainer(t, c)
			require.NoError(t, err)
			runSuite(t, kind, dsn)
		})
	}
}

// runSuite runs the subtests of the root module that are named after the kind of the server. Tests that
// need a private server, to kill or pause it, skip themselves.
func runSuite(t *testing.T, kind, dsn string) {
	args := []string{"test", "-v", "-count=1", "-parallel=8", "-run=^Test/^" + kind + "$"}
	if end, ok := t.Deadline(); ok {
		left := max(time.Until(end)-stopTimeout, time.Second)
		args = append(args, "-timeout="+left.String())
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, ".")...)
	cmd.Dir = ".."
	cmd.Env = os.Environ()
	for k, variable := range dsnVariables {
		value := ""
		if k == kind {
			value = dsn
		}
		cmd.Env = append(cmd.Env, variable+"="+value)
	}
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(t.Output(), &out)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Run())

	passed := regexp.MustCompile(`(?m)^ +--- PASS: \w+/`+kind+` `).FindAll(out.Bytes(), -1)
	require.NotEmpty(t, passed, "no subtest %s of the root module has passed", kind)
	t.Logf("%d tests passed", len(passed))
}
