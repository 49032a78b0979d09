"""Outcomes of local activities that stand in history one behind the other: what a resumed run passes on its way.

Owns: where in such a row the machine is, and the short way of a step through it. Never: the last of a row, or anything
but a step that went well; those take the general way (``machine``, ``local_activities``).

How it works: when the marker that comes next is the outcome of the very step that code is about to await, and nobody
could notice that it does not stop there (``short_way`` tells), the outcome is given at once. That is five sixths of
what a resumed step costs. What a marker says beside the result is nearly always the same but for a number, so it is
compared as it is stored (`_Known`), and only read where it differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from clew.model import events as e
from clew.replay.commands import LOCAL_ACTIVITY_MARKER
from clew.replay.local_activities import ARGUMENT, BATCH, LocalActivities, decode_marker_data
from clew.replay.loop import WorkflowLoop
from clew.replay.passages import Kinds
from clew.replay.short_way import KNOWN_MAX, ShortWay
from clew.replay.values import Values
from clew.workflow._activities import UNSET
from clew.workflow._local_calls import LocalActivityCall, local_activity_call, local_arguments
from clew.workflow._runtime import AwaitedCall

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime

_encode: Final = msgspec.json.Encoder().encode


@final
class _Known:
    """What the last call of an activity said, and what its markers say.

    Args:
        call: What it said, without arguments.
        result_type: The type of its result, as it was given.
        options: Its options, as they were given.
    """

    __slots__ = ("activity_id", "before", "behind", "call", "name", "options", "result_type")

    def __init__(self, call: LocalActivityCall, result_type: Any | None, options: Mapping[str, Any]) -> None:
        self.call = call
        self.result_type = result_type
        self.options = options
        self.name = call.activity
        self.activity_id = call.activity_id
        name = _encode(call.activity)
        self.before = b'{"activity_id":%b-local-' % name[:-1]
        self.behind = b'","activity_type":%b}' % name
        """Of the marker's data in front of and behind the number, of a step with an id of the usual form."""


@final
class RecordedSteps(ShortWay):
    """The rows of markers of one run.

    Args:
        runtime: Of the run.
        loop: Of the run.
        local: Its local activities.
        values: Converts arguments and results.
    """

    __slots__ = ("_events", "_kinds", "_last", "_values")

    def __init__(self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities, values: Values) -> None:
        super().__init__(runtime, loop, local)
        self._values = values
        self._events: Sequence[Any] = ()
        self._kinds: Kinds = []
        self._last = -1

    def begin(self, events: Sequence[Any], kinds: Kinds, index: int, main: asyncio.Task[Any] | None) -> None:
        """Begin a row, whose first marker is at `index`."""
        runtime = self._runtime
        self._events, self._kinds, self.index = events, kinds, index
        if main is not None and runtime.outbound_chain is None and runtime.options.runs_local_activities:
            self._last = len(kinds) - 1
            self._begin_row(main)

    def end(self) -> None:
        """The rest of the row is not for this way."""
        self._events, self._kinds, self._last = (), [], -1
        self._end_row()

    def _answers(self) -> Generator[Any, AwaitedCall, None]:
        runtime, loop, local, marker = self._runtime, self._loop, self._local, e.MarkerRecorded
        known: dict[Any, _Known] = {}
        counts, ordinals = local.counts, local.ordinals
        result: Any = UNSET
        while True:
            activity, arg, args, result_type, options = yield result
            result, index = UNSET, self.index
            if index >= self._last or self._kinds[index + 1] is not marker:
                continue
            if not self._is_alone(self._own_frame.f_back.f_back):  # type: ignore[union-attr]
                continue
            event = self._events[index]
            details = event.details
            try:
                step = known.get(activity)
                if step is None or step.result_type is not result_type or step.options != options:
                    if len(known) >= KNOWN_MAX:
                        known.clear()
                    step = _Known(local_activity_call(activity, result_type, options), result_type, options)
                    known[activity] = step
                name, activity_id = step.name, step.activity_id
                number = counts.get(name, 0) + 1 if activity_id is None else ordinals.get(activity_id, 0) + 1
                is_batch = False
                if (
                    event.marker_name != LOCAL_ACTIVITY_MARKER
                    or event.failure is not None
                    or (local.open and (activity_id or f"{name}-local-{number}") in local.open)
                ):
                    continue
                if activity_id is not None or bytes(details["data"][0]) != b"%b%d%b" % (
                    step.before,
                    number,
                    step.behind,
                ):
                    durable = _durability(details["data"][0], step, number)
                    if durable is None:
                        continue
                    is_batch = durable == BATCH
                if args or (arg is not UNSET and not local.surely_takes(arg, local.bytes_max)):
                    # What cannot be converted must not pass, now as then.
                    self._values.encode(local_arguments(step.call, arg, args), ARGUMENT, name)
                found = details.get("result")
                answer = local.from_stored(found[0], step.call.ret_type) if found else None
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 (the general way comes to it at its place)
                continue
            if activity_id is None:
                counts[name] = number
            else:
                ordinals[activity_id] = number
            local.sequence += 1
            local.epoch += 1
            if not is_batch:
                loop.moment = event.event_time
            self.index = index + 1
            runtime.applied_event_id = event.event_id
            result = answer


def _durability(data: Any, step: _Known, number: int) -> str | None:
    """How the step was made durable; None if what the marker says is not of that step, which went well."""
    said = decode_marker_data(data)
    if step.activity_id is None:
        is_its_own = said.activity_id == f"{step.name}-local-{number}" and said.ordinal == 1
    else:
        is_its_own = said.activity_id == step.activity_id and said.ordinal == number
    if not is_its_own or said.activity_type != step.name or said.backoff_seconds:
        return None
    return said.durable
