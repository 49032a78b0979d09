"""The simulation itself: it repeats bit by bit, its fixed and fresh seeds keep every law, and what it found stays
mended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.simulation.linearize import Operation, is_linearizable
from tests.simulation.plan import make_plan
from tests.simulation.simulate import from_json, shrink, simulate, to_json

# An engine that crashes in the middle of a call leaves the call's coroutine behind; whenever that is collected.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
"""Plans that once broke a law, each named after what was wrong, cut down."""

FIXED_SEEDS = range(42)
FRESH_SECONDS = float(os.environ.get("CLEW_SIM_SECONDS", "12"))
"""Real time for seeds that no run before this one has seen."""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    assert simulate(from_json(path.read_bytes())).error == ""


@pytest.mark.parametrize("store", ["model", "sqlite"])
def test_the_same_seed_is_the_same_run_bit_for_bit(store: str) -> None:
    for seed in range(4):
        plan = make_plan(seed, store)
        first = simulate(plan)
        assert simulate(plan) == first
        assert simulate(from_json(to_json(plan))) == first
    assert simulate(make_plan(1, store)).digest != simulate(make_plan(2, store)).digest


@pytest.mark.parametrize("tenth", range(6))
def test_fixed_seeds_keep_every_law(tenth: int) -> None:
    for seed in FIXED_SEEDS[tenth::6]:
        outcome = simulate(make_plan(seed))
        assert outcome.error == "", f"make sim SEED={seed}: {outcome.error}"


def test_fresh_seeds_keep_every_law() -> None:
    """Other seeds each time; a failure names the one to repeat, which is then the same run again."""
    until = time.monotonic() + FRESH_SECONDS
    seed = time.time_ns() // 1_000 % 1_000_000_000
    while time.monotonic() < until:
        outcome = simulate(make_plan(seed))
        assert outcome.error == "", f"make sim SEED={seed}: {outcome.error}"
        seed += 1


def test_a_plan_that_fails_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.engine.outbox import Outbox

    monkeypatch.setattr(Outbox, "wake", lambda self: None)
    plan = next(plan for plan in map(make_plan, range(100)) if simulate(plan).error)
    smaller = shrink(plan, tries_max=30)
    assert simulate(smaller).kind == simulate(plan).kind
    assert len(to_json(smaller)) < len(to_json(plan))


def test_linearizability_is_told_from_its_absence() -> None:
    def write(number: int, began: float, ended: float) -> Operation:
        return Operation(f"write {number}", (began, 0), (ended, 0), lambda _: number)

    def read(number: int, began: float, ended: float) -> Operation:
        return Operation(f"read {number}", (began, 0), (ended, 0), lambda now: now if now == number else None)

    assert is_linearizable([write(1, 0, 10), read(1, 2, 3), read(1, 4, 5)], 0)
    assert is_linearizable([write(1, 0, 10), read(0, 2, 3), read(1, 4, 5)], 0)
    assert not is_linearizable([write(1, 0, 10), read(1, 2, 3), read(0, 4, 5)], 0), (
        "a value that was seen is gone again"
    )
    assert not is_linearizable([write(1, 0, 1), read(0, 2, 3)], 0), (
        "a read that does not see what was written before it"
    )
