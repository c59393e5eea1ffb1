#!/bin/sh
# What `make check` runs: lint, types and layers beside the unit and property tests.
#
#   scripts/check.sh [arguments for pytest]
#
# The tests' files are kept in memory where there is enough of it: most of them fsync, and waiting
# for a disk was half of the run's time. Tests that are about a disk's page cache ask for the
# fixture `disk_path`, which stays on disk. `make test` runs everything on disk.
set -u
cd "$(dirname "$0")/.."
bin=.venv/bin
memory=/dev/shm
memory_kib_min=1048576

free_kib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }

# A container's /dev/shm may hold 64 MiB, or forbid running what tests write there.
is_usable() {
    [ -w "$memory" ] && [ "$(free_kib "$memory")" -ge "$memory_kib_min" ] || return 1
    probe=$(mktemp "$memory/cordwood-probe.XXXXXX") || return 1
    printf '#!/bin/sh\n' >"$probe" && chmod +x "$probe" && "$probe" 2>/dev/null
    usable=$?
    rm -f "$probe"
    return "$usable"
}

lint() {
    $bin/ruff check && $bin/ruff format --check && $bin/mypy && $bin/lint-imports --no-logo
}

disk=${TMPDIR:-/tmp}
if is_usable; then parent=$memory; else parent=$disk; fi
scratch=$(mktemp -d "$parent/cordwood-check.XXXXXX") || exit 1
chmod 711 "$scratch"  # a test becomes another user, who must reach what it made below
trap 'rm -rf "$scratch"' EXIT
trap 'kill "$linting" 2>/dev/null; exit 130' INT TERM

# Its lines come out together when it is done, not between those of the tests.
( lint >"$scratch/lint.log" 2>&1; code=$?; echo; cat "$scratch/lint.log"; exit $code ) &
linting=$!

[ "$parent" = "$memory" ] && export CORDWOOD_TESTS_DISK="$disk"
TMPDIR=$scratch $bin/pytest -q -n 2 -m "not spark and not slow" \
    tests/test_tidy.py tests/unit tests/property "$@"
tests=$?
wait "$linting"
linted=$?
[ "$linted" = 0 ] || echo "make check: lint, types or layers failed; see their lines above" >&2
[ "$tests" = 0 ] && exit "$linted"
exit "$tests"
