"""A history as a person reads it: one line a thing that happened, workflow tasks folded away (semantics 0.2).

Owns: which events make one line, and the words of it. Never: reads a history, or prints.

How it works: one pass over the events. An event that opens something (an activity, a timer, a child, a message to
another execution, an update) makes a line and is remembered by its event id; the events that close it complete that
line. All other events make a line of their own. Workflow tasks are machinery and are left out, except those that failed
for a reason that a person should know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, final

import msgspec

from clew.model import events as e
from clew.model.events import Event, WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure, TimeoutInfo
from clew.model.payload import Payloads, StoredPayload, from_stored

_PREVIEW_CHARS_MAX: Final = 72
_LOCAL_STEP_MARKER: Final = "core_local_activity"
"""The name that the published model gives to markers of local activities."""

PENDING: Final = "pending"
"""Outcome of what is not over yet."""

_QUIET_TASK_FAILURES: Final = frozenset(
    (
        WorkflowTaskFailedCause.UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.RESET_STICKY_TASK_QUEUE,
        WorkflowTaskFailedCause.FORCE_CLOSE_COMMAND,
    )
)
"""Causes that are part of normal operation: something arrived while the code decided."""


@final
@dataclass
class CompactLine:
    """One thing that happened.

    Args:
        event_id: The event that began it.
        time: When it began.
        kind: ``workflow``, ``activity``, ``local step``, ``timer``, ``signal``, ``child``, ``external``, ``update``,
            ``marker``, ``cancel``, ``task`` or ``properties``.
        name: Which one: activity type, timer id, signal name and so on.
        outcome: How it ended (``completed``, ``failed``, ``fired`` …), or `PENDING`; for what happens at once, what
            happened (``started``, ``received``).
        detail: Input, result or error, shortened.
        last_event_id: The event that ended it.
        end_time: When it ended.
        attempts: How many attempts an activity took.
    """

    event_id: int
    time: datetime
    kind: str
    name: str
    outcome: str
    detail: str = ""
    last_event_id: int = 0
    end_time: datetime | None = None
    attempts: int = 1

    @property
    def duration(self) -> timedelta | None:
        """From beginning to end; None when it happened at once or is not over."""
        return self.end_time - self.time if self.end_time is not None else None


def compact_history(events: Iterable[Event]) -> list[CompactLine]:
    """Fold a history into the lines a person reads, in the order in which things began."""
    folder = _Folder()
    for event in events:
        folder.add(event)
    return folder.lines


def format_compact_history(events: Iterable[Event]) -> str:
    """Give a history as text: event id, time since the start, what happened, how long it took."""
    lines = compact_history(events)
    if not lines:
        return "(no events)"
    start = lines[0].time
    rows = [
        (
            str(line.event_id),
            f"+{format_duration(line.time - start)}",
            f"{line.kind} {line.name}".strip(),
            _ending(line),
            line.detail,
        )
        for line in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]:<{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    )


def format_duration(duration: timedelta) -> str:
    """Give a duration in the two units that matter: ``850ms``, ``4.2s``, ``3m05s``, ``2h10m``, ``5d03h``."""
    seconds = max(duration.total_seconds(), 0.0)
    if seconds < 1:
        return f"{round(seconds * 1_000)}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def preview(payloads: Payloads) -> str:
    """Give payloads as one short line of text."""
    return _cut(", ".join(_preview_one(payload) for payload in payloads))


def describe_failure(failure: Failure) -> str:
    """Give a failure with its causes as one short line: ``ActivityError: … ← PaymentRefused: no money``."""
    texts: list[str] = []
    at: Failure | None = failure
    while at is not None and len(texts) < 4:
        texts.append(_failure_text(at))
        at = at.cause
    return _cut(" ← ".join(texts))


def _ending(line: CompactLine) -> str:
    text = line.outcome
    if line.attempts > 1:
        text += f" after {line.attempts} attempts"
    if line.duration is not None:
        text += f" in {format_duration(line.duration)}"
    return text


def _failure_text(failure: Failure) -> str:
    info = failure.info
    if isinstance(info, ApplicationInfo) and info.type:
        return f"{info.type}: {failure.message}"
    if isinstance(info, TimeoutInfo):
        return f"timeout {info.timeout_type.value}"
    return failure.message or type(info).__name__.removesuffix("Info")


def _preview_one(stored: StoredPayload) -> str:
    payload = from_stored(stored)
    encoding = payload.metadata.get("encoding", b"").decode("utf-8", "replace")
    if encoding.startswith("json/"):
        return payload.data.decode("utf-8", "replace")
    return "null" if encoding == "binary/null" else f"<{encoding or 'no encoding'}, {len(payload.data)} bytes>"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS_MAX else line[: _PREVIEW_CHARS_MAX - 1] + "…"


@final
class _Folder:
    """The lines so far, and those that are still open by the event id that opened them."""

    def __init__(self) -> None:
        self.lines: list[CompactLine] = []
        self._open: dict[int, CompactLine] = {}

    def add(self, event: Event) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def line(self, event: Event, kind: str, name: str, outcome: str, detail: str = "") -> CompactLine:
        """Add what happens at once."""
        line = CompactLine(event.event_id, event.event_time, kind, name, outcome, detail, event.event_id)
        self.lines.append(line)
        return line

    def open(self, event: Event, kind: str, name: str, detail: str = "") -> None:
        """Add what a later event completes."""
        self._open[event.event_id] = self.line(event, kind, name, PENDING, detail)

    def close(self, opened_by: int, event: Event, outcome: str, detail: str = "") -> None:
        """Complete a line."""
        line = self._open.get(opened_by)
        if line is None:
            return
        line.outcome = outcome
        line.last_event_id = event.event_id
        line.end_time = event.event_time
        if detail:
            line.detail = detail

    def note_attempts(self, event: e.ActivityTaskStarted) -> None:
        line = self._open.get(event.scheduled_event_id)
        if line is not None:
            line.attempts = event.attempt
            line.last_event_id = event.event_id

    def end(self, event: Event, outcome: str, detail: str = "") -> None:
        """Add the end of the run; what is still open then will never end."""
        for line in self._open.values():
            if line.outcome == PENDING:
                line.outcome = "abandoned"
        self.line(event, "workflow", "", outcome, detail)


def _started(folder: _Folder, event: e.WorkflowExecutionStarted) -> None:
    suffix = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    folder.line(event, "workflow", event.workflow_type, f"started{suffix}", preview(event.input))


def _task_failed(folder: _Folder, event: e.WorkflowTaskFailed) -> None:
    if event.cause not in _QUIET_TASK_FAILURES:
        detail = describe_failure(event.failure) if event.failure is not None else ""
        folder.line(event, "task", event.cause.value, "failed", detail)


def _task_timed_out(folder: _Folder, event: e.WorkflowTaskTimedOut) -> None:
    if event.started_event_id:
        folder.line(event, "task", event.timeout_type.value, "timed out")


def _timer_started(folder: _Folder, event: e.TimerStarted) -> None:
    summary = preview((event.user_metadata.summary,)) if event.user_metadata and event.user_metadata.summary else ""
    folder.open(event, "timer", format_duration(event.start_to_fire_timeout), summary)


def _marker(folder: _Folder, event: e.MarkerRecorded) -> None:
    detail = describe_failure(event.failure) if event.failure is not None else preview(event.details.get("result", ()))
    outcome = "failed" if event.failure is not None else "recorded"
    if event.marker_name == _LOCAL_STEP_MARKER:
        folder.line(event, "local step", _step_name(event), "completed" if event.failure is None else outcome, detail)
    else:
        folder.line(event, "marker", event.marker_name, outcome, detail)


def _step_name(event: e.MarkerRecorded) -> str:
    """The type of a local activity; its marker's name where a codec hides it."""
    try:
        data = msgspec.json.decode(bytes(event.details["data"][0]), type=dict[str, Any])
    except (KeyError, IndexError, msgspec.DecodeError):
        return event.marker_name
    return str(data.get("activity_type", event.marker_name))


