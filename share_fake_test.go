package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/wake"
)

// A faultyStore is a fake store whose looks and downgrades can fail, and whose replies can be slow.
type faultyStore struct {
	*fakestore.Store
	noLooks    atomic.Bool
	noKeeping  atomic.Bool           // no KeepShared
	late, slow atomic.Int64          // how long a request of Acquire takes, and its reply
	release    time.Duration         // how long a request of Release takes
	downgrade  func(calls int) error // called before Downgrade, or, if it returns NotSent, instead; may be nil
	downgrades int                   // calls of Downgrade
	extend     func() error          // called before the next Extend, or, if it returns an error, instead; may be nil
	hang       atomic.Bool           // Look has no reply
}

func (s *faultyStore) Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (bool, time.Time, error) {
	if extend := s.extend; extend != nil {
		s.extend = nil
		if err := extend(); err != nil {
			return false, time.Time{}, err
		}
	}
	return s.Store.Extend(ctx, c, lease, holds, session)
}

func (s *faultyStore) Look(ctx context.Context, names []string) (map[string]store.Row, time.Time, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, time.Now(), ctx.Err()
	}
	if s.noLooks.Load() {
		return nil, time.Now(), errors.New("no reply")
	}
	return s.Store.Look(ctx, names)
}

func (s *faultyStore) KeepShared(ctx context.Context, c store.Claim, id, holder string, m store.MinHold) (bool, error) {
	if s.noKeeping.Load() {
		return false, store.ErrAutocommit
	}
	return s.Store.KeepShared(ctx, c, id, holder, m)
}

func (s *faultyStore) Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error) {
	sent := time.Now()
	time.Sleep(time.Duration(s.late.Load()))
	g, err := s.Store.Acquire(ctx, req)
	g.Sent = sent
	time.Sleep(time.Duration(s.slow.Load()))
	return g, err
}

func (s *faultyStore) Release(ctx context.Context, c store.Claim) (bool, store.Process, error) {
	time.Sleep(s.release)
	return s.Store.Release(ctx, c)
}

func (s *faultyStore) AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error) {
	g, err := s.Store.AcquireAll(ctx, req)
	time.Sleep(time.Duration(s.slow.Load()))
	return g, err
}

func (s *faultyStore) Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (store.Grant, store.Process, error) {
	if s.downgrade == nil {
		return s.Store.Downgrade(ctx, from, to)
	}
	s.downgrades++
	err := s.downgrade(s.downgrades)
	if errors.As(err, new(store.NotSent)) {
		return store.Grant{}, 0, err
	}
	g, next, _ := s.Store.Downgrade(ctx, from, to)
	if err != nil {
		return store.Grant{Claim: g.Claim}, 0, err
	}
	return g, next, nil
}

// onFakeStore runs a test in a bubble. locker returns a Locker of a process of its own.
func onFakeStore(t *testing.T, test func(t *testing.T, locker func() (*Locker, *faultyStore))) {
	synctest.Test(t, func(t *testing.T) {
		table := fakestore.NewTable()
		test(t, func() (*Locker, *faultyStore) {
			self := store.NewProcess()
			s := &faultyStore{Store: table.NewStore(self)}
			return onStore(t, self, s), s
		})
	})
}

// A request that has claimed the name is granted, but the reply comes too late. The release of that grant
// does not release the next one.
func TestClaimGrantedTooLate(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		l.direct = false
		other, _ := locker()
		shared, err := other.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		granted := make(chan *Lock, 1)
		go func() {
			k, err := l.TryLock(bg, "x", time.Minute, time.Second)
			assert.NoError(t, err)
			granted <- k
		}()
		time.Sleep(3 * time.Second)
		s.release = 200 * time.Millisecond
		s.slow.Store(int64(950 * time.Millisecond))
		require.NoError(t, shared.Unlock())
		time.Sleep(500 * time.Millisecond)
		s.slow.Store(0)
		k := <-granted
		time.Sleep(2 * s.release)
		_, err = other.TryLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// No hold joins a share whose lease has ended, even if the timers are late.
func TestShareThatMayBeLost(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, 30*time.Second)
		require.NoError(t, err)
		k.hold.lease.Load().Timer().Stop()
		k.hold.timer.Stop()
		time.Sleep(29 * time.Second)
		next, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, next.Err())
		require.ErrorIs(t, k.Err(), ErrLost)
	})
}

