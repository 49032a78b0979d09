"""C054: a child that is started as the parent's last act has a task, or does not exist.

The documented rule (semantics 1.6): a child whose start nobody awaits is dropped when its parent closes first.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import workflow
from clew.client import Client
from clew.common import ParentClosePolicy, WorkflowExecutionStatus
from clew.exceptions import ApplicationError
from clew.workflow import ChildWorkflowHandle
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, engine, eventually, settled, within, worker

PARENTS = 20
"""Of each kind; the case has 100 of one."""


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.is_over = False

    @workflow.run
    async def run(self, waits: bool) -> str:
        if waits:
            await workflow.wait_condition(lambda: self.is_over)
        return "child done"


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, child_id: str, policy: ParentClosePolicy, ending: str, awaits: bool, is_again: bool) -> str:
        if is_again:
            return "parent done"
        start = workflow.start_child_workflow(
            Child.run,
            policy is not ParentClosePolicy.ABANDON,
            id=child_id,
            parent_close_policy=policy,
        )
        if awaits:
            handle: ChildWorkflowHandle[Any, Any] = await start
            assert handle.id == child_id
        else:
            workflow.instance().background = asyncio.create_task(start)
            await asyncio.sleep(0)
        if ending == "fails":
            raise ApplicationError("as told")
        if ending == "continues":
            workflow.continue_as_new(args=[child_id, policy, ending, awaits, True])
        return "parent done"


POLICIES = [ParentClosePolicy.ABANDON, ParentClosePolicy.TERMINATE, ParentClosePolicy.REQUEST_CANCEL]


@pytest.mark.parametrize("awaits", [False, True], ids=["unawaited", "awaited"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_no_child_is_left_without_a_task(policy: ParentClosePolicy, awaits: bool, recorded: Recorded) -> None:
    async with engine() as client, worker(client, [Parent, Child]):

        async def one(ending: str, number: int) -> Any:
            child_id = f"child-{ending}-{number}"
            arguments = [child_id, policy, ending, awaits, False]
            parent = await client.start_workflow(
                Parent.run, args=arguments, id=f"parent-{ending}-{number}", task_queue=QUEUE
            )
            outcome = await settled(parent)
            assert outcome == "parent done" or ending == "fails", outcome
            return parent, child_id

        pairs = await within(
            asyncio.gather(
                *(one(ending, n) for ending in ("returns", "fails", "continues") for n in range(PARENTS // 3 + 1))
            ),
            40,
        )
        children = [child_id for _, child_id in pairs]
        expected = {
            ParentClosePolicy.ABANDON: WorkflowExecutionStatus.COMPLETED,
            ParentClosePolicy.TERMINATE: WorkflowExecutionStatus.TERMINATED,
            ParentClosePolicy.REQUEST_CANCEL: WorkflowExecutionStatus.CANCELED,
        }[policy]
        if awaits:
            await eventually(lambda: _all_have(client, children, expected), f"all children {expected.name}")
        else:
            await eventually(lambda: _none_open(client), "no child is open")
            found = await _statuses(client)
            assert all(found[child_id] is expected for child_id in children if child_id in found), found
            assert not found or len(found) == len(children), "the rule holds for all or for none"
        # Its id is free.
        again = await client.start_workflow(Child.run, False, id=children[0], task_queue=QUEUE)
        assert await settled(again) == "child done"
        for parent, _ in pairs[::7]:
            history_of = client.get_workflow_handle(parent.id, run_id=parent.result_run_id)
            await recorded.add(history_of, Parent)


async def _statuses(client: Client) -> dict[str, WorkflowExecutionStatus]:
    runs = client.list_workflows("WorkflowType = 'Child'")
    return {run.id: run.status async for run in runs}


async def _all_have(client: Client, ids: list[str], status: WorkflowExecutionStatus) -> bool:
    found = await _statuses(client)
    return all(found.get(child_id) is status for child_id in ids)


async def _none_open(client: Client) -> bool:
    return WorkflowExecutionStatus.RUNNING not in (await _statuses(client)).values()
