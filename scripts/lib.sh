# shellcheck shell=bash
# What the scripts beside this have in common; they source it. Each makes sure of
# things that it looks for with its function seek, and gets with fetch: by apt, if
# it is there and we are root. No service is installed or started.
#
# Exit code of each: 0: all is there. 3: it is not, and there is nothing to fetch it
# with. 1: fetching failed. 2: usage.
set -euo pipefail

# MySQL and the brokers are unpacked here; internal/mysqltest looks for them.
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
