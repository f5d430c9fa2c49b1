#!/usr/bin/env bash
# Checks what scripts/release.sh wrote: scripts/release_check.sh [FOLDER], as root on a Debian, with its mirror and Go's.
#
# The sums hold. The same commit, built again in another folder with an empty build cache, has the same ones. go install
# works with an empty module cache. On a Debian that debootstrap makes, without Go, the package can be installed, used
# and removed, and weir demo runs from the archive.
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
dist=$(realpath "${1:-dist}")
module=github.com/weir-social/weir
version=$(cat "$dist/proxy/$module/@v/list")
[ "$(id -u)" = 0 ] || { echo "only root can make another Debian: run it as root" >&2; exit 1; }
command -v debootstrap >/dev/null || apt-get install -y -q --no-install-recommends debootstrap
work=$(mktemp -d)
debian=$work/debian
clean() {
	for at in proc dev/shm; do ! mountpoint -q "$debian/$at" || umount --lazy "$debian/$at"; done
	rm -rf --one-file-system "$work"
}
trap clean EXIT

(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
echo "the sums hold"

GOMODCACHE="$work/mod" GOPROXY="file://$dist/proxy,$(go env GOPROXY)" GONOSUMDB=$module GOBIN="$work/bin" CGO_ENABLED=0 \
	GOFLAGS='-trimpath -modcacherw' go -C "$work" install "$module/cmd/weir@$version"
"$work/bin/weir" version | grep -x "weir $version"
echo "go install works"

read -r mirror suite < <(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
	grep -v -- '-[a-z]*$' | head -1)
debootstrap --variant=minbase "$suite" "$debian" "$mirror" >"$work/log" || { tail "$work/log" >&2; exit 1; }
mount -t proc proc "$debian/proc"
mount -t tmpfs tmpfs "$debian/dev/shm"
printf '#!/bin/sh\nexit 101\n' >"$debian/usr/sbin/policy-rc.d" # no service starts
chmod +x "$debian/usr/sbin/policy-rc.d"
cp /etc/resolv.conf /etc/hosts "$debian/etc"
arch=$(dpkg --print-architecture)
cp "$dist/weir_${version#v}_$arch.deb" "$debian/tmp/weir.deb"
cp "$dist/weir_${version#v}_linux_$arch.tar.gz" "$debian/tmp/weir.tar.gz"

cat >"$debian/tmp/check" <<'CHECK'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
apt-get update -q >/dev/null
apt-get install -y -q --no-install-recommends systemd >/dev/null
apt-get install -y -q /tmp/weir.deb >/dev/null # and PostgreSQL, which it recommends
! command -v go
weir version | grep -x "weir $1"
[ -z "$(dpkg-query --show --showformat='${Depends}' weir)" ]
getent passwd weir
stat --format='%a %U %n' /etc/weir/weir.env | grep '^600 root '
for unit in weir.service weir-work@.service; do
	[ -z "$(systemd-analyze verify --man=no --recursive-errors=no "/usr/lib/systemd/system/${unit/@/@1}" 2>&1 | tee /dev/stderr)" ]
done
echo "the package is installed, and systemd accepts its units"

pg_ctlcluster "$(ls /usr/lib/postgresql)" main start
as_postgres() { runuser -u postgres -- "$@"; }
as_postgres createdb weir
as_postgres psql --quiet weir --set ON_ERROR_STOP=1 </usr/share/weir/deploy/roles.sql
as_postgres psql --quiet weir --command "ALTER ROLE weir_owner PASSWORD 'o'" --command "ALTER ROLE weir_app PASSWORD 'a'"
DATABASE_URL=postgres://weir_owner:o@localhost/weir weir migrate
as_postgres psql --quiet weir --set ON_ERROR_STOP=1 </usr/share/weir/deploy/roles.sql
echo DATABASE_URL=postgres://weir_app:a@localhost/weir >>/etc/weir/weir.env
set -a
. /etc/weir/weir.env
set +a
runuser -u weir -- weir watch list
unset DATABASE_URL
pg_ctlcluster "$(ls /usr/lib/postgresql)" main stop
apt-get install -y -q --reinstall /tmp/weir.deb >/dev/null
grep -q weir_app:a@ /etc/weir/weir.env
apt-get purge -y -q weir >/dev/null
[ ! -e /etc/weir ] && [ ! -e /usr/bin/weir ]
echo "the package's Weir works with a database, keeps its settings, and can be removed"

cat >/tmp/demo <<'DEMO'
set -euo pipefail
cd "$(mktemp -d)"
tar -xzf /tmp/weir.tar.gz --strip-components=1
WEIR_LISTEN=127.0.0.1:0 ./weir demo >log 2>&1 &
trap 'cat log >&2' ERR
for _ in $(seq 120); do
	if ./weir trending 2>/dev/null | grep '^ *1\.'; then break; fi
	sleep 1 # the demo starts Postgres and shares links
done
./weir trending | grep -q '^ *1\.'
kill $!
wait $!
DEMO
useradd --create-home user
for user in user root; do
	runuser -u "$user" -- bash /tmp/demo
	echo "weir demo runs as $user"
done
CHECK
chroot "$debian" bash /tmp/check "$version"

mkdir "$work/tmp" "$work/cache"
TMPDIR="$work/tmp" GOCACHE="$work/cache" scripts/release.sh "$version" "$work/again"
diff "$dist/SHA256SUMS" "$work/again/SHA256SUMS"
echo "built again, $version is the same"
