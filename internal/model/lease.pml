/*
 * lease.pml: at most one client trusts its lease at any time.
 *
 * There are one row, several clients, and statements that take time: on the way to the server,
 * behind a lock on the row (with the UTC_TIMESTAMP of their start) and on the way back. Any
 * request or reply may be lost. All times are relative to now, so runs need not end. README.md
 * maps the parts to the code.
 */
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef STATEMENTS
#define STATEMENTS 2	/* in flight at the same time */
#endif
#ifndef LEASE
#define LEASE 3
#endif
#ifdef BUG_NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 1
#endif
#define LAG 1		/* ticks that a client's clock loses within any LEASE ticks */
#ifndef QUEUED
#define QUEUED 1	/* the longest wait of a statement for a lock on the row */
#endif
#define IDS 2		/* owner ids of a client; an id is reused when nothing refers to it */
#define PAST (-QUEUED)

/* Kinds and states of a statement. */
#define NONE 0
#define ACQUIRE 1
#define RENEW 2
#define RELEASE 3
#define LOOK 4
#define SENT 0
#define BEGUN 1		/* waits for a lock on the row */
#define ANSWERED 2	/* executed; its reply is in flight */

/* States of a client. */
#define IDLE 0
#define ASKING 1	/* its acquire is in flight */
#define HOLDING 2

typedef Statement { byte kind, client, id, at, age; short begun; bool yes; short left }
typedef Client { byte at, id, trust, since; bool taken; byte unreported }

Statement s[STATEMENTS];
Client c[CLIENTS];
byte owner;		/* 0: none */
short left = PAST;	/* ticks until expires_at; negative: since then */
short seen;		/* the same for a renewal that is executed, but not committed, which a dirty read sees; 0: none */
bool late;		/* the clock of a client loses this tick */
byte i, j, k, n;
short x;

bool one_holder_trusts = true;
bool loss_is_reported = true;
bool one_statement_waits = true;

#define FREE(m) s[m].kind = NONE; s[m].client = 0; s[m].id = 0; s[m].at = SENT; s[m].age = 0; s[m].begun = 0; s[m].yes = false; s[m].left = 0
#define FORGET(p) c[p].at = IDLE; c[p].id = 0; c[p].trust = 0; c[p].since = 0; c[p].taken = false; c[p].unreported = 0

/* slot sets j to an unused statement, or to STATEMENTS. */
inline slot() {
	j = 0;
	do
	:: j < STATEMENTS && s[j].kind != NONE -> j++
	:: else -> break
	od
}

/* fresh sets k to an id of client p to which nothing refers, or to 0. */
inline fresh(p) {
	k = 1 + p * IDS; n = 0;
	do
	:: n < STATEMENTS && s[n].id == k -> k++; n = 0
	:: n < STATEMENTS && s[n].id != k -> n++
	:: n == STATEMENTS && owner == k -> k++; n = 0
	:: else -> break
	od;
	if
	:: k > (p + 1) * IDS -> k = 0
	:: else
	fi
}

#ifdef SLOTS
/* waitSlot sets k to 0 if an earlier ACQUIRE of client p may still wait in the server, even if
   its caller has left. It counts these in n. */
inline waitSlot(p) {
	i = 0; n = 0;
	do
	:: i < STATEMENTS ->
		if
		:: s[i].kind == ACQUIRE && s[i].client == p && s[i].at != ANSWERED -> n++
		:: else
		fi;
		i++
	:: else -> break
	od;
#ifndef BUG_SLOT_LEFT_WITH_CALLER
	if
	:: n > 0 -> k = 0
	:: else
	fi;
#endif
	one_statement_waits = (k == 0 || j == STATEMENTS || n == 0);
	assert(one_statement_waits)
}
#endif

inline send(p, what) {
	s[j].kind = what; s[j].client = p; s[j].id = c[p].id
}

/* tidy makes states equal that differ only in what has no effect, such as the age of a statement
   whose reply no client needs. */
inline tidy() {
	j = 0;
	do
	:: j < STATEMENTS ->
		if
		:: s[j].kind != NONE && (s[j].kind == RELEASE || c[s[j].client].id != s[j].id) ->
			s[j].age = 0;
#ifndef BUG_LOST_IS_REVIVED
			if
			:: s[j].at == ANSWERED || s[j].kind == LOOK -> FREE(j)
			:: else
			fi
#endif
		:: else
		fi;
		j++
	:: else -> break
	od;
	j = 0
}

