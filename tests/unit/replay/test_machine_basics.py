"""The machine: activities, timers, signals, queries, cancellation, ends, and replay of each."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.exceptions import ActivityError, ApplicationError, NondeterminismError
from clew.model import commands as c
from clew.model import events as e
from tests.unit.replay.story import Story, value_of

SECOND = timedelta(seconds=1)


@activity.defn
async def greet(name: str) -> str:
    return f"Hello {name}"


async def act(name: str, *args: Any, **options: Any) -> Any:
    return await workflow.execute_activity(name, args=args, start_to_close_timeout=SECOND, **options)


@workflow.defn
class Greeter:
    @workflow.run
    async def run(self, name: str) -> str:
        greeting = await workflow.execute_activity(greet, name, start_to_close_timeout=SECOND)
        await workflow.sleep(5)
        await asyncio.sleep(3)
        return f"{greeting}!"


def test_activity_timers_result() -> None:
    story = Story(Greeter, "Ada")
    [scheduled] = story.run()
    assert isinstance(scheduled, c.ScheduleActivityTask)
    assert (scheduled.activity_id, scheduled.activity_type, scheduled.task_queue) == ("greet-1", "greet", "queue")
    assert value_of(scheduled.input) == "Ada"
    story.complete_activity("greet-1", "Hello Ada")
    [timer] = story.run()
    assert timer == c.StartTimer(timer_id="1", start_to_fire_timeout=timedelta(seconds=5))
    story.fire("1")
    [timer] = story.run(is_cold=True)
    assert timer == c.StartTimer(timer_id="2", start_to_fire_timeout=timedelta(seconds=3))
    story.fire("2")
    [done] = story.run()
    assert isinstance(done, c.CompleteWorkflowExecution)
    assert story.result() == "Hello Ada!"
    story.replay_check()


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.done = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self.done)
        return self.items

    @workflow.signal
    def add(self, item: str) -> None:
        self.items.append(item)

    @workflow.signal(name="finish")
    async def stop(self) -> None:
        await act("stop")
        self.done = True

    @workflow.query
    def count(self) -> int:
        return len(self.items)

    @workflow.query
    def naughty(self) -> int:
        self.done = True
        return 1

    @workflow.query
    def very_naughty(self) -> int:
        asyncio.get_running_loop().create_task(asyncio.sleep(0))
        return 1


def test_signals_and_queries() -> None:
    story = Story(Counter)
    story.signal("add", "a")
    assert story.run() == []
    assert story.query("count") == 1
    story.signal("add", "b")
    story.signal("finish")
    assert len(story.run()) == 1
    assert story.query("count", is_cold=True) == 2
    with pytest.raises(ApplicationError, match="no query 'nope'"):
        story.query("nope")
    with pytest.raises(Exception, match=r"query 'naughty'.*self\.done"):
        story.query("naughty")
    with pytest.raises(Exception, match="query 'very_naughty' of workflow 'Counter' tried to start a task"):
        story.query("very_naughty")
    story.complete_activity("stop-1")
    story.run()
    assert story.result() == ["a", "b"]
    assert story.query("count", is_cold=True) == 2
    story.replay_check()


@workflow.defn
class Cancellable:
    @workflow.run
    async def run(self, kind: int) -> str:
        try:
            await act("work", cancellation_type=workflow.ActivityCancellationType(kind))
        except asyncio.CancelledError:
            await act("cleanup")
            raise
        await workflow.sleep(60)
        return "done"


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_cancel(kind: int) -> None:
    story = Story(Cancellable, kind)
    story.run()
    story.request_cancel("because")
    commands = story.run()
    if kind == 1:
        assert commands == [c.RequestCancelActivityTask(scheduled_event_id=5)]
        story.cancel_activity("work-1")
        commands = story.run(is_cold=True)
    if kind == 0:
        assert commands[0] == c.RequestCancelActivityTask(scheduled_event_id=5)
    assert commands[-1].activity_id == "cleanup-1"
    story.complete_activity("cleanup-1")
    assert story.run() == [c.CancelWorkflowExecution()]
    story.replay_check()


def test_cancel_is_not_lost_when_a_waited_for_activity_completes_after_all() -> None:
    story = Story(Cancellable, 1)
    story.run()
    story.request_cancel()
    story.run()
    story.complete_activity("work-1")
    # The result is taken, the sleep after it is cancelled: start and cancel of its timer come to nothing.
    assert story.run() == [c.CancelWorkflowExecution()]
    story.replay_check()


@pytest.mark.parametrize("cancel_first", [True, False])
def test_cancel_and_completion_in_one_task(cancel_first: bool) -> None:
    story = Story(Cancellable, 0)
    story.run()
    if cancel_first:
        story.request_cancel()
    story.complete_activity("work-1")
    if not cancel_first:
        story.request_cancel()
    commands = story.run()
    if cancel_first:
        assert [x.activity_id for x in commands] == ["cleanup-1"]  # no request to cancel what is over
        story.complete_activity("cleanup-1")
        commands = story.run()
    assert commands == [c.CancelWorkflowExecution()]
    story.replay_check()


def test_cancel_before_the_first_task() -> None:
    story = Story(Cancellable, 0)
    story.request_cancel()
    story.signal("nobody")
    commands = story.run()
    assert [x.activity_id for x in commands] == ["cleanup-1"]
    story.complete_activity("cleanup-1")
    assert story.run() == [c.CancelWorkflowExecution()]
    story.replay_check()


@workflow.defn
class Failing:
    @workflow.run
    async def run(self, how: str) -> None:
        if how == "application":
            raise ApplicationError("no", type="No")
        if how == "timeout":
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        if how == "activity":
            await act("boom")
        if how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(act("a"))
                group.create_task(act("b"))
                group.create_task(act("c"))
        raise ValueError("bug")


def test_failures() -> None:
    story = Story(Failing, "application")
    story.run()
    assert story.close_failure().message == "no"
    story = Story(Failing, "timeout")
    story.run()
    story.fire("1")
    story.run()
    assert story.close_failure() is not None
    story.replay_check()
    story = Story(Failing, "activity")
    story.run()
    story.fail_activity("boom-1", "it broke")
    story.run()
    assert story.close_failure().cause.message == "it broke"  # type: ignore[union-attr]
    story.replay_check()
    story = Story(Failing, "bug")
    assert "bug" in story.failure().message
    assert "bug" in story.failure().message


def test_group_fails_the_run_and_cancels_its_siblings_in_order() -> None:
    story = Story(Failing, "group")
    story.run()
    story.fail_activity("b-1")
    commands = story.run()
    assert [getattr(x, "scheduled_event_id", None) for x in commands] == [5, 7, None]
    assert isinstance(commands[-1], c.FailWorkflowExecution)
    story.replay_check()


@workflow.defn
class Raced:
    def __init__(self) -> None:
        self.flag = False

    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: self.flag, timeout=1)
        except TimeoutError:
            await workflow.wait_condition(lambda: self.flag)
            return "late"
        return "in time"

    @workflow.signal
    def go(self) -> None:
        self.flag = True


@pytest.mark.parametrize("timer_first", [True, False])
def test_timeout_and_signal_in_one_task_go_by_history(timer_first: bool) -> None:
    story = Story(Raced)
    story.run()
    if timer_first:
        story.fire("1")
    story.signal("go")
    if not timer_first:
        story.fire("1")
    assert [type(x) for x in story.run()] == [c.CompleteWorkflowExecution]
    assert story.result() == ("late" if timer_first else "in time")
    story.replay_check()


def test_mismatches_name_both_sides() -> None:
    story = Story(Greeter, "Ada")
    story.run()
    story.complete_activity("greet-1", "Hello Ada")
    story.run()
    story.fire("1")

    @workflow.defn(name="Greeter")
    class Changed:
        @workflow.run
        async def run(self, name: str) -> str:
            await workflow.sleep(5)
            return "x"

    story.cold()
    story.definition = workflow._definition.Definition.must_from_class(Changed)
    failure = story.failure()
    assert "event 5" in failure.message
    assert "Recorded: ActivityTaskScheduled" in failure.message
    assert "Attempted: StartTimer '1' of 5 s" in failure.message
    assert "test_machine_basics.py" in failure.message
    assert story.events[-1].cause is e.WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR
    with pytest.raises(NondeterminismError):
        story.replay()


def test_stack_names_lines() -> None:
    story = Story(Greeter, "Ada")
    result = story.task()
    [line] = result.completion.waiting_on  # type: ignore[union-attr]
    assert line.startswith("execute_activity @ ")
    assert "test_machine_basics.py" in line
    assert story.machine is not None
    assert "greeting = await workflow.execute_activity" in story.machine.stack()
    assert "greeting = await" in story.query("__stack_trace")


def test_activity_error_is_catchable() -> None:
    @workflow.defn
    class Catching:
        @workflow.run
        async def run(self) -> str:
            try:
                await act("boom")
            except ActivityError as error:
                return f"{error.activity_id} {getattr(error.cause, 'type', None)}"
            return "?"

    story = Story(Catching)
    story.run()
    story.fail_activity("boom-1")
    story.run()
    assert story.result() == "boom-1 Broken"
    story.replay_check()


def test_what_a_usual_run_keeps_stays_beside_its_objects() -> None:
    """One attribute more, and CPython 3.11 makes a dictionary of all of them, for each run."""
    story = Story(Greeter, "Ada")
    story.run()
    story.complete_activity("greet-1", "Hello Ada")
    story.run()
    assert story.machine is not None
    for part in (story.machine, story.machine._runtime, story.machine._loop):
        assert len(vars(part)) <= 30, sorted(vars(part))
