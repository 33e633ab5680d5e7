// Package mysqllocktest has Lockers without a database, for the unit tests of services that
// use package mysqllock.
//
//	func TestPay(t *testing.T) {
//		locker := mysqllocktest.New(t) // closed when the test ends
//		...
//	}
//
// Waits, leases, re-entry, tokens, loss, handoffs and signals are those of the library: only the
// table is another one, in memory, and it passes the tests of the real one.
//
// A [Table] is for tests that need more than one Locker, or faults. The example tests a payment
// service:
//
//   - [Table.New] returns the Locker of another process. While that holds the lock, the handler
//     replies 409.
//   - [Table.Unavailable] makes the database unavailable. The handler replies 503.
//   - [mysqllock.Locker.ForceUnlock] takes the lock away, while the handler calls the bank. Its Guard
//     returns [mysqllock.ErrLost], and nothing is committed. If the Locker is the handler's own, the
//     loss is immediate. After Guard, ForceUnlock waits for the end of the transaction.
//   - [Table.DB] is a pool for the transactions. [Table.Committed] returns what they changed.
//   - [mysqllock.Locker.Stats] shows whether the handler has unlocked what it locked.
//
// # Time
//
// In a bubble of [testing/synctest], leases end and locks are renewed by its clock, so a test can
// hold a lock for hours. Create the Table or the Locker inside the bubble. Both end before it
// does, because the cleanup functions of a test run there.
//
// # Transactions
//
// [mysqllock.Locker.DoTx] begins its transactions on [Table.DB], where a statement always changes
// one row and a query always finds none. If the service reads what it has written, call
// [Table.UseDB] with a database of the test: a mock, or a database in memory that has the tables of
// the service. A service that begins transactions itself may use any database for them.
//
// # What differs from a server
//
//   - [mysqllock.Lock.Guard] keeps other owners from taking the lock over only until the end of a
//     transaction of [Table.DB]. The end of other transactions is not known to the table: for
//     them, Guard only checks that the lock is held, and sends nothing.
//   - While a transaction has the lock under Guard, a call that waits asks for the lock again and
//     again, where a server would let its statement wait. So it may get it up to half a second
//     after the end of the transaction.
//   - The SQL of the service is not checked, and no statement deadlocks, times out or breaks its
//     connection. [Table.Unavailable] can return such an error.
//   - The Lockers need no connections of [Table.DB]. On a server they share the pool with the
//     transactions, and wait for a connection if it has none left.
//   - A semaphore grants the lowest free slot. On a server, it may be any free one.
//   - The database's clock is that of the process.
//   - The table exists. CreateTable does nothing.
//
// Test SQL, isolation and failover on a real server.
package mysqllocktest
