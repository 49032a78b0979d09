"""Policies and values that clients, workflows, activities and workers share.

Owns: `RawValue` and the overrides' short forms; everything else is defined where it is used and named here for users.
Never: behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from clew._metric import (
    MetricAttributes,
    MetricCounter,
    MetricGauge,
    MetricGaugeFloat,
    MetricHistogram,
    MetricHistogramFloat,
    MetricHistogramTimedelta,
    MetricMeter,
)
from clew._search_attributes import (
    SearchAttributeIndexedValueType,
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributes,
    SearchAttributeUpdate,
    SearchAttributeValue,
    SearchAttributeValues,
    TypedSearchAttributes,
)
from clew.model.payload import Payload
from clew.model.policies import (
    DeploymentVersion as WorkerDeploymentVersion,
)
from clew.model.policies import (
    ParentClosePolicy,
    Priority,
    QueryRejectCondition,
    RetryPolicy,
    VersioningBehavior,
    VersioningOverride,
    WorkflowExecutionStatus,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)

__all__ = [
    "AutoUpgradeVersioningOverride",
    "Header",
    "MetricAttributes",
    "MetricCounter",
    "MetricGauge",
    "MetricGaugeFloat",
    "MetricHistogram",
    "MetricHistogramFloat",
    "MetricHistogramTimedelta",
    "MetricMeter",
    "ParentClosePolicy",
    "Payload",
    "PinnedVersioningOverride",
    "Priority",
    "QueryRejectCondition",
    "RawValue",
    "RetryPolicy",
    "SearchAttributeIndexedValueType",
    "SearchAttributeKey",
    "SearchAttributePair",
    "SearchAttributeUpdate",
    "SearchAttributeValue",
    "SearchAttributeValues",
    "SearchAttributes",
    "TypedSearchAttributes",
    "VersioningBehavior",
    "VersioningOverride",
    "WorkerDeploymentVersion",
    "WorkflowExecutionStatus",
    "WorkflowIDConflictPolicy",
    "WorkflowIDReusePolicy",
]

Header: TypeAlias = Mapping[str, Payload]
"""What interceptors send along with a call: names to payloads."""


def PinnedVersioningOverride(version: WorkerDeploymentVersion) -> VersioningOverride:  # noqa: N802 - named as a class
    """Make the override that keeps a run on one worker version.

    Args:
        version: The only version that may have the run.
    """
    return VersioningOverride(behavior=VersioningBehavior.PINNED, pinned_version=version)


def AutoUpgradeVersioningOverride() -> VersioningOverride:  # noqa: N802 - named as a class
    """Make the override that lets a run go with its deployment, whatever its code says."""
    return VersioningOverride(behavior=VersioningBehavior.AUTO_UPGRADE)


@dataclass(frozen=True)
class RawValue:
    """A payload that is handed over as it is: as an argument it is sent unconverted, as a hint it is received so.

    Args:
        payload: Data with its metadata.
    """

    payload: Payload
