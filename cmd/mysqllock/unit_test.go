package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour,
		"2w": 336 * time.Hour, "1w1d1h1ms": 193*time.Hour + time.Millisecond, "1d12h": 36 * time.Hour,
	} {
		got, err := parsePeriod(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "d", "-1s", "-1d", "1", "1.5d", "30 d", "1d2w", "1d1", "99999999d", "soon", "1d-1h", "15251w", "65535w", "15250w2000d", "106751d2562047h"} {
		_, err := parsePeriod(text)
		require.Error(t, err, text)
	}
}

func TestShown(t *testing.T) {
	for s, want := range map[string]string{
		"":                       `""`,
		"order:42 of Größe 😀":    "order:42 of Größe 😀",
		" x":                     `" x"`,
		"x ":                     `"x "`,
		`"x"`:                    `"\"x\""`,
		`a\b`:                    `"a\\b"`,
		"\x1b[2J":                `"\x1b[2J"`,
		"\u009b2J":               `"\u009b2J"`,
		"a\tb\nc":                `"a\tb\nc"`,
		"\u202eevil":             `"\u202eevil"`,
		"a\u00a0b":               `"a\u00a0b"`,
		"a\u200bb":               `"a\u200bb"`,
		"a\xffb":                 `"a\xffb"`,
		"\U000e0041":             `"\U000e0041"`,
		"$(x) `y` 'z' ; & | > *": "$(x) `y` 'z' ; & | > *",
	} {
		require.Equal(t, want, shown(s), "%q", s)
	}
	require.Equal(t, "a \"b\" \\c\n\\x1b[0m\\td\n", printable("a \"b\" \\c\n\x1b[0m\td\n"))
}

// What MySQL's own programs make of such lines.
func TestParseOptions(t *testing.T) {
	const file = `
# a comment
; another
[other]
user=nobody
[client]
user = app
password=plain
host   =   db.internal
loose-port=3307
quoted="a # b"
single='a "b" # c'
cut = a # b
escaped = a\sb\\c\td\qe\"
inner=a'#'b
lone
  [ mysqllock ]
password="p\"w"
user_name=x
equals=a=b
empty=
`
	options := map[string]string{}
	require.NoError(t, parseOptions(strings.NewReader(file), []string{"client", "mysqllock"}, options, nil))
	require.Equal(t, map[string]string{
		"user": "app", "password": `p"w`, "host": "db.internal", "port": "3307",
		"quoted": "a # b", "single": `a "b" # c`, "cut": "a", "escaped": "a b\\c\td\\qe\"", "inner": "a'#'b",
		"lone": "", "user-name": "x", "equals": "a=b", "empty": "",
	}, options)
	for _, file := range []string{"user=s3cr", "[client\nuser=s3cr", "[client]\n!s3cr x"} {
		err := parseOptions(strings.NewReader(file), []string{"client"}, options, nil)
		require.Error(t, err, file)
		require.NotContains(t, err.Error(), "s3cr")
	}
}

func TestFromOptions(t *testing.T) {
	for dsn, options := range map[string]map[string]string{
		"a:p@tcp(localhost:3306)/d?tls=preferred": {"user": "a", "password": "p", "database": "d"},
		"a@tcp(h:3307)/?tls=preferred":            {"user": "a", "host": "h", "port": "3307", "socket": "/s"},
		"a@tcp([::1]:3306)/?tls=skip-verify":      {"user": "a", "host": "::1", "ssl-mode": "required"},
		"a@tcp(h:3306)/?tls=true":                 {"user": "a", "host": "h", "ssl-mode": "VERIFY_IDENTITY"},
		"a@tcp(h:3306)/?tls=false":                {"user": "a", "host": "h", "ssl-mode": "DISABLED"},
		"a@unix(/s)/d":                            {"user": "a", "host": "localhost", "socket": "/s", "database": "d"},
	} {
		c, err := fromOptions(options)
		require.NoError(t, err)
		require.Equal(t, dsn, c.FormatDSN())
	}
	for _, option := range []string{"ssl-ca", "ssl-verify-server-cert", "tls-version"} {
		_, err := fromOptions(map[string]string{"user": "a", option: "x"})
		require.ErrorContains(t, err, option)
	}
	_, err := fromOptions(map[string]string{"user": "a", "ssl-mode": "VERIFY_CA"})
	require.ErrorContains(t, err, "VERIFY_CA")
}

// However a DSN is cut or garbled, no error repeats the password.
func TestNoErrorShowsThePassword(t *testing.T) {
	for _, dsn := range []string{
		"app:s3cr/et@tcp(db:3306)/app?loc=Nowhere/Land&parseTime=x",
		"app:s3cr?et@unix(/run/s)/app?collation=",
		"app:s3cr@et/@tcp(db:3306)/app?timeout=1",
		"s3cr:s3cr@s3cr(s3cr)/s3cr?tls=x%zz",
	} {
		for i := range len(dsn) {
			for j := i; j <= len(dsn); j++ {
				part := dsn[:i] + dsn[j:]
				if _, err := parseDSN(part); err != nil {
					require.NotContains(t, err.Error(), "s3cr", part)
				}
			}
		}
	}
}

// A flag without a default shows none.
func TestNoEmptyDefault(t *testing.T) {
	for _, c := range newRoot().Commands() {
		require.NotContains(t, c.UsageString(), "(default )", c.Name())
	}
}

// Every command of the examples and of the README is one: its words are parsed.
func TestExamples(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var texts []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		texts = append(texts, block[1])
	}
	require.NotEmpty(t, texts)
	overview, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, line := range regexp.MustCompile("(?m)^    (mysqllock .*)$").FindAllStringSubmatch(string(overview), -1) {
		texts = append(texts, line[1])
	}
	texts = append(texts, newRoot().Example)
	for _, c := range newRoot().Commands() {
		texts = append(texts, c.Example)
	}
	for _, text := range texts {
		words := filepath.Join(t.TempDir(), "words")
		// Only stand-ins run.
		script := `mysqllock() { { for w; do printf '%s\0' "$w"; done; printf '\1\0'; } >>"$words"; }
mysql() { :; }; jq() { :; }; go() { :; };
` + text
		cmd := exec.Command("sh", "-eu", "-c", script)
		cmd.Dir = t.TempDir()
		cmd.Env = []string{"words=" + words, "USER=ann", "PATH=/nowhere", "MYSQLLOCK_TOKEN=1"}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", text, out)
		said, _ := os.ReadFile(words)
		for call := range strings.SplitSeq(strings.TrimSuffix(string(said), "\x01\x00"), "\x01\x00") {
			if call == "" {
				continue
			}
			args := strings.Split(strings.TrimSuffix(call, "\x00"), "\x00")
			root := newRoot()
			root.InitDefaultCompletionCmd(args...)
			c, rest, err := root.Find(args)
			require.NoError(t, err, "%q", args)
			require.NoError(t, c.ParseFlags(rest), "%q", args)
			require.NoError(t, c.ValidateArgs(c.Flags().Args()), "%q", args)
			require.NoError(t, c.ValidateFlagGroups(), "%q", args)
		}
	}
}
