package docs_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/lease"
)

// importAll ends by itself if a part takes longer than a minute.
func importAll(ctx context.Context, locker *mysqllock.Locker, parts []string, load func(context.Context, string) error) error {
	lock, err := locker.TryLock(ctx, "import", 0, time.Minute)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	for _, part := range parts {
		if err := lock.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if err := load(lock.Context(), part); err != nil {
			return err
		}
	}
	return nil
}

func Example_fixedLease() {
	locker, db := open()
	defer db.Close()
	defer locker.Close()
	err := importAll(context.Background(), locker, []string{"a", "b"}, func(ctx context.Context, part string) error {
		fmt.Println(part)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// a
	// b
	// <nil>
}

// The table of leases follows from the code: renewed each third, trusted up to the margin.
func TestLeaseTable(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| \**([\d.]+ (?:s|min))\** \| \**([\d.]+) s\** \| \**([\d.]+) to ([\d.]+) s\** \| \**([\d.]+) s\** \| \**([\d,]+)\** \|$`).
		FindAllStringSubmatch(read(t, "docs", "choosing.md"), -1)
	require.Len(t, rows, 4)
	for _, row := range rows {
		length, err := time.ParseDuration(strings.NewReplacer(" ", "", "min", "m").Replace(row[1]))
		require.NoError(t, err)
		whole := length.Seconds()
		for i, want := range map[int]float64{
			2: whole / 3,
			3: whole * 2 / 3,
			4: whole,
			5: whole*2/3 - lease.Margin(length).Seconds(),
			6: 4 * 3600 / whole, // three renewals, one count of the rows
		} {
			got, err := strconv.ParseFloat(strings.ReplaceAll(row[i], ",", ""), 64)
			require.NoError(t, err)
			require.InEpsilon(t, want, got, 0.06, "%s: column %d", row[1], i)
		}
	}
}
