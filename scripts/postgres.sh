#!/usr/bin/env bash
# Prints the folder of PostgreSQL's server binaries (initdb and postgres), 15 or
# newer, or of the major version given as an argument. If they are missing, it
# installs them with the package manager, or downloads them into .weir/pgsql.
# devpg searches the same places.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

oldest=15
newest=18
major="${1:-$newest}" # to download
kept="$PWD/.weir/pgsql"
[ "$(id -u)" = 0 ] && kept=/opt/weir/pgsql # readable by the unprivileged account that runs the server

# folder prints the first of the usual places that has a suitable server.
folder() {
	local bin version path
	path=$(command -v initdb || echo /nowhere/initdb)
	for bin in "$(dirname "$(readlink -f "$path" || echo "$path")")" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin /Applications/Postgres.app/Contents/Versions/*/bin \
		"$PWD"/.weir/pgsql/*/bin /opt/weir/pgsql/*/bin; do
		[ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] || continue
		version=$("$bin/postgres" --version | sed -nE 's/.*\(PostgreSQL\) ([0-9]+).*/\1/p') || continue
		[ "${version:-0}" -ge "${1:-$oldest}" ] && [ "$version" -le "${1:-$version}" ] || continue
		echo "$bin"
		return
	done
	return 1
}

# Installing a server must not start one or create a cluster.
by_apt() {
	command -v apt-get >/dev/null || return 1
	echo "PostgreSQL is missing: installing it with apt" >&2
	apt_install postgresql-common || return 1
	as_root sed -i "s/^#\?create_main_cluster.*/create_main_cluster = false/" /etc/postgresql-common/createcluster.conf || true
	apt_install postgresql
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

# release prints the release to download for the major version: the server without
# its clients, built by the project zonky and repackaged as npm's @embedded-postgres.
release() {
	case "$major" in 15) echo 15.18.0 ;; 16) echo 16.14.0 ;; 17) echo 17.10.0 ;; 18) echo 18.4.0 ;; *) return 1 ;; esac
}

# npm verifies its downloads. Its packages cannot contain symbolic links, so a file
# lists them.
by_npm() {
	local version os arch dir source target
	[ -z "${WEIR_PG_BINARIES_URL:-}" ] && [ ! -f /etc/alpine-release ] && command -v npm >/dev/null && version=$(release) || return 1
	case "$(uname -s)" in Linux) os=linux ;; Darwin) os=darwin ;; *) return 1 ;; esac
	case "$(uname -m)" in x86_64 | amd64) arch=x64 ;; aarch64 | arm64) arch=arm64 ;; *) return 1 ;; esac
	echo "PostgreSQL $version is missing: downloading its binaries with npm" >&2
	mkdir -p "$kept"
	dir=$(mktemp -d "$kept/XXXXXX")
	trap 'rm -rf "$dir"' RETURN
	npm pack --silent --pack-destination "$dir" "@embedded-postgres/$os-$arch@$version-beta.17" >/dev/null || return 1
	tar -xzf "$dir"/*.tgz -C "$dir" || return 1
	sed 's/},*/\n/g' "$dir/package/native/pg-symlinks.json" | sed -nE 's/.*"source":"([^"]*)","target":"([^"]*)".*/\1 \2/p' |
		while read -r source target; do ln -s "$(basename "$source")" "$dir/package/$target"; done
	keep "$dir/package/native"
}

# Maven Central has a jar (a zip) that contains a tar.
by_maven() {
	local version os arch name jar dir
	version=$(release) || return 1
	case "$(uname -s)" in Linux) os=linux ;; Darwin) os=darwin ;; *) return 1 ;; esac
	case "$(uname -m)" in x86_64 | amd64) arch=amd64 ;; aarch64 | arm64) arch=arm64v8 ;; *) return 1 ;; esac
	[ -f /etc/alpine-release ] && arch="$arch-alpine"
	name="embedded-postgres-binaries-$os-$arch"
	echo "PostgreSQL $version is missing: downloading its binaries ($name)" >&2
	mkdir -p "$kept"
	dir=$(mktemp -d "$kept/XXXXXX")
	trap 'rm -rf "$dir"' RETURN
	jar="$dir/postgres.jar"
	curl -fsSL --retry 2 --max-time 300 -o "$jar" \
		"${WEIR_PG_BINARIES_URL:-https://repo1.maven.org/maven2/io/zonky/test/postgres}/$name/$version/$name-$version.jar" || return 1
	if command -v unzip >/dev/null; then unzip -q "$jar" -d "$dir"; else python3 -m zipfile -e "$jar" "$dir"; fi || return 1
	mkdir "$dir/native"
	tar -xJf "$dir"/*.txz -C "$dir/native" || return 1
	keep "$dir/native"
}

# keep moves a folder to the place of its version, readable by everyone.
keep() {
	chmod -R a+rX "$1"
	rm -rf "${kept:?}/$major"
	mv "$1" "$kept/$major"
}

folder "$@" && exit
ways="by_brew by_apt by_dnf by_npm by_maven"
[ $# -gt 0 ] && ways="by_npm by_maven" # a package manager offers one version
for way in $ways; do
	if "$way" && folder "$@"; then exit; fi
done
echo "PostgreSQL's server could not be installed. Install PostgreSQL ${1:-$oldest or newer} so that initdb and postgres are on PATH, and retry." >&2
exit 1
