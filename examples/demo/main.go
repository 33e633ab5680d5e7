//go:build unix

// Demo shows locks on a real server: several processes use them; one is killed, one is
// paused, and one has its lock taken away.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"syscall"
	"text/tabwriter"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	lease = 2 * time.Second        // of every lock here; renewed each third of it
	poll  = 100 * time.Millisecond // how often waiting processes look
)

var ctx = context.Background()

func main() {
	name := flag.String("process", "", "be this process of the demo")
	lock := flag.String("lock", "", "the lock that the process takes")
	turns := flag.Int("turns", 0, "take so many turns with it; 0: keep it and obey")
	flag.Parse()
	if *name != "" {
		if err := process(*name, *lock, *turns); err != nil {
			log.Fatalf("process %s: %v", *name, err)
		}
		return
	}
	dsn, stop, err := demo.Database()
	if err != nil {
		log.Fatal(err)
	}
	err = run(dsn)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithIdentity("the demo itself"))
	if err != nil {
		return err
	}
	defer locker.Close()
	if err := locker.CreateTable(ctx); err != nil {
		return err
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS demo_turn, demo_entry",
		"CREATE TABLE demo_turn (token BIGINT UNSIGNED PRIMARY KEY, began DATETIME(6) NOT NULL, ended DATETIME(6)) ENGINE = InnoDB",
		"CREATE TABLE demo_entry (id INT AUTO_INCREMENT PRIMARY KEY, process VARCHAR(20) NOT NULL) ENGINE = InnoDB",
	} {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}

	s := newStage(dsn, db, locker)
	defer s.clear()
	for _, scene := range []func(*stage) error{turns, reentry, killed, paused, forced} {
		if err := scene(s); err != nil {
			return err
		}
	}
	return s.summary()
}

func turns(s *stage) error {
	s.scene("1. Four processes take turns with one lock. Each turn has a higher token.")
	const each = 3
	names := []string{"A", "B", "C", "D"}
	type turn struct {
		column int
		token  uint64
		err    error
	}
	taken := make(chan turn)
	for column, name := range names {
		a, err := s.start(name, "demo:turns", each)
		if err != nil {
			return err
		}
		go func() {
			for range each {
				token, err := a.got()
				taken <- turn{column, token, err}
			}
		}()
	}
	fmt.Printf("%8s  %-17s%-17s%-17s%s\n", "", "A", "B", "C", "D")
	for range each * len(names) {
		t := <-taken
		if t.err != nil {
			return t.err
		}
		s.say("%*s%d", 17*t.column, "", t.token)
	}
	s.clear()

	var all, together int
	err := s.db.QueryRow("SELECT COUNT(ended) FROM demo_turn").Scan(&all)
	if err != nil {
		return err
	}
	err = s.db.QueryRow("SELECT COUNT(*) FROM demo_turn a JOIN demo_turn b ON a.token < b.token AND b.began < a.ended").Scan(&together)
	if err != nil {
		return err
	}
	s.check(all == each*len(names), "%d turns were written down in the table demo_turn", all)
	s.check(together == 0, "in it, no turn began before those with lower tokens had ended")
	return nil
}

