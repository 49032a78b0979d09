"""How runs, histories and descriptions look on the command line.

Owns: their tables and their JSON. Never: fetches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from clew.cli._output import print_fields, print_json, print_json_line, print_table, time_text
from clew.client import WorkflowExecution, WorkflowExecutionDescription, format_compact_history
from clew.model.compact import CompactLine, compact_history, describe_failure, format_duration, preview
from clew.model.events import BaseEvent, Event
from clew.model.history import WorkflowHistory
from clew.model.payload import Payloads, from_stored

_LIST_HEADERS: Final = ("STATUS", "WORKFLOW ID", "TYPE", "STARTED", "CLOSED", "RUN ID")
_COMMON_FIELDS: Final = ("type", *BaseEvent.__struct_fields__)


def print_executions(executions: Sequence[WorkflowExecution], output: str) -> None:
    """Print a list of runs."""
    if output == "json":
        print_json([execution_facts(e) for e in executions])
    elif output == "jsonl":
        for execution in executions:
            print_json_line(execution_facts(execution))
    else:
        rows = [
            (e.status.value, e.id, e.workflow_type, time_text(e.start_time), time_text(e.close_time), e.run_id)
            for e in executions
        ]
        print_table(_LIST_HEADERS, rows, empty="No workflows.")


def execution_facts(execution: WorkflowExecution) -> dict[str, Any]:
    """A run as JSON."""
    facts: dict[str, Any] = msgspec.to_builtins(execution.raw_info, str_keys=True, builtin_types=(msgspec.Raw,))
    facts["status"] = execution.status.value
    return facts


def print_history(history: WorkflowHistory, output: str, *, is_full: bool) -> None:
    """Print a history: compact or full for people, always full for programs."""
    if output == "json":
        print(history.to_json(indent=2))
    elif output == "jsonl":
        for event in history:
            print_json_line(event)
    elif is_full:
        rows = [(str(e.event_id), time_text(e.event_time), type(e).__name__, _event_text(e)) for e in history]
        print_table(("ID", "TIME", "EVENT", "ATTRIBUTES"), rows, empty="No events.")
    else:
        print(format_compact_history(history))


def print_new_lines(events: Sequence[Event], shown_count: int) -> int:
    """Print what a growing history has more than `shown_count` finished lines of; gives the new count."""
    lines = compact_history(events)
    settled = _settled_count(lines)
    for line in lines[shown_count:settled]:
        ending = f"{line.outcome} in {format_duration(line.duration)}" if line.duration is not None else line.outcome
        print(f"{line.event_id:>5}  {time_text(line.time)}  {line.kind} {line.name}  {ending}  {line.detail}".rstrip())
    return max(settled, shown_count)


def print_description(description: WorkflowExecutionDescription, output: str) -> None:
    """Print everything about one run, and first of all why it waits."""
    raw = description.raw_description
    if output != "table":
        (print_json if output == "json" else print_json_line)(raw)
        return
    info = description.raw_info
    fields = [
        ("Workflow id", info.workflow_id),
        ("Run id", info.run_id),
        ("Type", info.workflow_type),
        ("Task queue", info.task_queue),
        ("Status", info.status.value),
        ("Started", time_text(info.start_time)),
        ("Closed", time_text(info.close_time)),
        ("History", f"{info.history_length} events, {info.history_size_bytes} bytes"),
    ]
    if info.parent is not None:
        fields.append(("Parent", f"{info.parent.workflow_id} run {info.parent.run_id}"))
    if raw.cron_schedule:
        fields.append(("Cron", raw.cron_schedule))
    if raw.cancel_requested:
        fields.append(("Cancel", "requested"))
    for key, value in (info.memo or {}).items():
        fields.append((f"Memo {key}", preview((value,))))
    print_fields(fields)
    _print_waiting(description)


def _print_waiting(description: WorkflowExecutionDescription) -> None:
    raw = description.raw_description
    if raw.waiting_for:
        print("\nWaiting for:")
        for text in raw.waiting_for:
            print(f"  - {text}")
    failing = [activity for activity in raw.pending_activities if activity.attempts]
    if failing:
        print("\nFailed attempts:")
    for activity in failing:
        for attempt in activity.attempts:
            text = describe_failure(attempt.failure) if attempt.failure is not None else "unknown"
            print(f"  - {activity.activity_id} attempt {attempt.attempt} at {time_text(attempt.failed_at)}: {text}")
    if raw.buffered_events:
        print(f"\nBuffered until the workflow task ends: {', '.join(raw.buffered_events)}")


def json_of(payloads: Payloads) -> msgspec.Raw:
    """A result as JSON: the very text if it is JSON, else its stored form; null for nothing."""
    if not payloads:
        return msgspec.Raw(b"null")
    payload = from_stored(payloads[0])
    is_null = payload.metadata.get("encoding") == b"binary/null"
    return msgspec.Raw(b"null") if is_null else payloads[0]


def _settled_count(lines: Sequence[CompactLine]) -> int:
    for at, line in enumerate(lines):
        if line.outcome == "pending":
            return at
    return len(lines)


def _event_text(event: Event) -> str:
    attributes = msgspec.json.decode(msgspec.json.encode(event))
    shown = [f"{key}={_value_text(value)}" for key, value in attributes.items() if key not in _COMMON_FIELDS]
    return " ".join(shown)


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:199]}…"
