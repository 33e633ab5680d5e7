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

// A rival is one way to acquire a lock. All rivals are measured by the same code.
type rival struct {
	name  string
	note  string // how it is used, for the report
	ours  bool
	mysql bool // it uses the MySQL server
	slow  bool // a waiter polls once a second
	open  func(e endpoints) (client, error)
}

// A client of a rival can be used by several goroutines.
type client interface {
	// acquire waits until it has acquired the lock, or ctx ends.
	acquire(ctx context.Context, name string) (release func() error, err error)
	close()
}

var (
	ourselves = &rival{
		name: "mysqllock", ours: true, mysql: true,
		note: "`New` without options; lease `AutoRenew`",
		open: func(e endpoints) (client, error) { return openOurs(e) },
	}
	polling = &rival{
		name: "mysqllock, polling", ours: true, mysql: true, slow: true,
		note: "`WithoutSignal()`: waiters in other processes poll once a second",
		open: func(e endpoints) (client, error) { return openOurs(e, mysqllock.WithoutSignal()) },
	}
	noHandoff = &rival{
		name: "mysqllock, no handoff", ours: true, mysql: true,
		note: "`WithoutHandoff()`: every acquire sends a statement",
		open: func(e endpoints) (client, error) { return openOurs(e, mysqllock.WithoutHandoff()) },
	}
	bare = &rival{
		name: "two bare UPDATEs", mysql: true,
		note: "no lock, but what a lock that is kept in a row costs at least: two UPDATEs of a single row by primary key, in autocommit, as text, each with a context that ends after 3 s, like all statements of the library",
		open: openBare,
	}
	prepared = &rival{
		name: "the same, prepared", mysql: true,
		note: "two bare UPDATEs with a prepared statement and without a context that can end: less work for the server and the driver, but on a dead connection they hang forever",
		open: openPrepared,
	}
	getLock = &rival{
		name: "GET_LOCK", mysql: true,
		note: "`GET_LOCK` and `RELEASE_LOCK`, as text, with a dedicated connection for each lock and waiter; nothing is durable",
		open: openGetLock,
	}
	handmade = &rival{
		name: "hand-made table", mysql: true, slow: true,
		note: "the usual implementation: `BeginTx`, `SELECT … FOR UPDATE`, `UPDATE` (or `INSERT`), `Commit`; release is an `UPDATE` by owner; `interpolateParams=true`, without which each statement costs another round trip; if the lock is held, it tries again after 1 s",
		open: openHandmade,
	}
	redisLock = &rival{
		name: "redislock",
		note: "bsm/redislock, TTL 30 s, `LinearBackoff(100 ms)` as in its README (without a strategy, it does not retry)",
		open: openRedisLock,
	}
	redSync = &rival{
		name: "redsync",
		note: "go-redsync/redsync on one Redis, with its defaults (it retries after 50 to 250 ms); `LockContext` is called again when its retries are used up",
		open: openRedSync,
	}
	etcd = &rival{
		name: "etcd",
		note: "`concurrency.Mutex`, with a session for each goroutine that holds or waits, as its documentation requires. If a release follows soon after the wait has begun, the server notifies the waiter up to 100 ms late (its watchResyncPeriod)",
		open: openEtcd,
	}
)

// available returns those of the rivals whose servers are running.
func (s *servers) available(rivals ...*rival) []*rival {
	return slices.DeleteFunc(rivals, func(r *rival) bool {
		return s.Redis == "" && (r == redisLock || r == redSync) || s.Etcd == "" && r == etcd
	})
}

// poolSize is the size of all connection pools, except for rivals whose locks need a connection each.
const poolSize = 64

func openDB(e endpoints, interpolate bool) (*sql.DB, error) {
	c, err := mysql.ParseDSN(e.DSN)
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

func openOurs(e endpoints, opts ...mysqllock.Option) (*ourClient, error) {
	db, err := openDB(e, false)
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

func openBare(e endpoints) (client, error) {
	db, err := openDB(e, false)
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

// twice executes an UPDATE of the row of name, and returns a function that executes it again.
func twice(db *sql.DB, name string, update func() (sql.Result, error)) (func() error, error) {
	res, err := update()
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 { // there is no such row yet
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

func openPrepared(e endpoints) (client, error) {
	db, err := openDB(e, false)
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

func openGetLock(e endpoints) (client, error) {
	db, err := openDB(e, false)
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

func openHandmade(e endpoints) (client, error) {
	db, err := openDB(e, true)
	return handmadeClient{db}, err
}

func (c handmadeClient) acquire(ctx context.Context, name string) (func() error, error) {
	owner := fmt.Sprintf("%x", now())
	for {
		got, err := c.try(ctx, name, owner)
		var sqlErr *mysql.MySQLError
		if errors.As(err, &sqlErr) && (sqlErr.Number == 1213 || sqlErr.Number == 1062) {
			err = nil // a deadlock, or another client inserted the row first
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

func openRedis(e endpoints) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: e.Redis, PoolSize: poolSize})
}

type redisLockClient struct {
	db    *redis.Client
	locks *redislock.Client
}

func openRedisLock(e endpoints) (client, error) {
	db := openRedis(e)
	return redisLockClient{db, redislock.New(db)}, nil
}

func (c redisLockClient) acquire(ctx context.Context, name string) (func() error, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline, Obtain gives up after the TTL
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

func openRedSync(e endpoints) (client, error) {
	db := openRedis(e)
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
	calls  atomic.Int64 // unary calls, each of which is a round trip

	mu   sync.Mutex // guards idle
	idle []*concurrency.Session
}

func openEtcd(e endpoints) (client, error) {
	c := &etcdClient{}
	count := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		c.calls.Add(1)
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	var err error
	c.client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{e.Etcd}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
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

// session returns a session that is not in use. Two goroutines with the same session could both
// acquire the lock.
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

// warm creates the connections, sessions and rows that a goroutine for each name needs.
func warm(ctx context.Context, c client, names ...string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			release, err := c.acquire(ctx, name)
			if err == nil {
				time.Sleep(20 * time.Millisecond) // so that all hold their locks at the same time
				err = release()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// numbered returns n names with a prefix.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

func allRivals() []*rival {
	return []*rival{ourselves, polling, noHandoff, bare, prepared, getLock, handmade, redisLock, redSync, etcd}
}

// rivalNamed returns the rival with a name, or nil.
func rivalNamed(name string) *rival {
	for _, r := range allRivals() {
		if r.name == name {
			return r
		}
	}
	return nil
}
