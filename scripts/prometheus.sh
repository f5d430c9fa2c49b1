#!/usr/bin/env bash
# Installs Prometheus's binaries (prometheus and promtool, 2.42 or newer) for the
# tests of the alerts and the dashboard, if they are missing. Debian's package is
# unpacked into .weir/prometheus and not installed, so no server starts.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
kept=.weir/prometheus

# found reports whether the binaries are on PATH or in .weir, where the tests look.
found() {
	PATH="$PATH:$PWD/$kept/usr/bin"
	prometheus --version >/dev/null 2>&1 && promtool --version >/dev/null 2>&1
}

by_apt() {
	command -v apt-get >/dev/null || return 1
	echo "Prometheus is missing: downloading Debian's package" >&2
	local dir
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' RETURN
	fetch() { (cd "$dir" && apt-get download -q -o APT::Sandbox::User=root prometheus >&2); }
	fetch || { as_root apt-get update -q >&2 && fetch; } || return 1
	mkdir -p "$kept"
	dpkg -x "$dir"/prometheus_*.deb "$kept"
}

by_brew() {
	command -v brew >/dev/null || return 1
	echo "Prometheus is missing: installing it with brew" >&2
	brew install -q prometheus >&2
}

found && exit 0
for way in by_brew by_apt; do
	if "$way" && found; then exit 0; fi
done
echo "Prometheus could not be installed. Install 2.42 or newer so that prometheus and promtool are on PATH, and retry." >&2
exit 1
