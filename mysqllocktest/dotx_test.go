package mysqllocktest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/mysqllocktest"
)

func TestDoTx(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table := mysqllocktest.NewTable(t)
		locker := table.New()
		update := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE account SET cents = 0")
			return err
		}
		require.NoError(t, locker.DoTx(t.Context(), "x", 0, mysqllock.AutoRenew, nil, update))
		require.Len(t, table.Committed(), 1)

		failed := errors.New("no cover")
		err := locker.DoTx(t.Context(), "x", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(update(ctx, tx), failed)
		})
		require.ErrorIs(t, err, failed)
		err = locker.DoTx(t.Context(), "x", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			defer table.Available()
			defer table.Unavailable(failed)
			return update(ctx, tx)
		})
		require.ErrorContains(t, err, "unknown")
		require.Len(t, table.Committed(), 1)
	})
}

// The transactions of Lockers may run on another database than the table.
func TestUseDB(t *testing.T) {
	inBoth(t, func(t *testing.T) {
		table, accounts := mysqllocktest.NewTable(t), mysqllocktest.NewTable(t)
		table.UseDB(anotherDriver(t, accounts.DB()))
		locker := table.New()
		require.NoError(t, locker.DoTx(t.Context(), "x", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			busy(t, table.New(), "x")
			_, err := tx.ExecContext(ctx, "UPDATE account SET cents = 0")
			return err
		}))
		require.Empty(t, table.Committed())
		require.Len(t, accounts.Committed(), 1)
	})
}
