/*
 * undo.pml: an abandoned acquire leaves no lock behind, and its release ends no other hold.
 *
 * The caller of an attempt has left, or its reply was lost. The statement may have been executed,
 * may wait for the row's lock, may still be in the network, or may never arrive. The releaser
 * releases it by its id, repeatedly. Meanwhile, a rival acquires and releases the row. README.md
 * maps the parts to the code.
 */
#ifndef LEASE
#define LEASE 3
#endif
#ifndef OUTAGE
#define OUTAGE 5	/* ticks for which the database may be unreachable */
#endif
#ifndef AGAIN
#define AGAIN 1		/* ticks between two releases, at most */
#endif

/* States of a statement. */
#define NONE 0
#define SENT 1		/* not begun, so its UTC_TIMESTAMP will be later */
#define BEGUN 2		/* waits for the row, which a transaction has locked */

#define MINE 1
#define RIVAL 2

byte owner;		/* MINE: the attempt; RIVAL: another process */
byte left;		/* of the lease */
byte attempt = SENT;	/* the attempt's statement */
byte begun;		/* how long ago it began, up to LEASE */
byte undo;		/* the releaser's statement */
bool locked;		/* a transaction has the row locked */
bool down;		/* the database does not reply; statements that have reached it wait */
byte outage;
bool answered;		/* the releaser has received a reply */
#ifdef BUG_UNTIL_FROM_START
byte until = LEASE;	/* ticks for which it still repeats the release */
#else
byte until;		/* ticks for which it still repeats the release, once it has received a reply */
#endif
bool pending = true;	/* the release is still to be repeated */
byte pause;		/* ticks until the next time */
bool nothing_is_left_behind = true;
bool only_its_own_is_freed = true;

#define QUIET (!pending && undo == NONE)

inline check() {
	nothing_is_left_behind = !(QUIET && attempt == NONE && owner == MINE && left > 0);
	assert(nothing_is_left_behind)
}

active proctype Attempt() {
	do
	/* It reaches the server before the reply to a release. */
#ifdef SLOW_NETWORK
	:: d_step { attempt == SENT && !down && pending -> attempt = BEGUN; begun = 0 }
#else
	:: d_step { attempt == SENT && !down && !answered -> attempt = BEGUN; begun = 0 }
#endif
	:: atomic { attempt == BEGUN && !locked && !down ->	/* one of several outcomes */
		if
		:: left + begun == 0 || owner == 0 ->
			owner = MINE; left = (begun < LEASE -> LEASE - begun : 0);
			if
			:: true	/* the reply is lost, or is an error that proves nothing */
#ifdef BUG_ERROR_IS_REFUSAL
			:: pending = false
#endif
#ifdef BUG_REPEATED_IS_REFUSED
			:: left > 0 -> pending = false	/* sent twice: the second reply is read */
#endif
			fi
		:: else ->
			if
			:: true
			:: pending = false	/* refused */
			fi
		fi;
		attempt = NONE; begun = 0; check() }
	:: d_step { attempt == SENT -> attempt = NONE; check() }	/* it never arrives */
	od
}

active proctype Releaser() {
#ifdef BUG_NOT_UNDONE
	pending = false;
#endif
	do
	:: d_step { pending && undo == NONE && pause == 0 -> undo = SENT;
		pause = AGAIN }
	/* release_all.sql skips a locked row, and has a reply nevertheless */
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
			pending = false	/* it was granted, so it cannot be granted again */
		:: else ->
#ifdef BUG_UNDONE_ONCE
			pending = false
#endif
			if
			:: !answered -> answered = true; until = LEASE
			:: else
			fi
		fi;
		undo = NONE; check() }
	od
}

active proctype Network() {
	do
	:: d_step { undo == SENT -> undo = NONE; check() }	/* lost, or ended by its time limit */
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
	:: d_step { !(pending && pause == 0 && undo == NONE) ->
		if
		:: left > 0 -> left--
		:: else
		fi;
		if
		:: attempt == BEGUN && begun < LEASE -> begun++
		:: else
		fi;
		if
		:: pause > 0 -> pause--
		:: else
		fi;
		if
		:: down && outage < OUTAGE -> outage++
		:: down && outage == OUTAGE -> down = false
		:: else
		fi;
		if
#ifdef BUG_UNTIL_FROM_START
		:: pending && until > 1 -> until--
		:: pending && until == 1 -> pending = false
#else
		:: pending && answered && until > 0 -> until--
		:: pending && answered && until == 0 -> pending = false
#endif
		:: else
		fi;
		check() }
	od
}
