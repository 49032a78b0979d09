"""What workflow code has asked for: each request from the call to its last event.

Owns: one class for each kind of command, with the state it goes through, its command for the engine, and how it
compares with the event recorded for it. Never: the order of commands or their registration (``ledger`` has both).

How it works: a request (`Pending`) is made by a call of workflow code and gets its event id when its event is
matched, on replay as well as after a live task. The command for the engine is built only when there is no event yet.
What matching compares is the identity of a request (semantics §3): kind, ids, types, targets; never arguments or
options.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import msgspec

import clew
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import Failure
from clew.model.payload import Payloads
from clew.replay.values import to_header

if TYPE_CHECKING:
    from clew.replay.loop import Timer
    from clew.workflow._interceptor import StartActivityInput, StartChildWorkflowInput

Site = tuple[CodeType, int]
"""A line of workflow code."""

_INTERNAL: Final = (str(Path(clew.__path__[0])) + "/", str(Path(asyncio.__file__).parent) + "/")


known_files: Final[dict[str, bool]] = {}
"""Files that `is_internal` has been asked about, with its answer."""


def call_site() -> Site | None:
    """Find the line of workflow code that is behind the current call."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_INTERNAL):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return (frame.f_code, frame.f_lineno)


def is_internal(code: CodeType) -> bool:
    """Whether code is ours or asyncio's, not the user's."""
    name = code.co_filename
    known = known_files.get(name)
    if known is None:
        known = known_files[name] = name.startswith(_INTERNAL)
    return known


@final
class OpenRequests:
    """What may still be answered, by the id of the event that records it; timers by their own id."""

    __slots__ = ("activities", "cancels", "children", "signals", "timers")

    def __init__(self) -> None:
        self.activities: dict[int, ScheduleActivity] = {}
        self.timers: dict[str, StartTimer] = {}
        self.children: dict[int, StartChild] = {}
        self.signals: dict[int, SignalExternal] = {}
        self.cancels: dict[int, CancelExternal] = {}


class Pending:
    """One request of workflow code."""

    __slots__ = ("born", "event_id", "is_dropped", "site")
    event_type: ClassVar[type[e.BaseEvent]]
    """The event that records it."""
    is_close: ClassVar[bool] = False
    is_optional: bool = False
    """Whether history may be without it: what the machine itself adds for people to search by."""
    has_arguments: ClassVar[bool] = False
    """Whether it and its event carry arguments, which may change but not trade places (see `Ledger`)."""

    def __init__(self) -> None:
        self.site: Site | None = None
        """The line that asked for it, when that is traced."""
        self.born = 0
        """The activation in which it was asked for."""
        self.event_id = 0
        self.is_dropped = False
        """Whether it came to nothing within its own activation, so that the engine never hears of it."""

    def to_command(self) -> c.Command:
        """Give the command for the engine."""
        raise NotImplementedError

    def differences(self, event: Any) -> list[str]:
        """Compare with the event recorded in its place; empty if it is the same request."""
        raise NotImplementedError

    def describe(self) -> str:
        """Say in a few words what was asked for."""
        raise NotImplementedError

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        """Note the event that records it, under which later events will name it."""
        self.event_id = event_id

    def place(self) -> str:
        """The source line as ``file:line``; empty if unknown."""
        return f"{self.site[0].co_filename}:{self.site[1]}" if self.site is not None else ""


def _difference(name: str, recorded: object, attempted: object) -> list[str]:
    return [] if recorded == attempted else [f"{name}: recorded {recorded!r}, attempted {attempted!r}"]


