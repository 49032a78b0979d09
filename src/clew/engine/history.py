"""Reading histories, and waiting for more of them.

Owns: reads of stored events, and the waiters of a run's history (results, followers, live views).
Never: changes a run.

How it works: a waiter is one future in a list under the run key. Every commit on a run wakes its waiters, which look
again; a waiter costs nothing in between. One that only wants the end of the run is woken by the close alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from clew.model.events import Event, decode_event_batches
from clew.ports.store import Store

READ_BYTES: Final = 1024 * 1024
"""Bytes of history read at once."""

BATCHES_TOGETHER: Final = 32
"""So many are decoded at once: a step of a run is a batch of a few hundred bytes. What is kept of one keeps all."""

LONG_POLL_SECONDS: Final = 20.0
"""How long a waiting call stays open before it answers with what there is (semantics 1.5: 20 s)."""


async def read_events(store: Store, shard: int, run_key: int, first: int, last: int) -> list[Event]:
    """The events from `first` to `last` of a run, as far as they are stored."""
    events: list[Event] = []
    next_id = first
    while next_id <= last:
        batches = await store.read_history(shard, run_key, next_id, READ_BYTES)
        if not batches:
            break
        for at in range(0, len(batches), BATCHES_TOGETHER):
            events += decode_event_batches([batch.events for batch in batches[at : at + BATCHES_TOGETHER]])
        next_id = batches[-1].last_event_id + 1
    if events and (events[0].event_id < first or events[-1].event_id > last):
        return [event for event in events if first <= event.event_id <= last]
    return events


class HistoryWaiters:
    """Who waits for a run's history to grow."""

    def __init__(self) -> None:
        self.of_any: dict[int, list[asyncio.Future[None]]] = {}
        """Who waits for a run to change in any way."""
        self._close: dict[int, list[asyncio.Future[None]]] = {}
        self._calls: dict[int, list[Callable[[], None]]] = {}

    def register(self, run_key: int, *, close_only: bool) -> asyncio.Future[None]:
        """A future that is done at the next commit (or the close) of the run."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._close if close_only else self.of_any
        waiting.setdefault(run_key, []).append(future)
        return future

    def unregister(self, run_key: int, future: asyncio.Future[None]) -> None:
        """Stop waiting."""
        for waiting in (self.of_any, self._close):
            futures = waiting.get(run_key) if waiting else None
            if futures and future in futures:
                futures.remove(future)
                if not futures:
                    del waiting[run_key]

    def is_waited(self, run_key: int) -> bool:
        """Whether anybody waits on the run."""
        return run_key in self.of_any or run_key in self._close or run_key in self._calls

    def call_on_close(self, run_key: int, callback: Callable[[], None]) -> None:
        """Call back once, when the run closes or it has to be looked whether it did."""
        self._calls.setdefault(run_key, []).append(callback)

    def forget_on_close(self, run_key: int, callback: Callable[[], None]) -> None:
        """Do not call back."""
        callbacks = self._calls.get(run_key, [])
        if callback in callbacks:
            callbacks.remove(callback)
            if not callbacks:
                del self._calls[run_key]

    def wake(self, run_key: int, *, is_closed: bool) -> None:
        """The run changed."""
        if self.of_any:
            _resolve(self.of_any.pop(run_key, None))
        if is_closed:
            if self._close:
                _resolve(self._close.pop(run_key, None))
            for callback in self._calls.pop(run_key, ()):
                callback()

    def wake_all(self) -> None:
        """The engine stops: let everybody look once more."""
        for waiting in (self.of_any, self._close):
            for futures in list(waiting.values()):
                _resolve(futures)
            waiting.clear()
        for run_key in list(self._calls):
            for callback in self._calls.pop(run_key, ()):
                callback()


def _resolve(futures: list[asyncio.Future[None]] | None) -> None:
    for future in futures or ():
        if not future.done():
            future.set_result(None)
