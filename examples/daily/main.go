// Daily runs five hosts, whose clocks differ by hours, and which run a job once a day, from
// 3 o'clock in Berlin on. One of them is killed while it runs the job.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // hosts may have no time zones installed

	_ "github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

const (
	hosts = 5
	days  = 5
	crash = 3 // the day on which the host that runs the job is killed
	zone  = "Europe/Berlin"
)

const createMarks = "CREATE TABLE example_daily (job VARCHAR(100), day DATE, host INT NOT NULL, PRIMARY KEY (job, day)) ENGINE = InnoDB"

var host = flag.Int("host", 0, "be the host of this number")

func main() {
	flag.Parse()
	run := parent
	if *host > 0 {
		run = child
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// A job is done once a day.
type job struct {
	db     *sql.DB
	locker *mysqllock.Locker
	name   string
	zone   *time.Location // whose days count
	hour   int            // from which it is due
	now    func(context.Context, mysqllock.Queryer) (time.Time, error)
	work   func(ctx context.Context, tx *sql.Tx, day string) error
}

// once does the job unless it was done for the day, and returns the day. Each host
// calls it every minute or so, also after a failure; it returns ErrNotAcquired
// while another host does the job.
//
// The database's clock, which is the same for all hosts, determines the day. That the
// job is done is recorded in the transaction of the work, under Guard. So a host reads
// these records only when every earlier holder of the lock has committed or can no
// longer commit, whatever happened to leases and processes. What work does outside the
// database is done again if the host dies before its commit.
func (j *job) once(ctx context.Context) (day string, done bool, err error) {
	lock, err := j.locker.TryLock(ctx, "daily:"+j.name, 0, mysqllock.AutoRenew)
	if err != nil {
		return "", false, err
	}
	defer lock.Unlock()
	ctx = lock.Context()

	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return "", false, err
	}
	defer tx.Rollback()
	if err := lock.Guard(ctx, tx); err != nil {
		return "", false, err
	}
	now, err := j.now(ctx, tx)
	if err != nil {
		return "", false, err
	}
	day = dueDay(now, j.zone, j.hour)
	var marks int
	err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM example_daily WHERE job = ? AND day = ?", j.name, day).Scan(&marks)
	if err != nil || marks > 0 {
		return day, false, err
	}
	if err := j.work(ctx, tx, day); err != nil {
		return day, false, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO example_daily (job, day, host) VALUES (?, ?, ?)", j.name, day, *host)
	if err != nil {
		return day, false, err
	}
	return day, true, tx.Commit()
}

// dueDay returns the last day on which the hour has begun in zone. If clocks are set
// forward past the hour, the next hour counts instead.
func dueDay(now time.Time, zone *time.Location, hour int) string {
	now = now.In(zone)
	year, month, day := now.Date()
	if now.Hour() < hour {
		day--
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

// databaseNow reads the database's clock, independently of the time zone of the session
// and of the settings of the driver.
func databaseNow(ctx context.Context, q mysqllock.Queryer) (time.Time, error) {
	var micros int64
	err := q.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(&micros)
	return time.UnixMicro(micros), err
}

// child is a host. For each line of its input, it checks whether the job is due, and
// prints the result. The line contains by how many hours the demonstration has moved the
// time, and whether the work should be slow.
func child() error {
	db, err := sql.Open("mysql", os.Getenv("MYSQLLOCK_DSN"))
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db, mysqllock.WithLease(time.Second)) // so that the others need not wait long
	if err != nil {
		return err
	}
	defer locker.Close()
	berlin, err := time.LoadLocation(zone)
	if err != nil {
		return err
	}

	var moved time.Duration
	var slow bool
	report := &job{
		db: db, locker: locker, name: "report", zone: berlin, hour: 3,
		now: func(ctx context.Context, q mysqllock.Queryer) (time.Time, error) {
			now, err := databaseNow(ctx, q)
			return now.Add(moved), err
		},
		work: func(ctx context.Context, tx *sql.Tx, day string) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO example_report (day) VALUES (?)", day); err != nil {
				return err
			}
			if slow {
				fmt.Println("at work")
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(time.Minute): // is killed meanwhile
				}
			}
			return nil
		},
	}
	wrong := time.Duration(*host-3) * 7 * time.Hour // this host's clock
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var hours int
		if _, err := fmt.Sscan(in.Text(), &hours, &slow); err != nil {
			return err
		}
		moved = time.Duration(hours) * time.Hour
		day, done, err := report.once(context.Background())
		today := time.Now().Add(moved + wrong).In(berlin).Format("2006-01-02 15:04")
		switch {
		case errors.Is(err, mysqllock.ErrNotAcquired):
			fmt.Println("busy")
		case err != nil:
			return err
		case done:
			fmt.Printf("done %s, where it is %s\n", day, today)
		default:
			fmt.Println("was done", day)
		}
	}
	return nil
}

