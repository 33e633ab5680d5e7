package main

// shared has mutations of shared locks: admit and join, claim and promote, downgrade.
var shared = []mutation{
	{
		"a phase has a token above those of the preceding exclusive holds", "internal/store/sql/admit.sql",
		"IF(mine.admitted AND NOT mine.phase, GREATEST", "IF(mine.admitted AND mine.phase AND NOT mine.phase, GREATEST",
		"TestContract/./tokens_rise_from_exclusive",
	},
	{
		"a phase has one token", "internal/store/sql/admit.sql",
		"IF(mine.admitted AND NOT mine.phase, GREATEST", "IF(mine.admitted, GREATEST",
		"TestContract/./processes_hold_a_name_shared",
	},
	{
		"a shared request waits for a guard of the preceding exclusive hold", "internal/store/sql/admit.sql",
		" AND (p.mode = 1 OR g.name IS NOT NULL) AS admitted", " AS admitted",
		"TestGuardBeforeASharedHold",
	},
	{
		"a shared hold ends the preceding lease", "internal/store/sql/admit.sql",
		"  l.expires_at = IF(mine.admitted, TIMESTAMP'1970-01-01 00:00:00', l.expires_at),\n", "",
		"TestLeaseBeforeASharedHold",
	},
	{
		"a shared request locks no guard entry unless it may be admitted", "internal/store/sql/admit.sql",
		"ON g.token = IF(p.mode <> 1 AND {>available}, p.token, NULL)", "ON g.token = p.token",
		"TestDowngradeUnderGuard|TestGuardOfASharedHold",
	},
	{
		"an admitted request leaves the wait queue", "internal/store/sql/admit.sql",
		"l.waiters = IF(mine.admitted, mine.rest, mine.waiters)", "l.waiters = mine.waiters",
		"TestContract/./a_name_that_is_held_exclusively",
	},
	{
		"a shared request that is refused joins the wait queue", "internal/store/sql/admit.sql",
		"l.waiters = IF(mine.admitted, mine.rest, mine.waiters)", "l.waiters = IF(mine.admitted, mine.rest, l.waiters)",
		"TestContract/./a_name_that_is_held_exclusively",
	},
	{
		"after each admitted request, the name is reserved for the next one", "internal/store/sql/admit.sql",
		"  l.released_at = IF(mine.admitted, {>now}, l.released_at),\n", "",
		"TestContract/./a_name_is_reserved_for_the_next",
	},
	{
		"a copy of a request that was admitted is admitted", "internal/store/sql/admit.sql",
		"p.mode = 1 AND p.owner = {admitted} OR ({>available})", "({>available})",
		"TestContract/./a_repeated_shared_request",
	},
	{
		"autocommit checked by a shared request", "internal/store/sql/admit.sql",
		"WHERE p.name = {name} AND @@autocommit", "WHERE p.name = {name}",
		"TestStatementsWithoutAutocommit",
	},
	{
		"no shared hold joins a name that was claimed meanwhile", "internal/store/sql/fragments/in_phase.sql",
		"h.mode = 1 AND LEFT(h.owner, 1) = _ascii'*'", "h.mode = 1",
		"TestJoinAfterAChange",
	},
	{
		"join waits for a claim that is not committed", "internal/store/shared.go",
		"const lockInShareMode = \"LOCK IN SHARE MODE\"", "const lockInShareMode = \"\"",
		"TestJoinAfterAChange",
	},
	{
		"autocommit checked by join", "internal/store/sql/join.sql",
		" AND {condition} AND @@autocommit", " AND {condition}",
		"TestStatementsWithoutAutocommit",
	},
	{
		"two shared holds of one process have separate rows", "internal/store/sql/fragments/joins.sql",
		"({t}.owner = {owner} OR {t}.expires_at <= {>now} AND", "({t}.owner = {owner} OR",
		"TestContract/./two_shared_holds_of_one_process",
	},
	{
		"join finds rows that a session keeps", "internal/store/sql/fragments/joins.sql",
		" AND {t}.session IN (0, {dead}))", ")",
		"TestContract/./a_session_keeps_shared_holds",
	},
	{
		"a shared request that is sent twice recognizes its grant", "internal/store/sql/fragments/joins.sql",
		"({t}.owner = {owner} OR {t}.expires_at", "({t}.expires_at",
		"TestContract/./a_repeated_shared_request",
	},
	{
		"a copy of join does not shorten the lease", "internal/store/sql/join.sql",
		"GREATEST({t}.expires_at, {>new_lease})", "{>new_lease}",
		"TestContract/./a_repeated_shared_request",
	},
	{
		"a copy of join leaves the row bound", "internal/store/sql/join.sql",
		"session = IF({>joins} AND {t}.owner <> {owner}, 0, {t}.session)", "session = IF({>joins}, 0, {t}.session)",
		"TestContract/./a_repeated_shared_request",
	},
	{
		"the index entry of a shared hold differs from those that guards lock", "internal/store/sql/join.sql",
		"LAST_INSERT_ID({token}) | {>shared_bit}", "LAST_INSERT_ID({token})",
		"TestSharedBesideAGuardOfAnother",
	},
	{
		"Purge raises the high-water row to tokens, not to the column of a shared hold", "internal/store/purge.go",
		"f.Token&maxToken", "f.Token",
		"TestPurgeOfSharedHolds",
	},
	{
		"an attached shared hold has its token", "internal/store/sql/attach.sql",
		"CAST({>fencing_token} AS SIGNED)", "CAST(l.token AS SIGNED)",
		"TestContract/./operators",
	},
	{
		"operators see the token of a shared hold", "internal/store/sql/fragments/select_info.sql",
		"{>fencing_token} AS token", "l.token + 0 AS token",
		"TestContract/./operators",
	},
	{
		"a first shared hold has a token above those that were purged", "internal/store/sql/insert_shared.sql",
		"GREATEST(COALESCE(`high water`.token, 0) + 256, {>now_micros})", "{>now_micros}",
		"TestFirstGrantsWaitForPurge",
	},
	{
		"first shared holds wait for Purge", "internal/store/sql/insert_shared.sql",
		"WHERE @@autocommit\nLOCK IN SHARE MODE", "WHERE @@autocommit",
		"TestFirstGrantsWaitForPurge",
	},
	{
		"autocommit checked by a first shared hold", "internal/store/sql/insert_shared.sql",
		"WHERE @@autocommit\n", "",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a first shared hold beside a row that Purge left uses another", "internal/store/shared.go",
		"case errorNumber(err) == 1062:", "case false:",
		"TestFirstSharedHoldBesideItsRow",
	},
	{
		"a claim keeps out requests until it is granted", "internal/store/sql/claim.sql",
		"IF(mine.claimed, GREATEST(l.expires_at, {>now} + INTERVAL {claimLease} MICROSECOND),", "IF(mine.claimed, l.expires_at,",
		"TestClaimKeepsOthersOut",
	},
	{
		"each attempt prolongs the claim", "internal/store/sql/promote.sql",
		"GREATEST(l.expires_at, {>now} + INTERVAL {claimLease} MICROSECOND)", "l.expires_at",
		"TestContract/./a_claim_that_is_sent_again",
	},
	{
		"a claim that is sent twice recognizes itself", "internal/store/sql/claim.sql",
		"p.mode <> 0 AND (p.owner = {owner} OR p.owner <> {released} AND {>available}) AS claimed", "p.mode <> 0 AND p.owner <> {released} AND {>available} AS claimed",
		"TestContract/./a_repeated_claim",
	},
	{
		"a claim after its release claims nothing", "internal/store/sql/claim.sql",
		"p.mode <> 0 AND (p.owner = {owner} OR p.owner <> {released} AND {>available}) AS claimed", "p.mode <> 0 AND (p.owner = {owner} OR {>available}) AS claimed",
		"TestContract/./a_claim_that_comes_after",
	},
	{
		"a claim after its release takes no plain name", "internal/store/sql/claim.sql",
		"p.owner NOT IN ({owner}, {released}) AND {>available} AND g.name", "p.owner <> {owner} AND {>available} AND g.name",
		"TestClaimOfAPlainName",
	},
	{
		"a claim is released again after a release, because a late statement may make it again", "attempt.go",
		"a.l.releaser.AddSeveral(claim, lease, time.Now())", "a.l.releaser.Add(claim, lease, true, time.Now())",
		"TestLateClaim",
	},
	{
		"a claim goes to the front of the wait queue", "internal/store/sql/claim.sql",
		"CONCAT({enlist}, mine.rest)", "CONCAT(mine.rest, {enlist})",
		"TestContract/./waiting_shared_requests_are_admitted",
	},
	{
		"a copy of a claim leaves the wait queue as it was", "internal/store/sql/claim.sql",
		"mine.claimed AND NOT mine.listed AND", "mine.claimed AND",
		"TestContract/./a_repeated_claim",
	},
	{
		"a request that finds the name plain recognizes its grant", "internal/store/sql/claim.sql",
		"p.mode = 0 AND p.owner = {owner} AS granted", "p.mode = 0 AND p.owner = {owner} AND p.name = x'' AS granted",
		"TestClaimOfAPlainName",
	},
	{
		"a request that finds the name plain waits for its guard", "internal/store/sql/claim.sql",
		" AND {>available} AND g.name IS NOT NULL AS taken", " AND {>available} AS taken",
		"TestClaimOfAPlainName",
	},
	{
		"a request that finds the name plain gets a new token", "internal/store/sql/claim.sql",
		"IF(mine.taken,\n    LAST_INSERT_ID(GREATEST(l.token + 256, {>now_micros})),", "IF(mine.taken,\n    LAST_INSERT_ID(l.token),",
		"TestClaimOfAPlainName",
	},
	{
		"autocommit checked by a claim", "internal/store/sql/claim.sql",
		"WHERE p.name = {name} AND @@autocommit", "WHERE p.name = {name}",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a request that must not claim reads the shared holds first", "internal/store/claim.go",
		"if !req.MayClaim && !req.Claimed {\n\t\tleft", "if !req.MayClaim && !req.Claimed && s == nil {\n\t\tleft",
		"TestContract/./a_request_that_must_not_claim",
	},
	{
		"a request that must not claim joins the wait queue", "internal/store/claim.go",
		"left > 0 && req.EnlistAs != 0 {", "left > 0 && req.EnlistAs != 0 && s == nil {",
		"TestContract/./a_request_that_must_not_claim",
	},
	{
		"a request that must not claim gives up its claim", "internal/store/claim.go",
		"claimed && !req.MayClaim && !req.Claimed:", "claimed && !req.MayClaim && req.Claimed:",
		"TestClaimThatIsAbandoned",
	},
	{
		"a claim that is given up signals the next", "internal/store/claim.go",
		"next != s.self && next.CanListen() {", "next == 0 && next.CanListen() {",
		"TestClaimThatIsAbandoned",
	},
	{
		"a claim with an error has to be released", "internal/store/claim.go",
		"case err != nil && claimed:", "case err != nil && claimed && s == nil:",
		"TestClaimWithAnError",
	},
	{
		"a lost claim is made again", "internal/store/claim.go",
		"err == nil && r.answer == 0:\n\t\t\tmine = false", "err == nil && r.answer == 0:\n\t\t\tmine = s != nil",
		"TestContract/./a_claim_ends_if_its_request",
	},
	{
		"shared holds that are over are ended before a grant", "internal/store/claim.go",
		"if rest <= 0 {\n\t\t\tif rest, err", "if rest < -time.Hour {\n\t\t\tif rest, err",
		"TestContract/./a_claimed_name_is_granted_when_the_leases",
	},
	{
		"the session of a shared hold is read before the hold is ended", "internal/store/claim.go",
		"if h.Session != 0 && h.Session != req.dead {", "if h.Session != 0 && h.Session != req.dead && s == nil {",
		"TestEndOfASharedHold",
	},
	{
		"a shared hold that was extended meanwhile is not ended", "internal/store/sql/end_shared.sql",
		" AND expires_at <= {>now} AND @@autocommit", " AND @@autocommit",
		"TestEndOfASharedHold",
	},
	{
		"a shared hold that was bound meanwhile is not ended", "internal/store/sql/end_shared.sql",
		" AND session = {id} AND", " AND",
		"TestEndOfASharedHold",
	},
	{
		"a release does not succeed for a shared hold that another process has ended", "internal/store/sql/end_shared.sql",
		"_ascii'!'", "_ascii'-'",
		"TestContract/./a_claimed_name_is_granted_when_the_leases",
	},
	{
		"promote finds shared holds whose owners may extend them", "internal/store/sql/fragments/alone.sql",
		"(q.owner >= _ascii'0' OR q.expires_at > {>now})", "(q.expires_at > {>now})",
		"TestContract/./a_session_keeps_shared_holds",
	},
	{
		"promote finds shared holds that UnlockAfter keeps for a minimum time", "internal/store/sql/fragments/alone.sql",
		"(q.owner >= _ascii'0' OR q.expires_at > {>now})", "(q.owner >= _ascii'0')",
		"TestContract/./a_shared_hold_that_is_given_back",
	},
	{
		"permits are no shared holds", "internal/store/claim.go",
		"\"last\", literal(name + semaphoreSuffix)}", "\"last\", literal(name + \"\\x01\")}",
		"TestContract/./a_lock_has_nothing_to_do_with_the_semaphore",
	},
	{
		"promote does not wait for the rows of shared holds", "internal/store/sql/fragments/alone.sql",
		"LIMIT 1 FOR UPDATE NOWAIT", "LIMIT 1 FOR UPDATE",
		"TestLockedRowOfASharedHold",
	},
	{
		"promote does not wait for guards", "internal/store/sql/promote.sql",
		"    {>guarded} AS guarded", "    {>guarded} AND FALSE AS guarded",
		"TestGuardOfASharedHold",
	},
	{
		"a grant after shared holds has a new token", "internal/store/sql/promote.sql",
		"LAST_INSERT_ID(GREATEST(l.token + 256, {>now_micros}))", "LAST_INSERT_ID(l.token)",
		"TestContract/./tokens_rise_from_exclusive",
	},
	{
		"a grant makes a name exclusive again", "internal/store/sql/promote.sql",
		"l.mode = IF(mine.alone AND NOT mine.guarded, 0, l.mode)", "l.mode = l.mode",
		"TestStatementsOfSharedHolds",
	},
	{
		"a granted claim leaves the wait queue", "internal/store/sql/promote.sql",
		"IF(mine.alone AND NOT mine.guarded, mine.rest,", "IF(mine.alone AND NOT mine.guarded, l.waiters,",
		"TestContract/./a_claimed_name_is_granted_when_the_last",
	},
	{
		"a claim that waits is in the wait queue", "internal/store/sql/promote.sql",
		"IF(mine.listed OR LENGTH(l.waiters) > 1000, l.waiters, CONCAT({enlist}, l.waiters))", "l.waiters",
		"TestContract/./a_claim_waits_at_the_front",
	},
	{
		"a copy of promote recognizes its grant", "internal/store/sql/promote.sql",
		"p.mode = 0 AS granted", "p.mode = 0 AND p.name = x'' AS granted",
		"TestContract/./a_repeated_claim",
	},
	{
		"a copy of promote does not shorten the lease", "internal/store/sql/promote.sql",
		"IF(mine.granted, GREATEST(l.expires_at, {>new_lease}),", "IF(mine.granted, {>new_lease},",
		"TestContract/./a_repeated_claim",
	},
	{
		"autocommit checked by promote", "internal/store/sql/promote.sql",
		" AND p.owner = {owner} AND @@autocommit", " AND p.owner = {owner}",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a plain request does not take a name that may be held shared", "internal/store/sql/take.sql",
		"IF(mode = 0, IF(waiters", "IF(TRUE, IF(waiters",
		"TestContract/./a_request_that_must_not_claim",
	},
	{
		"a plain request that joins the wait queue does not take such a name", "internal/store/sql/fragments/taken.sql",
		"{r}mode = 0 AND ({r}owner = {owner} OR {>available})", "({r}owner = {owner} OR {>available})",
		"TestContract/./a_request_that_must_not_claim",
	},
	{
		"a plain request that skips locked rows does not take such a name", "internal/store/acquire.go",
		"mode := \" AND p.mode = 0\"", "mode := \"\"",
		"TestLockedRowOfASharedHold",
	},
	{
		"an owner beside shared holds is not replaced", "internal/store/sql/replace.sql",
		" AND mode <> 1 AND @@autocommit", " AND @@autocommit",
		"TestReplacementBesideSharedHolds",
	},
	{
		"such an owner is not replaced by a request that skips locked rows", "internal/store/acquire.go",
		"\"l.waiters\", \" AND p.mode <> 1\"", "\"l.waiters\", \"\"",
		"TestReplacementBesideSharedHolds",
	},
	{
		"owner check in the release of a shared hold or permit", "internal/store/sql/release_part.sql",
		"WHERE l.owner IN ({owner}, {released}) AND @@autocommit", "WHERE '' NOT IN ({owner}, {released}) AND @@autocommit",
		"TestContract/./a_released_part_answers_the_head",
	},
	{
		"a release of a shared hold or permit that is sent twice recognizes the row", "internal/store/sql/release_part.sql",
		"WHERE l.owner IN ({owner}, {released}) AND", "WHERE l.owner IN ({owner}) AND '' <> {released} AND",
		"TestContract/./a_released_part_answers_the_head",
	},
	{
		"autocommit checked by the release of a shared hold or permit", "internal/store/sql/release_part.sql",
		"WHERE l.owner IN ({owner}, {released}) AND @@autocommit", "WHERE l.owner IN ({owner}, {released})",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a released shared hold or permit is not bound to a session", "internal/store/sql/release_part.sql",
		"  l.session = 0,\n", "",
		"TestContract/./two_shared_holds_of_one_process",
	},
	{
		"a batch of releases returns the head of the wait queue", "internal/store/hold.go",
		"if err == nil && freed > 0 && next == 0 {", "if false {",
		"TestContract/./a_released_part_answers_the_head",
	},
	{
		"a downgrade records first that the name may be held shared", "internal/store/sql/prepare_downgrade.sql",
		"SET l.mode = 2,", "SET",
		"TestDowngradeThatEnds",
	},
	{
		"autocommit checked by a downgrade", "internal/store/sql/prepare_downgrade.sql",
		" AND mode <> 1 AND @@autocommit", " AND mode <> 1",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a downgrade does not wait for guards", "internal/store/sql/downgrade.sql",
		"p.mode = 1 OR NOT {>guarded} AS ready", "TRUE AS ready",
		"TestDowngradeUnderGuard",
	},
	{
		"a downgrade that is refused releases its shared hold", "internal/store/shared.go",
		"if _, err := s.exec(ctx, conn, s.releaseCommand(c)); err == nil {\n\t\tc = Claim{}", "if err := ctx.Err(); err == nil {\n\t\tc = Claim{}",
		"TestRefusedDowngrade",
	},
	{
		"a downgrade returns the head of the wait queue", "internal/store/sql/downgrade.sql",
		"LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head}))", "LAST_INSERT_ID(1)",
		"TestContract/./a_downgrade_returns_the_head",
	},
	{
		"a downgraded name is reserved for the head of the wait queue", "internal/store/sql/downgrade.sql",
		"'1970-01-01',\n  l.released_at = {>now}", "'1970-01-01'",
		"TestContract/./a_downgrade_returns_the_head",
	},
	{
		"a downgrade has a new token", "internal/store/sql/downgrade.sql",
		"l.token = GREATEST(l.token, {token})", "l.token = IF({token} > 0, l.token, 0)",
		"TestContract/./an_exclusive_hold_becomes_shared",
	},
	{
		"Guard of a shared hold locks the entry of the name", "internal/store/guard.go",
		"if ModeOf(c.Name) == Shared {", "if false {",
		"TestGuardOfASharedHold",
	},
	{
		"Guard checks a shared hold even if there are others", "internal/store/guard.go",
		"return s.checkShared(ctx, c)", "return ctx.Err()",
		"TestGuardOfASharedHoldThatEnded",
	},
	{
		"Purge deletes no name that is held shared", "internal/store/sql/fragments/idle.sql",
		" AND {r}mode = 0 AND", " AND",
		"TestPurgeOfSharedHolds",
	},
	{
		"Purge ends no phase of a name that is held shared", "internal/store/sql/end_phase.sql",
		"l.mode = IF(mine.alone, 0, l.mode)", "l.mode = 0",
		"TestPurgeOfSharedHolds",
	},
	{
		"a claim that Purge has ended does not count as a grant", "internal/store/sql/end_phase.sql",
		"  l.owner = IF(mine.alone, INSERT(l.owner, 1, 1, _ascii'!'), l.owner),\n", "",
		"TestClaimAfterPurge",
	},
	{
		"a claim that Purge has ended is made again", "internal/store/sql/end_phase.sql",
		"_ascii'!'", "_ascii'-'",
		"TestClaimAfterPurge",
	},
	{
		"Purge ends phases", "internal/store/purge.go",
		"if err := s.endPhases(ctx, idle); err != nil {", "if err := ctx.Err(); err != nil {",
		"TestPurgeOfSharedHolds",
	},
	{
		"ForceUnlock ends a phase", "internal/store/sql/force.sql",
		" OR session <> 0 OR mode <> 0)", " OR session <> 0)",
		"TestContract/./a_forced_release_frees_shared_holds",
	},
	{
		"a release does not succeed for shared holds that ForceUnlock has ended", "internal/store/sql/force_shared.sql",
		"_ascii'!'", "_ascii'-'",
		"TestContract/./a_forced_release_frees_a_name_from_all",
	},
	{
		"shared holds that ForceUnlock has ended are not bound to a session", "internal/store/sql/force_shared.sql",
		"  l.session = 0,\n", "",
		"TestContract/./a_forced_release_frees_shared_holds",
	},
	{
		"a claim is not shown as a holder", "internal/store/admin.go",
		"if f.Micros > 0 && !claimed && !hidden", "if f.Micros > 0 && (!claimed || claimed) && !hidden",
		"TestInfosOfParts",
	},
	{
		"a shared hold joins only if the row was read recently", "share.go",
		"now.Sub(s.looked) > lookInterval ||", "",
		"TestSharedHeldBack",
	},
	{
		"a shared hold joins only one with its label", "share.go",
		"s != nil && s.holder == c.holder", "s != nil",
		"TestWithHolderOfSharedHolds",
	},
	{
		"a shared hold does not overtake the waiters of its process", "share.go",
		" || !head && l.queues.Has(c.name) {", " || !head && l.queues == nil {",
		"TestShareBehindAWaiterOfItsProcess",
	},
	{
		"no hold joins a share that may be lost", "share.go",
		" || s.lease.Remaining() < c.minRemaining() ||", " ||",
		"TestShareThatMayBeLost",
	},
	{
		"no hold joins a share while an exclusive request waits", "share.go",
		"row.Remaining > 0 || row.Next != 0 ||", "row.Next == 1 ||",
		"TestSharedHeldBack",
	},
	{
		"no hold joins a share whose row was freed by force, or was not read", "share.go",
		"row.Next != 0 || !owned {", "row.Next != 0 || owned && false {",
		"TestSharedAfterUnnoticedForceUnlock",
	},
	{
		"a shared hold has a deadline of its own", "hold.go",
		"\th.deadline.Store(lease.Instant(at))\n", "",
		"TestSharedLeases",
	},
	{
		"a timer ends a shared hold at its deadline", "hold.go",
		"h.timer = time.AfterFunc(time.Until(at), h.LeaseLost)", "h.timer = time.AfterFunc(time.Hour, h.LeaseLost)",
		"TestSharedLeases",
	},
	{
		"a share is released with its last hold", "share.go",
		"if len(s.holds) == 0 {", "if len(s.holds) == -1 {",
		"TestSharedHolders",
	},
	{
		"the loss of a share is the loss of its holds", "share.go",
		"holds := slices.Collect(maps.Keys(s.holds))", "holds := slices.Collect(maps.Keys(map[*hold]struct{}{}))",
		"TestSharedForceUnlock",
	},
	{
		"the last shared hold that is lost releases its row", "share.go",
		"h.rowMinimum()\n\tlive := ls.Live()", "h.rowMinimum()\n\tlive := ls == nil",
		"TestLastHoldOfAShare",
	},
	{
		"an UnlockAfter of one of several shared holders keeps the name", "minhold.go",
		"if alone || m == (store.MinHold{}) {", "if alone || m != (store.MinHold{}) {",
		"TestUnlockAfterByOneOfSeveralSharedHolders",
	},
	{
		"a lock that was under Guard becomes shared later", "share.go",
		"\t\tl.downgradeLater(h, pause)\n", "",
		"TestLockThatBecomesSharedLater",
	},
	{
		"a lock becomes shared after a transient error", "share.go",
		"case !unknown && store.Transient(err):", "case errors.Is(err, store.ErrRowLocked):",
		"TestDowngradeAfterAnError",
	},
	{
		"a shared request joins although a statement that was cut off has the slot of the name", "internal/store/shared.go",
		"s.firstGrant(ctx, c.Name, []Claim{*c},", "s.firstGrant(ctx, req.Name, []Claim{*c},",
		"TestSharedAfterAGuard",
	},
	{
		"a call does not wait for a downgrade beyond the end of its context", "share.go",
		"\t\t\treturn causeOf(ctx)\n", "\t\t\t<-downgraded\n",
		"TestCallsDuringADowngradeThatHangs",
	},
	{
		"an Extend of a hold that has ended does not end the share", "hold.go",
		"case ended != nil:", "case false:",
		"TestExtendOfAnEndedHold",
	},
	{
		"an Extend of a hold that has ended does not wait for a downgrade", "hold.go",
		"for {\n\t\tif err := k.Err(); err != nil {", "for {\n\t\tif err := k.Err(); false {",
		"TestExtendAfterUnlockDuringADowngrade",
	},
	{
		"an Extend during a downgrade is no loss", "hold.go",
		"case (err == nil || err == ErrLost) && l.becameShared(h, ls):", "case false:",
		"TestExtendDuringADowngrade",
	},
	{
		"a Guard during a downgrade is no loss", "guard.go",
		"if l.becameShared(h, ls) {", "if false {",
		"TestGuardDuringADowngrade",
	},
	{
		"a lock with an exclusive handle does not become shared", "share.go",
		" || slices.ContainsFunc(h.handles, exclusive) {", " || exclusive == nil {",
		"TestSharedReentry",
	},
	{
		"a downgrade in flight is no loss", "hold.go",
		"l.watchdog.Alive(h.lease.Load()) || h.downgradeTookRow())", "l.watchdog.Alive(h.lease.Load()))",
		"TestLossDuringADowngrade",
	},
	{
		"a downgrade in flight is trusted no longer than the exclusive row", "hold.go",
		"return h.downgrading && h.locker.watchdog.Reason(h.lease.Load()) == lease.Taken", "return h.downgrading",
		"TestShortLeaseDuringADowngrade",
	},
	{
		"a downgrade in flight is trusted no longer than the shared row", "share.go",
		"\th.setDeadline(lease.TrustedUntil(time.Now(), length))\n", "",
		"TestDowngradeThatHangs",
	},
	{
		"no transaction is left open after an error of its first statement", "internal/store/purge.go",
		"\t\tif err == nil {\n\t\t\terr = fn(ctx, conn)\n\t\t}", "\t\tif err != nil {\n\t\t\treturn err\n\t\t}\n\t\terr = fn(ctx, conn)",
		"TestBeginWithAnError",
	},
	{
		"a downgrade whose first statements had no reply is repeated", "internal/store/shared.go",
		"NotSent{err} // from still owns", "err // from still owns",
		"TestDowngradeAfterALostReply",
	},
	{
		"the shared hold of such a downgrade is released", "share.go",
		"l.releaser.Add(g.Claim, length, err != nil, time.Now())", "l.releaser.Add(g.Claim, length, unknown, time.Now())",
		"TestDowngradeAfterALostReply",
	},
	{
		"a downgrade with unknown outcome is a loss", "share.go",
		"unknown := g.Claim != store.Claim{} && store.OutcomeUnknown(err)", "unknown := g.Claim != store.Claim{} && store.OutcomeUnknown(err) && l == nil",
		"TestDowngradeWithUnknownOutcome",
	},
	{
		"a lock that became shared wakes the next", "share.go",
		"\t\tl.waker.Released([]string{h.key.name}, next)", "\t\t_ = next",
		"TestLockThatBecomesShared",
	},
	{
		"a lock that became shared wakes the shared waiters behind it", "share.go",
		"\tl.leaveQueue(waiter)\n\tswitch {", "\t_ = waiter\n\tswitch {",
		"TestLockThatBecomesShared",
	},
	{
		"an owner of a shared hold cannot acquire the lock exclusively", "acquire.go",
		"if c.mode == store.Exclusive && (h.share != nil || h.downgraded != nil) {", "if false {",
		"TestSharedReentry",
	},
	{
		"a call that gives up releases its claim", "acquire.go",
		"if claim == (store.Claim{}) {", "if claim != (store.Claim{Name: \"x\"}) {",
		"TestSharedHeldBack",
	},
	{
		"a call that has claimed a name keeps its claim", "acquire.go",
		"c.contention, c.again, c.claim = nil, true, a.request.Claim", "c.contention, c.again = nil, true",
		"TestSharedOrder|TestSharedHeldBack",
	},
	{
		"the claim of a grant that came too late is not used again", "acquire.go",
		"\t\tc.claim = store.Claim{} // beginHold releases it\n", "",
		"TestClaimGrantedTooLate",
	},
	{
		"an attempt without its caller releases its claim", "attempt.go",
		"} else if a.grant.Claimed || a.request.Claimed {", "} else if false {",
		"TestClaimWithoutItsCaller",
	},
	{
		"a shared hold wakes the next process", "hold.go",
		"\t\t\tl.waker.WakeNext(c.queueName)\n", "",
		"TestSharedWaitersOfSeveralProcesses",
	},
	{
		"a shared hold wakes the shared waiters behind it", "hold.go",
		"\t\tl.leaveQueue(c.waiter)\n\t}\n\treturn k, nil", "\t}\n\treturn k, nil",
		"TestQueuedReadersEnterTogether",
	},
}

