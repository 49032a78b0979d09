"""Policies that travel in requests, commands and events; users meet them as ``clew.common``.

Owns: the policy structs and enums. Never: decides by them (``core`` does).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import msgspec


class RetryPolicy(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """How often and how fast a failed attempt is tried again.

    The wait before attempt ``n + 1`` is ``initial_interval * backoff_coefficient ** (n - 1)``, never more than
    ``maximum_interval``; without jitter. The defaults are the published ones (1 s, 2.0, 100 times the initial interval,
    no limit of attempts).

    Args:
        initial_interval: Wait before the second attempt. Default 1 s.
        backoff_coefficient: Factor from one wait to the next, at least 1.
        maximum_interval: Longest wait; ``None`` means 100 times ``initial_interval``.
        maximum_attempts: Attempts in all; 0 means no limit, 1 means never again.
        non_retryable_error_types: Error types (names) after which there is no further attempt.
    """

    initial_interval: timedelta = timedelta(seconds=1)
    backoff_coefficient: float = 2.0
    maximum_interval: timedelta | None = None
    maximum_attempts: int = 0
    non_retryable_error_types: Sequence[str] | None = None


class WorkflowIDReusePolicy(enum.Enum):
    """Whether a workflow id may be used again when its latest run is closed."""

    ALLOW_DUPLICATE = "AllowDuplicate"
    ALLOW_DUPLICATE_FAILED_ONLY = "AllowDuplicateFailedOnly"
    REJECT_DUPLICATE = "RejectDuplicate"
    TERMINATE_IF_RUNNING = "TerminateIfRunning"
    """Deprecated by the field: the same as `WorkflowIDConflictPolicy.TERMINATE_EXISTING`."""


class WorkflowIDConflictPolicy(enum.Enum):
    """What a start does when a run with the same workflow id is open."""

    UNSPECIFIED = "Unspecified"
    FAIL = "Fail"
    USE_EXISTING = "UseExisting"
    TERMINATE_EXISTING = "TerminateExisting"


class WorkflowExecutionStatus(enum.Enum):
    """The state of a run as people see it."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"
    TERMINATED = "Terminated"
    CONTINUED_AS_NEW = "ContinuedAsNew"
    TIMED_OUT = "TimedOut"
    PAUSED = "Paused"

    @property
    def is_open(self) -> bool:
        """Whether a run in this state can still change."""
        return self in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.PAUSED)


class QueryRejectCondition(enum.Enum):
    """Which runs refuse a query."""

    NONE = "None"
    NOT_OPEN = "NotOpen"
    NOT_COMPLETED_CLEANLY = "NotCompletedCleanly"


class ParentClosePolicy(enum.Enum):
    """What happens to an open child when its parent closes."""

    TERMINATE = "Terminate"
    REQUEST_CANCEL = "RequestCancel"
    ABANDON = "Abandon"


class VersioningBehavior(enum.Enum):
    """Whether a run stays on the worker version it started on."""

    UNSPECIFIED = "Unspecified"
    PINNED = "Pinned"
    AUTO_UPGRADE = "AutoUpgrade"


class Priority(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Order of dispatch within a task queue.

    Args:
        priority_key: 1 (first) to 5 (last); ``None`` means 3.
        fairness_key: Tasks of one key share the queue fairly with those of others; at most 64 bytes.
        fairness_weight: Share of this key, 0.001 to 1000.
    """

    priority_key: int | None = None
    fairness_key: str | None = None
    fairness_weight: float | None = None


class DeploymentVersion(msgspec.Struct, gc=False, frozen=True):
    """A deployed version of worker code.

    Args:
        deployment_name: What is deployed, such as a service; without dots.
        build_id: Which build of it, such as a commit.
    """

    deployment_name: str
    build_id: str

    def __post_init__(self) -> None:
        for name in ("deployment_name", "build_id"):
            value: object = getattr(self, name)
            if not isinstance(value, str):
                kind = type(value).__name__
                raise TypeError(f"{name} of a deployment version has {value!r:.80} (of type {kind}) instead of a str.")

    def to_canonical_string(self) -> str:
        """Give the version as one text, ``name.build``."""
        return f"{self.deployment_name}.{self.build_id}"

    @staticmethod
    def from_canonical_string(canonical: str) -> DeploymentVersion:
        """Read what `to_canonical_string` gave.

        Raises:
            ValueError: There is no dot in it.
        """
        name, dot, build_id = canonical.partition(".")
        if not dot:
            raise ValueError(f"{canonical!r} is no version; write DEPLOYMENT.BUILD_ID, such as 'billing.v42'.")
        return DeploymentVersion(name, build_id)


class VersioningOverride(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A per-run exception from the deployment's routing.

    Args:
        behavior: ``PINNED`` or ``AUTO_UPGRADE``.
        pinned_version: With ``PINNED``, the version that the run goes to.
    """

    behavior: VersioningBehavior
    pinned_version: DeploymentVersion | None = None

    def __post_init__(self) -> None:
        version = cast("object", self.pinned_version)
        if version is not None and not isinstance(version, DeploymentVersion):
            raise TypeError(
                f"A versioning override pins to {version!r:.80} (of type {type(version).__name__}). Give it a "
                "WorkerDeploymentVersion(deployment_name, build_id)."
            )
