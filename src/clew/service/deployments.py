"""Requests and responses about worker deployments: which version new runs get, and which are still needed.

Owns: the structs. Never: behaviour (``engine.deployments``). An empty build id stands for workers without versioning.
"""

from __future__ import annotations

import enum
from datetime import datetime

from clew.model.inputs import Message


class DeploymentVersionStatus(enum.Enum):
    """How much a version is needed."""

    INACTIVE = "Inactive"
    """Its workers were here, but it was never current or ramping."""
    CURRENT = "Current"
    RAMPING = "Ramping"
    DRAINING = "Draining"
    """It gets no new runs, but open runs are pinned to it: its workers must stay."""
    DRAINED = "Drained"
    """It gets no new runs, and no open run is pinned to it: its workers can go."""


class DeploymentVersionInfo(Message, frozen=True, kw_only=True):
    """One version of a deployment.

    Args:
        build_id: Of the version.
        status: How much it is needed.
        created_at: When its first worker came.
        current_since: While it is current.
        ramping_since: While it is ramping.
        ramp_percentage: How many of a hundred workflow ids it gets, while it is ramping.
        last_deactivated_at: When it was last taken out of routing.
        open_pinned_count: Open runs that only it may have.
        task_queues: Those that its workers have polled.
        is_polled: Whether any of its workers is attached to the node that answered.
    """

    build_id: str
    status: DeploymentVersionStatus
    created_at: datetime
    current_since: datetime | None = None
    ramping_since: datetime | None = None
    ramp_percentage: float = 0.0
    last_deactivated_at: datetime | None = None
    open_pinned_count: int = 0
    task_queues: tuple[str, ...] = ()
    is_polled: bool = False


class DeploymentInfo(Message, frozen=True, kw_only=True):
    """A deployment as lists show it.

    Args:
        name: Of the deployment.
        created_at: When its first worker came.
        current_build_id: The version that runs get which are not pinned; empty for workers without versioning.
        ramping_build_id: The version that a share of them gets; None when there is no ramp.
        ramp_percentage: That share, of a hundred workflow ids.
        routing_changed_at: When one of these was last changed.
        identity: Who changed it.
        conflict_token: Names this state; see `SetCurrentVersionRequest`.
    """

    name: str
    created_at: datetime
    current_build_id: str = ""
    ramping_build_id: str | None = None
    ramp_percentage: float = 0.0
    routing_changed_at: datetime | None = None
    identity: str = ""
    conflict_token: str = ""


class DeploymentDescription(Message, frozen=True, kw_only=True):
    """Everything about a deployment; `versions` are the newest first."""

    info: DeploymentInfo
    versions: tuple[DeploymentVersionInfo, ...] = ()


class SetCurrentVersionRequest(Message, frozen=True, kw_only=True):
    """Give runs that are not pinned this version; a ramp of the same version ends.

    Args:
        build_id: The version; empty gives them to workers without versioning.
        conflict_token: Of the state that this was decided on; refused when there was a change since. Empty for any.
        ignore_missing_task_queues: Also when no worker of the version has polled a task queue that the present current
            version serves.
        allow_no_pollers: Also when no worker of the version is attached, or none ever was.
        identity: Who does it.
    """

    namespace: str
    deployment_name: str
    build_id: str
    conflict_token: str = ""
    ignore_missing_task_queues: bool = False
    allow_no_pollers: bool = False
    identity: str = ""


class SetRampingVersionRequest(Message, frozen=True, kw_only=True):
    """Give a share of the runs that are not pinned another version than the current one.

    Args:
        build_id: The version; empty for workers without versioning; None ends the ramp.
        percentage: The share, 0 to 100; a workflow id that is in it stays in it when it grows.
        conflict_token, ignore_missing_task_queues, allow_no_pollers, identity: See `SetCurrentVersionRequest`.
    """

    namespace: str
    deployment_name: str
    build_id: str | None
    percentage: float = 0.0
    conflict_token: str = ""
    ignore_missing_task_queues: bool = False
    allow_no_pollers: bool = False
    identity: str = ""


class DescribeDeploymentRequest(Message, frozen=True, kw_only=True):
    namespace: str
    deployment_name: str


class ListDeploymentsRequest(Message, frozen=True, kw_only=True):
    namespace: str


class ListDeploymentsResponse(Message, frozen=True, kw_only=True):
    deployments: tuple[DeploymentInfo, ...] = ()


class DeleteDeploymentVersionRequest(Message, frozen=True, kw_only=True):
    """Forget a version that is drained or was never used, and that no worker polls for.

    Args:
        skip_drainage: Also when open runs are pinned to it; they wait until a worker of it comes, or they are moved.
    """

    namespace: str
    deployment_name: str
    build_id: str
    skip_drainage: bool = False
    identity: str = ""
