"""What lists and searches see of a run: the visibility row, and the head of a description."""

from __future__ import annotations

from typing import Final

import msgspec

from clew.core.state import ExecutionState
from clew.model.events import ExecutionRef, WorkflowTaskFailedCause
from clew.model.payload import ENCODING_KEY, JSON_PLAIN, Payload, StoredPayload, to_stored
from clew.ports.store import RunRow, Visibility
from clew.service.requests import WorkflowExecutionInfo

REPORTED_PROBLEMS: Final = "TemporalReportedProblems"
"""The search attribute, a KeywordList, that open runs have whose workflow tasks fail; it goes when one completes."""

_PASSING: Final = (
    WorkflowTaskFailedCause.UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.RESET_WORKFLOW,
    WorkflowTaskFailedCause.RESET_STICKY_TASK_QUEUE,
)
"""Causes that say nothing about the code: the engine asks for another try."""


def problems_of(state: ExecutionState) -> tuple[str, ...]:
    """What lists can find this run by while its workflow tasks fail; empty when all is well."""
    problem = state.last_workflow_task_failure
    if problem is None or problem.cause in _PASSING or not state.is_open:
        return ()
    if problem.cause is None:
        return ("category=WorkflowTaskTimedOut", "cause=WorkflowTaskTimedOutCauseStartToClose")
    return ("category=WorkflowTaskFailed", f"cause=WorkflowTaskFailedCause{problem.cause.value}")


def visibility_of(state: ExecutionState) -> Visibility:
    """The row by which people list and search this run."""
    parent, root = state.parent, state.root
    problems = problems_of(state)
    attributes = state.search_attributes or None
    if problems:
        attributes = {**(attributes or {}), REPORTED_PROBLEMS: _keywords(problems)}
    return Visibility(
        workflow_type=state.workflow_type,
        task_queue=state.task_queue,
        start_time=state.start_time,
        execution_time=state.execution_time,
        close_time=state.close_time,
        first_execution_run_id=state.first_execution_run_id,
        parent_workflow_id=parent.workflow_id if parent else "",
        parent_run_id=parent.run_id if parent else "",
        root_workflow_id=root.workflow_id if root else "",
        root_run_id=root.run_id if root else "",
        memo=state.memo or None,
        search_attributes=attributes,
    )


def _keywords(texts: tuple[str, ...]) -> StoredPayload:
    metadata = {ENCODING_KEY: JSON_PLAIN, "type": b"KeywordList"}
    return to_stored(Payload(metadata, msgspec.json.encode(texts)))


def info_of(row: RunRow) -> WorkflowExecutionInfo:
    """One row of a list, from what is stored."""
    seen = row.visibility
    parent = ExecutionRef(seen.parent_workflow_id, seen.parent_run_id) if seen.parent_workflow_id else None
    root = ExecutionRef(seen.root_workflow_id, seen.root_run_id) if seen.root_workflow_id else None
    return WorkflowExecutionInfo(
        namespace=row.namespace,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        workflow_type=seen.workflow_type,
        task_queue=seen.task_queue,
        status=row.status,
        start_time=seen.start_time,
        execution_time=seen.execution_time,
        close_time=seen.close_time,
        history_length=row.history_length,
        history_size_bytes=row.history_size_bytes,
        first_execution_run_id=seen.first_execution_run_id,
        parent=parent,
        root=root,
        memo=seen.memo,
        search_attributes=seen.search_attributes,
    )
