/*
 * waiters.pml: who waits for a lock that came free is woken.
 *
 * Processes take the lock in turn, through the list in the row and the bell.
 * Nothing here takes time, and a tick that finds nothing is left out, so that a
 * run ends when nobody can go on: an end at which somebody still waits is a lost
 * wake-up (spin: invalid end state). The poller, the timers at the end of a lease
 * and at that of a reservation are there only with POLLER. README.md maps the
 * parts to the code.
 */
#ifndef N
#define N 3		/* processes */
#endif
#ifndef TURNS
#define TURNS 2		/* how often each wants the lock */
#endif
#ifndef QUITS
#define QUITS 1		/* how often a caller gives up */
#endif
#define NOBODY N

/* Of a process. */
#define AWAY 0
#define ASKED 1		/* its statement is under way */
#define GRANTED 2	/* so is the answer */
#define REFUSED 3
#define WATCHING 4	/* it sleeps until woken */
#define HOLDS 5
#define DEAD 6

typedef Process {
	byte at, turns;
	bool list;	/* the statement enters it in the list */
	bool listed;	/* as far as it knows */
	bool wake;	/* waiter.wake, capacity 1 */
	bool ear;	/* the connection that listens is there */
	bool asleep;	/* its statement is under way */
	bool gone;	/* the caller has gone while the statement was under way */
	byte strike;	/* 1: it has itself struck off; 2: the answer is on its way */
	byte rings	/* on their way to it */
}
Process p[N];

byte owner = NOBODY;
byte waiters[N] = NOBODY;	/* the list in the row */
bool reserved;			/* the row came free so lately that it is the first's */
byte quits = QUITS;
byte i, j, first;

#define FOR_ME(q) (owner == NOBODY && (waiters[0] == NOBODY || waiters[0] == q || !reserved))
#define LISTED(q) (waiters[0] == q || waiters[1] == q || waiters[N-1] == q)

inline unlist(q) {
	i = 0; j = 0;
	do
	:: i < N ->
		if
		:: waiters[i] != q -> waiters[j] = waiters[i]; j++
		:: else
		fi;
		i++
	:: else -> break
	od;
	do
	:: j < N -> waiters[j] = NOBODY; j++
	:: else -> break
	od;
	i = 0; j = 0
}

inline enlist(q) {
	i = 0;
	do
	:: waiters[i] != NOBODY -> i++
	:: else -> break
	od;
	waiters[i] = q; i = 0
}

inline ring(q) {
	if
	:: q != NOBODY -> p[q].rings++
	:: else
	fi
}

/* release: the statement frees the row and tells who is first; then he is rung. */
inline release(q) {
	owner = NOBODY; reserved = (waiters[0] != NOBODY);
#ifndef BUG_NO_RING
	ring(waiters[0])
#endif
}

/* leave: the turn passes to the next waiter of the process, if there is one. */
inline leave(q) {
	p[q].turns--;
	p[q].gone = false; p[q].wake = false;
#ifdef BUG_NOT_WITHDRAWN
	p[q].at = AWAY; p[q].listed = false
#else
	p[q].at = AWAY;
	if
	:: p[q].listed -> p[q].strike = 1; p[q].listed = false
	:: else
	fi
#endif
}

