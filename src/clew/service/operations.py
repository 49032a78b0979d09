"""Requests and responses of operators: deletion of runs, namespaces, task queues, callback tokens of activities.

Owns: the structs. Never: behaviour (``engine.operations``).
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from clew.model.events import ZERO
from clew.model.inputs import ActivityTarget, Message, TaskToken
from clew.model.policies import DeploymentVersion

# --- runs ------------------------------------------------------------------------------------------------------------


class DeleteWorkflowRequest(Message, frozen=True, kw_only=True):
    """Remove a closed run and its history, before its retention time is over.

    Args:
        namespace: Of the run.
        workflow_id: Of the run.
        run_id: The run; the latest of the workflow id when not given.
        identity: Who does it.
    """

    namespace: str
    workflow_id: str
    run_id: str = ""
    identity: str = ""


class DeleteWorkflowResponse(Message, frozen=True, kw_only=True):
    run_id: str
    """The run that is gone."""


# --- namespaces ------------------------------------------------------------------------------------------------------


class NamespaceInfo(Message, frozen=True, kw_only=True):
    """A namespace as people see it; its secret is never told.

    Args:
        name: Its name.
        retention: How long a closed run is kept.
        limits: Where it differs from the limits of the engine: name of the limit to its number.
    """

    name: str
    retention: timedelta
    limits: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class CreateNamespaceRequest(Message, frozen=True, kw_only=True):
    """Make a namespace.

    Args:
        name: Letters, digits, ``.``, ``_`` and ``-``, beginning with a letter or digit; at most 63 characters.
        retention: How long a closed run is kept; the default when not given.
        limits: See `NamespaceInfo`; the names are those of ``model.limits.Limits``.
        identity: Who does it.
    """

    name: str
    retention: timedelta = ZERO
    limits: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    identity: str = ""


class DescribeNamespaceRequest(Message, frozen=True, kw_only=True):
    namespace: str


class ListNamespacesRequest(Message, frozen=True, kw_only=True):
    """All namespaces, by name."""


class ListNamespacesResponse(Message, frozen=True, kw_only=True):
    namespaces: tuple[NamespaceInfo, ...] = ()


# --- task queues -----------------------------------------------------------------------------------------------------


class PollerInfo(Message, frozen=True, kw_only=True):
    """One worker on a task queue.

    Args:
        identity: What the worker calls itself.
        takes_workflow_tasks: Whether it takes tasks of workflows.
        takes_activity_tasks: Whether it takes attempts of activities.
        deployment_version: Of the worker, if it says one.
        workflow_credits: Workflow tasks that it would take now; None when it is attached to another node.
        activity_credits: Attempts of activities that it would take now; None likewise.
    """

    identity: str
    takes_workflow_tasks: bool
    takes_activity_tasks: bool
    deployment_version: DeploymentVersion | None = None
    workflow_credits: int | None = 0
    activity_credits: int | None = 0


class TaskQueueInfo(Message, frozen=True, kw_only=True):
    """What waits in a task queue, and for whom.

    Args:
        namespace: Of the queue.
        task_queue: Its name.
        workflow_backlog: Workflow tasks that wait for a worker.
        activity_backlog: Attempts of activities that wait for a worker.
        workflow_oldest_at: Since when the oldest of the first has waited.
        activity_oldest_at: Since when the oldest of the second has waited.
        pollers: Workers attached to the node that answered.
    """

    namespace: str
    task_queue: str
    workflow_backlog: int = 0
    activity_backlog: int = 0
    workflow_oldest_at: datetime | None = None
    activity_oldest_at: datetime | None = None
    pollers: tuple[PollerInfo, ...] = ()


class DescribeTaskQueueRequest(Message, frozen=True, kw_only=True):
    namespace: str
    task_queue: str


class ListTaskQueuesRequest(Message, frozen=True, kw_only=True):
    """The queues of a namespace that have work waiting or workers attached, by name."""

    namespace: str


class ListTaskQueuesResponse(Message, frozen=True, kw_only=True):
    task_queues: tuple[TaskQueueInfo, ...] = ()


# --- callbacks of activities -----------------------------------------------------------------------------------------


class IssueCallbackRequest(Message, frozen=True, kw_only=True):
    """Make a token with which whoever holds it may end one activity, without other credentials.

    Args:
        target: The activity: by ids, whichever attempt is under way when the token is used; or by the token of one
            attempt, for that one alone.
        expires_in: How long the token is good; seven days when not given.
    """

    target: TaskToken | ActivityTarget
    expires_in: timedelta = ZERO


class IssueCallbackResponse(Message, frozen=True, kw_only=True):
    """`token` is a secret made of letters that need no escaping in a URL."""

    token: str
    expires_at: datetime


class OpenCallbackRequest(Message, frozen=True, kw_only=True):
    """Ask which activity a callback token is for; refused when it is not genuine, or too old."""

    token: str


class OpenCallbackResponse(Message, frozen=True, kw_only=True):
    target: TaskToken | ActivityTarget
    expires_at: datetime
