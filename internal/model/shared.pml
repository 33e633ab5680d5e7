/*
 * shared.pml: exclusive and shared holds of one name exclude each other.
 *
 * The row of the name has a mode. 0: the name cannot be held shared. 1, a phase: it may be held
 * shared, and all shared holds have the row's token. 2: its exclusive holder is about to hold it
 * shared. Each process has a row for its shared hold.
 *
 * Nothing takes time in this model. A lease may end as soon as no process trusts it (see lease.pml),
 * and any process may pause between any two statements. A run ends when no process can continue. If
 * a process still waits then, the name is stuck (spin: invalid end state). README.md maps the parts
 * to the code.
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef ROWS
#define ROWS PROCESSES	/* of shared holds; if fewer, two calls of a process use the same row */
#endif
#ifndef REQUESTS
#define REQUESTS 3	/* in all */
#endif
#ifndef COPIES
#define COPIES 1	/* statements that are executed twice or late */
#endif
#ifndef EXPIRIES
#define EXPIRIES 1	/* of claims whose process is alive, but slow */
#endif
#ifndef GIVEUPS
#define GIVEUPS 1	/* requests that end while they wait: they give up, or their process dies */
#endif
#define NOBODY 0
#define ADMITTED 255	/* the owner id of the row in a phase, which no acquisition has */

/* The row of the name. */
byte mode, token = 1;
byte owner;		/* the number of a request */
bool held;		/* expires_at is in the future */

typedef Row { byte owner, token; bool held }
Row r[ROWS];		/* of shared holds */

/* States of a process, or of a late statement. */
#define IDLE 0
#define ADMIT 1		/* its next statement */
#define JOIN 2
#define JOINED 3	/* executed; the reply is in flight */
#define READS 4		/* holds the name shared, and trusts its lease */
#define TAKE 5
#define PROMOTE 6	/* has claimed the name */
#define TAKEN 7		/* granted; the reply is in flight */
#define WRITES 8	/* holds the name exclusively, and trusts its lease */
#define REPLACE 9	/* a local waiter replaces a hold that was lost or unlocked */
#define PREPARE 10	/* the three statements of a downgrade, when only shared handles are left */
#define ADD 11
#define DOWNGRADE 12
#define DOWNGRADED 13	/* executed; the reply is in flight */
/* States only of a late statement. */
#define RENEW 14
#define RELEASE 15
#define END_SHARED 16

/* id is the owner id of the request; part is that of its shared row, or of its replacement.
   forced: ForceUnlock has ended its hold. over: it trusts the hold beyond the row's lease. */
typedef Process { byte at, id, part, token, since; bool guarded, forced, over, alone }
Process p[PROCESSES];

typedef Late { byte at, by, id, part }
Late late;

/* States of a transaction. */
#define NONE 0
#define SENT 1		/* Guard is in flight */
#define OPEN 2		/* guarded */
typedef Transaction { byte at, by, id, part, token, since; bool shared }
Transaction t;

byte requests, copies, expiries, giveUps;
byte i;
bool yes;

/* Read only by the invariants. */
byte exclusive, grants;		/* exclusive grants; all grants */
byte highest, highestShared;	/* tokens of exclusive, and of shared holds */
bool exclusive_is_alone = true;
bool tokens_rise = true;
bool no_stale_guard_commits = true;
bool no_loss_is_false = true;
bool no_request_passes_a_claim = true;
bool a_forced_hold_has_no_guard = true;

#ifdef FORCE
bool force, forceEnded;		/* ForceUnlock has read the rows; it has freed the name's row */
byte found[ROWS], foundToken;
#endif
#ifdef PURGE
byte purges;
#endif
#ifdef BUG_LOCKED_ROW_IS_FREE
bool locked[ROWS];		/* by a renewal */
#endif

#define ROW(q) r[(q) % ROWS]
#define DOWNGRADING(q) (p[q].at >= PREPARE && p[q].at <= DOWNGRADED)
#define WAITS(q) (p[q].at == ADMIT || p[q].at == JOIN || p[q].at == TAKE || p[q].at == PROMOTE || p[q].at == REPLACE)
#define MAY_END(q) (p[q].at != IDLE && (!WAITS(q) || giveUps < GIVEUPS))
#define TRUSTS(q) (p[q].at == READS || p[q].at == WRITES || DOWNGRADING(q))

