"""Every planted fault is caught: by the seed that caught it before, or by one of the next few."""

from __future__ import annotations

import json

import pytest

from tests.simulation.hunt import CAUGHT, FOUND, PAGE, SOAKED, Catch, hunt, page
from tests.simulation.planted import FAULTS, Fault, planted

SEEDS_MAX = 25
"""Seeds tried from the one that caught it before, which may say something else since the engine has changed."""

SHARE = 6
"""One fault in so many is looked for here; all of them by `make planted-faults`."""


def known() -> dict[str, Catch]:
    return {name: Catch(*catch) for name, catch in json.loads(CAUGHT.read_text()).items()}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_source(fault: Fault) -> None:
    with planted(fault):
        pass


@pytest.mark.parametrize("fault", FAULTS[::SHARE], ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault: Fault) -> None:
    before = known()[fault.name]
    seeds_max = 0 if before.by == "regressions" else SEEDS_MAX
    assert hunt(fault, first=before.seed, seeds_max=seeds_max) is not None, "make planted-faults"


def test_every_fault_was_caught_and_is_on_the_page() -> None:
    caught = known()
    assert [fault.name for fault in FAULTS if fault.name not in caught] == []
    assert len(FAULTS) >= 25
    assert PAGE.read_text() == page(caught), "make planted-faults"


def test_each_seed_that_broke_a_law_is_explained() -> None:
    parts = [json.loads(line) for line in SOAKED.read_text().splitlines()]
    told = {one["seed"]: one for one in json.loads(SOAKED.with_name("failed_seeds.json").read_text())}
    assert sorted(told) == sorted(seed for part in parts for seed in part["failed"])
    names, plans = {fault.name for fault in FAULTS}, {path.stem for path in FOUND.glob("*.json")}
    for one in told.values():
        assert one["fault"] in names or one.get("plan") in plans or one.get("of"), one
