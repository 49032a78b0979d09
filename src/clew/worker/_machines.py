"""Machines for the workflows of a worker.

Owns: which definition runs a task, and the settings each machine gets. Never: runs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import msgspec

from clew.common import MetricMeter
from clew.converter import DataConverter
from clew.exceptions import ClewError
from clew.model.inputs import CompleteWorkflowTaskRequest
from clew.model.limits import Limits
from clew.model.policies import VersioningBehavior
from clew.replay import MachineOptions, WorkflowMachine
from clew.service.requests import WorkflowTask
from clew.worker._interceptor import Interceptor, WorkflowInterceptorClassInput
from clew.worker._settings import WorkerDeploymentConfig
from clew.workflow._definition import Definition
from clew.workflow._interceptor import WorkflowInboundInterceptor


class UnknownWorkflowError(ClewError):
    """This worker has no workflow of the type that a task is for."""


@final
class Machines:
    """Makes the machine of a run.

    Args:
        definitions: The workflows by type; the key None has the dynamic one.
        namespace: Of the worker.
        task_queue: Of the worker.
        identity: Of the worker, set in every answer.
        data_converter: Of the client.
        limits: Of the engine.
        interceptors: Of the worker; each may give a class that wraps workflows.
        failure_exception_types: Exceptions that fail the run, for every workflow.
        deployment: The version of the code, set in every answer.
        runs_local_activities: Whether the worker can run local activities.
        metric_meter: Where workflow code records.
    """

    def __init__(
        self,
        definitions: Mapping[str | None, Definition],
        *,
        namespace: str,
        task_queue: str,
        identity: str,
        data_converter: DataConverter,
        limits: Limits,
        interceptors: Sequence[Interceptor],
        failure_exception_types: Sequence[type[BaseException]],
        deployment: WorkerDeploymentConfig | None,
        runs_local_activities: bool = False,
        metric_meter: MetricMeter = MetricMeter.noop,
    ) -> None:
        self._definitions = definitions
        self._namespace = namespace
        self._task_queue = task_queue
        self._identity = identity
        self._data_converter = data_converter
        self._limits = limits
        self._deployment_version = deployment.version if deployment is not None else None
        classes, externs = interceptor_classes(interceptors)
        self._options = MachineOptions(
            failure_exception_types=tuple(failure_exception_types),
            interceptors=tuple(classes),
            extern_functions=externs,
            runs_local_activities=runs_local_activities,
            metric_meter=None if metric_meter is MetricMeter.noop else metric_meter,
            deployment_version=self._deployment_version,
            identity=identity,
            is_sticky=True,
            versioning_behavior=(
                deployment.default_versioning_behavior if deployment is not None else VersioningBehavior.UNSPECIFIED
            ),
        )

    def make(self, task: WorkflowTask) -> WorkflowMachine:
        """Make the machine for the run of `task`; on a workflow thread.

        Raises:
            UnknownWorkflowError: There is no workflow of that type.
        """
        definition = self._definitions.get(task.workflow_type) or self._definitions.get(None)
        if definition is None:
            raise UnknownWorkflowError(self._unknown(task.workflow_type))
        return WorkflowMachine(
            definition=definition,
            namespace=self._namespace,
            task_queue=self._task_queue,
            workflow_id=task.token.workflow_id,
            run_id=task.token.run_id,
            workflow_type=task.workflow_type,
            payload_converter=self._data_converter.payload_converter,
            failure_converter=self._data_converter.failure_converter,
            limits=self._limits,
            options=self._options,
        )

    def sign(self, completion: CompleteWorkflowTaskRequest, *, is_sticky: bool) -> CompleteWorkflowTaskRequest:
        """Add what only the worker knows to the answer of a machine."""
        if completion.is_sticky is is_sticky and completion.identity == self._identity:
            return completion
        return msgspec.structs.replace(
            completion, identity=self._identity, is_sticky=is_sticky, deployment_version=self._deployment_version
        )

    def _unknown(self, workflow_type: str) -> str:
        known = ", ".join(sorted(name for name in self._definitions if name is not None)) or "none"
        return (
            f"Workflow {workflow_type!r} is not registered with this worker of task queue {self._task_queue!r}; it "
            f"has: {known}. Pass the class in Worker(workflows=[…])."
        )


def interceptor_classes(
    interceptors: Sequence[Interceptor],
) -> tuple[list[type[WorkflowInboundInterceptor]], Mapping[str, Callable[..., Any]]]:
    """Give the classes that wrap workflows, the outermost first, and the functions they asked for."""
    externs = WorkflowInterceptorClassInput()
    classes = [found for one in interceptors if (found := one.workflow_interceptor_class(externs)) is not None]
    return classes, externs.unsafe_extern_functions
