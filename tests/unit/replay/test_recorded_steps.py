"""The short way through recorded steps: whoever looks sees the same as when each of them was awaited for real.

Each program notes what it sees. It is run once as it happens and replayed in two ways, with and without the short way;
all three notes must be alike.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ActivityError, EncodeError, NondeterminismError
from clew.model.failure import ApplicationInfo, Failure
from clew.model.payload import Payload
from clew.replay import LocalActivityOutcome, LocalActivityRequest, MachineOptions
from clew.replay.local_activities import LocalActivities
from clew.replay.recorded_steps import RecordedSteps
from clew.workflow._local_calls import local_activity_call
from tests.unit.replay.story import Story, payloads, value_of

SECOND = timedelta(seconds=1)
LOCAL = MachineOptions(runs_local_activities=True)

notes: list[Any] = []


def note(*what: Any) -> None:
    notes.append((*what, workflow.now().timestamp()))


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


def _story(name: str) -> Story:
    story = Story(Program, name, options=LOCAL)
    story.local = outcome_of
    return story


def _replayed(story: Story) -> list[Any]:
    notes.clear()
    story.replay()
    return list(notes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that took the general way."""
    found: list[str] = []
    ask = LocalActivities.ask

    def spy(self: LocalActivities, call: Any, args: Any) -> Any:
        found.append(call.activity)
        return ask(self, call, args)

    monkeypatch.setattr(LocalActivities, "ask", spy)
    return found


def _names() -> list[Any]:
    old = pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that start at once came with Python 3.12")
    return [pytest.param(name, marks=[old] if name == "starting_at_once" else []) for name in PROGRAMS]


@pytest.mark.parametrize("with_signal", [False, True])
@pytest.mark.parametrize("name", _names())
def test_who_looks_sees_the_same(name: str, with_signal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.clear()
    story = _story(name)
    if with_signal:
        story.signal("go", 4)
    while not story.is_closed:
        story.run()
    live = list(notes)
    short = _replayed(story)
    monkeypatch.setattr(RecordedSteps, "begin", lambda *_: None)
    general = _replayed(story)
    assert general == live
    assert short == live


def _run(name: str) -> Story:
    story = _story(name)
    while not story.is_closed:
        story.run()
    return story


def test_all_but_the_first_and_the_last_take_the_short_way(asked: list[str]) -> None:
    story = _run("in_sequence")
    assert len(asked) == 12
    asked.clear()
    story.replay()
    assert len(asked) == 2, "the first, before any marker, and the last, after which nothing tells what was done"


@pytest.mark.parametrize("name", ["driven_by_hand", "before_a_condition", "with_callbacks"])
def test_a_program_whose_order_would_suffer_is_seen_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = _run(name)
    live = list(notes)
    monkeypatch.setattr(RecordedSteps, "_is_alone", lambda _: True)
    try:
        reckless = _replayed(story)
    except Exception:  # noqa: BLE001 (what it comes to, if steps do not wait, is not looked at)
        return
    assert reckless != live[-len(reckless) :], "this program does not test what it is for"


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("changed", ["another type", "another id", "one less", "one more", "not convertible"])
def test_changed_code_is_told_of_in_the_same_words(
    changed: str, is_short: bool, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    story = _run("in_sequence")

    async def other() -> None:
        await steps("a", 4)
        if changed == "another type":
            await step("triple", 4)
        elif changed == "another id":
            await step("double", 4, activity_id="mine")
        elif changed == "not convertible":
            await step("double", Odd())
        elif changed == "one more":
            await steps("a", 5)
            return
        await steps("a", 3)

    monkeypatch.setitem(PROGRAMS, "in_sequence", other)
    if not is_short:
        monkeypatch.setattr(RecordedSteps, "begin", lambda *_: None)
    expected = EncodeError if changed == "not convertible" else NondeterminismError
    with pytest.raises(expected) as raised:
        story.replay()
    assert said.setdefault(changed, str(raised.value)) == str(raised.value)


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What was said of each change, the first time."""
    return {}


async def test_a_step_that_is_run_again_gets_what_it_was_asked_with() -> None:
    given: list[Any] = []

    async def other() -> None:
        values = [1]
        handle = workflow.start_local_activity("double", values, start_to_close_timeout=SECOND)
        values.append(2)
        text = "text"
        other_handle = workflow.start_local_activity("double", text, start_to_close_timeout=SECOND)
        text += " and more"
        await asyncio.gather(handle, other_handle)

    def outcome(request: LocalActivityRequest) -> LocalActivityOutcome:
        given.append((request.input.args, value_of(request.payloads)))
        return outcome_of(request) or LocalActivityOutcome(sequence=request.sequence)

    story = _story("in_sequence")
    story.local = outcome
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROGRAMS, "in_sequence", other)
        story.run()
    assert [value for _, value in given[2:4]] == [[1], "text"]


def test_calls_that_say_the_same_are_told_to_the_worker_with_their_own_arguments() -> None:
    requests: list[LocalActivityRequest] = []
    story = _story("in_sequence")
    story.local = lambda request: requests.append(request) or outcome_of(request)  # type: ignore[func-returns-value]
    story.run()
    assert requests[2].input is requests[3].input, "read alone, so one is enough"
    assert [[bytes(p) for p in request.payloads] for request in requests[2:5]] == [[b"0"], [b"1"], [b"2"]]
    assert all(request.input.headers == {} for request in requests)


def test_interceptors_share_nothing_that_they_can_change() -> None:
    options = {"start_to_close_timeout": timedelta(seconds=5), "summary": "one", "durable": "batch"}
    call, again = (local_activity_call("book", int, options) for _ in range(2))
    assert call is again
    first, second = call.input((1,)), call.input((2,))
    for name in (each.name for each in dataclasses.fields(first)):
        if name not in ("args", "headers"):
            assert getattr(first, name) == getattr(second, name) == getattr(call.asked, name), name
    assert (first.args, second.args, call.asked.args) == ((1,), (2,), ())
    first.headers["trace"] = Payload({}, b"1")
    first.summary = "other"
    assert not second.headers
    assert not call.asked.headers
    assert (second.summary, call.asked.summary) == ("one", "one")
