/*
 * session.pml: although the locks of a process share one session, no other process acquires a
 * lock while the process trusts it.
 *
 * The model has one process with its locks and sessions, and a rival that represents all other
 * processes. The rival takes what the database grants, and trusts it until it expires by the
 * database's clock. Statements of the process take time, as in lease.pml, and any of them may be
 * lost. Releases and statements of other processes need no slot, and may be executed at any moment.
 * All times are relative to now. A process that has crashed is one that takes no further step.
 * README.md maps the parts to the code.
 */
#ifndef LOCKS
#define LOCKS 1
#endif
#ifndef STATEMENTS
#define STATEMENTS 2	/* in flight at the same time */
#endif
#ifndef SESSIONS
#define SESSIONS 2	/* one after the other; at most 3 */
#endif
#ifndef LEASE
#define LEASE 3
#endif
#ifdef BUG_NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 1
#endif
#ifndef QUEUED
#define QUEUED 0	/* the longest wait of a statement for a locked row */
#endif
#ifndef BACK
#define BACK 0		/* ticks by which the database's clock is set back, in all */
#endif
#ifdef CLOCK_GLITCH	/* the database's clock is a tick fast for a while */
#define PAST (-QUEUED - BACK - 1)
#else
#define PAST (-QUEUED - BACK)
#endif
#ifndef FORCES
#define FORCES 2	/* how many ForceUnlocks may begin */
#endif
#ifndef IDS
#define IDS 2		/* owner ids of a lock; an id is reused when nothing refers to it */
#endif
#define RIVAL 15	/* the owner id of the rival; it binds its rows to its own session 1 */

/* Kinds and states of a statement. */
#define NONE 0
#define ACQUIRE 1
#define BIND 2
#define BEGIN 3
#define RENEW 4
#define LOOK 5
#define SENT 0
#define BEGUN 1		/* waits for the row, with the UTC_TIMESTAMP of its start */
#define ANSWERED 2	/* executed; its reply is in flight */

/* States of a hold. */
#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define LOST 3		/* only with BUG_LOST_IS_REVIVED */

/* States of the session, as its process knows it. */
#define NO_SESSION 0
#define BEGINNING 1
#define LIVE 2

typedef Statement { byte kind, id, number, mark, at, age; short begun; bool yes }
typedef Hold { byte at, id, trust, bound, unreported; bool taken }
typedef Row { byte owner, number; short left }

Statement s[STATEMENTS];

/* What the process knows. */
Hold h[LOCKS];
byte phase, number;
byte live;		/* ticks for which the session is trusted */
byte since;		/* ticks for which the clock of the process may not lose another one */
byte mark;		/* the marker at the last check of its rows */
#ifdef BUG_LOOKS_FOR_A_LEASE
byte looking;		/* ticks for which it continues to check its rows */
#endif
bool releases[LOCKS * IDS + 1];	/* by owner id: the release is repeated until its reply */

/* The rows of the locks, and that of the session. Number 0 means that there is no row. */
Row r[LOCKS];
byte at_number, begun, ended;
short left = PAST;	/* ticks until its expires_at; negative: since then */

byte dead;		/* a bit for each session that a process has found dead, and may remember */
bool failed_over;

#ifdef CLOCK_GLITCH
bool fast;
#endif
#if BACK > 0
byte back = BACK;
#endif
#ifdef FORCE
byte forces = FORCES;
byte f_at, f_id, f_number;
#endif
#ifdef FAILOVER
Row keptRow[LOCKS];	/* on the replica */
byte kept_number;
short kept_left = PAST;
#endif

bool late;
byte i, j, k, n, l;
short x;

bool one_holder_trusts = true;
bool loss_is_reported = true;
bool nothing_is_left_behind = true;
bool a_dead_session_stays_dead = true;

#define MARK (begun + 4 * ended + 16 * failed_over)
#define FORCE_ENDED(m) (((m) & 3) == (((m) >> 2) & 3))
#define LOCK(owner_) (((owner_) - 1) / IDS)
#define HELD(l_) (r[l_].left > 0 || r[l_].number != 0 && (r[l_].owner == RIVAL || at_number == r[l_].number && left > 0))

