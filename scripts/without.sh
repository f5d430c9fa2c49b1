#!/usr/bin/env bash
# Proves that a feature can be removed: scripts/without.sh NAME [--build]
#
# In a copy of the checkout it removes the feature's folders, and its lines in app/features.go. There the rest must build,
# migrate an empty database, and pass its short tests. No table, trigger, function, variable, kind of job, metric or route
# of the feature may remain. --build stops before the tests. What tests the whole stays out of this: e2e, and that the
# documents, the breaks and the tests of crashes fit all of the code.
set -euo pipefail

declare -A all=(
	[lexicons]="workers/lexicons internal/lexicon internal/web/records"
	[nostr]="consumer/nostr workers/nostr internal/nostr/directory internal/nostr/negentropy internal/nostr/wellknown internal/web/nostr
		internal/archive/frames/nostr_test.go internal/archive/recovery/nostr_test.go
		internal/clickhouse/nostr_test.go app/nostr_test.go"
	[feeds]="internal/ranking/feeds internal/web/feeds"
	[archive]="internal/archive internal/clickhouse" # the index needs the archive
	[clickhouse]="internal/clickhouse"
	[riverui]="internal/web/riverui"
	[cards]="workers/cards internal/links/card"
	[links]="workers/links internal/links internal/ranking internal/web/links workers/cards internal/web/feeds internal/clickhouse" # what needs links, too
)
name=${1:-}
folders=${all[$name]:-}
[ -n "$folders" ] || { echo "usage: $0 NAME [--build], NAME one of: ${!all[*]}" >&2; exit 2; }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$(git rev-parse --show-toplevel)"
git ls-files --cached --others --exclude-standard | while IFS= read -r file; do [ ! -e "$file" ] || echo "$file"; done |
	tar -cf - -T - | tar -xf - -C "$copy"
cd "$copy"

# What the feature has, each name on a line: its objects may not be in the schema of the rest, and what the code names
# may not be a string in the rest.
files=$(find $folders -name '*.sql' -o -name '*.go' ! -name '*_test.go')
objects=$(sed -nE 's/^CREATE (TABLE|VIEW|FUNCTION|TRIGGER) ([a-z_]+).*/\2/p' $files | sort -u)
tables=$(sed -nE 's/^CREATE (TABLE|VIEW) ([a-z_]+).*/\2/p' $files | sort -u)
strings=$(
	{
		sed -nE 's/.*Kind\(\) string \{ return "([a-z_]+)".*/\1/p' $files
		grep -hoE 'WEIR_[A-Z_]+"' $files | tr -d '"' || true
		grep -hoE '"weir_[a-z_]+"' $files | tr -d '"' || true
		grep -hoE '"/((api/v1|xrpc|feed|records)[^"]*[a-z}]|riverui/)"' $files | tr -d '"' || true
	} | sort -u
)
[ -n "$tables$strings" ] || { echo "there is nothing to look for: $folders" >&2; exit 1; }

rm -rf $folders e2e examples breaks_test.go crashpoints_test.go documents_test.go schema/frozen_test.go
for folder in $folders; do
	sed -i "\#\"github.com/weir-social/weir/$folder[/\"]#d; /\b$(basename "$folder")\.[A-Z][a-z]*()/d" app/features.go
done
failed=0
go build ./... || failed=1
go vet ./... || failed=1
[ "$failed" = 1 ] || echo "without $name: the rest and its tests build"
go generate ./schema ./app >/dev/null || failed=1 # what is made from the features
for one in $objects; do
	if grep -nE "^CREATE [A-Z ]+ $one\b" schema/schema.sql; then
		echo "without $name: the schema still has $one"
		failed=1
	fi
done
for one in $tables $strings; do
	without=()
	# A source knows no database: what its servers send may have the same name as a table.
	! grep -qx "$one" <<<"$tables" || without=(--exclude-dir=consumer --exclude-dir=simnet)
	if grep -rnF --include='*.go' --exclude='*_test.go' "${without[@]}" -e "\"$one\"" . | grep -vF "json:\"$one\""; then # no field of JSON
		echo "without $name: the code still names $one"
		failed=1
	fi
done
[ "$failed" = 1 ] || echo "without $name: nothing is left of $(wc -w <<<"$objects $strings") names"
if [ "$failed" = 0 ] && [ "${2:-}" != --build ]; then
	go run ./scripts/suite -short ${PKG:-./...}
	echo "without $name: the short tests pass"
fi
exit "$failed"
