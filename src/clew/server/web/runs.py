"""The list of runs, with its filter.

Owns: how the fields of the filter become a query, and the look of the list. Never: which runs fit (the engine decides).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from clew.model.policies import WorkflowExecutionStatus
from clew.server.web.html import Html, Part, page, table, tag
from clew.service import requests as r

PAGE_ROWS: Final = 50
REFRESH_SECONDS: Final = 5

_STATUSES: Final = [status.value for status in WorkflowExecutionStatus]
_LOOK: Final = {
    WorkflowExecutionStatus.RUNNING: "busy",
    WorkflowExecutionStatus.COMPLETED: "good",
    WorkflowExecutionStatus.FAILED: "bad",
    WorkflowExecutionStatus.TIMED_OUT: "bad",
    WorkflowExecutionStatus.TERMINATED: "odd",
    WorkflowExecutionStatus.CANCELED: "odd",
}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form; empty ones do not count.

    Args:
        status: Name of a status.
        type: Workflow type.
        id: How the workflow id begins.
        since: Started at or after this instant (RFC 3339, or a date and time in UTC).
        until: Started before it.
        query: A filter in Clew's own language, in addition.
        page_token: Where the page begins.
        live: Whether the page is loaded again and again.
    """

    status: str = ""
    type: str = ""
    id: str = ""
    since: str = ""
    until: str = ""
    query: str = ""
    page_token: str = ""
    live: str = ""

    def to_query(self) -> str:
        """The same in the filter language.

        Raises:
            ValueError: An instant is none.
        """
        terms = [
            f"ExecutionStatus = {_quoted(self.status)}" if self.status else "",
            f"WorkflowType = {_quoted(self.type)}" if self.type else "",
            f"WorkflowId STARTS_WITH {_quoted(self.id)}" if self.id else "",
            f"StartTime >= {_quoted(_instant(self.since))}" if self.since else "",
            f"StartTime < {_quoted(_instant(self.until))}" if self.until else "",
            f"({self.query})" if self.query.strip() else "",
        ]
        return " AND ".join(term for term in terms if term)

    def link(self, namespace: str, **changes: str) -> str:
        """The path of the page with some fields changed."""
        fields = {**msgspec.structs.asdict(self), **changes}
        given = {name: value for name, value in fields.items() if value}
        path = f"/ui/{quote(namespace, safe='')}/workflows"
        return f"{path}?{urlencode(given)}" if given else path


def runs_page(
    namespace: str, wanted: Filter, found: r.ListWorkflowsResponse, counts: Mapping[str, int], problem: str
) -> str:
    """The page."""
    rows = [_row(run) for run in found.executions]
    following = found.next_page_token
    summary = "  ".join(f"{status}: {count}" for status, count in counts.items())
    return page(
        "Workflows",
        _form(namespace, wanted),
        tag("p", problem, class_="error", role="alert") if problem else None,
        tag("p", summary, class_="soft") if summary else None,
        table(
            ("Status", "Workflow ID", "Type", "Task queue", "Started (UTC)", "Closed (UTC)", "Events"),
            rows,
            empty="No runs fit." if wanted != Filter() else "There are no runs yet.",
        ),
        tag(
            "nav",
            tag("a", "Newest", href=wanted.link(namespace, page_token="")) if wanted.page_token else None,
            tag("a", "Older", href=wanted.link(namespace, page_token=following), rel="next") if following else None,
        ),
        namespace=namespace,
        refresh_seconds=REFRESH_SECONDS if wanted.live and not problem else 0,
    )


def status_mark(status: WorkflowExecutionStatus) -> Html:
    """A status in its colour; the word is always there."""
    return tag("span", status.value, class_=f"status {_LOOK.get(status, 'odd')}")


def run_link(namespace: str, workflow_id: str, run_id: str, text: str | None = None) -> Html:
    """A link to the page of a run."""
    path = "/".join(quote(part, safe="") for part in (namespace, "workflows", workflow_id, run_id))
    return tag("a", workflow_id if text is None else text, href=f"/ui/{path}")


def time_text(instant: datetime | None) -> str:
    """An instant for people."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if instant is not None else "-"


def _row(run: r.WorkflowExecutionInfo) -> tuple[Part, ...]:
    return (
        status_mark(run.status),
        run_link(run.namespace, run.workflow_id, run.run_id),
        run.workflow_type,
        run.task_queue,
        time_text(run.start_time),
        time_text(run.close_time),
        run.history_length,
    )


def _form(namespace: str, wanted: Filter) -> Html:
    options = [tag("option", "any", value="")]
    options += [tag("option", status, value=status, selected=status == wanted.status) for status in _STATUSES]
    return tag(
        "form",
        tag("label", "Status", tag("select", *options, name="status")),
        _field("Type", "type", wanted.type),
        _field("ID begins with", "id", wanted.id),
        _field("Started since", "since", wanted.since, kind="datetime-local"),
        _field("Started before", "until", wanted.until, kind="datetime-local"),
        _field("Query", "query", wanted.query, placeholder="Customer = 'ada'"),
        tag("label", "Live", tag("input", type="checkbox", name="live", value="1", checked=bool(wanted.live))),
        tag("button", "Show", type="submit"),
        tag("a", "Reset", href=Filter().link(namespace)),
        class_="filter",
        method="get",
    )


def _field(text: str, name: str, value: str, *, kind: str = "text", placeholder: str | None = None) -> Html:
    step = "1" if kind == "datetime-local" else None
    return tag("label", text, tag("input", type=kind, name=name, value=value, placeholder=placeholder, step=step))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _instant(text: str) -> str:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no instant; write 2026-01-31T13:00:00.") from error
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).isoformat()


__all__ = ["Filter", "run_link", "runs_page", "status_mark", "time_text"]