// A slowLog is a slog.Handler that takes half a second for each record.
type slowLog struct{ slog.Handler }

func (slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (slowLog) Handle(context.Context, slog.Record) error {
	time.Sleep(500 * time.Millisecond)
	return nil
}

// Close waits for the end of a loss, which releases a row whose lease another hold has made longer.
func TestCloseDuringALoss(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		l.log = slog.New(slowLog{})
		other, _ := locker()
		long, err := l.TryRLock(bg, "x", 0, time.Hour)
		require.NoError(t, err)
		short, err := l.TryRLock(bg, "x", 0, time.Second)
		require.NoError(t, err)
		require.NoError(t, long.Unlock())
		<-short.Context().Done()
		require.NoError(t, l.Close())
		_, err = other.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
	})
}

// The end of the last hold of a share releases the row, whose lease another hold has made longer.
func TestLastHoldOfAShare(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		other, _ := locker()
		start := time.Now()
		renewed, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		fixed, err := l.TryRLock(bg, "x", 0, 2*time.Second)
		require.NoError(t, err)
		require.NoError(t, renewed.Unlock())
		_, err = other.TryLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.ErrorIs(t, fixed.Err(), ErrLost)
		require.Less(t, time.Since(start), 4*time.Second)
	})
}

// A short fixed lease on a share that a session keeps goes on for its time when the share's other
// holds have ended.
func TestShortLeaseOnAShare(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		renewed, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		time.Sleep(61 * time.Second)
		fixed, err := l.TryRLock(bg, "x", 0, 500*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, renewed.hold.share, fixed.hold.share)
		require.NoError(t, renewed.Unlock())
		time.Sleep(440 * time.Millisecond)
		require.NoError(t, fixed.Err())
		time.Sleep(60 * time.Millisecond)
		require.ErrorIs(t, fixed.Err(), ErrLost)
	})
}

// Those who wait for a lock shared, in several processes, acquire it together when it is released.
func TestSharedWaitersOfSeveralProcesses(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		errs := make(chan error)
		for range 4 {
			l, _ := locker()
			go func() {
				_, err := l.TryRLock(bg, "x", time.Minute, AutoRenew)
				errs <- err
			}()
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		require.NoError(t, k.Unlock())
		for range 4 {
			require.NoError(t, <-errs)
		}
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
}

// A call that ends while its statement claims the name releases the claim when the reply arrives.
func TestClaimWithoutItsCaller(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		reader, _ := locker()
		writer, s := locker()
		other, _ := locker()
		_, err := reader.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		s.slow.Store(int64(time.Second))
		start := time.Now()
		_, err = writer.TryLock(bg, "x", 1500*time.Millisecond, AutoRenew) // the second statement claims
		require.Error(t, err)
		_, err = other.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = other.TryRLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 4*time.Second)
	})
}

// A shared request does not pass an exclusive one of its process that waits.
func TestShareBehindAWaiterOfItsProcess(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		acquired := make(chan error)
		go func() {
			_, err := l.TryLock(bg, "x", time.Minute, AutoRenew)
			acquired <- err
		}()
		synctest.Wait() // no time has passed since the last look
		_, err = l.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.NoError(t, k.Unlock())
		require.NoError(t, <-acquired)
	})
}

// No hold joins a share if the database does not say that no exclusive request waits.
func TestShareWithoutALook(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		acquired := make(chan *Lock, 1)
		go func() {
			k, _ := other.TryLock(bg, "x", time.Minute, AutoRenew)
			acquired <- k
		}()
		time.Sleep(time.Second)
		s.noLooks.Store(true)
		_, err = l.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		s.noLooks.Store(false)
		require.NoError(t, k.Unlock())
		require.NoError(t, (<-acquired).Err())
	})
}

// A name that several hold shared stays taken for the longest of the minimum times.
func TestUnlockAfterOfSharedHolds(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		other, _ := locker()
		start := time.Now()
		var all []*Lock
		for range 3 {
			k, err := l.TryRLock(bg, "x", 0, AutoRenew)
			require.NoError(t, err)
			all = append(all, k)
		}
		require.NoError(t, all[0].UnlockAfter(20*time.Second))
		require.NoError(t, all[1].UnlockAfter(10*time.Second))
		require.NoError(t, all[2].Unlock())
		_, err := other.TryLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 20*time.Second)
		require.Less(t, time.Since(start), 22*time.Second)
	})
}

