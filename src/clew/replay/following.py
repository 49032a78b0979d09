"""History, workflow task by workflow task: the middle floor of the workflow machine.

Owns: `FollowingMachine`: which events make up one activation, what is replayed and what is live, and the comparison of
the code's requests with the events that record them. Never: answers a workflow task (`WorkflowMachine`), or knows what
an event does to the code (`ApplyingMachine`).

How it works: `_feed` goes from one start of a workflow task to the next. What lies between two of them is one
activation (`_run_task`); markers between a start and its end go on with it (`_apply_markers`). The task that most runs
are told of, one result since the last one, has a way of its own (`_run_usual`). ``machine`` explains the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast

from clew.model import events as e
from clew.replay import commands as requests
from clew.replay.applying import APPLY, ApplyingMachine
from clew.replay.local_activities import marker_data
from clew.replay.matching import COMMAND_EVENTS
from clew.replay.passages import (
    accepted_updates,
    brings_signals_next,
    is_last_recorded,
    is_of_task,
    next_of,
    position_of,
    recorded_requests,
)
from clew.replay.resolutions import RESOLVE
from clew.service.requests import WorkflowTask

_IGNORED: Final = frozenset(
    (
        e.WorkflowTaskScheduled,
        e.WorkflowTaskTimedOut,
        e.ActivityTaskStarted,
        e.WorkflowExecutionOptionsUpdated,
        e.WorkflowExecutionPaused,
        e.WorkflowExecutionUnpaused,
        e.WorkflowExecutionTerminated,
        e.WorkflowExecutionTimedOut,
    )
)
"""Events that mean nothing to workflow code."""

_ONE_ACTIVITY: Final = (
    e.WorkflowTaskCompleted,
    e.ActivityTaskScheduled,
    e.ActivityTaskStarted,
    e.ActivityTaskCompleted,
    e.WorkflowTaskScheduled,
    e.WorkflowTaskStarted,
)
"""What a run that does one thing after the other is told at each task."""

_MEANS_NOTHING: Final = 0
_RECORDS_REQUEST: Final = 1
_IS_APPLIED: Final = 2
_ROLES: Final[dict[type[Any], int]] = {
    e.WorkflowTaskStarted: _MEANS_NOTHING,
    e.WorkflowTaskCompleted: _MEANS_NOTHING,
    **dict.fromkeys(_IGNORED, _MEANS_NOTHING),
    **dict.fromkeys(COMMAND_EVENTS, _RECORDS_REQUEST),
    **dict.fromkeys((*APPLY, *RESOLVE), _IS_APPLIED),
}


class FollowingMachine(ApplyingMachine):
    """One run's code along its history; the arguments are those of `WorkflowMachine`."""

    _is_activating = False
    """Whether the latest activation can still go on: its requests are neither sent nor recorded."""
    _is_inside = False
    """Whether the last event applied lies between the start and the end of a workflow task."""
    cached_through_event_id = 0
    """The start of the last workflow task that has been applied; the events of a partial task begin right after."""

    @property
    def applied_event_id(self) -> int:
        """The last event that has been applied; grows while a history is."""
        return self._runtime.applied_event_id

    def _run_usual(self, task: WorkflowTask) -> bool:
        """Apply a task that follows on one which was live too, and brings the result of the one activity that was asked
        for: `_run_task` in short. False, and nothing done, if it is another one."""
        events = task.events
        if (
            tuple(map(type, events)) != _ONE_ACTIVITY
            or self._is_inside
            or task.messages
            or task.query is not None
            or events[0].event_id <= self._runtime.applied_event_id
            or events[-1].event_id != task.started_event_id
        ):
            return False
        _, scheduled, _, completed, _, started = events
        runtime, ledger = self._runtime, self._ledger
        runtime.task_version = self._options.deployment_version
        ledger.match(scheduled)
        if ledger.has_unmatched:
            ledger.check_all_matched(completed)
        runtime.is_replaying_now = self._loop.is_replaying = False
        runtime.task_event = started  # type: ignore[assignment]
        self._set_time(started.event_time)
        if not self._is_activating:
            ledger.begin()
            self._is_activating = True
        self._holds_main = False
        self._resolutions.activity_completed(completed)  # type: ignore[arg-type]
        self._settle()
        runtime.local.epoch += 1
        self._is_inside = True
        self.cached_through_event_id = runtime.applied_event_id = started.event_id
        return True

    def _feed(self, events: Sequence[e.Event], live_event_id: int, messages: Sequence[Any]) -> Sequence[e.Event]:
        """Apply events task by task; give back those after the last task that could be applied."""
        if (
            live_event_id
            and not self._is_inside
            and events
            and events[0].event_id > self._runtime.applied_event_id
            and events[-1].event_id == live_event_id
            and list(map(type, events)).count(e.WorkflowTaskStarted) == 1
        ):
            # The usual: what came since the last task, which was live too.
            self._runtime.task_version = self._options.deployment_version
            started: Any = events[-1]
            self._run_task(events, started, True, (), messages)
            return ()
        first, count = 0, len(events)
        while first < count and events[first].event_id <= self._runtime.applied_event_id:
            first += 1
        kinds: list[type[e.Event]] = list(map(type, events))
        index = first
        while index < count:
            if self._is_inside:
                if kinds[index] is e.MarkerRecorded:
                    index = first = self._apply_markers(events, kinds, index, is_live=live_event_id > 0)
                    continue
                self._is_inside = False
                if kinds[index] is e.WorkflowTaskCompleted:
                    self._end_activation(recorded_requests(events, kinds, index + 1))
            index = next_of(e.WorkflowTaskStarted, kinds, index)
            if index < count:
                last = self._begin_task(events, kinds, first, index, live_event_id, messages)
                if last:
                    index = last
                    first = last + 1
            index += 1
        return events[first:]

    def _begin_task(
        self,
        events: Sequence[e.Event],
        kinds: list[type[e.Event]],
        first: int,
        index: int,
        live_event_id: int,
        messages: Sequence[Any],
    ) -> int:
        """Apply what came before the start of a workflow task, if that led to anything.

        Returns:
            The index of that start, or of that of the last task that was passed with it; 0 if nothing was applied.
        """
        event = cast(e.WorkflowTaskStarted, events[index])
        following = kinds[index + 1] if index + 1 < len(kinds) else None
        if event.event_id == live_event_id:
            self._runtime.task_version = self._options.deployment_version
            self._run_task(events[first : index + 1], event, True, (), messages)
        elif following is e.WorkflowTaskCompleted:
            recorded = recorded_requests(events, kinds, index + 2)
            self._note_version(events[index + 1])
            self._runtime.activities.begin(events, kinds, index, self._main)
            self._run_task(events[first : index + 1], event, False, recorded, accepted_updates(recorded))
            return self._runtime.activities.end()
        elif following is e.MarkerRecorded:
            completed = next_of(e.WorkflowTaskCompleted, kinds, index + 2)
            recorded = recorded_requests(events, kinds, completed + 1)
            is_whole = is_of_task(events, completed, event.event_id)
            updates = accepted_updates(recorded) if is_whole else ()
            self._note_version(events[completed] if is_whole else None)
            self._run_task(events[first : index + 1], event, False, recorded, updates)
        else:
            return 0
        return index

    def _note_version(self, completed: e.Event | None) -> None:
        """What the code is told of its version is that of the worker which completed the task, then as now."""
        version = completed.deployment_version if isinstance(completed, e.WorkflowTaskCompleted) else None
        self._runtime.task_version = version or self._options.deployment_version

    def _run_task(
        self,
        events: Sequence[e.Event],
        task_event: e.WorkflowTaskStarted,
        is_live: bool,
        recorded: Sequence[Any],
        updates: Sequence[Any],
    ) -> None:
        """Apply what lies between two workflow tasks.

        Args:
            events: That, with the start of the second task.
            task_event: That start.
            is_live: Whether the task is the one at hand.
            recorded: The events of the requests that the activation led to, if it is replayed.
            updates: Those that came with the task.
        """
        runtime, ledger = self._runtime, self._ledger
        jobs = self._take(events)
        if ledger.has_unmatched:
            ledger.check_all_matched(task_event)
        runtime.is_replaying_now = self._loop.is_replaying = not is_live
        runtime.task_event = task_event
        self._set_time(task_event.event_time)
        if not self._is_activating:
            ledger.begin()
            self._is_activating = True
        if recorded:
            for event in recorded:
                if isinstance(event, e.MarkerRecorded) and (patch_id := requests.patch_id_of(event)):
                    runtime.recorded_patches |= {patch_id}
        if not is_live and (updates or len(jobs) != 1):
            runtime.activities.end()  # What the first leads to must not see anything that comes after the others.
        if updates or e.WorkflowExecutionSignaled in map(type, jobs):
            self._apply_messages(jobs, [(position_of(u, task_event), u) for u in updates])
        else:
            self._holds_main = False
            for job in jobs:
                self._apply(job)
                self._settle()
        runtime.local.epoch += 1
        self._is_inside = True
        # It may have passed other tasks since, see `RecordedActivities`.
        self.cached_through_event_id = runtime.applied_event_id = runtime.task_event.event_id

    def _apply_markers(
        self, events: Sequence[e.Event], kinds: list[type[e.Event]], index: int, *, is_live: bool
    ) -> int:
        """Apply the markers from an index on that were recorded while their workflow task went on; give the next index.

        A run that is resumed passes thousands here, so what cannot change from one to the next is looked at once.
        """
        runtime, loop, local, last = self._runtime, self._loop, self._runtime.local, len(kinds) - 1
        apply, run, conditions, steps = local.apply_recorded, loop.run_until_idle, runtime.conditions, runtime.steps
        runtime.is_replaying_now = loop.is_replaying = True
        steps.begin(events, kinds, index, self._main)
        while index < last and kinds[index + 1] is e.MarkerRecorded:
            event: Any = events[index]
            steps.index = index + 1
            runtime.applied_event_id = event.event_id
            apply(event)
            local.epoch += 1
            run()
            if conditions or runtime.is_stirred or self._is_main_done():
                self._settle()
            index = steps.index
        steps.end()
        self._apply_inside(
            cast(e.MarkerRecorded, events[index]),
            is_live=is_live and is_last_recorded(kinds, index),
            holds_main=brings_signals_next(kinds, index),
        )
        return index + 1

    def _apply_inside(self, event: e.MarkerRecorded, *, is_live: bool, holds_main: bool) -> None:
        """Apply a marker that was recorded while its workflow task went on.

        Args:
            event: The marker.
            is_live: Whether history tells nothing of what the code did next.
            holds_main: Whether `run` stands back, here already, for signals that come with the next attempt.
        """
        runtime = self._runtime
        if holds_main and self._main is not None:
            self._holds_main = True
            self._loop.hold(self._main)
        runtime.is_replaying_now = self._loop.is_replaying = not is_live
        runtime.local.apply_recorded(event)
        self._settle()
        runtime.local.epoch += 1
        self._runtime.applied_event_id = event.event_id

    def _end_activation(self, recorded: Sequence[Any]) -> None:
        """The workflow task of a replayed activation was completed with these requests."""
        local = self._runtime.local
        for event in recorded:
            if isinstance(event, e.MarkerRecorded) and marker_data(event) is not None:
                local.apply_marker(event, is_among_requests=True)
                self._settle()
                local.epoch += 1
        self._ledger.finish(self._close)
        self._is_activating = False

    def _set_time(self, time: datetime) -> None:
        self._loop.moment = time

    def _take(self, events: Sequence[e.Event]) -> list[e.Event]:
        """Compare events that record requests; give those that are something to apply."""
        ledger = self._ledger
        jobs: list[e.Event] = []
        for event, role in zip(events, map(_ROLES.get, map(type, events)), strict=True):
            if not role:
                if role is None:
                    kind = type(event).__name__
                    raise RuntimeError(f"Event {event.event_id} is of the unknown kind {kind}. Update the worker.")
            elif role == _RECORDS_REQUEST:
                ledger.match(event)
            else:
                if ledger.has_unmatched:
                    ledger.check_all_matched(event)
                jobs.append(event)
        return jobs
