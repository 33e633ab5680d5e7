#!/usr/bin/env bash
# Makes sure that the C compiler of Go, which `go test -race` and the clock of
# torture/ need, is there:
#
#   scripts/compiler.sh [COMPILER]     (without arguments: gcc)
#
# Exit codes and fetching: see lib.sh.
. "$(dirname "$0")/lib.sh"
compiler=${1:-gcc}

seek() { type -P "$1" >/dev/null; }

fetch() { install gcc libc6-dev; }

provide "$compiler" && exit
code=$?
echo "$compiler: not found. Install a C compiler; go test -race needs it." >&2
exit "$code"
