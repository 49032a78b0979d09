#!/usr/bin/env bash
# Build the wheel, install it with no extras in a clean environment, and run a tiny workflow on it.
# Usage: check_wheel.sh PYTHON   (a Python that has `build` installed)
set -euo pipefail
python=$(realpath --no-symlinks "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --outdir "$work/dist" "$root" >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$work"/dist/clew-*.whl
cp "$root/scripts/wheel_smoke.py" "$work/"
cd "$work" # away from the sources: the import below must find the installed package
"$work/venv/bin/python" -W error wheel_smoke.py
