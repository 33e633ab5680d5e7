package main

// A mutation takes one condition out of the source of the root package.
type mutation struct {
	what     string // is taken out
	file     string
	old, new string // of the source; old stands there once
	tests    string // a pattern of tests that must notice
}

var mutations = []mutation{
	{
		"owner check in release", "repository.go",
		"sqlFree + ` WHERE name = {name} AND owner = {owner} AND @@autocommit`", "sqlFree + ` WHERE name = {name} AND LENGTH({owner}) > 0 AND @@autocommit`",
		"TestOnlyTheHolderReleases",
	},
	{
		"owner check in renewal and release of many", "repository.go",
		"sqlPick + `owner IN ({owners})` + sqlPicked", "sqlPick + `'' NOT IN ({owners})` + sqlPicked",
		"TestLossIsLearnt",
	},
	{
		"owner check in Extend", "repository.go",
		"WHERE name = {name} AND owner = {owner} AND @@autocommit`\n\n\t// The derived table", "WHERE name = {name} AND LENGTH({owner}) > 0 AND @@autocommit`\n\n\t// The derived table",
		"TestOnlyTheHolderReleases",
	},
	{
		"expiry check in acquire", "repository.go",
		"AND IF(expires_at <= ` + sqlNow + ` AND waiters = x'', 1,", "AND IF(waiters = x'', 1,",
		"TestWait|TestAcquireAndRelease",
	},
	{
		"order of the waiting processes in acquire", "repository.go",
		"` AND waiters = x'', 1,", "`, 1,",
		"TestReservation|TestOrder",
	},
	{
		"UTC", "repository.go",
		`sqlNow = "UTC_TIMESTAMP(6)"`, `sqlNow = "NOW(6)"`,
		"TestSessions/./time_zone",
	},
	{
		"microseconds", "repository.go",
		`sqlNow = "UTC_TIMESTAMP(6)"`, `sqlNow = "UTC_TIMESTAMP()"`,
		"TestSessions/./default",
	},
	{
		"token above the one before", "repository.go",
		"token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)), acquired_at = ` + sqlNow + `,\n  expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND\nWHERE name = {name} AND @@autocommit AND IF(",
		"token = LAST_INSERT_ID(` + sqlMicros + `), acquired_at = ` + sqlNow + `,\n  expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND\nWHERE name = {name} AND @@autocommit AND IF(",
		"TestTokens",
	},
	{
		"token above the clock", "repository.go",
		`sqlMicros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + sqlNow + ")"`, `sqlMicros = "0"`,
		"TestTokens",
	},
	{
		"token above those that were purged", "repository.go",
		"GREATEST(COALESCE(` + sqlWater + `.token, 0) + 256, ` + sqlMicros + `)", "` + sqlMicros + `",
		"TestTokens|TestPurge",
	},
	{
		"high-water row raised by Purge", "repository.go",
		"SET token = GREATEST(token, {token}) WHERE name = x''", "SET token = token WHERE {token} AND name = x''",
		"TestTokens|TestPurge",
	},
	{
		"first grants wait for Purge", "repository.go",
		"WHERE s.trusted\nLOCK IN SHARE MODE\nON DUPLICATE", "WHERE s.trusted\nON DUPLICATE",
		"TestFirstGrantWaitsForPurge",
	},
	{
		"autocommit checked by the statements", "repository.go",
		"WHERE name = {name} AND @@autocommit AND IF(", "WHERE name = {name} AND IF(",
		"TestSessionsRefused",
	},
	{
		"a clock that stands still is refused", "repository.go",
		"case first.Instant == second.Instant:", "case false:",
		"TestSessionsRefused",
	},
	{
		"rows that somebody has locked are passed over", "repository.go",
		"LIMIT {count} FOR UPDATE SKIP LOCKED\n) AS mine", "LIMIT {count} FOR UPDATE\n) AS mine",
		"TestRowLocks|TestGuard|TestTenThousandHeld",
	},
	{
		"a late renewal does not shorten a newer one", "repository.go",
		"SET {holds}l.expires_at = GREATEST(l.expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)`", "SET {holds}l.expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND`",
		"TestRenewalKeepsALongerLease",
	},
	{
		"lock of the guard", "repository.go",
		"AND name = {name} LOCK IN SHARE MODE`", "AND name = {name}`",
		"TestGuard",
	},
	{
		"token checked by the guard", "repository.go",
		"FORCE INDEX (guard) WHERE token = {token} AND name = {name} LOCK IN SHARE MODE`", "FORCE INDEX (guard) WHERE {token} AND name = {name} LOCK IN SHARE MODE`",
		"TestGuard",
	},
	{
		"ForceUnlock moves the token", "repository.go",
		"`UPDATE {t} SET token = token + 256, ` + sqlFree", "`UPDATE {t} SET ` + sqlFree",
		"TestForceUnlock|TestGuard",
	},
	{
		"a lease counts from before the request", "repository.go",
		"\t\tg.sent = sent\n", "\t\tg.sent = sent.Add(time.Since(sent))\n",
		"TestLeaseCountsFromTheRequest",
	},
	{
		"margin", "renew.go",
		"return max(min(length/10, time.Second), length/1000)", "return 0",
		"TestLossWithoutAnAnswer|TestFixedLeaseEnds",
	},
	{
		"timer of a loss", "renew.go",
		"ls.timer = time.AfterFunc(time.Until(ls.trusted), func() { d.expire(ls) })", "ls.timer = time.AfterFunc(time.Hour, func() { d.expire(ls) })",
		"TestLossWithoutAnAnswer",
	},
	{
		"Err and Guard compare the clock", "renew.go",
		"if !ls.over && !time.Now().Before(ls.end()) {\n\t\td.lapse(ls)", "if false {\n\t\td.lapse(ls)",
		"TestLossWithALateTimer",
	},
	{
		"a lost lease stays lost", "renew.go",
		"if !ls.over && time.Now().Before(ls.end()) && until.After(ls.trusted) {", "if until.After(ls.trusted) {",
		"TestLateRenewalDoesNotRevive|TestEndedLeaseStaysEnded|TestEndedPassedOnLeaseStaysEnded",
	},
	{
		"a renewal that failed is tried again", "renew.go",
		"ls.due = time.Now().Add(retry)\n\t\t}\n\t\td.mu.Unlock()\n", "ls.due = time.Now().Add(time.Hour)\n\t\t}\n\t\td.mu.Unlock()\n",
		"TestFailedRenewalIsTriedAgain",
	},
	{
		"a row that was taken away is a loss", "renew.go",
		"case !ok || r.owner != ls.claim.owner:", "case !ok && r.owner != ls.claim.owner:",
		"TestRenewalThatFindsTheRowLost",
	},
	{
		"a lease that the row does not cover is not passed on", "renew.go",
		"case !w.auto && (ls.promised.Before(w.until) || ls.trusted.Before(w.until.Add(-margin(length)))):", "case false:",
		"TestHandoffOfLeases|TestHandoffNearTheEndOfALease",
	},
	{
		"undo of unknown outcomes", "lock.go",
		"\tif unknown(a.err) {\n\t\ta.l.orphans.take(", "\tif false {\n\t\ta.l.orphans.take(",
		"TestUnknownOutcomeIsUndone|TestLostReplies",
	},
	{
		"undo is repeated", "undo.go",
		"case p.last:\n\t\t\tdelete", "case p.tries > 0:\n\t\t\tdelete",
		"TestUndoEnds|TestUnknownOutcomeIsUndone",
	},
	{
		"a grant that nobody wants is given back", "lock.go",
		"\t} else if a.grant.token > 0 {\n\t\ta.giveBack()", "\t} else if false {\n\t\ta.giveBack()",
		"TestAbandonedAttempt|TestBehindALockedRow",
	},
	{
		"a caller who stays for an answer is let go", "lock.go",
		"defer context.AfterFunc(c.ctx, func() { time.AfterFunc(haste, a.cancel) })()", "",
		"TestStay",
	},
	{
		"a caller who stayed too long gets nothing", "lock.go",
		"if err = c.over(); err == nil {", "if true {",
		"TestStay",
	},
	{
		"callers stay only while the database is quick", "lock.go",
		"a.err == nil && time.Since(start) < prompt", "start.Unix() > 0",
		"TestStay",
	},
	{
		"a grant that comes too late is none", "lock.go",
		"late := !time.Now().Before(trustedUntil(a.grant.sent, a.bid.lease))", "late := false",
		"TestGrantThatComesTooLate",
	},
	{
		"re-entry checks that the lease is alive", "lock.go",
		"if lost := l.check(t); lost || t.over != nil {", "if lost := false; t.over != nil && t.over != ErrLost {",
		"TestLossWithALateTimer|TestLossIsLearnt|TestHandles",
	},
	{
		"an attempt looks again after it was woken", "lock.go",
		"\tcase <-c.place.wake: // what it told is what this attempt will see\n\tdefault:", "\tdefault:",
		"TestHintBeforeAnAttempt|TestFalseHints",
	},
	{
		"a guarded lock is not passed on", "lock.go",
		"if !guarded && l.passOn(t) {", "if _ = guarded; l.passOn(t) {",
		"TestGuardedLockIsNotPassedOn",
	},
	{
		"tokens of a range are used up", "lock.go",
		"if left.last+1 >= left.tenure.token+tokenRange {", "if false {",
		"TestHandoffUsesUpItsTokens",
	},
	{
		"handoff within the process is bounded", "lock.go",
		"case time.Since(left.since) > handoffBound:", "case false:",
		"TestHandoffIsBounded",
	},
	{
		"who leaves passes on the turn", "lock.go",
		"func (l *Locker) leave(w *waiter) { l.discard(l.names.leave(w)) }", "func (l *Locker) leave(w *waiter) {}",
		"TestWaiterThatGivesUp|TestAbandonedAttempt",
	},
	{
		"wake-up when the holder's lease ends", "notify.go",
		"w.expiry = time.AfterFunc(max(left, time.Millisecond), func() { r.expired(w) })", "w.expiry = time.AfterFunc(time.Hour, func() { r.expired(w) })",
		"TestWaiterAsksAtTheHoldersExpiry",
	},
	{
		"wake-up of the next waiter of the process", "notify.go",
		"q.turn, q.asking = next, false\n\tclose(next.turn)", "q.turn, q.asking = next, false",
		"TestQueueIsFirstComeFirstServed",
	},
	{
		"ring of a release", "notify.go",
		"if heir != 0 && r.signal {\n\t\tr.mu.Lock()", "if false {\n\t\tr.mu.Lock()",
		"TestRingWakesTheFirst",
	},
	{
		"poller", "notify.go",
		"\t\t\tr.found(w)\n\t\tdefault:\n\t\t\tw.expiry.Reset(row.left)", "\t\tdefault:\n\t\t\tw.expiry.Reset(row.left)",
		"TestPoller",
	},
	{
		"who was struck off is listed again", "notify.go",
		"row.left <= 0, w.listed && !row.listed:", "row.left <= 0:",
		"TestWaiterThatGoesSilent",
	},
}
