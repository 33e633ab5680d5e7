#!/usr/bin/env bash
# Makes sure that the Galera library for the tests of failover/ can be found where
# internal/mysqltest looks for it. The MariaDB server itself: see scripts/servers.sh.
# What is missing is fetched by apt, if it is there and we are root. The package is
# a library: no service is installed or started.
#
# Exit code 0: found. 3: not, and nothing to fetch it with. 1: fetching failed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${MYSQLLOCK_CACHE:-$root/.cache}

seek() {
	local path
	for path in /usr/lib/galera/libgalera_smm.so /usr/lib*/galera-4/libgalera_smm.so /usr/lib/*/galera*/libgalera_smm.so; do
		[[ -e $path ]] && echo "galera: $path" && return
	done
	return 1
}

# quietly COMMAND...: shows what the command says only if it fails.
quietly() {
	local out
	out=$("$@" 2>&1) && return
	echo "$out" >&2
	return 1
}

seek && exit
if [[ $(id -u) != 0 ]] || ! type -P apt-get >/dev/null; then
	echo "galera: no library found. Install galera-4." >&2
	exit 3
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # one process at a time
seek && exit
echo "galera: no library here, fetching it" >&2
quietly apt-get update
DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends galera-4
seek