/* Whether a transaction has locked the entry (token, name) of the index guard. */
#ifdef BUG_GUARD_LOCKS_NOTHING
#define GUARDED false
#elif defined(BUG_GUARD_OF_OWN_ROW)
#define GUARDED (t.at == OPEN && !t.shared && t.token == token)
#else
#define GUARDED (t.at == OPEN && t.token == token)
#endif

/* Whether the name has no shared hold. A row that still has an owner counts as a hold. */
#ifdef BUG_LOCKED_ROW_IS_FREE
#define ALONE ((r[0].owner == NOBODY || locked[0]) && (r[ROWS/2].owner == NOBODY || locked[ROWS/2]) && (r[ROWS-1].owner == NOBODY || locked[ROWS-1]))
#else
#define ALONE (r[0].owner == NOBODY && r[ROWS/2].owner == NOBODY && r[ROWS-1].owner == NOBODY)
#endif
#if defined(BUG_PROMOTE_IGNORES_SHARED)
#define ALONE_FOR(q) true
#elif defined(BUG_PROMOTE_READS_FIRST)
#define ALONE_FOR(q) p[q].alone
#else
#define ALONE_FOR(q) ALONE
#endif

/* The mode by which promote recognizes that the request was granted. */
#ifdef BUG_MODE_2_IS_GRANTED
#define GRANTED_MODE 2
#else
#define GRANTED_MODE 0
#endif

#ifdef EXCLUSION_ALONE
#define ASSERT(x)
#else
#define ASSERT(x) assert(x)
#endif

/* giveUp: process q ends its request or its hold. */
inline giveUp(q) {
	if
	:: WAITS(q) -> giveUps++
	:: else
	fi;
	forget(q); check()
}

inline forget(q) {
	p[q].at = IDLE; p[q].id = 0; p[q].part = 0; p[q].token = 0; p[q].since = 0;
	p[q].guarded = false; p[q].forced = false; p[q].over = false; p[q].alone = false
}

inline check() {
	exclusive_is_alone = true;
	i = 0;
	do
	:: i < PROCESSES ->
		if
		:: p[i].at == WRITES && !p[i].forced && TRUSTS((i + 1) % PROCESSES) && !p[(i + 1) % PROCESSES].forced -> exclusive_is_alone = false
		:: p[i].at == WRITES && !p[i].forced && TRUSTS((i + PROCESSES - 1) % PROCESSES) && !p[(i + PROCESSES - 1) % PROCESSES].forced ->
			exclusive_is_alone = (PROCESSES == 1)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0; yes = false;
	assert(exclusive_is_alone)
}

/* take: the statements take, take_or_enlist and claim of request m. */
inline take(m) {
	yes = false;
	if
#ifdef BUG_TAKE_IGNORES_MODE
	:: !held ->
#else
	:: !held && mode == 0 ->
#endif
		token++; owner = m; held = true; exclusive++; grants++; yes = true
	:: held && mode == 0 && owner == m ->	/* a copy was granted it */
		yes = true
#ifndef BUG_TAKE_IGNORES_MODE
	:: mode != 0 && (!held || owner == m) -> owner = m; held = true	/* the claim */
#ifdef BUG_CLAIM_OPENS_PHASE
		; mode = 1
#endif
#endif
	:: else
	fi
}

/* promote: noShared is whether it finds no shared hold. */
inline promote(m, noShared) {
	yes = false;
	if
#ifdef BUG_PROMOTE_ANY_OWNER
	:: true ->
#else
	:: owner == m ->
#endif
		if
		:: mode == GRANTED_MODE -> yes = true	/* a copy was granted it */
#ifndef BUG_GRANT_TO_COPY_IS_OLD
			; held = true
#endif
		:: mode != GRANTED_MODE && (noShared) && !GUARDED ->
#ifndef BUG_PROMOTE_KEEPS_TOKEN
			token++;
#endif
			mode = GRANTED_MODE; owner = m; held = true; exclusive++; grants++; yes = true
		:: else -> held = true
		fi
	:: else
	fi
}

/* Whether the owner id m holds the row. In a phase, it may only have claimed it, by a late
   statement. */
#ifdef BUG_REPLACE_IN_PHASE
#define REPLACEABLE(m) (owner == (m))
#else
#define REPLACEABLE(m) (owner == (m) && mode != 1)
#endif

