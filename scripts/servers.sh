#!/usr/bin/env bash
# Makes sure that the servers for demo and tests can be found:
#
#   scripts/servers.sh [mysql] [mariadb]     (without arguments: both)
#
# Looks where internal/mysqltest looks: a DSN in the environment, a binary on
# the machine, a MySQL unpacked into the cache (MYSQLLOCK_CACHE, .cache).
#
# Exit codes and fetching: see lib.sh, but for 3: not all, but Docker answers; and
# 1: not all, no Docker.
. "$(dirname "$0")/lib.sh"

# seek KIND: prints the first server of the kind, if there is one.
seek() {
	local names=mysqld name path dsn
	dsn=MYSQLLOCK_TEST_$(tr '[:lower:]' '[:upper:]' <<<"$1")_DSN
	if [[ -n ${!dsn:-} ]]; then
		echo "$1: the server of $dsn"
		return
	fi
	[[ $1 == mariadb ]] && names="mariadbd mysqld"
	for name in $names; do
		for path in "$(type -P "$name")" {/usr/sbin,/usr/local/sbin,/usr/libexec}/"$name"; do
			[[ -x $path ]] && serves "$1" "$path" && return
		done
	done
	[[ $1 == mysql ]] && serves mysql loaded "$cache/mysql" usr/sbin/mysqld
}

# fetch KIND: installs MariaDB; unpacks MySQL, of which Debian has packages only in sid.
fetch() {
	if [[ $1 == mariadb ]]; then
		install mariadb-server-core
		return
	fi
	rm -rf "$cache/mysql" # it does not run
	unpack "$cache/mysql.new" sid mysql-server-core &&
		serves mysql loaded "$cache/mysql.new" usr/sbin/mysqld >/dev/null &&
		mv "$cache/mysql.new" "$cache/mysql"
}

[[ $# -gt 0 ]] || set -- mysql mariadb
missing=()
for kind; do
	case $kind in
	mysql | mariadb) provide "$kind" || missing+=("$kind") ;;
	*) echo "usage: $0 [mysql] [mariadb]" >&2 && exit 2 ;;
	esac
done
[[ ${#missing[@]} == 0 ]] && exit

for kind in "${missing[@]}"; do
	dsn=MYSQLLOCK_TEST_$(tr '[:lower:]' '[:upper:]' <<<"$kind")_DSN
	echo "$kind: no server found. Install one (mysqld 8 or later, mariadbd 10.6 or later), or set $dsn to the DSN of one." >&2
done
if docker info >/dev/null 2>&1; then
	echo "Docker answers: \`make integration\` runs the tests in containers." >&2
	exit 3
fi
echo "Or start Docker and run \`make integration\`." >&2
exit 1