def _update_accepted(folder: _Folder, event: e.WorkflowExecutionUpdateAccepted) -> None:
    request = event.accepted_request
    name = request.name if request is not None else event.protocol_instance_id
    folder.open(event, "update", name, preview(request.input) if request is not None else "")


def _update_completed(folder: _Folder, event: e.WorkflowExecutionUpdateCompleted) -> None:
    failure = event.outcome.failure
    if failure is not None:
        folder.close(event.accepted_event_id, event, "failed", describe_failure(failure))
    else:
        folder.close(event.accepted_event_id, event, "completed", preview(event.outcome.result))


_SIMPLE: Final[dict[type[Any], Callable[[_Folder, Any], object]]] = {
    e.WorkflowExecutionCompleted: lambda f, v: f.end(v, "completed", preview(v.result)),
    e.WorkflowExecutionFailed: lambda f, v: f.end(v, "failed", describe_failure(v.failure)),
    e.WorkflowExecutionTimedOut: lambda f, v: f.end(v, "timed out"),
    e.WorkflowExecutionCanceled: lambda f, v: f.end(v, "canceled", preview(v.details)),
    e.WorkflowExecutionTerminated: lambda f, v: f.end(v, "terminated", v.reason),
    e.WorkflowExecutionContinuedAsNew: lambda f, v: f.end(v, "continued as new", f"run {v.new_execution_run_id}"),
    e.WorkflowExecutionSignaled: lambda f, v: f.line(v, "signal", v.signal_name, "received", preview(v.input)),
    e.WorkflowExecutionCancelRequested: lambda f, v: f.line(v, "cancel", "", "requested", v.cause),
    e.WorkflowExecutionPaused: lambda f, v: f.line(v, "workflow", "", "paused", v.reason),
    e.WorkflowExecutionUnpaused: lambda f, v: f.line(v, "workflow", "", "unpaused", v.reason),
    e.UpsertWorkflowSearchAttributes: lambda f, v: f.line(
        v, "properties", "search attributes", "set", ", ".join(v.search_attributes)
    ),
    e.WorkflowPropertiesModified: lambda f, v: f.line(v, "properties", "memo", "set", ", ".join(v.upserted_memo or ())),
    e.WorkflowExecutionOptionsUpdated: lambda f, v: f.line(v, "properties", "options", "updated"),
}

