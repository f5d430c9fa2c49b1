#!/usr/bin/env bash
# Installs what the browser tests need, if it is missing: Chromium, with the package
# manager, and axe-core, which checks the accessibility of pages, into
# .weir/axe-core. Neither is part of Weir. If there is a choice, it installs the headless
# Chromium, which needs two thirds of the CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

axe=4.14.1
axe_sha512=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
kept=.weir/axe-core

browser() { command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome; }

by_dnf() { command -v dnf >/dev/null && as_root dnf install -y -q "$@" >&2; }

by_brew() { command -v brew >/dev/null && brew install -q "$@" >&2; }

if ! browser >/dev/null; then
	echo "Chromium is missing: installing it" >&2
	apt_install chromium-headless-shell || apt_install chromium || by_dnf chromium || by_brew chromium || true
	browser >/dev/null || { echo "Chromium could not be installed. Install it so that chromium is on PATH, and retry. Without it the browser tests fail." >&2; exit 1; }
fi

# The hash covers the package, so any registry or mirror may serve it.
sha512() { if command -v sha512sum >/dev/null; then sha512sum "$1"; else shasum -a 512 "$1"; fi; }
valid() { [ "$(sha512 "$1" | cut -d' ' -f1)" = "$axe_sha512" ]; }

if [ ! -f "$kept/axe-$axe.min.js" ]; then
	echo "axe-core is missing: downloading it with npm" >&2
	command -v npm >/dev/null || apt_install npm || by_dnf npm || by_brew node || true
	command -v npm >/dev/null || { echo "npm is missing. Install it and retry. Without axe-core the browser tests fail." >&2; exit 1; }
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	npm pack --silent --pack-destination "$dir" "axe-core@$axe" >/dev/null
	valid "$dir/axe-core-$axe.tgz" || { echo "axe-core $axe has an unexpected hash, so it is not used." >&2; exit 1; }
	tar -xzf "$dir/axe-core-$axe.tgz" -C "$dir" package/axe.min.js
	mkdir -p "$kept"
	mv "$dir/package/axe.min.js" "$kept/axe-$axe.min.js"
fi