/* replace: the request by replaces the owner m. A copy that follows recognizes the grant. */
inline replace(m, by) {
	yes = false;
	if
	:: owner == by && mode != 1 -> held = true; yes = true
	:: REPLACEABLE(m) && !GUARDED -> token++; owner = by; held = true; exclusive++; grants++; yes = true
	:: else
	fi
}

inline admit() {
	yes = false;
	if
	:: !held && (mode == 1 || !GUARDED) ->
		if
#ifdef BUG_EACH_ADMISSION_HAS_A_TOKEN
		:: true -> token++
#elif !defined(BUG_PHASE_KEEPS_TOKEN)
		:: mode != 1 -> token++
#endif
		:: else
		fi;
		mode = 1; yes = true;
#ifndef BUG_ADMIT_KEEPS_OWNER
		owner = ADMITTED
#endif
	:: else
	fi
}

/* Whether the row of process q is free for request m. */
#ifdef BUG_JOIN_OVERWRITES
#define FREE_FOR(q, m) true
#else
#define FREE_FOR(q, m) (!ROW(q).held || ROW(q).owner == (m))
#endif

#if defined(BUG_JOIN_IGNORES_CLAIM)
#define MAY_JOIN (mode == 1)
#elif defined(BUG_ADMIT_KEEPS_OWNER)
#define MAY_JOIN (mode == 1 && !held)
#else
#define MAY_JOIN (mode == 1 && owner == ADMITTED)
#endif

/* join: request m takes the row of process q, with the token e, if may is true. */
inline join(q, m, e, may) {
	yes = false;
	if
	:: (may) && FREE_FOR(q, m) -> ROW(q).owner = m; ROW(q).token = e; ROW(q).held = true; yes = true
	:: else
	fi
}

/* The statements by which request m downgrades its hold. The token of the shared row is above the
   next token, because the clock of a later admission may be behind. */
#ifdef BUG_NOT_PREPARED
#define PREPARED(m) (owner == (m))
#elif defined(BUG_ADD_ANY_OWNER)
#define PREPARED(m) true
#else
#define PREPARED(m) (owner == (m) && mode == 2)
#endif
#ifdef BUG_DOWNGRADE_ANY_OWNER
#define MAY_DOWNGRADE(m) true
#else
#define MAY_DOWNGRADE(m) PREPARED(m)
#endif

inline prepare(m) {
	yes = false;
	if
	:: owner == m && mode != 1 -> yes = true;
#ifndef BUG_NOT_PREPARED
		mode = 2
#endif
	:: else
	fi
}

inline downgrade(m, newToken) {
	yes = false;
	if
	:: MAY_DOWNGRADE(m) && !GUARDED ->
#ifndef BUG_DOWNGRADE_KEEPS_TOKEN
		token = (token > newToken -> token : newToken);
#endif
		mode = 1; owner = ADMITTED; held = false; yes = true; grants++
	:: else
	fi
}

inline release(m) {
	if
#ifdef BUG_RELEASE_ANY_OWNER
	:: owner != ADMITTED ->
#else
	:: owner == m ->
#endif
		owner = NOBODY; held = false
	:: else
	fi
}

inline releaseShared(process, m) {
	if
#ifdef BUG_RELEASE_ANY_OWNER
	:: true ->
#else
	:: ROW(process).owner == m ->
#endif
		ROW(process).owner = NOBODY; ROW(process).token = 0; ROW(process).held = false
	:: else
	fi
}

/* endShared: a contender ends the expired shared hold m in row k. */
inline endShared(k, m) {
	if
#ifdef BUG_END_ANY_OWNER
	:: true ->
#else
	:: r[k].owner == m && !r[k].held ->
#endif
		r[k].owner = NOBODY; r[k].token = 0; r[k].held = false
	:: else
	fi
}

/* granted: process q is granted the name exclusively; old: by a copy, long ago. */
inline granted(q, old) {
	p[q].at = TAKEN; p[q].token = token; p[q].since = grants; p[q].over = old;
	tokens_rise = (token > highest && token > highestShared);
	ASSERT(tokens_rise);
	highest = token
}

