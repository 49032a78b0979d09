"""What the simulation found stays mended, and each regression fails as soon as its mend is taken back."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.service import scripted
from tests.simulation.planted import FAULTS, planted
from tests.simulation.regressions import FAILURES, REGRESSIONS

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("name", list(REGRESSIONS))
async def test_it_stays_mended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "DEADLINE_SECONDS", 60.0)
    await REGRESSIONS[name]()


@pytest.mark.parametrize("name", list(REGRESSIONS))
async def test_it_fails_when_the_mend_is_taken_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What never comes is not waited for long: here a wait that is over too soon tells the same.
    monkeypatch.setattr(scripted, "DEADLINE_SECONDS", 1.5)
    with planted(BY_NAME[name]), pytest.raises(FAILURES):
        await asyncio.wait_for(REGRESSIONS[name](), 5)
