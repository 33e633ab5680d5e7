/*
 * direct.pml: a release grants the row to the process at the head of its wait queue.
 *
 * When that process is signalled, it reads the row, which does not change it. So no other process
 * knows whether it has found the grant. Time passes in ticks. A tick may occur between any two steps,
 * so a pause of a process needs no step of its own. README.md maps the parts to the code.
 */
#ifndef N
#define N 2		/* processes */
#endif
#ifndef ACQUIRES
#define ACQUIRES 1	/* by each process, and one more by the first */
#endif
#ifndef CANCELS
#define CANCELS 1	/* calls that give up */
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LOSSES
#define LOSSES 0	/* signals that are lost, for example because the releasing process died */
#endif
#ifndef STALE
#define STALE 0		/* signals that are late, or for another name */
#endif
#ifndef TICKS
#define TICKS 4
#endif
#define LEASE 3
#define GRANT 2		/* the lease if a release grants the row */
#define NOBODY N
#define IDS 12

/* States of a process. */
#define AWAY 0
#define REQUESTED 1	/* its UPDATE is in flight */
#define TAKEN 2		/* the reply is in flight: the row was granted */
#define OWN 3		/* the same: a release had granted it the row before */
#define REFUSED 4	/* the same: another process owns the row */
#define WATCHING 5	/* it sleeps until woken */
#define REPLACING 6	/* the UPDATE that replaces the grant is in flight */
#define REPLACED 7	/* its reply is in flight */
#define HOLDS 8
#define DEAD 9

typedef Process {
	byte at, acquires;
	byte sent;		/* when the statement in flight was sent */
	byte id, token;		/* of the reply or the hold */
	byte trust;		/* until when the hold is trusted */
	byte reading;		/* the read of a grant; 1: sent, 2: executed */
	byte readSent, readId, readLeft, readToken;
	byte ready, readyUntil, readyToken;	/* a grant that was found, but not adopted yet */
	byte removal;		/* from the wait queue; 1: due */
	byte releasing;		/* id of a hold or grant whose release is in flight, or 0 */
	byte copy;		/* the same for a copy of a release, which may be executed later */
	byte signals;
	bool listening, wake, canceled
}
Process p[N];
bool seen[IDS];		/* grants that their process has found, by id */
bool adopted[IDS];		/* grants that their process has adopted */

byte owner = NOBODY, id, token, until;	/* the row */
bool granted;		/* a release has granted the row to its owner */
byte waiters[N] = NOBODY;
byte now, ids, lastToken, cancels = CANCELS, crashes = CRASHES, losses = LOSSES, stale = STALE;
byte i, j, h;
bool one_holder_trusts = true, tokens_rise = true, no_grant_is_adopted_twice = true;

#define TRUSTS(q) (p[q].at == HOLDS && now < p[q].trust)
#define FREE (owner == NOBODY || now >= until)
#define MINE(q) (owner == q && granted && now < until)

#ifdef EXCLUSION_ALONE
#define ASSERT_TOKENS skip
#else
#define ASSERT_TOKENS assert(tokens_rise)
#endif
#define LATE(q) (now >= p[q].sent + LEASE)
#define GRANTABLE(h) (h != NOBODY && p[h].listening)
#ifdef BUG_RELEASE_ANY_OWNER
#define OWNED_BY(x) (owner != NOBODY)
#else
#define OWNED_BY(x) (owner != NOBODY && id == x)
#endif
#ifdef BUG_GRANT_KEEPS_TOKEN
#define GRANT_TOKEN ids++; id = ids
#else
#define GRANT_TOKEN newToken()
#endif
#ifdef BUG_TRUST_FROM_REPLY
#define READ_AT(q) now
#else
#define READ_AT(q) p[q].readSent
#endif

#define CHECK_TRUST \
	i = 0; j = 0; \
	do :: i < N -> if :: TRUSTS(i) -> j++ :: else fi; i++ :: else -> break od; \
	one_holder_trusts = (j <= 1); assert(one_holder_trusts); i = 0; j = 0

inline dequeue(q) {
	i = 0; j = 0;
	do
	:: i < N -> if :: waiters[i] != q -> waiters[j] = waiters[i]; j++ :: else fi; i++
	:: else -> break
	od;
	do :: j < N -> waiters[j] = NOBODY; j++ :: else -> break od;
	i = 0; j = 0
}

inline enqueue(q) {
	dequeue(q);
	do :: waiters[i] != NOBODY -> i++ :: else -> break od;
	waiters[i] = q; i = 0
}

inline newToken() {
	ids++; id = ids;
	token++
}

/* begin: process q has a hold, which it trusts for length after from. */
inline begin(q, from, length) {
	p[q].at = HOLDS; p[q].trust = from + length; p[q].removal = 0
}

/* tokenUsed checks that fencing tokens rise from holder to holder. */
inline tokenUsed(q) {
	tokens_rise = (p[q].token > lastToken); ASSERT_TOKENS; lastToken = p[q].token
}

