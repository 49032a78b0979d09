"""What lists and searches see of a run: the visibility row, and the head of a description."""

from __future__ import annotations

from clew.core.state import ExecutionState
from clew.model.events import ExecutionRef
from clew.ports.store import RunRow, Visibility
from clew.service.requests import WorkflowExecutionInfo


def visibility_of(state: ExecutionState) -> Visibility:
    """The row by which people list and search this run."""
    parent, root = state.parent, state.root
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
        search_attributes=state.search_attributes or None,
    )


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
