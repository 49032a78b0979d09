"""The short way through recorded steps: whoever looks sees the same as when each of them was awaited for real.

Each program notes what it sees. It is run once as it happens and replayed in two ways, with and without the short way;
all three notes must be alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import weakref
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew import workflow
from clew.exceptions import EncodeError, NondeterminismError
from clew.model.payload import Payload
from clew.replay import LocalActivityOutcome, LocalActivityRequest
from clew.replay.local_activities import LocalActivities
from clew.replay.recorded_steps import RecordedSteps
from clew.workflow._local_calls import local_activity_call
from tests.unit.replay.noted_programs import (
    OPTIONS,
    PROGRAMS,
    SECOND,
    Odd,
    Program,
    names,
    notes,
    outcome_of,
    replayed,
    step,
    steps,
)
from tests.unit.replay.story import Story, value_of


def _story(name: str) -> Story:
    story = Story(Program, name, options=OPTIONS)
    story.local = outcome_of
    return story


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


@pytest.mark.parametrize("with_signal", [False, True])
@pytest.mark.parametrize("name", names())
def test_who_looks_sees_the_same(name: str, with_signal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.clear()
    story = _story(name)
    if with_signal:
        story.signal("go", 4)
    while not story.is_closed:
        story.run()
    live = list(notes)
    short = replayed(story)
    monkeypatch.setattr(RecordedSteps, "begin", lambda *_: None)
    general = replayed(story)
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


async def _with_a_wrong_option() -> None:
    await steps("a", 3)
    with pytest.raises(TypeError):
        await step("double", 1, nonsense=True)
    with pytest.raises(EncodeError):
        await step("double", Odd())
    await steps("b", 3)


async def _with_other_options() -> None:
    for number in range(4):
        await step("double", number)
        await step("double", number, summary=f"number {number}")
        await step("triple", number, activity_id="mine")


@pytest.mark.parametrize(("program", "general"), [(_with_a_wrong_option, 3), (_with_other_options, 2)])
def test_what_is_unusual_does_not_end_the_row(
    program: Any, general: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROGRAMS, "in_sequence", program)
    story = _run("in_sequence")
    asked.clear()
    story.replay()
    assert len(asked) == general, "the first, the last, and what cannot be converted"


@pytest.mark.parametrize("activity_id", [None, "mine"])
def test_a_marker_that_says_more_than_usual_is_read(
    activity_id: str | None, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        for number in range(6):
            await step("double", number, activity_id=activity_id)

    def outcome(request: LocalActivityRequest) -> LocalActivityOutcome:
        found = outcome_of(request)
        given = found or LocalActivityOutcome(sequence=request.sequence)
        return msgspec.structs.replace(given, attempt=2)

    monkeypatch.setitem(PROGRAMS, "in_sequence", program)
    story = _story("in_sequence")
    story.local = outcome
    while not story.is_closed:
        story.run()
    asked.clear()
    story.replay()
    assert len(asked) == 2


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_run_that_passed_a_row_is_freed_without_the_collector(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = _run("in_sequence")

    async def other() -> None:
        await steps("a", 4)
        await step("triple" if is_broken else "double", 0)
        await asyncio.Event().wait()

    monkeypatch.setitem(PROGRAMS, "in_sequence", other)
    machine = story.make_machine()
    with contextlib.suppress(NondeterminismError):
        machine.replay(story.events[:8])
    loop = weakref.ref(machine._loop)
    gc.collect()
    gc.disable()
    try:
        machine.evict()
        del machine
        assert loop() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["driven_by_hand", "before_a_condition", "with_callbacks"])
def test_a_program_whose_order_would_suffer_is_seen_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = _run(name)
    live = list(notes)
    monkeypatch.setattr(RecordedSteps, "_is_alone", lambda *_: True)
    try:
        reckless = replayed(story)
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