/* release executes the release of the id what by process q. */
inline release(q, what, signalled) {
	if
	:: OWNED_BY(what) ->
		h = waiters[0];
		if
		:: GRANTABLE(h) && h != q ->
			owner = h; granted = true; until = now + GRANT; dequeue(h);
			GRANT_TOKEN
		:: else -> owner = NOBODY; granted = false; until = 0
		fi;
		if
		:: h != NOBODY && signalled -> p[h].signals++
		:: else
		fi;
		h = 0
	:: else
	fi
}

inline finish(q) {
	p[q].at = AWAY; p[q].acquires--; p[q].wake = false; p[q].canceled = false;
	p[q].id = 0; p[q].trust = 0; p[q].sent = 0; p[q].token = 0
}

proctype Process_(byte q) {
	do
	/* a call begins */
	:: d_step { p[q].at == AWAY && p[q].acquires > 0 && p[q].releasing == 0 -> p[q].at = REQUESTED; p[q].sent = now; p[q].wake = false }
	/* take_or_enlist.sql */
	:: d_step { p[q].at == REQUESTED ->
		if
		:: FREE -> owner = q; granted = false; until = now + LEASE; newToken(); dequeue(q);
			p[q].at = TAKEN; p[q].id = id; p[q].token = token
		:: !FREE && MINE(q) -> p[q].at = OWN; p[q].id = id
		:: else -> if :: owner != q -> enqueue(q) :: else fi; p[q].at = REFUSED
		fi }
	/* replies */
	:: d_step { p[q].at == TAKEN && !p[q].canceled && !LATE(q) -> tokenUsed(q); begin(q, p[q].sent, LEASE); CHECK_TRUST }
	:: d_step { p[q].at == TAKEN && (p[q].canceled || LATE(q)) -> p[q].releasing = p[q].id; finish(q) }
	:: d_step { p[q].at == OWN && !p[q].canceled && (!seen[p[q].id] || p[q].ready == p[q].id) -> seen[p[q].id] = true; p[q].ready = 0; p[q].readyUntil = 0; p[q].readyToken = 0; p[q].at = REPLACING; p[q].sent = now }
	:: d_step { p[q].at == OWN && !p[q].canceled && seen[p[q].id] && p[q].ready != p[q].id -> p[q].at = WATCHING; p[q].id = 0 }
	:: d_step { (p[q].at == OWN || p[q].at == REFUSED) && p[q].canceled -> finish(q); p[q].removal = 1 }
	:: d_step { p[q].at == REFUSED && !p[q].canceled -> p[q].at = WATCHING; p[q].listening = true }
	/* replace.sql */
	:: d_step { p[q].at == REPLACING ->
		if
		:: owner == q && id == p[q].id -> granted = false; until = now + LEASE; newToken(); p[q].at = REPLACED; p[q].id = id; p[q].token = token
		:: else -> p[q].at = REFUSED; p[q].id = 0
		fi }
	:: d_step { p[q].at == REPLACED && !p[q].canceled && !LATE(q) -> tokenUsed(q); begin(q, p[q].sent, LEASE); CHECK_TRUST }
	:: d_step { p[q].at == REPLACED && (p[q].canceled || LATE(q)) -> p[q].releasing = p[q].id; finish(q) }
	/* the listener: a signal, and the read of the grant */
	:: d_step { p[q].signals > 0 && p[q].listening && p[q].at != DEAD && p[q].reading == 0 -> p[q].signals--; p[q].reading = 1; p[q].readSent = now }
	:: d_step { p[q].signals > 0 && (!p[q].listening || p[q].at == DEAD) -> p[q].signals--;
#ifdef BUG_TAKEN_BACK
		if	/* error 1094: there is no listener */
		:: MINE(q) -> owner = NOBODY; granted = false; until = 0
		:: else
		fi
#endif
		}
	:: d_step { p[q].reading == 1 ->
		if
		:: MINE(q) -> p[q].reading = 2; p[q].readId = id; p[q].readLeft = until - now; p[q].readToken = token
		:: else -> p[q].reading = 0; p[q].readSent = 0; if :: p[q].at == WATCHING -> p[q].wake = true :: else fi
		fi }
	:: d_step { p[q].reading == 2 ->
		if
#ifndef BUG_FOUND_TWICE
		:: seen[p[q].readId] -> skip
#endif
		:: else -> seen[p[q].readId] = true;
			p[q].ready = p[q].readId; p[q].readyUntil = READ_AT(q) + p[q].readLeft; p[q].readyToken = p[q].readToken; p[q].wake = true
		fi;
		p[q].reading = 0; p[q].readSent = 0; p[q].readId = 0; p[q].readLeft = 0; p[q].readToken = 0 }
	/* TakeGrant */
	:: d_step { p[q].ready > 0 && p[q].releasing == 0 && (p[q].at == WATCHING || p[q].at == AWAY && p[q].acquires > 0) ->
		no_grant_is_adopted_twice = !adopted[p[q].ready]; assert(no_grant_is_adopted_twice);
		adopted[p[q].ready] = true; p[q].id = p[q].ready; p[q].token = p[q].readyToken;
		begin(q, p[q].readyUntil, 0);
		if	/* too late: it is released */
		:: now >= p[q].trust -> p[q].releasing = p[q].id; finish(q); p[q].removal = 1
		:: else -> tokenUsed(q)
		fi;
		p[q].ready = 0; p[q].readyUntil = 0; p[q].readyToken = 0;
		CHECK_TRUST }
#ifndef BUG_NOT_GIVEN_BACK
	/* giveBackGrant */
	:: d_step { p[q].ready > 0 && p[q].releasing == 0 && p[q].at == AWAY -> p[q].releasing = p[q].ready; p[q].ready = 0; p[q].readyUntil = 0; p[q].readyToken = 0 }
#endif
	/* the statement that listens, or the poller, reads the row */
	:: d_step { p[q].at == WATCHING && !p[q].wake && (FREE || MINE(q) && !seen[id]) -> p[q].wake = true }
	:: d_step { p[q].at == WATCHING && p[q].wake -> p[q].wake = false; p[q].at = REQUESTED; p[q].sent = now }
	/* the listener closes when no call waits; it opens again later */
	:: d_step { p[q].listening && p[q].at != WATCHING && p[q].reading == 0 -> p[q].listening = false }
	/* Unlock */
	:: d_step { p[q].at == HOLDS && now < p[q].trust && p[q].releasing == 0 -> p[q].releasing = p[q].id; p[q].copy = p[q].id; finish(q) }
	/* the watchdog extends the lease while it is trusted */
	:: d_step { p[q].at == HOLDS && now < p[q].trust && owner == q && id == p[q].id && until < now + LEASE && now > 0 ->
		until = now + LEASE; granted = false; p[q].trust = now + LEASE }
	/* loss: the row may still show the id */
	:: d_step { p[q].at == HOLDS && now >= p[q].trust && p[q].releasing == 0 -> p[q].releasing = p[q].id; finish(q) }
	/* release_to_next.sql, with a reply or without; a copy of it that is executed late, or never */
	:: d_step { p[q].releasing > 0 && p[q].at != DEAD -> release(q, p[q].releasing, true); p[q].releasing = 0; CHECK_TRUST }
	:: d_step { p[q].releasing > 0 && losses > 0 -> losses--; release(q, p[q].releasing, false); p[q].releasing = 0; CHECK_TRUST }
	:: d_step { p[q].copy > 0 && p[q].releasing == 0 -> release(q, p[q].copy, false); p[q].copy = 0; CHECK_TRUST }
	:: d_step { p[q].copy > 0 && p[q].releasing == 0 -> p[q].copy = 0 }
	/* the caller gives up */
	:: d_step { p[q].at == WATCHING && cancels > 0 -> cancels--; finish(q); p[q].removal = 1 }
	:: d_step { (p[q].at == REQUESTED || p[q].at == TAKEN || p[q].at == REFUSED || p[q].at == OWN || p[q].at == REPLACING || p[q].at == REPLACED) && !p[q].canceled && cancels > 0 ->
		cancels--; p[q].canceled = true }
	/* remove_waiter.sql, and the read after it */
	:: d_step { p[q].removal == 1 && p[q].at == AWAY && p[q].releasing == 0 ->
		if
		:: waiters[0] == q || waiters[1] == q || waiters[N-1] == q ->
			if
			:: waiters[0] == q && FREE && waiters[1] != NOBODY -> p[waiters[1]].signals++
			:: else
			fi;
			dequeue(q)
#ifndef BUG_NOT_GIVEN_BACK
		:: else ->
			if
			:: MINE(q) && !seen[id] -> seen[id] = true; p[q].releasing = id
			:: else
			fi
#else
		:: else
#endif
		fi;
		p[q].removal = 0 }
	/* a crash; the connections of the process end later */
	:: d_step { crashes > 0 && p[q].at != DEAD -> crashes--; p[q].at = DEAD; p[q].acquires = 0; p[q].releasing = 0; p[q].reading = 0; p[q].ready = 0; p[q].removal = 0; p[q].wake = false; p[q].trust = 0 }
	:: d_step { p[q].at == DEAD && p[q].listening -> p[q].listening = false }
	/* a signal for another name, or a late one */
	:: d_step { stale > 0 && p[q].listening -> stale--; p[q].signals++ }
	:: (p[q].at == AWAY || p[q].at == DEAD) && p[q].acquires == 0 && p[q].removal == 0 && p[q].signals == 0 && p[q].releasing == 0 && p[q].reading == 0 && p[q].ready == 0 && p[q].copy == 0 && !p[q].listening -> break
	od;
end:
	do
	:: d_step { p[q].signals > 0 -> p[q].signals-- }
	od
}

#ifndef NO_EXPIRY
active proctype Clock() {
end:
	do
	:: d_step { now < TICKS -> now++ }
	/* then, only the leases of dead processes end */
	:: d_step { now == TICKS && owner != NOBODY && until > now && p[owner].at == DEAD -> until = now }
	od
}
#endif

init {
	atomic {
		i = 0;
		do
		:: i < N -> p[i].acquires = ACQUIRES; run Process_(i); i++
		:: else -> break
		od;
		p[0].acquires = ACQUIRES + 1;
		i = 0
	}
}
