"""Local activities: durable one by one or in a batch, retried, cancelled, across tasks and caches."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ActivityError, NondeterminismError
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest
from clew.replay import LocalActivityOutcome, LocalActivityRequest, MachineOptions
from tests.unit.replay.story import Story, payloads, value_of

SECOND = timedelta(seconds=1)
LOCAL = MachineOptions(runs_local_activities=True)


async def step(name: str, *args: Any, **options: Any) -> Any:
    return await workflow.execute_local_activity(name, args=args, start_to_close_timeout=SECOND, **options)


def double(request: LocalActivityRequest) -> LocalActivityOutcome | None:
    if request.activity_type == "never":
        return None
    if request.activity_type == "bad":
        failure = Failure(message="bad", info=ApplicationInfo(type="Bad"))
        return LocalActivityOutcome(sequence=request.sequence, failure=failure)
    if request.activity_type == "later" and request.attempt < 3:
        failure = Failure(message="not yet", info=ApplicationInfo(type="NotYet"))
        return LocalActivityOutcome(
            sequence=request.sequence, failure=failure, attempt=request.attempt, backoff=timedelta(minutes=2)
        )
    return LocalActivityOutcome(sequence=request.sequence, result=payloads(value_of(request.payloads) * 2))


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, durable: str) -> Any:
        total = 0
        for n in range(3):
            total += await step("double", n, durable=durable)
        total += sum(await asyncio.gather(*[step("double", n, durable=durable) for n in (10, 20)]))
        return total


def test_each_step_is_durable_before_the_next() -> None:
    story = Story(Steps, "step", options=LOCAL)
    story.local = double
    count = 0
    while not story.is_closed:
        result = story.task(is_cold=count % 2 == 1)
        completion = result.completion
        assert isinstance(completion, CompleteWorkflowTaskRequest)
        assert completion.force_create_new_workflow_task == (not story.is_closed)
        assert len([x for x in completion.commands if isinstance(x, c.RecordMarker)]) <= 1
        count += 1
    assert story.result() == 6 + 60
    assert len(story.find(e.MarkerRecorded)) == 5
    assert [r.split("/")[0] for r in story.local_runs[:4]] == [f"double-local-{n}" for n in range(1, 5)]
    story.replay_check()


def test_a_batch_is_recorded_with_its_task() -> None:
    story = Story(Steps, "batch", options=LOCAL)
    story.local = double
    while not story.is_closed:
        story.task()
    assert story.result() == 66
    assert len(story.find(e.WorkflowTaskCompleted)) == 1
    assert story.local_runs == [f"double-local-{n}/1" for n in range(1, 6)]
    story.replay_check()


@workflow.defn
class Mixed:
    def __init__(self) -> None:
        self.poked = 0

    @workflow.run
    async def run(self) -> list[Any]:
        activity = workflow.start_activity("a", start_to_close_timeout=SECOND)
        try:
            await step("bad")
        except ActivityError as error:
            first = str(error.cause)
        slow = workflow.start_local_activity("never", start_to_close_timeout=SECOND)
        await workflow.wait_condition(lambda: self.poked > 0)
        slow.cancel()
        outcome = (await asyncio.gather(slow, return_exceptions=True))[0]
        return [first, isinstance(outcome, asyncio.CancelledError), await activity]

    @workflow.signal
    def poke(self) -> None:
        self.poked += 1


def test_commands_do_not_wait_for_local_activities_and_cancel_reaches_them() -> None:
    story = Story(Mixed, options=LOCAL)
    story.local = double
    commands = story.run()
    assert isinstance(commands[0], c.ScheduleActivityTask)
    story.run()
    story.run()
    assert [r.activity_type for r in story.running_local] == ["never"]
    completion = story.results[-1].completion
    assert isinstance(completion, CompleteWorkflowTaskRequest)
    assert completion.force_create_new_workflow_task
    assert not completion.commands  # it was only extended
    story.signal("poke")
    story.run()
    assert story.running_local == []
    story.complete_activity("a-1", "A")
    story.run(is_cold=True)
    assert story.result() == ["Bad: bad", True, "A"]
    story.replay_check()


@workflow.defn
class Patient:
    @workflow.run
    async def run(self) -> int:
        result: int = await step("later", 4)
        return result


def test_a_long_back_off_is_a_durable_timer() -> None:
    story = Story(Patient, options=LOCAL)
    story.local = double
    for attempt in (1, 2):
        story.run(is_cold=attempt == 2)
        story.run(is_cold=True)
        [timer] = story.find(e.TimerStarted, timer_id=str(attempt))
        assert timer.start_to_fire_timeout == timedelta(minutes=2)
        story.fire(str(attempt))
    story.run(is_cold=True)
    story.run()
    assert story.result() == 8
    assert story.local_runs[-1] == "later-local-1/3"
    story.replay_check()


def test_mismatches_of_local_activities() -> None:
    story = Story(Patient, options=LOCAL)
    story.local = lambda r: LocalActivityOutcome(sequence=r.sequence, result=payloads(1))
    story.run()
    story.run()
    assert story.result() == 1

    @workflow.defn(name="Patient")
    class Other:
        @workflow.run
        async def run(self) -> int:
            result: int = await step("sooner", 4)
            return result

    with pytest.raises(NondeterminismError, match="local activity 'later'"):
        story.replay(Other)


def test_without_a_runner_the_error_says_so() -> None:
    assert "no part that runs local activities" in Story(Patient).failure().message
