"""Activities that stand in history one behind the other: what a resumed run passes on its way.

Owns: where in such a row the machine is, and the short way of an activity through it. Never: the last of a row, or
anything but an activity that went well and was the only thing that its workflow task asked for; those take the general
way (``machine``, ``outbound``, ``matching``, ``resolutions``).

How it works: as with local steps (``recorded_steps``, ``short_way``), but here a whole workflow task lies between an
activity and the next. So the kinds of events that follow must be just those of a task that asks for one activity, of
that activity and of the task that hears of it, which asks for one activity itself: then it brings no messages, markers
or patches, and is not the live one. What the machine would note of that task is noted here. Where the request is not
the recorded one, arguments included, nothing has been changed, and the general way finds what there is to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from clew.model import events as e
from clew.replay.local_activities import LocalActivities
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.passages import Kinds
from clew.replay.short_way import KNOWN_MAX, ShortWay
from clew.replay.values import Values
from clew.workflow._activities import UNSET, activity_input, one_or_many
from clew.workflow._runtime import AwaitedCall

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime

_ROW: Final[list[type[Any]]] = [
    e.WorkflowTaskCompleted,
    e.ActivityTaskScheduled,
    e.ActivityTaskStarted,
    e.ActivityTaskCompleted,
    e.WorkflowTaskScheduled,
    e.WorkflowTaskStarted,
    e.WorkflowTaskCompleted,
    e.ActivityTaskScheduled,
    e.ActivityTaskStarted,
]
"""What follows the start of a workflow task whose one activity may be passed."""

ARGUMENT: Final = "argument of activity"

_SCHEDULED, _COMPLETED, _NEXT_TASK, _NEXT_ANSWER = 2, 4, 6, 7
"""Where in a row, counted from that start, the events stand that tell something."""


@final
class _Known:
    """What the last call of an activity said.

    Args:
        activity: As it was given.
        result_type: The type of its result, as it was given.
        options: Its options, as they were given.
    """

    __slots__ = ("activity_id", "name", "options", "result_type", "ret_type", "summary")

    def __init__(self, activity: Any, result_type: Any | None, options: Mapping[str, Any]) -> None:
        asked = activity_input(activity, UNSET, (), result_type, **options)
        self.result_type = result_type
        self.options = options
        self.name = asked.activity
        self.activity_id = asked.activity_id
        self.summary = asked.summary
        self.ret_type = asked.ret_type


@final
class RecordedActivities(ShortWay):
    """The rows of activities of one run.

    Args:
        runtime: Of the run.
        loop: Of the run.
        local: Its local activities.
        values: Converts arguments and results.
        ledger: The requests of the run.
    """

    __slots__ = ("_events", "_kinds", "_ledger", "_values")

    def __init__(
        self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities, values: Values, ledger: Ledger
    ) -> None:
        super().__init__(runtime, loop, local)
        self._values = values
        self._ledger = ledger
        self._events: Sequence[Any] = ()
        self._kinds: Kinds = []

    def begin(self, events: Sequence[Any], kinds: Kinds, index: int, main: asyncio.Task[Any] | None) -> None:
        """Begin a row with the workflow task whose start is at `index`, and which is replayed."""
        self.index = index
        if main is not None and self._runtime.outbound_chain is None:
            self._events, self._kinds = events, kinds
            self._begin_row(main)

    def end(self) -> int:
        """The row is over; give the index of the start of the last task that was passed."""
        self._events, self._kinds = (), []
        self._end_row()
        return self.index

    def _answers(self) -> Generator[Any, AwaitedCall, None]:
        runtime, loop, local, ledger, values = self._runtime, self._loop, self._local, self._ledger, self._values
        known: dict[Any, _Known] = {}
        counts = runtime.out.activity_counts
        to_stored, bytes_max = values.payload_converter.to_stored, values.limits.payload_bytes_max
        result: Any = UNSET
        while True:
            activity, arg, args, result_type, options = yield result
            result, index = UNSET, self.index
            if (
                self._main is None
                or self._kinds[index + 1 : index + 10] != _ROW
                or ledger.asked_count
                or ledger.has_unmatched
                or local.open
                or not self._is_alone(self._own_frame.f_back.f_back)  # type: ignore[union-attr]
            ):
                continue
            events = self._events
            scheduled, completed = events[index + _SCHEDULED], events[index + _COMPLETED]
            try:
                call = known.get(activity)
                if call is None or call.result_type is not result_type or call.options != options:
                    if len(known) >= KNOWN_MAX:
                        known.clear()
                    call = known[activity] = _Known(activity, result_type, options)
                name = call.name
                count = counts.get(name, 0) + 1
                if arg is not UNSET and not args:
                    given = to_stored(arg)
                    are_recorded = (given,) == scheduled.input and len(given) <= bytes_max
                else:
                    are_recorded = values.encode(one_or_many(arg, args, name), ARGUMENT, name) == scheduled.input
                if (
                    scheduled.activity_id != (f"{name}-{count}" if call.activity_id is None else call.activity_id)
                    or scheduled.activity_type != name
                    or call.summary
                    or completed.scheduled_event_id != scheduled.event_id
                    or not are_recorded
                ):
                    continue
                answer = values.decode_result(completed.result, call.ret_type)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 (the general way comes to it at its place)
                continue
            if call.activity_id is None:
                counts[name] = count
            local.epoch += 1
            ledger.begin()
            task = events[index + _NEXT_TASK]
            runtime.task_version = events[index + _NEXT_ANSWER].deployment_version or runtime.options.deployment_version
            runtime.task_event = task
            runtime.applied_event_id = task.event_id
            loop.moment = task.event_time
            self.index = index + _NEXT_TASK
            result = answer
