"""However many coroutines a run has left, none of their code runs when the run is laid to rest."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from clew.replay import burial
from clew.worker._turns import TASKS_QUICK_MAX, Eviction


class Parked:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def leave_a_trace(traces: list[int], number: int) -> None:
    try:
        await Parked()
    finally:
        traces.append(number)


async def call(traces: list[int], number: int) -> None:
    await leave_a_trace(traces, number)


def suspended(traces: list[int], count: int) -> list[Coroutine[Any, Any, None]]:
    coroutines = [call(traces, number) for number in range(count)]
    for coroutine in coroutines:
        coroutine.send(None)
    return coroutines


def test_none_of_very_many_coroutines_runs_again() -> None:
    traces: list[int] = []
    coroutines = suspended(traces, 45_000)  # 135,000 frames.
    seen: list[int] = []
    burial.bury(coroutines, seen.append)
    coroutines.clear()
    assert traces == []
    assert seen == sorted(seen)
    assert seen[-1] > 100_000, "progress is told while it goes on"


def test_what_is_too_much_to_be_looked_at_is_kept_and_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(burial, "OBJECTS_MAX", 100)
    monkeypatch.setattr(burial, "_kept_for_ever", kept)
    traces: list[int] = []
    coroutines = suspended(traces, 3_000)
    burial.bury(coroutines)
    coroutines.clear()
    assert traces == []
    assert kept
    monkeypatch.setattr(burial, "OBJECTS_MAX", 1_000_000)
    burial.bury(kept)
    kept.clear()
    assert traces == []


class Wide:
    """As much of a machine as an eviction looks at."""

    def __init__(self, tasks_count: int) -> None:
        self.tasks_count = tasks_count
        self.buried_count = 0

    def evict(self) -> None:
        self.buried_count = 7


@pytest.mark.parametrize(("tasks_count", "kind"), [(TASKS_QUICK_MAX, "Order"), (TASKS_QUICK_MAX + 1, None)])
def test_a_run_of_many_tasks_is_not_evicted_on_the_loop(tasks_count: int, kind: str | None) -> None:
    eviction = Eviction(Wide(tasks_count), "Order")  # type: ignore[arg-type]
    assert eviction.kind == kind  # A turn without a kind is never lent to the service loop.
    eviction.run()
    assert eviction.progress == 7
