#!/usr/bin/env bash
# Builds a release of the last commit: scripts/release.sh v0.1.0 [FOLDER]
#
# The folder (dist) gets an archive for each platform with its SBOM, Debian packages, a container image, the module as
# a module proxy serves it, and SHA256SUMS. Nothing in it depends on the folder, the user or the time: who builds the
# same commit and version with the same Go on a Linux with the same CA certificates gets the same sums.
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"

version=${1:-} dist=$(realpath -m "${2:-dist}")
[[ $version =~ ^v[01](\.(0|[1-9][0-9]*)){2}(-[0-9a-z.]+)?$ ]] || { echo "usage: $0 VERSION [FOLDER], VERSION such as v0.1.0" >&2; exit 2; }
commit=$(git rev-parse HEAD)
tagged=$(git rev-parse --quiet --verify "refs/tags/$version^{commit}") || tagged=$commit
[ "$tagged" = "$commit" ] || { echo "$version is commit $tagged, and this is $commit: check that one out, or choose the next version" >&2; exit 1; }
[ -z "$(ls -A "$dist" 2>/dev/null)" ] || [ -e "$dist/SHA256SUMS" ] || { echo "$dist holds no release: choose another folder" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || echo "uncommitted changes are no part of the release" >&2
module=github.com/weir-social/weir
heaviest=45000000 # bytes of a binary
certificates=/etc/ssl/certs/ca-certificates.crt

for needed in go git tar gzip "$certificates"; do
	command -v "$needed" >/dev/null || [ -f "$needed" ] || { echo "$needed is missing" >&2; exit 1; }
done
tar --version | grep -q GNU || { echo "a release is built with GNU tar, on Linux" >&2; exit 1; }
umask 022
work=$(mktemp -d)
trap 'kill "${registry_PID:-}" 2>/dev/null || true; chmod -R u+w "$work"; rm -rf "$work"' EXIT
out=$work/out
mkdir "$out" "$work/tools"

# A clean checkout, where the commit has the tag: Go stamps the version, the commit and its time on the binary.
git clone --quiet --no-tags --no-checkout . "$work/src"
cd "$work/src"
git checkout --quiet --detach "$commit"
git tag --no-sign "$version"
unset GOOS GOARCH GOEXPERIMENT GOTOOLDIR
export CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off GOAMD64=v1 GOARM64=v8.0 LC_ALL=C TZ=UTC
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# The tools, pinned. None is part of go.mod.
for tool in github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 \
	github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 github.com/google/go-containerregistry/cmd/crane@v0.22.1; do
	GOBIN="$work/tools" go install "$tool"
done
PATH="$work/tools:$PATH"
go mod download

# pack FOLDER [NAME...] writes a tar of the folder's files that is the same everywhere.
pack() {
	local folder=$1
	shift
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -C "$folder" -cf - "${@:-.}"
}

# licences FOLDER copies the licence of Go and of each module that is linked, and those of packages that have their own.
licences() {
	mkdir -p "$1/go"
	cp "$(go env GOROOT)/LICENSE" "$1/go"
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}} {{$.Dir}}{{end}}{{end}}' ./cmd/weir | sort -u |
		while read -r name root dir; do
			while :; do
				for file in $(find "$dir" -maxdepth 1 -type f ! -name '*.go' \
					\( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'patents*' \)); do
					install -D --mode=644 "$file" "$1/$name${file#"$root"}"
				done
				[ "$dir" != "$root" ] || break
				dir=$(dirname "$dir")
			done
			[ -d "$1/$name" ] || { echo "$name has no licence" >&2; exit 1; }
		done
}

# archive PLATFORM builds the binary of a platform, its SBOM and its archive.
archive() {
	local name="weir_${version#v}_${1/\//_}" size
	local folder="$work/$name"
	export GOOS=${1%/*} GOARCH=${1#*/}
	mkdir "$folder"
	go build -buildvcs=true -ldflags='-s -w' -o "$folder/weir" ./cmd/weir
	size=$(stat --format=%s "$folder/weir")
	[ "$size" -lt "$heaviest" ] || { echo "$name has $size bytes: at most $heaviest are allowed" >&2; exit 1; }
	cyclonedx-gomod app -json -licenses -std -noserial -notimestamp -main cmd/weir -output "$out/$name.cdx.json" .
	licences "$folder/licences"
	cp -r LICENSE README.md CHANGELOG.md ARCHITECTURE.md GLOSSARY.md CONTRIBUTING.md docs deploy "$folder"
	cp cmd/weir/settings/reader.env "$folder/weir.env.example"
	pack "$work" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
	echo "$name: $size bytes"
	unset GOOS GOARCH
}

