"""C103: starting once, though asked twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.client import Client, WorkflowAlreadyStartedError, WorkflowHandle
from clew.common import WorkflowExecutionStatus, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model import events as e
from tests.cases.harness import engine, service_faults, unavailable, within

STRANGERS = 20
FAIL = WorkflowIDConflictPolicy.FAIL
USE_EXISTING = WorkflowIDConflictPolicy.USE_EXISTING
TERMINATE_EXISTING = WorkflowIDConflictPolicy.TERMINATE_EXISTING


async def start(client: Client, **options: Any) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow("Order", id="order-1", task_queue="orders", **options)


async def all_runs(client: Client) -> list[tuple[str, WorkflowExecutionStatus]]:
    return [(run.run_id, run.status) async for run in client.list_workflows("WorkflowId = 'order-1'")]


async def open_runs(client: Client) -> list[str]:
    return [run_id for run_id, status in await all_runs(client) if status is WorkflowExecutionStatus.RUNNING]


@pytest.mark.parametrize("signal", [None, "hello"])
async def test_a_start_whose_answer_was_lost_gives_the_first_run(signal: str | None) -> None:
    async with engine() as client:
        service_faults(client).lose_answer("start_workflow" if signal is None else "signal_with_start", unavailable())
        handle = await within(start(client, start_signal=signal))
        assert await all_runs(client) == [(handle.result_run_id, WorkflowExecutionStatus.RUNNING)]
        history = await handle.fetch_history()
        assert sum(isinstance(event, e.WorkflowExecutionSignaled) for event in history) == (1 if signal else 0)


@pytest.mark.parametrize(
    "reuse",
    [
        WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        WorkflowIDReusePolicy.REJECT_DUPLICATE,
    ],
)
async def test_of_twenty_strangers_one_wins_and_the_rest_are_told_the_run(reuse: WorkflowIDReusePolicy) -> None:
    async with engine() as client:
        starts = [start(client, id_reuse_policy=reuse, id_conflict_policy=FAIL) for _ in range(STRANGERS)]
        answers = await within(asyncio.gather(*starts, return_exceptions=True))
        won = [answer for answer in answers if isinstance(answer, WorkflowHandle)]
        lost = [answer for answer in answers if isinstance(answer, WorkflowAlreadyStartedError)]
        assert (len(won), len(lost)) == (1, STRANGERS - 1)
        assert {error.run_id for error in lost} == {won[0].result_run_id}
        assert await open_runs(client) == [won[0].result_run_id]


async def test_under_use_existing_all_strangers_get_the_same_run() -> None:
    async with engine() as client:
        handles = await within(
            asyncio.gather(*(start(client, id_conflict_policy=USE_EXISTING) for _ in range(STRANGERS)))
        )
        [run_id] = {handle.result_run_id for handle in handles}
        assert await all_runs(client) == [(run_id, WorkflowExecutionStatus.RUNNING)]


async def test_with_start_signals_of_all_strangers_reach_one_run() -> None:
    async with engine() as client:
        handles = await within(
            asyncio.gather(*(start(client, start_signal="s", start_signal_args=[n]) for n in range(STRANGERS)))
        )
        assert len({handle.result_run_id for handle in handles}) == 1
        history = await handles[0].fetch_history()
        sent = [bytes(event.input[0]) for event in history if isinstance(event, e.WorkflowExecutionSignaled)]
        assert sorted(sent) == sorted(str(n).encode() for n in range(STRANGERS))


async def test_terminate_existing_never_leaves_two_open_or_none() -> None:
    async with engine() as client:
        first = await start(client)
        starts = [start(client, id_conflict_policy=TERMINATE_EXISTING) for _ in range(4)]
        await within(asyncio.gather(*starts, return_exceptions=True), 30.0)
        runs = await all_runs(client)
        assert len(await open_runs(client)) == 1
        assert (first.result_run_id, WorkflowExecutionStatus.TERMINATED) in runs
        assert {status for _, status in runs} <= {
            WorkflowExecutionStatus.RUNNING,
            WorkflowExecutionStatus.TERMINATED,
        }


async def test_after_the_close_the_reuse_policy_decides() -> None:
    async with engine() as client:
        handle = await start(client)
        await handle.terminate()
        with pytest.raises(WorkflowAlreadyStartedError) as caught:
            await start(client, id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE)
        assert caught.value.run_id == handle.result_run_id
        # Terminated counts as failed; and the restart throttle (one second) is waited out by the client's retries.
        again = await within(start(client, id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY))
        assert again.result_run_id != handle.result_run_id
        assert await open_runs(client) == [again.result_run_id]
