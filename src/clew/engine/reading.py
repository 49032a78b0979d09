"""The calls that only read: histories, lists, counts.

Owns: pages of history with long polls, lists and counts by filter. Never: changes a run.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clew.engine.funnel import telling_store_errors
from clew.engine.history import LONG_POLL_SECONDS, HistoryWaiters, read_events
from clew.engine.locate import Locator, not_found
from clew.engine.namespaces import Namespaces
from clew.engine.peers import ALONE, Peers
from clew.engine.runs import RunEntry
from clew.engine.summary import info_of
from clew.engine.visibility import ANY_TYPE, FilterError, parse_filter
from clew.model.events import Event, WorkflowExecutionStarted
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import Store, VisibilityFilter
from clew.service.errors import RPCError
from clew.service.requests import (
    CountWorkflowsRequest,
    CountWorkflowsResponse,
    GetHistoryRequest,
    GetHistoryResponse,
    ListWorkflowsRequest,
    ListWorkflowsResponse,
)

PAGE_SIZE_MAX: Final = 1_000
"""Rows of a list page (semantics 1.10: page max 1 000)."""


class Reader:
    """All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        locator: Locator,
        waiters: HistoryWaiters,
        namespaces: Namespaces,
        peers: Peers = ALONE,
    ) -> None:
        self._store = store
        self._locator = locator
        self._waiters = waiters
        self._peers = peers
        self._namespaces = namespaces

    async def get_history(self, request: GetHistoryRequest) -> GetHistoryResponse:
        """Events from a position on; waits for some when asked to."""
        with telling_store_errors():
            return await self._page(request)

    async def _page(self, request: GetHistoryRequest) -> GetHistoryResponse:
        entry = await self._locator.find_started(request.namespace, request.workflow_id, request.run_id)
        if request.wait_new_event:
            entry = await self._wait_for_events(entry, request)
        state = entry.state
        last = self._durable_last_event_id(entry)
        if request.close_event_only:
            if state.is_open or last < state.close_event_id:
                return GetHistoryResponse(run_id=state.run_id, next_event_id=last + 1)
            events = await self._all_events(entry, state.close_event_id, state.close_event_id)
            return GetHistoryResponse(run_id=state.run_id, events=tuple(events))
        end = min(last, request.from_event_id + request.events_max - 1)
        events = await self._all_events(entry, request.from_event_id, end)
        # A close that is decided but not yet durable is still to come.
        is_growing = state.is_open or last < state.close_event_id
        more = end < last or (is_growing and request.wait_new_event)
        return GetHistoryResponse(run_id=state.run_id, events=tuple(events), next_event_id=end + 1 if more else 0)

    async def list_workflows(self, request: ListWorkflowsRequest) -> ListWorkflowsResponse:
        """A page of runs, newest first."""
        with telling_store_errors():
            await self._namespaces.find(request.namespace)
            where = await self._filter(request.namespace, request.query)
        size = max(1, min(request.page_size, PAGE_SIZE_MAX))
        before = _page_position(request.page_token)
        with telling_store_errors():
            rows = await self._store.list_runs(request.namespace, where, size + 1, before)
        token = str(rows[size - 1].run_key) if len(rows) > size else ""
        return ListWorkflowsResponse(executions=tuple(info_of(row) for row in rows[:size]), next_page_token=token)

    async def count_workflows(self, request: CountWorkflowsRequest) -> CountWorkflowsResponse:
        """How many runs there are, in all and by status."""
        with telling_store_errors():
            await self._namespaces.find(request.namespace)
            where = await self._filter(request.namespace, request.query)
            counts = await self._store.count_runs(request.namespace, where)
        groups = {status.value: count for status, count in counts.items() if count}
        return CountWorkflowsResponse(count=sum(groups.values()), groups=groups)

    async def ensure_started_event(self, entry: RunEntry) -> None:
        """Have event 1 at hand, from which a retry or a cron run is made.

        Raises:
            RPCError: ``workflow_not_found``: the run was deleted meanwhile.
        """
        if entry.started_event is None and entry.state.needs_started_event:
            events = await self._events(entry, 1, 1)
            if not events:
                raise not_found(entry.state.namespace, entry.state.workflow_id, entry.state.run_id)
            first = events[0]
            assert isinstance(first, WorkflowExecutionStarted), "event 1 starts the run"
            entry.started_event = first

    async def _all_events(self, entry: RunEntry, first: int, last: int) -> list[Event]:
        """Durable events, each of them.

        Raises:
            RPCError: ``workflow_not_found``: the run was deleted while they were read.
        """
        events = await self._events(entry, first, last)
        if len(events) < last - first + 1:
            raise not_found(entry.state.namespace, entry.state.workflow_id, entry.state.run_id)
        return events

    async def _events(self, entry: RunEntry, first: int, last: int) -> list[Event]:
        if last < first:
            return []
        kept = entry.events_from(first)
        if kept is not None:
            return kept[: last - first + 1]
        return await read_events(self._store, entry.shard, entry.run_key, first, last)

    async def _wait_for_events(self, entry: RunEntry, request: GetHistoryRequest) -> RunEntry:
        """Wait until there is something to tell, or the long poll is over; gives the run as it is then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONG_POLL_SECONDS
        while not self._has_news(entry, request):
            waiter = self._waiters.register(entry.run_key, close_only=request.close_event_only)
            self._peers.on_waiting(entry, close_only=request.close_event_only)
            timer = loop.call_at(deadline, _give_up, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.unregister(entry.run_key, waiter)
            if entry.is_discarded:
                entry = await self._locator.find(request.namespace, request.workflow_id, entry.state.run_id)
            if loop.time() >= deadline:
                break
        return entry

    def _has_news(self, entry: RunEntry, request: GetHistoryRequest) -> bool:
        state = entry.state
        last = self._durable_last_event_id(entry)
        if not state.is_open and last >= state.close_event_id:
            return True
        return not request.close_event_only and last >= request.from_event_id

    @staticmethod
    def _durable_last_event_id(entry: RunEntry) -> int:
        """The last event that is durable: readers must not see what may yet be lost (law 3)."""
        return entry.durable_last_event_id

    async def _filter(self, namespace: str, query: str) -> VisibilityFilter | None:
        """Read a filter; the store is asked for names only when those of the system do not do."""
        if not query.strip():
            return None
        try:
            return parse_filter(query, {})
        except FilterError:
            names = await self._store.list_search_attributes(namespace)
        # A name has the type of its first value, and other runs may give it others: the values of a filter may too.
        return parse_filter(query, dict.fromkeys(names, ANY_TYPE))


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_PAGE_DIGITS_MAX = 18


def _page_position(token: str) -> int | None:
    if not token:
        return None
    # Digits of other scripts are digits too, and more than 18 are more than a store can count.
    if not (token.isascii() and token.isdigit() and len(token) <= _PAGE_DIGITS_MAX):
        raise RPCError(
            Rejection(
                code=RejectionCode.INVALID_ARGUMENT,
                message=f"page token {token[:40]!r} was not given by this call; start again without one",
            )
        )
    return int(token)
