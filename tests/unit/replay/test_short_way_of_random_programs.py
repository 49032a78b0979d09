"""Random programs under random schedules: replayed with and without the short way, they do and tell the same.

A program is a small tree of steps, drawn from a seed. It runs once as it happens, while activities end in any order,
timers fire, and signals, updates, cancel requests and tasks that fail come in between. Then its history is replayed in
both ways: whole, cut off anywhere, and by a program that was changed since. What the code noted on its way, what it
waits for, the errors and their source lines have to be alike.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ActivityError
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure, TimeoutType
from clew.model.inputs import CompleteWorkflowTaskRequest
from clew.model.policies import DeploymentVersion
from clew.replay import LocalActivityOutcome, LocalActivityRequest, MachineOptions
from clew.replay.local_activities import LocalActivities
from clew.replay.outbound import Outbound
from clew.replay.recorded_activities import RecordedActivities
from clew.replay.recorded_steps import RecordedSteps
from tests.unit.replay.noted_programs import never
from tests.unit.replay.story import Story, payloads, value_of

SECOND = timedelta(seconds=1)
OPTIONS = MachineOptions(runs_local_activities=True)
SEEDS = range(40)
TASKS_MAX = 60

Step = tuple[Any, ...]
"""Its kind, a number, and the steps that it is made of."""

notes: list[Any] = []
programs: dict[str, Step] = {}
inherited: contextvars.ContextVar[int] = contextvars.ContextVar("inherited", default=0)


def note(*what: Any) -> None:
    info = workflow.info()
    notes.append(
        (
            *what,
            workflow.now().timestamp(),
            info.get_current_history_length(),
            info.get_current_history_size(),
            info.is_continue_as_new_suggested(),
            str(info.get_current_deployment_version()),
            inherited.get(),
            task.get_name() if (task := asyncio.current_task()) else "",
        )
    )


# --- programs ------------------------------------------------------------------------------------------------------

LEAVES = (
    *("activity",) * 12, *("several",) * 4, "several local", "bad",
    "own id", "handle", "local", "batch", "sleep", "patched", "random", "memo", "turn",
    "context", "callback", "wait", "stir", "cancel self", "typed",
)  # fmt: skip
NODES = (
    *("row",) * 5, "gather", "gather", "task", "group", "shield", "wait_for", "too short", "timeout", "generator",
    "manager", "by hand", "cancelled", "finally",
)  # fmt: skip


def draw(random: Random, depth: int) -> Step:
    if depth == 0 or random.random() < 0.25:
        return (random.choice(LEAVES), random.randrange(4))
    count = random.randint(2, 6) if depth > 1 else random.randint(3, 8)
    return (random.choice(NODES), random.randrange(4), *(draw(random, depth - 1) for _ in range(count)))


def changed(random: Random, step: Step) -> Step:
    """The program with one step another, gone, twice or moved."""
    places = list(_places(step, ()))
    if not places:
        return ("row", 0, step, ("activity", 3))
    at = random.choice(places)
    return _changed(random, step, at)


def _places(step: Step, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for place, part in enumerate(step[2:], 2):
        yield (*path, place)
        yield from _places(part, (*path, place))


def _changed(random: Random, step: Step, at: tuple[int, ...]) -> Step:
    place, *rest = at
    if rest:
        return (*step[:place], _changed(random, step[place], tuple(rest)), *step[place + 1 :])
    match random.randrange(4):
        case 0:
            return (*step[:place], *step[place + 1 :])
        case 1:
            return (*step[:place], draw(random, 0), *step[place:])
        case 2:
            return (*step[:place], draw(random, 0), *step[place + 1 :])
        case _:
            return (*step[:place], *step[place + 1 :], step[place])


class Run:
    """Runs the steps of a program."""

    def __init__(self) -> None:
        self.stirred = self.own = 0

    def own_id(self) -> str:
        self.own += 1
        return f"own-{self.own}"

    async def row(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            await self.do(step)

    async def do(self, step: Step) -> None:
        kind, number, *parts = step
        if parts:
            note("in", kind)
            await self.node(kind, number, tuple(parts))
            note("out", kind)
        else:
            note("result", kind, await self.leaf(kind, number))

    async def leaf(self, kind: str, number: int) -> Any:
        options: dict[str, Any] = {"start_to_close_timeout": SECOND}
        match kind:
            case "activity":
                return await workflow.execute_activity("double", number, **options)
            case "several":
                for part in range(number + 2):
                    note(await workflow.execute_activity("double", part, **options))
            case "several local":
                for part in range(number + 2):
                    note(await workflow.execute_local_activity("double", part, **options))
            case "typed":
                return await workflow.execute_activity("double", number, result_type=float, **options)
            case "own id":
                return await workflow.execute_activity("double", number, activity_id=self.own_id(), **options)
            case "bad":
                try:
                    await workflow.execute_activity("bad", number, **options)
                except ActivityError as error:
                    return str(error.cause)
            case "handle":
                handle = workflow.start_activity("double", number, **options)
                second = await workflow.execute_activity("double", number + 1, **options)
                return second, await handle
            case "local":
                return await workflow.execute_local_activity("double", number, **options)
            case "batch":
                return await workflow.execute_local_activity("double", number, durable="batch", **options)
            case "sleep":
                await workflow.sleep(number)
            case "patched":
                return workflow.patched(f"patch-{number}")
            case "random":
                return workflow.random().random(), str(workflow.uuid4())
            case "memo":
                workflow.upsert_memo({"number": number})
            case "turn":
                await asyncio.sleep(0)
            case "context":
                inherited.set(inherited.get() + 1 + number)
            case "callback":
                asyncio.get_running_loop().call_soon(note, "called", number)
            case "wait":
                seen = self.stirred
                try:
                    await workflow.wait_condition(lambda: self.stirred > seen, timeout=1 + number)
                except TimeoutError:
                    return "late"
            case "stir":
                self.stirred += 1
            case "cancel self":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                try:
                    await workflow.execute_activity("double", number, **options)
                except (asyncio.CancelledError, ActivityError) as error:
                    task.uncancel()
                    return type(error).__name__
        return None

    async def node(self, kind: str, number: int, parts: tuple[Step, ...]) -> None:
        half = len(parts) // 2
        match kind:
            case "gather":
                await asyncio.gather(*(self.do(part) for part in parts))
            case "task":
                task = asyncio.create_task(self.row(parts[:half]))
                await self.row(parts[half:])
                await task
            case "group":
                async with asyncio.TaskGroup() as group:
                    for part in parts[half:]:
                        group.create_task(self.do(part))
                    await self.row(parts[:half])
            case "shield":
                await asyncio.shield(self.row(parts))
            case "wait_for":
                await asyncio.wait_for(self.row(parts), 100_000)
            case "too short" | "timeout":
                try:
                    if kind == "timeout":
                        async with asyncio.timeout(1 + number):
                            await self.row(parts)
                    else:
                        await asyncio.wait_for(self.row(parts), 1 + number)
                except (TimeoutError, ActivityError) as error:
                    note("stopped", type(error).__name__)
            case "generator":
                async for count in self.counted(parts):
                    note("counted", count)
                    await workflow.execute_activity("double", count, start_to_close_timeout=SECOND)
            case "manager":
                async with self.around(parts[:half]):
                    await self.row(parts[half:])
            case "by hand":
                await ByHand(self.row(parts))
            case "cancelled":
                task = asyncio.create_task(self.row(parts[:half]))
                await self.row(parts[half:])
                task.cancel()
                note("ended", *[type(end).__name__ for end in await asyncio.gather(task, return_exceptions=True)])
            case "finally":
                try:
                    await self.row(parts[:half])
                finally:
                    await self.row(parts[half:])
            case _:
                await self.row(parts)

    async def counted(self, parts: tuple[Step, ...]) -> AsyncIterator[int]:
        for count, part in enumerate(parts):
            await self.do(part)
            yield count

    @asynccontextmanager
    async def around(self, parts: tuple[Step, ...]) -> AsyncIterator[None]:
        await self.row(parts)
        yield
        await self.row(parts)


class ByHand:
    """Runs a coroutine step by step, and looks around in between."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.work = work

    def __await__(self) -> Any:
        error: BaseException | None = None
        while True:
            try:
                waits = self.work.send(None) if error is None else self.work.throw(error)
            except StopIteration:
                return
            note("by hand")
            error = None
            try:
                yield waits
            except BaseException as thrown:  # noqa: BLE001 (it is handed on)
                error = thrown