// permits has mutations of semaphores.
var permits = []mutation{
	{
		"no permit beyond the limit", "internal/store/permit.go",
		"if sem.live.count() >= req.Limit {\n\t\tsem.slot = 0", "if sem.live.count() > req.Limit {\n\t\tsem.slot = 0",
		"TestLimitsOfManySlots",
	},
	{
		"a permit is released if processes with a greater limit were faster", "internal/store/permit.go",
		"err != nil || now.live.count() > req.Limit {\n\t\t\treturn s.giveBack", "err != nil || now.live.count() > MaxPermits {\n\t\t\treturn s.giveBack",
		"TestPermitBeyondTheLimit",
	},
	{
		"all slots are read if processes disagree about the limit", "internal/store/permit.go",
		"if w == all || sem.slot != 0 && !sem.beyond {", "if w == all || sem.slot != 0 {",
		"TestLimitsOfManySlots",
	},
	{
		"further slots are read if the first are held", "internal/store/permit.go",
		"if w == all || sem.slot != 0 && !sem.beyond {", "if w.first > 0 {",
		"TestManyPermits",
	},
	{
		"the slots among which one was found before are read first", "internal/store/permit.go",
		"\t\ts.lastSlots.set(req.Name, sem.slot)\n", "",
		"TestPermitsOfManySlots",
	},
	{
		"no slots above the limit are read first", "internal/store/permit.go",
		"if first > req.Limit {", "if first > MaxPermits {",
		"TestSlotWindows",
	},
	{
		"slots above the limit are read", "internal/store/sql/semaphore.sql",
		"MAX(r.slot > {permits} AND GREATEST", "MAX(r.slot > {permits} + 10000 AND GREATEST",
		"TestPermitBeyondTheLimit",
	},
	{
		"a locked slot is skipped", "internal/store/permit.go",
		"case locked.has(i):\n", "case locked.has(i) && i > MaxPermits:\n",
		"TestGuardOfAPermit",
	},
	{
		"a request for a permit does not wait for a locked row", "internal/store/permit.go",
		"!sem.present.has(sem.slot), true", "!sem.present.has(sem.slot), false",
		"TestGuardOfAPermit",
	},
	{
		"slots with a row are taken first", "internal/store/permit.go",
		"\tif len(open) == 0 {\n\t\topen = missing\n\t}", "\topen = append(open, missing...)",
		"TestSlotsWithARow",
	},
	{
		"a slot without a row costs no statement that looks for it", "internal/store/permit.go",
		"slot.absent, slot.skipLocked = !sem.present.has(sem.slot),", "slot.absent, slot.skipLocked = false,",
		"TestStatementsOfPermits",
	},
	{
		"a request for a permit reads again after it has joined the wait queue", "internal/store/permit.go",
		"\t\t\tif created {\n\t\t\t\tpause = afterFirstWaiter\n\t\t\t}", "\t\t\tif created {\n\t\t\t\tpause = afterFirstWaiter\n\t\t\t}\n\t\t\treturn sem.refusal(req, locked, pause), nil",
		"TestStatementsOfPermits",
	},
	{
		"the first waiter for a permit reads again soon", "internal/store/permit.go",
		"\t\t\t\tpause = afterFirstWaiter\n", "\t\t\t\tpause = 0\n",
		"TestFirstWaiterForAPermit",
	},
	{
		"a grant of a permit wakes the next if another slot is free", "internal/store/permit.go",
		"g.Next = s.nextForPermit(ctx, req, sem)", "_ = s.nextForPermit(ctx, req, sem)",
		"TestContract/./a_grant_answers_the_next_process",
	},
	{
		"a grant of a permit wakes no waiter if all slots are held", "internal/store/permit.go",
		"err != nil || now.live.count() >= req.Limit {\n\t\t\treturn 0", "err != nil || now.live.count() > MaxPermits {\n\t\t\treturn 0",
		"TestContract/./processes_wait_for_permits",
	},
	{
		"a process with a permit leaves the wait queue", "internal/store/sql/fragments/waiters_after_permit.sql",
		"{self}, x''), {polling}, x'')", "{self}, {self}), {polling}, {polling})",
		"TestContract/./processes_wait_for_permits",
	},
	{
		"a head that did not take a slot in time is removed", "internal/store/permit.go",
		"overdue := next != 0 && !sem.headed && sem.present.has(sem.slot)", "overdue := next != 0 && !sem.headed && false",
		"TestContract/./a_released_slot_is_reserved",
	},
	{
		"a released slot is reserved for the head of the wait queue", "internal/store/sql/semaphore.sql",
		"r.slot > 0 AND {>not_reserved}, 1 <<", "r.slot > 0, 1 <<",
		"TestContract/./processes_wait_for_permits",
	},
	{
		"a session keeps a permit", "internal/store/sql/fragments/slots.sql",
		"    {>kept_until} AS until,", "    l.expires_at AS until,",
		"TestContract/./a_permit_that_has_expired",
	},
	{
		"a process joins the wait queue for permits once", "internal/store/sql/join_semaphore.sql",
		"IF({>listed} OR LENGTH({r}waiters) > 1000, {r}waiters,", "IF(LENGTH({r}waiters) > 1000, {r}waiters,",
		"TestWaitQueueOfPermits",
	},
	{
		"a wait queue for permits is limited", "internal/store/sql/join_semaphore.sql",
		"IF({>listed} OR LENGTH({r}waiters) > 1000, {r}waiters,", "IF({>listed}, {r}waiters,",
		"TestWaitQueueOfPermits",
	},
	{
		"Purge leaves a wait queue for permits that was used recently", "internal/store/sql/join_semaphore.sql",
		"{>now} + INTERVAL 30 DAY, {enlist}\n", "{>now}, {enlist}\n",
		"TestPurgeOfPermits",
	},
	{
		"autocommit checked by a process that joins the wait queue for permits", "internal/store/sql/join_semaphore.sql",
		" WHERE s.trusted", "",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a request tries many slots", "internal/store/permit.go",
		"permitTries = 20", "permitTries = 5",
		"TestFirstPermitsOfACrowd",
	},
	{
		"a listener finds a free slot", "internal/store/listen.go",
		"case isSemaphore(name):", "case isSemaphore(name) && limit < 0:",
		"TestContract/./a_look_and_a_listener",
	},
	{
		"a listener does not find a slot that is reserved for another", "internal/store/sql/fragments/permit_open.sql",
		" AND (r.until > {>now} OR NOT {>not_reserved}))", " AND r.until > {>now})",
		"TestContract/./a_look_and_a_listener",
	},
	{
		"a listener counts the permits above its own limit", "internal/store/sql/fragments/permit_open.sql",
		"SUM(r.slot > 0 AND r.until > {>now}) < {permits}\n    AND ", "",
		"TestListenerBeyondTheLimit",
	},
	{
		"a removed waiter for a permit returns the next", "internal/store/sql/remove_waiter.sql",
		" OR RIGHT({r}name, 2) = x'0073')", ")",
		"TestContract/./a_removed_waiter_for_a_permit",
	},
	{
		"the row of a semaphore's wait queue does not count as held", "internal/store/hold.go",
		"if isSemaphore(f.Name) {", "if false {",
		"TestContract/./a_look_and_a_listener",
	},
	{
		"a forced release of a permit wakes the next", "internal/store/force.go",
		"if ModeOf(name) == Permit {", "if false {",
		"TestContract/./a_forced_release_of_a_permit",
	},
	{
		"each permit has an owner of its own", "acquire.go",
		"return holdKey{new(owner), c.queueName}", "return holdKey{c.owner, c.queueName}",
		"TestPermitsOfOneOwner",
	},
	{
		"a permit wakes the waiters behind it", "hold.go",
		"\tif c.mode != store.Exclusive {\n\t\tif c.mode", "\tif c.mode == store.Shared {\n\t\tif c.mode",
		"TestSemaphore$",
	},
	{
		"a grant of a permit signals the next process", "attempt.go",
		"\tif a.grant.Next != 0 {\n", "\tif false {\n",
		"TestPermitsReleasedAtOnce",
	},
}

