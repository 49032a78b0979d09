"""Live views: the events of a run, and the changes of a list, as server-sent events.

Owns: the two streams and their wire form (https://html.spec.whatwg.org/multipage/server-sent-events.html).
Never: more than one page ahead of the reader: a slow reader slows its own stream down, and nothing is kept for it.

How it works: a run's stream is a long poll of its history, again and again; the id of each message is that of the
event, so that a reader who was cut off goes on after it (``Last-Event-ID``). A list's stream looks at the first page
of the list once a second and tells what is new or has changed. A comment goes out when there was nothing to say for a
while, so that a reader who is gone is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from clew.model.policies import WorkflowExecutionStatus
from clew.server.api.answers import encode
from clew.server.api.calls import Call
from clew.server.problems import bad_request
from clew.server.streams import Streams
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import CODE_TABLE, RPCError

QUIET_SECONDS: Final = 15.0
"""After so long without a message, a comment; proxies commonly cut what is silent for 30 or 60 seconds."""

LOOK_SECONDS: Final = 1.0
PAGE_EVENTS: Final = 200
LIST_ROWS: Final = 100

_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_COMMENT: Final = b": still here\n\n"


class EndOfRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data of the last message of a run's stream.

    Args:
        run_id: The run.
        reason: ``closed``, or ``stopping`` when the server ends and the reader should come again.
    """

    run_id: str
    reason: str


async def stream_run(call: Call) -> Response:
    """The events of one run, those so far and those to come."""
    given = call.given()
    request = r.GetHistoryRequest(
        namespace=given["namespace"],
        workflow_id=given["workflow_id"],
        run_id=given.get("run_id", ""),
        from_event_id=_first_wanted(call),
        events_max=PAGE_EVENTS,
    )
    call.streams.check()
    first = await call.service.get_history(request)
    messages = _run_messages(call.service, call.streams, msgspec.structs.replace(request, run_id=first.run_id), first)
    return StreamingResponse(messages, headers=_HEADERS, media_type="text/event-stream")


async def stream_list(call: Call) -> Response:
    """The runs that fit a filter, and their changes."""
    given = call.given()
    request = r.ListWorkflowsRequest(
        namespace=given["namespace"], query=given.get("query", ""), page_size=given.get("limit", LIST_ROWS)
    )
    call.streams.check()
    first = await call.service.list_workflows(request)
    messages = _list_messages(call.service, call.streams, request, first)
    return StreamingResponse(messages, headers=_HEADERS, media_type="text/event-stream")


def _first_wanted(call: Call) -> int:
    last = call.request.headers.get("last-event-id", "")
    if not last:
        return int(call.given().get("from_event_id", 1))
    if not (last.isascii() and last.isdigit() and len(last) <= 18):
        raise bad_request(f"The header Last-Event-ID is {last[:40]!r}; it is the number of an event.")
    return int(last) + 1


async def _run_messages(
    service: Service, streams: Streams, request: r.GetHistoryRequest, answer: r.GetHistoryResponse
) -> AsyncIterator[bytes]:
    async with streams.place():
        waiting = msgspec.structs.replace(request, wait_new_event=True)
        try:
            while True:
                following = request.from_event_id
                for event in answer.events:
                    following = event.event_id + 1
                    yield _message("event", event, message_id=str(event.event_id))
                request = msgspec.structs.replace(request, from_event_id=following)
                waiting = msgspec.structs.replace(waiting, from_event_id=following)
                if answer.next_event_id == 0 and await _is_closed(service, request):
                    yield _message("end", EndOfRun(run_id=answer.run_id, reason="closed"))
                    return
                pending = asyncio.ensure_future(service.get_history(waiting))
                try:
                    while not await _is_done_within(pending, streams):
                        yield _COMMENT
                    if not pending.done():
                        yield _message("end", EndOfRun(run_id=answer.run_id, reason="stopping"))
                        return
                finally:
                    pending.cancel()
                answer = pending.result()
        except RPCError as error:
            yield _refusal(error)


async def _is_closed(service: Service, request: r.GetHistoryRequest) -> bool:
    """Whether the run is closed and every event of it was given."""
    last = await service.get_history(msgspec.structs.replace(request, close_event_only=True))
    return bool(last.events) and last.events[-1].event_id < request.from_event_id


async def _is_done_within(pending: asyncio.Future[Any], streams: Streams) -> bool:
    """Wait for an answer; True when it is there or the server stops, False when it is time for a comment."""
    stopping = asyncio.ensure_future(streams.sleep(QUIET_SECONDS))
    try:
        await asyncio.wait((pending, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    return pending.done() or streams.is_stopping


async def _list_messages(
    service: Service, streams: Streams, request: r.ListWorkflowsRequest, answer: r.ListWorkflowsResponse
) -> AsyncIterator[bytes]:
    shown: dict[str, tuple[WorkflowExecutionStatus, int]] = {}
    quiet_seconds = 0.0
    async with streams.place():
        try:
            while True:
                found = {one.run_id: (one.status, one.history_length) for one in answer.executions}
                for execution in reversed(answer.executions):
                    if shown.get(execution.run_id) != found[execution.run_id]:
                        yield _message("run", execution)
                        quiet_seconds = 0.0
                for run_id in shown.keys() - found.keys():
                    yield _message("gone", {"run_id": run_id})
                shown = found
                if not await streams.sleep(LOOK_SECONDS):
                    yield _message("end", {"reason": "stopping"})
                    return
                quiet_seconds += LOOK_SECONDS
                if quiet_seconds >= QUIET_SECONDS:
                    quiet_seconds = 0.0
                    yield _COMMENT
                answer = await service.list_workflows(request)
        except RPCError as error:
            yield _refusal(error)


def _refusal(error: RPCError) -> bytes:
    return _message(
        "problem",
        {"code": error.code.value, "detail": error.message, "status": CODE_TABLE[error.code].http_status},
    )


def _message(kind: str, data: Any, *, message_id: str = "") -> bytes:
    """One message; JSON has no line breaks, so its data is one line."""
    text = encode(data)
    head = f"id: {message_id}\nevent: {kind}\ndata: " if message_id else f"event: {kind}\ndata: "
    # A payload is stored as its author's JSON, which may have line breaks between its parts.
    return head.encode() + text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"
