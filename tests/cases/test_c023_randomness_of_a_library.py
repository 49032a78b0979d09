"""C023: what interceptors draw does not shift what the workflow draws."""

from __future__ import annotations

from typing import Any

import pytest

from clew import activity, workflow
from clew.model import events as e
from clew.replay.chance import Chance, uuid4_of
from clew.worker import Interceptor, WorkflowInboundInterceptor, WorkflowOutboundInterceptor
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, parked, settled, worker

STEPS = 4


@activity.defn
async def echo(text: str) -> str:
    return text


@workflow.defn
class Nested:
    @workflow.run
    async def run(self, text: str) -> str:
        return text


@workflow.defn
class Draws:
    def __init__(self) -> None:
        self.allowed = 0

    @workflow.run
    async def run(self) -> list[str]:
        drawn = [str(workflow.uuid4())]
        for number in range(STEPS):
            await workflow.wait_condition(lambda number=number: self.allowed > number)  # type: ignore[misc]
            drawn.append(await workflow.execute_activity(echo, str(workflow.uuid4()), **ACTIVITY))
            child = str(workflow.uuid4())
            drawn.append(await workflow.execute_child_workflow(Nested.run, child, id=child))
            await workflow.execute_child_workflow(Nested.run, "its id is made by the engine's own stream")
            drawn.append(str(workflow.random().random()))
        return drawn

    @workflow.signal
    def allow(self) -> None:
        self.allowed += 1


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: Any) -> Any:
        workflow.uuid4()
        return super().start_activity(input)

    async def start_child_workflow(self, input: Any) -> Any:
        workflow.uuid4()
        workflow.random().random()
        return await super().start_child_workflow(input)


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_workflow(self, input: Any) -> Any:
        workflow.uuid4()
        return await super().execute_workflow(input)

    async def handle_signal(self, input: Any) -> None:
        workflow.uuid4()
        await super().handle_signal(input)


class Tracing(Interceptor):
    def workflow_interceptor_class(self, input: Any) -> type[WorkflowInboundInterceptor]:
        return _Inbound


async def _drawn(traced: list[bool], recorded: Recorded, *, cache: int) -> tuple[str, list[str], list[str]]:
    """Run id, draws and child ids of a run whose steps are traced or not, each after a cold restart."""
    async with engine() as client:
        handle = await client.start_workflow(Draws.run, id="draws", task_queue=QUEUE)
        for number, is_traced in enumerate(traced):
            interceptors = [Tracing()] if is_traced else []
            async with worker(client, [Draws, Nested], [echo], cache=cache, interceptors=interceptors):
                await handle.signal(Draws.allow)
                if number < STEPS - 1:
                    await _step_done(handle, number + 1)
                else:
                    drawn = await settled(handle)
        assert isinstance(drawn, list), drawn
        children = [event.workflow_id for event in await events(handle, e.StartChildWorkflowExecutionInitiated)]
        await recorded.add(handle, Draws)
        run_id: str = handle.result_run_id or ""
        return run_id, drawn, children


async def _step_done(handle: Any, number: int) -> None:
    async def is_done() -> bool:
        return len(await events(handle, e.ChildWorkflowExecutionCompleted)) == 2 * number

    await eventually(is_done, f"step {number}")
    await parked(handle)


def _expected(run_id: str) -> list[str]:
    """What the documented streams of this run give to its code."""
    dice = Chance(run_id).generator()
    drawn = [str(uuid4_of(dice))]
    for _ in range(STEPS):
        drawn += [str(uuid4_of(dice)), str(uuid4_of(dice)), str(dice.random())]
    return drawn


@pytest.mark.parametrize(
    "traced",
    [
        [False] * STEPS,
        [True] * STEPS,
        [True, True, False, False],
        [False, False, True, True],
    ],
    ids=["untraced", "traced", "switched-off", "switched-on"],
)
@pytest.mark.parametrize("cache", [0], ids=["cold"])
async def test_user_draws_are_unaffected_by_interceptors(traced: list[bool], cache: int, recorded: Recorded) -> None:
    run_id, drawn, children = await _drawn(traced, recorded, cache=cache)
    assert drawn == _expected(run_id)
    assert len(set(children)) == 2 * STEPS
    assert children[::2] == drawn[2::3]


@pytest.mark.parametrize("cache", [0, 100], ids=["cold", "cached"])
async def test_a_reset_leaves_the_draws_before_its_point_and_makes_new_ones_behind(
    cache: int, recorded: Recorded
) -> None:
    async with engine() as client, worker(client, [Draws, Nested], [echo], cache=cache):
        handle = await client.start_workflow(Draws.run, id="draws", task_queue=QUEUE)
        for number in range(STEPS):
            await handle.signal(Draws.allow)
            if number < STEPS - 1:
                await _step_done(handle, number + 1)
        first = await settled(handle)
        assert isinstance(first, list), first
        history = await events(handle)
        # The task that goes on behind the second step: all but one of the draws of that step are made.
        second_step = [one.event_id for one in history if isinstance(one, e.ChildWorkflowExecutionCompleted)][3]
        completed = [one.event_id for one in history if isinstance(one, e.WorkflowTaskCompleted)]
        point = next(event_id for event_id in completed if event_id > second_step)
        again = await handle.reset(reason="to see what it draws", event_id=point)
        second = await settled(again)
        assert isinstance(second, list), second
        kept = 1 + 3 + 2
        assert second[:kept] == first[:kept]
        assert len(set(second) | set(first)) == 2 * len(first) - kept
        assert second[kept:] == _expected_behind_a_reset(again.run_id or "", len(first) - kept)
        old, new = [
            [event.workflow_id for event in await events(run, e.StartChildWorkflowExecutionInitiated)]
            for run in (handle, again)
        ]
        assert old[:4] == new[:4]
        assert not set(old[4:]) & set(new[4:])
        await recorded.add(again, Draws)


def _expected_behind_a_reset(run_id: str, count: int) -> list[str]:
    """The draws of the new run's own stream, which begins in the middle of a step."""
    dice = Chance(run_id).generator()
    drawn = [str(dice.random())]
    while len(drawn) < count:
        drawn += [str(uuid4_of(dice)), str(uuid4_of(dice)), str(dice.random())]
    return drawn
