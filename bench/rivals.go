package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/mysqllock/mysqllock"
)

// A rival is one way to have a lock. The body that is measured is the same for all.
type rival struct {
	name  string
	note  string // how it is used here
	ours  bool
	mysql bool // its work is done by the MySQL server
	slow  bool // a waiter looks once a second
	open  func(s sites) (client, error)
}

type client interface {
	// acquire waits until it has the lock or ctx ends.
	acquire(ctx context.Context, name string) (release func() error, err error)
	close()
}

var (
	ourselves = &rival{
		name: "mysqllock", ours: true, mysql: true,
		note: "as `New` makes it; lease `AutoRenew`",
		open: func(s sites) (client, error) { return openOurs(s) },
	}
	polling = &rival{
		name: "mysqllock, polling", ours: true, mysql: true, slow: true,
		note: "`WithoutSignal()`: waiters in other processes look once a second",
		open: func(s sites) (client, error) { return openOurs(s, mysqllock.WithoutSignal()) },
	}
	alone = &rival{
		name: "mysqllock, no handoff", ours: true, mysql: true,
		note: "`WithoutHandoff()`: every turn is taken from the database",
		open: func(s sites) (client, error) { return openOurs(s, mysqllock.WithoutHandoff()) },
	}
	bare = &rival{
		name: "two bare UPDATEs", mysql: true,
		note: "no lock, but the limit for one that is kept in a row: two single-row UPDATEs by primary key, in autocommit, as text, each under a context that ends it after 3 s, as all statements of the library are",
		open: openBare,
	}
	prepared = &rival{
		name: "the same, prepared", mysql: true,
		note: "two bare UPDATEs by a prepared statement, without a context that can end: less work for server and driver, but on a dead connection it hangs for good",
		open: openPrepared,
	}
	getLock = &rival{
		name: "GET_LOCK", mysql: true,
		note: "`GET_LOCK` and `RELEASE_LOCK`, as text, on a pinned connection for each lock and waiter; nothing is durable",
		open: openGetLock,
	}
	handmade = &rival{
		name: "hand-made table", mysql: true, slow: true,
		note: "the usual one: `BeginTx`, `SELECT … FOR UPDATE`, `UPDATE` (or `INSERT`), `Commit`; release is an `UPDATE` by owner; `interpolateParams=true`, without which each statement costs a round trip more; if the lock is held, again after 1 s",
		open: openHandmade,
	}
	redisLock = &rival{
		name: "redislock",
		note: "bsm/redislock, TTL 30 s, `LinearBackoff(100 ms)` as in its README (by default it does not retry)",
		open: openRedisLock,
	}
	redSync = &rival{
		name: "redsync",
		note: "go-redsync/redsync on one Redis, defaults (tries again after 50 to 250 ms), `LockContext` again when its tries are used up",
		open: openRedSync,
	}
	etcd = &rival{
		name: "etcd",
		note: "`concurrency.Mutex`, a session for each goroutine that holds or waits, as its documentation demands. Its server tells a waiter within 100 ms (its watchResyncPeriod) of a release that came soon after the wait began",
		open: openEtcd,
	}
)

// present are those of the rivals whose servers run.
func (s *servers) present(rivals ...*rival) []*rival {
	return slices.DeleteFunc(rivals, func(r *rival) bool {
		return s.Redis == "" && (r == redisLock || r == redSync) || s.Etcd == "" && r == etcd
	})
}

// poolSize is that of every pool of connections, but where a lock needs one of its own.
const poolSize = 64

func openDB(s sites, interpolate bool) (*sql.DB, error) {
	c, err := mysql.ParseDSN(s.DSN)
	if err != nil {
		return nil, err
	}
	c.InterpolateParams = interpolate
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return db, nil
}

type ourClient struct {
	db     *sql.DB
	locker *mysqllock.Locker
}

func openOurs(s sites, opts ...mysqllock.Option) (*ourClient, error) {
	db, err := openDB(s, false)
	if err != nil {
		return nil, err
	}
	locker, err := mysqllock.New(db, opts...)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &ourClient{db, locker}, nil
}

