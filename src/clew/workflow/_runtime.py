"""What the authoring API needs of the machine that runs a workflow.

Owns: the abstract `Runtime`, how the current one is found, and the facts it hands out.
Never: an implementation (``replay`` has it), I/O, threads, clocks.

How it works: workflow code runs on an event loop of ``replay``, which carries its runtime in an attribute. So whether
a piece of code is inside a workflow, and in which, is a matter of the running loop of its thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from uuid import UUID

from clew.common import (
    MetricMeter,
    Payload,
    Priority,
    RetryPolicy,
    SearchAttributes,
    SearchAttributeUpdate,
    TypedSearchAttributes,
    WorkerDeploymentVersion,
)
from clew.converter.payload_converter import PayloadConverter
from clew.exceptions import ClewError

if TYPE_CHECKING:
    from clew.workflow._activities import ActivityHandle
    from clew.workflow._children import ChildWorkflowHandle, ExternalWorkflowHandle
    from clew.workflow._definition import QueryDefinition, SignalDefinition, UpdateDefinition
    from clew.workflow._interceptor import (
        ContinueAsNewInput,
        StartActivityInput,
        StartChildWorkflowInput,
    )
    from clew.workflow._local_calls import LocalActivityCall

_running_loop: Final[Callable[[], Any]] = asyncio._get_running_loop
"""The attribute of a workflow's event loop that holds its runtime."""

AwaitedCall: TypeAlias = tuple[Any, Any, Sequence[Any], Any | None, Mapping[str, Any]]
"""An activity that a coroutine is about to await: the activity, its one argument or else several, the type of its
result, and the options."""


class NotInWorkflowError(ClewError, RuntimeError):
    """Something that only workflow code can do was called elsewhere."""


class ReadOnlyContextError(ClewError):
    """A query handler, validator or condition tried to change something."""


class ContinueAsNewError(BaseException):
    """Unwinds `run` when it continues as new. Not an `Exception`, so that `except Exception` does not stop it."""


@dataclass(frozen=True, slots=True)
class ParentInfo:
    """The run that started this one as its child."""

    namespace: str
    run_id: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class RootInfo:
    """The run at the top of the tree of parents."""

    run_id: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """The update whose handler or validator is running."""

    id: str
    name: str


@dataclass(frozen=True)
class Info:
    """What a run knows of itself. Fields that `current()` values exist for are methods, since they change."""

    attempt: int
    continued_run_id: str | None
    cron_schedule: str | None
    execution_timeout: timedelta | None
    first_execution_run_id: str
    headers: Mapping[str, Payload]
    namespace: str
    original_run_id: str
    parent: ParentInfo | None
    priority: Priority
    raw_memo: Mapping[str, Payload]
    retry_policy: RetryPolicy | None
    root: RootInfo | None
    run_id: str
    run_timeout: timedelta | None
    search_attributes: SearchAttributes
    start_time: datetime
    """When the first workflow task began."""
    task_queue: str
    task_timeout: timedelta
    typed_search_attributes: TypedSearchAttributes
    workflow_id: str
    workflow_start_time: datetime
    """When the run was started."""
    workflow_type: str

    def get_current_build_id(self) -> str:
        """The build id of the worker that ran, or runs, the current workflow task; empty if it has none."""
        version = self.get_current_deployment_version()
        return version.build_id if version is not None else ""

    def get_current_deployment_version(self) -> WorkerDeploymentVersion | None:
        """The version of the worker that ran, or runs, the current workflow task."""
        return current().deployment_version()

    def get_current_history_length(self) -> int:
        """Events in the history up to the current workflow task."""
        return current().history_length()

    def get_current_history_size(self) -> int:
        """Bytes of the history up to the current workflow task."""
        return current().history_size()

    def is_continue_as_new_suggested(self) -> bool:
        """Whether the history is so long that the run should continue as new soon."""
        return current().is_continue_as_new_suggested()

    def _logger_details(self) -> Mapping[str, Any]:
        return {
            "attempt": self.attempt,
            "namespace": self.namespace,
            "run_id": self.run_id,
            "task_queue": self.task_queue,
            "workflow_id": self.workflow_id,
            "workflow_type": self.workflow_type,
        }