// both acquires a lock exclusively, and shared by the same owner.
func both(t *testing.T, l *Locker) (exclusive, shared *Lock) {
	t.Helper()
	owner := WithOwner(bg)
	exclusive, err := l.TryLock(owner, "x", 0, AutoRenew)
	require.NoError(t, err)
	shared, err = l.TryRLock(owner, "x", 0, AutoRenew)
	require.NoError(t, err)
	return exclusive, shared
}

// A lock whose row is locked, by a transaction under Guard, becomes shared later.
func TestLockThatBecomesSharedLater(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		s.downgrade = func(calls int) error {
			if calls < 5 {
				return store.NotSent{Err: store.ErrRowLocked}
			}
			return nil
		}
		exclusive, shared := both(t, l)
		require.NoError(t, exclusive.Unlock())
		_, err := other.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		_, err = other.TryRLock(bg, "x", 10*time.Second, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, shared.Err())
	})
}

// If the outcome of a downgrade is unknown, the lock is lost, and both rows are released.
func TestDowngradeWithUnknownOutcome(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		s.downgrade = func(int) error { return io.ErrUnexpectedEOF }
		exclusive, shared := both(t, l)
		require.NoError(t, exclusive.Unlock())
		require.ErrorIs(t, shared.Err(), ErrLost)
		_, err := other.TryLock(bg, "x", 10*time.Second, AutoRenew)
		require.NoError(t, err)
	})
}

// While a downgrade waits for its reply, a statement that does not find the hold's row is no loss.
func TestLossDuringADowngrade(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		exclusive, shared := both(t, l)
		s.downgrade = func(int) error {
			l.watchdog.OwnerChanged(exclusive.hold.lease.Load().Claim)
			time.Sleep(time.Second)
			return nil
		}
		require.NoError(t, exclusive.Unlock())
		require.NoError(t, shared.Err())
		require.NoError(t, shared.Unlock())
	})
}

// A call for a shared hold that does not wait is refused as soon as an exclusive one before it, which
// does not wait either, has the lock.
func TestNoWaitBehindAnExclusiveAttempt(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		s.slow.Store(int64(100 * time.Millisecond))
		for name, acquire := range map[string]func() error{
			"one": func() error {
				_, err := l.TryLock(bg, "one", 0, AutoRenew)
				return err
			},
			"set": func() error {
				_, err := l.TryLockAll(bg, []string{"other", "set"}, 0, AutoRenew)
				return err
			},
		} {
			errs := make(chan error)
			go func() { errs <- acquire() }()
			synctest.Wait()
			start := time.Now()
			_, err := l.TryRLock(bg, name, 0, AutoRenew)
			require.ErrorIs(t, err, ErrNotAcquired)
			require.LessOrEqual(t, time.Since(start), 100*time.Millisecond)
			require.NoError(t, <-errs)
		}
	})
}

// downgradeThatHangs unlocks the exclusive handle of an owner that holds x in both modes, and returns while
// the downgrade waits for its reply, for 2 s. It returns both handles, and a channel for the error of Unlock.
func downgradeThatHangs(t *testing.T, l *Locker, s *faultyStore) (exclusive, shared *Lock, unlocked chan error) {
	exclusive, shared = both(t, l)
	s.downgrade = func(int) error {
		time.Sleep(2 * time.Second)
		return nil
	}
	unlocked = make(chan error, 1)
	go func() { unlocked <- exclusive.Unlock() }()
	synctest.Wait()
	return exclusive, shared, unlocked
}

