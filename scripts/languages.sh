#!/usr/bin/env bash
# Installs what the tests of the examples in other languages need, if it is missing: Python and Node with the package
# manager, and TypeScript's compiler with npm, into .weir/typescript. None is part of Weir.
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.9.3
sha512=8e5d6f6733c38a72ebf5e52ddc9feded5e8580d130f508ef04f772b33f4a7d00c3e357d0ac2d98e2f290762694a454f86d795bd511e12e9a7cc2d9ba3394e04b
kept=.weir/typescript

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

# install PROGRAM PACKAGE: the package's name with apt, dnf and brew
install() {
	command -v "$1" >/dev/null && return
	echo "$1 is missing: installing it" >&2
	if command -v apt-get >/dev/null; then
		as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 &&
			as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$2" >&2 || true
	elif command -v dnf >/dev/null; then as_root dnf install -y -q "$2" >&2 || true
	elif command -v brew >/dev/null; then brew install -q "${2/nodejs/node}" >&2 || true; fi
	command -v "$1" >/dev/null || { echo "$1 could not be installed. Install it and retry. Without it the tests of examples/client fail." >&2; exit 1; }
}

install python3 python3
install node nodejs
[ -f "$kept/$version/lib/tsc.js" ] && exit 0
install npm npm

# The hash covers the package, so any registry or mirror may serve it.
echo "TypeScript's compiler is missing: downloading it with npm" >&2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
npm pack --silent --pack-destination "$dir" "typescript@$version" >/dev/null
if command -v sha512sum >/dev/null; then found=$(sha512sum "$dir/typescript-$version.tgz"); else found=$(shasum -a 512 "$dir/typescript-$version.tgz"); fi
[ "${found%% *}" = "$sha512" ] || { echo "TypeScript $version has an unexpected hash, so it is not used." >&2; exit 1; }
tar -xzf "$dir/typescript-$version.tgz" -C "$dir"
rm -rf "$kept"
mkdir -p "$kept/$version"
mv "$dir/package/lib" "$kept/$version/lib"
