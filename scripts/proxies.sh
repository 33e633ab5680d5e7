#!/usr/bin/env bash
# Makes sure that the proxies for the tests of failover/ can be found:
#
#   scripts/proxies.sh [haproxy] [mysqlrouter]     (without arguments: both)
#
# Looks where internal/mysqltest looks: on the machine, and in the cache
# (MYSQLLOCK_CACHE, .cache). Their packages would start services, so they are
# unpacked: HAProxy from Debian 13, MySQL Router from sid. The tests skip
# themselves without them.
#
# Fetching: see lib.sh. Exit code 0: all are there. 2: usage. 3: not all, and the
# rest cannot be had.
. "$(dirname "$0")/lib.sh"
proxies=$cache/proxies

# version KIND COMMAND...: prints the version of a proxy that runs.
version() {
	local out flag=-v
	[[ $1 == mysqlrouter ]] && flag=--version
	out=$("${@:2}" $flag 2>/dev/null) && echo "$1: ${out%%$'\n'*}"
}

# seek KIND: prints the first proxy of the kind that runs, if there is one.
seek() {
	local path
	for path in "$(type -P "$1")" {/usr/sbin,/usr/bin,/usr/local/sbin,/usr/local/bin}/"$1"; do
		[[ -x $path ]] && version "$1" "$path" && return
	done
	version "$1" loaded "$proxies/$1" "$(file "$1")"
}

# file KIND: the program in its package.
file() { if [[ $1 == haproxy ]]; then echo usr/sbin/haproxy; else echo usr/bin/mysqlrouter; fi; }

fetch() {
	local dir=$proxies/$1 suite=trixie package=$1
	[[ $1 == mysqlrouter ]] && suite=sid package=mysql-router
	mkdir -p "$proxies" && rm -rf "$dir" || return # it does not run
	unpack "$dir.new" $suite $package &&
		version "$1" loaded "$dir.new" "$(file "$1")" >/dev/null &&
		mv "$dir.new" "$dir"
}

[[ $# -gt 0 ]] || set -- haproxy mysqlrouter
code=0
for kind; do
	case $kind in
	haproxy | mysqlrouter) ;;
	*) echo "usage: $0 [haproxy] [mysqlrouter]" >&2 && exit 2 ;;
	esac
	provide "$kind" && continue
	code=3
	echo "$kind: not found, and it could not be fetched from Debian." >&2
done
exit "$code"