@workflow.defn
class Program:
    def __init__(self) -> None:
        self.steps = Run()

    @workflow.run
    async def run(self, name: str) -> str:
        try:
            await self.steps.row((("activity", 1), ("activity", 2), programs[name], ("activity", 3), ("activity", 0)))
        except asyncio.CancelledError:
            note("the run is cancelled")
            await self.steps.row((("activity", 1), ("activity", 2), ("activity", 3)))
            raise
        return "done"

    @workflow.signal
    async def go(self, name: str) -> None:
        await self.steps.do(programs[name])

    @workflow.update
    async def change(self, name: str) -> int:
        await self.steps.do(programs[name])
        return len(name)


# --- how it happens ------------------------------------------------------------------------------------------------


def outcome_of(request: LocalActivityRequest) -> LocalActivityOutcome | None:
    given = value_of(request.payloads)
    return LocalActivityOutcome(sequence=request.sequence, result=payloads(given * 2))


_ENDS = (e.ActivityTaskCompleted, e.ActivityTaskFailed, e.ActivityTaskCanceled)


def happen(random: Random, story: Story, *, is_calm: bool) -> None:
    """Let the world do something before the next task; if it is calm, no more than it was asked for."""
    story.advance(random.choice((0.25, 1, 1, 3)))
    events = story.events
    over = {ev.scheduled_event_id for ev in events if isinstance(ev, _ENDS)}
    waiting = [ev for ev in story.find(e.ActivityTaskScheduled) if ev.event_id not in over]
    fired = {ev.timer_id for ev in events if isinstance(ev, (e.TimerFired, e.TimerCanceled))}
    timers = [ev for ev in story.find(e.TimerStarted) if ev.timer_id not in fired]
    if not is_calm:
        if random.random() < 0.06:
            story.signal("go", "signal")
        if random.random() < 0.04:
            story.update("change", "update")
        if random.random() < 0.01 and not story.find(e.WorkflowExecutionCancelRequested):
            story.request_cancel()
        if random.random() < 0.06:
            fail_a_task(story, random)
    random.shuffle(waiting)
    for scheduled in waiting[: random.choice((1, 1, 1, 1, 2, 9))]:
        started = story.add(e.ActivityTaskStarted, scheduled_event_id=scheduled.event_id)
        ids: dict[str, Any] = {"scheduled_event_id": scheduled.event_id, "started_event_id": started.event_id}
        if scheduled.activity_type == "bad":
            failure = Failure(message="bad", info=ApplicationInfo(type="Bad", non_retryable=True))
            story.add(e.ActivityTaskFailed, failure=failure, **ids)
        else:
            story.add(e.ActivityTaskCompleted, result=payloads(value_of(scheduled.input) * 2), **ids)
    due = [ev for ev in timers if ev.event_time + ev.start_to_fire_timeout <= story.time]
    for timer in due or ([] if waiting else timers[:1]):
        story.fire(timer.timer_id)


