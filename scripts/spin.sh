#!/usr/bin/env bash
# Makes sure that spin, which checks internal/model, and a C compiler are there.
# What is missing is installed by apt, if it is there and we are root.
#
# Exit code 0: both are there. 3: not, and nothing to fetch them with. 1: fetching failed.
set -euo pipefail

missing=()
for tool in spin gcc; do
	type -P "$tool" >/dev/null || missing+=("$tool")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
if [[ $(id -u) != 0 ]] || ! type -P apt-get >/dev/null; then
	echo "${missing[*]}: not found; install it to check internal/model" >&2
	exit 3
fi
echo "${missing[*]}: not here, installing" >&2
[[ " ${missing[*]} " != *" gcc "* ]] || missing+=(libc6-dev)
out=$(apt-get update 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" 2>&1) || {
	echo "$out" >&2
	exit 1
}