#define CLEAR(m) s[m].kind = NONE; s[m].id = 0; s[m].number = 0; s[m].mark = 0; s[m].at = SENT; s[m].age = 0; s[m].begun = 0; s[m].yes = false
#define FORGET(l_) h[l_].at = IDLE; h[l_].id = 0; h[l_].trust = 0; h[l_].bound = 0; h[l_].unreported = 0; h[l_].taken = false
#define FREE(l_) r[l_].owner = 0; r[l_].number = 0; r[l_].left = PAST

/* END: a hold is given up, or lost. Its release is repeated until its reply. */
#define END(l_) releases[h[l_].id] = true; FORGET(l_)

#if defined(BUG_LOST_IS_REVIVED)
#define LOSE(l_) releases[h[l_].id] = true; h[l_].at = LOST; h[l_].trust = 0
#elif defined(BUG_LOST_IS_NOT_RELEASED)
#define LOSE(l_) FORGET(l_)
#else
#define LOSE(l_) END(l_)
#endif

/* slot sets j to an unused statement, or to STATEMENTS. */
inline slot() {
	j = 0;
	do
	:: j < STATEMENTS && s[j].kind != NONE -> j++
	:: else -> break
	od
}
#define SEND(what, owner_, number_) s[j].kind = what; s[j].id = owner_; s[j].number = number_

#ifdef FORCE
#define FORCED(owner_) (f_id == owner_)
#else
#define FORCED(owner_) false
#endif
#ifdef FAILOVER
#define KEPT(owner_) (keptRow[LOCK(owner_)].owner == owner_)
#else
#define KEPT(owner_) false
#endif
#define IN_USE(owner_) (r[LOCK(owner_)].owner == owner_ || releases[owner_] || FORCED(owner_) || KEPT(owner_))

/* fresh sets k to an owner id of lock l_ to which nothing refers, or to 0. */
inline fresh(l_) {
	k = 1 + l_ * IDS; n = 0;
	do
	:: n < IDS && IN_USE(k) -> k++; n++
	:: n < IDS && !IN_USE(k) ->
		i = 0;
		do
		:: i < STATEMENTS && s[i].id != k -> i++
		:: else -> break
		od;
		if
		:: i < STATEMENTS -> k++; n++
		:: else -> break
		fi
	:: n == IDS -> k = 0; break
	od
}

/* endTrust ends the session and the holds that are no longer trusted. */
inline endTrust() {
	if
	:: phase == LIVE && live == 0 -> phase = NO_SESSION
	:: else
	fi;
	if
	:: phase == NO_SESSION -> mark = 0; live = 0
	:: else
	fi;
	n = 0;
	do
	:: n < LOCKS ->
		if
		:: h[n].at == HOLDING && h[n].trust == 0 && (h[n].bound == 0 || h[n].bound != number || phase != LIVE) -> LOSE(n)
		:: else
		fi;
		if
		:: (h[n].bound != number || phase == NO_SESSION) && h[n].at != LOST -> h[n].bound = 0
		:: else
		fi;
		n++
	:: else -> break
	od
}

/* Whether the reply to statement m still matters. */
#define MATTERS(m) ((s[m].kind == RENEW && h[0].at == LOST && h[0].bound == s[m].number && number == s[m].number) || (s[m].kind == ACQUIRE && h[LOCK(s[m].id)].at == ASKING && h[LOCK(s[m].id)].id == s[m].id) || (s[m].kind == BIND && h[LOCK(s[m].id)].at == HOLDING && h[LOCK(s[m].id)].id == s[m].id) || (s[m].kind == BEGIN && phase == BEGINNING && number == s[m].number) || ((s[m].kind == RENEW || s[m].kind == LOOK) && phase == LIVE && number == s[m].number))

#define RANK(m) (((((((s[m].kind * 16 + s[m].id) * 4 + s[m].number) * 4 + s[m].at) * 4 + s[m].age) * 4 + s[m].begun + 1) * 2 + s[m].yes) * 32 + s[m].mark)
#define SWAP(field) n = s[j].field; s[j].field = s[k].field; s[k].field = n

