package mysqllock

import (
	"database/sql/driver"
	"reflect"

	"github.com/jmoiron/sqlx"
)

// Flags of the protocol's answers.
const (
	serverInTransaction = 1 << iota
	serverAutocommit
)

// serverStatus returns the flags of the server's last answer on the connection.
// The driver keeps them and does not export them; to ask for what they say would
// cost each statement of the library another one. They are unknown, and returned as
// 0, with another driver, and with one that wraps this one and has no method Raw.
func serverStatus(conn *sqlx.Conn) (flags uint64) {
	conn.Raw(func(raw any) error {
		for {
			wrapper, ok := raw.(interface{ Raw() driver.Conn })
			if !ok {
				break
			}
			raw = wrapper.Raw()
		}
		v := reflect.Indirect(reflect.ValueOf(raw))
		if v.Kind() != reflect.Struct || v.Type().PkgPath() != "github.com/go-sql-driver/mysql" {
			return nil
		}
		if status := v.FieldByName("status"); status.IsValid() && status.CanUint() {
			flags = status.Uint()
		}
		return nil
	})
	return flags
}

// inTransaction reports whether a transaction is open in the session, as far as
// the server's last answer said so.
func inTransaction(conn *sqlx.Conn) bool { return serverStatus(conn)&serverInTransaction != 0 }
