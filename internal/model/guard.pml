/*
 * guard.pml: tokens rise, and a transaction under a stale guard never commits.
 *
 * This must hold whatever the database's clock does, so in this model the clock may show any
 * time, and a lease may end at any moment. README.md maps the parts to the code.
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef TRANSACTIONS
#define TRANSACTIONS 2
#endif
#ifndef GRANTS
#define GRANTS 4	/* in all */
#endif
#define RANGE 2		/* tokens of a grant: one for itself, the others for handoffs */
#ifdef BUG_RANGE_NOT_RESERVED
#define STEP 1
#else
#define STEP RANGE
#endif

/* The row of the name, and the high-water row. */
bool exists = true;
byte owner;		/* the number of a grant; 0: none */
byte token;
bool held;		/* expires_at is in the future */
byte highWater;
byte readers;		/* statements that have the high-water row locked */
byte now;		/* the database's clock */
byte granted;		/* the clock at the last grant */

/* States of a process. */
#define IDLE 0
#define INSERTING 1
#define HOLDING 2

typedef Process { byte at, row, base, last, holder, read, began; bool guarded }
Process p[PROCESSES];

/* States of a transaction. */
#define NONE 0
#define SENT 1		/* Guard is in flight */
#define OPEN 2		/* guarded */

typedef Transaction { byte at, base, holder }
Transaction t[TRANSACTIONS];

byte new;

/* Read only by the invariants. */
byte grants, holders, highest;
byte newest;		/* the last grant */
bool used[32];
bool tokens_rise = true;
bool no_token_repeats = true;
bool no_stale_guard_commits = true;
bool a_loss_is_final = true;

#ifdef FAILOVER
bool keptExists = true, keptHeld;
byte keptOwner, keptToken, keptHighWater;	/* on the replica */
#endif

/* Whether a transaction has locked the entry (token, name) of the index guard. */
#ifdef BUG_GUARD_LOCKS_NOTHING
#define GUARDED(e) false
#else
#define GUARDED(e) (t[0].at == OPEN && t[0].base == (e) || t[TRANSACTIONS-1].at == OPEN && t[TRANSACTIONS-1].base == (e))
#endif

#if defined(BUG_TOKEN_IS_CLOCK)
#define NEXT(above, at) (at)
#elif defined(BUG_TOKEN_WITHOUT_CLOCK)
#define NEXT(above, at) ((above) + STEP)
#else
#define NEXT(above, at) ((above) + STEP > (at) -> (above) + STEP : (at))
#endif

#ifdef FAILOVER
/* Whether the holder trusts its lease. Unless the clock jumps, trust ends before the lease;
   and the holder learns of a ForceUnlock before a failover. */
#define TRUSTED (p[0].at == HOLDING && p[0].row == owner || p[PROCESSES-1].at == HOLDING && p[PROCESSES-1].row == owner)
#ifdef CLOCK_FORWARD
#define MAY_EXPIRE true
#else
#define MAY_EXPIRE (!TRUSTED)
#endif
#ifdef UNSEEN_FORCE
#define MAY_FORCE true
#else
#define MAY_FORCE (!TRUSTED)
#endif
#define MAY_GRANT (grants < GRANTS && now >= granted + RANGE)
#else
#define MAY_EXPIRE true
#define MAY_FORCE true
#define MAY_GRANT (grants < GRANTS)
#endif

/* beginHold: process q has a new hold, with the token new. */
inline beginHold(q) {
	tokens_rise = (new > highest);
	highest = (new > highest -> new : highest);
	assert(tokens_rise);
	used[new] = true;
	holders++;
	p[q].at = HOLDING; p[q].last = new; p[q].holder = holders; p[q].guarded = false;
	p[q].read = 0; p[q].began = 0; new = 0
}

/* grant makes process q the owner of the row, with the token new. */
inline grant(q) {
	grants++;
	exists = true; held = true; owner = grants; token = new; granted = now;
	newest = grants;
	p[q].row = grants; p[q].base = token;
	beginHold(q)
}