/* tidy makes states equal that differ only in what has no effect. */
inline tidy() {
	j = 0;
	do
	:: j < STATEMENTS ->
		if
		:: s[j].kind != NONE && !MATTERS(j) ->
			s[j].age = 0;
			if
			:: s[j].at == ANSWERED || s[j].kind == LOOK -> CLEAR(j)
			:: s[j].at != ANSWERED && s[j].kind == BIND && r[LOCK(s[j].id)].owner != s[j].id && !KEPT(s[j].id) -> CLEAR(j)
			:: else
			fi
		:: else
		fi;
		j++
	:: else -> break
	od;
	j = 0;
	do
	:: j + 1 < STATEMENTS ->
		k = j + 1;
		do
		:: k < STATEMENTS ->
			if
			:: RANK(j) > RANK(k) ->
				SWAP(kind); SWAP(id); SWAP(number); SWAP(mark); SWAP(at); SWAP(age);
				x = s[j].begun; s[j].begun = s[k].begun; s[k].begun = x;
				late = s[j].yes; s[j].yes = s[k].yes; s[k].yes = late
			:: else
			fi;
			k++
		:: else -> break
		od;
		j++
	:: else -> break
	od;
	late = false
}

inline check() {
	n = 0;
	do
	:: n < LOCKS ->
#if defined(CLOCK_GLITCH) || defined(FAILOVER)
		h[n].taken = (h[n].at == HOLDING && r[n].owner != h[n].id);
#endif
		one_holder_trusts = !(h[n].at == HOLDING && r[n].owner == RIVAL && !h[n].taken);
		assert(one_holder_trusts);
		/* a row that belongs to no hold of the process, in a session that continues */
		nothing_is_left_behind = !(r[n].owner != 0 && r[n].owner != RIVAL && r[n].number != 0 && r[n].number == at_number && left > 0 &&
			phase == LIVE && number == at_number && (mark & 16) == 16 * failed_over && h[n].id != r[n].owner && !releases[r[n].owner]);
		assert(nothing_is_left_behind);
		n++
	:: else -> break
	od;
	a_dead_session_stays_dead = !(at_number != 0 && left > 0 && (dead & (1 << at_number)));
#if !defined(FAILOVER) && !defined(CLOCK_GLITCH) && !defined(EXCLUSION_ALONE)
	assert(a_dead_session_stays_dead);
#endif
	tidy();
	i = 0; j = 0; k = 0; n = 0; l = 0; x = 0
}

#if defined(BUG_SESSION_NOT_READ)
#define MAY_TAKE(l_, number_, of_rival) true
#elif defined(BUG_TAKEN_BY_NUMBER_ALONE)
#define MAY_TAKE(l_, number_, of_rival) (r[l_].number == 0 || r[l_].number == number_)
#else
#define MAY_TAKE(l_, number_, of_rival) (r[l_].number == 0 || r[l_].number == number_ && (r[l_].owner == RIVAL) == of_rival)
#endif

