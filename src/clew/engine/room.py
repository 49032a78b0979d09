"""News of children wait while their parent's workflow task has as many as it can keep.

Owns: who waits for room in the buffer of a run, and when they go on. Never: drops or reorders what is told.

How it works: what comes from outside while a worker holds the workflow task is buffered, and a full buffer takes the
task away from its worker, and with it the worker's cached machine (semantics 1.2). A caller cannot be made to wait
for long, but the engine's own messages can: they lie in the outbox. So a parent whose children end faster than its
code takes notice is told of them task by task, rather than replaying its whole history for each hundred of them. Every
change of the run lets as many go on as it has room for then. One goes on now and then in any case: in a fleet the task
may have ended on another node, which nobody says here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, final

from clew.core.state import ExecutionState
from clew.engine.runs import RunEntry
from clew.model.limits import LIMITS_DEFAULT

EVENTS_MAX: Final = LIMITS_DEFAULT.buffered_events_max // 2
BYTES_MAX: Final = LIMITS_DEFAULT.buffered_bytes_max // 2
"""What comes from elsewhere finds half of the buffer free."""

PROBE_SECONDS: Final = 2.0
"""Then one of those that wait goes on in any case: if the run was changed on another node, that one finds out."""

WAITING_MAX: Final = 10_000
"""Messages that wait at a time, in all; further ones are told at once."""


@final
class _Queue:
    """Those that wait for one run; their futures tell whether to go on whatever the run looks like."""

    __slots__ = ("timer", "waiting")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.waiting: deque[asyncio.Future[bool]] = deque()

    def let_go(self, *, in_any_case: bool) -> bool:
        """Let the first go on; False when nobody waits any more."""
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(in_any_case)
                return True
        return False


@final
class Room:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self.waiting_count = 0
        """Messages that wait now."""

    async def wait(self, entry: RunEntry, on_wait: Callable[[], None]) -> None:
        """Return when the run can take news; `on_wait` is called if that is not now."""
        if not is_full(entry.state) or self.waiting_count >= WAITING_MAX:
            return
        self.waiting_count += 1
        on_wait()
        try:
            while is_full(entry.state) and not entry.is_discarded:
                if await self._queue_up(entry.run_key):
                    break
        finally:
            self.waiting_count -= 1

    def note_changed(self, entry: RunEntry) -> None:
        """The run may have room now: let as many go on as it can take."""
        queue = self._queues.get(entry.run_key) if self._queues else None
        if queue is None:
            return
        count = len(queue.waiting) if entry.is_discarded else EVENTS_MAX - len(entry.state.buffered_events)
        while count > 0 and queue.let_go(in_any_case=False):
            count -= 1
        self._forget_if_empty(entry.run_key, queue)

    def _queue_up(self, run_key: int) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        queue = self._queues.get(run_key)
        if queue is None:
            queue = self._queues[run_key] = _Queue(loop.call_later(PROBE_SECONDS, self._probe, run_key))
        future: asyncio.Future[bool] = loop.create_future()
        queue.waiting.append(future)
        return future

    def _probe(self, run_key: int) -> None:
        queue = self._queues[run_key]
        queue.let_go(in_any_case=True)
        queue.timer = asyncio.get_running_loop().call_later(PROBE_SECONDS, self._probe, run_key)
        self._forget_if_empty(run_key, queue)

    def _forget_if_empty(self, run_key: int, queue: _Queue) -> None:
        if not queue.waiting:
            queue.timer.cancel()
            del self._queues[run_key]


def is_full(state: ExecutionState) -> bool:
    """Whether more news would crowd the buffer of the run's workflow task."""
    if len(state.buffered_events) < EVENTS_MAX and state.buffered_bytes < BYTES_MAX:
        return False
    task = state.workflow_task
    return task is not None and task.is_started