func (c *ourClient) acquire(ctx context.Context, name string) (func() error, error) {
	lock, err := c.locker.Lock(ctx, name, mysqllock.AutoRenew)
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

func (c *ourClient) close() {
	c.locker.Close()
	c.db.Close()
}

type bareClient struct{ db *sql.DB }

func openBare(s sites) (client, error) {
	db, err := openDB(s, false)
	return bareClient{db}, err
}

func (c bareClient) acquire(_ context.Context, name string) (func() error, error) {
	return twice(c.db, name, func() (sql.Result, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		return c.db.ExecContext(ctx, "UPDATE bare SET n = n + 1 WHERE name = '"+name+"'")
	})
}

func (c bareClient) close() { c.db.Close() }

// twice executes an UPDATE of the row of name, and returns what executes it again.
func twice(db *sql.DB, name string, update func() (sql.Result, error)) (func() error, error) {
	res, err := update()
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 { // the first time ever
		if _, err = db.Exec("INSERT INTO bare VALUES ('" + name + "', 1)"); err != nil {
			return nil, err
		}
	}
	return func() error {
		_, err := update()
		return err
	}, nil
}

type preparedClient struct {
	db     *sql.DB
	update *sql.Stmt
}

func openPrepared(s sites) (client, error) {
	db, err := openDB(s, false)
	if err != nil {
		return nil, err
	}
	update, err := db.Prepare("UPDATE bare SET n = n + 1 WHERE name = ?")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return preparedClient{db, update}, nil
}

func (c preparedClient) acquire(_ context.Context, name string) (func() error, error) {
	return twice(c.db, name, func() (sql.Result, error) { return c.update.Exec(name) })
}

func (c preparedClient) close() {
	c.update.Close()
	c.db.Close()
}

type getLockClient struct{ db *sql.DB }

func openGetLock(s sites) (client, error) {
	db, err := openDB(s, false)
	if err == nil {
		db.SetMaxOpenConns(0)
		db.SetMaxIdleConns(1000)
	}
	return getLockClient{db}, err
}

func (c getLockClient) acquire(ctx context.Context, name string) (func() error, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullBool
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK('"+name+"', 3600)").Scan(&got)
	if err == nil && !got.Bool {
		err = errors.New("GET_LOCK failed")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return func() error {
		defer conn.Close()
		return conn.QueryRowContext(context.Background(), "SELECT RELEASE_LOCK('"+name+"')").Scan(&got)
	}, nil
}

func (c getLockClient) close() { c.db.Close() }

type handmadeClient struct{ db *sql.DB }

func openHandmade(s sites) (client, error) {
	db, err := openDB(s, true)
	return handmadeClient{db}, err
}

func (c handmadeClient) acquire(ctx context.Context, name string) (func() error, error) {
	owner := fmt.Sprintf("%x", now())
	for {
		got, err := c.try(ctx, name, owner)
		var sqlErr *mysql.MySQLError
		if errors.As(err, &sqlErr) && (sqlErr.Number == 1213 || sqlErr.Number == 1062) {
			err = nil // a deadlock, or somebody else was first
		}
		if err != nil {
			return nil, err
		}
		if got {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return func() error {
		_, err := c.db.Exec("UPDATE handmade SET owner = '', expires_at = '1970-01-01' WHERE name = ? AND owner = ?", name, owner)
		return err
	}, nil
}

func (c handmadeClient) try(ctx context.Context, name, owner string) (bool, error) {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var free bool
	err = tx.QueryRowContext(ctx, "SELECT expires_at <= NOW(6) FROM handmade WHERE name = ? FOR UPDATE", name).Scan(&free)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = tx.ExecContext(ctx, "INSERT INTO handmade VALUES (?, ?, NOW(6) + INTERVAL 30 SECOND)", name, owner)
	case err == nil && !free:
		return false, nil
	case err == nil:
		_, err = tx.ExecContext(ctx, "UPDATE handmade SET owner = ?, expires_at = NOW(6) + INTERVAL 30 SECOND WHERE name = ?", owner, name)
	}
	if err != nil {
		return false, err
	}
	return true, tx.Commit()
}

func (c handmadeClient) close() { c.db.Close() }

func openRedis(s sites) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Redis, PoolSize: poolSize})
}

type redisLockClient struct {
	db    *redis.Client
	locks *redislock.Client
}

func openRedisLock(s sites) (client, error) {
	db := openRedis(s)
	return redisLockClient{db, redislock.New(db)}, nil
}

func (c redisLockClient) acquire(ctx context.Context, name string) (func() error, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // else it would give up after the TTL
	defer cancel()
	lock, err := c.locks.Obtain(ctx, "redislock:"+name, 30*time.Second,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(context.Background()) }, nil
}

func (c redisLockClient) close() { c.db.Close() }

type redSyncClient struct {
	db    *redis.Client
	locks *redsync.Redsync
}

func openRedSync(s sites) (client, error) {
	db := openRedis(s)
	return redSyncClient{db, redsync.New(goredis.NewPool(db))}, nil
}

func (c redSyncClient) acquire(ctx context.Context, name string) (func() error, error) {
	for {
		mutex := c.locks.NewMutex("redsync:" + name)
		err := mutex.LockContext(ctx)
		var taken *redsync.ErrTaken
		switch {
		case err == nil:
			return func() error {
				_, err := mutex.Unlock()
				return err
			}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed):
			return nil, err
		}
	}
}

func (c redSyncClient) close() { c.db.Close() }

type etcdClient struct {
	client *clientv3.Client
	calls  atomic.Int64 // each is a round trip

	mu   sync.Mutex // guards idle
	idle []*concurrency.Session
}

func openEtcd(s sites) (client, error) {
	c := &etcdClient{}
	count := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		c.calls.Add(1)
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	var err error
	c.client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{s.Etcd}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	return c, err
}

func (c *etcdClient) acquire(ctx context.Context, name string) (func() error, error) {
	session, err := c.session()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, "/"+name)
	if err := mutex.Lock(ctx); err != nil {
		c.put(session)
		return nil, err
	}
	return func() error {
		defer c.put(session)
		return mutex.Unlock(context.Background())
	}, nil
}

// session is one that nobody uses: two goroutines with the same session would have the lock both.
func (c *etcdClient) session() (*concurrency.Session, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		defer c.mu.Unlock()
		session := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return session, nil
	}
	c.mu.Unlock()
	return concurrency.NewSession(c.client)
}

func (c *etcdClient) put(session *concurrency.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, session)
}

func (c *etcdClient) close() { c.client.Close() }

// warm makes the connections, sessions and rows that n goroutines with these names need.
func warm(ctx context.Context, c client, names ...string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			release, err := c.acquire(ctx, name)
			if err == nil {
				time.Sleep(20 * time.Millisecond) // so that they hold at the same time
				err = release()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// numbered are n names.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

func allRivals() []*rival {
	return []*rival{ourselves, polling, alone, bare, prepared, getLock, handmade, redisLock, redSync, etcd}
}

// rivalNamed returns nil if there is none.
func rivalNamed(name string) *rival {
	for _, r := range allRivals() {
		if r.name == name {
			return r
		}
	}
	return nil
}