/* execute executes statement m. Its time is that of its start, s[m].begun ticks ago. */
inline execute(m) {
	l = LOCK(s[m].id);
	x = LEASE - s[m].begun;
	if
	:: s[m].kind == ACQUIRE ->
		if
		:: r[l].left + s[m].begun <= 0 && MAY_TAKE(l, s[m].number, false) ->
			one_holder_trusts = !(r[l].owner == RIVAL && HELD(l));
			assert(one_holder_trusts);
			r[l].owner = s[m].id; r[l].number = 0; r[l].left = x; s[m].yes = true
#ifdef RESENT
		:: !(r[l].left + s[m].begun <= 0 && MAY_TAKE(l, s[m].number, false)) && r[l].owner == s[m].id ->	/* its own grant */
			s[m].yes = (r[l].left > 0);
#ifdef BUG_REPEATED_ACQUIRE_UNBINDS
			r[l].number = 0; r[l].left = x
#endif
#endif
		:: else
		fi;
		s[m].number = 0
	:: s[m].kind == BIND ->
		if
		:: r[l].owner == s[m].id ->
			r[l].left = (x > r[l].left -> x : r[l].left);
#ifdef BUG_BIND_LOWERS
			r[l].number = s[m].number;
#else
			r[l].number = (s[m].number > r[l].number -> s[m].number : r[l].number);
#endif
			s[m].yes = true
		:: else
		fi
	:: s[m].kind == BEGIN ->
		if
#ifdef BUG_BEGIN_LOWERS
		:: at_number != s[m].number ->
#else
		:: at_number < s[m].number ->
#endif
			at_number = s[m].number; left = x; begun = 0; ended = 0;
			s[m].yes = true; s[m].mark = MARK
#ifdef BUG_BEGIN_REVIVES
		:: at_number == s[m].number ->
#else
		:: at_number == s[m].number && left + s[m].begun > 0 ->
#endif
			left = (x > left -> x : left);
			s[m].yes = true; s[m].mark = MARK
		:: else
		fi
	:: s[m].kind == RENEW ->
		if
#ifdef BUG_RENEWAL_REVIVES
		:: at_number == s[m].number ->
#else
		:: at_number == s[m].number && left + s[m].begun > 0 ->
#endif
#ifdef BUG_RENEWAL_SHORTENS
			left = x;
#else
			left = (x > left -> x : left);
#endif
			s[m].yes = true; s[m].mark = MARK
		:: else
		fi
	:: s[m].kind == LOOK ->
		s[m].yes = (s[m].id == 0 || r[l].owner == s[m].id)
	fi;
	s[m].begun = 0;
	if	/* a LOOK returns the owner of a row of the process that is not as it should be */
	:: s[m].kind == LOOK && s[m].id != 0 && r[0].owner == s[m].id && r[0].number != s[m].number -> s[m].begun = s[m].id
	:: s[m].kind == LOOK && r[0].owner != 0 && r[0].owner != RIVAL && r[0].owner != s[m].id -> s[m].begun = r[0].owner
	:: else
	fi;
	s[m].at = ANSWERED
}

#define EXTEND(what) what = (x > what -> x : what)

/* answer: the process receives the reply to statement m. x is the time for which it is trusted,
   counted from before the request was sent. */
inline answer(m) {
	l = LOCK(s[m].id);
#ifdef BUG_TRUST_FROM_REPLY
	x = LEASE - MARGIN;
#else
	x = LEASE - MARGIN - s[m].age;
#endif
	if
	:: s[m].kind == ACQUIRE && h[l].at == ASKING && h[l].id == s[m].id ->
		if
		:: s[m].yes && x > 0 -> h[l].at = HOLDING; h[l].trust = x
		:: s[m].yes && x <= 0 -> END(l)
		:: else -> END(l)	/* it may have been sent twice */
		fi
	:: s[m].kind == BIND && h[l].at == HOLDING && h[l].id == s[m].id ->
		if
		:: s[m].yes ->
			EXTEND(h[l].trust);
			if
			:: s[m].number == number && phase != NO_SESSION && s[m].mark == 0 -> h[l].bound = number
			:: else
			fi
		:: else -> FORGET(l)
		fi
	:: s[m].kind == BEGIN && phase == BEGINNING && number == s[m].number ->
		if
		:: s[m].yes && x > 0 -> phase = LIVE; live = x; mark = s[m].mark
		:: else -> phase = NO_SESSION
		fi
#ifdef BUG_LOST_IS_REVIVED
	:: s[m].kind == RENEW && s[m].yes && number == s[m].number && x > 0 && h[0].at == LOST && h[0].bound == number ->
		phase = LIVE; EXTEND(live); h[0].at = HOLDING
#endif
	:: s[m].kind == RENEW && phase == LIVE && number == s[m].number ->
		if
		:: !s[m].yes -> live = 0; endTrust()	/* a dead session stays dead */
#if defined(FORCE) || defined(FAILOVER)
#ifndef BUG_MARKER_IGNORED
#ifdef BUG_LOOKS_FOR_A_LEASE
		:: s[m].yes && !(looking == 0 && s[m].mark == mark) ->
			looking = (s[m].mark != mark -> LEASE : looking);
			mark = s[m].mark;
#else
		:: s[m].yes && !(FORCE_ENDED(s[m].mark) && s[m].mark == mark) ->
#endif
			/* A ForceUnlock is in progress, or another server replies: the process checks
			   its rows before it trusts this renewal. */
#ifdef BUG_TRUST_BEFORE_LOOK
			EXTEND(live);
#endif
			s[m].kind = LOOK; s[m].at = SENT; s[m].yes = false;
#ifdef BUG_LOOK_AT_BOUND_ALONE
			s[m].id = (h[0].at == HOLDING && h[0].bound == number -> h[0].id : 0)
#else
			s[m].id = (h[0].at == HOLDING -> h[0].id : 0)
#endif
#endif
#endif
		:: else -> EXTEND(live)
		fi
	:: s[m].kind == LOOK && phase == LIVE && number == s[m].number ->
		EXTEND(live);
		mark = s[m].mark;
#ifdef FAILOVER
#ifndef BUG_RETURNED_ROW_IS_KEPT
		if	/* a row that was released before the failover */
		:: s[m].begun != 0 && s[m].begun != h[0].id -> releases[s[m].begun] = true
		:: else
		fi;
#endif
#endif
		if
		:: !s[m].yes && h[0].id == s[m].id -> FORGET(0)
		:: s[m].yes && s[m].id != 0 && s[m].begun == s[m].id && h[0].id == s[m].id ->
			/* A failover has lost the bind, so its reply no longer counts. */
			h[0].bound = 0;
#ifndef BUG_LATE_BIND_COUNTS
			j = 0;
			do
			:: j < STATEMENTS ->
				if
				:: s[j].kind == BIND -> s[j].mark = 1
				:: else
				fi;
				j++
			:: else -> break
			od;
#endif
			endTrust()
		:: else
		fi
	:: else
	fi;
	if
	:: s[m].kind == LOOK && s[m].at == SENT
	:: else -> CLEAR(m)
	fi
}

