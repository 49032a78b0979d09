"""Programs that note what they see, for the short ways through what is recorded.

A program awaits steps in one of the odd ways in which Python lets it. `step` is a local step; a test that wants
activities in their place sets another function here. Nothing that is noted may depend on whether a step was passed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ActivityError
from clew.model.failure import ApplicationInfo, Failure
from clew.replay import LocalActivityOutcome, LocalActivityRequest, MachineOptions
from clew.workflow._activities import UNSET
from tests.unit.replay.story import Story, payloads, value_of

SECOND = timedelta(seconds=1)
OPTIONS = MachineOptions(runs_local_activities=True)

notes: list[Any] = []


def note(*what: Any) -> None:
    notes.append((*what, workflow.now().timestamp()))


def never(_: object) -> Generator[Any, Any, None]:
    """Stands in for `ShortWay._answers`: everything takes the general way."""
    while True:
        yield UNSET


async def step(name: str, *args: Any, **options: Any) -> Any:
    found = await workflow.execute_local_activity(name, args=args, start_to_close_timeout=SECOND, **options)
    note(name, args, found)
    return found


async def steps(label: str, count: int) -> None:
    for number in range(count):
        await step("double", number)
        note(label, number)


def outcome_of(request: LocalActivityRequest) -> LocalActivityOutcome | None:
    if request.activity_type == "bad":
        return LocalActivityOutcome(
            sequence=request.sequence, failure=Failure(message="bad", info=ApplicationInfo(type="Bad"))
        )
    given = value_of(request.payloads) if request.payloads else 0
    return LocalActivityOutcome(sequence=request.sequence, result=payloads(given * 2))


# --- the programs ----------------------------------------------------------------------------------------------


async def in_sequence() -> None:
    await steps("a", 8)


async def with_all_kinds_of_arguments() -> None:
    await steps("a", 2)
    for value in (0, -1, 2**53, True, 1.5, "text", "ünïcode", '"$payload"', [1, 2], ()):
        await step("double", value)
    await step("nothing")
    await steps("b", 2)


async def beside_each_other() -> None:
    await asyncio.gather(steps("a", 5), steps("b", 3), steps("c", 7))
    await steps("d", 4)


async def in_tasks() -> None:
    background = asyncio.create_task(steps("background", 6))
    await steps("main", 3)
    note("main is through")
    await background
    async with asyncio.TaskGroup() as group:
        group.create_task(steps("group", 4))
    await steps("end", 3)


class Odd:
    """No converter takes it."""

    def __repr__(self) -> str:
        return "Odd()"


@dataclass
class Eager:
    """Runs a coroutine up to its first wait, by hand."""

    coro: Coroutine[Any, Any, Any]
    first: list[Any] = field(default_factory=list)
    result: list[Any] = field(default_factory=list)

    def start(self) -> Eager:
        try:
            self.first.append(self.coro.send(None))
        except StopIteration as stop:
            self.result.append(stop.value)
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.result:
            return self.result[0]
        waited = self.first[0]
        while True:
            yield waited
            try:
                waited = self.coro.send(None)
            except StopIteration as stop:
                return stop.value


async def driven_by_hand() -> None:
    await steps("before", 3)
    for number in range(3):
        eager = Eager(steps("eager", 2)).start()
        note("the driver goes on", number)
        await eager
    await steps("after", 3)


async def cancelling_itself() -> None:
    await steps("before", 3)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await step("double", 50)
    except (asyncio.CancelledError, ActivityError) as error:
        note("cancelled", type(error).__name__)
        task.uncancel()
    await steps("after", 3)


async def within_timeouts() -> None:
    await steps("before", 2)
    async with asyncio.timeout(1_000):
        await steps("timeout", 3)
    await asyncio.wait_for(steps("waited for", 3), 1_000)
    await asyncio.shield(steps("shielded", 3))
    await steps("after", 2)


async def before_a_condition() -> None:
    holds: list[int] = []

    async def waiting() -> None:
        await workflow.wait_condition(lambda: len(holds) > 2)
        note("condition holds", len(holds))
        holds.clear()

    waiter = asyncio.create_task(waiting())
    for number in range(6):
        holds.append(number)
        await step("double", number)
        note("held", len(holds))
    await waiter


async def with_callbacks() -> None:
    loop = asyncio.get_running_loop()
    for number in range(5):
        loop.call_soon(note, "callback", number)
        await step("double", number)
    future = loop.create_future()
    future.add_done_callback(lambda _: note("done callback"))
    await step("double", 6)
    future.set_result(None)
    await step("double", 7)
    await steps("after", 2)


async def through_generators() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(4):
            yield await step("double", number)

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        await step("double", 100)
        yield
        await step("double", 101)

    async with around():
        async for number in numbers():
            note("number", number)
    await steps("after", 2)


async def with_failures() -> None:
    await steps("before", 3)
    for number in range(2):
        try:
            await step("bad", number)
        except ActivityError as error:
            note("failed", str(error.cause))
        await steps("between", 2)


async def with_ids_and_batches() -> None:
    for number in range(4):
        await step("double", number, activity_id="same")
    await steps("between", 2)
    for number in range(3):
        await step("double", number, durable="batch")
    await steps("after", 3)


async def with_handles() -> None:
    handles = [workflow.start_local_activity("double", n, start_to_close_timeout=SECOND) for n in range(3)]
    await steps("meanwhile", 3)
    for handle in handles:
        note("handle", await handle)
    abandoned = workflow.start_local_activity(
        "double", 9, start_to_close_timeout=SECOND,
        cancellation_type=workflow.ActivityCancellationType.ABANDON,
    )  # fmt: skip
    await steps("one more", 1)
    abandoned.cancel()
    await steps("after", 3)


async def starting_at_once() -> None:
    loop: Any = asyncio.get_running_loop()
    options: dict[str, Any] = {"eager_start": True}
    await steps("before", 2)
    for number in range(2):
        task = asyncio.Task(steps("eager", 2), loop=loop, **options)
        note("the maker goes on", number)
        await task
    await steps("after", 2)


PROGRAMS: dict[str, Callable[[], Awaitable[None]]] = {
    program.__name__: program
    for program in (
        in_sequence, with_all_kinds_of_arguments, beside_each_other, in_tasks, driven_by_hand, cancelling_itself,
        within_timeouts, before_a_condition, with_callbacks, through_generators, with_failures, with_ids_and_batches,
        with_handles, starting_at_once,
    )
}  # fmt: skip


@workflow.defn
class Program:
    @workflow.run
    async def run(self, name: str) -> str:
        await steps("first", 2)
        await PROGRAMS[name]()
        await steps("last", 2)
        return "done"

    @workflow.signal
    async def go(self, count: int) -> None:
        await steps("handler", count)


def replayed(story: Story) -> list[Any]:
    """What is noted when the story is replayed."""
    notes.clear()
    story.replay()
    return list(notes)


def names() -> list[Any]:
    """Of the programs that this Python can run, as parameters."""
    old = pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that start at once came with Python 3.12")
    return [pytest.param(name, marks=[old] if name == "starting_at_once" else []) for name in PROGRAMS]