@final
class ScheduleActivity(Pending):
    """An activity, from the call until it is closed."""

    __slots__ = (
        "activity_id", "activity_type", "cancel", "future", "input", "is_done", "metadata", "payloads",
        "task_queue",
    )  # fmt: skip
    event_type = e.ActivityTaskScheduled
    has_arguments = True

    def __init__(
        self,
        input: StartActivityInput,
        activity_id: str,
        task_queue: str,
        payloads: Payloads,
        metadata: e.UserMetadata | None,
        future: asyncio.Future[Any],
    ) -> None:
        # As the base class would; there are too many of these to ask it.
        self.site = None
        self.born = self.event_id = 0
        self.is_dropped = False
        self.input = input
        self.activity_id = activity_id
        self.activity_type = input.activity
        self.task_queue = task_queue
        self.payloads = payloads
        self.metadata = metadata
        self.future = future
        self.cancel: CancelActivity | None = None
        self.is_done = False

    def to_command(self) -> c.Command:
        asked = self.input
        return c.ScheduleActivityTask(
            activity_id=self.activity_id,
            activity_type=self.activity_type,
            task_queue=self.task_queue,
            header=to_header(asked.headers),
            input=self.payloads,
            schedule_to_close_timeout=asked.schedule_to_close_timeout or e.ZERO,
            schedule_to_start_timeout=asked.schedule_to_start_timeout or e.ZERO,
            start_to_close_timeout=asked.start_to_close_timeout or e.ZERO,
            heartbeat_timeout=asked.heartbeat_timeout or e.ZERO,
            retry_policy=asked.retry_policy,
            request_eager_execution=not asked.disable_eager_execution,
            priority=asked.priority,
            user_metadata=self.metadata,
        )

    def differences(self, event: e.ActivityTaskScheduled) -> list[str]:
        if event.activity_id == self.activity_id and event.activity_type == self.activity_type:
            return []
        return _difference("activity_type", event.activity_type, self.activity_type) + _difference(
            "activity_id", event.activity_id, self.activity_id
        )

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        self.event_id = event_id
        open_requests.activities[event_id] = self

    def describe(self) -> str:
        return f"ScheduleActivityTask of {self.activity_type!r} with id {self.activity_id!r}"


@final
class CancelActivity(Pending):
    """The wish that an activity stop."""

    __slots__ = ("target",)
    event_type = e.ActivityTaskCancelRequested

    def __init__(self, target: ScheduleActivity) -> None:
        super().__init__()
        self.target = target

    def to_command(self) -> c.Command:
        return c.RequestCancelActivityTask(scheduled_event_id=self.target.event_id)

    def differences(self, event: e.ActivityTaskCancelRequested) -> list[str]:
        return _difference("scheduled_event_id", event.scheduled_event_id, self.target.event_id)

    def describe(self) -> str:
        return f"RequestCancelActivityTask of {self.target.activity_id!r}"


@final
class StartTimer(Pending):
    """A durable timer, from the call until it fires or is cancelled."""

    __slots__ = ("cancel", "duration", "is_done", "metadata", "timer", "timer_id")
    event_type = e.TimerStarted

    def __init__(self, timer_id: str, duration: timedelta, timer: Timer, metadata: e.UserMetadata | None) -> None:
        super().__init__()
        self.timer_id = timer_id
        self.duration = duration
        self.timer = timer
        self.metadata = metadata
        self.cancel: CancelTimer | None = None
        self.is_done = False

    def to_command(self) -> c.Command:
        return c.StartTimer(timer_id=self.timer_id, start_to_fire_timeout=self.duration, user_metadata=self.metadata)

    def differences(self, event: e.TimerStarted) -> list[str]:
        return _difference("timer_id", event.timer_id, self.timer_id)

    def describe(self) -> str:
        return f"StartTimer {self.timer_id!r} of {self.duration.total_seconds():g} s"


@final
class CancelTimer(Pending):
    """The end of a timer that has not fired."""

    __slots__ = ("target",)
    event_type = e.TimerCanceled

    def __init__(self, target: StartTimer) -> None:
        super().__init__()
        self.target = target

    def to_command(self) -> c.Command:
        return c.CancelTimer(timer_id=self.target.timer_id)

    def differences(self, event: e.TimerCanceled) -> list[str]:
        return _difference("timer_id", event.timer_id, self.target.timer_id)

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        self.event_id = event_id
        open_requests.timers.pop(self.target.timer_id, None)

    def describe(self) -> str:
        return f"CancelTimer {self.target.timer_id!r}"


