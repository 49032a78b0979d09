"""The blocking client in scripts and in servers that fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.e2e


def run(program: str, store: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.blocking_programs", program, f"sqlite:{store}"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_lazy_client_connects_in_the_child_that_uses_it(tmp_path: Path) -> None:
    assert run("preloaded", tmp_path / "clew.db") == ["child", ["child"]]


def test_a_child_beside_a_connected_parent_joins_it(tmp_path: Path) -> None:
    assert run("forked_while_connected", tmp_path / "clew.db") == ["parent", "parent", "again"]


def test_a_child_goes_on_after_its_parent_closed(tmp_path: Path) -> None:
    assert run("forked_then_closed", tmp_path / "clew.db") == ["parent", "child", None]


def test_a_script_waits_for_a_worker_in_another_thread(tmp_path: Path) -> None:
    assert run("with_a_worker", tmp_path / "clew.db") == "HELLO YOU"


def test_a_client_that_was_not_closed_keeps_nobody(tmp_path: Path) -> None:
    assert run("forgotten", tmp_path / "clew.db") == "kept"
    assert run("preloaded", tmp_path / "clew.db") == ["child", ["child", "kept"]]