// batches has mutations of TryLockAll.
var batches = []mutation{
	{
		"expiry check in a batch", "internal/store/sql/fragments/plain.sql",
		"{r}expires_at <= {>now} AND {>unbound}", "{>unbound}",
		"TestContract/./a_batch_takes_the_names_before",
	},
	{
		"a batch finds rows that a session keeps", "internal/store/sql/fragments/plain.sql",
		" AND {>unbound} AND", " AND",
		"TestContract/./a_batch_takes_the_names_before",
	},
	{
		"a batch does not overtake a waiting process", "internal/store/sql/fragments/plain.sql",
		" AND {r}waiters = x'' AND", " AND",
		"TestContract/./a_batch_takes_the_names_before",
	},
	{
		"a batch takes no name that may be held shared", "internal/store/sql/fragments/plain.sql",
		" AND {r}mode = 0 AND", " AND",
		"TestContract/./a_batch_takes_the_names_before",
	},
	{
		"a batch takes no name whose token is ahead of the clock", "internal/store/sql/fragments/plain.sql",
		" AND {r}token + 256 <= {>now_micros}", "",
		"TestBatchAndTheClock",
	},
	{
		"a batch with new names has a token above those that were purged", "internal/store/sql/insert_all.sql",
		"COALESCE(high.token, 0) + 256", "0 * high.token",
		"TestFirstGrantsWaitForPurge",
	},
	{
		"a batch with new names waits for Purge", "internal/store/sql/insert_all.sql",
		" WHERE name = x'' LOCK IN SHARE MODE)", " WHERE name = x'')",
		"TestFirstGrantsWaitForPurge",
	},
	{
		"a batch that misses a row takes none", "internal/store/sql/insert_all.sql",
		"WHERE mine.picked = {count} AND @@autocommit", "WHERE mine.picked + {count} >= 0 AND @@autocommit",
		"TestBatchAfterAChange",
	},
	{
		"a batch that took part of its names reports that", "internal/store/sql/insert_all.sql",
		"{r}token + 0 * LAST_INSERT_ID(1)", "{r}token",
		"TestBatchAfterAChange",
	},
	{
		"a row that was taken meanwhile stays as it is", "internal/store/sql/fragments/taken_plain.sql",
		"({r}owner = {owner} OR {>plain})", "({r}owner = {owner} OR TRUE)",
		"TestBatchAfterAChange",
	},
	{
		"a batch that is sent twice recognizes its grant", "internal/store/sql/fragments/pick_plain.sql",
		"AND ({plain} OR p.owner IN ({owners}))", "AND {plain}",
		"TestCopiesOfABatch",
	},
	{
		"a copy of a batch leaves its rows bound", "internal/store/sql/take_all.sql",
		"IF(mine.copied, l.session, 0)", "0",
		"TestCopiesOfABatch",
	},
	{
		"a copy of a batch leaves the tokens", "internal/store/sql/take_all.sql",
		"IF(mine.copied, l.token + 0 * LAST_INSERT_ID(1), LAST_INSERT_ID(GREATEST(l.token, {>now_micros})))", "LAST_INSERT_ID(GREATEST(l.token, {>now_micros}))",
		"TestCopiesOfABatch",
	},
	{
		"a copy of a batch that takes more rows reports it", "internal/store/sql/fragments/pick_plain.sql",
		"ORDER BY copied LIMIT", "LIMIT",
		"TestCopyOfABatchThatTakesMore",
	},
	{
		"a copy of a batch that adds rows leaves their tokens", "internal/store/sql/insert_all.sql",
		"IF({>plain}, s.token,", "IF({>taken_plain}, s.token,",
		"TestCopiesOfABatch",
	},
	{
		"a set that a copy has taken is released", "internal/store/batch.go",
		"r.rows == int64(n) && r.answer != answerPart", "r.rows == int64(n)",
		"TestCopiesOfBatches",
	},
	{
		"the tokens of a batch that a copy has taken are read", "internal/store/combined.go",
		"taken.rows == int64(len(batch)) && taken.answer != answerPart", "taken.rows == int64(len(batch))",
		"TestCopiesOfBatches",
	},
	{
		"a copy of a batch does not shorten the leases", "internal/store/sql/take_all.sql",
		"GREATEST(l.expires_at, {>new_lease})", "{>new_lease}",
		"TestCopiesOfABatch",
	},
	{
		"autocommit checked by a batch", "internal/store/sql/fragments/pick_plain.sql",
		" AND @@autocommit", "",
		"TestStatementsWithoutAutocommit",
	},
	{
		"autocommit checked by a batch with new names", "internal/store/sql/insert_all.sql",
		" AND @@autocommit\n", "\n",
		"TestStatementsWithoutAutocommit",
	},
	{
		"a batch counts the rows that it took", "internal/store/batch.go",
		"return r, r.rows == int64(n) && r.answer != answerPart, err", "return r, r.rows >= 0 && r.answer != answerPart, err",
		"TestBatchBesideALockedRow",
	},
	{
		"a batch keeps the names before the first that it did not take", "internal/store/batch.go",
		"kept < len(owned) && owned[kept] == claims[kept] {", "kept < len(owned) {",
		"TestBatchBesideALockedRow",
	},
	{
		"rows that a batch took and cannot use are released", "internal/store/batch.go",
		"Unwanted: owned[kept:],", "Unwanted: nil,",
		"TestBatchBesideALockedRow",
	},
	{
		"a batch that finds a locked row is retried with fewer names", "internal/store/batch.go",
		"n > 0; n /= 2 {", "n > 0; n = 0 {",
		"TestBatchBesideALockedRow",
	},
	{
		"a batch that fails is undone", "batch.go",
		"if store.OutcomeUnknown(b.err) {", "if false {",
		"TestBatchFails",
	},
	{
		"a batch without its caller is undone", "batch.go",
		"\tif b.replied() {", "\tif b.replied() && false {",
		"TestBatchWithoutReply",
	},
	{
		"a set renews its locks while it waits", "multi.go",
		"\t\tc.setLease(AutoRenew)\n", "",
		"TestFixedLeasesOfASet",
	},
	{
		"the fixed leases of a set end", "multi.go",
		"\tc.setLease(c.requested)\n", "",
		"TestFixedLeasesOfASet",
	},
	{
		"a lock that is lost while the set waits ends the call", "multi.go",
		"if err := k.Err(); err != nil {\n\t\t\treturn opError(\"acquire\"", "if err := k.Err(); false {\n\t\t\treturn opError(\"acquire\"",
		"TestLossWhileASetWaits",
	},
	{
		"a set that did not wait is returned although a lock is lost", "multi.go",
		"if !c.waited {", "if false {",
		"TestSetOfLostLocks",
	},
	{
		"a set waits no longer than its call", "multi.go",
		"return max(c.wait-time.Since(c.began), time.Millisecond)", "return c.wait",
		"TestWaitOfASet",
	},
	{
		"a set re-enters the locks of its owner", "multi.go",
		"if c.reentrant {\n\t\tif err", "if c == nil {\n\t\tif err",
		"TestTryLockAllReenters",
	},
	{
		"a lock of a set with another handle is not released", "multi.go",
		"len(locks) > 1 && len(h.handles) == 1 &&", "len(locks) > 1 &&",
		"TestTryLockAllReenters",
	},
	{
		"a set that was unlocked reports a loss that it found", "batch.go",
		"errs[i] = ErrLost\n", "_ = ErrLost\n",
		"TestTryLockAllLoss",
	},
	{
		"a row that is missing is not held", "internal/store/acquire.go",
		"err != nil || !executes {", "err != nil || !executes && false {",
		"TestNewNameOnADeadConnection",
	},
	{
		"a set is not refused because of its own names", "batch.go",
		"row.Remaining > 0 && row.Owner != c.Owner {", "row.Remaining > 0 {",
		"TestBatchWithALateReply",
	},
	{
		"a first grant that was cut off gives up its slot", "internal/store/acquire.go",
		"(err != nil || executes) && s.lifetime", "(err != nil || executes || true) && s.lifetime",
		"TestFirstGrantInAPoolOfOne",
	},
	{
		"a first grant does not keep the only connection of a pool", "internal/store/acquire.go",
		"return min(s.onlyConnTimeout, LockWaitTimeout)", "return LockWaitTimeout",
		"TestFirstGrantOnADeadConnection",
	},
	{
		"a ForceUnlock without a reply checks its own locks", "admin.go",
		"\t\tl.watchdog.Audit()\n", "",
		"TestForceUnlockOfItsOwnWithoutReply",
	},
	{
		"a statement that readTimeout has ended keeps its slot", "internal/store/acquire.go",
		"(ctx.Err() != nil || mayContinue(began, err))", "(ctx.Err() != nil || mayContinue(began, nil))",
		"TestReadTimeoutBehindALockedRow",
	},
	{
		"an Extend that readTimeout has ended keeps its slot", "internal/store/waiting.go",
		"sent && mayContinue(began, err)", "sent && isTimeout(err)",
		"TestReadTimeoutBehindALockedRow",
	},
	{
		"a set that was unlocked recognizes a release that had no reply", "batch.go",
		"err == nil && !unknown {", "err == nil && (!unknown || true) {",
		"TestSetWithoutReply",
	},
	{
		"a set that was unlocked recognizes such a release of a row that was locked", "internal/undo/undo.go",
		"\tif store.OutcomeUnknown(err) {", "\tif false {",
		"TestReleaseWithoutReply",
	},
	{
		"a set that does not wait is not refused because of its own batch", "multi.go",
		"case c.wait <= 0 && store.OutcomeUnknown(b.err) &&", "case false &&",
		"TestSetWithoutReply",
	},
	{
		"a set that was not acquired releases what it acquired", "multi.go",
		"\t\tl.undo(func() { l.unlockAll(c.locks) })\n", "",
		"TestTryLockAllFails",
	},
	{
		"a call that fails waits for the release of what it acquired", "acquire.go",
		"case <-time.After(maxOverrun):", "case <-time.After(0):",
		"TestFailedSetHoldsNothing|TestSharedAfterAWriterThatGaveUp",
	},
	{
		"a batch does not overtake a waiter of its process", "multi.go",
		"\t\tcase <-w.Head:\n\t\tdefault:\n\t\t\tl.leaveQueue(w)\n\t\t\treturn b\n", "\t\tcase <-w.Head:\n\t\tdefault:\n",
		"TestBatchBehindACall",
	},
}

