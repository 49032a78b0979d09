"""Local activities: durable one by one or in a batch, retried, cancelled, across tasks and caches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
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
from tests.unit.replay.story import Story, WorkerDied, payloads, value_of

SECOND = timedelta(seconds=1)
COMPLETED = e.WorkflowTaskCompleted
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


@pytest.mark.parametrize("together", [1, 2])
def test_each_step_is_durable_before_the_next(together: int) -> None:
    story = Story(Steps, "step", options=LOCAL)
    story.local = double
    story.recorded_together = together
    commands = story.run()
    assert story.result() == 6 + 60
    assert [type(command) for command in commands] == [c.CompleteWorkflowExecution]
    assert [type(event) for event in story.events[2:9]] == [e.WorkflowTaskStarted, *[e.MarkerRecorded] * 5, COMPLETED]
    assert story.records == (5 if together == 1 else 4)
    assert story.local_runs == [f"double-local-{n}/1" for n in range(1, 6)]
    story.replay_check()


@pytest.mark.parametrize("call", [1, 3, 4, 5])
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("signal", [False, True])
def test_a_recorded_step_is_not_run_again_by_the_next_attempt(call: int, together: int, signal: bool) -> None:
    story = Story(Steps, "step", options=LOCAL)
    story.local = double
    story.recorded_together = together
    story.dies_after_record = call
    if (call, together) == (5, 2):
        return
    with pytest.raises(WorkerDied):
        story.run()
    if signal:
        story.signal("unheard_of")
    story.run()
    assert story.result() == 66
    runs = Counter(story.local_runs)
    markers = [json.loads(bytes(m.details["data"][0]))["activity_id"] for m in story.find(e.MarkerRecorded)]
    assert sorted(markers) == [f"double-local-{n}" for n in range(1, 6)]
    # Two run at once at the end: of those, one that had not been recorded begins again.
    assert [name for name, count in runs.items() if count > 1] == (
        ["double-local-5/1"] if (call, together) == (4, 1) else []
    )
    story.replay_check()


def test_each_attempt_may_die_after_one_more_step() -> None:
    story = Story(Steps, "step", options=LOCAL)
    story.local = double
    for call in range(1, 6):
        story.dies_after_record = call
        with pytest.raises(WorkerDied):
            story.run()
    story.dies_after_record = 0
    story.run()
    assert story.result() == 66
    assert [type(event) for event in story.events].count(e.MarkerRecorded) == 5
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
        [timer] = story.find(e.TimerStarted, timer_id=str(attempt))
        assert timer.start_to_fire_timeout == timedelta(minutes=2)
        story.fire(str(attempt))
    story.run(is_cold=True)
    assert story.result() == 8
    assert story.local_runs[-1] == "later-local-1/3"
    story.replay_check()


@workflow.defn
class Two:
    @workflow.run
    async def run(self) -> int:
        first: int = await step("double", 1)
        second: int = await step("later", first)
        return second


def _two(*names: str) -> type[Any]:
    @workflow.defn(name="Two")
    class Other:
        @workflow.run
        async def run(self) -> int:
            result = 1
            for name in names:
                result = await step(name, result)
            return result

    return Other


@pytest.mark.parametrize(
    ("names", "event_id", "recorded", "attempted"),
    [
        (("double",), 5, "'later' with id 'later-local-1'", "no local activity"),
        (("later",), 4, "'double' with id 'double-local-1'", "'later' with id 'later-local-1'"),
        ((), 4, "'double' with id 'double-local-1'", "no local activity"),
        (("later", "double"), 4, "'double' with id 'double-local-1'", "'later' with id 'later-local-1'"),
        (("double", "double"), 5, "'later' with id 'later-local-1'", "'double' with id 'double-local-2'"),
        (("double", "later", "double"), 7, "WorkflowExecutionCompleted", "nothing"),
    ],
)
def test_steps_that_were_removed_swapped_or_added_are_found(
    names: tuple[str, ...], event_id: int, recorded: str, attempted: str
) -> None:
    story = Story(Two, options=LOCAL)
    story.local = lambda r: LocalActivityOutcome(sequence=r.sequence, result=payloads(1))
    story.run()
    story.replay_check(_two("double", "later"))
    with pytest.raises(NondeterminismError) as found:
        story.replay(_two(*names))
    error = found.value
    assert error.event_id == event_id
    assert recorded in error.recorded
    assert attempted in error.attempted
    assert "test_local_activities.py" in error.source_line


def _waiter(steps: int, *, beside: bool = False) -> type[Any]:
    @workflow.defn(name="Waiter")
    class Waiter:
        @workflow.run
        async def run(self) -> None:
            for n in range(steps):
                await step("double", n)
            if beside:
                workflow.start_local_activity("double", 9, start_to_close_timeout=SECOND)
            await workflow.wait_condition(lambda: False)

    return Waiter


def test_a_step_added_at_the_end_of_an_open_run_is_found_where_the_history_is_whole() -> None:
    story = Story(_waiter(2), options=LOCAL)
    story.local = double
    story.run()
    machine = story.make_machine()
    machine.replay(story.events, is_whole=True)
    for changed in (_waiter(3), _waiter(2, beside=True)):
        story.replay(changed)
        machine = story.make_machine(changed)
        with pytest.raises(NondeterminismError, match="'double' with id 'double-local-3'") as found:
            machine.replay(story.events, is_whole=True)
        assert found.value.event_id == story.events[-1].event_id


def test_a_step_under_way_at_the_end_of_a_whole_history_is_in_order() -> None:
    story = Story(_waiter(2), options=LOCAL)
    story.local = double
    story.dies_after_record = 1
    with pytest.raises(WorkerDied):
        story.run()
    for last in range(3, len(story.events) + 1):
        story.make_machine().replay(story.events[:last], is_whole=True)
    story.dies_after_record = 0
    story.is_end_wanted = True
    story.run()
    story.add(e.WorkflowTaskScheduled, task_queue="queue", start_to_close_timeout=SECOND)
    story.make_machine().replay(story.events, is_whole=True)


@workflow.defn
class StepsAndBatch:
    @workflow.run
    async def run(self) -> list[float]:
        times = [workflow.time()]
        for durable in ("batch", "batch", "step", "batch", "step", "step", "batch"):
            await step("double", 1, durable=durable)
            times.append(workflow.time())
        return [time - times[0] for time in times]


def test_what_is_recorded_takes_the_batch_along_and_time_goes_on() -> None:
    story = Story(StepsAndBatch, options=LOCAL)
    story.local = double
    story.run()
    kinds = [type(event) for event in story.events[2:]]
    completed = kinds.index(e.WorkflowTaskCompleted)
    assert kinds[1:completed] == [e.MarkerRecorded] * 6
    assert kinds[completed + 1 :] == [e.MarkerRecorded, e.WorkflowExecutionCompleted]
    assert story.result() == [0, 0, 0, 1, 1, 2, 3, 3]
    story.replay_check()


def test_an_attempt_that_dies_leaves_its_batch_too() -> None:
    story = Story(StepsAndBatch, options=LOCAL)
    story.local = double
    story.dies_after_record = 2
    with pytest.raises(WorkerDied):
        story.run()
    story.run()
    assert len(story.find(e.MarkerRecorded)) == len(story.local_runs) == 7
    story.replay_check()


@workflow.defn
class CancelsInPassing:
    """The first step to end cancels the other."""

    @workflow.run
    async def run(self, wait: bool) -> list[str]:
        kind = workflow.ActivityCancellationType
        options: dict[str, Any] = {"cancellation_type": kind.WAIT_CANCELLATION_COMPLETED if wait else kind.TRY_CANCEL}
        options["start_to_close_timeout"] = SECOND
        seen: list[str] = []
        for _ in range(2):
            first = workflow.start_local_activity("double", 1, activity_id="first", **options)
            second = workflow.start_local_activity("double", 2, activity_id="second", **options)
            seen.append(str(await first))
            third = workflow.start_local_activity("never", activity_id="third", **options)
            second.cancel()
            await asyncio.sleep(0)
            third.cancel()
            for handle in (second, third):
                try:
                    seen.append(str(await handle))
                except (ActivityError, asyncio.CancelledError) as error:
                    seen.append(type(error).__name__)
        return seen


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("together", [1, 2])
def test_a_step_that_is_cancelled_while_its_outcome_is_recorded(wait: bool, together: int) -> None:
    story = Story(CancelsInPassing, wait, options=LOCAL)
    story.recorded_together = together
    cancelled: set[int] = set()

    def run(request: LocalActivityRequest) -> LocalActivityOutcome | None:
        if request.activity_id == "third":
            return LocalActivityOutcome(sequence=request.sequence, is_cancelled=True) if cancelled else None
        return double(request)

    story.local = run
    story.keeps_cancelled = wait
    story.on_cancelled = cancelled.update
    while not story.is_closed:
        cancelled.clear()
        story.run()
    second = "4" if wait else "CancelledActivityError"
    assert story.result() == ["2", second, "CancelledActivityError"] * 2
    story.replay_check()


@workflow.defn
class Patched:
    @workflow.run
    async def run(self) -> list[bool]:
        seen = []
        for n in range(2):
            await step("double", n)
            seen.append(workflow.patched("new"))
            seen.append(workflow.unsafe.is_replaying())
        return seen


def test_a_patch_asked_for_by_an_attempt_that_died() -> None:
    story = Story(Patched, options=LOCAL)
    story.local = double
    story.dies_after_record = 1
    with pytest.raises(WorkerDied):
        story.run()
    while not story.is_closed:
        story.run()
    assert story.result() == [True, False, True, False], "what the dead attempt did not record is new"
    assert len(story.find(e.MarkerRecorded, marker_name="core_patch")) == 1
    story.replay_check(Patched)


@workflow.defn
class Asked:
    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    async def run(self) -> int:
        for n in range(3):
            await step("double", n)
            self.count += 1
        return self.count

    @workflow.query
    def how_many(self) -> int:
        return self.count


def test_a_task_that_is_wanted_to_end_ends_after_the_step_and_goes_on_in_the_next() -> None:
    story = Story(Asked, options=LOCAL)
    story.local = double
    story.is_end_wanted = True
    for count in (1, 2):
        assert story.run(is_cold=count == 2) == []
        completion = story.results[-1].completion
        assert isinstance(completion, CompleteWorkflowTaskRequest)
        assert completion.force_create_new_workflow_task
        assert story.query("how_many") == story.query("how_many", is_cold=True) == count
    story.run()
    assert story.result() == 3
    story.replay_check()


def test_a_machine_that_was_made_for_a_question_goes_on_from_the_middle_of_a_task() -> None:
    story = Story(Asked, options=LOCAL)
    story.local = double
    story.dies_after_record = 2
    with pytest.raises(WorkerDied):
        story.run()
    history, story.events = story.events, story.events[:4]
    machine = story.machine = story.make_machine()
    assert story.query("how_many") == 1
    story.events = history
    machine.replay(story.events[4:])
    assert story.query("how_many") == 2
    story.run()
    assert story.result() == 3
    assert story.local_runs == [f"double-local-{n}/1" for n in (1, 2, 3)]


def test_mismatches_of_local_activities() -> None:
    story = Story(Patient, options=LOCAL)
    story.local = lambda r: LocalActivityOutcome(sequence=r.sequence, result=payloads(1))
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
