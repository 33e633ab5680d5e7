/*
 * waiters.pml: a waiter is woken when the lock becomes free.
 *
 * Processes acquire the lock one after the other, by means of the wait queue in the row and of
 * signals. Nothing takes time in this model, and polls that find nothing are left out, so a run
 * ends when no process can continue. If a process still waits then, a wake-up was lost (spin:
 * invalid end state). The poller, and the timers for the end of a lease or a reservation, exist
 * only with POLLER. README.md maps the parts to the code.
 */
#ifndef N
#define N 3		/* processes */
#endif
#ifndef ACQUIRES
#define ACQUIRES 2	/* by each process */
#endif
#ifndef CANCELS
#define CANCELS 1	/* calls that give up */
#endif
#define NOBODY N

/* States of a process. */
#define AWAY 0
#define REQUESTED 1	/* its statement is in flight */
#define GRANTED 2	/* its reply is in flight */
#define REFUSED 3
#define WATCHING 4	/* it sleeps until woken */
#define HOLDS 5
#define DEAD 6

typedef Process {
	byte at, acquires;
	bool enqueues;	/* its statement appends it to the wait queue */
	bool queued;	/* it believes that it is in the wait queue */
	bool wake;	/* waiter.wake, capacity 1 */
	bool listening;	/* it has a listener */
	bool asleep;	/* the statement of the listener sleeps */
	bool canceled;	/* while its statement was in flight */
	byte removal;	/* from the wait queue; 1: due; 2: executed, its reply is in flight */
	byte signals	/* in flight */
}
Process p[N];

byte owner = NOBODY;
byte waiters[N] = NOBODY;	/* the wait queue in the row */
bool reserved;			/* for the first waiter, since the last release */
byte cancels = CANCELS;
byte i, j, first;

#define AVAILABLE_TO(q) (owner == NOBODY && (waiters[0] == NOBODY || waiters[0] == q || !reserved))
#define IN_QUEUE(q) (waiters[0] == q || waiters[1] == q || waiters[N-1] == q)

