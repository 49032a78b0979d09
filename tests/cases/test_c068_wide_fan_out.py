"""C068: wide fan-outs and long runs cost the same at each step.

The documented limits (semantics 1.2): 2 000 pending activities of a run, and continue-as-new is suggested from 4 096
events on.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from clew import activity, workflow
from clew.converter import DataConverter
from clew.model import events as e
from clew.model.history import WorkflowHistory
from clew.model.limits import LIMITS_DEFAULT
from clew.replay import MachineOptions, WorkflowMachine
from clew.testing import ManualClock
from clew.workflow._definition import Definition
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, settled, within, worker

WIDTHS = (250, 500, 1_000, 2_000)
STEPS = 2_000
TURNS = 8
FACTOR_MAX = 2.0
LATE_FACTOR_MAX = 2.0
"""Of the last steps of a run of more than 4,096 events. Were each to read what lies before, it would be a hundred."""
TURN_STEPS = 50


cpu_seconds: list[float] = []


@activity.defn
async def trivial(number: int) -> int:
    cpu_seconds.append(time.process_time())
    return number


@workflow.defn
class FansOut:
    @workflow.run
    async def run(self, width: int) -> int:
        numbers = await asyncio.gather(*(workflow.execute_activity(trivial, n, **ACTIVITY) for n in range(width)))
        assert numbers == list(range(width))
        return len(numbers)


@workflow.defn
class Sequence:
    """Takes steps one after another, as many as it has been allowed so far."""

    def __init__(self) -> None:
        self.suggested_at = 0
        self.allowed = 0

    @workflow.signal
    def allow(self, steps: int) -> None:
        self.allowed += steps

    @workflow.run
    async def run(self, steps: int) -> int:
        for number in range(steps):
            if number >= self.allowed:
                await workflow.wait_condition(lambda number=number: number < self.allowed)  # type: ignore[misc]
            await workflow.execute_activity(trivial, number, **ACTIVITY)
            if not self.suggested_at and workflow.info().is_continue_as_new_suggested():
                self.suggested_at = workflow.info().get_current_history_length()
        return self.suggested_at


async def test_replay_time_per_event_is_flat(recorded: Recorded) -> None:
    async with engine() as client, worker(client, [FansOut], [trivial]):
        histories: dict[int, WorkflowHistory] = {}
        for width in WIDTHS:
            handle = await client.start_workflow(FansOut.run, width, id=f"wide-{width}", task_queue=QUEUE)
            assert await settled(handle, 40) == width
            histories[width] = await handle.fetch_history()
        per_event = dict.fromkeys(WIDTHS, float("inf"))
        # Turn by turn, so that a slow moment of the machine does not fall on one width alone.
        for _ in range(TURNS):
            for width, history in histories.items():
                seconds = await asyncio.to_thread(_replay_seconds_per_event, history)
                per_event[width] = min(per_event[width], seconds)
        assert per_event[WIDTHS[-1]] < FACTOR_MAX * per_event[WIDTHS[0]], per_event
        await recorded.add(client.get_workflow_handle("wide-250"), FansOut)


def _replay_seconds_per_event(history: WorkflowHistory) -> float:
    """CPU time of a cold replay, on this thread alone, so that other work on the machine hardly counts."""
    converter = DataConverter.default
    machine = WorkflowMachine(
        definition=Definition.must_from_class(FansOut),
        namespace="default",
        task_queue=QUEUE,
        workflow_id="wide",
        run_id=history.run_id,
        workflow_type="FansOut",
        payload_converter=converter.payload_converter,
        failure_converter=converter.failure_converter,
        limits=LIMITS_DEFAULT,
        options=MachineOptions(),
    )
    begin = time.thread_time()
    machine.replay(history.events)
    seconds = time.thread_time() - begin
    machine.evict()
    return seconds / len(history.events)


async def test_late_steps_of_a_long_run_cost_as_much_as_early_ones() -> None:
    """In CPU time of this process, engine and worker together, since other work on the machine does not count there.

    What it does to caches and clock rates does count. So the last steps of the long run are timed in turns with the
    first ones of others, and each kind is judged by its cheapest turn.
    """
    cpu_seconds.clear()
    async with engine() as client, worker(client, [Sequence], [trivial]):
        handle = await client.start_workflow(Sequence.run, STEPS, id="long", task_queue=QUEUE)
        await _cost_of(handle, STEPS - TURNS * TURN_STEPS)
        early, late = [], []
        for turn in range(TURNS):
            late.append(await _cost_of(handle, TURN_STEPS))
            other = await client.start_workflow(Sequence.run, TURN_STEPS, id=f"short-{turn}", task_queue=QUEUE)
            early.append(await _cost_of(other, TURN_STEPS))
        suggested_at = await settled(handle, 60)
        # The flag is seen in the first task that starts at or after the limit.
        assert LIMITS_DEFAULT.history_events_suggest <= suggested_at < LIMITS_DEFAULT.history_events_suggest + 10
        assert len(cpu_seconds) == STEPS + TURNS * TURN_STEPS
        assert min(late) < LATE_FACTOR_MAX * min(early), (early, late)


async def _cost_of(handle: Any, steps: int) -> float:
    """Let a run take so many steps more, and give the CPU seconds from the first of them to the last."""
    taken = len(cpu_seconds)
    await handle.signal(Sequence.allow, steps)
    await eventually(lambda: len(cpu_seconds) >= taken + steps, f"{steps} more steps", 60)
    return cpu_seconds[taken + steps - 1] - cpu_seconds[taken]


async def test_the_limit_is_named_before_the_store_suffers() -> None:
    """One activity more than the limit: the workflow task fails and says so, and nothing of it is scheduled."""
    async with engine(ManualClock()) as client, worker(client, [FansOut]):
        too_wide = LIMITS_DEFAULT.pending_activities_max + 1
        handle = await client.start_workflow(FansOut.run, too_wide, id="too-wide", task_queue=QUEUE)
        line = await eventually(lambda: _failing(handle), "the failing task is told")
        assert "PendingActivitiesLimitExceeded" in line
        assert str(LIMITS_DEFAULT.pending_activities_max) in line
        assert not await events(handle, e.ActivityTaskScheduled)
        await within(handle.terminate())


async def _failing(handle: Any) -> str:
    lines = (await handle.describe()).waiting_for
    return next((line for line in lines if "workflow task failing" in line), "")
