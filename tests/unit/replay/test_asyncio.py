"""asyncio inside workflow code: ordered, durable, and the same on replay (cases A of the design)."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ActivityError
from clew.model import commands as c
from clew.model import events as e
from clew.replay import MachineOptions
from tests.unit.replay.story import Story

SECOND = timedelta(seconds=1)


async def act(name: str, *args: Any, **options: Any) -> Any:
    return await workflow.execute_activity(name, args=args, start_to_close_timeout=SECOND, **options)


# --- C001 ----------------------------------------------------------------------------------------


@workflow.defn
class Waits:
    @workflow.run
    async def run(self, how: str) -> list[int]:
        order: list[int] = []
        if how == "as_completed":
            for next_done in asyncio.as_completed({asyncio.create_task(act("a", i)) for i in range(8)}):
                order.append(await next_done)
                await act("b", order[-1])
        elif how == "coroutines":
            for next_done in asyncio.as_completed([act("a", i) for i in range(8)]):
                order.append(await next_done)
        else:
            pending: Any = {asyncio.create_task(act("a", i)) for i in range(8)}
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    order.append(task.result())
                    if how == "wait":
                        await act("b", order[-1])
        return order


@pytest.mark.parametrize("how", ["wait", "as_completed", "coroutines", "many"])
def test_c001_order_of_wait_is_that_of_creation(how: str) -> None:
    story = Story(Waits, how)
    garbage = [object() for _ in range(1000)]
    story.run()
    assert [x.activity_id for x in story.find(e.ActivityTaskScheduled)] == [f"a-{i}" for i in range(1, 9)]
    for i in (5, 2, 7):
        story.complete_activity(f"a-{i}", i)
    story.run()
    for i in (8, 1, 3, 4, 6):
        story.complete_activity(f"a-{i}", i)
    story.run()
    n = 0
    while not story.is_closed:
        n += 1
        story.complete_activity(f"b-{n}")
        story.run(is_cold=n % 2 == 0)
    del garbage[::2]
    if how in ("as_completed", "coroutines"):
        assert story.result() == [5, 2, 7, 8, 1, 3, 4, 6]  # in the order of history
    else:
        assert sorted(story.result()) == list(range(1, 9))
    story.replay_check()


async def test_wait_outside_of_workflows_is_untouched() -> None:
    tasks = {asyncio.create_task(asyncio.sleep(0)) for _ in range(3)}
    done, pending = await asyncio.wait(tasks)
    assert type(done) is set
    assert done == tasks
    assert pending == set()
    assert sorted([await f for f in asyncio.as_completed([asyncio.sleep(0, i) for i in range(2)])]) == [0, 1]


# --- C003 ----------------------------------------------------------------------------------------


@workflow.defn
class Queued:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[int | None] = asyncio.Queue()

    @workflow.run
    async def run(self) -> list[int]:
        items: list[int] = []
        while True:
            try:
                item = await asyncio.wait_for(self.queue.get(), 1)
            except TimeoutError:
                continue
            if item is None:
                return items
            items.append(item)

    @workflow.signal
    def put(self, item: int | None) -> None:
        self.queue.put_nowait(item)


@pytest.mark.parametrize("timer_first", [True, False])
def test_c003_an_item_that_meets_the_timeout_is_kept(timer_first: bool) -> None:
    story = Story(Queued)
    story.run()
    for k in range(1, 31):
        timer = story.find(e.TimerStarted)[-1].timer_id
        if timer_first:
            story.fire(timer)
        story.signal("put", k)
        if not timer_first:
            story.fire(timer)
        story.run(is_cold=k % 7 == 0)
    story.signal("put", None)
    story.run()
    assert story.result() == list(range(1, 31))
    story.replay()


# --- C004 ----------------------------------------------------------------------------------------


@workflow.defn
class Sleeps:
    @workflow.run
    async def run(self) -> int:
        tasks = [
            asyncio.create_task(workflow.sleep(3600)),
            asyncio.create_task(asyncio.sleep(3600)),
            asyncio.create_task(workflow.wait_condition(lambda: False, timeout=3600)),
        ]
        await workflow.wait_condition(lambda: True, timeout=9)
        await workflow.sleep(1)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await workflow.sleep(5)
        return sum(isinstance(o, asyncio.CancelledError) for o in outcomes)


def test_c004_a_cancelled_sleep_cancels_its_timer(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(Sleeps)
    assert [x.start_to_fire_timeout.total_seconds() for x in story.run()] == [1, 3600, 3600, 3600]
    story.fire("1")
    commands = story.run()
    assert [type(x) for x in commands] == [c.CancelTimer] * 3 + [c.StartTimer]
    story.fire("5")
    story.run()
    assert story.result() == 3
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    story.replay_check()


# --- C008, C009, C010, C089: leaving the cache runs no user code ------------------------------------

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
RAN: list[str] = []


async def numbers() -> AsyncIterator[int]:
    try:
        for i in range(5):
            yield await act("next", i)
    finally:
        RAN.append("generator")
        await act("close")


@workflow.defn
class Stubborn:
    def __init__(self) -> None:
        self.caught = 0

    @workflow.run
    async def run(self, how: str) -> None:
        token = TENANT.set(how)
        try:
            while True:
                try:
                    await self.park(how)
                except Exception:  # noqa: BLE001 (the case)
                    self.caught += 1
                    workflow.logger.error("caught")
                except BaseException:
                    RAN.append("base")
                    if how == "base":
                        continue
                    raise
                finally:
                    RAN.append("finally")
        finally:
            TENANT.reset(token)
            await act("never")

    async def park(self, how: str) -> None:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(workflow.sleep(3600))
                await asyncio.shield(act("shielded"))
        elif how == "generator":
            async for _ in numbers():
                pass
        elif how == "lock":
            lock = asyncio.Lock()
            async with lock:
                await lock.acquire()
        else:
            await workflow.sleep(3600)

    @workflow.query
    def count(self) -> int:
        return self.caught


@pytest.mark.parametrize("how", ["exception", "base", "group", "generator", "lock"])
def test_c008_eviction_runs_no_line_of_the_run(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    RAN.clear()
    story = Story(Stubborn, how)
    story.run()
    before = len(story.events)
    for _ in range(5):
        story.cold()
        gc.collect()
        assert story.query("count", is_cold=True) == 0
    story.cold()
    gc.collect()
    assert RAN == []
    assert not caplog.records
    assert not unraisable
    assert len(story.events) == before
    story.replay_check()
    gc.collect()
    assert RAN == []
    assert not unraisable


class Marker:
    """What a waiting run has in its frame."""


MARKERS: weakref.WeakSet[Marker] = weakref.WeakSet()


@workflow.defn
class Waiting:
    @workflow.run
    async def run(self, how: str) -> None:
        marker = Marker()
        MARKERS.add(marker)
        match how:
            case "sleep":
                await workflow.sleep(3600)
            case "activity":
                await act("a")
            case "condition":
                await workflow.wait_condition(lambda: marker is None)
            case "condition with a timeout":
                await workflow.wait_condition(lambda: marker is None, timeout=3600)
            case "several":
                await asyncio.gather(workflow.sleep(3600), act("a"), asyncio.Event().wait())


@pytest.mark.parametrize("how", ["sleep", "activity", "condition", "condition with a timeout", "several"])
def test_an_evicted_run_leaves_nothing_for_the_collector(how: str) -> None:
    story = Story(Waiting, how)
    story.run()
    gc.collect()
    gc.disable()
    try:
        assert len(MARKERS) == 1
        story.cold()
        assert not MARKERS
    finally:
        gc.enable()
    story.replay_check()


@workflow.defn
class Generating:
    @workflow.run
    async def run(self, how: str) -> str:
        if how == "closing":
            async with aclosing(numbers()) as source:  # type: ignore[type-var]
                async for x in source:
                    if x == 2:
                        break
        else:
            async for x in numbers():
                if x == 2:
                    break
        if how != "return":
            await workflow.sleep(2)
        return "done"


@pytest.mark.parametrize("how", ["closing", "plain", "return"])
def test_c009_an_abandoned_generator_behaves_alike_always(how: str) -> None:
    story = Story(Generating, how)
    story.run()
    for i in range(3):
        gc.collect()
        story.complete_activity(f"next-{i + 1}", i)
        story.run(is_cold=i == 1)
    closes = story.find(e.ActivityTaskScheduled, activity_type="close")
    assert len(closes) == (1 if how == "closing" else 0)
    if closes:
        story.complete_activity("close-1")
        story.run()
    if not story.is_closed:
        story.cold()
        gc.collect()
        story.fire("1")
        story.run()
    assert story.result() == "done"
    count = len(story.events)
    story.cold()
    gc.collect()
    assert len(story.events) == count
    story.replay_check()


class Tenants(workflow.WorkflowInboundInterceptor):
    async def execute_workflow(self, input: workflow.ExecuteWorkflowInput) -> Any:
        token = TENANT.set(str(input.args[0]))
        try:
            return await super().execute_workflow(input)
        finally:
            TENANT.reset(token)

    async def handle_signal(self, input: workflow.HandleSignalInput) -> None:
        token = TENANT.set("signal")
        try:
            await super().handle_signal(input)
        finally:
            TENANT.reset(token)


@workflow.defn
class Tenanted:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.done = False

    @workflow.run
    async def run(self, tenant: str) -> list[str]:
        self.seen.append(TENANT.get())
        await asyncio.gather(self.look(), asyncio.create_task(self.look()))
        await workflow.wait_condition(lambda: self.done)
        self.seen.append(TENANT.get())
        return self.seen

    async def look(self) -> None:
        await workflow.sleep(1)
        self.seen.append(TENANT.get())

    @workflow.signal
    async def finish(self) -> None:
        await act("x")
        self.seen.append(TENANT.get())
        self.done = True


def test_c010_context_variables_stay_with_their_run() -> None:
    stories = [Story(Tenanted, name, options=MachineOptions(interceptors=[Tenants])) for name in "xy"]
    for story in stories:
        story.run()
    for story in stories:
        story.fire("1")
        story.fire("2")
        story.signal("finish")
        story.run(is_cold=True)
    for story, name in zip(stories, "xy", strict=True):
        story.complete_activity("x-1")
        story.run(is_cold=name == "x")
        assert story.result() == [name, name, name, "signal", name]
        story.replay_check()
    assert TENANT.get() == "none"


# --- C011, C012, C013, C014, C017 ------------------------------------------------------------------


@workflow.defn
class Forgetful:
    def __init__(self) -> None:
        self.done: list[int] = []

    @workflow.run
    async def run(self, count: int) -> list[int]:
        await workflow.wait_condition(lambda: len(self.done) == count)
        return self.done

    @workflow.signal
    async def go(self, n: int) -> None:
        asyncio.create_task(self.background(n))  # noqa: RUF006 (nobody keeps it, on purpose)

    async def background(self, n: int) -> None:
        cycle: list[Any] = [asyncio.current_task()]
        cycle.append(cycle)
        if n < 0:
            raise ValueError("lost")
        await act("work", n)
        self.done.append(n)


def test_c011_a_task_that_nobody_holds_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(Forgetful, 30)
    for n in range(30):
        story.signal("go", n)
    story.run()
    for n in range(30):
        gc.collect(2)
        story.complete_activity(f"work-{n + 1}")
        story.run(is_cold=n == 13)
    assert story.result() == list(range(30))
    story.replay()
    story = Story(Forgetful, 1)
    story.signal("go", -1)
    story.run()
    gc.collect()
    story.run(is_cold=True)
    gc.collect()
    [record] = [r for r in caplog.records if "lost_error" in r.getMessage()]
    assert "run_id=run-1" in record.getMessage()


@workflow.defn
class Gathering:
    @workflow.run
    async def run(self, how: str) -> Any:
        if how == "kept":
            return [repr(type(x).__name__) for x in await asyncio.gather(act("f"), act("s"), return_exceptions=True)]
        tasks = [asyncio.create_task(act("f")), asyncio.create_task(act("s"))]
        try:
            return await asyncio.gather(*tasks)
        except ActivityError:
            if how == "uncaught":
                raise
            return await tasks[1]


def test_c012_gather() -> None:
    story = Story(Gathering, "caught")
    story.run()
    story.fail_activity("f-1")
    assert story.run() == []
    story.complete_activity("s-1", "slow")
    story.run()
    assert story.result() == "slow"
    story.replay_check()
    story = Story(Gathering, "uncaught")
    story.run()
    story.fail_activity("f-1")
    story.complete_activity("s-1", "slow")
    assert isinstance(story.run()[-1], c.FailWorkflowExecution)
    story.replay_check()
    story = Story(Gathering, "kept")
    story.run()
    story.complete_activity("s-1", "slow")
    story.fail_activity("f-1")
    story.run()
    assert story.result() == ["'ActivityError'", "'str'"]


@workflow.defn
class Locking:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.order: list[int] = []
        self.tasks: dict[int, Any] = {}

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_condition(lambda: len(self.order) == 5)
        return self.order

    @workflow.update
    async def u(self, i: int) -> int:
        self.tasks[i] = asyncio.current_task()
        async with self.lock:
            await act("hold", i)
            self.order.append(i)
        return i

    @workflow.signal
    def drop(self, i: int) -> None:
        self.tasks[i].cancel()


@pytest.mark.parametrize("drop_first", [True, False])
def test_c013_a_cancelled_waiter_passes_the_lock_on(drop_first: bool) -> None:
    story = Story(Locking)
    for i in range(1, 7):
        story.update("u", i)
    story.run()
    if drop_first:
        story.signal("drop", 2)
    story.complete_activity("hold-1")
    if not drop_first:
        story.signal("drop", 2)
    story.run()
    n = 1
    while not story.is_closed:
        n += 1
        open_ids = [x for x in story.find(e.ActivityTaskScheduled) if x.activity_id == f"hold-{n}"]
        if open_ids and not story.find(e.ActivityTaskCompleted, scheduled_event_id=open_ids[0].event_id):
            story.complete_activity(f"hold-{n}")
            story.run()
        assert n < 12
    assert story.result() == [1, 3, 4, 5, 6]
    assert "cancelled" in story.updates["u2"].failure.message.lower()
    story.replay_check()


@workflow.defn
class Racing:
    def __init__(self) -> None:
        self.got: set[str] = set()

    @workflow.run
    async def run(self) -> str:
        signal = asyncio.create_task(workflow.wait_condition(lambda: "A" in self.got))
        timer = asyncio.create_task(workflow.sleep(1))
        done, _ = await workflow.wait([timer, signal], return_when=asyncio.FIRST_COMPLETED)
        if done[0] is not signal:
            return "timeout"
        await workflow.wait_condition(lambda: "B" in self.got)
        return "A,B"

    @workflow.signal
    def give(self, name: str) -> None:
        self.got.add(name)


def test_c017_the_loser_of_a_race_stays_the_loser() -> None:
    story = Story(Racing)
    story.run()
    story.signal("give", "A")
    story.run()
    story.fire("1")
    story.run()
    story.signal("give", "B")
    story.run(is_cold=True)
    assert story.result() == "A,B"
    story.replay_check()


@workflow.defn
class Timeouts:
    @workflow.run
    async def run(self) -> list[str]:
        seen: list[str] = []
        try:
            async with asyncio.timeout(1):
                await act("slow")
        except TimeoutError:
            seen.append("timeout")
        try:
            await asyncio.wait_for(act("slow"), 1)
        except TimeoutError:
            seen.append("wait_for")
        try:
            async with asyncio.timeout(5):
                await act("slow")
                seen.append("in time")
        except TimeoutError:
            seen.append("wrong")
        task = asyncio.current_task()
        assert task is not None
        seen.append(str(task.cancelling()))
        return seen


def test_timeouts_around_activities() -> None:
    story = Story(Timeouts)
    story.run()
    story.fire(story.find(e.TimerStarted)[-1].timer_id)
    story.run()
    story.fire(story.find(e.TimerStarted)[-1].timer_id)
    story.run()
    story.complete_activity("slow-3")
    story.run()
    assert story.result() == ["timeout", "wait_for", "in time", "0"]
    assert len(story.find(e.ActivityTaskCancelRequested)) == 2
    story.replay_check()


# --- C042, C043 --------------------------------------------------------------------------------------


@workflow.defn
class Durations:
    @workflow.run
    async def run(self) -> str:
        before = workflow.now()
        for seconds in (0, -1, -(10**9)):
            await workflow.sleep(seconds)
            await asyncio.sleep(seconds)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await workflow.wait_condition(lambda: False, timeout=-1)
        assert workflow.now() == before
        with pytest.raises(ValueError, match="100 years"):
            await workflow.sleep(timedelta.max)
        with pytest.raises(ValueError, match="100 years"):
            await asyncio.sleep(float("inf"))
        await workflow.sleep(1e-7)
        await asyncio.sleep(1.0005)
        return "ok"


def test_c042_only_positive_durations_start_timers() -> None:
    story = Story(Durations)
    assert [x.start_to_fire_timeout for x in story.run()] == [timedelta(milliseconds=1)]
    story.fire("1")
    [timer] = story.run()
    assert timer.start_to_fire_timeout == timedelta(microseconds=1_000_500)
    story.fire(timer.timer_id)
    story.run()
    assert story.result() == "ok"
    story.replay_check()


# --- what is refused -----------------------------------------------------------------------------------


@workflow.defn
class Reaching:
    @workflow.run
    async def run(self, how: str) -> None:
        loop = asyncio.get_running_loop()
        if how == "thread":
            await asyncio.to_thread(print)
        elif how == "socket":
            await asyncio.open_connection("localhost", 1)
        elif how == "process":
            await asyncio.create_subprocess_exec("true")
        elif how == "signal":
            loop.add_signal_handler(2, print)


@pytest.mark.parametrize(
    ("how", "remedy"),
    [("thread", "activity"), ("socket", "activity"), ("process", "activity"), ("signal", "@workflow.signal")],
)
def test_what_reaches_outside_is_refused_with_the_remedy(how: str, remedy: str) -> None:
    failure = Story(Reaching, how).failure()
    assert remedy in failure.message