// Calls with a context do not wait for a downgrade that hangs beyond its end, and change nothing.
func TestCallsDuringADowngradeThatHangs(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		_, shared, unlocked := downgradeThatHangs(t, l, s)
		for name, call := range map[string]func(ctx context.Context) error{
			"Extend": func(ctx context.Context) error { return shared.Extend(ctx, time.Hour) },
			"Guard":  func(ctx context.Context) error { return shared.Guard(ctx, new(sql.Tx)) },
			"Detach": func(ctx context.Context) error {
				_, err := shared.Detach(ctx, time.Hour)
				return err
			},
		} {
			limited, cancel := context.WithTimeout(bg, 100*time.Millisecond)
			start := time.Now()
			require.ErrorIs(t, call(limited), context.DeadlineExceeded, name)
			require.LessOrEqual(t, time.Since(start), 100*time.Millisecond, name)
			require.NoError(t, shared.Err(), name)
			cancel()
		}
		require.NoError(t, <-unlocked)
		require.NoError(t, shared.Unlock())
	})
}

// An Extend whose statement arrives when the lock has become shared extends the shared lease.
func TestExtendDuringADowngrade(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		exclusive, shared := both(t, l)
		s.extend = exclusive.Unlock
		require.NoError(t, shared.Extend(bg, time.Hour))
		require.NoError(t, shared.Err())
		require.Greater(t, shared.Remaining(), 59*time.Minute-time.Second)
		rows, _, err := s.Store.Look(bg, []string{shared.hold.lease.Load().Claim.Name})
		require.NoError(t, err)
		for _, row := range rows {
			require.Greater(t, row.Lease, 59*time.Minute)
		}
		_, err = other.TryRLock(bg, "x", time.Second, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, shared.Unlock())
	})
}

// An Extend of a hold that has ended, before or during the call, changes nothing for the other holds of
// the share.
func TestExtendOfAnEndedHold(t *testing.T) {
	for name, ends := range map[string]func(s *faultyStore){
		"before": func(*faultyStore) { time.Sleep(200 * time.Millisecond) },
		"during": func(s *faultyStore) {
			s.extend = func() error {
				time.Sleep(200 * time.Millisecond)
				return io.ErrUnexpectedEOF
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
				l, s := locker()
				kept, err := l.RLock(bg, "x", AutoRenew)
				require.NoError(t, err)
				short, err := l.RLock(bg, "x", 100*time.Millisecond)
				require.NoError(t, err)
				ends(s)
				require.ErrorIs(t, short.Extend(bg, time.Minute), ErrLost)
				synctest.Wait()
				require.NoError(t, kept.Err())
				require.NoError(t, kept.Unlock())
			})
		})
	}
}

// An Extend of a handle that was unlocked does not wait for a downgrade.
func TestExtendAfterUnlockDuringADowngrade(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		exclusive, shared, unlocked := downgradeThatHangs(t, l, s)
		start := time.Now()
		require.ErrorIs(t, exclusive.Extend(bg, time.Minute), ErrNotHeld)
		require.Zero(t, time.Since(start))
		require.NoError(t, <-unlocked)
		require.NoError(t, shared.Unlock())
	})
}

// Close and the end of the context end at once a shared request whose check for exclusive requests has no
// reply.
func TestEndDuringTheCheckOfAShare(t *testing.T) {
	for name, wanted := range map[string]error{"Close": ErrClosed, "ctx": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
				l, s := locker()
				_, err := l.RLock(bg, "x", AutoRenew)
				require.NoError(t, err)
				time.Sleep(2 * lookInterval)
				s.hang.Store(true)
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				errs := make(chan error)
				go func() {
					_, err := l.RLock(ctx, "x", AutoRenew)
					errs <- err
				}()
				synctest.Wait()
				start := time.Now()
				closed := make(chan error, 1)
				if wanted == ErrClosed {
					go func() { closed <- l.Close() }()
				} else {
					cancel()
					closed <- nil
				}
				require.ErrorIs(t, <-errs, wanted)
				require.LessOrEqual(t, time.Since(start), probeWait)
				s.hang.Store(false)
				require.NoError(t, <-closed)
			})
		})
	}
}

// DoTx returns an error if it has begun nothing, whatever the reason.
func TestBeginFailed(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		require.ErrorIs(t, k.beginFailed(bg, io.EOF), io.EOF)
		require.ErrorIs(t, k.beginFailed(bg, nil), ErrLost)
	})
}

