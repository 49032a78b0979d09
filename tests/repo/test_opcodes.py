"""The hot paths execute no more bytecodes than recorded, within a tolerance: what made them slower is seen at once.

They are counted in an interpreter of their own, which nothing has run in before, and where no alarm of a time-out can
meet the tracing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.opcodes import PATHS, TOLERANCE, python_version, recorded

ROOT = Path(__file__).parents[2]

RECORD = recorded()


def test_every_path_is_recorded() -> None:
    assert RECORD["paths"].keys() == PATHS.keys(), "run: python -m benchmarks.opcodes --record"


def _count(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.opcodes", "--total", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(python_version() != RECORD["python"], reason="the record is for another version of Python")
@pytest.mark.parametrize("name", PATHS)
def test_a_hot_path_got_no_longer(name: str) -> None:
    allowed = RECORD["paths"][name] * (1 + TOLERANCE)
    found = _count(name)
    assert found <= allowed, (
        f"{name}: {found:.0f} bytecodes a run, at most {allowed:.0f} expected. Find out where they come from "
        f"(python -m benchmarks.opcodes {name!r} --top 40); if they are worth it, record them (--record)"
    )
