package store

import (
	"embed"
	"io/fs"
	"strings"
)

// The statements, with placeholders for query; {r} qualifies the row's columns. Each file in sql has one
// statement, after a comment that says what it does, why, and what it answers. {>name} includes a file
// from sql/fragments.
//
// A row is held while its own lease, expires_at, is in the future, or while the session to which it is
// bound is alive. An assignment sees the row either as it was before the statement (sql_mode
// SIMULTANEOUS_ASSIGNMENT of MariaDB) or after the assignments to its left, so each column must be
// assigned after everything that depends on it.
//
// LAST_INSERT_ID(x) returns x in the reply to the statement: a token is positive, the microseconds left
// of another holder's lease are negative, the constants in acquire.go are below those, and the numbers
// of sessions are above all tokens.
// (https://dev.mysql.com/doc/refman/8.4/en/information-functions.html#function_last-insert-id)
var (
	sqlTake         = load("take")
	sqlReplace      = load("replace")
	sqlTakeOrEnlist = load("take_or_enlist")
	sqlInsert       = load("insert")
	sqlTakeUnlocked = load("take_unlocked")
	sqlWhyRefused   = load("why_refused")
	sqlEnlist       = load("enlist")
	sqlProbe        = load("probe")
	sqlExecutes     = load("executes")
	sqlAnswer       = load("answer")

	sqlSemaphore      = load("semaphore")
	sqlJoinSemaphore  = load("join_semaphore")
	sqlLeaveSemaphore = load("leave_semaphore")

	sqlLookAll          = load("look_all")
	sqlTakeAll          = load("take_all")
	sqlInsertAll        = load("insert_all")
	sqlLookBatch        = load("look_batch")
	sqlAdmit            = load("admit")
	sqlJoin             = load("join")
	sqlInsertShared     = load("insert_shared")
	sqlKeepShared       = load("keep_shared")
	sqlClaim            = load("claim")
	sqlPromote          = load("promote")
	sqlSharedHolds      = load("shared_holds")
	sqlEndShared        = load("end_shared")
	sqlPrepareDowngrade = load("prepare_downgrade")
	sqlDowngrade        = load("downgrade")

	sqlExtend        = load("extend")
	sqlRenew         = load("renew")
	sqlRelease       = load("release")
	sqlReleasePart   = load("release_part")
	sqlReleaseAll    = load("release_all")
	sqlQueueHead     = load("queue_head")
	sqlReleaseAfter  = load("release_after")
	sqlDetach        = load("detach")
	sqlAttach        = load("attach")
	sqlRemoveWaiter  = load("remove_waiter")
	sqlReleaseToNext = load("release_to_next")
	sqlGranted       = load("granted")

	sqlLook          = load("look")
	sqlReadCommitted = load("read_committed")
	sqlListen        = load("listen")
	sqlListenName    = load("listen_name")
	sqlNotSlow       = load("not_slow")
	sqlSignal        = load("signal")

	sqlBeginSession = load("begin_session")
	sqlRenewSession = load("renew_session")
	sqlIsAlive      = load("is_alive")
	sqlCountBound   = load("count_bound")
	sqlBound        = load("bound")
	sqlEndSession   = load("end_session")
	sqlKeeper       = load("keeper")
	sqlMarkDead     = load("mark_dead")

	sqlGuard            = load("guard")
	sqlGuardNow         = load("guard_now")
	sqlToken            = load("token")
	sqlSavepoint        = load("savepoint")
	sqlReleaseSavepoint = load("release_savepoint")

	sqlInspect = load("inspect")
	sqlList    = load("list")
	sqlPermits = load("permits")

	sqlHolders     = load("holders")
	sqlMarkForced  = load("mark_forced")
	sqlSeize       = load("seize")
	sqlForce       = load("force")
	sqlForceShared = load("force_shared")

	sqlAddHighWater = load("add_high_water")
	sqlHasHighWater = load("has_high_water")
	sqlIdleNames    = load("idle_names")
	sqlHighWater    = load("high_water")
	sqlIdleLock     = load("idle_lock")
	sqlIdlePhases   = load("idle_phases")
	sqlEndPhase     = load("end_phase")
	sqlRaise        = load("raise")
	sqlDeadSessions = load("dead_sessions")
	sqlDelete       = load("delete")

	sqlSettings  = load("settings")
	sqlAskStatus = load("ask_status")
	sqlBegin     = load("begin")
	sqlCommit    = load("commit")
	sqlRollback  = load("rollback")

	// What a condition or an assignment of a statement may be.
	sqlAvailable        = load("fragments/available")
	sqlWaitersAfterTake = load("fragments/waiters_after_take")
	sqlIdleSince        = load("fragments/idle_since")
	sqlPermitOpen       = load("fragments/permit_open")
	sqlPromotable       = load("fragments/promotable")
	sqlPlain            = load("fragments/plain")
	sqlInPhase          = load("fragments/in_phase")
	sqlNextToken        = load("fragments/next_token")
	sqlNow              = load("fragments/now")
)

//go:embed sql
var embedded embed.FS

var sqlFiles = statementFiles{embedded, map[string]string{}}

// load returns the text of a file in sql, as the server receives it, apart from the placeholders.
func load(name string) string { return sqlFiles.load(name) }

// statementFiles are the files below the directory sql.
type statementFiles struct {
	fs.FS
	fragments map[string]string // the expanded text of each fragment that was included so far
}

// load returns the text of a file on one line, to keep it short. It panics if the file, or one that it
// includes, does not exist.
func (f statementFiles) load(name string) string {
	text := f.expand(name)
	if strings.Contains(text, "--") {
		panic("sql/" + name + ".sql: a comment behind code would comment out the rest")
	}
	return strings.ReplaceAll(strings.ReplaceAll(text, "( ", "("), " )", ")")
}

// expand returns the text of a file without comment lines, and with the fragments that it includes.
func (f statementFiles) expand(name string) string {
	source, err := fs.ReadFile(f, "sql/"+name+".sql")
	if err != nil {
		panic(err)
	}
	var words []string
	for line := range strings.Lines(string(source)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "--") {
			words = append(words, strings.Fields(line)...)
		}
	}
	parts := strings.Split(strings.Join(words, " "), "{>")
	for i, part := range parts[1:] {
		fragment, rest, found := strings.Cut(part, "}")
		if !found {
			panic("sql/" + name + ".sql: {> without }")
		}
		if _, known := f.fragments[fragment]; !known {
			f.fragments[fragment] = f.expand("fragments/" + fragment)
		}
		parts[i+1] = f.fragments[fragment] + rest
	}
	return strings.Join(parts, "")
}