_ACTIVITIES: Final[dict[type[Any], Callable[[_Folder, Any], object]]] = {
    e.ActivityTaskScheduled: lambda f, v: f.open(v, "activity", v.activity_type, preview(v.input)),
    e.ActivityTaskStarted: lambda f, v: f.note_attempts(v),
    e.ActivityTaskCompleted: lambda f, v: f.close(v.scheduled_event_id, v, "completed", preview(v.result)),
    e.ActivityTaskFailed: lambda f, v: f.close(v.scheduled_event_id, v, "failed", describe_failure(v.failure)),
    e.ActivityTaskTimedOut: lambda f, v: f.close(v.scheduled_event_id, v, "timed out", describe_failure(v.failure)),
    e.ActivityTaskCanceled: lambda f, v: f.close(v.scheduled_event_id, v, "canceled", preview(v.details)),
    e.TimerFired: lambda f, v: f.close(v.started_event_id, v, "fired"),
    e.TimerCanceled: lambda f, v: f.close(v.started_event_id, v, "canceled"),
}

_OTHERS: Final[dict[type[Any], Callable[[_Folder, Any], object]]] = {
    e.StartChildWorkflowExecutionInitiated: lambda f, v: f.open(
        v, "child", f"{v.workflow_type} {v.workflow_id}", preview(v.input)
    ),
    e.StartChildWorkflowExecutionFailed: lambda f, v: f.close(v.initiated_event_id, v, "not started", v.cause.value),
    e.ChildWorkflowExecutionCompleted: lambda f, v: f.close(v.initiated_event_id, v, "completed", preview(v.result)),
    e.ChildWorkflowExecutionFailed: lambda f, v: f.close(
        v.initiated_event_id, v, "failed", describe_failure(v.failure)
    ),
    e.ChildWorkflowExecutionCanceled: lambda f, v: f.close(v.initiated_event_id, v, "canceled"),
    e.ChildWorkflowExecutionTimedOut: lambda f, v: f.close(v.initiated_event_id, v, "timed out"),
    e.ChildWorkflowExecutionTerminated: lambda f, v: f.close(v.initiated_event_id, v, "terminated"),
    e.SignalExternalWorkflowExecutionInitiated: lambda f, v: f.open(
        v, "external", f"signal {v.signal_name} to {v.workflow_execution.workflow_id}", preview(v.input)
    ),
    e.SignalExternalWorkflowExecutionFailed: lambda f, v: f.close(v.initiated_event_id, v, "failed", v.cause.value),
    e.ExternalWorkflowExecutionSignaled: lambda f, v: f.close(v.initiated_event_id, v, "delivered"),
    e.RequestCancelExternalWorkflowExecutionInitiated: lambda f, v: f.open(
        v, "external", f"cancel of {v.workflow_execution.workflow_id}", v.reason
    ),
    e.RequestCancelExternalWorkflowExecutionFailed: lambda f, v: f.close(
        v.initiated_event_id, v, "failed", v.cause.value
    ),
    e.ExternalWorkflowExecutionCancelRequested: lambda f, v: f.close(v.initiated_event_id, v, "delivered"),
}

_HANDLERS: Final[dict[type[Any], Callable[[_Folder, Any], object]]] = {
    e.WorkflowExecutionStarted: _started,
    e.WorkflowTaskFailed: _task_failed,
    e.WorkflowTaskTimedOut: _task_timed_out,
    e.TimerStarted: _timer_started,
    e.MarkerRecorded: _marker,
    e.WorkflowExecutionUpdateAccepted: _update_accepted,
    e.WorkflowExecutionUpdateCompleted: _update_completed,
    **_SIMPLE,
    **_ACTIVITIES,
    **_OTHERS,
}

LEFT_OUT: Final[Sequence[type[Any]]] = (
    e.WorkflowTaskScheduled,
    e.WorkflowTaskStarted,
    e.WorkflowTaskCompleted,
    e.ActivityTaskCancelRequested,
    e.ChildWorkflowExecutionStarted,
    e.WorkflowExecutionUpdateAdmitted,
)
"""Events that a person does not need; a test checks that every other has its line."""
