# shellcheck shell=bash
# What the scripts beside this have in common; they source it. Each makes sure of
# things that it looks for with its function seek, and gets with fetch: by apt, if
# it is there and we are root. No service is installed or started.
#
# Exit code of each: 0: all is there. 3: it is not, and there is nothing to fetch it
# with. 1: fetching failed. 2: usage.
set -euo pipefail

# What is unpacked is here; internal/mysqltest looks for it.
cache=${MYSQLLOCK_CACHE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.cache}

# provide THING: seeks it, and fetches it if need be, one process at a time.
# It fails as the script has to.
provide() (
	seek "$1" && exit
	[[ $(id -u) == 0 ]] && type -P apt-get >/dev/null || exit 3
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	seek "$1" && exit
	echo "$1: not here, fetching it" >&2
	fetch "$1" && seek "$1" || exit 1
)

# install PACKAGE...
install() {
	aptget update && DEBIAN_FRONTEND=noninteractive aptget install -y --no-install-recommends "$@"
}

# unpack DIR SUITE PACKAGE...: packages of a Debian release, with all that they
# need, into DIR. Nothing is installed.
unpack() {
	local dir=$1 suite=$2 packages
	packages=$(IFS=, && echo "${*:3}")
	type -P mmdebstrap >/dev/null || install mmdebstrap || return
	rm -rf "$dir" # what was interrupted
	quietly mmdebstrap --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' \
		--include="$packages" "$suite" "$dir"
}

# loaded DIR FILE ARGUMENT...: runs a program that was unpacked into DIR, with the
# loader and the libraries there.
loaded() {
	local dir=$1 file=$2 loader
	for loader in "$dir"/usr/lib/*/ld-linux*; do
		"$loader" --library-path "${loader%/*}:$dir/usr/lib/mysql/private:$dir/usr/lib/mysql-router" "$dir/$file" "${@:3}" && return
	done
	return 1
}

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

# aptget ARGUMENT...: one on the machine at a time. Of the locks of apt-get, some
# fail at once if another has them.
aptget() {
	quietly flock --close /var/lib/apt apt-get -o DPkg::Lock::Timeout=300 "$@"
}

# quietly COMMAND...: shows what the command says only if it fails.
quietly() {
	local out
	out=$("$@" 2>&1) && return
	echo "$out" >&2
	return 1
}
