"""Update-with-start as programs use it: client, engine, worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import workflow
from clew.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowAlreadyStartedError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from clew.common import WorkflowIDConflictPolicy
from clew.exceptions import ApplicationError
from clew.testing import WorkflowEnvironment
from clew.worker import Worker

FAIL = WorkflowIDConflictPolicy.FAIL
USE_EXISTING = WorkflowIDConflictPolicy.USE_EXISTING


@workflow.defn
class Cart:
    @workflow.init
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.items: list[str] = []
        self.is_closed = False

    @workflow.run
    async def run(self, owner: str) -> list[str]:
        await workflow.wait_condition(lambda: self.is_closed)
        return self.items

    @workflow.update
    async def add(self, item: str) -> str:
        self.items.append(item)
        return f"{self.owner}: {', '.join(self.items)}"

    @add.validator
    def check_add(self, item: str) -> None:
        if not item:
            raise ApplicationError("an item needs a name")

    @workflow.update
    async def close(self) -> int:
        self.is_closed = True
        return len(self.items)


def cart(
    policy: WorkflowIDConflictPolicy = USE_EXISTING, **options: Any
) -> WithStartWorkflowOperation[Cart, list[str]]:
    return WithStartWorkflowOperation(
        Cart.run, "Ada", id="cart-1", task_queue="carts", id_conflict_policy=policy, **options
    )


@pytest.fixture
async def client() -> Any:
    async with (
        await WorkflowEnvironment.start_local() as environment,
        Worker(environment.client, task_queue="carts", workflows=[Cart]),
    ):
        yield environment.client


async def test_the_first_call_starts_and_the_next_ones_only_update(client: Client) -> None:
    first, second = cart(), cart()
    handle = asyncio.ensure_future(first.workflow_handle())
    said = await client.execute_update_with_start_workflow(Cart.add, "tea", start_workflow_operation=first)
    assert said == "Ada: tea"
    said = await client.execute_update_with_start_workflow(Cart.add, "milk", start_workflow_operation=second)
    assert said == "Ada: tea, milk"
    one, two = await handle, await second.workflow_handle()
    assert isinstance(one, WorkflowHandle)
    assert one.result_run_id == two.result_run_id
    assert await one.execute_update(Cart.close) == 2
    assert await two.result() == ["tea", "milk"]


async def test_a_started_update_is_handed_back_once_accepted(client: Client) -> None:
    update = await client.start_update_with_start_workflow(
        Cart.add, "tea", start_workflow_operation=cart(), wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="add-tea"
    )
    assert (update.id, update.workflow_id) == ("add-tea", "cart-1")
    assert await update.result() == "Ada: tea"


async def test_a_repeat_gets_the_first_outcome_even_after_the_close(client: Client) -> None:
    for _ in range(2):
        await client.execute_update_with_start_workflow(
            Cart.add, "tea", start_workflow_operation=cart(FAIL), id="add-tea"
        )
    handle = client.get_workflow_handle_for(Cart.run, "cart-1")
    await handle.execute_update(Cart.close)
    assert await handle.result() == ["tea"]
    said = await client.execute_update_with_start_workflow(
        Cart.add, "tea", start_workflow_operation=cart(FAIL), id="add-tea"
    )
    assert said == "Ada: tea"


async def test_an_open_run_refuses_a_start_that_must_be_the_first(client: Client) -> None:
    await client.execute_update_with_start_workflow(Cart.add, "tea", start_workflow_operation=cart())
    refused = cart(FAIL)
    with pytest.raises(WorkflowAlreadyStartedError):
        await client.execute_update_with_start_workflow(Cart.add, "milk", start_workflow_operation=refused)
    with pytest.raises(WorkflowAlreadyStartedError):
        await refused.workflow_handle()


async def test_a_rejected_update_leaves_a_run_to_go_on_with(client: Client) -> None:
    operation = cart()
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await client.execute_update_with_start_workflow(Cart.add, "", start_workflow_operation=operation)
    assert "an item needs a name" in str(caught.value.cause)
    handle = await operation.workflow_handle()
    assert await handle.execute_update(Cart.add, "tea") == "Ada: tea"


async def test_an_operation_is_good_for_one_call(client: Client) -> None:
    operation = cart(execution_timeout=timedelta(minutes=1))
    await client.execute_update_with_start_workflow("add", "tea", start_workflow_operation=operation, result_type=str)
    with pytest.raises(RuntimeError, match="used already"):
        await client.execute_update_with_start_workflow(Cart.add, "milk", start_workflow_operation=operation)


def test_what_a_start_needs_is_asked_for_at_once() -> None:
    with pytest.raises(ValueError, match=r"FAIL .* or USE_EXISTING"):
        cart(WorkflowIDConflictPolicy.TERMINATE_EXISTING)
    with pytest.raises(TypeError, match="task_queue"):
        WithStartWorkflowOperation("Cart", id="c", id_conflict_policy=FAIL)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        WithStartWorkflowOperation(Cart.run, id="c", task_queue="q", id_conflict_policy=FAIL)  # type: ignore[arg-type]
