"""The hot paths execute no more bytecodes than recorded, within a tolerance: what made them slower is seen at once."""

from __future__ import annotations

import pytest

from benchmarks.opcodes import PATHS, TOLERANCE, count, python_version, recorded

RECORD = recorded()


def test_every_path_is_recorded() -> None:
    assert RECORD["paths"].keys() == PATHS.keys(), "run: python -m benchmarks.opcodes --record"


@pytest.mark.skipif(python_version() != RECORD["python"], reason="the record is for another version of Python")
@pytest.mark.parametrize("name", PATHS)
def test_a_hot_path_got_no_longer(name: str) -> None:
    allowed = RECORD["paths"][name] * (1 + TOLERANCE)
    found = count(name)
    assert found <= allowed, (
        f"{name}: {found:.0f} bytecodes a run, at most {allowed:.0f} expected. Find out where they come from "
        f"(python -m benchmarks.opcodes {name!r} --top 40); if they are worth it, record them (--record)"
    )
