#!/usr/bin/env bash
# Installs what the tests of the examples in other languages need with the package manager, if it is missing: Python and
# Node. Neither is part of Weir.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

# install PROGRAM PACKAGE: the package's name with apt, dnf and brew
install() {
	command -v "$1" >/dev/null && return
	echo "$1 is missing: installing it" >&2
	if command -v apt-get >/dev/null; then apt_install "$2" || true
	elif command -v dnf >/dev/null; then as_root dnf install -y -q "$2" >&2 || true
	elif command -v brew >/dev/null; then brew install -q "${2/nodejs/node}" >&2 || true; fi
	command -v "$1" >/dev/null || { echo "$1 could not be installed. Install it and retry. Without it the tests of examples/client fail." >&2; exit 1; }
}

install python3 python3
install node nodejs
