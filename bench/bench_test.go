package main

import (
	"encoding/xml"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	if runRole() {
		return
	}
	os.Exit(m.Run())
}

// Every part runs and reports every rival. The test checks no times.
func TestQuick(t *testing.T) {
	out := t.TempDir()
	o := options{server: "mysql", parts: regexp.MustCompile(""), quick: true, dir: os.TempDir(), out: out}
	_, missing := mysqltest.FindBroker("redis-server")
	if missing != nil {
		require.ErrorContains(t, run(t.Context(), o), "-without redis", "a rival is missing")
		o.without = []string{"redis"}
	}
	require.NoError(t, run(t.Context(), o))

	text, err := os.ReadFile(filepath.Join(out, "README.md"))
	require.NoError(t, err)
	sections := strings.Split(string(text), "\n## ")
	require.Len(t, sections, 1+1+11+1) // header, goals, parts, rivals
	for _, s := range sections {
		require.NotContains(t, s, "NaN")
	}
	for _, s := range sections[2 : len(sections)-1] {
		require.Regexp(t, `\nNoise:\s+.*a flush took .* ms, a bare UPDATE .* ms, in \d+ samples`, s)
	}
	for _, r := range allRivals() {
		if missing == nil || r != redisLock && r != redSync {
			require.Contains(t, sections[len(sections)-1], "**"+r.name+"**")
		}
	}
	require.Equal(t, missing != nil, strings.Contains(sections[0], "**Not measured, by `-without`: redis"), "a missing rival is named")

	// These counts do not depend on the machine.
	require.Regexp(t, `\*\*mysqllock\*\* \|.*\| \*\*2\*\* \| \*\*2\*\* \|`, sections[2], "statements and round trips")
	require.Regexp(t, `\| two bare UPDATEs \|.*\| 2 \| 2 \|`, sections[2])
	require.Contains(t, sections[len(sections)-2], "0 statements", "re-entry")

	for _, name := range []string{"uncontended", "handoff", "hot", "scaling", "holding"} {
		f, err := os.Open(filepath.Join(out, name+".svg"))
		require.NoError(t, err)
		defer f.Close()
		for d := xml.NewDecoder(f); err == nil; {
			_, err = d.Token()
		}
		require.ErrorIs(t, err, io.EOF, "%s.svg is not well-formed", name)
	}
}

func TestNoise(t *testing.T) {
	require.Zero(t, (&noise{}).factor())
	n := noise{flushes: samples{2, 2, 3}, updates: samples{5, 10, 9}}
	require.EqualValues(t, 2, n.factor(), "the greater of both factors")
}

func TestWithout(t *testing.T) {
	require.NoError(t, options{without: []string{"etcd", "redis"}}.checkServices())
	require.ErrorContains(t, options{without: []string{"redis", "mysql"}}.checkServices(), "unknown")
	require.Empty(t, new(servers).available(redisLock, redSync, etcd))
}

func TestQuantile(t *testing.T) {
	require.Zero(t, samples{}.quantile(0.5))
	s := samples{5, 1, 4, 2, 3}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		require.Equal(t, want, s.quantile(q), q)
	}
	require.Equal(t, samples{5, 1, 4, 2, 3}, s, "unchanged")
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 2: "2", 0.0012: "0.001", 0.123: "0.12", 1.5: "1.50", 12.34: "12.3", 99.96: "100", 1234567.8: "1,234,568", -1234.5: "-1,235",
		math.Inf(1): "–",
	} {
		require.Equal(t, want, digits(x), x)
	}
	require.Equal(t, "–", digits(math.NaN()))
}

// A handoff lasts from a release to the next acquisition, in whatever order the events of the
// workers arrive.
func TestHandoffs(t *testing.T) {
	ch := chain{acquired: samples{30, 10, 19}, released: samples{20, 25}}
	require.Equal(t, samples{0, 5}, ch.handoffs())
	require.Empty(t, (&chain{acquired: samples{1}, released: samples{2}}).handoffs())
}

func TestShares(t *testing.T) {
	h := hotResult{acquisitions: [2]int{30, 10}, time: [2]time.Duration{1, 3}}
	ofAcquisitions, ofTime := h.smallestShares()
	require.Equal(t, []float64{0.25, 0.25}, []float64{ofAcquisitions, ofTime})
}

func TestScale(t *testing.T) {
	s := newScale([]float64{0.3, 40}, 0, 100)
	require.Equal(t, []float64{0.2, 0.5, 1, 2, 5, 10, 20, 50}, rounded(s.ticks()))
	require.InDelta(t, 0, s.at(0.2), 1e-9)
	require.InDelta(t, 100, s.at(50), 1e-9)
	require.Zero(t, s.at(0), "at the low end")
	require.Equal(t, []float64{1, 10, 100, 1000}, rounded(newScale([]float64{1, 1000}, 0, 1).ticks()))
}

func rounded(values []float64) []float64 {
	for i, v := range values {
		values[i] = math.Round(v*1000) / 1000
	}
	return values
}

// A link delays what it forwards, and counts round trips.
func TestLink(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer echo.Close()
	go func() {
		if conn, err := echo.Accept(); err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	const delay = 5 * time.Millisecond
	l, err := newLink(echo.Addr().String(), delay)
	require.NoError(t, err)
	defer l.close()
	conn, err := net.Dial("tcp", l.addr())
	require.NoError(t, err)
	defer conn.Close()
	for range 3 {
		start := time.Now()
		_, err := io.WriteString(conn, "ping")
		require.NoError(t, err)
		answer := make([]byte, 4)
		_, err = io.ReadFull(conn, answer)
		require.NoError(t, err)
		require.Equal(t, "ping", string(answer))
		require.GreaterOrEqual(t, time.Since(start), 2*delay)
	}
	require.EqualValues(t, 3, l.roundTrips.Load())
}
