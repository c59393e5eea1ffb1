#!/bin/sh
# Write requirements/dev.lock: one version of every package that the extras dev and all bring, with markers where
# Pythons 3.11 to 3.14 need different ones. pip reads it as constraints, so users of cordwood never see it.
set -eu
cd "$(dirname "$0")/.."
lock=requirements/dev.lock
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT

.venv/bin/python -m pip install --quiet --disable-pip-version-check --target "$tools" uv
{
    echo '# Written by `make lock`; do not edit. Versions for development, not a requirement of cordwood.'
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate \
        pyproject.toml --extra dev --extra all
} >"$lock.tmp"
mv "$lock.tmp" "$lock"
echo "wrote $lock: $(grep -c == "$lock") versions" >&2
