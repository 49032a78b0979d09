"""What a node answers, judged at the node's end in the very moment of the answer.

Owns: `Answers`. Never: asks the engine, nor waits for the client to hear, which would give the store time to catch up.

How it works: the wire tells of each call when it reaches a node, and is given who is told the answer. A page of a
history is compared with the durable events of its run: it gives them as they are, without a gap, and nothing else (law
3). How many of them is not judged: a node may not have heard yet that more are durable. Of a worker's report it is
noted on arrival whether the store had given its attempt up: another attempt is in its place, or the activity or its run
is over. Such a report is refused (law 6). Any other that is taken has its effect in the store before its sender hears
of it (law 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clew.model.inputs import TaskToken
from clew.service.requests import GetHistoryRequest, GetHistoryResponse
from tests.simulation.outside import Outside
from tests.simulation.record import CLOSES, Record, RunLog

Heard = Callable[[Any], None]

REPORTS: Final = frozenset({"complete_activity", "fail_activity", "cancel_activity", "heartbeat_activity"})


def _let_be(value: Any) -> None:
    """Nothing is known that would be wrong with it."""


class Answers:
    """See the module docstring.

    Args:
        record: What is durable.
        outside: Which attempts have begun.
    """

    def __init__(self, record: Record, outside: Outside) -> None:
        self._record = record
        self._outside = outside
        self.pages = 0
        self.stale_reports = 0

    def arrived(self, method: str, request: Any) -> Heard:
        """A call has reached a node; gives what is to be told its answer, should it be no refusal."""
        if method == "get_history":
            return self._page_of(request)
        if method in REPORTS and isinstance(request.token, TaskToken):
            return self._report_of(method, request)
        return _let_be

    def _complain(self, text: str) -> None:
        self._record.broken.append(text)

    # --- pages of histories -----------------------------------------------------------------------------------------

    def _page_of(self, request: GetHistoryRequest) -> Heard:
        def heard(page: GetHistoryResponse) -> None:
            run = self._record.by_run_id.get(page.run_id)
            self.pages += 1
            if wrong := _wrong_page(request, page, run):
                self._complain(f"{wrong} (asked: {request}; told: {page.next_event_id=} {page.events})")

        return heard

    # --- reports of workers -----------------------------------------------------------------------------------------

    def _report_of(self, method: str, request: Any) -> Heard:
        token: TaskToken = request.token
        lost = self._why_lost(token)

        def heard(_: Any) -> None:
            name = f"{method} by attempt {token.attempt} of activity {token.activity_id} of {token.workflow_id}"
            if lost:
                self._complain(f"law 6: {name} was taken, although {lost}")
            elif method != "heartbeat_activity" and not self._has_felt(method, token):
                self._complain(f"law 3: {name} was answered, but the store does not hold what came of it")

        self.stale_reports += bool(lost)
        return heard

    def _why_lost(self, token: TaskToken) -> str:
        """Why the sender of this token holds the activity no more; empty when it may."""
        run = self._record.by_run_id.get(token.run_id)
        if run is None or not run.is_open:
            return "its run is over"
        if self._record.has_outcome(token.run_id, token.scheduled_event_id):
            return "its outcome was recorded"
        if (token.run_id, token.scheduled_event_id, token.attempt + 1) in self._outside.attempts:
            return "another attempt had begun"
        pending = run.state().activities.get(token.scheduled_event_id)
        if pending is not None and (pending.attempt, pending.lease_id) != (token.attempt, token.lease_id):
            return f"attempt {pending.attempt} under lease {pending.lease_id} was in its place"
        return ""

    def _has_felt(self, method: str, token: TaskToken) -> bool:
        if self._record.has_outcome(token.run_id, token.scheduled_event_id):
            return True
        if method != "fail_activity":
            return False
        pending = self._record.by_run_id[token.run_id].state().activities.get(token.scheduled_event_id)
        return pending is not None and pending.attempt > token.attempt


def _wrong_page(request: GetHistoryRequest, page: GetHistoryResponse, run: RunLog | None) -> str:
    """What is wrong with a page of a run."""
    if run is None:
        return f"law 3: events of run {page.run_id} were told, of which the store holds none"
    if request.run_id and page.run_id != request.run_id:
        return f"law 1: asked for run {request.run_id}, told of run {page.run_id}"
    first = page.events[0].event_id if page.events else request.from_event_id
    last = first + len(page.events) - 1
    if tuple(run.events[first - 1 : last]) != page.events:
        return f"law 3: events {first}-{last} of {run.workflow_id} were told, and the store holds others, or none"
    if request.close_event_only:
        is_end = bool(page.events) and type(page.events[-1]) in CLOSES
        return "" if is_end or not page.events else f"law 3: event {first} was told as the end of {run.workflow_id}"
    if (page.events and first != request.from_event_id) or len(page.events) > request.events_max:
        return f"law 3: events {first}-{last} of {run.workflow_id} were told, which nobody asked for"
    has_more = page.next_event_id == last + 1
    if page.next_event_id and not has_more:
        return f"law 3: after event {last} of {run.workflow_id} it is to go on at {page.next_event_id}"
    if not page.next_event_id and request.wait_new_event and type(run.events[last - 1]) not in CLOSES:
        return f"law 3: {run.workflow_id} was said to end with event {last}, which is no close"
    return ""
