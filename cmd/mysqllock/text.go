package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
)

// shown returns a name or a label that is safe to print: quoted and escaped if it contains
// anything that could mislead the terminal or the reader.
func shown(s string) string {
	if s == "" || strings.TrimSpace(s) != s || strings.ContainsAny(s, `"\`) || printable(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// printable escapes what is not printable: controls, also those of 8 bits, marks
// that change the direction of writing, invalid UTF-8.
func printable(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		text, end := strings.CutSuffix(line, "\n")
		quoted := strconv.Quote(text)
		quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
		b.WriteString(strings.ReplaceAll(quoted, `\\`, `\`))
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// writeJSON writes v with everything escaped that is not printable.
func writeJSON(w io.Writer, v any) error {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, c := range b.String() {
		if c == '\n' || strconv.IsPrint(c) {
			safe.WriteRune(c)
			continue
		}
		for _, unit := range utf16.Encode([]rune{c}) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}

// writeTable aligns rows in columns; the cells must be safe to show.
func writeTable(w io.Writer, rows ...[]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

func rounded(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// A period is a flag with a duration, which may have days (d) and weeks (w) in
// front, and for which words stand for durations.
type period struct {
	time.Duration
	words map[string]time.Duration
}

func (p *period) Set(s string) (err error) {
	if d, ok := p.words[s]; ok {
		p.Duration = d
		return nil
	}
	p.Duration, err = parsePeriod(s)
	return err
}

func (p *period) String() string {
	for word, d := range p.words {
		if d == p.Duration {
			return word
		}
	}
	return p.Duration.String()
}

func (*period) Type() string { return "duration" }

func parsePeriod(s string) (time.Duration, error) {
	rest, hours := s, int64(0)
	for _, unit := range []struct {
		letter string
		hours  int64
	}{{"w", 7 * 24}, {"d", 24}} {
		number, after, found := strings.Cut(rest, unit.letter)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: want 90s, 10m, 12h, 30d or 2w", s)
		}
		hours += int64(n) * unit.hours
		rest = after
	}
	if hours > int64(math.MaxInt64/time.Hour) {
		return 0, fmt.Errorf("%q is more than 292 years", s)
	}
	total := time.Duration(hours) * time.Hour
	if rest == "" && s != "" || rest == "0" && hours == 0 {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || total+d < 0 {
		return 0, fmt.Errorf("%q is no duration: want 90s, 10m, 12h, 30d or 2w", s)
	}
	return total + d, nil
}
