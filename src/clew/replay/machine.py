"""The workflow machine: one run's code against its history.

Owns: the order in which history is applied, what is replayed and what is live, and the answer to each workflow task.
Never: reads a clock, waits, or touches a thread; knows queues, leases or the store.

How it works: history is a sequence of workflow tasks. What lies between two of them is applied to the code as one
*activation* at the later one, with that task's time. If a WorkflowTaskCompleted follows, the activation is replayed
and its requests must match the events after it; if the task is the one at hand, it is live and its requests are the
answer. The order within an activation (docs/adr/0009):

1. Events are applied one after the other in the order of history, and after each the code runs until it can go no
   further. So what the code sees is what had happened, in the order in which it happened, however events fell into
   tasks.
2. `run` itself stands back until the signals that came with the task have reached their handlers. So it can not end,
   or continue as new, over a signal it has not seen. In the first activation it stands back for updates as well:
   handlers come before the first line of `run`, but after ``__init__``.
3. Updates are applied at the place in history at which they were admitted.
4. Queries are answered at the end.

A task may have markers between its start and its end: outcomes of local activities, recorded while it went on
(docs/adr/0016). They belong to its activation, after the events before it, each with a time of its own. Such a task
counts even if it came to no answer: the next attempt goes on with the same activation where the last marker left it,
and if signals came in between, `run` stands back for them from that marker on.

A machine whose activation failed must not be used again: the next task rebuilds the run from its history.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final, cast, final

from clew.common import RawValue, VersioningBehavior
from clew.converter import decode_arguments
from clew.converter.failure import notes_of
from clew.converter.payload_converter import PayloadConverter
from clew.exceptions import NondeterminismError, RestrictedWorkflowAccessError
from clew.model import events as e
from clew.model.inputs import (
    CompleteWorkflowTaskRequest,
    FailWorkflowTaskRequest,
    QueryResult,
    UpdateAcceptance,
    UpdateCompletion,
)
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.payload import from_stored
from clew.replay import commands as requests
from clew.replay import guard, ordering, stacks
from clew.replay.burial import bury
from clew.replay.chance import is_in_interceptor
from clew.replay.handlers import Handlers
from clew.replay.local_activities import RecordLocalActivity, marker_data
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import COMMAND_EVENTS, Ledger, to_commands
from clew.replay.options import ActivationResult, LocalActivityOutcome, MachineOptions, NondeterminismPolicy
from clew.replay.outbound import RUN_CANCELLED
from clew.replay.outcome import Outcome, decide_outcome, deciding_leaf
from clew.replay.passages import (
    accepted_updates,
    brings_signals_next,
    is_last_recorded,
    is_of_task,
    next_of,
    position_of,
    recorded_requests,
)
from clew.replay.resolutions import RESOLVE, Resolutions
from clew.replay.runtime import WorkflowRuntime, _Continue
from clew.replay.values import FailureConverter, Values, from_header
from clew.service.requests import AnswerQueryRequest, WorkflowTask
from clew.workflow import unsafe
from clew.workflow._definition import Definition
from clew.workflow._interceptor import ExecuteWorkflowInput

_log: Final = logging.getLogger("clew.workflow")

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

_ENDS_WITHOUT_STEPS: Final = (
    e.WorkflowTaskScheduled,
    e.WorkflowExecutionPaused,
    e.WorkflowExecutionTerminated,
    e.WorkflowExecutionTimedOut,
)
"""Events after the last workflow task that was applied which tell why local activities may be open there."""

_UNSPECIFIED: Final = VersioningBehavior.UNSPECIFIED

_GATHERING: Final[type[Any]] = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]

ordering.install()
unsafe.set_guard_suspension(guard.suspended)


@final
class WorkflowMachine:
    """One run.

    Args:
        definition: The workflow.
        namespace: Of the run.
        task_queue: Of the worker, for requests that name none.
        workflow_id: Of the run.
        run_id: Of the run.
        workflow_type: Of the run; another than the definition's name if that is dynamic.
        payload_converter: Values to payloads.
        failure_converter: Exceptions to failures.
        limits: Of the namespace.
        options: Of the worker.
        traces_sites: Note the source line of each request (slow; see `Ledger`).
    """

    # What many runs neither set nor look at stands here, and not in each; what each looks at is read faster there.
    _cancels_after_release = False
    _is_cancel_kept = False
    """Whether the cancellation reaches `run` in any case, be it swallowed further in."""
    _is_cancel_requested = False

    def __init__(
        self,
        *,
        definition: Definition,
        namespace: str,
        task_queue: str,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        payload_converter: PayloadConverter,
        failure_converter: FailureConverter,
        limits: Limits = LIMITS_DEFAULT,
        options: MachineOptions | None = None,
        traces_sites: bool = False,
    ) -> None:
        self._options = options or MachineOptions()
        self._definition = definition
        self._label = f"{workflow_type} {workflow_id}"
        values = Values(payload_converter, failure_converter, limits)
        self._ledger = Ledger(self._where, traces_sites=traces_sites)
        self._runtime = WorkflowRuntime(
            definition, namespace, task_queue, workflow_id, run_id, workflow_type, values, self._ledger,
            self._options, self._cancel_again,
        )  # fmt: skip
        self._loop: WorkflowLoop = self._runtime.loop
        self._main: asyncio.Task[Any] | None = None
        self._close: requests.Pending | None = None
        self._holds_main = self._cancels_again = self._is_broken = False
        self.buried_count = 0
        self._is_activating = False
        """Whether the latest activation can still go on: its requests are neither sent nor recorded."""
        self._is_inside = False
        """Whether the last event applied lies between the start and the end of a workflow task."""
        self._open_task: WorkflowTask | None = None
        self._offered_count = 0
        """Requests of the open task that have been given to the worker as `ActivationResult.unrecorded_markers`."""
        self.cached_through_event_id = 0
        """The start of the last workflow task that has been applied; the events of a partial task begin right after."""
        self._acceptances: dict[str, UpdateAcceptance] = {}
        self._admitted: dict[str, e.UpdateRequest] = {}
        self._resolutions = Resolutions(self._ledger, self._loop, values)
        self._is_guarded = self._options.is_guarded
        if self._is_guarded:
            _install_guard(definition)

    # --- tasks ---------------------------------------------------------------------------------------------

    def activate(self, task: WorkflowTask) -> ActivationResult:
        """Apply a workflow task and give its answer. Runs user code; never raises for what that does."""
        assert not self._is_broken, "a machine is not used again after its activation failed or it was evicted"
        before = self._loop.enter()
        if self._is_guarded:
            guard.enter(self._label, _ACTIVATE)
        try:
            return self._activate(task)
        except NondeterminismError as error:
            return self._fail_nondeterministic(task, self._located(error, task.events))
        except Exception as error:  # noqa: BLE001 (whatever user code raises fails its task, with that as the reason)
            return self._fail(task, error, e.WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE)
        finally:
            if self._is_guarded:
                guard.exit()
            self._loop.leave(before)

    def replay(self, events: Sequence[e.Event], *, is_whole: bool = False) -> None:
        """Replay a recorded history, wherever it ends, and compare it with what the code does.

        Args:
            events: From the first on.
            is_whole: That nothing is cut off, so that a request without an event at the end is a mismatch too.

        Raises:
            NondeterminismError: Code and history do not fit each other.
            Exception: What the code raised that is no failure of the run.
        """
        before = self._loop.enter()
        if self._options.is_guarded:
            guard.enter(self._label, _REPLAY)
        try:
            rest = self._feed(events, 0, ())
            self._take(rest)
            if is_whole:
                self._check_end(events[-1].event_id if events else 0, rest)
        except NondeterminismError as error:
            raise self._located(error, events, is_whole=is_whole) from None
        finally:
            if self._options.is_guarded:
                guard.exit()
            self._loop.leave(before)

    def _check_end(self, event_id: int, rest: Sequence[e.Event]) -> None:
        """Make sure that nothing the code asked for is missing at the end of a whole history."""
        self._ledger.check_end(event_id)
        is_over = self._is_activating or self._close is not None
        if not is_over and not any(isinstance(event, _ENDS_WITHOUT_STEPS) for event in rest):
            self._runtime.local.check_end(event_id)

    def evict(self) -> None:
        """Leave the cache: forget the run without running any of its code, in bounded time."""
        if self._loop.is_dead:
            return
        self._is_broken = True
        roots = self._loop.clear()
        roots += list(self._runtime.conditions)
        timers = [started.timer for started in self._ledger.open.timers.values()]
        for timer in timers:
            roots += (timer.callback, timer.args)
        instance = self._runtime.instance()
        attributes = getattr(instance, "__dict__", None)
        if attributes:
            roots.append(attributes)
        if instance is not None:
            roots.append(instance)
        if roots:
            bury(roots, self._note_buried, self._loop)
        self._runtime.conditions.clear()
        self._main = None
        # The parts refer to each other all round. Taken apart they are freed at once, without the cycle collector,
        # which would otherwise spend a third of a busy worker's time on runs that are over.
        runtime = self._runtime
        for timer in timers:
            timer.pending = None
        for part in (runtime.used_handlers, runtime.out, runtime.local, self._ledger, runtime):
            if part is not None:
                vars(part).clear()

    def _note_buried(self, count: int) -> None:
        self.buried_count = count

    @property
    def tasks_count(self) -> int:
        """The number of tasks of the run that have not ended; eviction takes the longer the more there are."""
        return len(self._loop.tasks)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Give the tasks of the run that have not ended, in the order of their creation."""
        return list(self._loop.tasks)

    def stack(self) -> str:
        """Give the stacks of all waiting coroutines, with source lines."""
        return stacks.stack_text(self._loop.tasks)

    def waiting_on(self) -> tuple[str, ...]:
        """Give one line for each thing the run waits for."""
        waiting, handlers = stacks.waiting_on(self._loop.tasks), self._runtime.used_handlers
        return waiting if handlers is None else (*waiting, *handlers.undelivered())

    @property
    def _handlers(self) -> Handlers:
        return self._runtime.handlers

    @property
    def applied_event_id(self) -> int:
        """The last event that has been applied; grows while a history is."""
        return self._runtime.applied_event_id

    @property
    def is_closed(self) -> bool:
        """Whether the run has asked to end."""
        return self._close is not None

    def _activate(self, task: WorkflowTask) -> ActivationResult:
        is_query_only = task.query is not None
        runtime = self._runtime
        if runtime.used_handlers is not None:
            self._acceptances.clear()
            runtime.used_handlers.rejections.clear()
        rest: Sequence[e.Event] = ()
        if not self._run_usual(task):
            rest = self._feed(task.events, 0 if is_query_only else task.started_event_id, task.messages)
        if task.query is not None:
            result = self._answer(task.query)
            return ActivationResult(
                completion=AnswerQueryRequest(token=task.token, result=result),
                is_closed=self.is_closed,
                is_replaying=True,
            )
        if rest or self.cached_through_event_id != task.started_event_id:
            raise RuntimeError(
                f"The workflow task of {self._label} names event {task.started_event_id} as its start, but its events "
                f"end at {task.events[-1].event_id if task.events else 'none'} after {self.cached_through_event_id}."
            )
        self._open_task = task
        self._offered_count = 0
        if not runtime.local.open:
            return self._answer_task(task)
        if task.queries or task.messages or not self._can_wait():
            return self._answer_task(task)
        return self._wait_for_local_activities()

    # --- local activities ----------------------------------------------------------------------------------------

    def take_recorded(
        self,
        outcomes: Sequence[LocalActivityOutcome],
        *,
        last_event_id: int,
        event_time: datetime,
        is_end_wanted: bool = False,
    ) -> ActivationResult:
        """Take outcomes of local activities that have been recorded; on a workflow thread, like `activate`.

        Args:
            outcomes: In the order of their markers.
            last_event_id: Of the last marker.
            event_time: Of the markers.
            is_end_wanted: Something waits for the open task to be answered.

        Returns:
            The answer to the open task, or what else is to be run before it can be given.
        """

        def take() -> None:
            # What was given to the worker stands in history ahead of them.
            self._ledger.forget_first(self._offered_count)
            self._offered_count = 0
            self._runtime.applied_event_id = last_event_id
            self._set_time(event_time)
            local = self._runtime.local
            for outcome in outcomes:
                local.take_recorded(outcome)
                self._settle()
                local.epoch += 1

        return self._go_on(take, is_end_wanted=is_end_wanted)

    def finish_local_activity(self, outcome: LocalActivityOutcome) -> ActivationResult:
        """Take the outcome of a local activity in a batch, which leaves with the task; see `take_recorded`."""

        def take() -> None:
            local = self._runtime.local
            local.finish(outcome)
            self._settle()
            local.epoch += 1

        return self._go_on(take)

    def extend_task(self) -> ActivationResult | None:
        """Answer the open task because its time runs out, and ask for another; its local activities run on.

        Returns:
            The answer; None if no task is open.
        """
        return self._answer_task(self._open_task) if self._open_task is not None else None

    def _go_on(self, take: Callable[[], None], *, is_end_wanted: bool = False) -> ActivationResult:
        assert not self._is_broken, "a machine is not used again after its activation failed or it was evicted"
        task = self._open_task
        assert task is not None, "outcomes are taken while a task is open"
        before = self._loop.enter()
        if self._is_guarded:
            guard.enter(self._label, _GO_ON)
        try:
            take()
            if is_end_wanted or not self._runtime.local.open or not self._can_wait():
                return self._answer_task(task)
            return self._wait_for_local_activities()
        except Exception as error:  # noqa: BLE001 (whatever user code raises fails its task, with that as the reason)
            return self._fail(task, error, e.WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE)
        finally:
            if self._is_guarded:
                guard.exit()
            self._loop.leave(before)

    def _can_wait(self) -> bool:
        """Whether nothing but records of local activities would be held up."""
        if self._close is not None:
            return False
        new = self._ledger.asked_since(self._offered_count)
        return not new or all(isinstance(request, RecordLocalActivity) for request in new)

    def _wait_for_local_activities(self) -> ActivationResult:
        local, ledger = self._runtime.local, self._ledger
        new = ledger.asked_since(self._offered_count)
        markers = [r.to_command() for r in new if isinstance(r, RecordLocalActivity)] if new else []
        self._offered_count = ledger.asked_count
        return ActivationResult(
            completion=None,
            local_activities=local.take_requests(),
            cancelled_local_activities=local.take_cancellations(),
            forgotten_local_activities=local.take_forgotten(),
            unrecorded_markers=tuple(markers),
        )

    def _answer_task(self, task: WorkflowTask) -> ActivationResult:
        runtime, options = self._runtime, self._options
        local, handlers = runtime.local, runtime.used_handlers
        self._open_task = None
        self._is_activating = self._is_inside = False
        is_closed = self._close is not None
        asked = self._ledger.finish(self._close)
        own = self._definition.versioning_behavior
        completion = CompleteWorkflowTaskRequest(
            token=task.token,
            commands=(asked[0].to_command(),) if len(asked) == 1 else to_commands(asked),
            acceptances=tuple(self._acceptances.values()) if self._acceptances else (),
            rejections=tuple(handlers.rejections) if handlers is not None and handlers.rejections else (),
            completions=_completed_updates(asked) if handlers is not None and handlers.has_had_updates else (),
            query_results=tuple([self._answer(query) for query in task.queries]) if task.queries else (),
            force_create_new_workflow_task=not is_closed and local.has_open,
            versioning_behavior=own if own is not _UNSPECIFIED else options.versioning_behavior,
            waiting_on=() if is_closed or not options.reports_waiting else self.waiting_on(),
            identity=options.identity,
            is_sticky=options.is_sticky and not is_closed,
            deployment_version=options.deployment_version,
        )
        if not local.has_news:
            return ActivationResult(completion=completion, is_closed=is_closed, is_answer_alone=True)
        return ActivationResult(
            completion=completion,
            is_closed=is_closed,
            local_activities=() if is_closed else local.take_requests(),
            cancelled_local_activities=local.take_cancellations(),
            forgotten_local_activities=local.take_forgotten(),
        )

    def _answer(self, query: Any) -> QueryResult:
        runtime = self._runtime
        outer, runtime.is_querying = runtime.is_replaying_now, True
        runtime.is_replaying_now = True
        try:
            return self._handlers.answer(query)
        finally:
            runtime.is_replaying_now, runtime.is_querying = outer, False

    # --- history -------------------------------------------------------------------------------------------

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
            self._run_task(events, cast(e.WorkflowTaskStarted, events[-1]), True, (), messages)
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
                    runtime.recorded_patches.add(patch_id)
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

    def _apply(self, job: e.Event) -> None:
        resolve = RESOLVE.get(type(job))
        if resolve is not None:
            resolve(self._resolutions, job)
        else:
            _APPLY[type(job)](self, job)

    def _apply_messages(self, jobs: list[e.Event], updates: list[tuple[int, Any]]) -> None:
        """Apply events in order, updates at their places; see the module for the order."""
        hold_through = max((job.event_id for job in jobs if type(job) is e.WorkflowExecutionSignaled), default=0)
        if self._main is None and updates:
            hold_through = max(hold_through, updates[-1][0])
        self._holds_main = hold_through > 0
        if self._holds_main and self._main is not None:
            self._loop.hold(self._main)
        for job in jobs:
            while updates and updates[0][0] < job.event_id:
                self._apply_update(updates.pop(0)[1])
                self._settle()
            if self._holds_main and job.event_id > hold_through:
                self._release()
            self._apply(job)
            self._settle()
        for position, update in updates:
            if self._holds_main and position > hold_through:
                self._release()
            self._apply_update(update)
            self._settle()
        if self._holds_main:
            self._release()

    def _release(self) -> None:
        self._holds_main = False
        self._loop.release()
        self._settle()
        if self._cancels_after_release:
            self._cancels_after_release = False
            self._cancel_main()
            self._settle()

    def _settle(self) -> None:
        """Run the code until it can go no further; then see whether it has come to its end."""
        loop, runtime = self._loop, self._runtime
        while True:
            loop.run_until_idle()
            if runtime.conditions and runtime.check_conditions():
                continue
            if not self._cancels_again:
                break
            self._cancels_again = runtime.is_stirred = False
            if self._main is not None and not self._main.done():
                self._main.uncancel()
                self._cancel_main()
        if runtime.error is not None:
            raise runtime.error
        if self._close is None:
            if runtime.failure is not None:
                self._end_with(runtime.failure)
            elif self._main is not None and self._main.done():
                self._end(self._main)

    def _is_main_done(self) -> bool:
        return self._main is None or self._main.done()

    # --- what is applied -----------------------------------------------------------------------------------

    def _apply_started(self, event: e.WorkflowExecutionStarted) -> None:
        runtime, definition = self._runtime, self._definition
        runtime.first_task_time = self._loop.moment
        runtime.begin(event)
        try:
            args = self._run_arguments(event)
            instance = self._loop.context.copy().run(definition.cls, *(args if definition.has_init else ()))
            runtime.set_instance(instance)
        except Exception as error:  # noqa: BLE001 (the outcome rule decides)
            self._end_with(error)
            return
        if runtime.inbound_chain is not None:
            asked = ExecuteWorkflowInput(definition.cls, definition.run_fn, args, from_header(event.header))
            work = runtime.inbound_chain.execute_workflow(asked)
        else:
            work = cast("Coroutine[Any, Any, Any]", definition.run_fn(instance, *args))
        self._main = self._loop.create_task(work, name="run", context=self._main_context())
        if self._holds_main:
            self._loop.hold(self._main)

    def _main_context(self) -> Any:
        context = self._loop.context.copy()
        if self._runtime.inbound_chain is not None:
            context.run(is_in_interceptor.set, True)
        return context

    def _run_arguments(self, event: e.WorkflowExecutionStarted) -> Sequence[Any]:
        if self._definition.is_dynamic:
            return ([RawValue(from_stored(stored)) for stored in event.input],)
        what = f"workflow {self._runtime.workflow_type!r}"
        return decode_arguments(self._runtime.values.payload_converter, event.input, self._definition.signature, what)

    def _apply_signal(self, event: e.WorkflowExecutionSignaled) -> None:
        self._handlers.apply_signal(event)

    def _apply_cancel_requested(self, event: e.WorkflowExecutionCancelRequested) -> None:
        self._runtime.cancel_reason = event.cause
        self._is_cancel_requested = True
        if self._holds_main:
            self._cancels_after_release = True
        else:
            self._cancel_main()

    def _cancel_main(self) -> None:
        if self._main is not None:
            self._is_cancel_kept = _awaits_gather(self._main)
            self._main.cancel(RUN_CANCELLED)

    def _cancel_again(self) -> None:
        self._cancels_again = self._is_cancel_requested and not self._is_cancel_kept
        self._runtime.is_stirred = True

    def _apply_task_failed(self, event: e.WorkflowTaskFailed) -> None:
        if event.cause is e.WorkflowTaskFailedCause.RESET_WORKFLOW and event.new_run_id:
            self._runtime.reseed(event.new_run_id)

    def _apply_update_admitted(self, event: e.WorkflowExecutionUpdateAdmitted) -> None:
        self._admitted[event.request.update_id] = event.request

    def _apply_update(self, update: Any) -> None:
        """Apply an update that was sent with the task, or that history says was accepted then."""
        if isinstance(update, e.WorkflowExecutionUpdateAccepted):
            request = update.accepted_request or self._admitted.get(update.protocol_instance_id)
            if request is None:
                raise RuntimeError(
                    f"Event {update.event_id} accepts update {update.protocol_instance_id!r}, but history has no "
                    "request of that id."
                )
            self._handlers.apply_update(request, is_recorded=True)
            return
        acceptance = self._handlers.apply_update(update.request, is_recorded=False)
        if acceptance is not None:
            self._acceptances[acceptance.message_id] = UpdateAcceptance(
                message_id=acceptance.message_id,
                update_id=acceptance.update_id,
                request=update.request,
                sequencing_event_id=position_of(update, self._runtime.task_event),
            )

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, main: asyncio.Task[Any]) -> None:
        try:
            result = main.result()
        except BaseException as error:  # noqa: BLE001 (the outcome rule decides)
            self._end_with(error)
            return
        values = self._runtime.values
        payloads = (
            values.encode((result,), "result of workflow", self._runtime.workflow_type) if result is not None else ()
        )
        self._close_with(requests.Complete(payloads))

    def _end_with(self, error: BaseException) -> None:
        types = self._runtime.failure_types
        outcome = decide_outcome(error, is_cancel_requested=self._is_cancel_requested, failure_types=types)
        if outcome is Outcome.TASK_FAILURE:
            leaf = deciding_leaf(error, types)
            if leaf is not error:
                leaf.add_note("It decided that the workflow task fails, not the run, since it is no failure exception.")
            if isinstance(error, Exception):
                raise error
            raise RuntimeError(f"Workflow code raised {error!r}.") from error
        if outcome is Outcome.CONTINUE_AS_NEW:
            assert isinstance(error, _Continue), "only workflow.continue_as_new makes it"
            self._close_with(requests.ContinueAsNew(error.command))
        elif outcome is Outcome.CANCEL:
            notes = notes_of(error)
            what = "notes of the cancellation"
            details = self._runtime.values.encode(notes, what, self._runtime.workflow_type) if notes else ()
            self._close_with(requests.Cancel(details))
        else:
            self._close_with(requests.Fail(self._runtime.values.to_failure(error)))

    def _close_with(self, close: requests.Pending) -> None:
        close.born = self._ledger.activation
        self._close = close
        if not self._runtime.is_replaying_now and self._runtime.used_handlers is not None:
            self._runtime.used_handlers.warn_unfinished()

    def _fail_nondeterministic(self, task: WorkflowTask, error: NondeterminismError) -> ActivationResult:
        is_failing = self._options.nondeterminism_policy is NondeterminismPolicy.FAIL or isinstance(
            error, self._runtime.failure_types
        )
        if is_failing and task.query is None and not isinstance(error, RestrictedWorkflowAccessError):
            self._is_broken = True
            fail = requests.Fail(self._runtime.values.to_failure(error))
            completion = CompleteWorkflowTaskRequest(token=task.token, commands=(fail.to_command(),))
            return ActivationResult(completion=completion, is_closed=True)
        return self._fail(task, error, e.WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR)

    def _fail(self, task: WorkflowTask, error: Exception, cause: e.WorkflowTaskFailedCause) -> ActivationResult:
        self._is_broken = True
        failure = self._runtime.values.to_failure(error)
        if task.query is not None:
            result = QueryResult(query_id=task.query.query_id, failure=failure)
            return ActivationResult(completion=AnswerQueryRequest(token=task.token, result=result), is_replaying=True)
        completion = FailWorkflowTaskRequest(token=task.token, cause=cause, failure=failure)
        return ActivationResult(completion=completion)

    def _located(
        self, error: NondeterminismError, events: Sequence[e.Event], *, is_whole: bool = False
    ) -> NondeterminismError:
        """Give the same mismatch with its source line, by replaying once more with lines traced."""
        begins_at_start = bool(events) and events[0].event_id == 1
        if self._ledger.traces_sites or isinstance(error, RestrictedWorkflowAccessError) or not begins_at_start:
            return error
        runtime = self._runtime
        twin = WorkflowMachine(
            definition=self._definition,
            namespace=runtime.namespace,
            task_queue=runtime.task_queue,
            workflow_id=runtime.workflow_id,
            run_id=runtime.run_id,
            workflow_type=runtime.workflow_type,
            payload_converter=runtime.values.payload_converter,
            failure_converter=runtime.values.failure_converter,
            limits=runtime.values.limits,
            options=self._options,
            traces_sites=True,
        )
        try:
            twin.replay(events, is_whole=is_whole)
        except NondeterminismError as located:
            return located
        finally:
            twin.evict()
        return error

    def _where(self) -> str:
        lines = stacks.waiting_on(self._loop.tasks)
        if lines:
            return lines[0].partition(" @ ")[2]
        code = self._definition.run_fn.__code__
        return f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"


