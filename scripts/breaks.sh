#!/usr/bin/env bash
# Applies each break of scripts/breaks.txt to a copy of the checkout, one after the other, and requires that the test
# that it names fails. Arguments are regular expressions that select breaks by their name, package, test or file.
#
# First, the named tests must pass, or a red one proves nothing. A break whose lines do not occur exactly once is an
# error, and so is one that does not compile: the list is changed with the code. With -n, nothing is run: it checks only
# that every break can be applied and that its test exists.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
flags=(-vet=off -ldflags='-s -w')

# breaks prints the name, the package, the test and the file of every break, or the file of one break with that break
# applied. It fails if one cannot be applied.
breaks() {
	LC_ALL=C awk -v applied="${1:-}" '
		function content(path,   text, line) {
			for (text = "\n"; (getline line < path) > 0;) text = text line "\n"
			close(path)
			return text
		}
		function finish(   text, at) {
			if (name == "" || applied != "" && applied != name) return
			old = old "\n"; text = content(file); at = index(text, old)
			if (old == "\n" || !at || index(substr(text, at + 1), old)) {
				print "PROBLEM  " name ": its lines are not in the file " file ", or more than once" > "/dev/stderr"
				failed = 1
			} else if (applied != "") {
				printf "%s", substr(substr(text, 1, at - 1) new "\n" substr(text, at + length(old)), 2)
			} else {
				print name, package, test, file
			}
		}
		/^== / { finish(); name = $2; package = test = file = "-"; old = new = "" }
		name == "" { next }
		/^file: / { file = $2 }
		/^test: / { package = $2; test = $3 }
		/^[- ]/ { old = old "\n" substr($0, 2) }
		/^[+ ]/ { new = new "\n" substr($0, 2) }
		END { finish(); exit failed }' scripts/breaks.txt
}

all=$(breaks) || exit 1
tests=$(grep -rsoE --include='*_test.go' '^func Test[A-Za-z0-9_]+' . | sed -E 's|/[^/]*:func | |')
missing=$(cut -d' ' -f2,3 <<<"$all" | sort -u | grep -vxFf <(echo "$tests")) && { echo "PROBLEM  there is no test $missing"; exit 1; }
[ "${1:-}" != -n ] || { echo "$(wc -l <<<"$all") breaks can be applied"; exit 0; }
chosen=$(grep -E "$(IFS='|' && echo "$*")" <<<"$all") || { echo "no break matches $*"; exit 1; }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
	tar --null -cf - -T - | tar -xf - -C "$copy"
cd "$copy" || exit 1
failed=0
problem() {
	printf '%-8s %s: %s\n' PROBLEM "$1" "$2"
	failed=$((failed + 1))
}

while read -r package <&3; do
	run=$(awk -v package="$package" '$2 == package { print $3 }' <<<"$chosen" | sort -u)
	output=$(go test "${flags[@]}" -v -timeout 20m -run "^($(paste -sd'|' - <<<"$run"))\$" "$package" 2>&1)
	for test in $run; do
		grep -q "^--- PASS: $test " <<<"$output" && printf '%-8s %s\n' green "$package $test" && continue
		problem "$package $test" "does not pass on unbroken code"
		red=1
	done
	[ -z "${red:-}" ] || { echo "$output"; break; }
done 3< <(cut -d' ' -f2 <<<"$chosen" | sort -u)
[ $failed -eq 0 ] || exit 1

while read -r name package test file <&3; do
	breaks "$name" >.broken
	cp "$file" .unbroken && cp .broken "$file"
	if ! output=$(go test "${flags[@]}" -c -o .test "$package" 2>&1); then
		problem "$name" "does not compile: $output"
	elif output=$(cd "$package" && "$copy/.test" -test.run "^$test\$" -test.timeout 3m 2>&1); then
		problem "$name" "$test of $package passes although the code is broken"
	elif grep -qE "^(--- FAIL: $test |panic: test timed out)" <<<"$output"; then # or it waits for what the break prevents
		printf '%-8s %s: %s\n' red "$name" "$test"
	else
		problem "$name" "$test of $package ended without a result: $(tail -n 5 <<<"$output")"
	fi
	cp .unbroken "$file"
done 3<<<"$chosen"
echo "$(($(wc -l <<<"$chosen") - failed)) of $(wc -l <<<"$chosen") breaks turned their test red"
[ $failed -eq 0 ]