// A hold whose downgrade has no reply is trusted no longer than the shared lease lasts.
func TestDowngradeThatHangs(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		owner := WithOwner(bg)
		exclusive, err := l.TryLock(owner, "x", 0, time.Minute)
		require.NoError(t, err)
		shared, err := l.TryRLock(owner, "x", 0, time.Second)
		require.NoError(t, err)
		s.downgrade = func(int) error {
			time.Sleep(2 * time.Second)
			return nil
		}
		time.AfterFunc(1500*time.Millisecond, func() {
			if err := shared.Err(); !errors.Is(err, ErrLost) {
				t.Errorf("it is trusted: %v", err)
			}
		})
		exclusive.Unlock()
	})
}

// Those who wait for a lock shared, in the same process and in another, acquire it as soon as it
// has become shared.
func TestLockThatBecomesShared(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		other, _ := locker()
		exclusive, shared := both(t, l)
		errs := make(chan error)
		for _, in := range []*Locker{l, other} {
			go func() {
				_, err := in.TryRLock(bg, "x", time.Minute, AutoRenew)
				errs <- err
			}()
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		require.NoError(t, exclusive.Unlock())
		for range 2 {
			require.NoError(t, <-errs)
			require.Less(t, time.Since(start), 100*time.Millisecond)
		}
		require.NoError(t, shared.Err())
	})
}

// A signal may be for a lock that is still held: its last shared hold has ended, or it will be free at
// a time that the process did not know. It is not lost on a process that waits for other names, too.
func TestSignalForALockThatIsHeld(t *testing.T) {
	const after = 200 * time.Millisecond // until the lock is free
	for what, c := range map[string]struct {
		mode store.Mode
		end  func(k *Lock) error
	}{
		"the end of a shared hold": {store.Shared, func(k *Lock) error {
			time.Sleep(after)
			return k.Unlock()
		}},
		"UnlockAfter": {store.Exclusive, func(k *Lock) error { return k.UnlockAfter(time.Since(k.hold.began) + after) }},
		"Detach": {store.Exclusive, func(k *Lock) error {
			_, err := k.Detach(bg, after)
			return err
		}},
	} {
		for _, others := range []int{0, 1, 5} {
			t.Run(fmt.Sprint(what, ", other names: ", others), func(t *testing.T) {
				onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
					l, _ := locker()
					waiting, _ := locker()
					var wg sync.WaitGroup
					defer wg.Wait()
					for i := range others {
						k, err := l.TryLock(bg, fmt.Sprint(i), 0, AutoRenew)
						require.NoError(t, err)
						defer k.Unlock()
						wg.Go(func() { waiting.TryLock(bg, fmt.Sprint(i), time.Minute, AutoRenew) })
					}
					k, err := l.acquire(bg, request{name: "x", mode: c.mode})
					require.NoError(t, err)
					granted := make(chan time.Time, 1)
					wg.Go(func() {
						_, err := waiting.TryLock(bg, "x", time.Minute, AutoRenew)
						assert.NoError(t, err)
						granted <- time.Now()
					})
					time.Sleep(10200 * time.Millisecond) // between two looks
					free := time.Now().Add(after)
					require.NoError(t, c.end(k))
					require.WithinDuration(t, free, <-granted, 10*time.Millisecond)
				})
			})
		}
	}
}

// An exclusive request that waits for more shared holds than there may be false wake-ups is served when the
// last one ends.
func TestSignalsOfManySharedHolds(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		var holds []*Lock
		for range 2*wake.MaxFalseWakes + 1 {
			l, _ := locker()
			k, err := l.TryRLock(bg, "x", 0, AutoRenew)
			require.NoError(t, err)
			holds = append(holds, k)
		}
		waiting, _ := locker()
		granted := make(chan time.Time, 1)
		go func() {
			_, err := waiting.TryLock(bg, "x", time.Minute, AutoRenew)
			assert.NoError(t, err)
			granted <- time.Now()
		}()
		for _, k := range holds {
			time.Sleep(7 * time.Millisecond)
			require.NoError(t, k.Unlock())
		}
		free := time.Now()
		require.WithinDuration(t, free, <-granted, 10*time.Millisecond)
	})
}

// A shared hold may end after an exclusive request has claimed the name, but before its process listens.
func TestSharedHoldThatEndsBeforeListening(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		waiting, s := locker()
		s.slow.Store(int64(50 * time.Millisecond))
		time.AfterFunc(75*time.Millisecond, func() { assert.NoError(t, k.Unlock()) }) // while the reply to the claim is on its way
		start := time.Now()
		_, err = waiting.TryLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.WithinDuration(t, start, time.Now(), 200*time.Millisecond)
	})
}

