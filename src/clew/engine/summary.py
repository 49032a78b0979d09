"""What lists and searches see of a run: the visibility row, and the head of a description."""

from __future__ import annotations

from typing import Final

import msgspec

from clew.core.state import ExecutionState
from clew.core.versioning import behavior_of, pinned_version
from clew.model.events import ExecutionRef, WorkflowTaskFailedCause
from clew.model.payload import ENCODING_KEY, JSON_PLAIN, Payload, StoredPayload, to_stored
from clew.model.policies import VersioningBehavior
from clew.ports.store import RunRow, Visibility
from clew.service.requests import WorkflowExecutionInfo

REPORTED_PROBLEMS: Final = "TemporalReportedProblems"
"""The search attribute, a KeywordList, that open runs have whose workflow tasks fail; it goes when one completes."""

DEPLOYMENT_VERSION: Final = "TemporalWorkerDeploymentVersion"
"""Of runs that go by worker versions: the version that they are pinned to, else the one that had them last."""

VERSIONING_BEHAVIOR: Final = "TemporalWorkflowVersioningBehavior"
"""Of runs that go by worker versions: ``Pinned`` or ``AutoUpgrade``."""

OPEN_PINNED_VERSION: Final = "ClewOpenPinnedVersion"
"""Of open runs that are pinned to a version: that version. It goes with the close, so that counting those which keep a
version from being drained costs as much as there are of them."""

PREDEFINED_ATTRIBUTES: Final[dict[str, str]] = {
    REPORTED_PROBLEMS: "KeywordList",
    DEPLOYMENT_VERSION: "Keyword",
    VERSIONING_BEHAVIOR: "Keyword",
    OPEN_PINNED_VERSION: "Keyword",
}
"""Search attributes that the engine sets, on those runs that they tell something about, with their types."""

Label = tuple[str, str | tuple[str, ...]]

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


def labels_of(state: ExecutionState) -> tuple[Label, ...]:
    """The search attributes that the engine itself sets on this run; most have none."""
    if (
        state.last_workflow_task_failure is None
        and state.versioning_behavior is VersioningBehavior.UNSPECIFIED
        and state.versioning_override is None
    ):
        return ()
    problems = problems_of(state)
    labels: tuple[Label, ...] = ((REPORTED_PROBLEMS, problems),) if problems else ()
    behavior = behavior_of(state)
    if behavior is VersioningBehavior.UNSPECIFIED:
        return labels
    labels += ((VERSIONING_BEHAVIOR, behavior.value),)
    pinned = pinned_version(state)
    version = pinned or state.deployment_version
    if version is not None:
        labels += ((DEPLOYMENT_VERSION, version.to_canonical_string()),)
    if pinned is not None and state.is_open:
        labels += ((OPEN_PINNED_VERSION, pinned.to_canonical_string()),)
    return labels


def visibility_of(state: ExecutionState) -> Visibility:
    """The row by which people list and search this run."""
    parent, root = state.parent, state.root
    attributes = state.search_attributes or None
    labels = labels_of(state)
    if labels:
        attributes = {**(attributes or {}), **{name: _attribute(name, value) for name, value in labels}}
    return Visibility(
        workflow_type=state.workflow_type,
        task_queue=state.task_queue,
        start_time=state.start_time,
        execution_time=state.execution_time,
        close_time=state.close_time,
        first_execution_run_id=state.first_execution_run_id,
        parent_workflow_id=parent.workflow_id if parent else "",
        parent_run_id=parent.run_id if parent else "",
        root_workflow_id=root.workflow_id if root else state.workflow_id,
        root_run_id=root.run_id if root else state.run_id,
        memo=state.memo or None,
        search_attributes=attributes,
    )


def _attribute(name: str, value: str | tuple[str, ...]) -> StoredPayload:
    metadata = {ENCODING_KEY: JSON_PLAIN, "type": PREDEFINED_ATTRIBUTES[name].encode()}
    return to_stored(Payload(metadata, msgspec.json.encode(value)))


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
