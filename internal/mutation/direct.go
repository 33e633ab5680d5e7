package main

// directHandoffs has mutations of releases that grant the row to the next process.
var directHandoffs = []mutation{
	{
		"a grant is read although its prepared read was forgotten", "internal/store/listen.go",
		"; !unprepared(err) {", "; true {",
		"TestForgottenStatements",
	},
	{
		"a statement is sent although it was forgotten as a prepared one", "internal/store/prepared.go",
		"if unprepared(err) {", "if false {",
		"TestForgottenStatements",
	},
	{
		"a release grants the row", "internal/store/sql/release_to_next.sql",
		"1, mode = 0 AND", "1, FALSE AND mode = 0 AND",
		"TestDirectHandoff",
	},
	{
		"a release grants the row only to a process that listens", "internal/store/sql/release_to_next.sql",
		" AND IS_USED_LOCK(CONCAT(_ascii'mysqllock:', {>grantee})) IS NOT NULL)", ")",
		"TestContract/./a_release_grants_nothing_to_a_head_that_does_not_listen",
	},
	{
		"a release grants nothing to its own process", "internal/store/sql/release_to_next.sql",
		" AND {>head} <> {direct}", "",
		"TestContract/./a_release_grants_nothing_to_its_own_process",
	},
	{
		"a release grants no name that may be held shared", "internal/store/sql/release_to_next.sql",
		"1, mode = 0 AND", "1,",
		"TestContract/./a_release_grants_no_name_that_others_may_hold_shared",
	},
	{
		"owner check in a release that grants the row", "internal/store/sql/release_to_next.sql",
		"AND owner IN ({owner}, {released}) AND", "AND LENGTH({owner}) + LENGTH({released}) > 0 AND",
		"TestContract/./a_release_of_a_row_that_has_another_owner_grants_nothing",
	},
	{
		"a grant of a release has a new token", "internal/store/sql/release_to_next.sql",
		"token = IF(waiters < _ascii'7', token, {>next_token})", "token = token",
		"TestDirectHandoff$",
	},
	{
		"a grant of a release is known for the time of its first lease", "internal/store/sql/fragments/granted_recently.sql",
		" AND {>acquired_recently})", ")",
		"TestContract/./an_extended_grant_is_not_granted_again",
	},
	{
		"a hold that has ended is no grant of a release", "internal/store/sql/fragments/granted_recently.sql",
		"({r}owner BETWEEN _ascii'5' AND _ascii'7' AND SUBSTRING", "(SUBSTRING",
		"TestContract/./a_grant_of_a_release_has_the_label",
	},
	{
		"a request learns that the row was granted to its process", "internal/store/sql/fragments/held_answer.sql",
		"IF({>granted_to_self}, -4611686018427387900,", "IF(0, -4611686018427387900,",
		"TestContract/./a_request_of_the_process_to_which_the_row_was_granted",
	},
	{
		"a process to which the row was granted does not join its wait queue", "internal/store/sql/fragments/waiters_enlisted.sql",
		" OR {>granted_to_self} OR {>available}", " OR {>available}",
		"TestContract/./a_request_of_the_process_to_which_the_row_was_granted",
	},
	{
		"a process that no longer takes grants changes its entry", "internal/store/sql/fragments/waiters_enlisted.sql",
		"IF({>listed}, {>waiters_relisted},", "IF({>listed}, {r}waiters,",
		"TestContract/./a_process_changes_its_entry",
	},
	{
		"operators see the holder of a grant of a release", "internal/store/sql/fragments/select_info.sql",
		"COALESCE(p.holder, x'')", "x''",
		"TestDirectHandoff$",
	},
	{
		"the label is written when the lease is extended", "internal/store/sql/extend.sql",
		"  holder = IF(holder = x'', {label}, holder),\n", "",
		"TestContract/./an_extended_grant_is_not_granted_again",
	},
	{
		"a grant is read only where a signal has arrived", "internal/store/listen.go",
		"if s.listener == nil || !s.signalled || s.dirtyReads.Load() {", "if s.listener == nil {",
		"TestGrantIsReadAfterASignal",
	},
	{
		"a release grants only to a process that signals have reached", "direct.go",
		"as.CanListen() && l.waker.Signalled() && c.takesGrant()", "as.CanListen() && c.takesGrant()",
		"TestDirectHandoffNeedsSignals",
	},
	{
		"a request whose row a batch has taken is granted although the row is locked", "internal/store/acquire.go",
		"if err == errOwnLocked {", "if false {",
		"TestCombinedRequestWhoseRowIsLocked",
	},
	{
		"KILL QUERY of an UPDATE of several tables is no unknown error", "internal/store/errors.go",
		"if refused.Number == 1105 && refused.Message ==", "if refused.Number == 1 && refused.Message ==",
		"TestErrorClasses",
	},
	{
		"a guarded lock is not granted by its release", "direct.go",
		"if h.waiter == nil || h.guarded.Load() {", "if h.waiter == nil {",
		"TestDirectHandoffFaults/a_transaction_is_under_guard",
	},
	{
		"a grant with a short lease is extended", "internal/lease/renew.go",
		"ls.due = sent.Add(min(length, d.Length) / 2)", "ls.due = sent.Add(min(length, d.Length) * 2)",
		"TestDirectHandoffIsKept",
	},
	{
		"the grant to a waiter that has left is released", "internal/wake/signaller.go",
		"if row := rows[name]; row.Grantee == s.Self {", "if row := rows[name]; row.Grantee == 1 {",
		"TestWaiterLeavesDuringDirectHandoff|TestDirectHandoffFaults",
	},
	{
		"a grant that a call without a wait does not take is released", "internal/wake/signaller.go",
		"waits := s.stillWaiting(c.Name)", "waits := s.queues.Has(c.Name)",
		"TestNoWaitDuringDirectHandoff",
	},
	{
		"a grant is found only once", "internal/wake/grants.go",
		"if g.found[c.Name].owner == c.Owner {", "if false {",
		"TestGrantIsFoundOnce",
	},
	{
		"a process that closes leaves the wait queues that list it", "internal/wake/wake.go",
		"w.signaller.drain()", "",
		"TestCloseLeavesALockedWaitQueue",
	},
	{
		"a process that closes leaves the wait queues before it publishes", "internal/wake/wake.go",
		"\tw.signaller.drain()", "\tw.publisher.drain()\n\tw.signaller.drain()",
		"TestCloseLeavesBeforeItPublishes",
	},
	{
		"the release of a grant that no hold uses leaves the reserved connection to others", "internal/wake/signaller.go",
		"store.NotHeld(s.sending)", "s.sending",
		"TestGrantIsGivenBackBesideTheReservedConnection",
	},
}
