#!/usr/bin/env bash
# Makes sure that the message servers for the tests of notify/ can be found:
#
#   scripts/brokers.sh [redis] [nats]     (without arguments: both)
#
# Looks where internal/mysqltest looks: on the machine, and in the cache
# (MYSQLLOCK_CACHE, .cache). What is missing is fetched by apt, if it is there and
# we are root. No service is installed or started.
#
# Exit code 0: all found. 3: not all, and nothing to fetch them with. 1: fetching failed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${MYSQLLOCK_CACHE:-$root/.cache}
brokers=$cache/brokers

# seek KIND: prints the first server of the kind that runs, if there is one.
seek() {
	local path version
	for path in "$(type -P "$1-server")" {/usr/sbin,/usr/local/sbin,"$brokers"}/"$1-server"; do
		[[ -x $path ]] && version=$("$path" --version 2>/dev/null) && echo "$1: $version" && return
	done
	return 1
}

# fetch KIND: the packages of the servers bring a service that apt starts. So Redis
# comes with its tools, of which redis-check-rdb is the server by another name;
# nats-server, one file, is unpacked.
fetch() {
	local new=$brokers/new
	rm -rf "$new" && mkdir -p "$new" && quietly apt-get update || return
	if [[ $1 == redis ]]; then
		DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends redis-tools &&
			ln -sf "$(type -P redis-check-rdb)" "$brokers/redis-server"
	else
		(cd "$new" && quietly apt-get download nats-server && dpkg-deb -x ./*.deb .) &&
			mv "$new/usr/sbin/nats-server" "$brokers/nats-server"
	fi
	rm -rf "$new"
}

# quietly COMMAND...: shows what the command says only if it fails.
quietly() {
	local out
	out=$("$@" 2>&1) && return
	echo "$out" >&2
	return 1
}

# provide KIND: seeks, and fetches if need be, one process at a time.
provide() (
	seek "$1" && return
	[[ $(id -u) == 0 ]] && type -P apt-get >/dev/null || return 3
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	seek "$1" && return
	echo "$1: no server here, fetching one" >&2
	fetch "$1"
	seek "$1"
)

[[ $# -gt 0 ]] || set -- redis nats
code=0
for kind; do
	case $kind in
	redis | nats) ;;
	*) echo "usage: $0 [redis] [nats]" >&2 && exit 2 ;;
	esac
	provide "$kind" && continue
	code=$?
	echo "$kind: no server found. Install $kind-server; it need not run." >&2
done
exit "$code"
