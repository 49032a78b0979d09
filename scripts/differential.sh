#!/usr/bin/env bash
# Runs the programs of the comparison on the peer and on Clew, and compares. With --record it keeps the peer's histories
# and which peer and which code that was; without, or when something differs, what was kept before stays.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=.venv-differential
wanted=tests/differential/requirements.txt
port=${DIFFERENTIAL_PORT:-17243}

cmp -s "$wanted" "$venv/installed.txt" || {
  "$python" -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted"
  cp "$wanted" "$venv/installed.txt"
}

kept=$(mktemp -d)
cp -r tests/differential/recorded tests/differential/record.json "$kept"
server=
put_back() {
  [ -z "$server" ] || { kill "$server"; wait "$server" || true; }
  [ -d "$kept" ] || return 0
  rm -r tests/differential/recorded
  mv "$kept/recorded" "$kept/record.json" tests/differential/
  rmdir "$kept"
}
trap put_back EXIT
"$venv/bin/temporal" server start-dev --headless --port "$port" --log-level error &
server=$!
until "$venv/bin/temporal" operator cluster health --address "localhost:$port" >/dev/null 2>&1; do sleep 0.2; done

PYTHONPATH=. "$venv/bin/python" -m tests.differential.on_temporal "localhost:$port"
"$python" -m pytest -q tests/differential
if [ "${2:-}" = --record ]; then
  rm -r "$kept"
  "$python" -m tests.differential.page
fi
