"""Outcomes of local activities that stand in history one behind the other: what a resumed run passes on its way.

Owns: where in such a row the machine is, and the short way of a step through it. Never: the last of a row, or anything
but a step that went well; those take the general way (``machine``, ``local_activities``).

How it works: when the marker that comes next is the outcome of the very step that code is about to await, and nobody
could notice that it does not stop there (``short_way`` tells), the outcome is given at once (`take`). That is three
quarters of what a resumed step costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from clew.model import events as e
from clew.replay.commands import LOCAL_ACTIVITY_MARKER
from clew.replay.local_activities import ARGUMENT, BATCH, LocalActivities, decode_marker_data
from clew.replay.loop import WorkflowLoop
from clew.replay.passages import Kinds
from clew.replay.short_way import ShortWay
from clew.replay.values import Values
from clew.workflow._activities import UNSET
from clew.workflow._local_calls import LocalActivityCall

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime


@final
class RecordedSteps(ShortWay):
    """The rows of markers of one run.

    Args:
        runtime: Of the run.
        loop: Of the run.
        local: Its local activities.
        values: Converts arguments and results.
    """

    __slots__ = ("_events", "_kinds", "_last", "_values", "index")

    def __init__(self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities, values: Values) -> None:
        super().__init__(runtime, loop, local)
        self._values = values
        self._events: Sequence[Any] = ()
        self._kinds: Kinds = []
        self._last = -1
        self.index = 0
        """Of the next marker."""

    def begin(self, events: Sequence[Any], kinds: Kinds, index: int, main: asyncio.Task[Any] | None) -> None:
        """Begin a row, whose first marker is at `index`."""
        runtime = self._runtime
        is_direct = main is not None and runtime.outbound_chain is None and runtime.options.runs_local_activities
        self._events, self._kinds, self._main, self.index = events, kinds, main, index
        self._last = len(kinds) - 1 if is_direct else -1

    def end(self) -> None:
        """The rest of the row is not for this way."""
        self._events, self._kinds, self._main, self._last = (), [], None, -1
        self._loop_frame = self._main_frame = None

    def take(self, call: LocalActivityCall, args: Sequence[Any]) -> Any:
        """Give the result of a step that the coroutine which calls this is about to await, if history tells it next.

        Returns:
            The result; `UNSET` if the step has to take the general way, with nothing changed.

        Raises:
            EncodeError: An argument cannot be converted, or is too large.
            DecodeError: The result does not fit its type.
        """
        index = self.index
        if index >= self._last or self._kinds[index + 1] is not e.MarkerRecorded or not self._is_alone():
            return UNSET
        event, local, name = self._events[index], self._local, call.activity
        if event.marker_name != LOCAL_ACTIVITY_MARKER or event.failure is not None:
            return UNSET
        details = event.details
        data = decode_marker_data(details["data"][0])
        if call.activity_id is None:
            numbers, key, activity_id = local.counts, name, data.activity_id
            number = numbers.get(name, 0) + 1
            is_next = activity_id == f"{name}-local-{number}" and data.ordinal == 1
        else:
            numbers, key, activity_id = local.ordinals, call.activity_id, call.activity_id
            number = numbers.get(key, 0) + 1
            is_next = activity_id == data.activity_id and data.ordinal == number
        if not is_next or data.activity_type != name or data.backoff_seconds or activity_id in local.open:
            return UNSET
        if args and not (len(args) == 1 and local.surely_takes(args[0], local.bytes_max)):
            self._values.encode(args, ARGUMENT, name)  # What cannot be converted must not pass, now as then.
        numbers[key] = number
        local.sequence += 1
        local.epoch += 1
        if data.durable != BATCH:
            self._loop.moment = event.event_time
        self.index = index + 1
        self._runtime.applied_event_id = event.event_id
        result = details.get("result")
        return local.from_stored(result[0], call.ret_type) if result else None
