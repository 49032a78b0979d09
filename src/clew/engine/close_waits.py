"""Waiting for the end of a run that is in memory, without a task of its own.

Owns: `CloseWaits`, the express way of the call by which clients wait for a result. Never: reads from the store; what
needs that, and every other way of asking for history, is `reading`.

How it works: a wait is the reply itself, called back by the close of its run, which is then at hand. All waits have the
same time to live, so they end in the order in which they began, and one timer serves them all. Whatever is not the
plain end (the run's memory is gone, the event is not at hand) is asked of the general way, in the name of the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from clew.engine.history import LONG_POLL_SECONDS, HistoryWaiters
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import GetHistoryRequest, GetHistoryResponse

_STOPPED: Final = "the engine was stopped while the end of the run was awaited; connect again and repeat the call"


class CloseWait(Reply[GetHistoryResponse], eq=False):
    """One wait for the close of a run."""

    waits: CloseWaits
    entry: RunEntry
    request: GetHistoryRequest
    ends_at: float

    def abandon(self) -> None:
        """Whoever asked has gone."""
        self.waits.drop(self)

    def look(self) -> None:
        """The run has closed, or nobody knows."""
        self.waits.look(self)


class CloseWaits:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        cache: RunCache,
        waiters: HistoryWaiters,
        peers: Peers,
        read: Callable[[GetHistoryRequest], Awaitable[GetHistoryResponse]],
    ) -> None:
        self._cache = cache
        self._waiters = waiters
        self._peers = peers
        self._read = read
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[CloseWait, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, request: GetHistoryRequest) -> CloseWait | None:
        """Answer when the run closes or the long poll is over; None when the general way has to look."""
        if not (request.close_event_only and request.wait_new_event):
            return None
        entry = self._cache.get_open(request.namespace, request.workflow_id)
        if entry is None or (request.run_id and request.run_id != entry.state.run_id):
            return None
        if not entry.durable_last_event_id:
            return None  # Its start may yet be lost, and then nobody may have been told of this run.
        wait = CloseWait(self, entry, request, self._loop.time() + LONG_POLL_SECONDS)
        self._waiting[wait] = None
        self._waiters.call_on_close(entry.run_key, wait.look)
        # Another node may have closed the run already; whoever watches over waits finds out before long.
        self._peers.on_waiting(entry, close_only=True)
        if self._timer is None:
            self._timer = self._loop.call_at(wait.ends_at, self._end_overdue)
        return wait

    def look(self, wait: CloseWait) -> None:
        """Answer a wait whose run has closed."""
        if wait not in self._waiting:
            return
        del self._waiting[wait]
        entry = wait.entry
        close_event_id = entry.state.close_event_id
        is_durable = close_event_id and entry.durable_last_event_id >= close_event_id
        if is_durable and not entry.is_discarded and entry.tail and entry.tail[-1].event_id == close_event_id:
            wait.set_result(GetHistoryResponse(run_id=entry.state.run_id, events=(entry.tail[-1],)))
        else:
            self._ask(wait)

    def drop(self, wait: CloseWait) -> None:
        """Forget a wait that nobody waits for."""
        if wait in self._waiting:
            del self._waiting[wait]
            self._waiters.forget_on_close(wait.entry.run_key, wait.look)

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_overdue(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting:
            wait = next(iter(self._waiting))
            if wait.ends_at > now:
                self._timer = self._loop.call_at(wait.ends_at, self._end_overdue)
                return
            self.drop(wait)
            state = wait.entry.state
            wait.set_result(GetHistoryResponse(run_id=state.run_id, next_event_id=wait.entry.durable_last_event_id + 1))

    def _ask(self, wait: CloseWait) -> None:
        def answer(done: asyncio.Future[GetHistoryResponse]) -> None:
            if done.cancelled():
                wait.set_exception(RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message=_STOPPED)))
                return
            error = done.exception()
            if error is not None:
                wait.set_exception(error)
            else:
                wait.set_result(done.result())

        asyncio.ensure_future(self._read(wait.request)).add_done_callback(answer)