@final
class StartChild(Pending):
    """A child workflow, from the call until it is closed."""

    __slots__ = (
        "cancel", "input", "is_cancel_reported", "is_done", "memo", "metadata", "namespace", "payloads",
        "result", "run_id", "search_attributes", "start", "task_queue",
    )  # fmt: skip
    event_type = e.StartChildWorkflowExecutionInitiated
    has_arguments = True

    def __init__(
        self,
        input: StartChildWorkflowInput,
        namespace: str,
        task_queue: str,
        payloads: Payloads,
        start: asyncio.Future[str],
        result: asyncio.Future[Any],
    ) -> None:
        super().__init__()
        self.input = input
        self.namespace = namespace
        self.task_queue = task_queue
        self.payloads = payloads
        self.memo: e.Memo | None = None
        self.search_attributes: e.SearchAttributes | None = None
        self.metadata: e.UserMetadata | None = None
        self.start = start
        self.result = result
        self.run_id = ""
        self.cancel: CancelExternal | None = None
        self.is_cancel_reported = False
        self.is_done = False

    def to_command(self) -> c.Command:
        asked = self.input
        return c.StartChildWorkflowExecution(
            workflow_id=asked.id,
            workflow_type=asked.workflow,
            task_queue=self.task_queue,
            namespace=self.namespace,
            input=self.payloads,
            workflow_execution_timeout=asked.execution_timeout or e.ZERO,
            workflow_run_timeout=asked.run_timeout or e.ZERO,
            workflow_task_timeout=asked.task_timeout or e.ZERO,
            parent_close_policy=asked.parent_close_policy,
            workflow_id_reuse_policy=asked.id_reuse_policy,
            retry_policy=asked.retry_policy,
            cron_schedule=asked.cron_schedule,
            header=to_header(asked.headers),
            memo=self.memo,
            search_attributes=self.search_attributes,
            priority=asked.priority,
            user_metadata=self.metadata,
        )

    def differences(self, event: e.StartChildWorkflowExecutionInitiated) -> list[str]:
        return _difference("workflow_type", event.workflow_type, self.input.workflow) + _difference(
            "workflow_id", event.workflow_id, self.input.id
        )

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        self.event_id = event_id
        open_requests.children[event_id] = self

    def describe(self) -> str:
        return f"StartChildWorkflowExecution of {self.input.workflow!r} with id {self.input.id!r}"


@final
class SignalExternal(Pending):
    """A signal to another workflow, until it is recorded there."""

    __slots__ = ("future", "headers", "is_child", "payloads", "signal", "target")
    event_type = e.SignalExternalWorkflowExecutionInitiated
    has_arguments = True

    def __init__(
        self,
        target: e.ExecutionRef,
        signal: str,
        payloads: Payloads,
        headers: Any,
        is_child: bool,
        future: asyncio.Future[None],
    ) -> None:
        super().__init__()
        self.target = target
        self.signal = signal
        self.payloads = payloads
        self.headers = headers
        self.is_child = is_child
        self.future = future

    def to_command(self) -> c.Command:
        return c.SignalExternalWorkflowExecution(
            workflow_execution=self.target,
            signal_name=self.signal,
            input=self.payloads,
            header=to_header(self.headers),
            child_workflow_only=self.is_child,
        )

    def differences(self, event: e.SignalExternalWorkflowExecutionInitiated) -> list[str]:
        recorded = event.workflow_execution
        return _difference("signal_name", event.signal_name, self.signal) + _difference(
            "workflow_id", recorded.workflow_id, self.target.workflow_id
        )

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        self.event_id = event_id
        open_requests.signals[event_id] = self

    def describe(self) -> str:
        return f"SignalExternalWorkflowExecution {self.signal!r} to {self.target.workflow_id!r}"


