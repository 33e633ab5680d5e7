#!/usr/bin/env bash
# Makes sure that MariaDB 11.8, with Galera, can be found where internal/mysqltest
# looks for it: in the cache (MYSQLLOCK_CACHE, .cache), unpacked from Debian 13.
# Tests that need just this version skip themselves without it.
#
# Fetching: see lib.sh. Exit code 0: it is there. 3: it cannot be had.
. "$(dirname "$0")/lib.sh"
dir=$cache/mariadb-11.8

seek() { serves mariadb loaded "$dir" usr/sbin/mariadbd; }

fetch() {
	rm -rf "$dir" # it does not run
	unpack "$dir.new" trixie mariadb-server-core galera-4 &&
		serves mariadb loaded "$dir.new" usr/sbin/mariadbd >/dev/null &&
		mv "$dir.new" "$dir"
}

provide mariadb-11.8 && exit
echo "mariadb-11.8: not found, and it could not be fetched from Debian 13." >&2
exit 3