proctype Process_(byte q) {
	do
	/* join, and ask; names that were refused lately are listed at once */
	:: atomic { p[q].at == AWAY && p[q].turns > 0 && p[q].strike == 0 -> p[q].at = ASKED; p[q].wake = false;
		if
		:: p[q].list = true; p[q].listed = true
		:: p[q].list = false
		fi }
	/* the same while it is being struck off */
	:: d_step { p[q].at == AWAY && p[q].turns > 0 && p[q].strike > 0 -> p[q].at = ASKED; p[q].wake = false;
		p[q].list = true; p[q].listed = true }
	/* sqlAsk */
	:: d_step { p[q].at == ASKED ->
		if
		:: FOR_ME(q) ->
			owner = q; p[q].at = GRANTED;
			if	/* sqlUnlisted: a first waiter who did not come in time, too */
			:: waiters[0] != q && waiters[0] != NOBODY -> first = waiters[0]; unlist(first); first = 0
			:: else
			fi;
			unlist(q); reserved = false
		:: else ->
			p[q].at = REFUSED;
#ifdef BUG_LISTED_LATER
#else
			if
			:: p[q].list && !LISTED(q) -> enlist(q)
			:: else
			fi
#endif
		fi }
	/* its answer */
	:: d_step { p[q].at == GRANTED ->
		if
		:: p[q].gone -> p[q].listed = false; release(q); leave(q)
		:: else -> p[q].at = HOLDS; p[q].listed = false; p[q].wake = false
		fi }
	:: d_step { p[q].at == REFUSED ->
		if
		:: p[q].gone -> leave(q)
		:: !p[q].gone && !p[q].list -> p[q].at = ASKED; p[q].list = true; p[q].listed = true; p[q].wake = false
		:: else -> p[q].at = WATCHING;
#ifdef BUG_LISTED_LATER
			if
			:: !LISTED(q) -> enlist(q)
			:: else
			fi;
#endif
#ifdef BUG_HINT_DROPPED
			p[q].wake = false
#endif
		fi }
	:: d_step { p[q].at == WATCHING && p[q].wake -> p[q].wake = false; p[q].at = ASKED; p[q].list = true; p[q].listed = true }
	/* sqlListen: what it asks of the row and its sleep are one statement */
	:: d_step { p[q].at == WATCHING && !p[q].asleep && !p[q].wake ->
		p[q].ear = true;
		if
#ifndef BUG_LISTEN_WITHOUT_LOOK
		:: FOR_ME(q) || !LISTED(q) -> p[q].wake = true
#endif
		:: else -> p[q].asleep = true
		fi }
	/* the bell */
	:: d_step { p[q].rings > 0 -> p[q].rings--;
		if
		:: p[q].asleep -> p[q].asleep = false;
			if
			:: p[q].at == WATCHING -> p[q].wake = true
#ifndef BUG_RING_WHILE_ASKING_DROPPED
			:: (p[q].at == ASKED || p[q].at == REFUSED) && p[q].listed -> p[q].wake = true
#endif
			:: else
			fi
		:: !p[q].asleep && p[q].ear	/* between two statements: the next one looks */
		:: else ->	/* nobody there: it is struck off, and the next is rung */
#ifndef BUG_DEAD_NOT_STRUCK
			if
			:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; unlist(q); ring(first); first = 0
			:: else -> unlist(q)
			fi
#endif
		fi }
#ifdef RINGS_LOST
	:: d_step { p[q].rings > 0 -> p[q].rings-- }
#endif
	/* Unlock */
#ifdef BUG_RING_BEFORE_COMMIT
	:: d_step { p[q].at == HOLDS && !p[q].gone -> ring(waiters[0]); p[q].gone = true }
	:: d_step { p[q].at == HOLDS && p[q].gone -> owner = NOBODY; reserved = (waiters[0] != NOBODY); leave(q) }
#else
	:: d_step { p[q].at == HOLDS -> release(q); leave(q) }
#endif
	/* the caller gives up */
	:: d_step { p[q].at == WATCHING && quits > 0 -> quits--; leave(q) }
	:: d_step { (p[q].at == ASKED || p[q].at == REFUSED || p[q].at == GRANTED) && !p[q].gone && quits > 0 -> quits--; p[q].gone = true }
	/* the poller gives the listening up when nothing is watched */
	:: d_step { p[q].at == AWAY && p[q].ear -> p[q].ear = false; p[q].asleep = false }
	/* sqlStrike; whoever came meanwhile may have been struck off */
	:: d_step { p[q].strike == 1 && p[q].at == AWAY ->
		if
		:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; unlist(q);
#ifndef BUG_STRUCK_PASSES_NOTHING_ON
			ring(first);
#endif
			first = 0
		:: else -> unlist(q)
		fi;
		p[q].strike = 2 }
	:: d_step { p[q].strike == 2 -> p[q].strike = 0;
#ifndef BUG_STRUCK_NOT_WOKEN
		if
		:: p[q].at != AWAY && p[q].at != DEAD -> p[q].wake = true
		:: else
		fi
#endif
	   }
	:: d_step { p[q].strike == 1 && p[q].at != AWAY && p[q].at != DEAD -> p[q].strike = 0; p[q].listed = true }
#ifdef POLLER
	/* A tick, the end of a lease or of a reservation: found. */
	:: d_step { p[q].at == WATCHING && !p[q].wake && (FOR_ME(q) || !LISTED(q)) -> p[q].asleep = false; p[q].wake = true }
#endif
#ifdef CRASHES
	:: d_step { q == 0 && p[q].at != DEAD && p[q].turns > 0 -> p[q].at = DEAD; p[q].turns = 0; p[q].strike = 0; p[q].ear = false;
		p[q].asleep = false; p[q].wake = false; p[q].gone = false; p[q].listed = false; p[q].list = false }
#endif
	:: (p[q].at == AWAY || p[q].at == DEAD) && p[q].turns == 0 && p[q].strike == 0 && p[q].rings == 0 && !p[q].ear -> break
	od;
end:
	do
	:: d_step { p[q].rings > 0 -> p[q].rings--;
		if
		:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; unlist(q); ring(first); first = 0
		:: else -> unlist(q)
		fi }
	od
}

#ifdef CRASHES
/* The lease of who died ends. */
active proctype Expiry() {
end:
	do
	:: d_step { owner != NOBODY && p[owner].at == DEAD -> owner = NOBODY; reserved = (waiters[0] != NOBODY) }
	od
}
#endif

#ifdef POLLER
active proctype Reservation() {
end:
	do
	:: d_step { reserved && owner == NOBODY -> reserved = false }
	od
}
#endif

init {
	atomic {
		i = 0;
		do
		:: i < N -> p[i].turns = TURNS; run Process_(i); i++
		:: else -> break
		od;
		i = 0
	}
}
