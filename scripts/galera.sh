#!/usr/bin/env bash
# Makes sure that the Galera library for the tests of failover/ can be found where
# internal/mysqltest looks for it. The MariaDB server itself: see servers.sh.
# Exit codes and fetching: see lib.sh.
. "$(dirname "$0")/lib.sh"

seek() {
	local path
	for path in /usr/lib/galera/libgalera_smm.so /usr/lib*/galera-4/libgalera_smm.so /usr/lib/*/galera*/libgalera_smm.so; do
		[[ -e $path ]] && echo "galera: $path" && return
	done
	return 1
}

fetch() { install galera-4; }

provide galera && exit
code=$?
echo "galera: no library found. Install galera-4." >&2
exit "$code"
