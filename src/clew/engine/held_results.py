"""Results of activities wait, for a moment, while their run's workflow task has as many as it can keep.

Owns: which results wait, and when they go on. Never: drops or reorders results; holds one whose attempt could time out
meanwhile; answers a worker before its result is durable.

How it works: what comes from outside while a worker holds the workflow task is buffered, and a full buffer takes the
task away from its worker, and with it the worker's cached machine (semantics 1.2). The results of a wide fan-out come
faster than its code takes notice, so such a run would replay its whole history for each hundred of them. A worker that
reports a result can wait a little: it is answered later. Every change of the run lets as many go on as it has room for
then, and all go on after a second in any case, when the code is slow or the task has ended on another node. (News of
children wait in the outbox: ``engine.room``.)
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

EVENTS_MAX: Final = LIMITS_DEFAULT.buffered_events_max * 4 // 5
BYTES_MAX: Final = LIMITS_DEFAULT.buffered_bytes_max // 2
"""Signals and what else cannot wait find the rest of the buffer free."""

HELD_SECONDS_MAX: Final = 1.0
SPARE_TIME: Final = timedelta(seconds=2 * HELD_SECONDS_MAX)
"""An attempt that times out within this is not made to wait."""

HELD_MAX: Final = 10_000
"""Results that wait at a time, in all; further ones go on at once."""

GoOn = Callable[[], object]


@final
class HeldResults:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[GoOn]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.held_count = 0
        """Results that wait now."""

    def hold(self, entry: RunEntry, token: TaskToken, now: datetime, go_on: GoOn) -> bool:
        """Hold a result until `go_on` is called, if its run has no room for it; say whether it is held."""
        state = entry.state
        queue = self._waiting.get(entry.run_key)
        if self.held_count >= HELD_MAX or (queue is None and not is_crowded(state)):
            return False
        activity = state.activities.get(token.scheduled_event_id)
        if activity is None or activity.lease_id != token.lease_id or _is_pressed(activity, now):
            return False
        if queue is None:
            queue = self._waiting[entry.run_key] = deque()
            loop = asyncio.get_running_loop()
            self._timers[entry.run_key] = loop.call_later(HELD_SECONDS_MAX, self._let_all_go, entry.run_key)
        queue.append(go_on)
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
            queue.popleft()()
        if not queue:
            self._forget(entry.run_key)

    def close(self) -> None:
        """Let all go on."""
        for run_key in list(self._waiting):
            self._let_all_go(run_key)

    def _let_all_go(self, run_key: int) -> None:
        queue = self._waiting.get(run_key, deque[GoOn]())
        self._forget(run_key)
        self.held_count -= len(queue)
        for go_on in queue:
            go_on()

    def _forget(self, run_key: int) -> None:
        self._waiting.pop(run_key, None)
        timer = self._timers.pop(run_key, None)
        if timer is not None:
            timer.cancel()


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


def _is_pressed(activity: PendingActivity, now: datetime) -> bool:
    """Whether the attempt would time out while its result waits."""
    started, soon = activity.started_time, now + SPARE_TIME
    if started is None:
        return True
    heard = activity.last_heartbeat_time or started
    return any(
        timeout and since + timeout < soon
        for since, timeout in (
            (started, activity.start_to_close_timeout),
            (activity.scheduled_time, activity.schedule_to_close_timeout),
            (heard, activity.heartbeat_timeout),
        )
    )
