"""What a type checker infers of the blocking client; `mypy` and `pyright` run over this file, nothing executes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from clew.client import (
    BlockingClient,
    BlockingWorkflowHandle,
    BlockingWorkflowUpdateHandle,
    WorkflowExecution,
    WorkflowUpdateStage,
)
from tests.types.test_client import Claim, Claims, Nightly, Several


def starts(client: BlockingClient) -> None:
    handle = client.start_workflow(Claims.run, Claim(1), id="c", task_queue="q")
    assert_type(handle, BlockingWorkflowHandle[Claims, str])
    assert_type(handle.result(), str)
    assert_type(client.execute_workflow(Claims.run, Claim(1), id="c", task_queue="q"), str)
    assert_type(client.execute_workflow(Several.run, args=[1, "b"], id="c", task_queue="q"), bytes)
    assert_type(client.get_workflow_handle_for(Nightly.run, "n"), BlockingWorkflowHandle[Nightly, None])
    client.start_workflow(Claims.run, "no", id="c", task_queue="q")  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]


def messages(handle: BlockingWorkflowHandle[Claims, str]) -> None:
    handle.signal(Claims.photos, 3)
    handle.signal(Claims.close)
    handle.signal(Claims.photos, "three")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(handle.query(Claims.item, 1), Claim)
    assert_type(handle.execute_update(Claims.amend, Claim(2)), int)
    update = handle.start_update(Claims.reopen, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert_type(update, BlockingWorkflowUpdateHandle[bool])
    assert_type(update.result(), bool)


def lists(client: BlockingClient) -> None:
    assert_type(client.list_workflows(), Iterator[WorkflowExecution])