def fail_a_task(story: Story, random: Random) -> None:
    """A worker got a task and did not live to answer it."""
    story.add(e.WorkflowTaskScheduled, task_queue="queue", start_to_close_timeout=10 * SECOND)
    scheduled = story.events[-1].event_id
    started = story.add(e.WorkflowTaskStarted, scheduled_event_id=scheduled).event_id
    ids: dict[str, Any] = {"scheduled_event_id": scheduled, "started_event_id": started}
    if random.random() < 0.5:
        story.add(e.WorkflowTaskFailed, cause=e.WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, **ids)
    else:
        story.add(e.WorkflowTaskTimedOut, timeout_type=TimeoutType.START_TO_CLOSE, **ids)
    story.cold()
    notes.clear()


def lived(seed: int) -> tuple[Story, list[Any]]:
    """Run the program of a seed as it happens; give its history and what it noted."""
    random = Random(seed)
    stays_calm = random.random() < 0.5
    programs["main"] = ("row", 0, *(draw(random, random.choice((1, 1, 2, 3))) for _ in range(3)))
    programs["signal"] = draw(random, 1)
    programs["update"] = draw(random, 1)
    notes.clear()
    story = Story(Program, "main", options=OPTIONS)
    story.local = outcome_of
    tasks = 0
    while not story.is_closed and tasks < TASKS_MAX:
        if tasks:
            happen(random, story, is_calm=stays_calm)
        if not isinstance(story.task().completion, CompleteWorkflowTaskRequest):
            return story, []  # It cancelled `run` itself.
        tasks += 1
    assert story.machine is not None
    story.machine.evict()
    return story, list(notes)


