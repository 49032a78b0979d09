#!/usr/bin/env bash
# A bill of materials (CycloneDX) of what an installation with every extra that programs use brings along, and, with `audit`,
# a look whether any of it has a known vulnerability. Usage: scripts/sbom.sh PYTHON sbom|audit
set -euo pipefail

python=$1
what=$2
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

"$python" -m venv "$work/clew"
"$work/clew/bin/python" -m pip install --quiet --disable-pip-version-check \
    "$root[auth,cli,encryption,httpx,link,otel,postgres,pydantic,server,speed,sqlalchemy]"
# The tools have an environment of their own, so that they are not part of what they list.
"$python" -m venv "$work/tools"
case $what in
sbom)
    "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
    "$work/tools/bin/cyclonedx-py" environment --output-reproducible --of JSON \
        --output-file "$out/sbom.cdx.json" "$work/clew/bin/python"
    "$work/clew/bin/python" - "$out/sbom.cdx.json" <<'PYTHON'
import json, sys
components = json.load(open(sys.argv[1]))["components"]
names = {component["name"].lower() for component in components}
assert {"clew", "msgspec"} <= names, f"the bill lacks what it is about: {sorted(names)}"
print(f"{sys.argv[1]}: {len(components)} components")
PYTHON
    ;;
audit)
    "$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3'
    "$work/clew/bin/python" -m pip freeze --exclude-editable --exclude clew >"$work/frozen.txt"
    # AUDIT_SERVICE=osv asks another service than PyPI. It fails for what it finds and for what it cannot reach alike:
    # the verdict on its report, and on what that leaves out, is another's.
    rm -f "$out/audit.json"
    "$work/tools/bin/pip-audit" --requirement "$work/frozen.txt" --disable-pip --no-deps --progress-spinner off \
        --vulnerability-service "${AUDIT_SERVICE:-pypi}" --format json --output "$out/audit.json" || true
    "$work/tools/bin/python" "$root/scripts/audit.py" "$work/frozen.txt" "$out/audit.json"
    ;;
*)
    echo "usage: scripts/sbom.sh PYTHON sbom|audit" >&2
    exit 2
    ;;
esac