inline check() {
	n = 0; i = 0;
	do
	:: i < CLIENTS ->
		if
		:: c[i].at == HOLDING && !c[i].taken -> n++
		:: else
		fi;
		i++
	:: else -> break
	od;
	one_holder_trusts = (n <= 1);
	assert(one_holder_trusts);
	tidy();
	i = 0; n = 0; x = 0; k = 0
}

/* execute executes statement m. Its time is that of its start, s[m].begun ticks ago. */
inline execute(m) {
	if
	:: s[m].kind == ACQUIRE ->
		if
		:: left + s[m].begun <= 0 -> owner = s[m].id; left = LEASE - s[m].begun; s[m].yes = true
		:: else
		fi
	:: s[m].kind == RENEW ->
		if
#ifdef BUG_RENEW_ANY_OWNER
		:: true ->
#else
		:: owner == s[m].id ->
#endif
			x = LEASE - s[m].begun;
#ifdef BUG_RENEW_SHORTENS
			left = x;
#else
			left = (x > left -> x : left);
#endif
			s[m].yes = true
		:: else
		fi
	:: s[m].kind == RELEASE ->
		if
#ifdef BUG_RELEASE_ANY_OWNER
		:: true ->
#else
		:: owner == s[m].id ->
#endif
			owner = 0; left = PAST
		:: else
		fi
	:: s[m].kind == LOOK ->
		s[m].yes = (owner == s[m].id);
		s[m].left = (left > 0 -> left : 0);
		s[m].left = (seen > s[m].left -> seen : s[m].left)
	fi;
	s[m].begun = 0;
	s[m].at = ANSWERED;
	if
	:: s[m].kind == RELEASE -> FREE(m)	/* its reply has no effect */
	:: else
	fi
}

/* answer: client p receives the reply to statement m. x is the time for which it is trusted,
   counted from before the request was sent. */
inline answer(m, p) {
#ifdef BUG_LEASE_FROM_REPLY
	x = (s[m].kind == LOOK -> s[m].left - MARGIN : LEASE - MARGIN);
#else
	x = (s[m].kind == LOOK -> s[m].left : LEASE) - MARGIN - s[m].age;
#endif
	if
	:: s[m].kind == ACQUIRE && c[p].at == ASKING && c[p].id == s[m].id ->
		if
		:: s[m].yes && x > 0 -> c[p].at = HOLDING; c[p].trust = x
		:: else -> FORGET(p)	/* a late grant is released in the background, or not */
		fi
#ifdef BUG_LOST_IS_REVIVED
	:: s[m].kind != ACQUIRE && s[m].yes && c[p].at == IDLE && x > 0 ->
		c[p].at = HOLDING; c[p].id = s[m].id; c[p].trust = x
#endif
	:: s[m].kind != ACQUIRE && c[p].at == HOLDING && c[p].id == s[m].id ->
		if
#ifdef BUG_LOOK_EXTENDS_TRUST
		:: s[m].yes && x > c[p].trust -> c[p].trust = x
		:: s[m].yes && x <= c[p].trust
#else
		:: s[m].yes && s[m].kind == RENEW && x > c[p].trust -> c[p].trust = x
		:: s[m].yes && (s[m].kind != RENEW || x <= c[p].trust)
#endif
		:: else -> FORGET(p)
		fi
	:: else
	fi;
	FREE(m)
}

/* giveUp ends the hold or the request of client p, and may send a release. */
inline giveUp(p) {
	slot();
	if
	:: j < STATEMENTS -> send(p, RELEASE)
	:: true
	fi;
	FORGET(p)
}