def told(story: Story, last: int | None = None) -> Any:
    """What a replay of the history, up to an event, comes to."""
    notes.clear()
    machine = story.make_machine()
    try:
        machine.replay(story.events[:last], is_whole=last is None and story.is_closed)
        return list(notes), machine.stack(), machine.is_closed, machine.cached_through_event_id
    except Exception as error:  # noqa: BLE001 (whatever it is, both ways come to it)
        return list(notes), type(error).__name__, str(error)
    finally:
        machine.evict()


@contextmanager
def general_way() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedActivities, "_answers", never)
        patch.setattr(RecordedSteps, "begin", lambda *_: None)
        yield


def differs(seed: int) -> str:
    """In what the two ways differ; empty if in nothing."""
    story, live = lived(seed)
    if live and told(story)[0] != live:
        return "what it saw as it happened"
    random = Random(seed)
    with_versions(story, random)
    for last in (None, *sorted(random.sample(range(1, len(story.events)), min(3, len(story.events) - 1)))):
        short = told(story, last)
        with general_way():
            if told(story, last) != short:
                return f"the history up to {last}"
    main = programs["main"]
    for number in range(3):
        programs["main"] = changed(random, main)
        short = told(story)
        with general_way():
            if told(story) != short:
                return f"the changed program {number}: {programs['main']}"
    return ""


def with_versions(story: Story, random: Random) -> None:
    """Let workers of other versions have had some of the tasks."""
    for at, event in enumerate(story.events):
        if isinstance(event, e.WorkflowTaskCompleted) and random.random() < 0.3:
            version = DeploymentVersion(deployment_name="d", build_id=str(random.randrange(3)))
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            story.events[at] = type(event)(**{**fields, "deployment_version": version})


def test_the_programs_take_the_short_way_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for kind, name in ((Outbound, "schedule_activity"), (LocalActivities, "ask")):
        monkeypatch.setattr(kind, name, _noting(getattr(kind, name), asked))
    counts = {"schedule_activity": 0, "ask": 0}
    for seed in range(12):
        story, _ = lived(seed)
        for sign in (-1, 1):
            asked.clear()
            with general_way() if sign > 0 else nullcontext():
                told(story)
            for name in counts:
                counts[name] += sign * asked.count(name)
    assert counts["schedule_activity"] > 50
    assert counts["ask"] > 5


def _noting(method: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def spy(*args: Any) -> Any:
        asked.append(method.__name__)
        return method(*args)

    return spy


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ways_do_and_tell_the_same(seed: int) -> None:
    assert not differs(seed)
