"""What a type checker infers of the client's API; `mypy` and `pyright` run over this file, nothing executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from clew import workflow
from clew.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateHandle,
    WorkflowUpdateStage,
)
from clew.common import WorkflowIDConflictPolicy


@dataclass
class Claim:
    number: int


@workflow.defn
class Claims:
    @workflow.run
    async def run(self, claim: Claim) -> str:
        return str(claim.number)

    @workflow.signal
    def photos(self, count: int) -> None: ...

    @workflow.signal
    async def close(self) -> None: ...

    @workflow.signal
    def decide(self, by: str, approve: bool) -> None: ...

    @workflow.query
    def state(self) -> str:
        return ""

    @workflow.query
    def item(self, index: int) -> Claim:
        return Claim(index)

    @workflow.update
    async def amend(self, claim: Claim) -> int:
        return claim.number

    @workflow.update
    def reopen(self) -> bool:
        return True


@workflow.defn
class Nightly:
    @workflow.run
    async def run(self) -> None: ...


@workflow.defn
class Several:
    @workflow.run
    async def run(self, a: int, b: str) -> bytes:
        return b""


async def starts(client: Client) -> None:
    one = await client.start_workflow(Claims.run, Claim(1), id="c", task_queue="q")
    assert_type(one, WorkflowHandle[Claims, str])
    assert_type(await one.result(), str)
    assert_type(await client.execute_workflow(Claims.run, Claim(1), id="c", task_queue="q"), str)
    none = await client.start_workflow(Nightly.run, id="n", task_queue="q")
    assert_type(none, WorkflowHandle[Nightly, None])
    several = await client.start_workflow(Several.run, args=[1, "b"], id="s", task_queue="q")
    assert_type(several, WorkflowHandle[Several, bytes])
    named = await client.start_workflow("Claims", {"number": 1}, id="c", task_queue="q")
    assert_type(named, WorkflowHandle[Any, Any])
    found = client.get_workflow_handle_for(Claims.run, "c")
    assert_type(found, WorkflowHandle[Claims, str])


async def messages(handle: WorkflowHandle[Claims, str]) -> None:
    await handle.signal(Claims.photos, 3)
    await handle.signal(Claims.close)
    await handle.signal(Claims.decide, args=["Ada", True])
    await handle.signal("anything", 1)
    assert_type(await handle.query(Claims.state), str)
    assert_type(await handle.query(Claims.item, 1), Claim)
    assert_type(await handle.query("anything"), Any)
    assert_type(await handle.execute_update(Claims.amend, Claim(1)), int)
    assert_type(await handle.execute_update(Claims.reopen), bool)
    started = await handle.start_update(Claims.amend, Claim(1), wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert_type(started, WorkflowUpdateHandle[int])


async def updates_with_start(client: Client) -> None:
    operation = WithStartWorkflowOperation(
        Claims.run, Claim(1), id="c", task_queue="q", id_conflict_policy=WorkflowIDConflictPolicy.FAIL
    )
    assert_type(operation, WithStartWorkflowOperation[Claims, str])
    assert_type(await operation.workflow_handle(), WorkflowHandle[Claims, str])
    done = await client.execute_update_with_start_workflow(
        Claims.amend, Claim(1), start_workflow_operation=operation, id="u"
    )
    assert_type(done, int)
    sent = await client.start_update_with_start_workflow(
        Claims.reopen, start_workflow_operation=operation, wait_for_stage=WorkflowUpdateStage.ACCEPTED
    )
    assert_type(sent, WorkflowUpdateHandle[bool])


async def mistakes(client: Client, handle: WorkflowHandle[Claims, str]) -> None:
    await client.start_workflow(Claims.run, "no claim", id="c", task_queue="q")  # type: ignore[misc]
    await client.start_workflow(Claims.run, Claim(1), id="c")  # type: ignore[call-overload]
    await client.start_workflow(Claims.run, Claim(1), id="c", task_queue="q", run_timeout=5)  # type: ignore[call-overload]
    await handle.signal(Claims.photos, "three")  # type: ignore[call-overload]
    await handle.signal(Several.run, args=[])  # type: ignore[arg-type]
