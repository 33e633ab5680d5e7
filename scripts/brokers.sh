#!/usr/bin/env bash
# Makes sure that the message servers for the tests of notify/ can be found:
#
#   scripts/brokers.sh [redis] [nats]     (without arguments: both)
#
# Looks where internal/mysqltest looks: on the machine, and in the cache
# (MYSQLLOCK_CACHE, .cache). Exit codes and fetching: see lib.sh.
. "$(dirname "$0")/lib.sh"
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
	mkdir -p "$brokers" || return
	if [[ $1 == redis ]]; then
		install redis-tools && ln -sf "$(type -P redis-check-rdb)" "$brokers/redis-server"
		return
	fi
	local new=$brokers/new
	rm -rf "$new" && mkdir "$new" && aptget update &&
		(cd "$new" && aptget download nats-server && dpkg-deb -x ./*.deb .) &&
		mv "$new/usr/sbin/nats-server" "$brokers/nats-server" &&
		rm -rf "$new"
}

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
