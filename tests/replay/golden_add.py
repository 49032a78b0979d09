"""Add a golden history: ``python -m tests.replay.golden_add NAME HISTORY.json WORKFLOW.py``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.replay.golden_replay import replay

GOLDEN = Path(__file__).parent / "golden"
MANIFEST = GOLDEN / "manifest.json"
PLACES = {"identity": "worker", "stack_trace": "(left out)"}


def digest(path: Path) -> str:
    """The hash that the manifest holds."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest() -> dict[str, dict[str, str]]:
    """Name to the hashes of its history and its workflow."""
    manifest: dict[str, dict[str, str]] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return manifest


def without_places(recorded: Any) -> Any:
    """The same history without the names of machines and the paths in stack traces, which replay never looks at."""
    match recorded:
        case dict():
            return {key: PLACES.get(key) or without_places(value) for key, value in recorded.items()}
        case list():
            return [without_places(item) for item in recorded]
        case _:
            return recorded


def add(name: str, history: Path, workflow: Path) -> None:
    """Copy both files in, after a look whether they fit."""
    targets = {"history": GOLDEN / f"{name}.json", "workflow": GOLDEN / f"{name}.py"}
    manifest = read_manifest() if MANIFEST.exists() else {}
    if name in manifest:
        raise SystemExit(f"{name} is there already, and golden histories are never changed; choose another name")
    recorded = json.loads(history.read_text(encoding="utf-8"))
    targets["history"].write_text(json.dumps(without_places(recorded), indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(workflow, targets["workflow"])
    asyncio.run(replay(targets["workflow"], targets["history"]))
    manifest[name] = {kind: digest(target) for kind, target in targets.items()}
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    add(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
