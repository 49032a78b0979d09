"""A few seconds of the soak; the hour is `make soak`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.soak.__main__ import Load, soak


@pytest.mark.skipif(sys.platform != "linux", reason="looks at itself through /proc")
async def test_a_few_seconds_of_the_soak(tmp_path: Path) -> None:
    told = await soak(tmp_path, Load(seconds=12, kill_every=2, width=10))
    assert told["kills"] >= 2
    assert told["guest_kills"] >= 1
    assert told["acknowledged"] > 20
    assert told["survivor_runs"] > 10
