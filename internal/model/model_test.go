package model

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stuck is spin's error for a state in which no process can continue although one waits: a wake-up was
// lost, or no process can acquire a name.
const stuck = "invalid end state"

// full adds the configurations that take minutes. It is set by make model.
var full = os.Getenv("MYSQLLOCK_MODEL") == "full"

// TestProtocol checks that no reachable state violates an invariant.
func TestProtocol(t *testing.T) {
	needSpin(t)
	for _, c := range []struct {
		model, flags string
		long         bool
	}{
		{"lease", "", false},
		{"lease", "-DQUEUED=2", true},
		{"lease", "-DLEASE=4", true},
		{"lease", "-DFORCE", true},
		{"lease", "-DDIRTY", true},
		{"lease", "-DSLOTS", false},
		{"undo", "", false},
		{"undo", "-DLEASE=5 -DOUTAGE=8 -DAGAIN=2", true},
		{"guard", "-DGRANTS=2", false},
		{"guard", "-DGRANTS=2 -DFAILOVER", false},
		{"guard", "-DGRANTS=3", true},
		{"guard", "-DGRANTS=3 -DFAILOVER", false},
		{"guard", "-DGRANTS=4 -DFAILOVER", true},
		{"waiters", "-DACQUIRES=1", false},
		{"waiters", "-DACQUIRES=1 -DPOLLER -DSIGNALS_LOST", true},
		{"waiters", "-DACQUIRES=1 -DPOLLER -DCRASHES", true},
		{"direct", "-DTICKS=3", false},
		{"direct", "-DCANCELS=2", true},
		{"direct", "-DCANCELS=0 -DCRASHES=1 -DLOSSES=1", true},
		{"direct", "-DSTALE=1 -DLOSSES=1 -DTICKS=3", true},
		{"session", "", false},
		{"session", "-DRESENT", true},
		{"session", "-DPURGE", true},
		{"session", "-DQUEUED=1", true},
		{"session", "-DBACK=1", true},
		{"session", "-DLOCKS=2 -DSESSIONS=1 -DIDS=1", true},
		{"session", "-DCLOCK_GLITCH -DIDS=1", true},
		{"session", "-DFORCE -DFORCES=1 -DSESSIONS=1 -DIDS=1", true},
		{"session", "-DFORCE -DFORCES=1 -DIDS=1 -DPURGE", true},
		{"session", "-DFAILOVER -DSESSIONS=1 -DIDS=1", true},
		{"shared", "-DCOPIES=0", false},
		{"shared", "-DREQUESTS=2", false},
		{"shared", "", true},
		{"shared", "-DGIVEUPS=2 -DEXPIRIES=2 -DCOPIES=0", true},
		{"shared", "-DROWS=1", true},
		{"shared", "-DREQUESTS=4 -DCOPIES=0", true},
		{"shared", "-DPROCESSES=3 -DCOPIES=0", true},
		{"shared", "-DFORCE -DCOPIES=0", true},
		{"shared", "-DFORCE -DPURGE=1 -DREQUESTS=2", true},
		{"shared", "-DPURGE=2 -DCOPIES=0", true},
		{"permit", "", false},
		{"permit", "-DDISAGREE", false},
		{"permit", "-DNO_QUEUE", false},
		{"permit", "-DN=4", true},
		{"permit", "-DN=4 -DRELEASES=2", true},
		{"permit", "-DACQUIRES=2 -DDISAGREE", true},
		{"permit", "-DN=4 -DSLOTS=3 -DDISAGREE", true},
		{"permit", "-DN=4 -DNO_QUEUE -DCANCELS=0", true},
		// Conditions that are not necessary: see README.md.
		{"shared", "-DBUG_ADMIT_KEEPS_OWNER", true},
		{"shared", "-DBUG_NOT_PREPARED", true},
		// These lose no wake-up, because the statement that listens reads the row first.
		{"waiters", "-DACQUIRES=1 -DBUG_QUEUED_LATER", true},
		{"waiters", "-DACQUIRES=1 -DBUG_WAKEUP_DROPPED", true},
		{"waiters", "-DACQUIRES=1 -DBUG_SIGNAL_DURING_REQUEST_DROPPED", true},
		{"waiters", "-DACQUIRES=1 -DBUG_DEAD_NOT_REMOVED", true},
		{"waiters", "-DACQUIRES=1 -DBUG_REMOVED_NOT_WOKEN", true},
	} {
		if c.long && !full {
			continue
		}
		t.Run(c.model+c.flags, func(t *testing.T) {
			t.Parallel()
			violated, out := check(t, c.model, c.flags, "-O2")
			assert.Empty(t, violated, out)
			assert.NotContains(t, out, "max search depth too small", "not all states were checked")
		})
	}
}

