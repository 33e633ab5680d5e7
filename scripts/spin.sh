#!/usr/bin/env bash
# Makes sure that spin, which checks internal/model, and the C compiler that it
# needs are there. Exit codes and fetching: see lib.sh.
. "$(dirname "$0")/lib.sh"

seek() { type -P spin >/dev/null && type -P gcc >/dev/null; }

fetch() { install spin gcc libc6-dev; }

provide spin && exit
code=$?
echo "spin: not found. Install spin and gcc to check internal/model." >&2
exit "$code"
