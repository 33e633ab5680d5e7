package mysqllock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A session that cannot begin costs no lock: the rows are renewed without it, and bound to
// one that begins later.
func TestSessionThatDoesNotBegin(t *testing.T) {
	for name, c := range map[string]struct {
		fault        fault
		begun, renew string
	}{
		"denied": {first(2, fails(errDenied), none), "10s 20s 30s", "10s 20s 30s 40s 50s 1m0s"},
		"broken": {first(1, fails(errBroken), none), "10s 20s", "10s 20s 30s 40s 50s 1m0s"},
		// It may wait in the server, so none is sent beside it.
		"hangs":     {first(1, hangs, none), "10s 1m12.5s", "12.5s 22.5s 32.5s 42.5s 52.5s 1m2.5s 1m12.5s 1m22.5s"},
		"overtakes": {first(1, overtaken(15*time.Second), none), "10s 20s", "10s 20s 30s 40s 50s 1m0s"},
		"expired":   {first(1, slow(29*time.Second), none), "10s 1m12.5s", "12.5s 22.5s 32.5s 42.5s 52.5s 1m2.5s 1m12.5s 1m22.5s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				f.meet(c.fault, "begin")
				k := f.acquired(l, bg, "x", AutoRenew)
				f.until(65 * time.Second)
				if c.begun == "10s 1m12.5s" {
					f.until(85 * time.Second)
				}
				require.Equal(t, c.begun, f.sent("begin"))
				require.Equal(t, c.renew, f.sent("renew"))
				require.NoError(t, k.Err())
				require.NotZero(t, f.row("x").session)
			})
		})
	}
}

// The loss of a session is the loss of the locks that depend on it, at the end of its
// lease less the margin. A lock with a lease of its own stays held, and the next session
// keeps it.
func TestLossOfASession(t *testing.T) {
	for name, flt := range map[string]fault{"fails": fails(errBroken), "hangs": hangs, "mute": mute} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				x, y := f.acquired(l, owner, "x", AutoRenew), f.acquired(l, owner, "y", AutoRenew)
				f.until(15 * time.Second)
				require.NoError(t, y.Extend(bg, 2*time.Minute))
				f.until(25 * time.Second)
				young := f.acquired(l, bg, "young", AutoRenew)
				f.meet(flt, "renew")
				f.requireLost(x, owner, 49*time.Second)
				f.meet(none, "renew")
				for _, k := range []*Lock{y, young} {
					require.NoError(t, k.Err())
					require.NoError(t, k.Context().Err())
				}
				f.until(5 * time.Minute)
				for _, k := range []*Lock{y, young} {
					require.NoError(t, k.Err())
					require.Equal(t, f.lastSession(), f.row(k.Name()).session)
				}
				require.Len(t, f.kept(), 2)
				require.Zero(t, f.left("x"))
				require.EqualValues(t, 1, l.Stats().Lost)
			})
		})
	}
}

// The reply to a renewal that comes after the loss of its session revives nothing.
func TestLateRenewalOfASession(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		k := f.acquired(l, owner, "x", AutoRenew)
		f.until(15 * time.Second)
		f.meet(fails(errBroken), "renew")
		f.until(37500 * time.Millisecond)
		f.meet(slow(2*time.Second), "renew")
		f.requireLost(k, owner, 39*time.Second)
		f.until(time.Minute)
		require.Zero(t, f.left("x"))
		f.acquired(l, owner, "x", AutoRenew)
	})
}

// Nor does one that comes after the end of trust, but before the timer of the loss.
func TestLateRenewalBeforeALateTimer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(35 * time.Second)
		f.meet(fails(errBroken), "renew")
		f.until(57500 * time.Millisecond)
		l.watchdog.SessionTimer().Stop()
		f.meet(slow(2*time.Second), "renew")
		f.until(60500 * time.Millisecond)
		require.ErrorIs(t, k.Err(), ErrLost)
	})
}

// A session that ends in the database, as the table is truncated, ends all of its locks at
// the next renewal.
func TestSessionDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		k := f.acquired(l, owner, "x", AutoRenew)
		f.until(41 * time.Second)
		f.alter(func() {
			clear(f.sessions)
			clear(f.rows)
		})
		f.requireLost(k, owner, 50*time.Second)
	})
}

// Of a lock that a session keeps, the loss is noticed by a clock that is compared, although
// the timer is late.
func TestLossOfASessionWithALateTimer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(25 * time.Second)
		f.meet(hangs, "renew", "releaseAll")
		l.watchdog.SessionTimer().Stop()
		f.until(49 * time.Second)
		require.NoError(t, k.Context().Err())
		require.ErrorIs(t, k.Err(), ErrLost)
		require.Error(t, k.Context().Err())
		f.meet(none, "releaseAll")
	})
}

// A row that a session may keep does not expire by itself, so its release is repeated until
// it is known.
func TestReleaseOfABoundRow(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k, other := f.acquired(l, bg, "x", AutoRenew), f.acquired(l, bg, "other", AutoRenew)
		f.until(15 * time.Second)
		unblock := f.block("x")
		f.meet(fails(errDenied), "release", "bound") // a comparison of the rows would find the row, too
		require.Error(t, k.Unlock())
		f.until(5 * time.Minute)
		require.Positive(t, f.left("x"), "the session keeps it")
		unblock()
		f.until(f.now() + 2*time.Second)
		require.Zero(t, f.left("x"))
		require.NoError(t, other.Err())
	})
}