/* continueRange: when a range is used up, a statement replaces the owner. The row's token rises,
   and the next local waiter gets the first token after the range. */
inline continueRange(q) {
	grants++;
	held = true; token = NEXT(token, now); owner = grants; granted = now;
	newest = grants;
	new = p[q].last + 1;
	p[q].row = grants; p[q].base = token;
	beginHold(q)
}

inline end(q) {
	p[q].at = IDLE; p[q].row = 0; p[q].base = 0; p[q].last = 0; p[q].holder = 0; p[q].guarded = false;
	p[q].read = 0; p[q].began = 0
}

/* handOff: the next local waiter gets the hold; the row does not change. If a failover has lost
   grants to other processes, this hold is stale from the start: its token is below theirs, and
   no row has it. */
inline handOff(q) {
	new = p[q].last + 1;
	if
#ifdef FAILOVER
	:: new < highest && p[q].row != newest ->
		no_token_repeats = !used[new];
		assert(no_token_repeats);
		used[new] = true;
		p[q].last = new; p[q].guarded = false; new = 0
#endif
	:: else -> beginHold(q)
	fi
}

/* Whether a read has just shown that the row is the process's own. */
#ifdef BUG_HANDOFF_NOT_CONFIRMED
#define CONFIRMED(q) true
#else
#define CONFIRMED(q) (exists && owner == p[q].row)
#endif
#ifdef BUG_RANGE_GOES_ON_UNPROVEN
#define CAN_CONTINUE(q) (p[q].last + 1 >= p[q].base + RANGE && (!held || owner == p[q].row))
#else
#define CAN_CONTINUE(q) (p[q].last + 1 >= p[q].base + RANGE && owner == p[q].row)
#endif
#define CAN_HAND_OFF(q) (p[q].last + 1 < p[q].base + RANGE && CONFIRMED(q))

proctype Process_(byte q) {
	do
	/* take.sql, take_or_enlist.sql */
	:: d_step { p[q].at == IDLE && exists && !held && MAY_GRANT && !GUARDED(token) -> new = NEXT(token, now); grant(q) }
	/* insert.sql reads the high-water row, and then finds a row or adds one */
	:: d_step { p[q].at == IDLE && !exists && MAY_GRANT ->
		p[q].at = INSERTING; p[q].read = highWater; p[q].began = now;
#ifndef BUG_HIGH_WATER_NOT_LOCKED
		readers++
#endif
	   }
	:: d_step { p[q].at == INSERTING && !exists && MAY_GRANT ->
		new = NEXT(p[q].read, p[q].began); grant(q);
#ifndef BUG_HIGH_WATER_NOT_LOCKED
		readers--
#endif
	   }
	:: d_step { p[q].at == INSERTING && exists && !GUARDED(token) ->
		if
		:: !held && MAY_GRANT -> new = NEXT(token, p[q].began); grant(q)
		:: else -> end(q)
		fi;
#ifndef BUG_HIGH_WATER_NOT_LOCKED
		readers--
#endif
	   }
#ifndef FAILOVER	/* a guard does not survive the loss of its grant */
	/* Guard; its statement may arrive late */
	:: d_step { p[q].at == HOLDING && t[0].at == NONE ->
		p[q].guarded = true; t[0].at = SENT; t[0].base = p[q].base; t[0].holder = p[q].holder }
	:: d_step { p[q].at == HOLDING && t[TRANSACTIONS-1].at == NONE ->
		p[q].guarded = true; t[TRANSACTIONS-1].at = SENT; t[TRANSACTIONS-1].base = p[q].base; t[TRANSACTIONS-1].holder = p[q].holder }
#endif
	/* Unlock, with a local waiter */
#ifdef BUG_GUARDED_IS_HANDED_OFF
	:: d_step { p[q].at == HOLDING && CAN_HAND_OFF(q) -> handOff(q) }
#else
	:: d_step { p[q].at == HOLDING && CAN_HAND_OFF(q) && !p[q].guarded -> handOff(q) }
#endif
	/* replace.sql */
	:: d_step { p[q].at == HOLDING && owner == p[q].row && exists && MAY_GRANT && !GUARDED(token) -> new = NEXT(token, now); grant(q) }
	:: d_step { p[q].at == HOLDING && CAN_CONTINUE(q) && exists && MAY_GRANT && !GUARDED(token) -> continueRange(q) }
	/* release.sql */
	:: d_step { p[q].at == HOLDING ->
		if
		:: exists && owner == p[q].row -> owner = 0; held = false
		:: else
		fi;
		end(q) }
	/* trust ends, or the process dies */
	:: d_step { p[q].at == HOLDING -> end(q) }
#ifdef BUG_HANDOFF_ON_EXPIRY
	:: d_step { p[q].at == HOLDING && CAN_HAND_OFF(q) -> handOff(q) }
#endif
	od
}