/* tick advances the server's clock, and that of the process unless it is late. */
inline tick() {
	atomic {
		i = 0;
		do
		:: i < STATEMENTS && s[i].kind != NONE && s[i].at == BEGUN && s[i].begun >= QUEUED -> break
		:: i < STATEMENTS && !(s[i].kind != NONE && s[i].at == BEGUN && s[i].begun >= QUEUED) -> i++
		:: i == STATEMENTS -> break
		od;
		if
		:: i < STATEMENTS -> CLEAR(i)	/* ER_LOCK_WAIT_TIMEOUT */
		:: else ->
			left = (left > PAST -> left - 1 : PAST);
#ifdef FAILOVER
			kept_left = (kept_left > PAST -> kept_left - 1 : PAST);
#endif
			late = false;
			if
			:: since == 0 && (phase != NO_SESSION || h[0].at != IDLE || h[LOCKS-1].at != IDLE) -> late = true
			:: true
			fi;
			since = (late -> LEASE - 1 : (since > 0 -> since - 1 : 0));
			i = 0;
			do
			:: i < STATEMENTS ->
				if
				:: s[i].kind != NONE && s[i].at == BEGUN -> s[i].begun++
				:: else
				fi;
				if
				:: s[i].kind != NONE && !late && s[i].age < LEASE - MARGIN -> s[i].age++
				:: else
				fi;
				i++
			:: else -> break
			od;
			live = (live > 0 && !late -> live - 1 : live);
#ifdef BUG_LOOKS_FOR_A_LEASE
			looking = (looking > 0 && !late -> looking - 1 : looking);
#endif
			i = 0;
			do
			:: i < LOCKS ->
				r[i].left = (r[i].left > PAST -> r[i].left - 1 : PAST);
#ifdef FAILOVER
				keptRow[i].left = (keptRow[i].left > PAST -> keptRow[i].left - 1 : PAST);
#endif
				h[i].trust = (h[i].trust > 0 && !late -> h[i].trust - 1 : h[i].trust);
				i++
			:: else -> break
			od;
			endTrust();
			i = 0;
			do
			:: i < LOCKS ->
				if
				:: h[i].at == HOLDING && h[i].taken ->
					h[i].unreported++;
					loss_is_reported = (h[i].unreported < LEASE);
					assert(loss_is_reported)
				:: else
				fi;
				i++
			:: else -> break
			od
		fi;
		check()
	}
}