// TestConditionsAreNeeded checks that spin finds a violation if any one condition is removed.
func TestConditionsAreNeeded(t *testing.T) {
	needSpin(t)
	type condition struct{ model, flags, violated string }
	conditions := []condition{
		{"lease", "-DBUG_LEASE_FROM_REPLY", "one_holder_trusts"},
		{"lease", "-DBUG_NO_MARGIN", "one_holder_trusts"},
		{"lease", "-DBUG_RENEW_SHORTENS", "one_holder_trusts"},
		{"lease", "-DBUG_LOST_IS_REVIVED", "one_holder_trusts"},
		{"lease", "-DBUG_RELEASE_ANY_OWNER", "one_holder_trusts"},
		{"lease", "-DFORCE -DBUG_RENEW_ANY_OWNER", "loss_is_reported"},
		{"lease", "-DDIRTY -DBUG_LOOK_EXTENDS_TRUST", "one_holder_trusts"},
		{"lease", "-DSLOTS -DBUG_SLOT_LEFT_WITH_CALLER", "one_statement_waits"},
		{"lease", "-DCLOCK_FORWARD", "one_holder_trusts"}, // an assumption, not a condition
		{"undo", "-DBUG_NOT_UNDONE", "nothing_is_left_behind"},
		{"undo", "-DBUG_UNDONE_ONCE", "nothing_is_left_behind"},
		{"undo", "-DBUG_UNTIL_FROM_START", "nothing_is_left_behind"},
		{"undo", "-DBUG_UNDO_ANY_OWNER", "only_its_own_is_freed"},
		{"undo", "-DBUG_ERROR_IS_REFUSAL", "nothing_is_left_behind"},
		{"undo", "-DBUG_REPEATED_IS_REFUSED", "nothing_is_left_behind"},
		{"undo", "-DSLOW_NETWORK", "nothing_is_left_behind"}, // an assumption
		{"guard", "-DBUG_GUARD_LOCKS_NOTHING", "no_stale_guard_commits"},
		{"guard", "-DBUG_GUARD_WITHOUT_TOKEN", "no_stale_guard_commits"},
		{"guard", "-DBUG_GUARDED_IS_HANDED_OFF", "no_stale_guard_commits"},
		{"guard", "-DBUG_HANDOFF_ON_EXPIRY", "no_stale_guard_commits"},
		{"guard", "-DBUG_HANDOFF_NOT_CONFIRMED", "tokens_rise"},
		{"guard", "-DBUG_GUARD_ENDS_NOTHING", "a_loss_is_final"},
		{"guard", "-DBUG_RANGE_NOT_RESERVED", "tokens_rise"},
		{"guard", "-DBUG_RANGE_GOES_ON_UNPROVEN", "tokens_rise"},
		{"guard", "-DBUG_TOKEN_IS_CLOCK", "tokens_rise"},
		{"guard", "-DBUG_NO_HIGH_WATER", "tokens_rise"},
		{"guard", "-DBUG_HIGH_WATER_NOT_LOCKED", "tokens_rise"},
		{"guard", "-DFAILOVER -DBUG_TOKEN_WITHOUT_CLOCK", "tokens_rise"},
		{"guard", "-DFAILOVER -DCLOCK_FORWARD", "tokens_rise"},
		{"guard", "-DFAILOVER -DUNSEEN_FORCE", "tokens_rise"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_NO_MARGIN", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_TRUST_FROM_REPLY", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_TRUST_BEFORE_BOUND", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_LOST_IS_REVIVED", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DRESENT -DBUG_REPEATED_ACQUIRE_UNBINDS", "one_holder_trusts"},
		{"session", "-DIDS=1 -DBUG_BIND_LOWERS", "one_holder_trusts"},
		{"session", "-DIDS=1 -DBUG_BIND_BEFORE_BEGIN", "a_dead_session_stays_dead"},
		{"session", "-DIDS=1 -DRESENT -DEXCLUSION_ALONE -DBUG_BIND_BEFORE_BEGIN", "one_holder_trusts"},
		{"session", "-DIDS=1 -DBUG_BEGIN_LOWERS", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DRESENT -DBUG_BEGIN_REVIVES", "a_dead_session_stays_dead"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_RENEWAL_REVIVES", "a_dead_session_stays_dead"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DQUEUED=1 -DBUG_RENEWAL_SHORTENS", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_SESSION_NOT_READ", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_TAKEN_BY_NUMBER_ALONE", "one_holder_trusts"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBACK=1 -DBUG_NOT_MARKED_DEAD", "a_dead_session_stays_dead"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DCLOCK_GLITCH -DBUG_NOT_MARKED_DEAD", "loss_is_reported"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_RELEASE_STOPS", "nothing_is_left_behind"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DBUG_LOST_IS_NOT_RELEASED", "nothing_is_left_behind"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DFORCE -DFORCES=1 -DBUG_NO_MARKER", "loss_is_reported"},
		{"session", "-DIDS=1 -DFORCE -DFORCES=1 -DPURGE -DBUG_FORCED_BY_OWNER_ALONE", "loss_is_reported"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DFAILOVER -DBUG_MARKER_IGNORED", "loss_is_reported"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DFAILOVER -DBUG_LATE_BIND_COUNTS", "loss_is_reported"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DFAILOVER -DBUG_RETURNED_ROW_IS_KEPT", "nothing_is_left_behind"},
		{"session", "-DIDS=1 -DSESSIONS=1 -DRESENT -DPURGE", "a_dead_session_stays_dead"}, // an assumption
		{"direct", "-DCANCELS=0 -DEXCLUSION_ALONE -DBUG_TRUST_FROM_REPLY", "one_holder_trusts"},
		{"direct", "-DCANCELS=0 -DEXCLUSION_ALONE -DSTALE=1 -DBUG_TAKEN_BACK", "one_holder_trusts"},
		{"direct", "-DCANCELS=0 -DEXCLUSION_ALONE -DBUG_RELEASE_ANY_OWNER", "one_holder_trusts"},
		{"direct", "-DBUG_FOUND_TWICE", "tokens_rise"},
		{"direct", "-DCANCELS=0 -DBUG_GRANT_KEEPS_TOKEN", "tokens_rise"},
		{"direct", "-DBUG_NOT_GIVEN_BACK", stuck},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DBUG_TAKE_IGNORES_MODE", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DBUG_PROMOTE_IGNORES_SHARED", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DBUG_PROMOTE_READS_FIRST", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DBUG_LOCKED_ROW_IS_FREE", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DCOPIES=0 -DBUG_PROMOTE_ANY_OWNER", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DBUG_GRANT_TO_COPY_IS_OLD", "exclusive_is_alone"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_PROMOTE_KEEPS_TOKEN", "tokens_rise"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_MODE_2_IS_GRANTED", "tokens_rise"},
		{"shared", "-DBUG_CLAIM_OPENS_PHASE", "tokens_rise"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_CLAIM_HAS_NO_LEASE", stuck},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_DEAD_ROWS_ARE_KEPT", stuck},
		{"shared", "-DEXCLUSION_ALONE -DBUG_END_ANY_OWNER", "exclusive_is_alone"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_PHASE_KEEPS_TOKEN", "tokens_rise"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_EACH_ADMISSION_HAS_A_TOKEN", "no_loss_is_false"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_JOIN_IGNORES_CLAIM", "no_request_passes_a_claim"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DBUG_JOIN_READS_FIRST", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DCOPIES=0 -DROWS=1 -DBUG_JOIN_OVERWRITES", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DBUG_REPLACE_IN_PHASE", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DCOPIES=0 -DBUG_RELEASE_ANY_OWNER", "exclusive_is_alone"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_GUARD_LOCKS_NOTHING", "no_stale_guard_commits"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_GUARD_OF_OWN_ROW", "no_stale_guard_commits"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_GUARD_DURING_DOWNGRADE", "no_loss_is_false"},
		{"shared", "-DREQUESTS=2 -DBUG_ADD_ANY_OWNER", "no_loss_is_false"},
		{"shared", "-DBUG_DOWNGRADE_ANY_OWNER", "tokens_rise"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DBUG_DOWNGRADE_KEEPS_TOKEN", "no_loss_is_false"},
		{"shared", "-DEXCLUSION_ALONE -DCOPIES=0 -DBUG_DOWNGRADE_RELEASES_FIRST", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DCOPIES=0 -DBUG_DOWNGRADE_TRUSTS_OLD_LEASE", "exclusive_is_alone"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DFORCE -DBUG_FORCE_KEEPS_TOKEN", "a_forced_hold_has_no_guard"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DFORCE -DBUG_FORCE_ANY_OWNER", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DPURGE=1 -DBUG_PURGE_IGNORES_SHARED", "exclusive_is_alone"},
		{"shared", "-DEXCLUSION_ALONE -DREQUESTS=2 -DCOPIES=0 -DPURGE=1 -DBUG_PURGE_ANY_MODE", "exclusive_is_alone"},
		{"shared", "-DREQUESTS=2 -DCOPIES=0 -DPURGE=1 -DBUG_END_PHASE_KEEPS_OWNER", "tokens_rise"},
		{"permit", "-DBUG_TAKE_ANY", "a_slot_has_one_holder"},
		{"permit", "-DDISAGREE -DBUG_NOT_CHECKED", "limit_is_kept"},
		{"permit", "-DDISAGREE -DFIRST_USE", "limit_is_kept"}, // an assumption
		{"permit", "-DBUG_NO_SIGNAL", stuck},
		{"permit", "-DBUG_QUEUE_NOT_LOCKED", stuck},
		{"permit", "-DBUG_SLEEPS_WITHOUT_LOOK", stuck},
		{"permit", "-DN=4 -DRELEASES=2 -DBUG_NEXT_IS_NOT_SIGNALLED", stuck},
		{"permit", "-DN=4 -DRELEASES=2 -DBUG_READ_BEFORE_LEAVING", stuck},
		{"permit", "-DDISAGREE -DRELEASES=1 -DBUG_OWN_LIMIT", stuck},
		{"permit", "-DN=4 -DBUG_REMOVAL_SIGNALS_NOBODY", stuck},
		{"permit", "-DNO_QUEUE -DBUG_NO_SECOND_LOOK", stuck},
		{"permit", "-DNO_QUEUE -DSLOW_COMMIT", stuck}, // an assumption
		{"waiters", "-DACQUIRES=1 -DBUG_NO_SIGNAL", stuck},
		{"waiters", "-DACQUIRES=1 -DBUG_SIGNAL_BEFORE_COMMIT", stuck},
		{"waiters", "-DACQUIRES=1 -DBUG_LISTEN_WITHOUT_LOOK", stuck},
		{"waiters", "-DACQUIRES=1 -DBUG_WAITER_NOT_REMOVED", stuck},
		{"waiters", "-DACQUIRES=1 -DBUG_REMOVAL_SIGNALS_NOBODY", stuck},
		{"waiters", "-DACQUIRES=1 -DSIGNALS_LOST", stuck}, // no poller
		{"waiters", "-DACQUIRES=1 -DCRASHES", stuck},      // no poller
	}
	if full {
		conditions = append(conditions, []condition{
			{"session", "-DIDS=1 -DSESSIONS=1 -DFORCE -DFORCES=1 -DBUG_TRUST_BEFORE_LOOK", "loss_is_reported"},
			{"session", "-DIDS=1 -DSESSIONS=1 -DFORCE -DFORCES=1 -DBUG_LOOKS_FOR_A_LEASE", "loss_is_reported"},
			{"session", "-DIDS=1 -DSESSIONS=1 -DFORCE -DFORCES=1 -DBUG_LOOK_AT_BOUND_ALONE", "loss_is_reported"},
		}...)
	}
	for _, c := range conditions {
		t.Run(c.model+c.flags, func(t *testing.T) {
			t.Parallel()
			violated, out := check(t, c.model, c.flags, "-O0")
			assert.Equal(t, c.violated, violated, out)
		})
	}
}

var (
	violation = regexp.MustCompile(`pan:1: (?:assertion violated )?(\w+(?: \w+)*)`)
	figures   = regexp.MustCompile(`depth reached \d+|\d+ states, stored`)
)

// check searches every reachable state of a model with spin, and returns the invariant that is
// violated, or "".
func check(t *testing.T, name, flags, optimise string) (violated, out string) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dir := t.TempDir()
	source, err := filepath.Abs(name + ".pml")
	require.NoError(t, err)
	run := func(command string, args ...string) string {
		cmd := exec.CommandContext(ctx, command, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", cmd, out)
		return string(bytes.TrimSpace(out))
	}
	run("spin", append(append([]string{"-a"}, strings.Fields(flags)...), source)...)
	run("gcc", optimise, "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c")
	args := []string{"-m2000000"}
	if full {
		args[0] = "-m20000000"
	}
	if !slices.Contains([]string{"waiters", "direct", "shared", "permit"}, name) {
		args = append(args, "-E") // accept every end state: a run of these models may end anywhere
	}
	out = run("./pan", args...)
	require.Contains(t, out, "errors: ")
	t.Log(strings.Join(figures.FindAllString(out, -1), ", "))
	if m := violation.FindStringSubmatch(out); m != nil {
		violated = m[1]
	}
	return violated, out
}

func needSpin(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("THE MODEL IS NOT CHECKED: %v; scripts/spin.sh fetches it", err)
		}
	}
}
