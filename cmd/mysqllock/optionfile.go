package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// readOptions reads an option file of MySQL or MariaDB: the groups [client] and
// the given one.
// (https://dev.mysql.com/doc/refman/8.4/en/option-files.html)
func readOptions(path, group string) (*mysql.Config, error) {
	options := map[string]string{}
	if err := readOptionFile(path, []string{"client", group}, options, 0); err != nil {
		return nil, err
	}
	return fromOptions(options)
}

func readOptionFile(path string, groups []string, options map[string]string, depth int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s can be written by everybody: chmod o-w it", path)
	}
	return parseOptions(f, groups, options, func(directive, operand string) error {
		if depth == 10 {
			return fmt.Errorf("%s: too many levels of %s", path, directive)
		}
		included := []string{operand}
		if directive == "!includedir" {
			if included, err = filepath.Glob(filepath.Join(operand, "*.cnf")); err != nil {
				return err
			}
		}
		for _, path := range included {
			if err := readOptionFile(path, groups, options, depth+1); err != nil {
				return err
			}
		}
		return nil
	})
}

// parseOptions adds the options of the groups, of which the last of a name counts,
// and passes directives on. Errors contain the number of the line, but not its text, which
// may be a password.
func parseOptions(r io.Reader, groups []string, options map[string]string, directive func(name, operand string) error) error {
	lines := bufio.NewScanner(r)
	wanted, grouped := false, false
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '!':
			name, operand, _ := strings.Cut(line, " ")
			if name != "!include" && name != "!includedir" {
				return fmt.Errorf("line %d: only !include and !includedir are known", n)
			}
			if err := directive(name, strings.TrimSpace(operand)); err != nil {
				return err
			}
			continue
		case line[0] == '[':
			name, _, found := strings.Cut(line[1:], "]")
			if !found {
				return fmt.Errorf("line %d: a group is [name]", n)
			}
			wanted, grouped = slices.Contains(groups, strings.TrimSpace(name)), true
			continue
		case !grouped:
			return fmt.Errorf("line %d: an option stands before the first [group]", n)
		case !wanted:
			continue
		}
		name, value, _ := strings.Cut(withoutComment(line), "=")
		name = strings.TrimPrefix(strings.ReplaceAll(strings.TrimSpace(name), "_", "-"), "loose-")
		options[name] = optionValue(strings.TrimSpace(value))
	}
	return lines.Err()
}

// withoutComment cuts off a # outside of quotes, and what follows it.
func withoutComment(line string) string {
	var quote byte
	escaped := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case (c == '\'' || c == '"') && !escaped:
			switch quote {
			case 0:
				quote = c
			case c:
				quote = 0
			}
		case c == '#' && quote == 0:
			return line[:i]
		}
		escaped = quote != 0 && c == '\\' && !escaped
	}
	return line
}

// optionValue removes the quotes around a value and resolves its escapes. Any other
// backslash stays.
func optionValue(s string) string {
	if n := len(s); n >= 2 && (s[0] == '\'' || s[0] == '"') && s[n-1] == s[0] {
		s = s[1 : n-1]
	}
	return strings.NewReplacer(
		`\b`, "\b", `\t`, "\t", `\n`, "\n", `\r`, "\r", `\s`, " ", `\\`, `\`, `\"`, `"`, `\'`, `'`,
	).Replace(s)
}
