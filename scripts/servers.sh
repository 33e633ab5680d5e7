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

# serves KIND COMMAND...: the command is a server of the kind (mysqld is often
# MariaDB) and new enough; prints its version.
serves() {
	local kind=$1 out is=mysql oldest=800
	shift
	out=$("$@" --no-defaults --version 2>/dev/null) || return 1
	[[ $out == *MariaDB* ]] && is=mariadb oldest=1006
	[[ $is == "$kind" && $out =~ Ver\ ([0-9]+)\.([0-9]+)[^\ ]* ]] || return 1
	((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] >= oldest)) || return 1
	echo "$kind: ${BASH_REMATCH[0]#Ver }"
}

# unpacked DIR: a MySQL that was unpacked into DIR runs, with the loader and the libraries there.
unpacked() {
	local loader
	for loader in "$1"/usr/lib/*/ld-linux*; do
		serves mysql "$loader" --library-path "${loader%/*}:$1/usr/lib/mysql/private" "$1/usr/sbin/mysqld" && return
	done
	return 1
}

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
	[[ $1 == mysql ]] && unpacked "$cache/mysql"
}

# fetch KIND: installs MariaDB; unpacks MySQL, of which Debian has packages only in sid.
fetch() {
	if [[ $1 == mariadb ]]; then
		install mariadb-server-core
		return
	fi
	type -P mmdebstrap >/dev/null || install mmdebstrap || return
	rm -rf "$cache/mysql" "$cache/mysql.new" # one does not run, the other was interrupted
	quietly mmdebstrap --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' \
		--include=mysql-server-core sid "$cache/mysql.new" &&
		unpacked "$cache/mysql.new" >/dev/null &&
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
