"""Runs every scenario table beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.tables import Scenario, read, run

HERE = Path(__file__).parent
CASES = [(path, scenario) for path in sorted(HERE.glob("*.txt")) for scenario in read(path)]


@pytest.mark.parametrize(("path", "scenario"), [pytest.param(p, s, id=f"{p.stem}: {s.title}") for p, s in CASES])
def test_scenario(path: Path, scenario: Scenario) -> None:
    run(scenario, path)