// waitQueues has mutations of the wait queue within a process that concern shared waiters.
var waitQueues = []mutation{
	{
		"a shared waiter takes no offer", "internal/queue/queue.go",
		"return next != nil && !next.Value.(*Waiter[S, H]).Shared", "return next != nil",
		"TestOffersAndSharedWaiters",
	},
	{
		"a shared waiter without a wait is refused behind an exclusive hold", "internal/queue/queue.go",
		"w.Shared && !q.head.Shared && q.head.NoWait //", "w.Shared && q.head.NoWait //",
		"TestNoWaitAndSharedWaiters",
	},
	{
		"such a waiter is not refused behind an exclusive call that gives up", "internal/queue/queue.go",
		"spared := mayFail && ", "spared := false && ",
		"TestNoWaitAndSharedWaiters",
	},
	{
		"such a waiter is refused behind an exclusive call that has the lock", "internal/queue/queue.go",
		"spared := mayFail && ", "spared := ",
		"TestNoWaitBehindAGrant",
	},
	{
		"such a waiter is refused behind an exclusive call that waits", "internal/queue/queue.go",
		"!q.head.Shared && q.head.NoWait //", "!q.head.Shared //",
		"TestNoWaitAndSharedWaiters",
	},
	{
		"a listener finds a claimed name that is not held shared any more", "internal/store/listen.go",
		"condition += \" OR l.name = \" + literal(name) + \" AND \" + s.query(\"fragments/promotable\", sharedKeys(name)...)", "",
		"TestContract/./a_listener_finds_that_a_name_that_it_has_claimed",
	},
	{
		"a listener finds only claims of its process", "internal/store/sql/fragments/promotable.sql",
		"AND LEFT(l.owner, 19) = {self} AND", "AND {self} <> x'' AND",
		"TestContract/./a_listener_finds_that_a_name_that_it_has_claimed",
	},
	{
		"a process whose pool is too small to listen waits as one that polls", "internal/wake/signaller.go",
		" || s.repo.PoolTooSmall()", "",
		"TestOrderInASmallPool",
	},
	{
		"a process that polls reads whether shared holds have ended", "internal/wake/poller.go",
		"(signalled || !listens) && store.ProcessOf(", "signalled && listens && store.ProcessOf(",
		"TestClaimOfAProcessThatPolls",
	},
	{
		"signals to a process that has claimed a name do not count as false wake-ups", "internal/wake/listener.go",
		" && !(wakeup.Signalled && time.Now().Before(l.claimedUntil))", "",
		"TestSignalsOfManySharedHolds",
	},
}

