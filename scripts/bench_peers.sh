#!/usr/bin/env bash
# Install the peers of `make bench`, each into an environment of its own below build/peers: bench_peers.sh PYTHON [NAME…]
# Those that cannot be installed here are named and left out.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  mapfile -t names < <("$python" -c 'from benchmarks.peers import PEERS; print(*(p.name for p in PEERS), sep="\n")')
fi
for name in "${names[@]}"; do
  folder=build/peers/$name
  read -ra packages < <("$python" -c "from benchmarks.peers import peer_named; print(*peer_named('$name').packages)")
  read -ra npm < <("$python" -c "from benchmarks.peers import peer_named; print(*peer_named('$name').npm_packages)")
  if "$python" -m venv "$folder" &&
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" &&
    { [ ${#npm[@]} -eq 0 ] || npm install --silent --no-audit --no-fund --prefix "$folder" "${npm[@]}"; }; then
    echo "$name: installed in $folder"
  else
    rm -rf "$folder"
    echo "$name: could not be installed, so it is left out" >&2
  fi
done
