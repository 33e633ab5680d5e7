#!/usr/bin/env bash
# Installs a C compiler, which `go test -race` needs.
set -euo pipefail

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null
	exit
fi
echo "go test -race needs a C compiler: install gcc, or run as root on Debian or Ubuntu" >&2
exit 1
