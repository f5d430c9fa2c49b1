#!/usr/bin/env bash
# Applies each break of scripts/breaks.txt to a copy of the checkout, one after the other, and requires that the test
# that it names fails. Arguments are regular expressions: only breaks whose name or test matches one of them run.
#
# Before that, the named tests must pass. A break whose lines do not occur exactly once, or that does not compile, is
# an error: the list must be changed with the code.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
flags=(-vet=off -ldflags='-s -w')

names=() files=() packages=() tests=() before=() after=()
n=-1
while IFS= read -r line; do
	case "$line" in
	'== '*) n=$((n + 1)) names[n]=${line#== } before[n]='' after[n]='' ;;
	'file: '*) files[n]=${line#file: } ;;
	'test: '*) read -r _ packages[n] tests[n] <<<"$line" ;;
	' '*) before[n]+=$'\n'${line# } after[n]+=$'\n'${line# } ;;
	-*) before[n]+=$'\n'${line#-} ;;
	+*) after[n]+=$'\n'${line#+} ;;
	esac
done < <(sed '1,/^==/{/^==/!d;}' scripts/breaks.txt)

chosen=()
for i in "${!names[@]}"; do
	[ $# -eq 0 ] && chosen+=("$i")
	for pattern; do
		[[ "${names[i]} ${packages[i]} ${tests[i]}" =~ $pattern ]] && chosen+=("$i") && break
	done
done
[ ${#chosen[@]} -gt 0 ] || { echo "no break matches $*"; exit 1; }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cf - -T - 2>/dev/null | tar -xf - -C "$copy"
cd "$copy" || exit 1
failed=0
problem() {
	printf '%-8s %s: %s\n' PROBLEM "$1" "$2"
	failed=$((failed + 1))
}

# The tests must pass unbroken, or a red one proves nothing.
for package in $(for i in "${chosen[@]}"; do echo "${packages[i]}"; done | sort -u); do
	run=$(for i in "${chosen[@]}"; do [ "${packages[i]}" = "$package" ] && echo "${tests[i]}"; done | sort -u)
	output=$(go test "${flags[@]}" -v -timeout 10m -run "^($(paste -sd'|' <<<"$run"))\$" "$package" 2>&1)
	for test in $run; do
		grep -q "^--- PASS: $test " <<<"$output" && echo "green    $package $test" && continue
		problem "$package $test" "does not pass on unbroken code"
		tail -n 40 <<<"$output"
	done
done
[ $failed -eq 0 ] || exit 1

for i in "${chosen[@]}"; do
	name=${names[i]} file=${files[i]} test=${tests[i]}
	[ -f "$file" ] || { problem "$name" "there is no $file"; continue; }
	text=$'\n'$(cat "$file")$'\n' old=${before[i]}$'\n' new=${after[i]}$'\n'
	rest=${text#*"$old"}
	if [ "$rest" = "$text" ] || [ "$old" = $'\n' ]; then
		problem "$name" "its lines are not in $file"
		continue
	elif [[ $'\n'$rest == *"$old"* ]]; then
		problem "$name" "its lines are in $file more than once"
		continue
	fi
	cp "$file" "$copy/.unbroken"
	broken=${text%%"$old"*}$new$rest
	printf '%s' "${broken#$'\n'}" >"$file"
	if ! output=$(go test "${flags[@]}" -c -o "$copy/.test" "${packages[i]}" 2>&1); then
		problem "$name" "does not compile: $output"
	elif output=$(cd "${packages[i]}" && "$copy/.test" -test.run "^$test\$" -test.timeout 3m 2>&1); then
		problem "$name" "$test of ${packages[i]} is green although the code is broken"
	elif grep -q "^--- FAIL: $test " <<<"$output"; then
		printf '%-8s %s: %s\n' red "$name" "$test"
	else
		problem "$name" "$test ended without a result: $(tail -n 5 <<<"$output")"
	fi
	[ -z "${WEIR_BREAKS_VERBOSE:-}" ] || sed 's/^/         /' <<<"$output" | head -n 60
	cp "$copy/.unbroken" "$file"
done
echo "$((${#chosen[@]} - failed)) of ${#chosen[@]} breaks turned their test red"
[ $failed -eq 0 ]