// A process is a host as the demonstration sees it.
type process struct {
	number int
	cmd    *exec.Cmd
	input  io.WriteCloser
	lines  *bufio.Scanner
}

func startHost(dsn string, number int) (*process, error) {
	p := &process{number: number, cmd: demo.Process(dsn, "-host", strconv.Itoa(number))}
	p.cmd.Stdout = nil
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(output)
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// order makes the host check, with the time moved by some hours.
func (p *process) order(moved int, slow bool) error {
	_, err := fmt.Fprintln(p.input, moved, slow)
	return err
}

func (p *process) answer() (string, error) {
	if !p.lines.Scan() {
		return "", fmt.Errorf("host %d has ended: %w", p.number, errors.Join(p.lines.Err(), p.cmd.Wait()))
	}
	return p.lines.Text(), nil
}

func parent() error {
	dsn, stop, err := demo.Database()
	if err != nil {
		return err
	}
	defer stop()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := mysqllock.New(db)
	if err != nil {
		return err
	}
	defer locker.Close()
	if err := locker.CreateTable(context.Background()); err != nil {
		return err
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS example_daily, example_report",
		createMarks,
		// The results of the job. There is no unique key on day, because the lock must
		// prevent a second result.
		"CREATE TABLE example_report (id INT AUTO_INCREMENT PRIMARY KEY, day DATE NOT NULL) ENGINE = InnoDB",
	} {
		if _, err := db.Exec(statement); err != nil {
			return err
		}
	}

	// The demonstration begins at noon, and advances the time by one day at a time.
	now, err := databaseNow(context.Background(), db)
	if err != nil {
		return err
	}
	berlin, err := time.LoadLocation(zone)
	if err != nil {
		return err
	}
	noon := 12 - now.In(berlin).Hour()

	var running []*process
	defer func() {
		for _, p := range running {
			p.input.Close()
			p.cmd.Wait()
		}
	}()
	for i := range hosts {
		p, err := startHost(dsn, i+1)
		if err != nil {
			return err
		}
		running = append(running, p)
	}
	for day := range days {
		moved := noon + 24*day
		if day+1 == crash {
			if running, err = killOneAtWork(running, moved); err != nil {
				return err
			}
		}
		if err := runDay(running, moved); err != nil {
			return err
		}
	}
	return check(db)
}

// killOneAtWork kills a host after it has begun the work of a day.
func killOneAtWork(running []*process, moved int) ([]*process, error) {
	victim := running[0]
	if err := victim.order(moved, true); err != nil {
		return running, err
	}
	line, err := victim.answer()
	if err != nil {
		return running, err
	}
	if line != "at work" {
		return running, fmt.Errorf("host %d printed %q", victim.number, line)
	}
	victim.cmd.Process.Kill()
	victim.cmd.Wait()
	fmt.Printf("host %d is killed at work\n", victim.number)
	return running[1:], nil
}

// runDay makes all hosts check at the same time, repeatedly until the job is done, and
// then once more.
func runDay(running []*process, moved int) error {
	for done, after := false, false; !after; time.Sleep(50 * time.Millisecond) {
		after = done
		for _, p := range running {
			if err := p.order(moved, false); err != nil {
				return err
			}
		}
		for _, p := range running {
			line, err := p.answer()
			if err != nil {
				return err
			}
			if text, ok := strings.CutPrefix(line, "done "); ok {
				fmt.Printf("host %d does the report of %s\n", p.number, text)
				done = true
			}
		}
	}
	return nil
}

func check(db *sql.DB) error {
	var reports, distinct, marks int
	err := db.QueryRow("SELECT COUNT(*), COUNT(DISTINCT day), (SELECT COUNT(*) FROM example_daily) FROM example_report").
		Scan(&reports, &distinct, &marks)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d reports of %d different days, %d marks\n", reports, distinct, marks)
	if reports != days || distinct != days || marks != days {
		return errors.New("a report is missing or was made twice")
	}
	fmt.Println("ok: one report a day")
	return nil
}