_ONE_ACTIVITY: Final = (
    e.WorkflowTaskCompleted,
    e.ActivityTaskScheduled,
    e.ActivityTaskStarted,
    e.ActivityTaskCompleted,
    e.WorkflowTaskScheduled,
    e.WorkflowTaskStarted,
)
"""What a run that does one thing after the other is told at each task."""

_ACTIVATE: Final = WorkflowMachine.activate.__code__
_REPLAY: Final = WorkflowMachine.replay.__code__
_GO_ON: Final = WorkflowMachine._go_on.__code__
"""Where the guard begins."""

_APPLY: Final[dict[type[e.BaseEvent], Callable[[WorkflowMachine, Any], None]]] = {
    e.WorkflowExecutionStarted: WorkflowMachine._apply_started,
    e.WorkflowExecutionSignaled: WorkflowMachine._apply_signal,
    e.WorkflowExecutionCancelRequested: WorkflowMachine._apply_cancel_requested,
    e.WorkflowExecutionUpdateAdmitted: WorkflowMachine._apply_update_admitted,
    e.WorkflowTaskFailed: WorkflowMachine._apply_task_failed,
}
"""What is done with events that answer no request."""

_MEANS_NOTHING: Final = 0
_RECORDS_REQUEST: Final = 1
_IS_APPLIED: Final = 2
_ROLES: Final[dict[type[Any], int]] = {
    e.WorkflowTaskStarted: _MEANS_NOTHING,
    e.WorkflowTaskCompleted: _MEANS_NOTHING,
    **dict.fromkeys(_IGNORED, _MEANS_NOTHING),
    **dict.fromkeys(COMMAND_EVENTS, _RECORDS_REQUEST),
    **dict.fromkeys((*_APPLY, *RESOLVE), _IS_APPLIED),
}


def _completed_updates(asked: Sequence[requests.Pending]) -> tuple[UpdateCompletion, ...]:
    return tuple(
        [
            UpdateCompletion(message_id=r.message_id, update_id=r.update_id, outcome=r.outcome)
            for r in asked
            if isinstance(r, requests.CompleteUpdate)
        ]
    )


def _awaits_gather(task: Any) -> bool:
    """Whether a gathering stands between a task and what it waits for: that raises when all its parts have ended."""
    waiter = task
    while waiter is not None:
        if isinstance(waiter, _GATHERING):
            return True
        waiter = getattr(waiter, "_fut_waiter", None)
    return False


_guarded_modules_count = 0


def _install_guard(definition: Definition) -> None:
    """Set the guard up; again when modules came in since, which may have bound what it stands in for."""

    global _guarded_modules_count
    count = len(sys.modules)
    if count != _guarded_modules_count:
        _guarded_modules_count = count
        guard.install()
        guard.adopt(definition.cls.__module__)
