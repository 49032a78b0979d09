"""What the simulation found stays mended, and each regression fails as soon as its mend is taken back."""

from __future__ import annotations

import pytest

from tests.simulation.planted import FAULTS, planted
from tests.simulation.regressions import REGRESSIONS

BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("name", list(REGRESSIONS))
async def test_it_stays_mended(name: str) -> None:
    await REGRESSIONS[name]()


@pytest.mark.parametrize("name", list(REGRESSIONS))
async def test_it_fails_when_the_mend_is_taken_back(name: str) -> None:
    with planted(BY_NAME[name]), pytest.raises((AssertionError, TimeoutError, OverflowError)):
        await REGRESSIONS[name]()
