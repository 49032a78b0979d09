"""What a worker is told to do, checked.

Owns: the checks of a worker's arguments, with messages that name the argument and the remedy.
Never: starts anything.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from clew.activity import _Definition as ActivityDefinition
from clew.converter import DataConverter
from clew.model.option_types import check_ids, check_kinds
from clew.model.policies import DeploymentVersion, VersioningBehavior
from clew.service.connection import Connection
from clew.workflow._definition import Definition as WorkflowDefinition
from clew.workflow._definition import SignalDefinition, UpdateDefinition

if TYPE_CHECKING:
    from clew.worker._plugin import WorkerConfig


class ClientLike(Protocol):
    """The part of a client that a worker uses."""

    @property
    def connection(self) -> Connection: ...
    @property
    def namespace(self) -> str: ...
    @property
    def data_converter(self) -> DataConverter: ...
    @property
    def identity(self) -> str: ...
    @property
    def interceptors(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class WorkerDeploymentConfig:
    """Which version of the code a worker has, for routing by version.

    Args:
        version: Deployment name and build id.
        use_worker_versioning: Whether runs are routed by it; else it is only recorded.
        default_versioning_behavior: For workflows that do not say whether they stay on their version.
    """

    version: DeploymentVersion
    use_worker_versioning: bool = False
    default_versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED

    @staticmethod
    def of_build_id(build_id: str | None) -> WorkerDeploymentConfig | None:
        """Give the configuration of a bare build id; None for none."""
        return WorkerDeploymentConfig(DeploymentVersion("", build_id)) if build_id else None


def read_activities(functions: Sequence[Callable[..., Any]]) -> dict[str | None, ActivityDefinition]:
    """Give the activities by type; the key None has the dynamic one.

    Raises:
        TypeError: One is not an activity.
        ValueError: Two have the same type.
    """
    found: dict[str | None, ActivityDefinition] = {}
    for fn in functions:
        definition = ActivityDefinition.must_from_callable(fn)
        other = found.get(definition.name)
        if other is not None:
            raise ValueError(_twice("activity", definition.name, other.fn, fn))
        found[definition.name] = definition
        _read_ahead(definition)
    return found


def read_workflows(classes: Sequence[type[Any]]) -> dict[str | None, WorkflowDefinition]:
    """Give the workflows by type; the key None has the dynamic one.

    Raises:
        ValueError: One is not a workflow, or two have the same type.
    """
    found: dict[str | None, WorkflowDefinition] = {}
    for cls in classes:
        definition = WorkflowDefinition.must_from_class(cls)
        other = found.get(definition.name)
        if other is not None:
            raise ValueError(_twice("workflow", definition.name, other.cls, cls))
        found[definition.name] = definition
        _read_ahead(definition)
        for signal in definition.signals.values():
            _read_ahead(signal)
        for update in definition.updates.values():
            _read_ahead(update)
    return found


def _read_ahead(definition: ActivityDefinition | WorkflowDefinition | SignalDefinition | UpdateDefinition) -> None:
    """Resolve annotations now, which takes up to 0.1 ms and would else delay the first run that meets them."""
    with contextlib.suppress(Exception):  # What cannot be resolved is told to whoever needs it, then.
        definition.signature.resolve()


def _twice(noun: str, name: str | None, one: Any, other: Any) -> str:
    what = f"the {noun} type {name!r}" if name is not None else f"the dynamic {noun}"
    return (
        f"Two {noun} definitions claim {what}: {one.__module__}.{one.__qualname__} and "
        f"{other.__module__}.{other.__qualname__}. Give one of them another name in its decorator."
    )


def check_names(config: WorkerConfig) -> None:
    """Make sure that the worker can be told by name from others, and serves a queue that can have tasks.

    Raises:
        TypeError: A name is no text, or the deployment is no `WorkerDeploymentConfig`.
        ValueError: The task queue is empty, or a name is not valid UTF-8.
    """
    task_queue, deployment = config["task_queue"], config["deployment_config"]
    check_ids("Worker", task_queue=task_queue, identity=config["identity"], build_id=config["build_id"])
    check_kinds("Worker", deployment_config=(deployment, WorkerDeploymentConfig))
    if not task_queue:
        raise ValueError("task_queue is empty; name the queue that the workflows and activities are started on.")


def check_versioning(deployment: WorkerDeploymentConfig | None, workflows: Mapping[str | None, Any]) -> None:
    """Make sure that a worker with versioning says by which behaviour each of its workflows goes.

    Raises:
        ValueError: It has no whole version, or a workflow has no behaviour.
    """
    if deployment is None or not deployment.use_worker_versioning:
        return
    version = deployment.version
    if not version.deployment_name or not version.build_id or "." in version.deployment_name:
        raise ValueError(
            f"deployment_config has {version!r}; a worker that uses versioning needs a deployment name, without dots, "
            "and a build id."
        )
    if deployment.default_versioning_behavior is not VersioningBehavior.UNSPECIFIED:
        return
    missing = [d for d in workflows.values() if d.versioning_behavior is VersioningBehavior.UNSPECIFIED]
    if missing:
        raise ValueError(
            f"Workflow {missing[0].name or 'that is dynamic'!r} does not say whether its runs stay on their worker "
            "version. Give @workflow.defn a versioning_behavior, PINNED or AUTO_UPGRADE, or deployment_config a "
            "default_versioning_behavior."
        )


def check_counts(counts: Mapping[str, int], *, at_least: int) -> None:
    """Make sure that each count is sensible.

    Raises:
        ValueError: One is too small.
    """
    for name, count in counts.items():
        if not _is_whole(count) or count < at_least:
            raise ValueError(f"{name} is {count!r}; it must be a whole number of at least {at_least}.")


def _is_whole(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool)


def check_durations(durations: Mapping[str, Any]) -> None:
    """Make sure that each duration is one, and not negative.

    Raises:
        TypeError: One is no timedelta.
        ValueError: One is negative.
    """
    for name, duration in durations.items():
        if duration is None:
            continue
        if not isinstance(duration, timedelta):
            raise TypeError(f"{name} is {duration!r}; pass a datetime.timedelta.")
        if duration < timedelta(0):
            raise ValueError(f"{name} is {duration}; it cannot be negative.")


def executor_size(executor: concurrent.futures.Executor | None, default: int) -> int:
    """How many calls `executor` runs at a time; `default` where it does not say."""
    size = getattr(executor, "_max_workers", None)
    return size if isinstance(size, int) else default
