"""Histories of the past replay on the code of today, in fresh interpreters with other hash seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay.golden_add import GOLDEN, digest, read_manifest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(read_manifest())


def replay_apart(workflow: Path, history: Path, hash_seed: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.replay.golden_replay", str(workflow), str(history)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_there_are_golden_histories() -> None:
    assert NAMES


def test_no_golden_file_was_changed_or_removed() -> None:
    for name, hashes in read_manifest().items():
        for kind, suffix in (("history", "json"), ("workflow", "py")):
            path = GOLDEN / f"{name}.{suffix}"
            assert digest(path) == hashes[kind], f"{path.name} was edited; golden files never change"


def test_every_golden_file_is_in_the_manifest() -> None:
    assert {path.stem for path in GOLDEN.glob("*.py")} == set(NAMES)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
@pytest.mark.parametrize("name", NAMES)
def test_golden_history_replays(name: str, hash_seed: str) -> None:
    done = replay_apart(GOLDEN / f"{name}.py", GOLDEN / f"{name}.json", hash_seed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "replayed"


@pytest.mark.parametrize("name", NAMES)
def test_history_of_other_code_does_not_replay(name: str, tmp_path: Path) -> None:
    """The check can fail: the same history with one activity renamed is refused, and the error names both sides."""
    history = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    scheduled = [event for event in history["events"] if event["type"] == "ActivityTaskScheduled"]
    recorded = scheduled[-1]["activity_type"]
    scheduled[-1]["activity_type"] = "something_else"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(history), encoding="utf-8")
    done = replay_apart(GOLDEN / f"{name}.py", changed, "0")
    assert done.returncode != 0
    assert "NondeterminismError" in done.stderr
    assert "something_else" in done.stderr
    assert recorded in done.stderr