/* holdsShared: process q has joined, or was downgraded, with the token e. */
inline holdsShared(q, e) {
	p[q].token = e; p[q].since = exclusive;
	tokens_rise = (e > highest && e >= highestShared);
	ASSERT(tokens_rise);
	highestShared = e
}

inline done() {
	late.at = NONE; late.by = 0; late.id = 0; late.part = 0
}

/* sendLate: a copy of a statement of process q may be executed at any time. */
inline sendLate(q, what) {
	copies++; late.at = what; late.by = q; late.id = p[q].id; late.part = p[q].part
}

proctype Process_(byte q) {
	do
	/* a request to hold the name shared, or exclusively */
	:: d_step { p[q].at == IDLE && requests < REQUESTS -> requests++; p[q].id = requests; p[q].part = requests; p[q].at = ADMIT }
	:: d_step { p[q].at == IDLE && requests < REQUESTS -> requests++; p[q].id = requests; p[q].part = requests; p[q].at = TAKE }

	/* admit.sql */
	:: d_step { p[q].at == ADMIT && !held && (mode == 1 || !GUARDED) -> admit(); p[q].at = JOIN; check() }
	/* join.sql */
#ifdef BUG_JOIN_READS_FIRST
	:: d_step { p[q].at == JOIN && !p[q].alone && MAY_JOIN -> p[q].alone = true; p[q].token = token }
	:: d_step { p[q].at == JOIN && p[q].alone -> p[q].alone = false; join(q, p[q].id, p[q].token, true);
		if
		:: yes -> p[q].at = JOINED; p[q].since = exclusive; grants++
		:: else
		fi; check() }
#else
	:: d_step { p[q].at == JOIN && MAY_JOIN && FREE_FOR(q, p[q].id) ->
		no_request_passes_a_claim = !held;
		ASSERT(no_request_passes_a_claim);
		join(q, p[q].id, token, true); p[q].at = JOINED; grants++; holdsShared(q, token); check() }
#endif
	:: d_step { p[q].at == JOIN && !(MAY_JOIN) && !p[q].alone -> p[q].at = ADMIT }
	:: d_step { p[q].at == JOINED -> p[q].at = READS; check() }	/* the reply */

	/* take.sql, take_or_enlist.sql, claim.sql */
	:: d_step { p[q].at == TAKE && (!held && (mode != 0 || !GUARDED) || held && owner == p[q].id) -> take(p[q].id);
		if
		:: yes -> granted(q, false)
		:: else -> p[q].at = PROMOTE
		fi; check() }
	/* promote.sql */
#ifdef BUG_PROMOTE_READS_FIRST
	:: d_step { p[q].at == PROMOTE && !p[q].alone && ALONE -> p[q].alone = true }
#endif
#ifdef BUG_PROMOTE_ANY_OWNER
	:: d_step { p[q].at == PROMOTE && (mode != 0 && ALONE_FOR(q) && !GUARDED || mode == 0 && owner == p[q].id) ->
#else
	:: d_step { p[q].at == PROMOTE && owner == p[q].id && (mode == GRANTED_MODE || ALONE_FOR(q) && !GUARDED || !held) ->
#endif
#ifdef BUG_GRANT_TO_COPY_IS_OLD
		p[q].over = (mode == GRANTED_MODE);
#endif
		promote(p[q].id, ALONE_FOR(q)); p[q].alone = false;
		if
		:: yes -> granted(q, p[q].over)
		:: else
		fi; check() }
	:: d_step { p[q].at == PROMOTE && owner != p[q].id -> p[q].at = TAKE; p[q].alone = false }
	/* end_shared.sql, after the contender has marked the session dead */
#ifndef BUG_DEAD_ROWS_ARE_KEPT
	:: d_step { p[q].at == PROMOTE && r[0].owner != NOBODY && !r[0].held ->
		if
		:: copies < COPIES && late.at == IDLE -> copies++; late.at = END_SHARED; late.by = 0; late.id = r[0].owner
		:: else
		fi;
		endShared(0, r[0].owner); check() }
	:: d_step { p[q].at == PROMOTE && r[ROWS/2].owner != NOBODY && !r[ROWS/2].held -> endShared(ROWS/2, r[ROWS/2].owner); check() }
	:: d_step { p[q].at == PROMOTE && r[ROWS-1].owner != NOBODY && !r[ROWS-1].held -> endShared(ROWS-1, r[ROWS-1].owner); check() }
#endif
	:: d_step { p[q].at == TAKEN -> p[q].at = WRITES; check() }	/* the reply */

	/* replace.sql, after the hold was lost or unlocked */
	:: d_step { p[q].at == WRITES && requests < REQUESTS -> requests++; p[q].part = requests; p[q].at = REPLACE; p[q].forced = false }
	:: d_step { p[q].at == REPLACE && !GUARDED && (REPLACEABLE(p[q].id) || owner == p[q].part && mode != 1) ->
		replace(p[q].id, p[q].part); p[q].id = p[q].part; p[q].guarded = false; granted(q, false); check() }
	:: d_step { p[q].at == REPLACE && !(REPLACEABLE(p[q].id) || owner == p[q].part && mode != 1) ->
		p[q].at = TAKE; p[q].id = p[q].part; p[q].token = 0; p[q].guarded = false }

	/* the downgrade */
	:: d_step { p[q].at == WRITES && requests < REQUESTS && !p[q].guarded -> requests++; p[q].part = requests; p[q].at = PREPARE }
#ifdef BUG_DOWNGRADE_RELEASES_FIRST
	:: d_step { p[q].at == PREPARE && owner == p[q].id -> release(p[q].id); mode = 1; owner = ADMITTED; token++; p[q].at = ADD }
	:: d_step { p[q].at == ADD && MAY_JOIN -> join(q, p[q].part, token, true); grants++; p[q].at = DOWNGRADED; holdsShared(q, token); check() }
#else
	:: d_step { p[q].at == PREPARE && owner == p[q].id && mode != 1 -> prepare(p[q].id); p[q].at = ADD; check() }
	:: d_step { p[q].at == ADD && PREPARED(p[q].id) && FREE_FOR(q, p[q].part) ->
		join(q, p[q].part, token + 2, true); p[q].at = DOWNGRADE; check() }
	:: d_step { p[q].at == DOWNGRADE && MAY_DOWNGRADE(p[q].id) && !GUARDED ->
		downgrade(p[q].id, ROW(q).token); p[q].at = DOWNGRADED; check() }
#endif
	:: d_step { p[q].at == DOWNGRADED ->
		if
		:: ROW(q).owner == p[q].part && ROW(q).held || p[q].forced ->
			p[q].at = READS;
#ifndef BUG_DOWNGRADE_RELEASES_FIRST
			if
			:: !p[q].forced -> holdsShared(q, ROW(q).token)
			:: else
			fi
#endif
		:: else -> forget(q)
		fi; check() }

	/* Unlock, or the end of a request that was not granted */
	:: d_step { MAY_END(q) -> release(p[q].id); release(p[q].part); releaseShared(q, p[q].part); giveUp(q) }
	/* the same, with a late release */
	:: d_step { MAY_END(q) && copies < COPIES && late.at == IDLE -> sendLate(q, RELEASE); giveUp(q) }
	/* trust ends, an outcome is unknown, or the process dies */
	:: d_step { MAY_END(q) -> giveUp(q) }

	/* any statement may be executed a second time */
	:: d_step { copies < COPIES && late.at == IDLE && (p[q].at == ADMIT || p[q].at == JOIN || p[q].at == TAKE || p[q].at == PROMOTE ||
		p[q].at == REPLACE || p[q].at == PREPARE || p[q].at == ADD || p[q].at == DOWNGRADE) -> sendLate(q, p[q].at) }
	:: d_step { copies < COPIES && late.at == IDLE && (p[q].at == READS || p[q].at == WRITES) -> sendLate(q, RENEW) }

	/* Guard */
#ifdef BUG_GUARD_DURING_DOWNGRADE
	:: d_step { TRUSTS(q) && t.at == NONE ->
#else
	:: d_step { (p[q].at == READS || p[q].at == WRITES) && t.at == NONE ->
#endif
		p[q].guarded = true; t.at = SENT; t.by = q; t.id = p[q].id; t.part = p[q].part; t.token = p[q].token;
		t.since = p[q].since; t.shared = (p[q].at == READS) }

	:: p[q].at == IDLE && requests == REQUESTS -> break
	od
}

/* Statements that are executed late. No process reads their replies. */
proctype Late_() {
end:
	do
	:: d_step { late.at == ADMIT && !held && (mode == 1 || !GUARDED) -> admit(); done(); check() }
	:: d_step { late.at == JOIN -> join(late.by, late.id, token, MAY_JOIN);
		if
		:: yes -> grants++
		:: else
		fi;
		done(); check() }
	:: d_step { late.at == TAKE && (held || mode != 0 || !GUARDED) -> take(late.id); done(); check() }
	:: d_step { late.at == PROMOTE -> promote(late.id, ALONE_FOR(late.by)); done(); check() }
	:: d_step { late.at == REPLACE && !GUARDED -> replace(late.id, late.part); done(); check() }
	:: d_step { late.at == PREPARE -> prepare(late.id); done(); check() }
	:: d_step { late.at == ADD -> join(late.by, late.part, token + 2, PREPARED(late.id)); done(); check() }
	:: d_step { late.at == DOWNGRADE -> downgrade(late.id, r[late.by % ROWS].token); done(); check() }
	:: d_step { late.at == RENEW ->
		if
		:: owner == late.id -> held = true
		:: r[late.by % ROWS].owner == late.id -> r[late.by % ROWS].held = true
		:: else
		fi;
		done(); check() }
	:: d_step { late.at == RELEASE -> release(late.id); release(late.part); releaseShared(late.by, late.part); done(); check() }
	:: d_step { late.at == END_SHARED -> endShared(late.by, late.id); done(); check() }
	:: d_step { late.at != NONE -> done() }
	od
}

inline endTransaction() {
	t.at = NONE; t.by = 0; t.id = 0; t.part = 0; t.token = 0; t.since = 0; t.shared = false
}

proctype Transaction_() {
end:
	do
	/* guard.sql; for a shared hold, it also reads the row of that hold */
	:: d_step { t.at == SENT ->
		if
#ifdef BUG_GUARD_OF_OWN_ROW
		:: t.shared && ROW(t.by).token == t.token || !t.shared && token == t.token ->
#else
		:: token == t.token && (!t.shared || ROW(t.by).owner == t.part) ->
#endif
			t.at = OPEN;
			a_forced_hold_has_no_guard = !(p[t.by].id == t.id && p[t.by].forced);
			ASSERT(a_forced_hold_has_no_guard)
		:: else ->
			no_loss_is_false = !(p[t.by].id == t.id && TRUSTS(t.by) && !p[t.by].forced);
			ASSERT(no_loss_is_false);
			endTransaction()
		fi }
	/* commit: no other grant has followed that of the hold; after a shared one, no exclusive grant */
	:: d_step { t.at == OPEN ->
		no_stale_guard_commits = (t.since == (t.shared -> exclusive : grants));
		ASSERT(no_stale_guard_commits);
		endTransaction() }
	/* the transaction is rolled back, or its connection breaks */
	:: d_step { t.at != NONE -> endTransaction() }
	od
}

/* Whether process q trusts the lease of the name's row, or that of the shared row k. */
#define RELIES(q) (owner == p[q].id && !p[q].over && (p[q].at == WRITES || p[q].at >= PREPARE && p[q].at <= DOWNGRADE))
#ifdef BUG_DOWNGRADE_TRUSTS_OLD_LEASE
#define RELIES_ON_(q, k) (r[k].owner == p[q].part && p[q].at == READS)
#else
#define RELIES_ON_(q, k) (r[k].owner == p[q].part && (p[q].at == READS || p[q].at == DOWNGRADE || p[q].at == DOWNGRADED))
#endif
#define RELIES_ON(k) (RELIES_ON_(0, k) || RELIES_ON_(1, k) || RELIES_ON_(PROCESSES-1, k))
#define SLOW(q) (owner == p[q].id && (p[q].at == PROMOTE || p[q].at == TAKE))

/* expire: the lease of row k ends. A reply that arrives later is not trusted. */
inline expire(k) {
	r[k].held = false;
	i = 0;
	do
	:: i < PROCESSES ->
		if
		:: p[i].at == JOINED && p[i].id == r[k].owner -> forget(i)
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

#ifdef BUG_CLAIM_HAS_NO_LEASE
#define ENDS (mode == 0)
#else
#define ENDS true
#endif

proctype Database() {
end:
	do
	:: d_step { held && ENDS && !RELIES(0) && !RELIES(1) && !RELIES(PROCESSES-1) &&
		(expiries < EXPIRIES || !SLOW(0) && !SLOW(1) && !SLOW(PROCESSES-1)) ->
		if
		:: SLOW(0) || SLOW(1) || SLOW(PROCESSES-1) -> expiries++
		:: else
		fi;
		held = false;
		i = 0;
		do
		:: i < PROCESSES ->
			if
			:: p[i].at == TAKEN && p[i].id == owner && !p[i].over -> forget(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0; check() }
	:: d_step { r[0].held && !RELIES_ON(0) -> expire(0); check() }
	:: d_step { r[ROWS/2].held && !RELIES_ON(ROWS/2) -> expire(ROWS/2); check() }
	:: d_step { r[ROWS-1].held && !RELIES_ON(ROWS-1) -> expire(ROWS-1); check() }
#ifdef BUG_LOCKED_ROW_IS_FREE
	:: d_step { r[0].held && !locked[0] -> locked[0] = true }
	:: d_step { locked[0] -> locked[0] = false }
#endif
#ifdef FORCE
	/* holders.sql */
	:: d_step { !force && !forceEnded && (held || mode != 0) -> force = true; foundToken = token;
		found[0] = r[0].owner; found[ROWS/2] = r[ROWS/2].owner; found[ROWS-1] = r[ROWS-1].owner }
	/* seize.sql, force.sql */
	:: d_step { force && !forceEnded && !GUARDED && token == foundToken ->
#ifndef BUG_FORCE_KEEPS_TOKEN
		token++;
#endif
		owner = NOBODY; held = false; forceEnded = true;
		i = 0;
		do
		:: i < PROCESSES -> p[i].forced = (TRUSTS(i) || p[i].at == TAKEN || p[i].at == JOINED); i++
		:: else -> break
		od;
		i = 0; check() }
	:: d_step { force && !forceEnded && token != foundToken -> force = false; forceEnded = true }
	/* force_shared.sql */
	:: d_step { force && forceEnded ->
		if
#ifdef BUG_FORCE_ANY_OWNER
		:: true ->
#else
		:: r[0].owner == found[0] ->
#endif
			r[0].owner = NOBODY; r[0].token = 0; r[0].held = false
		:: else
		fi;
		if
		:: r[ROWS/2].owner == found[ROWS/2] -> r[ROWS/2].owner = NOBODY; r[ROWS/2].token = 0; r[ROWS/2].held = false
		:: else
		fi;
		if
		:: r[ROWS-1].owner == found[ROWS-1] -> r[ROWS-1].owner = NOBODY; r[ROWS-1].token = 0; r[ROWS-1].held = false
		:: else
		fi;
		i = 0;	/* a process may have joined again */
		do
		:: i < PROCESSES ->
			if
			:: (TRUSTS(i) || p[i].at == JOINED) && (p[i].part == found[0] || p[i].part == found[ROWS/2] || p[i].part == found[ROWS-1]) -> p[i].forced = true
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0; force = false; found[0] = 0; found[ROWS/2] = 0; found[ROWS-1] = 0; foundToken = 0; check() }
#endif
#ifdef PURGE
	/* end_phase.sql */
#ifdef BUG_PURGE_IGNORES_SHARED
	:: d_step { mode != 0 && !held && purges < PURGE ->
#else
	:: d_step { mode != 0 && !held && purges < PURGE && ALONE ->
#endif
		mode = 0; purges++;
#ifndef BUG_END_PHASE_KEEPS_OWNER
		owner = NOBODY;
#endif
		check() }
	/* Purge deletes the row, and another one is added, with a higher token */
#ifdef BUG_PURGE_ANY_MODE
	:: d_step { !held && purges < PURGE && !GUARDED -> purges++; token++; owner = NOBODY; mode = 0; check() }
#else
	:: d_step { mode == 0 && !held && purges < PURGE && !GUARDED -> purges++; token++; owner = NOBODY; check() }
#endif
#endif
	od
}

init {
	atomic {
		if
		:: true
		:: mode = 1; owner = ADMITTED
		fi;
		do
		:: giveUps < GIVEUPS -> giveUps++
		:: break
		od;
		i = 0;
		do
		:: i < PROCESSES -> run Process_(i); i++
		:: else -> break
		od;
		i = 0;
		run Transaction_();
		run Late_();
		run Database()
	}
}
