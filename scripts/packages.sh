# What the scripts that install programs share; each sources it.

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

# apt_install PACKAGE…: without recommended packages, and starting no service
apt_install() {
	command -v apt-get >/dev/null || return 1
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || return 1
	as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends "$@" >&2
}
