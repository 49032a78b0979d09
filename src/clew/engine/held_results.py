"""Results of activities wait, for a moment, while their run's workflow task has as many as it can keep.

Owns: which results wait, and when they go on. Never: drops a result; holds one whose attempt could time out meanwhile;
answers a worker before its result is durable.

How it works: what comes from outside while a worker holds the workflow task is buffered, and a full buffer takes the
task away from its worker, and with it the worker's cached machine (semantics 1.2). The results of a wide fan-out come
faster than its code takes notice, so such a run would replay its whole history for each hundred of them. A worker that
reports a result can wait a little: it is answered later. Every change of the run lets as many go on as it has room for
then. None waits longer than some seconds, nor until its attempt would time out; and one goes on now and then in any
case: in a fleet the task may have ended on another node, which nobody says here. (News of children wait in the outbox:
``engine.room``.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, final

from clew.core.pending import PendingActivity
from clew.core.state import ExecutionState
from clew.engine.runs import RunEntry
from clew.model.events import ActivityTaskStarted
from clew.model.inputs import TaskToken
from clew.model.limits import LIMITS_DEFAULT
from clew.ports.clock import Clock

EVENTS_MAX: Final = LIMITS_DEFAULT.buffered_events_max * 4 // 5
BYTES_MAX: Final = LIMITS_DEFAULT.buffered_bytes_max // 2
"""Signals and what else cannot wait find the rest of the buffer free."""

HELD_MAX_TIME: Final = timedelta(seconds=5)
"""Code that takes longer for one workflow task is stopped, or is being rebuilt from its history."""

TICK_SECONDS: Final = 0.5
SPARE_TIME: Final = timedelta(seconds=4 * TICK_SECONDS)
"""A result goes on so long before its attempt would time out."""

RESULTS_MAX: Final = 10_000
"""Results that wait at a time, in all; further ones go on at once."""

GoOn = Callable[[], object]


@final
class HeldResults:
    """See the module docstring. All methods belong to the engine's loop.

    Args:
        clock: Of the node.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, deque[tuple[datetime, GoOn]]] = {}
        """By run: until when each may wait at most, and how it goes on."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.held_count = 0
        """Results that wait now."""

    def hold(self, entry: RunEntry, token: TaskToken, go_on: GoOn) -> bool:
        """Hold a result until `go_on` is called, if its run has no room for it; say whether it is held."""
        queue = self._waiting.get(entry.run_key)
        if self.held_count >= RESULTS_MAX or (queue is None and not is_crowded(entry.state)):
            return False
        activity = entry.state.activities.get(token.scheduled_event_id)
        if activity is None or activity.lease_id != token.lease_id or activity.started_time is None:
            return False
        now = self._clock.now()
        until = min(now + HELD_MAX_TIME, _times_out_at(activity, activity.started_time) - SPARE_TIME)
        if until <= now:
            return False
        if queue is None:
            queue = self._waiting[entry.run_key] = deque()
            self._arm(entry.run_key)
        queue.append((until, go_on))
        self.held_count += 1
        return True

    def note_changed(self, entry: RunEntry) -> None:
        """The run may have room now: let as many go on as it can take."""
        queue = self._waiting.get(entry.run_key) if self._waiting else None
        if queue is None:
            return
        if entry.is_discarded or not entry.state.is_open:
            self._let_all_go(entry.run_key)
            return
        room = EVENTS_MAX - _news_count(entry.state)
        while queue and room > 0 and not is_crowded(entry.state):
            room -= 1
            self.held_count -= 1
            queue.popleft()[1]()
        self._forget_if_empty(entry.run_key)

    def close(self) -> None:
        """Let all go on."""
        for run_key in list(self._waiting):
            self._let_all_go(run_key)

    def _arm(self, run_key: int) -> None:
        self._timers[run_key] = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick, run_key)

    def _tick(self, run_key: int) -> None:
        """Let those go on that may wait no longer, or else the first."""
        queue, now = self._waiting[run_key], self._clock.now()
        gone = [held for held in queue if held[0] <= now] or [queue[0]]
        for held in gone:
            queue.remove(held)
        self.held_count -= len(gone)
        self._arm(run_key)
        self._forget_if_empty(run_key)
        for _, go_on in gone:
            go_on()

    def _let_all_go(self, run_key: int) -> None:
        queue = list(self._waiting[run_key])
        self._waiting[run_key].clear()
        self._forget_if_empty(run_key)
        self.held_count -= len(queue)
        for _, go_on in queue:
            go_on()

    def _forget_if_empty(self, run_key: int) -> None:
        if not self._waiting.get(run_key, True):
            del self._waiting[run_key]
            self._timers.pop(run_key).cancel()


def is_crowded(state: ExecutionState) -> bool:
    """Whether more results would crowd the buffer of the run's workflow task."""
    if len(state.buffered_events) < EVENTS_MAX and state.buffered_bytes < BYTES_MAX:
        return False
    task = state.workflow_task
    if task is None or not task.is_started:
        return False
    return state.buffered_bytes >= BYTES_MAX or _news_count(state) >= EVENTS_MAX


def _news_count(state: ExecutionState) -> int:
    """The buffered events as they are counted: an activity's Started and its outcome are one."""
    buffered = state.buffered_events
    return len(buffered) - list(map(type, buffered)).count(ActivityTaskStarted)


def _times_out_at(activity: PendingActivity, started: datetime) -> datetime:
    """When the attempt would time out; long after now if never."""
    heard = activity.last_heartbeat_time or started
    limits = (
        (started, activity.start_to_close_timeout),
        (activity.scheduled_time, activity.schedule_to_close_timeout),
        (heard, activity.heartbeat_timeout),
    )
    return min((since + timeout for since, timeout in limits if timeout), default=started + timedelta(days=1))
