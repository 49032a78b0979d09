"""The short way through recorded activities: whoever looks sees the same as when each of them was awaited for real.

The programs are those of the recorded local steps, with activities in their place. Each is run once as it happens, with
its activities finished one by one or as many as there are, and replayed in two ways, with and without the short way.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clew import workflow
from clew.exceptions import ActivityError, EncodeError, NondeterminismError
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import DeploymentVersion
from clew.replay.outbound import Outbound
from clew.replay.recorded_activities import RecordedActivities
from clew.replay.short_way import ShortWay
from tests.unit.replay import noted_programs
from tests.unit.replay.noted_programs import (
    OPTIONS,
    PROGRAMS,
    SECOND,
    Odd,
    Program,
    never,
    note,
    notes,
    outcome_of,
    replayed,
    steps,
)
from tests.unit.replay.story import Story, payloads, value_of


async def step(name: str, *args: Any, **options: Any) -> Any:
    options.pop("durable", None)
    found = await workflow.execute_activity(name, args=args, start_to_close_timeout=SECOND, **options)
    note(name, args, found, workflow.info().get_current_history_length())
    return found


async def with_versions_and_searches() -> None:
    for number in range(3):
        await step("double", number)
        note("patched", workflow.patched(f"patch-{number}") if number else None)
    await steps("between", 3)
    workflow.upsert_memo({"seen": 3})
    await steps("after", 3)


async def with_timers_and_local_steps() -> None:
    await steps("before", 3)
    await workflow.sleep(5)
    note("random", workflow.random().random(), str(workflow.uuid4()))
    await steps("between", 3)
    await workflow.execute_local_activity("double", 4, start_to_close_timeout=SECOND)
    await steps("after", 3)


EXTRA = {program.__name__: program for program in (with_versions_and_searches, with_timers_and_local_steps)}


@pytest.fixture(autouse=True)
def of_activities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted_programs, "step", step)
    for name, program in EXTRA.items():
        monkeypatch.setitem(PROGRAMS, name, program)


def _finish(story: Story, *, is_at_once: bool) -> None:
    """Finish the first open activity, or all, and fire the timers if there is none."""
    over = {
        ev.scheduled_event_id
        for ev in story.events
        if isinstance(ev, (e.ActivityTaskCompleted, e.ActivityTaskFailed, e.ActivityTaskCanceled))
    }
    story.advance(1)
    waiting = [ev for ev in story.find(e.ActivityTaskScheduled) if ev.event_id not in over]
    for scheduled in waiting if is_at_once else waiting[:1]:
        started = story.add(e.ActivityTaskStarted, scheduled_event_id=scheduled.event_id)
        ids: dict[str, Any] = {"scheduled_event_id": scheduled.event_id, "started_event_id": started.event_id}
        if scheduled.activity_type == "bad":
            failure = Failure(message="bad", info=ApplicationInfo(type="Bad", non_retryable=True))
            story.add(e.ActivityTaskFailed, failure=failure, **ids)
        else:
            given = value_of(scheduled.input) if scheduled.input else 0
            story.add(e.ActivityTaskCompleted, result=payloads(given * 2), **ids)
    if not waiting:
        fired = {ev.timer_id for ev in story.find(e.TimerFired)} | {ev.timer_id for ev in story.find(e.TimerCanceled)}
        for timer in [ev for ev in story.find(e.TimerStarted) if ev.timer_id not in fired]:
            story.fire(timer.timer_id)


def _run(name: str, *, is_at_once: bool = False, with_signal: bool = False) -> Story:
    notes.clear()
    story = Story(Program, name, options=OPTIONS)
    story.local = outcome_of
    story.run()
    tasks = 1
    while not story.is_closed:
        if with_signal and tasks == 3:
            story.signal("go", 4)
        _finish(story, is_at_once=is_at_once)
        story.run()
        tasks += 1
        assert tasks < 500, "the program does not end"
    return story


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The activities that took the general way."""
    found: list[str] = []
    schedule = Outbound.schedule_activity

    def spy(self: Outbound, asked: Any) -> Any:
        found.append(asked.activity)
        return schedule(self, asked)

    monkeypatch.setattr(Outbound, "schedule_activity", spy)
    return found


_NAMES = [*(p for p in noted_programs.names() if p.values != ("with_handles",)), *EXTRA]