// handovers has mutations of UnlockAfter, Detach and Attach.
var handovers = []mutation{
	{
		"an UnlockAfter that is sent twice recognizes the row", "internal/store/sql/release_after.sql",
		"owner IN ({owner}, {kept}, {released}) AND", "owner IN ({owner}) AND {kept} <> {released} AND",
		"TestContract/./a_row_that_is_given_back_stays",
	},
	{
		"an UnlockAfter whose time has passed frees the row", "internal/store/sql/release_after.sql",
		"IF(mine.taken_until > {>now}, mine.taken_until, TIMESTAMP'1970-01-01 00:00:00')", "GREATEST(mine.taken_until, {>now} + INTERVAL 1 SECOND)",
		"TestContract/./a_row_whose_minimum_has_passed",
	},
	{
		"an UnlockAfter signals the next", "internal/store/sql/release_after.sql",
		"LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head}))", "LAST_INSERT_ID(1)",
		"TestContract/./the_head_of_the_wait_queue_is_known",
	},
	{
		"a lock that is not shared yet is not detached as a shared one", "detach.go",
		"case k.shared && h.share == nil:", "case false:",
		"TestDetachBeforeTheLockIsShared",
	},
	{
		"a ticket has the minimum times of all that shared the row", "detach.go",
		"max(h.minHold, m.Held, m.Until.Sub(h.began))", "max(h.minHold, 0*m.Held)",
		"TestDetachAfterAMinimumThatWasNotKept",
	},
	{
		"a Detach that is sent twice recognizes the row", "internal/store/sql/detach.sql",
		"OR owner = {ticket} AND expires_at > {>now})", "OR owner = {ticket} AND expires_at IS NULL)",
		"TestContract/./a_detached_row_is_attached_once",
	},
	{
		"the time of a detached lock counts from its handoff", "internal/store/sql/detach.sql",
		"GREATEST(l.acquired_at, {>now} - INTERVAL {age} MICROSECOND)", "l.acquired_at",
		"TestContract/./a_minimum_counts_from_the_acquire",
	},
	{
		"an Attach that is sent twice recognizes its grant", "internal/store/sql/attach.sql",
		"owner IN ({ticket}, {owner}) AND", "owner IN ({ticket}) AND '' <> {owner} AND",
		"TestContract/./a_detached_row_is_attached_once",
	},
	{
		"a clock set back does not prolong a minimum time", "internal/store/sql/release_after.sql",
		"LEAST(acquired_at, {>now})", "acquired_at",
		"TestUnlockAfterWithTheClockSetBack",
	},
	{
		"a clock set back does not prolong a minimum time of a shared name", "internal/store/sql/keep_shared.sql",
		"SELECT {key}, {owner}, {label}, k.token + 0 * LAST_INSERT_ID(1), k.acquired_at,\n  GREATEST(LEAST(k.acquired_at, {>now})", "SELECT {key}, {owner}, {label}, k.token + 0 * LAST_INSERT_ID(1), k.acquired_at,\n  GREATEST(k.acquired_at",
		"TestUnlockAfterWithTheClockSetBack",
	},
	{
		"only a holder keeps a shared name", "internal/store/sql/keep_shared.sql",
		" AND k.owner = {part owner} AND", " AND LENGTH({part owner}) > 0 AND",
		"TestContract/./a_shared_hold_keeps_the_name_taken",
	},
}
