/*
 * permit.pml: a permit is granted only within the caller's limit, and a waiter is woken when there
 * is a permit for it.
 *
 * A request reads the slots, takes a free one, and reads them again if processes disagree about the
 * limit. If no slot is free, it joins the wait queue, and reads again before it sleeps. Nothing takes
 * time in this model, and polls are left out, so a run ends when no process can continue. If the
 * head of the wait queue then sleeps although it could acquire a permit, a wake-up was lost (spin:
 * invalid end state). waiters.pml models how a signal reaches a listener. README.md maps the parts
 * to the code.
 */
#ifndef N
#define N 3		/* processes */
#endif
#ifndef SLOTS
#define SLOTS 2		/* the greatest limit */
#endif
#ifndef ACQUIRES
#define ACQUIRES 1	/* by each process */
#endif
#ifndef CANCELS
#define CANCELS 1	/* calls that give up */
#endif
#ifndef RELEASES
#define RELEASES N	/* further permits are held until the end */
#endif
#ifdef DISAGREE
#define LIMIT(q) ((q) == 0 -> SLOTS - 1 : SLOTS)
#else
#define LIMIT(q) SLOTS
#endif
#define NOBODY N

/* States of a process. */
#define AWAY 0
#define READ 1		/* its next statement */
#define TAKE 2
#define CHECK 3
#define GIVE_BACK 4
#define LEAVE 5
#define READ_NEXT 6	/* is another slot free for the next waiter? */
#define HOLDS 7
#define RELEASE 8
#define RELEASING 9	/* the statement has read the queue, but is not committed */
#define JOIN 10
#define SLEEP 11
#define REMOVE 12	/* from the queue */
#define CREATE 13	/* JOIN if the queue has no row */

/* slot is the one to take, or the one held; next is the process in the queue to signal. */
typedef Process { byte at, acquires, slot, next; bool joined, others, again, gaveBack, wake, within }
Process p[N];

byte slot[SLOTS] = NOBODY;
bool used[SLOTS];		/* within an hour */
bool reserved[SLOTS];		/* for the head of the queue, since its last release */
byte waiters[N] = NOBODY;
#ifdef NO_QUEUE
bool exists;			/* the row of the queue */
#else
bool exists = true;
#endif
byte readers;			/* releases in progress that have locked that row */
byte unlocked;			/* releases in progress that have not */
byte cancels, releases = RELEASES;
byte i, j, n, k;
bool limit_is_kept = true;
bool a_slot_has_one_holder = true;

#define IN_QUEUE(q) (waiters[0] == q || waiters[1] == q || waiters[N/2] == q || waiters[N-1] == q)
#define QUEUE_LOCKED (readers > 0)

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
	:: waiters[i] != NOBODY && waiters[i] != q -> i++
	:: else -> break
	od;
	waiters[i] = q; i = 0
}

/* read sets n to the number of held slots. */
inline read() {
	n = 0; i = 0;
	do
	:: i < SLOTS ->
		if
		:: slot[i] != NOBODY -> n++
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0
}

/* Whether process q may take slot k, if fewer permits are held than its limit. */
#define OPEN(q, k) ((k) < LIMIT(q) && slot[k] == NOBODY && (!reserved[k] || waiters[0] == NOBODY || waiters[0] == q))
#define ANY_OPEN(q) (OPEN(q, 0) || OPEN(q, SLOTS/2) || OPEN(q, SLOTS-1))

inline signal(q) {
	if
	:: q != NOBODY -> p[q].wake = true
	:: else
	fi
}

inline refused(q) {
	if
	:: !p[q].joined -> p[q].at = (exists -> JOIN : CREATE)
	:: else -> p[q].at = SLEEP
	fi
}

/* grant: the request of process q is granted. */
inline grant(q) {
	limit_is_kept = p[q].within;
	assert(limit_is_kept);
	p[q].at = LEAVE
}

inline end(q) {
	p[q].at = AWAY; p[q].acquires--; p[q].slot = 0; p[q].next = NOBODY; p[q].joined = false; p[q].others = false;
	p[q].again = false; p[q].gaveBack = false; p[q].wake = false; p[q].within = false
}

/* signalNext: process q signals the head of the queue that it has read. */
inline signalNext(q) {
#ifndef BUG_NO_SIGNAL
	signal(p[q].next);
#endif
	p[q].next = NOBODY
}

