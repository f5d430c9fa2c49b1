#!/usr/bin/env bash
# Installs PgBouncer, which the tests put in front of Postgres, if it is missing:
# with the package manager, or without root on Debian by unpacking the packages
# into .weir/pgbouncer. The tests search the same places.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

kept=.weir/pgbouncer

found() {
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || [ -x /usr/local/sbin/pgbouncer ] || [ -x "$kept/pgbouncer" ]
}

by_apt() {
	command -v apt-get >/dev/null || return 1
	echo "PgBouncer is missing: installing it with apt" >&2
	apt_install pgbouncer
}

by_dnf() {
	command -v dnf >/dev/null || return 1
	echo "PgBouncer is missing: installing it with dnf" >&2
	as_root dnf install -y -q pgbouncer >&2
}

by_brew() {
	command -v brew >/dev/null || return 1
	echo "PgBouncer is missing: installing it with brew" >&2
	brew install -q pgbouncer >&2
}

# Unpacking Debian's packages needs no root.
by_unpacking() {
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
	echo "PgBouncer is missing: unpacking Debian's packages into $kept" >&2
	local packages dir deb
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' RETURN
	packages=$(apt-cache depends pgbouncer | sed -nE 's/^ *Depends: (lib(event|c-ares|cares)[^ ]*)$/\1/p')
	# shellcheck disable=SC2086
	(cd "$dir" && apt-get download -q pgbouncer $packages >&2) || return 1
	for deb in "$dir"/*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
	mkdir -p "$kept"
	cp "$dir/root/usr/sbin/pgbouncer" "$kept/pgbouncer.real"
	find "$dir/root/usr/lib" -name '*.so*' -exec cp -P {} "$kept/" \;
	printf '#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH="$here" exec "$here/pgbouncer.real" "$@"\n' >"$kept/pgbouncer"
	chmod +x "$kept/pgbouncer"
	"$kept/pgbouncer" --version >&2
}

found && exit 0
for way in by_brew by_apt by_dnf by_unpacking; do
	if "$way" && found; then exit 0; fi
done
echo "PgBouncer could not be installed. Install it so that pgbouncer is on PATH, and retry. Without it the pooler tests fail." >&2
