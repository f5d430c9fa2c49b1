#!/usr/bin/env bash
# Fetches the server of ClickHouse for the tests of the archive's index, if it is
# missing. Debian's packages are unpacked into .weir/clickhouse and not installed, so no
# server starts.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
kept=.weir/clickhouse

# found reports whether the server is on PATH or in .weir, where the tests look.
found() {
	local code=0
	PATH="$PATH:/usr/sbin:$PWD/$kept" clickhouse-server --help >/dev/null 2>&1 || code=$?
	[ "$code" != 126 ] && [ "$code" != 127 ] # the server or a library is missing; old versions exit with 78
}

# by_apt also unpacks the libraries that the machine does not have.
by_apt() {
	command -v apt-get >/dev/null || return 1
	echo "ClickHouse is missing: downloading Debian's packages" >&2
	local dir deb
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' RETURN
	fetch() {
		local packages
		packages=$(apt-get install -s --no-install-recommends clickhouse-server | sed -nE 's/^Inst ((clickhouse|lib)[^ ]*).*/\1/p')
		[ -n "$packages" ] || packages="clickhouse-server clickhouse-common"
		# shellcheck disable=SC2086
		(cd "$dir" && apt-get download -q -o APT::Sandbox::User=root $packages >&2)
	}
	fetch || { as_root apt-get update -q >&2 && fetch; } || return 1
	for deb in "$dir"/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
	rm -rf "$kept"
	mkdir -p "$kept/lib"
	find "$dir/root/lib" "$dir/root/usr/lib" -name '*.so*' -exec cp -P {} "$kept/lib/" \;
	cp "$dir/root/usr/sbin/clickhouse-server" "$kept/clickhouse-server.real"
	printf '#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH="$here/lib" exec "$here/clickhouse-server.real" "$@"\n' >"$kept/clickhouse-server"
	chmod +x "$kept/clickhouse-server"
}

found && exit 0
if by_apt && found; then exit 0; fi
echo "ClickHouse could not be fetched. Install it so that clickhouse-server is on PATH, and retry. Without it the tests of the index fail." >&2
exit 1
