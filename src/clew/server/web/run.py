"""One run: what it is, why it waits, what is pending with its attempts, its history and its stack.

Owns: the look of these. Never: what a run is (the engine tells).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from clew.model.compact import compact_history, describe_failure, format_duration, preview
from clew.model.events import Event, event_type
from clew.model.failure import Failure
from clew.server.web.html import Html, Part, page, table, tag
from clew.server.web.runs import REFRESH_SECONDS, run_link, status_mark, time_text
from clew.service import requests as r

EVENTS_MAX: Final = 2_000
"""Events that one page shows; the rest is on the next."""

_COMMON_FIELDS: Final = frozenset({"type", "event_id", "event_time"})


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """What the page is asked to show.

    Args:
        history: ``compact`` or ``full``.
        from_event_id: The first event.
        stack: Whether to ask a worker where the code stands.
        live: Whether the page is loaded again and again.
    """

    history: str = "compact"
    from_event_id: int = 1
    stack: str = ""
    live: str = ""


def run_page(
    described: r.WorkflowDescription, events: Sequence[Event], following: int, view: RunView, stack: str
) -> str:
    """The page.

    Args:
        described: The run.
        events: Those that are shown.
        following: The event after them; 0 when there is none.
        view: What was asked for.
        stack: Where its code stands, in words; empty when that was not asked.
    """
    info = described.info
    is_live = bool(view.live) and info.status.is_open
    return page(
        info.workflow_id,
        _facts(described),
        *_waiting(described),
        *_pending(described),
        tag("h2", "Where the code stands") if stack else None,
        tag("pre", stack) if stack else None,
        tag("h2", "History"),
        _choices(info, view),
        _full(events) if view.history == "full" else _compact(events),
        _older(info, view, following),
        namespace=info.namespace,
        refresh_seconds=REFRESH_SECONDS if is_live else 0,
    )


def _facts(described: r.WorkflowDescription) -> Html:
    info = described.info
    facts: list[tuple[str, Part]] = [
        ("Status", status_mark(info.status)),
        ("Type", info.workflow_type),
        ("Run ID", tag("code", info.run_id)),
        ("Task queue", info.task_queue),
        ("Started (UTC)", time_text(info.start_time)),
        ("Closed (UTC)", time_text(info.close_time)),
        ("History", f"{info.history_length} events, {info.history_size_bytes:,} bytes"),
    ]
    if info.parent is not None and info.parent.workflow_id:
        parent = run_link(info.namespace, info.parent.workflow_id, info.parent.run_id)
        facts.append(("Parent", parent))
    if info.first_execution_run_id and info.first_execution_run_id != info.run_id:
        first = run_link(info.namespace, info.workflow_id, info.first_execution_run_id, info.first_execution_run_id)
        facts.append(("First run", first))
    if described.cron_schedule:
        facts.append(("Cron", described.cron_schedule))
    if described.cancel_requested:
        facts.append(("Cancel", "was requested"))
    if described.attempt > 1:
        facts.append(("Attempt", described.attempt))
    for name, values in (("Memo", info.memo), ("Search attributes", info.search_attributes)):
        if values:
            facts.append((name, ", ".join(f"{key} = {preview((value,))}" for key, value in values.items())))
    return tag("dl", *(cell for name, value in facts for cell in (tag("dt", name), tag("dd", value))))


def _waiting(described: r.WorkflowDescription) -> list[Html]:
    if not described.waiting_for:
        return []
    lines = tag("ul", *(tag("li", line) for line in described.waiting_for), class_="waiting")
    return [tag("h2", "Waits for"), lines]


def _pending(described: r.WorkflowDescription) -> list[Html | None]:
    parts: list[Html | None] = []
    if described.pending_activities:
        parts += [
            tag("h2", "Pending activities"),
            table(
                ("Activity", "State", "Attempt", "Since (UTC)", "Worker", "Next attempt (UTC)", "Last failure"),
                [_activity(one) for one in described.pending_activities],
                empty="",
            ),
        ]
    task = described.pending_workflow_task
    if task is not None and task.last_failure is not None:
        parts += [tag("h2", f"Workflow task failing, attempt {task.attempt}"), _failure(task.last_failure)]
    if described.pending_children:
        rows = [
            (run_link(described.info.namespace, one.workflow_id, one.run_id or "-"), one.workflow_type)
            for one in described.pending_children
        ]
        parts += [tag("h2", "Children"), table(("Workflow ID", "Type"), rows, empty="")]
    return parts


def _activity(one: r.PendingActivityInfo) -> tuple[Part, ...]:
    attempts = f"{one.attempt} of {one.maximum_attempts}" if one.maximum_attempts else str(one.attempt)
    earlier = [
        tag("li", f"{attempt.attempt}: {time_text(attempt.failed_at)} on {attempt.worker_identity}: ",
            describe_failure(attempt.failure) if attempt.failure else "lost")
        for attempt in one.attempts
    ]  # fmt: skip
    failure: list[Part] = [describe_failure(one.last_failure) if one.last_failure is not None else "-"]
    if earlier:
        failure.append(tag("details", tag("summary", "earlier attempts"), tag("ul", *earlier)))
    return (
        f"{one.activity_id} ({one.activity_type})",
        one.state if not one.waiting_reason else f"{one.state}: {one.waiting_reason}",
        attempts,
        time_text(one.last_started_time or one.scheduled_time),
        one.last_worker_identity or "-",
        time_text(one.next_attempt_time),
        tag("div", *failure),
    )


def _failure(failure: Failure) -> Html:
    return tag(
        "pre", "\n".join(part for part in (describe_failure(failure), *failure.notes, failure.stack_trace) if part)
    )


def _choices(info: r.WorkflowExecutionInfo, view: RunView) -> Html:
    other = "full" if view.history != "full" else "compact"
    live = "" if view.live else "1"
    return tag(
        "nav",
        tag("a", f"{other.capitalize()} history", href=_link(info, view, history=other)),
        tag("a", "Stop updating" if view.live else "Update live", href=_link(info, view, live=live))
        if info.status.is_open
        else None,
        tag("a", "Ask for the stack", href=_link(info, view, stack="1")) if not view.stack else None,
        tag("a", "As JSON", href=_api_link(info)),
    )


def _compact(events: Sequence[Event]) -> Html:
    lines = compact_history(events)
    start = lines[0].time if lines else None
    rows = [
        (
            line.event_id,
            _since(start, line.time),
            f"{line.kind} {line.name}".strip(),
            line.outcome + (f" after {line.attempts} attempts" if line.attempts > 1 else ""),
            format_duration(line.duration) if line.duration is not None else "",
            line.detail,
        )
        for line in lines
    ]
    return table(("Event", "After", "What", "Outcome", "Took", "Detail"), rows, empty="There are no events.")


def _full(events: Sequence[Event]) -> Html:
    start = events[0].event_time if events else None
    rows = [(event.event_id, _since(start, event.event_time), event_type(event), _details(event)) for event in events]
    return table(("Event", "After", "Type", "Details"), rows, empty="There are no events.")


def _details(event: Event) -> Html:
    fields = msgspec.json.decode(msgspec.json.encode(event), type=dict[str, msgspec.Raw])
    shown = {name: value for name, value in fields.items() if name not in _COMMON_FIELDS}
    text = msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
    return tag("details", tag("summary", ", ".join(shown) or "-"), tag("pre", text))


def _older(info: r.WorkflowExecutionInfo, view: RunView, following: int) -> Html | None:
    if not following and view.from_event_id == 1:
        return None
    return tag(
        "nav",
        tag("a", "First events", href=_link(info, view, from_event_id="1")) if view.from_event_id > 1 else None,
        tag("a", "More events", href=_link(info, view, from_event_id=str(following))) if following else None,
    )


def _since(start: datetime | None, at: datetime) -> str:
    return f"+{format_duration(at - start)}" if start is not None else ""


def _link(info: r.WorkflowExecutionInfo, view: RunView, **changes: str) -> str:
    fields = {name: str(value) for name, value in msgspec.structs.asdict(view).items() if value}
    fields = {name: value for name, value in {**fields, "stack": "", **changes}.items() if value}
    path = "/".join(quote(part, safe="") for part in (info.namespace, "workflows", info.workflow_id, info.run_id))
    return f"/ui/{path}?{urlencode(fields)}"


def _api_link(info: r.WorkflowExecutionInfo) -> str:
    path = "/".join(quote(part, safe="") for part in (info.namespace, "workflows", info.workflow_id))
    return f"/api/v1/namespaces/{path}/history?run_id={quote(info.run_id, safe='')}"