class Runtime(ABC):
    """What a machine offers to the workflow code that it runs; the functions of ``clew.workflow`` document each."""

    logger_extra: Mapping[str, Any]

    @abstractmethod
    def info(self) -> Info: ...
    @abstractmethod
    def instance(self) -> Any: ...
    @abstractmethod
    def payload_converter(self) -> PayloadConverter: ...
    @abstractmethod
    def metric_meter(self) -> MetricMeter: ...
    @abstractmethod
    def extern_functions(self) -> Mapping[str, Callable[..., Any]]: ...
    @abstractmethod
    def deployment_version(self) -> WorkerDeploymentVersion | None: ...
    @abstractmethod
    def history_length(self) -> int: ...
    @abstractmethod
    def history_size(self) -> int: ...
    @abstractmethod
    def is_continue_as_new_suggested(self) -> bool: ...

    # time and chance
    @abstractmethod
    def now(self) -> datetime: ...
    @abstractmethod
    def time_ns(self) -> int: ...
    @abstractmethod
    def random(self) -> Random: ...
    @abstractmethod
    def new_random(self, name: str) -> Random: ...
    @abstractmethod
    def random_seed(self) -> int: ...
    @abstractmethod
    def register_random_seed_callback(self, callback: Callable[[int], None]) -> None: ...
    @abstractmethod
    def uuid4(self) -> UUID: ...
    @abstractmethod
    def uuid7(self) -> UUID: ...

    # waiting
    @abstractmethod
    def sleep(self, seconds: float, summary: str | None) -> Coroutine[Any, Any, None]: ...
    @abstractmethod
    def wait_condition(
        self, predicate: Callable[[], bool], timeout: float | None, timeout_summary: str | None
    ) -> Coroutine[Any, Any, None]: ...

    # what happens elsewhere
    @abstractmethod
    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]: ...
    @abstractmethod
    def execute_activity(self, input: StartActivityInput) -> Awaitable[Any]: ...

    take_recorded_activity: Callable[[AwaitedCall], Any] | None = None
    """Gives the result of an activity if history tells it next, else ``UNSET``; for coroutines that await it."""

    @abstractmethod
    def start_local_activity(self, call: LocalActivityCall, args: Sequence[Any]) -> ActivityHandle[Any]: ...
    @abstractmethod
    def execute_local_activity(self, call: LocalActivityCall, args: Sequence[Any]) -> Awaitable[Any]: ...

    take_recorded_step: Callable[[AwaitedCall], Any] | None = None
    """Gives the result of a local activity if history tells it next, else ``UNSET``; for coroutines that await it."""

    @abstractmethod
    def start_child_workflow(
        self,
        input: StartChildWorkflowInput,
    ) -> Coroutine[Any, Any, ChildWorkflowHandle[Any, Any]]: ...
    @abstractmethod
    def get_external_workflow_handle(self, workflow_id: str, run_id: str | None) -> ExternalWorkflowHandle[Any]: ...
    @abstractmethod
    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn: ...

    # versions, memo, search attributes
    @abstractmethod
    def patched(self, patch_id: str, is_deprecated: bool) -> bool: ...
    @abstractmethod
    def upsert_memo(self, updates: Mapping[str, Any]) -> None: ...
    @abstractmethod
    def memo(self) -> Mapping[str, Any]: ...
    @abstractmethod
    def memo_value(self, key: str, default: Any, type_hint: Any | None) -> Any: ...
    @abstractmethod
    def upsert_search_attributes(self, updates: SearchAttributes | Sequence[SearchAttributeUpdate[Any]]) -> None: ...

    # handlers
    @abstractmethod
    def signal_handler(self, name: str | None) -> Callable[..., Any] | None: ...
    @abstractmethod
    def set_signal_handler(self, name: str | None, definition: SignalDefinition | None) -> None: ...
    @abstractmethod
    def query_handler(self, name: str | None) -> Callable[..., Any] | None: ...
    @abstractmethod
    def set_query_handler(self, name: str | None, definition: QueryDefinition | None) -> None: ...
    @abstractmethod
    def update_handler(self, name: str | None) -> Callable[..., Any] | None: ...
    @abstractmethod
    def set_update_handler(self, name: str | None, definition: UpdateDefinition | None) -> None: ...
    @abstractmethod
    def all_handlers_finished(self) -> bool: ...
    @abstractmethod
    def current_update_info(self) -> UpdateInfo | None: ...

    # state of the run
    @abstractmethod
    def current_details(self) -> str: ...
    @abstractmethod
    def set_current_details(self, description: str) -> None: ...
    @abstractmethod
    def cancellation_reason(self) -> str | None: ...
    @abstractmethod
    def last_completion_result(self, type_hint: Any | None) -> Any: ...
    @abstractmethod
    def has_last_completion_result(self) -> bool: ...
    @abstractmethod
    def last_failure(self) -> BaseException | None: ...
    @abstractmethod
    def is_failure_exception(self, error: BaseException) -> bool: ...
    @abstractmethod
    def is_replaying(self) -> bool: ...
    @abstractmethod
    def is_replaying_history_events(self) -> bool: ...
    @abstractmethod
    def is_read_only(self) -> bool: ...


def maybe_current() -> Runtime | None:
    """Give the runtime of the workflow that the calling code belongs to; None outside of workflows."""
    runtime: Runtime | None = getattr(_running_loop(), "clew_runtime", None)
    return runtime


def current() -> Runtime:
    """Give the runtime of the workflow that the calling code belongs to.

    Raises:
        NotInWorkflowError: The code is not part of a running workflow.
    """
    try:
        runtime: Runtime = _running_loop().clew_runtime
    except AttributeError:
        raise NotInWorkflowError(
            "This is only available to workflow code, but was called outside of a running workflow. Call it from a "
            "method of a @workflow.defn class, or ask workflow.in_workflow() first."
        ) from None
    return runtime
