#!/usr/bin/env bash
# Shows a bug that was fixed: a test fails on the commit before the fix, and
# passes with it.
#
#	scripts/reproduce.sh [-t COMMIT] FIX TEST [PACKAGE]
#
# The test files of the package, and the servers and proxies of the tests, are
# those of the fix, or of the later commit that -t names. The servers have to be
# there: see scripts/servers.sh, and scripts/galera.sh for failover.
#
# Exit code 0: reproduced. 1: not.
set -euo pipefail

tests=
while getopts t: option; do
	case $option in
	t) tests=$OPTARG ;;
	*) exit 1 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 || $# == 3 ]] || {
	echo "usage: $0 [-t COMMIT] FIX TEST [PACKAGE]" >&2
	exit 1
}
fix=$1 test=$2 package=${3:-.}
tests=${tests:-$fix}
pattern="^${test//\//\$/^}\$"

root=$(cd "$(dirname "$0")/.." && pwd)
export MYSQLLOCK_CACHE=${MYSQLLOCK_CACHE:-$root/.cache}
work=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$work/tree" 2>/dev/null; rm -rf "$work"' EXIT
git -C "$root" worktree add --quiet --detach "$work/tree" "$fix^"
cd "$work/tree"

# runs COMMIT: the test, with the library of the commit.
runs() {
	git checkout --quiet --force --detach "$1"
	git checkout --quiet --no-overlay "$tests" -- ":(glob)$package/*_test.go" internal/mysqltest internal/wire
	go test -count=1 -timeout 5m -run "$pattern" "$package" >"$work/out" 2>&1
}

if runs "$fix^"; then
	echo "not reproduced: $test does not fail before $fix" >&2
	exit 1
fi
grep -qE "^\s*--- FAIL: ${test%%/*}|^panic: test timed out" "$work/out" || {
	echo "not reproduced: $test did not run before $fix" >&2
	cat "$work/out" >&2
	exit 1
}
grep -E -m 3 '^\s*--- FAIL|Error:|^panic:' "$work/out"
if ! runs "$fix" || grep -q 'no tests to run' "$work/out"; then
	echo "$test fails with $fix too" >&2
	cat "$work/out" >&2
	exit 1
fi
echo "reproduced: $test fails before $fix, and passes with it"