/* tick advances the server's clock, and those of the clients that are not late. */
inline tick() {
	atomic {
		i = 0;
		do
		:: i < STATEMENTS && s[i].kind != NONE && s[i].at == BEGUN && s[i].begun >= QUEUED -> break
		:: i < STATEMENTS && !(s[i].kind != NONE && s[i].at == BEGUN && s[i].begun >= QUEUED) -> i++
		:: i == STATEMENTS -> break
		od;
		if
		:: i < STATEMENTS -> FREE(i)	/* ER_LOCK_WAIT_TIMEOUT */
		:: else ->
			i = 0;
			if
			:: left > PAST -> left--
			:: else
			fi;
			if
			:: seen > 0 -> seen--
			:: else
			fi;
			do
			:: i < STATEMENTS ->
				if
				:: s[i].kind != NONE && s[i].at == BEGUN -> s[i].begun++
				:: else
				fi;
				i++
			:: else -> break
			od;
			k = 0;
			do
			:: k < CLIENTS ->
				late = false;
				if
				:: c[k].at != IDLE && c[k].since == 0 -> late = true
				:: true
				fi;
				if
				:: late -> c[k].since = LEASE - 1
				:: else ->
					c[k].since = (c[k].since > 0 -> c[k].since - 1 : 0);
					i = 0;
					do
					:: i < STATEMENTS ->
						if
						:: s[i].kind != NONE && s[i].client == k && s[i].age < LEASE - MARGIN -> s[i].age++
						:: else
						fi;
						i++
					:: else -> break
					od;
					if
					:: c[k].at == HOLDING && c[k].trust > 1 -> c[k].trust--
					:: c[k].at == HOLDING && c[k].trust == 1 -> giveUp(k)
					:: else
					fi
				fi;
				if
				:: c[k].at == HOLDING && c[k].taken ->
					c[k].unreported++;
					loss_is_reported = (c[k].unreported < LEASE);
					assert(loss_is_reported)
				:: else
				fi;
				late = false;
				k++
			:: else -> break
			od;
			check()
		fi;
		i = 0; k = 0
	}
}

proctype Client_(byte p) {
	do
	:: d_step { c[p].at == IDLE -> slot(); fresh(p);
#ifdef SLOTS
		waitSlot(p);
#endif
		if
		:: j < STATEMENTS && k > 0 -> c[p].at = ASKING; c[p].id = k; send(p, ACQUIRE)
		:: else
		fi; check() }
	:: d_step { c[p].at == HOLDING -> slot();
		if
		:: j < STATEMENTS -> send(p, RENEW)
		:: else
		fi; check() }
	:: d_step { c[p].at == HOLDING -> slot();
		if
		:: j < STATEMENTS -> send(p, LOOK)
		:: else
		fi; check() }
	/* Unlock, the end of the wait, or a crash, after which a new process continues */
	:: atomic { c[p].at != IDLE -> giveUp(p); check() }
	od
}

proctype Network(byte m) {
	do
	:: d_step { s[m].kind != NONE && s[m].kind != LOOK && s[m].kind != RELEASE && s[m].at == SENT -> s[m].at = BEGUN }
	:: d_step { s[m].kind != NONE && (s[m].at == BEGUN || (s[m].kind == LOOK || s[m].kind == RELEASE) && s[m].at == SENT) && (s[m].kind == LOOK || seen == 0) -> execute(m); check() }
#ifdef DIRTY
	/* executed; the connection breaks before the commit */
	:: d_step { s[m].kind == RENEW && s[m].at == BEGUN && seen == 0 && owner == s[m].id && LEASE - s[m].begun > left -> seen = LEASE - s[m].begun; FREE(m); check() }
#endif
	:: d_step { s[m].kind != NONE && s[m].at == ANSWERED -> k = s[m].client; answer(m, k); check() }
	:: d_step { s[m].kind != NONE -> FREE(m); check() }	/* the request or the reply is lost */
	od
}

proctype Server() {
	do
	:: tick()
#ifdef DIRTY
	:: d_step { seen > 0 -> left = seen; seen = 0; check() }	/* committed */
	:: d_step { seen > 0 -> seen = 0; check() }	/* lost with the primary */
#endif
#ifdef FORCE
	:: d_step { left > 0 && seen == 0 ->	/* ForceUnlock */
		i = 0;
		do
		:: i < CLIENTS ->
			if
			:: c[i].at != IDLE && c[i].id == owner -> c[i].taken = true
			:: else
			fi;
			i++
		:: else -> break
		od;
		owner = 0; left = PAST; check() }
#endif
#ifdef CLOCK_FORWARD
	:: d_step { left > 0 -> left-- }
#endif
	od
}

init {
	atomic {
		i = 0;
		do
		:: i < CLIENTS -> run Client_(i); i++
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