inline dequeue(q) {
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

inline enqueue(q) {
	i = 0;
	do
	:: waiters[i] != NOBODY -> i++
	:: else -> break
	od;
	waiters[i] = q; i = 0
}

inline signal(q) {
	if
	:: q != NOBODY -> p[q].signals++
	:: else
	fi
}

/* release: the statement frees the row and returns the first waiter, which is signalled. */
inline release(q) {
	owner = NOBODY; reserved = (waiters[0] != NOBODY);
#ifndef BUG_NO_SIGNAL
	signal(waiters[0])
#endif
}

/* stopWaiting: the call of process q ends, and its next waiter becomes the head, if there is one. */
inline stopWaiting(q) {
	p[q].acquires--;
	p[q].canceled = false; p[q].wake = false;
#ifdef BUG_WAITER_NOT_REMOVED
	p[q].at = AWAY; p[q].queued = false
#else
	p[q].at = AWAY;
	if
	:: p[q].queued -> p[q].removal = 1; p[q].queued = false
	:: else
	fi
#endif
}

proctype Process_(byte q) {
	do
	/* join, and send a request; after a recent refusal, the first request enqueues */
	:: atomic { p[q].at == AWAY && p[q].acquires > 0 && p[q].removal == 0 -> p[q].at = REQUESTED; p[q].wake = false;
		if
		:: p[q].enqueues = true; p[q].queued = true
		:: p[q].enqueues = false
		fi }
	/* the same while it is being removed from the queue */
	:: d_step { p[q].at == AWAY && p[q].acquires > 0 && p[q].removal > 0 -> p[q].at = REQUESTED; p[q].wake = false;
		p[q].enqueues = true; p[q].queued = true }
	/* take_or_enlist.sql */
	:: d_step { p[q].at == REQUESTED ->
		if
		:: AVAILABLE_TO(q) ->
			owner = q; p[q].at = GRANTED;
			if	/* waiters_after_take.sql also removes a first waiter that was too late */
			:: waiters[0] != q && waiters[0] != NOBODY -> first = waiters[0]; dequeue(first); first = 0
			:: else
			fi;
			dequeue(q); reserved = false
		:: else ->
			p[q].at = REFUSED;
#ifdef BUG_QUEUED_LATER
#else
			if
			:: p[q].enqueues && !IN_QUEUE(q) -> enqueue(q)
			:: else
			fi
#endif
		fi }
	/* the reply */
	:: d_step { p[q].at == GRANTED ->
		if
		:: p[q].canceled -> p[q].queued = false; release(q); stopWaiting(q)
		:: else -> p[q].at = HOLDS; p[q].queued = false; p[q].wake = false
		fi }
	:: d_step { p[q].at == REFUSED ->
		if
		:: p[q].canceled -> stopWaiting(q)
		:: !p[q].canceled && !p[q].enqueues -> p[q].at = REQUESTED; p[q].enqueues = true; p[q].queued = true; p[q].wake = false
		:: else -> p[q].at = WATCHING;
#ifdef BUG_QUEUED_LATER
			if
			:: !IN_QUEUE(q) -> enqueue(q)
			:: else
			fi;
#endif
#ifdef BUG_WAKEUP_DROPPED
			p[q].wake = false
#endif
		fi }
	:: d_step { p[q].at == WATCHING && p[q].wake -> p[q].wake = false; p[q].at = REQUESTED; p[q].enqueues = true; p[q].queued = true }
	/* listen.sql reads the row and sleeps in one statement */
	:: d_step { p[q].at == WATCHING && !p[q].asleep && !p[q].wake ->
		p[q].listening = true;
		if
#ifndef BUG_LISTEN_WITHOUT_LOOK
		:: AVAILABLE_TO(q) || !IN_QUEUE(q) -> p[q].wake = true
#endif
		:: else -> p[q].asleep = true
		fi }
	/* the signal */
	:: d_step { p[q].signals > 0 -> p[q].signals--;
		if
		:: p[q].asleep -> p[q].asleep = false;
			if
			:: p[q].at == WATCHING -> p[q].wake = true
#ifndef BUG_SIGNAL_DURING_REQUEST_DROPPED
			:: (p[q].at == REQUESTED || p[q].at == REFUSED) && p[q].queued -> p[q].wake = true
#endif
			:: else
			fi
		:: !p[q].asleep && p[q].listening	/* between two statements: the next one reads the row */
		:: else ->	/* no listener: the process is removed, and the next one signalled */
#ifndef BUG_DEAD_NOT_REMOVED
			if
			:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; dequeue(q); signal(first); first = 0
			:: else -> dequeue(q)
			fi
#endif
		fi }
#ifdef SIGNALS_LOST
	:: d_step { p[q].signals > 0 -> p[q].signals-- }
#endif
	/* Unlock */
#ifdef BUG_SIGNAL_BEFORE_COMMIT
	:: d_step { p[q].at == HOLDS && !p[q].canceled -> signal(waiters[0]); p[q].canceled = true }
	:: d_step { p[q].at == HOLDS && p[q].canceled -> owner = NOBODY; reserved = (waiters[0] != NOBODY); stopWaiting(q) }
#else
	:: d_step { p[q].at == HOLDS -> release(q); stopWaiting(q) }
#endif
	/* the caller gives up */
	:: d_step { p[q].at == WATCHING && cancels > 0 -> cancels--; stopWaiting(q) }
	:: d_step { (p[q].at == REQUESTED || p[q].at == REFUSED || p[q].at == GRANTED) && !p[q].canceled && cancels > 0 -> cancels--; p[q].canceled = true }
	/* the poller closes the listener when no call waits */
	:: d_step { p[q].at == AWAY && p[q].listening -> p[q].listening = false; p[q].asleep = false }
	/* remove_waiter.sql; it may remove a waiter that has joined meanwhile */
	:: d_step { p[q].removal == 1 && p[q].at == AWAY ->
		if
		:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; dequeue(q);
#ifndef BUG_REMOVAL_SIGNALS_NOBODY
			signal(first);
#endif
			first = 0
		:: else -> dequeue(q)
		fi;
		p[q].removal = 2 }
	:: d_step { p[q].removal == 2 -> p[q].removal = 0;
#ifndef BUG_REMOVED_NOT_WOKEN
		if
		:: p[q].at != AWAY && p[q].at != DEAD -> p[q].wake = true
		:: else
		fi
#endif
	   }
	:: d_step { p[q].removal == 1 && p[q].at != AWAY && p[q].at != DEAD -> p[q].removal = 0; p[q].queued = true }
#ifdef POLLER
	/* a poll, or the end of a lease or a reservation */
	:: d_step { p[q].at == WATCHING && !p[q].wake && (AVAILABLE_TO(q) || !IN_QUEUE(q)) -> p[q].asleep = false; p[q].wake = true }
#endif
#ifdef CRASHES
	:: d_step { q == 0 && p[q].at != DEAD && p[q].acquires > 0 -> p[q].at = DEAD; p[q].acquires = 0; p[q].removal = 0; p[q].listening = false;
		p[q].asleep = false; p[q].wake = false; p[q].canceled = false; p[q].queued = false; p[q].enqueues = false }
#endif
	:: (p[q].at == AWAY || p[q].at == DEAD) && p[q].acquires == 0 && p[q].removal == 0 && p[q].signals == 0 && !p[q].listening -> break
	od;
end:
	do
	:: d_step { p[q].signals > 0 -> p[q].signals--;
		if
		:: waiters[0] == q && owner == NOBODY -> first = waiters[1]; dequeue(q); signal(first); first = 0
		:: else -> dequeue(q)
		fi }
	od
}

#ifdef CRASHES
/* The leases of dead processes end. */
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
		:: i < N -> p[i].acquires = ACQUIRES; run Process_(i); i++
		:: else -> break
		od;
		i = 0
	}
}