@final
class CancelExternal(Pending):
    """The wish that another workflow (a child, too) cancel, until it is recorded there."""

    __slots__ = ("child", "future", "reason", "target")
    event_type = e.RequestCancelExternalWorkflowExecutionInitiated

    def __init__(
        self, target: e.ExecutionRef, reason: str, child: StartChild | None, future: asyncio.Future[None]
    ) -> None:
        super().__init__()
        self.target = target
        self.reason = reason
        self.child = child
        self.future = future

    def to_command(self) -> c.Command:
        return c.RequestCancelExternalWorkflowExecution(
            workflow_execution=self.target, child_workflow_only=self.child is not None, reason=self.reason
        )

    def differences(self, event: e.RequestCancelExternalWorkflowExecutionInitiated) -> list[str]:
        return _difference("workflow_id", event.workflow_execution.workflow_id, self.target.workflow_id)

    def record(self, event_id: int, open_requests: OpenRequests) -> None:
        self.event_id = event_id
        open_requests.cancels[event_id] = self

    def describe(self) -> str:
        return f"RequestCancelExternalWorkflowExecution of {self.target.workflow_id!r}"


PATCH_MARKER: Final = "core_patch"
LOCAL_ACTIVITY_MARKER: Final = "core_local_activity"
"""Names of markers in the published model."""


@final
class RecordPatch(Pending):
    """The note that the run takes the new path of a change."""

    __slots__ = ("is_deprecated", "patch_id", "payloads")
    event_type = e.MarkerRecorded

    def __init__(self, patch_id: str, is_deprecated: bool, payloads: dict[str, Payloads]) -> None:
        super().__init__()
        self.patch_id = patch_id
        self.is_deprecated = is_deprecated
        self.payloads = payloads

    def to_command(self) -> c.Command:
        return c.RecordMarker(marker_name=PATCH_MARKER, details=self.payloads)

    def differences(self, event: e.MarkerRecorded) -> list[str]:
        different = _difference("marker_name", event.marker_name, PATCH_MARKER)
        return different or _difference("patch_id", patch_id_of(event), self.patch_id)

    def describe(self) -> str:
        return f"RecordMarker of patch {self.patch_id!r}"


def patch_id_of(event: e.MarkerRecorded) -> str:
    """The id of the patch that a marker stands for; empty if it is no patch marker."""
    if event.marker_name != PATCH_MARKER:
        return ""
    stored = event.details.get("patch_id", ())
    return str(msgspec.json.decode(bytes(stored[0]))) if stored else ""


def is_deprecated_patch(event: e.MarkerRecorded) -> bool:
    """Whether a marker is that of a patch whose old path is gone."""
    stored = event.details.get("deprecated", ())
    return event.marker_name == PATCH_MARKER and bool(stored) and bytes(stored[0]) == b"true"


CHANGE_VERSION: Final = "TemporalChangeVersion"
"""The search attribute that lists the patches of a run, as the published model names it."""

CHANGE_VERSION_BYTES_MAX: Final = 2_048
"""Longer lists are not kept, since no search attribute may be longer (semantics 1.10)."""


def is_change_version(event: e.UpsertWorkflowSearchAttributes) -> bool:
    """Whether a change of search attributes only goes with a patch."""
    return tuple(event.search_attributes) == (CHANGE_VERSION,)


@final
class UpsertMemo(Pending):
    """A change of the memo."""

    __slots__ = ("memo",)
    event_type = e.WorkflowPropertiesModified

    def __init__(self, memo: e.Memo) -> None:
        super().__init__()
        self.memo = memo

    def to_command(self) -> c.Command:
        return c.ModifyWorkflowProperties(upserted_memo=self.memo)

    def differences(self, event: e.WorkflowPropertiesModified) -> list[str]:
        return []

    def describe(self) -> str:
        return f"ModifyWorkflowProperties of memo {', '.join(self.memo)}"


