package main

import "slices"

// A mutation removes one condition from the source of the library.
type mutation struct {
	what     string // describes the condition
	file     string
	old, new string // new replaces old, which occurs once in the file
	tests    string // a pattern for go test -run; one of these tests must fail
}

var mutations = slices.Concat(general, shared, permits, batches, combined, waitQueues, directHandoffs, handovers)

var general = []mutation{
	{
		"owner check in release", "internal/store/sql/release.sql",
		"AND owner IN ({owner}, {released}) AND", "AND LENGTH({owner}) + LENGTH({released}) > 0 AND",
		"TestOnlyTheHolderReleases",
	},
	{
		"owner check in renewal and release of many", "internal/store/sql/fragments/pick_owned.sql",
		"AND CONCAT(name, owner) IN ({owned}) AND", "AND '' NOT IN ({owned}) AND",
		"TestLossIsLearnt",
	},
	{
		"owner check in Extend", "internal/store/sql/extend.sql",
		"AND owner = {owner} AND", "AND LENGTH({owner}) > 0 AND",
		"TestOnlyTheHolderReleases",
	},
	{
		"expiry check in acquire", "internal/store/sql/take.sql",
		"AND IF(expires_at > {>now},", "AND IF(FALSE,",
		"TestWait|TestAcquireAndRelease",
	},
	{
		"an acquire does not overtake the waiting processes", "internal/store/sql/take.sql",
		"IF(waiters = x'', 1, 0 * LAST_INSERT_ID(-1))", "1",
		"TestReservation|TestOrder",
	},
	{
		"UTC", "internal/store/sql/fragments/now.sql",
		"UTC_TIMESTAMP(6)", "NOW(6)",
		"TestSessions/./time_zone",
	},
	{
		"microseconds", "internal/store/sql/fragments/now.sql",
		"UTC_TIMESTAMP(6)", "UTC_TIMESTAMP()",
		"TestSessions/./default",
	},
	{
		"token above the one before", "internal/store/sql/take.sql",
		"LAST_INSERT_ID(GREATEST(token + 256, {>now_micros}))", "LAST_INSERT_ID({>now_micros})",
		"TestTokens",
	},
	{
		"token above the clock", "internal/store/sql/fragments/now_micros.sql",
		"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {>now})", "0",
		"TestTokens",
	},
	{
		"token above those that were purged", "internal/store/sql/insert.sql",
		"GREATEST(COALESCE(`high water`.token, 0) + 256, {>now_micros})", "{>now_micros}",
		"TestTokens|TestPurge",
	},
	{
		"Purge leaves a row that is reserved for a waiter", "internal/store/sql/fragments/idle.sql",
		" AND ({r}waiters = x'' OR NOT ({>reserved}))", "",
		"TestContract/./a_purge_leaves_a_row",
	},
	{
		"high-water row raised by Purge", "internal/store/sql/raise.sql",
		"SET token = GREATEST(token, {token}) WHERE name = x''", "SET token = token WHERE {token} AND name = x''",
		"TestTokens|TestPurge",
	},
	{
		"a first grant waits for Purge", "internal/store/sql/insert.sql",
		"LOCK IN SHARE MODE\n", "",
		"TestFirstGrantWaitsForPurge",
	},
	{
		"autocommit checked by the statements", "internal/store/sql/take.sql",
		"WHERE name = {name} AND @@autocommit\n", "WHERE name = {name}\n",
		"TestSessionsRefused",
	},
	{
		"a session whose clock is fixed is refused", "internal/store/settings.go",
		"case first.Instant == second.Instant:", "case false:",
		"TestSessionsRefused",
	},
	{
		"locked rows are skipped", "internal/store/sql/fragments/pick_owned.sql",
		"LIMIT {count} FOR UPDATE SKIP LOCKED", "LIMIT {count} FOR UPDATE",
		"TestRowLocks|TestGuard|TestTenThousandHeld",
	},
	{
		"a late renewal does not shorten a newer one", "internal/store/sql/renew.sql",
		"GREATEST(l.expires_at, {>new_lease})", "{>new_lease}",
		"TestRenewalKeepsALongerLease",
	},
	{
		"lock of the guard", "internal/store/sql/guard.sql",
		"\nLOCK IN SHARE MODE", "",
		"TestGuard$",
	},
	{
		"token checked by the guard", "internal/store/sql/guard.sql",
		"WHERE token = {token} AND", "WHERE {token} AND",
		"TestGuard$",
	},
	{
		"ForceUnlock moves the token", "internal/store/sql/force.sql",
		"SET token = {>next_token}, owner", "SET owner",
		"TestForceUnlock$|TestGuard$",
	},
	{
		"a lease counts from before the request", "internal/store/acquire.go",
		"\tcase isToken(answer):\n\t\tg.Token,", "\tcase isToken(answer):\n\t\tg.Sent = time.Now()\n\t\tg.Token,",
		"TestLeaseCountsFromTheRequest",
	},
	{
		"margin", "internal/lease/lease.go",
		"return max(min(length/10, time.Second), length/1000)", "return 0",
		"TestLossWithoutAnAnswer|TestFixedLeaseEnds",
	},
	{
		"timer of a loss", "internal/lease/watchdog.go",
		"ls.timer = time.AfterFunc(time.Until(ls.trusted), func() { d.onTimer(ls) })", "ls.timer = time.AfterFunc(time.Hour, func() { d.onTimer(ls) })",
		"TestLossWithoutAnAnswer",
	},
	{
		"Err and Guard compare the clock", "internal/lease/watchdog.go",
		"if !ls.ended && !time.Now().Before(ls.end()) {\n\t\td.expire(ls)", "if false {\n\t\td.expire(ls)",
		"TestLossWithALateTimer",
	},
	{
		"a lost lease stays lost", "internal/lease/watchdog.go",
		"if !ls.ended && time.Now().Before(ls.end()) && until.After(ls.trusted) {", "if until.After(ls.trusted) {",
		"TestLateRenewalDoesNotRevive|TestEndedLeaseStaysEnded|TestEndedHandedOverLeaseStaysEnded",
	},
	{
		"a failed renewal is retried", "internal/lease/renew.go",
		"ls.due = time.Now().Add(retry)\n\t}\n\td.mu.Unlock()\n", "ls.due = time.Now().Add(time.Hour + retry)\n\t}\n\td.mu.Unlock()\n",
		"TestFailedRenewalIsTriedAgain",
	},
	{
		"a row that was taken away is a loss", "internal/lease/renew.go",
		"\towned, err := d.repo.Owned(ctx, claimsOf(leases))\n", "\towned, err := claimsOf(leases), ctx.Err()\n",
		"TestRenewalThatFindsTheRowLost",
	},
	{
		"a lease that the row does not cover is not handed over", "internal/lease/watchdog.go",
		"case !r.Auto && (ls.promised.Before(r.Until) || ls.trusted.Before(r.end())):", "case false:",
		"TestHandoffOfLeases|TestHandoffNearTheEndOfALease",
	},
	{
		"undo of unknown outcomes", "attempt.go",
		"\tunknown := store.OutcomeUnknown(a.err)", "\tunknown := false",
		"TestUnknownOutcomeIsUndone|TestLostReplies",
	},
	{
		"undo is repeated", "internal/undo/undo.go",
		"case p.last:\n\t\t\tdelete", "case p.tries > 0:\n\t\t\tdelete",
		"TestUndoEnds|TestUnknownOutcomeIsUndone",
	},
	{
		"the grant of a call that has ended is released", "attempt.go",
		"\t} else if a.grant.Token > 0 {\n\t\ta.release()", "\t} else if false {\n\t\ta.release()",
		"TestAbandonedAttempt|TestBehindALockedRow",
	},
	{
		"a cancelled call that waits for its reply is ended", "acquire.go",
		"defer context.AfterFunc(c.ctx, func() { time.AfterFunc(cancelGrace, a.cancel) })()", "",
		"TestAttemptOnTheCallersGoroutine",
	},
	{
		"a call that ended during its attempt acquires nothing", "acquire.go",
		"if err = c.ended(); err == nil || a.err != nil && !store.Transient(a.err) {", "if true {",
		"TestAttemptOnTheCallersGoroutine",
	},
	{
		"calls run their own attempt only while the database is fast", "attempt.go",
		"a.err == nil && time.Since(start) < fastReply", "start.Unix() > 0",
		"TestAttemptOnTheCallersGoroutine",
	},
	{
		"a grant that arrives too late is released", "hold.go",
		"late := !now.Before(lease.TrustedUntil(a.grant.Sent, a.request.Lease))", "late := false",
		"TestGrantThatComesTooLate",
	},
	{
		"re-entry checks that the lease is alive", "acquire.go",
		"if l.checkLoss(h); h.ended != nil {\n\t\treturn nil, h.ended", "if h.ended != nil && h.ended != ErrLost {\n\t\treturn nil, h.ended",
		"TestLossWithALateTimer|TestLossIsLearnt|TestHandles",
	},
	{
		"a woken waiter makes another attempt", "attempt.go",
		"\tcase <-c.waiter.Woken: // this attempt reads the row after that wake-up\n\tdefault:", "\tdefault:",
		"TestNotificationBeforeAnAttempt|TestFalseNotifications",
	},
	{
		"a lease that was handed over ends when its holder requested", "internal/lease/lease.go",
		"if ls.adopted && !ls.requested.Auto {", "if false {",
		"TestShortLeaseInALongOne",
	},
	{
		"a short lease in a longer one has its own margin", "internal/lease/lease.go",
		"return r.Until.Add(-r.Margin)", "return r.Until.Add(-Margin(time.Minute))",
		"TestShortLeaseInALongOne|TestFixedLeasesOfASet",
	},
	{
		"a guarded lock is not handed over", "lock.go",
		"!h.guarded.Load() && l.handOff(h, now) {", "l.handOff(h, now) {",
		"TestGuardedLockIsNotHandedOver",
	},
	{
		"a range is used up after its last token", "handoff.go",
		"return r.last+1 >= r.token+store.TokenRange", "return store.TokenRange == 0",
		"TestHandoffUsesUpItsTokens",
	},
	{
		"a range continues only after its own row was replaced", "internal/store/acquire.go",
		"if req.Replaced == 0 {", "if true {",
		"TestContract/./a_request_that_replaces_takes_over_from_that_owner_alone",
	},
	{
		"a range continues only while the lease of its row runs", "attempt.go",
		"a.request.Replaced > 0 && a.handoff.lease.Live()", "a.request.Replaced > 0",
		"TestTokensAfterALateReplacement",
	},
	{
		"handoff within the process is bounded", "handoff.go",
		"case now.Sub(offer.since) > maxHandoffTime:", "case false:",
		"TestHandoffIsBounded",
	},
	{
		"a waiter that leaves wakes the next", "handoff.go",
		"offer, last := w.Leave()\n", "offer, last := w.TakeOffer(), true\n",
		"TestWaiterThatGivesUp|TestAbandonedAttempt",
	},
	{
		"wake-up when the holder's lease ends", "internal/wake/poller.go",
		"w.expiry = time.AfterFunc(max(left, time.Millisecond),", "w.expiry = time.AfterFunc(left+time.Hour,",
		"TestWaiterAsksAtTheHoldersExpiry",
	},
	{
		"wake-up of the next waiter of the process", "internal/queue/queue.go",
		"\tclose(q.head.Head)\n", "",
		"TestQueueIsFirstComeFirstServed",
	},
	{
		"signal of a release", "internal/wake/wake.go",
		"if next != 0 && w.Signal {", "if false {",
		"TestSignalWakesTheHead",
	},
	{
		"poller", "internal/wake/poller.go",
		"\t\t\tp.found(name)\n\t\tdefault:\n\t\t\tw.expiry.Reset(row.Remaining)", "\t\tdefault:\n\t\t\tw.expiry.Reset(row.Remaining)",
		"TestPoller",
	},
	{
		"a waiter that was removed joins the wait queue again", "internal/wake/poller.go",
		"row.Grantee == p.Self, p.Signal && !row.Waiting:", "row.Grantee == p.Self:",
		"TestWaiterThatStopsListening",
	},
	{
		"a signal may be for a row that is not free", "internal/wake/poller.go",
		"unexplained = len(p.watched) > 1 && len(granted) == 0\n", "",
		"TestSignalForALockThatIsHeld",
	},
	{
		"an attempt behind a locked row is not cut off", "attempt.go",
		"if a.locked.Load() && time.Since(began) < store.LockWaitTimeout", "if a.locked.Load() && time.Since(began) < 0",
		"TestRowLockedByATransaction",
	},
	{
		"the number of statements that wait in the server is limited", "internal/store/waiting.go",
		"taken || w.count[class] >= most {", "taken {",
		"TestStatementsBehindLockedRows",
	},
	{
		"a statement keeps its slot if its connection breaks while it waits", "internal/store/acquire.go",
		"left, err = true, &abandonedWait{err, req.Claim, acquireWaits}", "err = errors.New(err.Error())",
		"TestConnectionCutOffBehindALockedRow",
	},
	{
		"a queued call returns the error of the head", "internal/outage/outage.go",
		"case e.failed != nil:\n\t\treturn Verdict{Err: e.failed}\n", "",
		"TestDatabaseThatCannotBeAsked/./(dead|died)",
	},
	{
		"a queued call reports that the head's statement has no reply", "internal/outage/outage.go",
		"case !e.known, time.Since(e.asked) > replyTimeout, e.granted && time.Since(e.asked) > replyTimeoutAfterHold:\n\t\treturn Verdict{Err: ErrNoAnswer}\n", "",
		"TestDatabaseThatCannotBeAsked/./black_hole",
	},
	{
		"a probe that finds the row locked counts as a refusal", "internal/outage/outage.go",
		"e.known, e.granted, e.failed, e.asked = true, false, nil, time.Now()", "e.failed = nil",
		"TestLockThatIsBusy/./(row_locked|guarded)",
	},
	{
		"an expired time limit of the DSN is not reported as the caller's", "internal/outage/outage.go",
		"return Describe(err) // the DSN", "return err // the DSN",
		"TestDialTimeout",
	},
	{
		"a locked entry of the guard index is skipped too", "internal/store/sql/fragments/unlocked.sql",
		"STRAIGHT_JOIN {t} AS g FORCE INDEX (guard) ON g.token = p.token AND g.name = p.name\n", "",
		"TestStatementsBehindLockedRows",
	},
	{
		"a listener gives up its connection when the pool is exhausted", "internal/store/listen.go",
		"stats.WaitCount > s.waitCount:", "false:",
		"TestListeningInALimitedPool",
	},
	{
		"a time limit of the session does not end listening", "internal/store/sql/fragments/select_unlimited.sql",
		"MAX_EXECUTION_TIME(60000)", "NO_INDEX_MERGE()",
		"TestTimeLimitIsNoSignal",
	},
	{
		"a loss that Guard finds ends the hold", "guard.go",
		"\tl.watchdog.OwnerChanged(ls.Claim)\n", "",
		"TestLossFoundByGuard",
	},
	{
		"Guard reads before it locks", "internal/store/guard.go",
		"lock(\"guard\"); err", "lock(\"guard_now\"); err",
		"TestFailedGuardHoldsUpNobody",
	},
	{
		"a row that the transaction cannot see yet is guarded", "internal/store/guard.go",
		"err == nil && !owned {\n\t\treturn ErrNotOwned\n\t}\n\t// The snapshot", "err == nil || !owned {\n\t\treturn ErrNotOwned\n\t}\n\t// The snapshot",
		"TestGuardInAnOlderSnapshot",
	},
	{
		"a Guard elsewhere is no loss", "internal/store/guard.go",
		"if owned, err := s.stillOwned(ctx, c); err == nil && owned {", "if owned, err := s.stillOwned(ctx, c); err != nil && owned {",
		"TestGuardInAnotherDatabase",
	},
	{
		"Guard requires an open transaction", "internal/store/guard.go",
		"if err := s.requireTransaction(ctx, tx); err != nil {", "if err := s.requireTransaction(ctx, tx); err == ErrPanic {",
		"TestGuardNeedsATransaction",
	},
	{
		"the server ends a wait of ForceUnlock", "internal/store/sql/seize.sql",
		"SET STATEMENT max_statement_time = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1000) */", "SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */",
		"TestForceUnlockGivenUp",
	},
	{
		"ForceUnlock keeps waiting", "internal/store/force.go",
		"case err == errGuarded:", "case false:",
		"TestForceUnlockWaitsForGuards",
	},
	{
		"ForceUnlock names what it has waited for", "internal/store/force.go",
		"guarded = err", "guarded = nil",
		"TestForceUnlockNamesTheGuard",
	},
	{
		"Do reports that Close released the lock", "lock.go",
		"errors.Is(unlockErr, ErrLost) || errors.Is(unlockErr, ErrClosed) {", "errors.Is(unlockErr, ErrLost) {",
		"TestDoWhileClosing",
	},
	{
		"a call whose context Close has ended reports that", "outcome.go",
		"if l.isClosed() {\n\t\treturn ErrClosed\n\t}\n", "",
		"TestCloseEndsWaitsUnderALock",
	},
	{
		"a session with an open transaction is refused", "internal/store/settings.go",
		"} else if inTransaction(conn) {", "} else if false {",
		"TestTransactionLeftOpen$",
	},
	{
		"an open transaction is checked with the server", "internal/store/settings.go",
		"if _, err := s.exec(ctx, conn, s.command(\"ask_status\")); err != nil {", "if err := ctx.Err(); err != nil {",
		"TestTransactionEndedByTheServer",
	},
	{
		"a connection with an open transaction is skipped", "internal/store/conn.go",
		"!inTransaction(conn) || s.PoolInUse() {", "!inTransaction(conn) || true {",
		"TestTransactionLeftOpenInALargerPool",
	},
	{
		"a poller that has ended does not close the next one's listener", "internal/wake/poller.go",
		"defer timer.Stop()\n\tvar idle time.Duration", "defer timer.Stop()\n\tdefer p.listener.close()\n\tvar idle time.Duration",
		"TestWaiterArrivesWhilePollerEnds",
	},
	{
		"undo after errors that leave the outcome unknown", "internal/store/errors.go",
		"return !rejected(errorNumber(err))", "return errorNumber(err) == 1180",
		"TestLostBackend",
	},
	{
		"errors of a proxy's client library are retried", "internal/store/errors.go",
		"return 2000 <= n && n < 3000", "return false",
		"TestLostBackend",
	},
	{
		"a release that is sent twice recognizes the row that it freed", "internal/store/sql/release.sql",
		"owner IN ({owner}, {released})", "owner IN ({owner}, {owner})",
		"TestRepeatedRelease",
	},
	{
		"a release that does not wait and is sent twice recognizes the row that it freed", "internal/store/hold.go",
		"owned = append(owned, c.Name+c.Owner, c.Name+released(c.Owner))", "owned = append(owned, c.Name+c.Owner)",
		"TestRepeatedRelease",
	},
	{
		"a release does not succeed for a lock that ForceUnlock has freed", "internal/store/sql/force.sql",
		"_ascii'!'", "_ascii'-'",
		"TestRepeatedRelease",
	},
	{
		"an acquire that is sent twice recognizes its grant", "internal/store/sql/take.sql",
		"IF(owner = {owner}, IF(mode = 0,", "IF(FALSE, IF(mode = 0,",
		"TestRepeatedAcquire",
	},
	{
		"a replacement that is sent twice recognizes its grant", "internal/store/sql/replace.sql",
		"({replaced} OR owner = {owner})", "{replaced}",
		"TestRepeatedAcquire",
	},
	{
		"a restored process does not repeat an owner id", "internal/store/process.go",
		"cryptorand.Read(random[:])", "cryptorand.Read(random[:0])",
		"TestRestoredProcess",
	},
	{
		"servers without SKIP LOCKED are refused", "internal/store/settings.go",
		"case tooOld(first.Version):", "case false && tooOld(first.Version):",
		"TestServerTooOld",
	},
	{
		"reads of the library have no time limit", "internal/store/sql/look.sql",
		"{>select_brief}", "SELECT",
		"TestTimeLimitOfReads",
	},
	{
		"no time limit for Guard", "internal/store/sql/guard.sql",
		"{>select_unlimited}", "SELECT",
		"TestTimeLimitBehindALockedRow",
	},
	{
		"statements that wait for a locked row have no time limit", "internal/store/query.go",
		"if errorNumber(err) == 1969 {", "if false && errorNumber(err) == 1969 {",
		"TestTimeLimitBehindALockedRow",
	},
	{
		"no time limit for operators", "internal/store/sql/fragments/select_info.sql",
		"{>select_unlimited}", "SELECT",
		"TestTimeLimitOfOperators",
	},
	{
		"the statements of waiting processes are not in the slow log", "internal/store/listen.go",
		"\tconn.ExecContext(ctx, s.query(\"not_slow\"))", "\t_ = ctx",
		"TestWaitingIsNotSlow",
	},
	{
		"an acquire that waits for no row lock and is sent twice recognizes its grant", "internal/store/acquire.go",
		"\" OR p.owner = \" + literal(req.Owner)", "\" OR p.owner = \" + literal(\"\")",
		"TestRepeatedAcquire",
	},
	{
		"waiters stay in the queue after an acquire that is sent twice", "internal/store/sql/fragments/waiters_after_take.sql",
		" OR {r}expires_at > {>now} OR {>reserved}, {r}waiters,", " OR {>reserved}, {r}waiters,",
		"TestRepeatedAcquire",
	},
	{
		"a row that a batch skips is renewed separately", "internal/lease/single.go",
		"if ls.single || d.single == maxSingle {", "if ls.single || d.single < maxSingle {",
		"TestRowPassedOver",
	},
	{
		"a renewal that is skipped for long is reported", "internal/lease/single.go",
		"if ls.trusted.Sub(now) < b.length/3 {", "if false {",
		"TestRowPassedOver|TestUncommittedRenewal",
	},
	{
		"Close releases separately the rows that a batch skips", "internal/undo/release.go",
		"\tr.releaseEach(ctx, skipped)", "\tr.releaseEach(ctx, skipped[:0])",
		"TestKilledStatement",
	},
	{
		"a release is retried while the server is read-only", "internal/undo/release.go",
		" || store.Demoted(err)", "",
		"TestReleaseDuringASwitchover",
	},
	{
		"a background release repeats separately the rows that a batch skips", "internal/undo/undo.go",
		"if skipped, err := r.release(r.group.Ctx, part); err == nil {", "if skipped, err := r.release(r.group.Ctx, part); false && err == nil {",
		"TestKilledStatement",
	},
	{
		"a read prolongs no trust", "internal/lease/renew.go",
		"case len(o.kept)+len(o.longer) == count &&", "case true ||",
		"TestUncommittedRenewal",
	},
	{
		"a renewal that may have counted an ended lease binds no row that expires later", "internal/lease/renew.go",
		" || !o.ended)", " || true)",
		"TestLeaseOfALockedRowIsNotBound",
	},
	{
		"an uncommitted change of owner is no loss", "internal/store/sql/read_committed.sql",
		"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "DO 0",
		"TestUncommittedChangeOfOwner",
	},
	{
		"a row is checked before a handoff", "handoff.go",
		"h.waiter.CanOffer() && l.confirmed(ls, now) &&", "h.waiter.CanOffer() &&",
		"TestHandoffOfARowTakenAway",
	},
	{
		"a release whose next try would be too late goes to the background", "hold.go",
		"time.Until(end) <= pause.Delay", "time.Until(end) <= 0",
		"TestUnlockThatFails",
	},
	{
		"an Unlock that matched nothing reads the row", "hold.go",
		"if err == nil && !matched || errors.Is(err, store.ErrRowLocked) {", "if !matched && errors.Is(err, store.ErrRowLocked) {",
		"TestKilledStatement",
	},
	{
		"an Extend that matched nothing reads the row", "hold.go",
		"if err == nil && !matched || errors.Is(err, store.ErrRowLocked) {", "if err == nil && !matched {\n\t\t\terr = ErrLost\n\t\t} else if errors.Is(err, store.ErrRowLocked) {",
		"TestKilledStatement",
	},
	{
		"a release that waits for a row keeps its slot", "internal/store/waiting.go",
		"left = err != nil && (ctx.Err() != nil || mayContinue(began, err)) && !errors.Is(err, driver.ErrBadConn); left {", "left = mayContinue(began, nil) && err == driver.ErrSkip && errors.Is(err, driver.ErrBadConn); left {",
		"TestHoldersBehindLockedRows",
	},
	{
		"an Extend that waits for a row is not cut off", "internal/store/waiting.go",
		"\tif !begun.CompareAndSwap(false, true) {\n\t\treturn reply{}", "\tif begun.Swap(true); false {\n\t\treturn reply{}",
		"TestHoldersBehindLockedRows",
	},
	{
		"a statement whose time limit has passed ends when the pool has a connection", "internal/store/conn.go",
		"if long.Err() == nil && s.PoolInUse() {", "if long.Err() == nil {",
		"TestTimeLimitWhileThePoolIsInUse",
	},
	{
		"a renewal does not wait for one that hangs", "internal/lease/renew.go",
		"stalled    = 100 * time.Millisecond", "stalled    = time.Hour",
		"TestRenewalBesideAHangingOne",
	},
	{
		"a renewal whose reply follows the loss does not revive the lock", "internal/lease/single.go",
		"if ls.expired && err == nil && owned && d.group.Ctx.Err() == nil {", "if false {",
		"TestSingleRenewalAfterTheLoss",
	},
	{
		"a renewal whose reply arrives during an Unlock does not undo the Unlock", "internal/lease/single.go",
		"if ls.expired && err == nil && owned && d.group.Ctx.Err() == nil {", "if ls.ended && err == nil && owned && d.group.Ctx.Err() == nil {",
		"TestUnlockDuringASingleRenewal",
	},
	{
		"a release on the only connection of a pool does not wait for a row", "internal/store/waiting.go",
		"only := s.db.Stats().MaxOpenConnections == 1", "only := false",
		"TestPoolOfOne",
	},
	{
		"a hold that has ended does not refuse a call", "internal/outage/outage.go",
		"= true, true, granted, nil, nil", "= true, true, false, nil, nil",
		"TestDatabaseThatCannotBeAskedAfterAHold",
	},
	{
		"a call with wait 0 returns the error of the call that waits", "acquire.go",
		"if err := evidence.LookErr(); err != nil {", "if err := evidence.LookErr(); false {",
		"TestDatabaseThatCannotBeAskedBesideAWaiter",
	},
	{
		"Guard does not report a loss because of an uncommitted change", "internal/store/guard.go",
		"\towned, err := StillOwned(ctx, s, []Claim{c})\n\treturn len(owned) > 0, err", "\trows, _, err := s.Look(ctx, []string{c.Name})\n\treturn rows[c.Name].Owner == c.Owner, err",
		"TestGuardBesideAnUncommittedChange",
	},
	{
		"ForceUnlock pauses before it retries", "internal/store/force.go",
		"pause = min(2*pause, 100*time.Millisecond)", "pause = 0",
		"TestForceUnlockBesideAnUncommittedHolder",
	},
	{
		"a statement on a dead connection gives up its slot", "internal/store/waiting.go",
		"left := sent && mayContinue(began, err) && !over", "left := sent && mayContinue(began, err); _ = over",
		"TestSlotOfAStatementOnADeadConnection",
	},
	{
		"a cut-off statement keeps its slot behind a held row, too", "internal/store/waiting.go",
		"(err != nil || state >= RowLocked)", "(err != nil || state == RowLocked)",
		"TestCutOffBehindALockedRowThatIsHeld",
	},
	{
		"the undo of an attempt does not end the wait of another", "internal/store/waiting.go",
		" && (!lost || w.class == holdWaits && w.claim == c) {", " {",
		"TestCutOffBehindALockedRowThatIsHeld",
	},
	{
		"a probe that finds the lock taken ends an outage", "internal/outage/outage.go",
		"true, false, nil, time.Now()\n\t\te.lookErr = nil\n", "true, false, nil, time.Now()\n",
		"TestBusyAfterAnOutage",
	},
	{
		"first grants that wait in the server have few slots", "internal/store/acquire.go",
		"s.rowWaits.enterFirst(ctx, name, s.slots(firstGrantWaits))", "s.rowWaits.enterFirst(ctx, name, 1000)",
		"TestFirstGrantsBehindLockedRows",
	},
	{
		"a first grant that waits keeps its connection", "internal/store/acquire.go",
		"own, cancel := context.WithTimeout(s.lifetime, s.firstGrantTimeout())\n\tbegan := time.Now()\n\tvar dead", "own, cancel := context.WithCancel(ctx)\n\tbegan := time.Now()\n\tvar dead",
		"TestFirstGrantsBehindLockedRows",
	},
	{
		"Purge deletes without waiting for rows that others have locked", "internal/store/sql/delete.sql",
		"LIMIT {count} FOR UPDATE SKIP LOCKED", "LIMIT {count} FOR UPDATE",
		"TestPurgeBesideALockedRow",
	},
	{
		"affected rows are counted before the connection is returned", "internal/store/query.go",
		"\tif r.answer, err = res.LastInsertId(); err == nil {", "\tconn.Close()\n\tif r.answer, err = res.LastInsertId(); err == nil {",
		"TestRenewalLeavesItsConnection",
	},
	{
		"a first grant on a dead connection gives up its slot", "internal/store/acquire.go",
		"missed < 2;", "missed < 1000;",
		"TestFirstGrantOnADeadConnection",
	},
	{
		"a first grant that does not use its slot gives it to the next", "internal/store/waiting.go",
		"\t\t\tif taken {\n\t\t\t\tw.wakeNext()", "\t\t\tif taken && name == \"\" {\n\t\t\t\tw.wakeNext()",
		"TestFirstGrantPassesItsSlotOn",
	},
	{
		"a slot that is freed twice frees no other's", "internal/store/waiting.go",
		"\tif !ok {\n\t\treturn\n\t}\n\tdelete(w.rows, name)", "\tif !ok {\n\t}\n\tdelete(w.rows, name)",
		"TestSlotIsFreedOnce",
	},
	{
		"a session that has expired stays dead", "internal/store/sql/fragments/alive.sql",
		" AND expires_at > {>now}", "",
		"TestDeadSessionStaysDead",
	},
	{
		"a copy of the statement that began a session does not revive it", "internal/store/sql/fragments/session_begins.sql",
		"{t}.session = {id} AND {t}.expires_at > {>now})", "{t}.session = {id})",
		"TestDeadSessionStaysDead",
	},
	{
		"a session does not begin after a later one", "internal/store/sql/fragments/session_begins.sql",
		"({t}.session < {id} OR", "({t}.session <> {id} OR",
		"TestDeadSessionStaysDead",
	},
	{
		"a late statement does not bind a row to an earlier session", "internal/store/session.go",
		"GREATEST(\" + r + \"session, \" + id.String() + \"), \"", "GREATEST(0, \" + id.String() + \"), \"",
		"TestLateBinding",
	},
	{
		"an acquire finds rows that a session keeps", "internal/store/sql/take.sql",
		"IF(session IN (0, {dead}),", "IF(TRUE,",
		"TestSessionKeepsBoundRows",
	},
	{
		"an acquire that joins the wait queue finds rows that a session keeps", "internal/store/sql/fragments/unbound.sql",
		"{r}session IN (0, {dead})", "{r}session <> {dead} + 1",
		"TestBoundRowIsNotTakenByAWaiter",
	},
	{
		"a contender reads the session", "internal/store/session.go",
		"case session.Micros > 0:", "case session.Micros > 0 && req.Name == \"\":",
		"TestSessionKeepsBoundRows",
	},
	{
		"a contender marks a session dead before it takes its lock", "internal/store/session.go",
		"case session.Name != \"\":", "case session.Name == \"x\":",
		"TestTakeoverIsFinal",
	},
	{
		"only a session that has expired is marked dead", "internal/store/sql/mark_dead.sql",
		" AND expires_at <= {>now}", "",
		"TestClockSetBackBeforeATakeover",
	},
	{
		"a new holder is not bound to the session of the last", "internal/store/sql/fragments/set_take_or_enlist.sql",
		"session = IF({r}mode = 0 AND {>available}, 0, {r}session),\n", "",
		"TestTakeoverIsFinal",
	},
	{
		"a copy of an acquire leaves the row bound", "internal/store/sql/fragments/set_take_or_enlist.sql",
		"session = IF({r}mode = 0 AND {>available}, 0, {r}session)", "session = IF({r}mode = 0 AND ({>available} OR {r}owner = {owner}), 0, {r}session)",
		"TestCopiesAfterTheBinding",
	},
	{
		"a copy of an acquire does not shorten the lease", "internal/store/sql/fragments/set_take_or_enlist.sql",
		"GREATEST({r}expires_at, {>new_lease})", "{>new_lease}",
		"TestCopiesAfterTheBinding",
	},
	{
		"a copy of an acquire that skips locked rows does not shorten the lease", "internal/store/sql/take_unlocked.sql",
		"IF(mine.copied, GREATEST(l.expires_at, {>new_lease}), {>new_lease})", "{>new_lease}",
		"TestCopiesAfterTheBinding",
	},
	{
		"a copy of a replacement does not shorten the lease", "internal/store/sql/replace.sql",
		"IF(owner = {owner}, GREATEST(expires_at, {>new_lease}), {>new_lease})", "{>new_lease}",
		"TestCopiesAfterTheBinding",
	},
	{
		"a copy of the statement that began a session does not shorten it", "internal/store/sql/begin_session.sql",
		"GREATEST({t}.expires_at, {>new_lease})", "{>new_lease}",
		"TestCopiesAfterTheBinding",
	},
	{
		"a released row is not bound to a session", "internal/store/sql/fragments/set_freed.sql",
		"{r}session = 0,\n", "",
		"TestSessionKeepsBoundRows",
	},
	{
		"a session is renewed without waiting for its row", "internal/store/sql/renew_session.sql",
		"LIMIT 1 FOR UPDATE SKIP LOCKED", "LIMIT 1 FOR UPDATE",
		"TestSessionRowLocked",
	},
	{
		"a locked session does not count as dead", "internal/store/session.go",
		"if alive {\n\t\t\t\terr = ErrRowLocked", "if alive && sent.IsZero() {\n\t\t\t\terr = ErrRowLocked",
		"TestSessionRowLocked",
	},
	{
		"Purge deletes no lock that a session keeps", "internal/store/sql/idle_names.sql",
		" AND s.name IS NULL", "",
		"TestPurgeOfSessions",
	},
	{
		"Close ends the session", "close.go",
		"l.watchdog.EndSession(ctx); err != nil", "ctx.Err(); err != nil",
		"TestCloseEndsTheSession",
	},
	{
		"Close waits for a loss in progress", "hold.go",
		"\tdefer l.working.Done()\n\treason", "\tl.working.Done()\n\treason",
		"TestCloseDuringALoss",
	},
	{
		"ForceUnlock reports that it begins", "internal/store/force.go",
		"if err := f.markForced(ctx, claims); Contended(err) {", "if err := ctx.Err(); Contended(err) {",
		"TestForceUnlockThatDies",
	},
	{
		"ForceUnlock reports again after the commit", "internal/store/force.go",
		"if f.Store.markForced(ctx, p) == nil {", "if p > 0 {",
		"TestForceUnlockBehindAGuardIsReported",
	},
	{
		"ForceUnlock signals the holder", "internal/store/force.go",
		"\t\t\tf.Signal(ctx, p) // if", "\t\t\t_ = p // if",
		"TestForceUnlockSignal",
	},
	{
		"a signal leaves a listener open", "internal/store/listen.go",
		"open = err == nil", "_ = open",
		"TestContract/mariadb/a_process_that_does_not_listen",
	},
	{
		"a listener notices a forced release", "internal/store/sql/listen.sql",
		"AND a.forced = {forced}, {>sleep}", ", {>sleep}",
		"TestForcedReleaseIsReported",
	},
	{
		"one listener sleeps, the others wait for it", "internal/store/sql/fragments/sleep.sql",
		"IS_USED_LOCK(_ascii'mysqllock:sleeper') = CONNECTION_ID()", "TRUE",
		"TestSignalsToManyListeners",
	},
	{
		"a signal to a listener that waits for the one that sleeps", "internal/store/sql/fragments/sleep.sql",
		", 1)) */", ", 0)) */",
		"TestSignalsToManyListeners",
	},
	{
		"a listener sleeps on when another one leaves", "internal/store/listen.go",
		"err != nil || answer.Ended != endedEarly", "err != nil || answer.Ended != endedBySignal",
		"TestContract/mariadb/a_listener_sleeps_on",
	},
	{
		"rows are checked for a lease after a forced release", "internal/lease/session.go",
		"\t\ts.audits = 1 + auditsAfterForce\n", "\t\ts.audits = 1\n",
		"TestForcedReleaseAfterTheFirstCheck",
	},
	{
		"the rows of a session are compared with the locks once a lease", "internal/lease/session.go",
		"compare = r.Moved || s.renewals%3 == 0", "compare = r.Moved",
		"TestBoundRowDeleted",
	},
	{
		"the rows of a session are compared with the locks when another server replies", "internal/lease/session.go",
		"compare = r.Moved || s.renewals%3 == 0", "compare = s.renewals%3 == 0",
		"TestRowsAfterAFailover",
	},
	{
		"a row that the session keeps, but that belongs to no lock, is released", "internal/lease/compare.go",
		"\t\t\td.Releaser.Add(c, UntilReleased, false, at)\n", "",
		"TestRowsAfterAFailover",
	},
	{
		"a lost session is final", "internal/lease/session.go",
		"d.session == s && time.Now().Before(s.trusted) && until.After(s.trusted)", "until.After(s.trusted)",
		"TestLateRenewalBeforeALateTimer",
	},
	{
		"the loss of a session is the loss of its locks", "internal/lease/session.go",
		"\t\tdefault:\n\t\t\td.expire(ls)\n\t\t\tlost = append(lost, ls)", "\t\tdefault:\n\t\t\tls.due = at",
		"TestLossOfASession",
	},
	{
		"a lock with a lease of its own outlives its session", "internal/lease/session.go",
		"case at.Before(ls.ownEnd()):", "case at.Before(s.renewed):",
		"TestLossOfASession",
	},
	{
		"Err compares the clock with the end of the session", "internal/lease/lease.go",
		"return s != nil && at < s.until.Load()", "return s != nil && s.until.Load() > math.MinInt64",
		"TestLossOfASessionWithALateTimer",
	},
	{
		"Err compares the clock with the end of the lease", "internal/lease/lease.go",
		"if at < ls.live.until.Load() {", "if ls.live.until.Load() > math.MinInt64 {",
		"TestLossWithALateTimer",
	},
	{
		"the release of a bound row is repeated until its outcome is known", "internal/lease/watchdog.go",
		"if ls.mayBeBound {\n\t\treturn UntilReleased", "if ls.mayBeBound && ls.Claim.Name == \"\" {\n\t\treturn UntilReleased",
		"TestReleaseOfABoundRow",
	},
	{
		"the release of a row is repeated in the same way if the reply to its binding was lost", "internal/lease/renew.go",
		"ls.mayBeBound = ls.mayBeBound || b.session != nil", "ls.mayBeBound = ls.session != nil",
		"TestReleaseOfARowBoundByALostReply",
	},
	{
		"no session begins beside one that may wait in the server", "internal/lease/session.go",
		"case cut:\n\t\td.beginAfter = time.Now().Add(store.LockWaitTimeout)", "case cut:\n\t\td.beginAfter = time.Now().Add(retry)",
		"TestSessionThatDoesNotBegin",
	},
	{
		"UnlockAfter registers before its statement", "minhold.go",
		"\tl.releaser.AddAfter(c, m, end)", "\t_ = end",
		"TestUnlockAfterIsRepeated",
	},
	{
		"UnlockAfter unbinds the row", "internal/store/sql/release_after.sql",
		"  l.session = 0,\n", "",
		"TestContract/./a_row_that_is_given_back_stays_taken",
	},
	{
		"UnlockAfter marks the owner id", "internal/store/sql/release_after.sql",
		"INSERT(l.owner, 1, 1, IF(mine.taken_until > {>now}, _ascii'+', _ascii'-'))", "IF(mine.taken_until > {>now}, l.owner, {released})",
		"TestContract/./nothing_but_force",
	},
	{
		"a detached row is not bound to a session", "internal/store/sql/detach.sql",
		"  l.session = 0,\n", "",
		"TestContract/./a_detached_row_is_attached_once",
	},
	{
		"a ticket ends with its lease", "internal/store/sql/attach.sql",
		"owner = {owner} OR expires_at > {>now} AS granted", "TRUE AS granted",
		"TestTicketsThatAreLost",
	},
	{
		"an Attach with unknown outcome is undone", "detach.go",
		"if maybe { // after attachError", "if false { // after attachError",
		"TestAttachGivenUp",
	},
	{
		"an Attach that ends while it waits for a locked row reports no outage", "detach.go",
		"if ctx.Err() != nil && store.Transient(err) && l.rowLocked(c) {", "if ctx.Err() != nil && store.Transient(err) && l.rowLocked(c) && false {",
		"TestErrorsOfAttach",
	},
	{
		"a Detach with unknown outcome is undone", "detach.go",
		"if maybe {\n\t\tl.releaser.Add(store.Claim", "if false {\n\t\tl.releaser.Add(store.Claim",
		"TestDetachWithUnknownOutcome",
	},
	{
		"Detach signals the next waiter", "detach.go",
		"\t\tl.waker.Released([]string{req.Name}, next) // waiters", "\t\t_ = next // waiters",
		"TestSignalForALockThatIsHeld",
	},
	{
		"a grant that was freed by force before it arrived is lost", "internal/lease/watchdog.go",
		"gone := d.gone[c]; gone && sent.Before(at) {", "gone := d.gone[c]; gone && at.IsZero() {",
		"TestForceUnlockOfAGrantOnItsWay",
	},
	{
		"a claim that was freed by force may be granted later", "internal/lease/watchdog.go",
		"gone && sent.Before(at) {", "gone && !at.IsZero() {",
		"TestForceUnlockOfAClaim",
	},
	{
		"a grant that counts as lost because its claim was freed is released", "internal/lease/watchdog.go",
		"\t\td.Releaser.Add(c, d.span(ls), false, time.Now()) // or was granted before that was known\n", "",
		"TestForceUnlockOfAClaim",
	},
	{
		"a handoff writes another holder", "handoff.go",
		"if offer.holder != c.holder {", "if false {",
		"TestWithHolderOfWaiters",
	},
	{
		"DoTx puts the transaction under Guard", "tx.go",
		"err = k.Guard(txCtx, tx)", "err = txCtx.Err()",
		"TestDoTx",
	},
	{
		"a loss does not roll DoTx back", "tx.go",
		"err != nil || !stop() {", "err != nil || stop == nil {",
		"TestDoTxAfterALoss",
	},
	{
		"the server ends a statement that waits for a locked table", "internal/store/sql/fragments/select_brief.sql",
		"lock_wait_timeout = 2", "lock_wait_timeout = 3600",
		"TestStatementsBehindALockedTable",
	},
	{
		"a reply that a trigger hides is read", "internal/store/query.go",
		"r.rows > 0 && r.answer == 0 {", "r.rows > 0 && r.answer == 0 && false {",
		"TestTriggers",
	},
	{
		"the row is read if a trigger hides a refusal", "internal/store/acquire.go",
		"if err == nil && r.answer == 0 && req.Replaces == \"\" {", "if false {",
		"TestTriggers",
	},
	{
		"a process does not listen on a server that limits its threads", "internal/store/sql/fragments/limited.sql",
		"@@global.innodb_thread_concurrency + ", "",
		"TestWaitersOfALimitedServer",
	},
	{
		"CreateTable only reads if the table exists", "internal/store/admin.go",
		"\"has_high_water\") != nil {", "\"has_high_water\") != nil || n > 0 {",
		"TestCreateTableDuringABackup",
	},
	{
		"a row is reserved although the statement began before its release", "internal/store/sql/fragments/reserved.sql",
		"AND {>now} + INTERVAL 1500000 MICROSECOND", "AND {>now}",
		"TestReservedByALaterRelease",
	},
}
