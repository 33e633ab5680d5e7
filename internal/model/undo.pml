/*
 * undo.pml: an acquire that came to nothing leaves no lock behind, and what frees
 * it frees nothing else.
 *
 * One attempt whose caller has gone, or whose answer was lost: its statement may
 * have been executed, or sit before or behind the row's lock, or never have
 * arrived. The orphanage releases it by its id, again and again. A rival takes
 * and gives back the row meanwhile. README.md maps the parts to the code.
 */
#ifndef LEASE
#define LEASE 3
#endif
#ifndef OUTAGE
#define OUTAGE 5	/* ticks for which the database may be unreachable */
#endif
#ifndef AGAIN
#define AGAIN 1		/* ticks between two tries to undo, at most */
#endif

#define NONE 0
#define SENT 1		/* has not begun: its UTC_TIMESTAMP is that of a later time */
#define BEGUN 2		/* waits for the row, which a transaction has locked */

#define MINE 1
#define RIVAL 2

byte owner;		/* MINE: the attempt; RIVAL: another process */
byte left;		/* of the lease */
byte ghost = SENT;	/* the attempt's statement */
byte begun;		/* how long ago it began, up to LEASE */
byte undo;		/* the statement that undoes */
bool locked;		/* a transaction has the row locked */
bool down;		/* the database answers nobody; what has reached it waits */
byte outage;
bool told;		/* the orphanage has had an answer since */
#ifdef BUG_UNTIL_FROM_START
byte until = LEASE;	/* for how long yet it tries */
#else
byte until;		/* for how long yet it tries, from the first answer on */
#endif
bool wanted = true;	/* it tries at all */
byte next;		/* ticks to the next try */
bool nothing_is_left_behind = true;
bool only_its_own_is_freed = true;

#define QUIET (!wanted && undo == NONE)

inline check() {
	nothing_is_left_behind = !(QUIET && ghost == NONE && owner == MINE && left > 0);
	assert(nothing_is_left_behind)
}

active proctype Ghost() {
	do
	/* It reaches the server before the undo has been answered. */
#ifdef SLOW_NETWORK
	:: d_step { ghost == SENT && !down && wanted -> ghost = BEGUN; begun = 0 }
#else
	:: d_step { ghost == SENT && !down && !told -> ghost = BEGUN; begun = 0 }
#endif
	:: atomic { ghost == BEGUN && !locked && !down ->	/* its answer is one of several */
		if
		:: left + begun == 0 || owner == 0 ->
			owner = MINE; left = (begun < LEASE -> LEASE - begun : 0);
			if
			:: true	/* the answer is lost, or is an error that does not tell */
#ifdef BUG_ERROR_IS_REFUSAL
			:: wanted = false
#endif
#ifdef BUG_REPEATED_IS_REFUSED
			:: left > 0 -> wanted = false	/* sent twice: the answer to the second is read */
#endif
			fi
		:: else ->
			if
			:: true
			:: wanted = false	/* refused */
			fi
		fi;
		ghost = NONE; begun = 0; check() }
	:: d_step { ghost == SENT -> ghost = NONE; check() }	/* it never arrives */
	od
}

active proctype Orphanage() {
#ifdef BUG_NOT_UNDONE
	wanted = false;
#endif
	do
	:: d_step { wanted && undo == NONE && next == 0 -> undo = SENT;
		next = AGAIN }
	/* sqlReleaseAll passes over a row that is locked, and is answered all the same */
	:: d_step { undo == SENT && !down ->
		if
#ifdef BUG_UNDO_ANY_OWNER
		:: !locked && owner != 0 ->
#else
		:: !locked && owner == MINE ->
#endif
			only_its_own_is_freed = (owner == MINE);
			assert(only_its_own_is_freed);
			owner = 0; left = 0;
			wanted = false	/* it was granted, so that it cannot be again */
		:: else ->
#ifdef BUG_UNDONE_ONCE
			wanted = false
#endif
			if
			:: !told -> told = true; until = LEASE
			:: else
			fi
		fi;
		undo = NONE; check() }
	od
}

active proctype Network() {
	do
	:: d_step { undo == SENT -> undo = NONE; check() }	/* lost, or bounded in time */
	od
}

active proctype Rival() {
	do
	:: d_step { !locked && !down && (owner == 0 || left == 0) -> owner = RIVAL; left = LEASE }
	:: d_step { !locked && !down && owner == RIVAL -> owner = 0; left = 0 }
	od
}

active proctype Time() {
	do
	:: d_step { !locked -> locked = true }
	:: d_step { locked -> locked = false }
	:: d_step { !down && outage < OUTAGE -> down = true }
	:: d_step { down -> down = false }
	:: d_step { !(wanted && next == 0 && undo == NONE) ->
		if
		:: left > 0 -> left--
		:: else
		fi;
		if
		:: ghost == BEGUN && begun < LEASE -> begun++
		:: else
		fi;
		if
		:: next > 0 -> next--
		:: else
		fi;
		if
		:: down && outage < OUTAGE -> outage++
		:: down && outage == OUTAGE -> down = false
		:: else
		fi;
		if
#ifdef BUG_UNTIL_FROM_START
		:: wanted && until > 1 -> until--
		:: wanted && until == 1 -> wanted = false
#else
		:: wanted && told && until > 0 -> until--
		:: wanted && told && until == 0 -> wanted = false
#endif
		:: else
		fi;
		check() }
	od
}
