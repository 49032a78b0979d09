"""However many coroutines a run has left, none of their code runs when the run is laid to rest."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar

import pytest

from clew import workflow
from clew.replay import burial
from clew.worker._turns import TASKS_QUICK_MAX, Eviction
from tests.unit.replay.story import Story


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


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


def numbers(traces: list[int]) -> Generator[int, None, None]:
    try:
        yield from range(10)
    finally:
        traces.append(0)


def started(traces: list[int]) -> Generator[int, None, None]:
    generator = numbers(traces)
    next(generator)
    return generator


def closure_of(generator: Generator[int, None, None]) -> Callable[[], int]:
    return lambda: next(generator)


HOLDERS: dict[str, Callable[[Any], object]] = {
    "an object": Holder,
    "objects one in the other": lambda held: Holder(Holder(Holder(held))),
    "slots": Slotted,
    "a closure": closure_of,
    "a partial": lambda held: functools.partial(next, held),
    "a method": lambda held: held.__next__,
    "a set": lambda held: {held},
    "enumerate": enumerate,
    "zip": lambda held: zip((1, 2, 3), held, strict=False),
    "map": lambda held: map(str, held),
    "islice": lambda held: itertools.islice(held, 5),
    "chain": lambda held: itertools.chain(held, ()),
    "an iterator": lambda held: iter([held]),
    "closing": contextlib.closing,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_whatever_holds_a_generator_its_code_never_runs_again(name: str) -> None:
    traces: list[int] = []

    async def work() -> None:
        held = HOLDERS[name](started(traces))
        await Parked()
        del held

    coroutine = work()
    coroutine.send(None)
    burial.bury([coroutine])
    del coroutine
    gc.collect()
    assert traces == []


class Bare:
    kept: Any


@pytest.mark.parametrize("in_list", [False, True])
def test_what_the_object_of_a_run_holds_does_not_run_however_short_the_look(in_list: bool) -> None:
    traces: list[int] = []
    run = Bare()
    [coroutine] = suspended(traces, 1)
    run.kept = [coroutine] if in_list else coroutine
    del coroutine
    burial.bury([vars(run), run])
    del run
    gc.collect()
    assert traces == []


def test_an_object_that_holds_only_data_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object) -> None:
        raise AssertionError("there is nothing to be found")

    run = Bare()
    burial.bury([run])  # Its type is looked at for the first time.
    monkeypatch.setattr(burial, "_follow", search)
    burial.bury([run])
    run.kept = "a text"
    burial.bury([vars(run), run])


@pytest.mark.parametrize(
    "shared",
    [
        Holder([[number] for number in range(50_000)]),
        Holder([[[[number] for number in range(90)] for _ in range(90)] for _ in range(90)]),
        [Holder([number]) for number in range(50_000)],
    ],
    ids=["a long list", "many lists", "many objects"],
)
def test_what_the_users_objects_lead_to_is_looked_at_only_so_far(
    shared: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    get_referents = gc.get_referents

    def noting(*things: object) -> list[Any]:
        found = get_referents(*things)
        looked_at.append(len(found) if things != (shared,) else 0)
        return found

    monkeypatch.setattr(burial.gc, "get_referents", noting)
    burial.bury([[shared]])
    assert sum(looked_at) <= burial.AT_ONCE * burial.LENGTH_MAX


@workflow.defn
class WithCallbacks:
    """Leaves a generator in the hands of a timer, and one in those of a callback that never comes."""

    traces: ClassVar[list[int]] = []

    @workflow.run
    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(60, print, started(self.traces))
        loop.call_later(60, closure_of(started(self.traces)))
        await asyncio.sleep(100)


def test_what_timers_hold_never_runs_again() -> None:
    story = Story(WithCallbacks)
    story.run()
    story.cold()
    gc.collect()
    assert WithCallbacks.traces == []


@workflow.defn
class Asleep:
    """Sleeps, with something else in its hands that must not run again either."""

    traces: ClassVar[list[int]] = []
    made: ClassVar[Callable[[list[int]], object]]

    @workflow.run
    async def run(self) -> None:
        in_hand = Asleep.made(self.traces)
        try:
            await self.sleep()
        finally:
            self.traces.append(-1)
            del in_hand

    async def sleep(self) -> None:
        try:
            await workflow.sleep(3_600)
        finally:
            self.traces.append(-2)


def nothing(traces: list[int]) -> object:
    return "a text", len(traces)


def on_the_object(traces: list[int]) -> object:
    runtime: Any = workflow.instance()
    runtime.kept = started(traces)
    return None


def on_the_task(traces: list[int]) -> object:
    task: Any = asyncio.current_task()
    task.kept = [started(traces)]
    return None


def with_another_task(traces: list[int]) -> object:
    asyncio.current_task().add_done_callback(closure_of(started(traces)))  # type: ignore[union-attr,arg-type]
    return asyncio.get_running_loop().create_task(sleep_with_a_trace(traces))


async def sleep_with_a_trace(traces: list[int]) -> None:
    try:
        await workflow.sleep(60)
    finally:
        traces.append(7)


IN_HAND: dict[str, tuple[Callable[[list[int]], object], bool]] = {
    "data": (nothing, True),
    "a generator": (started, False),
    "a generator in a list": (lambda traces: [started(traces)], False),
    "a generator in a closure": (lambda traces: closure_of(started(traces)), False),
    "a generator in an object": (lambda traces: Holder(started(traces)), False),
    "a generator on its own object": (on_the_object, False),
    "a generator on its task": (on_the_task, False),
    "another task": (with_another_task, False),
}


@pytest.mark.parametrize("name", IN_HAND)
def test_a_run_that_sleeps_is_laid_to_rest_with_all_it_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, is_simple = IN_HAND[name]
    Asleep.made = staticmethod(make)  # type: ignore[assignment]
    Asleep.traces.clear()
    in_short: list[bool] = []
    bury_chain = burial._bury_chain

    def noting(*arguments: Any) -> bool:
        in_short.append(bury_chain(*arguments))
        return in_short[-1]

    monkeypatch.setattr(burial, "_bury_chain", noting)
    story = Story(Asleep)
    story.run()
    story.cold()
    gc.collect()
    assert Asleep.traces == []
    assert (in_short == [True]) is is_simple
