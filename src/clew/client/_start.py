"""What a start may be told, and its input for the interceptor chain.

Owns: the options of a start and the checks that need no engine. Never: sends anything (``_outbound``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Required, TypedDict, cast

from clew.adapters import new_request_id
from clew.client._interceptor import StartWorkflowInput
from clew.client._names import arguments, workflow_target
from clew.common import (
    Priority,
    RetryPolicy,
    SearchAttributes,
    TypedSearchAttributes,
    VersioningOverride,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)


class WithStartOptions(TypedDict, total=False):
    """What the start of an update-with-start may say; `Client.start_workflow` explains each."""

    id: Required[str]
    task_queue: Required[str]
    execution_timeout: timedelta | None
    run_timeout: timedelta | None
    task_timeout: timedelta | None
    id_reuse_policy: WorkflowIDReusePolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: TypedSearchAttributes | SearchAttributes | None
    static_summary: str | None
    static_details: str | None
    start_delay: timedelta | None
    priority: Priority | None
    versioning_override: VersioningOverride | None
    request_id: str | None
    rpc_timeout: timedelta | None


class StartOptions(WithStartOptions, total=False):
    """What a start may say beside the workflow and its arguments; `Client.start_workflow` explains each."""

    id_conflict_policy: WorkflowIDConflictPolicy
    start_signal: str | None
    start_signal_args: Sequence[Any]
    request_eager_start: bool


_OPTIONS: Final = frozenset(StartOptions.__required_keys__ | StartOptions.__optional_keys__)


def start_input(
    workflow: str | Callable[..., Awaitable[Any]],
    arg: Any,
    args: Sequence[Any],
    result_type: type | None,
    options: dict[str, Any],
) -> StartWorkflowInput:
    """Check what a start was given, and make it the input of the interceptor chain.

    Raises:
        TypeError: An option is unknown or missing, or the arguments do not fit the workflow.
    """
    if not options.keys() <= _OPTIONS:
        unknown = sorted(options.keys() - _OPTIONS)
        raise TypeError(f"A start has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}.")
    target = workflow_target(workflow)
    for name in ("id", "task_queue"):
        value = options.get(name)
        if not isinstance(value, str) or not value:
            raise TypeError(
                f"Starting {target.name!r} needs {name}=, a text that is not empty, but got {value!r}. "
                + ("Choose an id that names the business case, such as 'claim-4711'." if name == "id" else "")
            )
    options.pop("request_eager_start", None)
    options.setdefault("request_id", None)
    options["request_id"] = options["request_id"] or new_request_id()
    return StartWorkflowInput(
        workflow=target.name,
        args=target.check(arguments(arg, args)),
        ret_type=result_type if result_type is not None else target.result_type,
        **cast(Any, options),
    )
