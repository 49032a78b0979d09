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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from clew.model import events as e
from clew.replay.local_activities import LocalActivities
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.passages import Kinds
from clew.replay.short_way import ShortWay
from clew.replay.values import Values
from clew.workflow._activities import UNSET

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime
    from clew.workflow._interceptor import StartActivityInput

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

_SCHEDULED, _COMPLETED, _NEXT_TASK, _NEXT_ANSWER = 2, 4, 6, 7
"""Where in a row, counted from that start, the events stand that tell something."""


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

    __slots__ = ("_events", "_kinds", "_ledger", "_values", "index")

    def __init__(
        self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities, values: Values, ledger: Ledger
    ) -> None:
        super().__init__(runtime, loop, local)
        self._values = values
        self._ledger = ledger
        self._events: Sequence[Any] = ()
        self._kinds: Kinds = []
        self.index = 0
        """Of the start of the workflow task at hand."""

    def begin(self, events: Sequence[Any], kinds: Kinds, index: int, main: asyncio.Task[Any] | None) -> None:
        """Begin a row with the workflow task whose start is at `index`, and which is replayed."""
        self.index = index
        if main is not None and self._runtime.outbound_chain is None:
            self._events, self._kinds, self._main = events, kinds, main

    def end(self) -> int:
        """The row is over; give the index of the start of the last task that was passed."""
        self._events, self._kinds, self._main = (), [], None
        self._loop_frame = self._main_frame = None
        return self.index

    def take(self, asked: StartActivityInput) -> Any:
        """Give the result of an activity that the coroutine which calls this is about to await, if history has it next.

        Returns:
            The result; `UNSET` if the activity has to take the general way, with nothing changed.

        Raises:
            EncodeError: An argument cannot be converted, or is too large.
            DecodeError: The result does not fit its type.
        """
        if self._main is None:
            return UNSET
        index, ledger, name = self.index, self._ledger, asked.activity
        if (
            self._kinds[index + 1 : index + 10] != _ROW
            or ledger.asked_count
            or ledger.has_unmatched
            or self._local.open
            or asked.summary
            or not self._is_alone()
        ):
            return UNSET
        events, runtime, counts = self._events, self._runtime, self._runtime.out.activity_counts
        scheduled, completed = events[index + _SCHEDULED], events[index + _COMPLETED]
        count = counts.get(name, 0) + 1
        activity_id = asked.activity_id
        if (
            scheduled.activity_id != (f"{name}-{count}" if activity_id is None else activity_id)
            or scheduled.activity_type != name
            or completed.scheduled_event_id != scheduled.event_id
            or self._values.encode(asked.args, "argument of activity", name) != scheduled.input
        ):
            return UNSET
        if activity_id is None:
            counts[name] = count
        runtime.local.epoch += 1
        ledger.begin()
        task = events[index + _NEXT_TASK]
        runtime.task_version = events[index + _NEXT_ANSWER].deployment_version or runtime.options.deployment_version
        runtime.task_event = task
        runtime.applied_event_id = task.event_id
        self._loop.moment = task.event_time
        self.index = index + _NEXT_TASK
        return self._values.decode_result(completed.result, asked.ret_type)