proctype Process_(byte q) {
	byte pick;
	do
	:: d_step { p[q].at == AWAY && p[q].acquires > 0 -> p[q].at = READ }

	/* semaphore.sql */
	:: atomic { p[q].at == READ -> read(); p[q].wake = false;
		p[q].others = (LIMIT(q) < SLOTS && used[SLOTS-1]); p[q].next = waiters[0];
		if
		:: n < LIMIT(q) && OPEN(q, 0) -> p[q].slot = 0; p[q].at = TAKE
		:: n < LIMIT(q) && OPEN(q, SLOTS/2) -> p[q].slot = SLOTS/2; p[q].at = TAKE
		:: n < LIMIT(q) && OPEN(q, SLOTS-1) -> p[q].slot = SLOTS-1; p[q].at = TAKE
		:: else -> refused(q)
		fi; n = 0 }
	/* take.sql */
	:: d_step { p[q].at == TAKE ->
		if
#ifdef BUG_TAKE_ANY
		:: true ->
#else
		:: slot[p[q].slot] == NOBODY ->
#endif
			a_slot_has_one_holder = (slot[p[q].slot] == NOBODY);
			assert(a_slot_has_one_holder);
			slot[p[q].slot] = q; used[p[q].slot] = true; reserved[p[q].slot] = false;
			read(); p[q].within = (n <= LIMIT(q)); n = 0;
			if
#ifndef BUG_NOT_CHECKED
			:: p[q].others -> p[q].at = CHECK
#endif
			:: else -> grant(q)
			fi
		:: else -> p[q].at = READ
		fi }
	:: d_step { p[q].at == CHECK -> read();
		if
		:: n > LIMIT(q) -> p[q].at = GIVE_BACK
		:: else -> p[q].within = true; grant(q)
		fi; n = 0 }

	/* leave_semaphore.sql, then semaphore.sql once more */
#ifdef BUG_NEXT_IS_NOT_SIGNALLED
	:: d_step { p[q].at == LEAVE && !QUEUE_LOCKED -> dequeue(q); p[q].next = NOBODY; p[q].at = HOLDS }
#elif defined(BUG_READ_BEFORE_LEAVING)
	:: d_step { p[q].at == LEAVE && p[q].again == false -> read(); p[q].again = true; p[q].within = (n < LIMIT(q)); n = 0 }
	:: d_step { p[q].at == LEAVE && p[q].again && !QUEUE_LOCKED -> dequeue(q); p[q].next = waiters[0]; p[q].again = false;
		if
		:: p[q].within -> signalNext(q)
		:: else -> p[q].next = NOBODY
		fi;
		p[q].at = HOLDS }
#else
	:: d_step { p[q].at == LEAVE && !QUEUE_LOCKED -> dequeue(q); p[q].next = waiters[0]; p[q].at = READ_NEXT }
#endif
	:: d_step { p[q].at == READ_NEXT -> read();
		if
#ifdef BUG_OWN_LIMIT
		:: n >= LIMIT(q) -> p[q].next = NOBODY
#else
		:: n >= SLOTS -> p[q].next = NOBODY
#endif
		:: else -> signalNext(q)
		fi; n = 0; p[q].at = HOLDS }

	/* release_part.sql locks the row of the queue, if there is one, until its commit */
	:: d_step { p[q].at == HOLDS && releases > 0 -> releases--; p[q].at = RELEASE }
	:: d_step { p[q].at == GIVE_BACK -> p[q].gaveBack = true; p[q].at = RELEASE }
	:: d_step { p[q].at == RELEASE -> p[q].next = waiters[0]; p[q].at = RELEASING;
#ifdef BUG_QUEUE_NOT_LOCKED
		unlocked++
#else
		p[q].again = exists;
		if
		:: exists -> readers++
		:: else -> unlocked++
		fi
#endif
		}
	:: d_step { p[q].at == RELEASING ->
#ifdef BUG_QUEUE_NOT_LOCKED
		unlocked--;
#else
		if
		:: p[q].again -> readers--
		:: else -> unlocked--
		fi;
#endif
		slot[p[q].slot] = NOBODY; reserved[p[q].slot] = (waiters[0] != NOBODY); signalNext(q);
		if
		:: p[q].gaveBack -> p[q].gaveBack = false; p[q].again = false; p[q].within = false; p[q].slot = 0; p[q].at = READ
		:: else -> end(q)
		fi }

	/* join_semaphore.sql */
#ifdef BUG_SLEEPS_WITHOUT_LOOK
	:: d_step { p[q].at == JOIN && !QUEUE_LOCKED -> enqueue(q); p[q].joined = true; p[q].at = SLEEP }
#else
	:: d_step { p[q].at == JOIN && !QUEUE_LOCKED -> enqueue(q); p[q].joined = true; p[q].at = READ }
#endif
	:: d_step { p[q].at == CREATE && !QUEUE_LOCKED -> enqueue(q); p[q].joined = true; p[q].at = READ;
#ifndef BUG_NO_SECOND_LOOK
		p[q].again = !exists;
#endif
		exists = true }
	:: d_step { p[q].at == SLEEP && p[q].wake -> p[q].at = READ }
	/* afterFirstWaiter: by then, a release that has not found the row is committed */
#ifdef SLOW_COMMIT
	:: d_step { p[q].at == SLEEP && p[q].again -> p[q].again = false; p[q].at = READ }
#else
	:: d_step { p[q].at == SLEEP && p[q].again && unlocked == 0 -> p[q].again = false; p[q].at = READ }
#endif

	/* the caller gives up: remove_waiter.sql */
	:: d_step { p[q].at == SLEEP && cancels > 0 -> cancels--; p[q].at = REMOVE }
	:: d_step { p[q].at == REMOVE && !QUEUE_LOCKED ->
		if
		:: waiters[0] == q -> dequeue(q); p[q].next = waiters[0];
#ifndef BUG_REMOVAL_SIGNALS_NOBODY
			signal(p[q].next)
#endif
		:: else -> dequeue(q)
		fi;
		end(q) }

	/* The run ends. The head must not sleep if it could acquire a permit. */
	:: timeout && (p[q].at == AWAY && p[q].acquires == 0 || p[q].at == HOLDS) -> break
	:: timeout && p[q].at == SLEEP -> pick = 0;
		d_step { read(); pick = n; n = 0 };
		if
		:: waiters[0] != q || pick >= LIMIT(q) || !ANY_OPEN(q) -> break
		fi
	od
}

init {
	atomic {
#if defined(DISAGREE) && !defined(FIRST_USE)
		used[SLOTS-1] = true;
#endif
		do
		:: cancels < CANCELS -> cancels++
		:: break
		od;
		i = 0;
		do
		:: i < N -> p[i].acquires = ACQUIRES; p[i].next = NOBODY; i++
		:: else -> break
		od;
		k = 0;
		do
		:: k < N -> run Process_(k); k++
		:: else -> break
		od;
		k = 0
	}
}
