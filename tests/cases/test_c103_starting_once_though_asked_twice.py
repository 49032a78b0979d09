"""C103: starting once, though asked twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import workflow
from clew.client import Client, WithStartWorkflowOperation, WorkflowAlreadyStartedError, WorkflowHandle
from clew.common import WorkflowExecutionStatus, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model import events as e
from clew.model.limits import LIMITS_DEFAULT
from tests.cases.harness import engine, service_faults, unavailable, within, worker

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


@workflow.defn
class Basket:
    def __init__(self) -> None:
        self.items: list[int] = []

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.update
    def add(self, item: int) -> int:
        self.items.append(item)
        return len(self.items)

    @workflow.query
    def contents(self) -> list[int]:
        return self.items


async def start_and_add(client: Client, item: int, policy: WorkflowIDConflictPolicy, update_id: str | None) -> int:
    operation = WithStartWorkflowOperation(Basket.run, id="order-1", task_queue="orders", id_conflict_policy=policy)
    return await client.execute_update_with_start_workflow(
        Basket.add, item, start_workflow_operation=operation, id=update_id
    )


@pytest.mark.parametrize("policy", [FAIL, USE_EXISTING])
async def test_an_update_with_start_whose_answer_was_lost_is_applied_once(policy: WorkflowIDConflictPolicy) -> None:
    async with engine() as client, worker(client, [Basket], queue="orders"):
        service_faults(client).lose_answer("update_with_start", unavailable())
        assert await within(start_and_add(client, 1, policy, None)) == 1
        [(run_id, _)] = await all_runs(client)
        handle = client.get_workflow_handle_for(Basket.run, "order-1", run_id=run_id)
        assert await within(handle.query(Basket.contents)) == [1]


async def test_with_start_updates_of_all_strangers_reach_one_run() -> None:
    # As many as may be in flight at once.
    strangers = LIMITS_DEFAULT.updates_in_flight_max
    async with engine() as client, worker(client, [Basket], queue="orders"):
        answers = await within(
            asyncio.gather(*(start_and_add(client, n, USE_EXISTING, f"add-{n}") for n in range(strangers)))
        )
        assert sorted(answers) == list(range(1, strangers + 1))
        assert len(await all_runs(client)) == 1
        handle = client.get_workflow_handle_for(Basket.run, "order-1")
        assert sorted(await within(handle.query(Basket.contents))) == list(range(strangers))


async def test_of_strangers_that_must_be_the_first_one_is() -> None:
    async with engine() as client, worker(client, [Basket], queue="orders"):
        outcomes = await within(
            asyncio.gather(
                *(start_and_add(client, n, FAIL, f"add-{n}") for n in range(STRANGERS)), return_exceptions=True
            )
        )
        assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [1]
        [(run_id, _)] = await all_runs(client)
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(error, WorkflowAlreadyStartedError) and error.run_id == run_id for error in refused)