@final
class UpsertSearchAttributes(Pending):
    """A change of search attributes."""

    __slots__ = ("attributes", "is_optional")
    event_type = e.UpsertWorkflowSearchAttributes

    def __init__(self, attributes: e.SearchAttributes, *, is_optional: bool = False) -> None:
        super().__init__()
        self.attributes = attributes
        self.is_optional = is_optional

    def to_command(self) -> c.Command:
        return c.UpsertSearchAttributes(search_attributes=self.attributes)

    def differences(self, event: e.UpsertWorkflowSearchAttributes) -> list[str]:
        if is_change_version(event) == self.is_optional:
            return []
        return _difference("search_attributes", sorted(event.search_attributes), sorted(self.attributes))

    def describe(self) -> str:
        return f"UpsertSearchAttributes of {', '.join(self.attributes)}"


@final
class AcceptUpdate(Pending):
    """An update that the run has let in."""

    __slots__ = ("message_id", "update_id")
    event_type = e.WorkflowExecutionUpdateAccepted

    def __init__(self, update_id: str) -> None:
        super().__init__()
        self.update_id = update_id
        self.message_id = f"{update_id}/accept"

    def to_command(self) -> c.Command:
        return c.ProtocolMessage(message_id=self.message_id)

    def differences(self, event: e.WorkflowExecutionUpdateAccepted) -> list[str]:
        return _difference("update_id", event.protocol_instance_id, self.update_id)

    def describe(self) -> str:
        return f"acceptance of update {self.update_id!r}"


@final
class CompleteUpdate(Pending):
    """The end of an update."""

    __slots__ = ("message_id", "outcome", "update_id")
    event_type = e.WorkflowExecutionUpdateCompleted

    def __init__(self, update_id: str, outcome: e.UpdateOutcome) -> None:
        super().__init__()
        self.update_id = update_id
        self.outcome = outcome
        self.message_id = f"{update_id}/complete"

    def to_command(self) -> c.Command:
        return c.ProtocolMessage(message_id=self.message_id)

    def differences(self, event: e.WorkflowExecutionUpdateCompleted) -> list[str]:
        return _difference("update_id", event.update_id, self.update_id)

    def describe(self) -> str:
        return f"completion of update {self.update_id!r}"


class _Close(Pending):
    """The end of the run."""

    __slots__ = ()
    is_close = True

    def differences(self, event: Any) -> list[str]:
        return []


@final
class Complete(_Close):
    """The run has a result. A changed result is no mismatch: results are not compared."""

    __slots__ = ("payloads",)
    event_type = e.WorkflowExecutionCompleted

    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self.payloads = payloads

    def to_command(self) -> c.Command:
        return c.CompleteWorkflowExecution(result=self.payloads)

    def describe(self) -> str:
        return "CompleteWorkflowExecution"


@final
class Fail(_Close):
    """The run has failed."""

    __slots__ = ("failure",)
    event_type = e.WorkflowExecutionFailed

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure

    def to_command(self) -> c.Command:
        return c.FailWorkflowExecution(failure=self.failure)

    def describe(self) -> str:
        return f"FailWorkflowExecution with {self.failure.message!r}"


@final
class Cancel(_Close):
    """The run has followed the request to cancel."""

    __slots__ = ("details",)
    event_type = e.WorkflowExecutionCanceled

    def __init__(self, details: Payloads = ()) -> None:
        super().__init__()
        self.details = details

    def to_command(self) -> c.Command:
        return c.CancelWorkflowExecution(details=self.details)

    def describe(self) -> str:
        return "CancelWorkflowExecution"


@final
class ContinueAsNew(_Close):
    """The run goes on as another."""

    __slots__ = ("command",)
    event_type = e.WorkflowExecutionContinuedAsNew

    def __init__(self, command: c.ContinueAsNewWorkflowExecution) -> None:
        super().__init__()
        self.command = command

    def to_command(self) -> c.Command:
        return self.command

    def describe(self) -> str:
        return f"ContinueAsNewWorkflowExecution as {self.command.workflow_type or 'the same type'!r}"