func reentry(s *stage) error {
	const name = "demo:reentry"
	s.scene("2. A function that is called under the lock takes the same lock.")
	outer, err := s.locker.TryLock(ctx, name, 0, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	sent := s.locker.Stats().Statements
	inner, err := s.locker.TryLock(outer.Context(), name, 0, mysqllock.AutoRenew)
	if err != nil {
		return err
	}
	innerSent := s.locker.Stats().Statements - sent
	s.say("caller    got it       token %d", outer.Token())
	s.say("function  got it too   token %d, statements sent: %d", inner.Token(), innerSent)
	_, strange := s.locker.TryLock(ctx, name, 0, mysqllock.AutoRenew)
	s.say("function without the caller's context: %v", strange)

	if err := inner.Unlock(); err != nil {
		return err
	}
	between, err := s.locker.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if err := outer.Unlock(); err != nil {
		return err
	}
	after, err := s.locker.Inspect(ctx, name)
	if err != nil {
		return err
	}
	s.check(inner.Token() == outer.Token() && innerSent == 0, "the re-entry had the same token and sent nothing")
	s.check(errors.Is(strange, mysqllock.ErrNotAcquired), "without the context of the lock there is no re-entry")
	s.check(between.Held && !after.Held, "the last Unlock released the lock, not the first")
	return nil
}

func killed(s *stage) error {
	const name = "demo:kill"
	s.scene("3. A holder is killed. Its lease of %v ends, and the next one gets the lock.", lease)
	a, aToken, err := s.startHolder("A", name)
	if err != nil {
		return err
	}
	s.say("A  got it          token %d", aToken)
	b, err := s.start("B", name, 0)
	if err != nil {
		return err
	}
	s.say("B  waits")
	time.Sleep(lease + lease/2)
	s.say("A  has held it for longer than its lease, which it renews")
	renewed := !b.reported()
	if err := a.signal(syscall.SIGKILL); err != nil {
		return err
	}
	start := time.Now()
	s.say("A  is killed       kill -KILL %d", a.cmd.Process.Pid)
	bToken, err := b.got()
	if err != nil {
		return err
	}
	waited := time.Since(start)
	s.say("B  got it          token %d, %.1f s after the kill", bToken, waited.Seconds())
	s.check(renewed, "B did not get the lock while A lived")
	s.check(waited < lease+5*time.Second, "B did not wait much longer than the lease of A")
	s.check(bToken > aToken, "its token is higher")
	s.clear()
	return nil
}

func paused(s *stage) error {
	const name = "demo:pause"
	s.scene("4. A holder is paused for longer than its lease, and then goes on.")
	a, aToken, err := s.startHolder("A", name)
	if err != nil {
		return err
	}
	s.say("A  got it          token %d", aToken)
	aWrote, err := a.write()
	if err != nil {
		return err
	}
	s.say("A  writes          guarded transaction: %s", aWrote)
	b, err := s.start("B", name, 0)
	if err != nil {
		return err
	}
	s.say("B  waits")
	if err := a.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.say("A  is paused       kill -STOP %d", a.cmd.Process.Pid)
	bToken, err := b.got()
	if err != nil {
		return err
	}
	s.say("B  got it          token %d", bToken)
	bWrote, err := b.write()
	if err != nil {
		return err
	}
	s.say("B  writes          guarded transaction: %s", bWrote)
	if err := a.signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.say("A  goes on         kill -CONT %d", a.cmd.Process.Pid)
	cause, err := a.lost()
	if err != nil {
		return err
	}
	s.say("A  learns          its context has ended: %s", cause)
	aLate, err := a.write()
	if err != nil {
		return err
	}
	s.say("A  writes          guarded transaction: %s", aLate)

	var entries string
	err = s.db.QueryRow("SELECT GROUP_CONCAT(process ORDER BY id SEPARATOR ', ') FROM demo_entry").Scan(&entries)
	if err != nil {
		return err
	}
	s.check(bToken > aToken, "B took over, with a higher token")
	s.check(cause == "ErrLost", "the context of A ended with ErrLost")
	s.check(aWrote == "committed" && bWrote == "committed" && aLate == "ErrLost" && entries == "A, B",
		"A could write no more once B had the lock: the entries are of %s", entries)
	s.clear()
	return nil
}

func forced(s *stage) error {
	s.scene("5. An operator looks at the table, and takes a lock away from its holder.")
	a, _, err := s.startHolder("A", "demo:force")
	if err != nil {
		return err
	}
	if _, _, err := s.startHolder("B", "demo:other"); err != nil {
		return err
	}
	if err := look(s.db); err != nil {
		return err
	}
	held, err := s.locker.ForceUnlock(ctx, "demo:force")
	if err != nil {
		return err
	}
	start := time.Now()
	s.say("operator   ForceUnlock(\"demo:force\")")
	cause, err := a.lost()
	if err != nil {
		return err
	}
	s.say("A          learns it at its next renewal, %.1f s later: %s", time.Since(start).Seconds(), cause)
	infos, err := s.locker.List(ctx)
	if err != nil {
		return err
	}
	var left []string
	for _, info := range infos {
		left = append(left, info.Name)
	}
	s.check(held && cause == "ErrLost", "A had the lock, and learned that it is lost")
	s.check(fmt.Sprint(left) == "[demo:other]", "still held: %v", left)
	s.clear()
	return nil
}

// look prints the locks that are held, as an operator sees them.
func look(db *sql.DB) error {
	const query = `SELECT l.name_text, IF(l.holder = '', p.holder, l.holder) AS holder, l.token, GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at)) AS expires_at
  FROM mysqllock AS l LEFT JOIN mysqllock AS p ON p.name = CONCAT(x'00', LEFT(l.owner, 19))
  LEFT JOIN mysqllock AS s ON s.name = p.name AND s.session = l.session
  WHERE l.owner <> '' AND (l.expires_at > UTC_TIMESTAMP(6) OR s.expires_at > UTC_TIMESTAMP(6))`
	fmt.Printf("\n  %s;\n", query)
	rows, err := db.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "  name_text\tholder\ttoken\texpires_at")
	for rows.Next() {
		var name, holder, token, expires string
		if err := rows.Scan(&name, &holder, &token, &expires); err != nil {
			return err
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", name, holder, token, expires)
	}
	fmt.Fprintln(table)
	return errors.Join(rows.Err(), table.Flush())
}