# debian ARCH packs the archive's files for Debian, where programs of packages are in /usr/bin.
debian() {
	cd "$work/weir_${version#v}_linux_$1"
	sed -i 's#/usr/local/bin/weir#/usr/bin/weir#' deploy/systemd/*.service
	ARCH=$1 VERSION=${version#v} nfpm package --packager deb --config deploy/debian/nfpm.yaml --target "$out/weir_${version#v}_$1.deb" >/dev/null
	cd "$work/src"
}

# image writes a multi-platform image: what the Dockerfile makes, without a container engine and its health check.
image() {
	local folder tag line
	coproc registry { exec crane registry serve --address 127.0.0.1:0 2>&1; }
	read -r line <&"${registry[0]}"
	local at="127.0.0.1:${line##*[^0-9]}/weir"
	for arch in amd64 arm64; do
		folder="$work/image-$arch" tag="$at:$arch"
		mkdir -p "$folder"/{etc/ssl/certs,usr/local/bin,usr/share/doc/weir}
		cp "$work/weir_${version#v}_linux_$arch/weir" "$folder/usr/local/bin"
		cp "$certificates" "$folder/etc/ssl/certs"
		cp -r "$work/weir_${version#v}_linux_$arch/licences" "$work/src/LICENSE" "$folder/usr/share/doc/weir"
		echo "nobody:x:65532:65532:nobody:/:/usr/sbin/nologin" >"$folder/etc/passwd"
		echo "nobody:x:65532:" >"$folder/etc/group"
		mkdir -p "$work/folders"/{archive,lexicons,tmp}
		pack "$folder" etc usr >"$folder/files.tar"
		tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=65532 --group=65532 --numeric-owner --format=gnu \
			-C "$work/folders" -cf "$folder/folders.tar" archive lexicons tmp
		crane append --oci-empty-base --new_layer "$folder/files.tar,$folder/folders.tar" --new_tag "$tag"
		crane mutate "$tag" --set-platform "linux/$arch" --user 65532:65532 --exposed-ports 8080 --entrypoint /usr/local/bin/weir --cmd serve \
			--label "org.opencontainers.image.version=$version,org.opencontainers.image.revision=$commit,org.opencontainers.image.source=https://$module,org.opencontainers.image.licenses=MIT" \
			--tag "$tag"
	done >/dev/null 2>&1
	crane index append --docker-empty-base=false --manifest "$at:amd64" --manifest "$at:arm64" --tag "$at:$version" >/dev/null 2>&1
	crane pull --format=oci "$at:$version" "$work/oci" 2>/dev/null
	pack "$work/oci" >"$out/weir_${version#v}_image.tar"
	echo "image: $(crane digest "$at:$version")" | tee "$out/weir_${version#v}_image.digest"
}

# proxy writes the module as a module proxy serves it.
proxy() {
	local folder="$out/proxy/$module/@v"
	mkdir -p "$folder"
	echo "$version" >"$folder/list"
	echo "{\"Version\":\"$version\",\"Time\":\"$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)\"}" >"$folder/$version.info"
	cp go.mod "$folder/$version.mod"
	local nested=() # a module inside of this one is not part of it
	for mod in $(git ls-files '*/go.mod'); do nested+=(":(exclude)${mod%/go.mod}"); done
	git archive --format=zip --prefix="$module@$version/" --output="$folder/$version.zip" HEAD . "${nested[@]}"
}

for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do archive "$platform"; done
debian amd64
debian arm64
image
proxy
cd "$out"
find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >"$work/sums"
cp "$work/sums" SHA256SUMS
rm -rf "$dist"
mkdir -p "$(dirname "$dist")"
mv "$out" "$dist"
echo "$version is in $dist"