proctype Transaction_(byte x) {
	byte q = 0;
	do
	/* guard.sql */
#ifdef BUG_GUARD_WITHOUT_TOKEN
	:: d_step { t[x].at == SENT && exists -> t[x].at = OPEN; t[x].base = token }
#else
	:: d_step { t[x].at == SENT && exists && token == t[x].base -> t[x].at = OPEN }
#endif
	/* commit */
	:: d_step { t[x].at == OPEN ->
		no_stale_guard_commits = (t[x].holder == holders);
		assert(no_stale_guard_commits);
		t[x].at = NONE; t[x].base = 0; t[x].holder = 0 }
	/* Guard matches no row: the hold is lost. */
	:: d_step { t[x].at == SENT && !(exists && token == t[x].base) ->
		q = 0;
		do
		:: q < PROCESSES ->
			if
			:: p[q].at == HOLDING && p[q].holder == t[x].holder ->
#ifndef BUG_GUARD_ENDS_NOTHING
				end(q);
#endif
				a_loss_is_final = (p[q].at != HOLDING)
			:: else
			fi;
			q++
		:: else -> break
		od;
		q = 0;
		assert(a_loss_is_final);
		t[x].at = NONE; t[x].base = 0; t[x].holder = 0 }
	/* the transaction is rolled back, or its connection breaks */
	:: d_step { t[x].at != NONE -> t[x].at = NONE; t[x].base = 0; t[x].holder = 0 }
	od
}

proctype Database() {
	do
	:: d_step { held && MAY_EXPIRE -> held = false }	/* the lease ends, or the clock is set forward */
#ifdef FAILOVER
	:: d_step { now < GRANTS * RANGE + RANGE -> now++ }
	:: d_step { keptExists = exists; keptHeld = held; keptOwner = owner; keptToken = token; keptHighWater = highWater }
	:: d_step { t[0].at != OPEN && t[TRANSACTIONS-1].at != OPEN && readers == 0 ->
		exists = keptExists; held = keptHeld; owner = keptOwner; token = keptToken; highWater = keptHighWater }
#else
	:: now = 0
	:: now = 3
	:: now = 7
#endif
	/* force.sql */
	:: d_step { exists && held && MAY_GRANT && !GUARDED(token) && MAY_FORCE ->
		token = token + RANGE; owner = 0; held = false; grants++; granted = now }
	/* Purge */
	:: d_step { exists && !held && !GUARDED(token) && readers == 0 ->
#ifndef BUG_NO_HIGH_WATER
		highWater = (token > highWater -> token : highWater);
#endif
		exists = false; owner = 0; token = 0 }
	od
}

init {
	atomic {
		byte i = 0;
		do
		:: i < PROCESSES -> run Process_(i); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < TRANSACTIONS -> run Transaction_(i); i++
		:: else -> break
		od;
		i = 0;
		run Database()
	}
}