// A process that polls looks as often as its poll interval says for the end of the shared holds.
func TestClaimOfAProcessThatPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const interval = 20 * time.Millisecond
		table, self := fakestore.NewTable(), store.NewProcess()
		other := store.NewProcess()
		l := onStore(t, other, table.NewStore(other))
		waiting := newLocker(table.NewStore(self), self, config{lease: DefaultLease, poll: interval, handoff: true, log: slog.New(slog.DiscardHandler)})
		defer waiting.Close()
		k, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		var free time.Time
		time.AfterFunc(330*time.Millisecond, func() {
			free = time.Now()
			assert.NoError(t, k.Unlock())
		})
		_, err = waiting.TryLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.WithinDuration(t, free, time.Now(), interval)
	})
}

// The minimum time of a shared hold that could not be kept by a row of its own goes with the ticket of
// the last hold that shared its row.
func TestDetachAfterAMinimumThatWasNotKept(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		for _, name := range []string{"first", "joined"} {
			l, s := locker()
			first, err := l.TryRLock(bg, name, 0, AutoRenew)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			joined, err := l.TryRLock(bg, name, 0, AutoRenew)
			require.NoError(t, err)
			k, last := first, joined
			if name == "joined" {
				k, last = joined, first
			}
			until := k.hold.began.Add(time.Minute)
			s.noKeeping.Store(true)
			require.Error(t, k.UnlockAfter(time.Minute))
			ticket, err := last.Detach(bg, 30*time.Second)
			require.NoError(t, err)
			other, _ := locker()
			k, err = other.Attach(bg, ticket, AutoRenew)
			require.NoError(t, err)
			require.NoError(t, k.Unlock())
			k, err = other.TryLock(bg, name, WaitForever, AutoRenew)
			require.NoError(t, err)
			require.False(t, time.Now().Before(until))
			require.NoError(t, k.Unlock())
		}
	})
}

// ForceUnlock frees a lock whose grant is on its way to the caller: the hold that begins is lost.
func TestForceUnlockOfAGrantOnItsWay(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		l.table = s
		other, _ := locker()
		for _, mode := range []store.Mode{store.Exclusive, store.Shared} {
			name := mode.String()
			s.slow.Store(int64(100 * time.Millisecond))
			time.AfterFunc(50*time.Millisecond, func() {
				held, err := l.ForceUnlock(bg, name)
				assert.NoError(t, err)
				assert.True(t, held)
			})
			k, err := l.acquire(bg, request{name: name, mode: mode})
			require.NoError(t, err)
			next, err := other.TryLock(bg, name, 0, AutoRenew)
			require.NoError(t, err)
			require.ErrorIs(t, k.Err(), ErrLost)
			<-k.Context().Done()
			require.ErrorIs(t, k.Unlock(), ErrLost)
			require.NoError(t, next.Unlock())
		}
	})
}

// ForceUnlock frees the claim of a call that waits in the same process, and the call uses that claim
// again: its next grant counts. If the request for it was on its way, it counts as lost, and is released.
func TestForceUnlockOfAClaim(t *testing.T) {
	for name, late := range map[string]time.Duration{"between two requests": 0, "a request is on its way": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
				l, s := locker()
				l.table = s
				other, _ := locker()
				shared, err := other.TryRLock(bg, "x", 0, AutoRenew)
				require.NoError(t, err)
				granted := make(chan *Lock, 1)
				go func() {
					k, err := l.TryLock(bg, "x", time.Minute, AutoRenew)
					assert.NoError(t, err)
					granted <- k
				}()
				time.Sleep(500 * time.Millisecond)
				s.late.Store(int64(late)) // the next request is sent when a second has passed
				time.Sleep(600 * time.Millisecond)
				held, err := l.ForceUnlock(bg, "x")
				require.NoError(t, err)
				require.True(t, held)
				k := <-granted
				if late == 0 {
					require.NoError(t, k.Err())
					require.NoError(t, k.Unlock())
				}
				_, err = other.TryLock(bg, "x", time.Second, AutoRenew)
				require.NoError(t, err)
				require.ErrorIs(t, shared.Unlock(), ErrLost)
			})
		})
	}
}