@pytest.mark.parametrize("with_signal", [False, True])
@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize("name", _NAMES)
def test_who_looks_sees_the_same(
    name: str, is_at_once: bool, with_signal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = _run(name, is_at_once=is_at_once, with_signal=with_signal)
    live = list(notes)
    short = replayed(story)
    monkeypatch.setattr(RecordedActivities, "_answers", never)
    general = replayed(story)
    assert general == live
    assert short == live


def test_all_but_the_first_and_the_last_take_the_short_way(asked: list[str]) -> None:
    story = _run("in_sequence")
    assert len(asked) == 12
    asked.clear()
    story.replay()
    assert len(asked) == 2, "the first, before `run` is there, and the last, which no other follows"


@pytest.mark.parametrize("through", range(3, 80, 4))
def test_a_history_that_is_cut_off_anywhere_goes_on_as_it_did(through: int, asked: list[str]) -> None:
    whole = _run("in_sequence")
    expected, length = list(notes), len(whole.events)
    starts = [ev.event_id for ev in whole.events if isinstance(ev, e.WorkflowTaskStarted) and ev.event_id < length]
    story = Story(Program, "in_sequence", options=OPTIONS)
    cut = max((start for start in starts if start <= through), default=3)
    # What is known when a worker takes the task that was scheduled next before the cut.
    story.events[:] = whole.events[: cut - 2]
    story.time = whole.events[cut - 1].event_time
    story.last_started = max((start for start in starts if start < cut), default=0)
    notes.clear()
    story.run()
    while not story.is_closed:
        _finish(story, is_at_once=False)
        story.run()
    assert notes == expected
    assert [type(ev) for ev in story.events] == [type(ev) for ev in whole.events]


def test_the_versions_of_the_workers_that_had_the_tasks_are_told() -> None:
    seen: list[Any] = []

    async def looking() -> None:
        for number in range(6):
            await step("double", number)
            seen.append(workflow.info().get_current_deployment_version())

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROGRAMS, "in_sequence", looking)
        story = _run("in_sequence")
        for place, event in enumerate(story.events):
            if isinstance(event, e.WorkflowTaskCompleted) and event.event_id > 20:
                version = DeploymentVersion(deployment_name="d", build_id=str(event.event_id))
                story.events[place] = msgspec.structs.replace(event, deployment_version=version)
        seen.clear()
        short = (replayed(story), list(seen))
        patch.setattr(RecordedActivities, "_answers", never)
        seen.clear()
        general = (replayed(story), list(seen))
    assert short == general
    assert len({str(version) for version in seen}) > 2


@pytest.mark.parametrize("name", ["driven_by_hand", "before_a_condition", "with_callbacks"])
def test_a_program_whose_order_would_suffer_is_seen_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = _run(name)
    live = list(notes)
    monkeypatch.setattr(ShortWay, "_is_alone", lambda *_: True)
    try:
        reckless = replayed(story)
    except Exception:  # noqa: BLE001 (what it comes to, if activities do not wait, is not looked at)
        return
    assert reckless != live, "this program does not test what it is for"


CHANGES = ["another type", "another id", "one less", "one more", "not convertible", "another order", "other arguments"]


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("changed", CHANGES)
def test_changed_code_is_told_of_in_the_same_words(
    changed: str, is_short: bool, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    story = _run("in_sequence")

    async def other() -> None:
        await steps("a", 4)
        match changed:
            case "another type":
                await step("triple", 4)
            case "another id":
                await step("double", 4, activity_id="mine")
            case "not convertible":
                await step("double", Odd())
            case "one more":
                await steps("a", 5)
                return
            case "another order":
                await step("double", 1)
                await step("double", 0)
                await step("double", 2)
                await step("double", 3)
                return
            case "other arguments":
                await step("double", 77)
        await steps("a", 3)

    monkeypatch.setitem(PROGRAMS, "in_sequence", other)
    if not is_short:
        monkeypatch.setattr(RecordedActivities, "_answers", never)
    notes.clear()
    try:
        story.replay()
        found: Any = list(notes)
    except (EncodeError, NondeterminismError, ActivityError) as error:
        found = f"{type(error).__name__}: {error}"
    assert found == said.setdefault(changed, found)


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What came of each change, the first time."""
    return {}