// The same if the reply to the statement that bound it was lost.
func TestReleaseOfARowBoundByALostReply(t *testing.T) {
	for name, end := range map[string]func(k *Lock){
		"Unlock": func(k *Lock) { k.Unlock() },
		"loss":   func(k *Lock) { time.Sleep(20 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				other := f.acquired(l, bg, "other", AutoRenew)
				f.until(11 * time.Second)
				k := f.acquired(l, bg, "x", AutoRenew)
				f.meet(first(2, mute, hangs), "renew")       // that of the session at 20 s, and the binding at 21 s
				f.meet(fails(errDenied), "release", "bound") // as above
				f.until(22 * time.Second)
				require.NotZero(t, f.row("x").session)
				unblock := f.block("x")
				end(k)
				f.meet(none, "renew")
				f.until(5 * time.Minute)
				unblock()
				f.until(f.now() + 2*time.Second)
				require.Zero(t, f.left("x"))
				other.Unlock()
			})
		})
	}
}

// After a forced release, all rows are checked for one more lease: the process that forces
// may end after its commit, before it reports it.
func TestForcedReleaseAfterTheFirstCheck(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		k := f.acquired(l, owner, "x", AutoRenew)
		f.until(15 * time.Second)
		f.alter(func() { f.forced = true })
		f.until(22 * time.Second)
		f.take("x", time.Hour)
		f.alter(func() { f.forced = false })
		f.requireLost(k, owner, 30*time.Second)
	})
}

// A row that was deleted, or given to another owner, by hand is noticed within a lease and a third.
func TestBoundRowDeleted(t *testing.T) {
	for name, change := range map[string]func(f *fakeRepo){
		"deleted": func(f *fakeRepo) { f.remove("x") },
		"given away": func(f *fakeRepo) {
			r := f.row("x")
			r.owner = "another"
			f.alter(func() { f.rows["x"] = r })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k, other := f.acquired(l, owner, "x", AutoRenew), f.acquired(l, owner, "other", AutoRenew)
				f.until(41 * time.Second)
				change(f)
				f.requireLost(k, owner, 70*time.Second)
				require.NoError(t, other.Err())
			})
		})
	}
}

// A failover may have lost the last changes. The rows that the session keeps are compared
// with the locks at once.
func TestRowsAfterAFailover(t *testing.T) {
	const s = time.Second
	for name, lose := range map[string]func(f *fakeRepo, bound fakeRow){
		"binding": func(f *fakeRepo, bound fakeRow) { // and the renewal that it was
			bound.session, bound.expires = 0, time.Now().Add(-s)
			f.rows["x"] = bound
		},
		"acquire": func(f *fakeRepo, _ fakeRow) { delete(f.rows, "x") },
		"release": func(f *fakeRepo, bound fakeRow) { f.rows["x"] = bound },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				owner := WithOwner(bg)
				k, other := f.acquired(l, owner, "x", AutoRenew), f.acquired(l, owner, "other", AutoRenew)
				f.until(41 * s)
				bound := f.row("x")
				if name == "release" {
					require.NoError(t, k.Unlock())
				}
				f.alter(func() {
					f.moved = true
					lose(f, bound)
				})
				f.until(51 * s)
				switch name {
				case "binding":
					require.NoError(t, k.Err())
					require.Equal(t, bound.session, f.row("x").session, "bound again")
				case "acquire":
					require.ErrorIs(t, k.Err(), ErrLost)
				default:
					require.Positive(t, f.left("x"))
					f.until(2 * time.Minute)
					require.Zero(t, f.left("x"), "released, when it was found twice")
				}
				require.NoError(t, other.Err())
			})
		})
	}
}

// A session is renewed only while a lock depends on it, and one that is left alone is used
// again, or followed by another.
func TestSessionWithoutLocks(t *testing.T) {
	for pause, sessions := range map[time.Duration]int{5 * time.Second: 1, 35 * time.Second: 2} {
		t.Run(fmt.Sprint(pause), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				k := f.acquired(l, bg, "x", AutoRenew)
				f.until(15 * time.Second)
				require.NoError(t, k.Unlock())
				f.until(15*time.Second + pause)
				require.Equal(t, "10s", f.sent("renew"))
				k = f.acquired(l, bg, "x", AutoRenew)
				f.until(3 * time.Minute)
				require.NoError(t, k.Err())
				require.Len(t, f.kept(), sessions)
			})
		})
	}
}

// The context of a handle that ended before it was asked for has ended, for the same reason.
func TestContextOfAnEndedHandle(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		unlocked, lost := f.acquired(l, bg, "x", AutoRenew), f.acquired(l, bg, "y", time.Second)
		require.NoError(t, unlocked.Unlock())
		f.until(2 * time.Second)
		closed := f.acquired(l, bg, "z", AutoRenew)
		require.NoError(t, l.Close())
		synctest.Wait()
		f.requireCause(unlocked, ErrNotHeld)
		f.requireCause(lost, ErrLost)
		f.requireCause(closed, ErrClosed)
	})
}