proctype Locker(byte m) {
	do
	:: atomic { h[m].at == IDLE -> slot(); fresh(m);
		if
		:: j < STATEMENTS && k > 0 -> h[m].at = ASKING; h[m].id = k; SEND(ACQUIRE, k, 0);
			if	/* it may name any session that was found dead */
			:: true
			:: dead & 2 -> s[j].number = 1
			:: dead & 4 -> s[j].number = 2
			:: dead & 8 -> s[j].number = 3
			fi
		:: else
		fi; check() }
#ifdef BUG_BIND_BEFORE_BEGIN
	:: d_step { h[m].at == HOLDING && phase != NO_SESSION && h[m].bound == 0 -> slot();
#else
	:: d_step { h[m].at == HOLDING && phase == LIVE && h[m].bound == 0 -> slot();
#endif
		if
		:: j < STATEMENTS -> SEND(BIND, h[m].id, number);
#ifdef BUG_TRUST_BEFORE_BOUND
			h[m].bound = number
#endif
		:: else
		fi; check() }
	/* Unlock, or the end of the wait */
	:: d_step { h[m].at == ASKING || h[m].at == HOLDING -> END(m); check() }
#ifdef BUG_LOST_IS_REVIVED
	:: d_step { h[m].at == LOST -> FORGET(m); check() }
#endif
	od
}

proctype Watchdog() {
	do
	:: d_step { phase == NO_SESSION && number < SESSIONS && (h[0].at == HOLDING || h[LOCKS-1].at == HOLDING) -> slot();
		if
		:: j < STATEMENTS -> phase = BEGINNING; number++; SEND(BEGIN, 0, number)
		:: else
		fi; check() }
#ifdef RESENT
	:: d_step { phase == BEGINNING -> slot();
		if
		:: j < STATEMENTS -> SEND(BEGIN, 0, number)
		:: else
		fi; check() }
#endif
	/* no reply to Begin */
	:: d_step { phase == BEGINNING -> phase = NO_SESSION; endTrust(); check() }
	:: d_step { phase == LIVE -> slot();
		if
		:: j < STATEMENTS -> SEND(RENEW, 0, number)
		:: else
		fi; check() }
	od
}

proctype Releaser(byte id) {
	do
	:: d_step { releases[id] && r[LOCK(id)].owner == id -> FREE(LOCK(id)); check() }
	:: d_step { releases[id] && r[LOCK(id)].owner != id -> releases[id] = false; check() }	/* its reply */
#ifdef BUG_RELEASE_STOPS
	:: d_step { releases[id] && r[LOCK(id)].left <= 0 -> releases[id] = false; check() }
#endif
	od
}

proctype Rival(byte m) {
	byte seen;
	do
	/* If the row's lease has expired, but the row is bound to a session, the rival reads the row
	   of the session, and marks the session dead if it has expired. */
	:: d_step { r[m].left <= 0 && r[m].number != 0 && r[m].owner != RIVAL ->
		if
		:: at_number != r[m].number -> dead = dead | (1 << r[m].number)	/* no such session any more */
		:: at_number == r[m].number && left <= 0 ->
#ifndef BUG_NOT_MARKED_DEAD
			left = PAST;
#endif
			dead = dead | (1 << r[m].number)
		:: else
		fi;
		check() }
	:: d_step { r[m].left <= 0 && r[m].owner != RIVAL && (MAY_TAKE(m, 0, false) || (dead & (1 << r[m].number))) ->
		r[m].owner = RIVAL; r[m].number = 0; r[m].left = LEASE; check() }
	:: d_step { r[m].owner == RIVAL && r[m].number == 0 -> r[m].number = 1; check() }
	:: d_step { r[m].owner == RIVAL -> FREE(m); check() }
	od
}

proctype Network(byte m) {
	do
#if QUEUED > 0
	:: d_step { s[m].kind != NONE && s[m].kind != LOOK && s[m].at == SENT -> s[m].at = BEGUN; check() }
	:: d_step { s[m].kind != NONE && (s[m].at == BEGUN || s[m].kind == LOOK && s[m].at == SENT) -> execute(m); check() }
#else
	:: d_step { s[m].kind != NONE && s[m].at == SENT -> execute(m); check() }
#endif
	:: d_step { s[m].kind != NONE && s[m].at == ANSWERED -> answer(m); check() }
	:: d_step { s[m].kind != NONE -> CLEAR(m); check() }	/* the request or the reply is lost */
#ifdef RESENT	/* a proxy sends the statement again */
	:: d_step { s[m].kind == ACQUIRE && s[m].at == SENT -> slot();
		if
		:: j < STATEMENTS -> SEND(ACQUIRE, s[m].id, s[m].number); s[j].age = s[m].age
		:: else
		fi; check() }
#endif
	od
}

#define SHIFT(by) left = (left + by < PAST -> PAST : left + by); i = 0; do :: i < LOCKS -> r[i].left = (r[i].left + by < PAST -> PAST : r[i].left + by); i++ :: else -> break od

proctype Server() {
	do
	:: tick()
#if BACK > 0
	:: d_step { back > 0 -> back--; SHIFT(1); check() }
#endif
#ifdef CLOCK_GLITCH
	:: d_step { !fast -> fast = true; SHIFT(-1); check() }
	:: d_step { fast -> fast = false; SHIFT(1); check() }
#endif
#ifdef PURGE
	:: d_step { at_number != 0 && left <= 0 -> at_number = 0; begun = 0; ended = 0; left = PAST; check() }
#endif
#ifdef FAILOVER
	:: d_step { !failed_over -> kept_number = at_number; kept_left = left; i = 0;	/* the replica catches up */
		do
		:: i < LOCKS -> keptRow[i].owner = r[i].owner; keptRow[i].number = r[i].number; keptRow[i].left = r[i].left; i++
		:: else -> break
		od;
		check() }
	:: d_step { !failed_over -> failed_over = true;
		at_number = kept_number; left = kept_left; kept_number = 0; kept_left = PAST; i = 0;
		do
		:: i < LOCKS ->
			r[i].owner = keptRow[i].owner; r[i].number = keptRow[i].number; r[i].left = keptRow[i].left;
			keptRow[i].owner = 0; keptRow[i].number = 0; keptRow[i].left = PAST; i++
		:: else -> break
		od;
		check() }
#endif
	od
}

#ifdef FORCE
/* ForceUnlock of lock 0. It may die after any step. */
#define RAISED 1
#define FREED 2
active proctype Forcer() {
	do
	:: d_step { forces > 0 && f_at == 0 && r[0].owner != 0 && r[0].owner != RIVAL -> forces--; f_id = r[0].owner; f_number = r[0].number;
#ifndef BUG_NO_MARKER
		if
		:: f_number != 0 && at_number == f_number -> begun++
		:: else
		fi;
#endif
		f_at = RAISED; check() }
	:: d_step { f_at == RAISED ->
		if
#ifdef BUG_FORCED_BY_OWNER_ALONE
		:: r[0].owner == f_id ->
#else
		:: r[0].owner == f_id && r[0].number == f_number ->
#endif
			if
			:: h[0].id == f_id -> h[0].taken = true
			:: else
			fi;
			FREE(0)
		:: else
		fi;
		f_at = FREED; check() }
	:: d_step { f_at == FREED ->
#ifndef BUG_NO_MARKER
		if
		:: f_number != 0 && at_number == f_number && ended < begun -> ended++
		:: else
		fi;
#endif
		f_at = 0; f_id = 0; f_number = 0; check() }
	:: d_step { f_at != 0 -> f_at = 0; f_id = 0; f_number = 0; check() }	/* it dies */
	od
}
#endif

init {
	atomic {
		i = 0;
		do
		:: i < LOCKS -> r[i].left = PAST;
#ifdef FAILOVER
			keptRow[i].left = PAST;
#endif
			run Locker(i); run Rival(i); i++
		:: else -> break
		od;
		run Watchdog();
		i = 1;
		do
		:: i <= LOCKS * IDS -> run Releaser(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < STATEMENTS -> run Network(i); i++
		:: else -> break
		od;
		i = 0;
		run Server()
	}
}
