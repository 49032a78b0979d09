"""Starting: what is refused, what is filled in, and what the workflow id policies say (semantics 1.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew.core.decisions import decide_id_policy
from clew.core.replies import ExistingRun, Repeat, Start, StartVerdict, TerminateThenStart, UseExisting
from clew.core.transition import Transition
from clew.model.events import WorkflowExecutionStarted
from clew.model.inputs import StartWorkflowRequest
from clew.model.policies import (
    RetryPolicy,
    WorkflowExecutionStatus,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from clew.model.rejection import Rejection, RejectionCode
from tests.scenarios.driver import T0, Driver

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"workflow_id": ""}, "workflow id is empty"),
        ({"workflow_id": "x" * 1_001}, "has 1001 bytes"),
        ({"workflow_id": "ü" * 501}, "has 1002 bytes"),
        ({"workflow_type": ""}, "workflow type is empty"),
        ({"task_queue": ""}, "task queue is empty"),
        ({"workflow_run_timeout": -SECOND}, "run_timeout"),
        ({"start_delay": -SECOND}, "start_delay"),
        ({"retry_policy": RetryPolicy(backoff_coefficient=0.1)}, "backoff_coefficient"),
        ({"input": (msgspec.Raw(b'"' + b"x" * 3_000_000 + b'"'),)}, "takes 3000002 bytes"),
        ({"memo": {"m": msgspec.Raw(b'"' + b"x" * 3_000_000 + b'"')}}, "memo takes"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], finding: str) -> None:
    answer = Driver().start(**fields)
    assert isinstance(answer, Rejection)
    assert answer.code is RejectionCode.INVALID_ARGUMENT
    assert finding in answer.message


@pytest.mark.parametrize(
    ("execution", "run", "task", "recorded"),
    [
        (0, 0, 0, (0, 0, 10)),
        (60, 0, 0, (60, 60, 10)),
        (60, 90, 0, (60, 60, 10)),
        (60, 30, 0, (60, 30, 10)),
        (0, 5, 0, (0, 5, 5)),
        (0, 0, 500, (0, 0, 120)),
    ],
)
def test_timeouts_are_filled_in(execution: int, run: int, task: int, recorded: tuple[int, int, int]) -> None:
    answer = Driver().start(
        workflow_execution_timeout=execution * SECOND,
        workflow_run_timeout=run * SECOND,
        workflow_task_timeout=task * SECOND,
    )
    assert isinstance(answer, Transition)
    event = answer.events[0]
    assert isinstance(event, WorkflowExecutionStarted)
    assert (
        event.workflow_execution_timeout, event.workflow_run_timeout, event.workflow_task_timeout
    ) == tuple(n * SECOND for n in recorded)  # fmt: skip


REUSE, CONFLICT, STATUS = WorkflowIDReusePolicy, WorkflowIDConflictPolicy, WorkflowExecutionStatus


def ask(status: WorkflowExecutionStatus, *, request_id: str = "new", **policies: Any) -> StartVerdict:
    request = StartWorkflowRequest(
        namespace="n", workflow_id="w", workflow_type="T", task_queue="q", request_id=request_id, **policies
    )
    existing = ExistingRun(
        run_id="old",
        first_execution_run_id="first",
        status=status,
        start_time=T0,
        start_request_id="r0",
        request_ids=("r1",),
    )
    return decide_id_policy(request, existing, T0)


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (CONFLICT.UNSPECIFIED, Rejection),
        (CONFLICT.FAIL, Rejection),
        (CONFLICT.USE_EXISTING, UseExisting),
        (CONFLICT.TERMINATE_EXISTING, TerminateThenStart),
    ],
)
def test_a_run_is_open(policy: WorkflowIDConflictPolicy, verdict: type) -> None:
    for status in (STATUS.RUNNING, STATUS.PAUSED):
        assert isinstance(ask(status, id_conflict_policy=policy), verdict)


def test_terminate_if_running_is_a_conflict_policy() -> None:
    assert isinstance(ask(STATUS.RUNNING, id_reuse_policy=REUSE.TERMINATE_IF_RUNNING), TerminateThenStart)


@pytest.mark.parametrize("status", [s for s in STATUS if not s.is_open])
def test_the_run_is_closed(status: WorkflowExecutionStatus) -> None:
    has_failed = status in (STATUS.FAILED, STATUS.CANCELED, STATUS.TERMINATED, STATUS.TIMED_OUT)
    assert isinstance(ask(status), Start)
    assert isinstance(ask(status, id_reuse_policy=REUSE.REJECT_DUPLICATE), Rejection)
    failed_only = ask(status, id_reuse_policy=REUSE.ALLOW_DUPLICATE_FAILED_ONLY)
    assert isinstance(failed_only, Start) is has_failed


def test_the_rejection_names_the_run() -> None:
    answer = ask(STATUS.RUNNING)
    assert isinstance(answer, Rejection)
    assert answer.code is RejectionCode.WORKFLOW_ALREADY_STARTED
    assert answer.details == {"run_id": "old", "first_execution_run_id": "first", "start_request_id": "r0"}


@pytest.mark.parametrize("request_id", ["r0", "r1"])
@pytest.mark.parametrize("status", [STATUS.RUNNING, STATUS.COMPLETED])
def test_a_repeat_is_answered_alike(request_id: str, status: WorkflowExecutionStatus) -> None:
    answer = ask(status, request_id=request_id, id_reuse_policy=REUSE.REJECT_DUPLICATE)
    assert answer == Repeat(run_id="old", first_execution_run_id="first")


def test_restarts_can_be_throttled() -> None:
    request = StartWorkflowRequest(namespace="n", workflow_id="w", workflow_type="T", task_queue="q", request_id="x")
    existing = ExistingRun(run_id="old", first_execution_run_id="old", status=STATUS.COMPLETED, start_time=T0)
    early = decide_id_policy(request, existing, T0 + 0.9 * SECOND, restart_interval_min=SECOND)
    assert isinstance(early, Rejection)
    assert early.code is RejectionCode.WORKFLOW_BUSY
    assert isinstance(decide_id_policy(request, existing, T0 + SECOND, restart_interval_min=SECOND), Start)
