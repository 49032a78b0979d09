"""The workflow machine: one run's code against its history.

Owns: `WorkflowMachine`: the answer to each workflow task, and the life of the machine. It stands on two floors:
`FollowingMachine` (``following``) knows which events belong to which workflow task, what is replayed and what is live;
`ApplyingMachine` (``applying``) knows what each event does to the code. Never, on any floor: reads a clock, waits, or
touches a thread; knows queues, leases or the store.

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
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, final

from clew.common import VersioningBehavior
from clew.converter.payload_converter import PayloadConverter
from clew.exceptions import NondeterminismError, RestrictedWorkflowAccessError
from clew.model import events as e
from clew.model.inputs import (
    CompleteWorkflowTaskRequest,
    FailWorkflowTaskRequest,
    QueryResult,
    UpdateCompletion,
)
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.replay import commands as requests
from clew.replay import guard, ordering, stacks
from clew.replay.burial import bury
from clew.replay.following import FollowingMachine
from clew.replay.local_activities import RecordLocalActivity
from clew.replay.matching import to_commands
from clew.replay.options import ActivationResult, LocalActivityOutcome, MachineOptions, NondeterminismPolicy
from clew.replay.values import FailureConverter
from clew.service.requests import AnswerQueryRequest, WorkflowTask
from clew.workflow import unsafe
from clew.workflow._definition import Definition

_ENDS_WITHOUT_STEPS: Final = (
    e.WorkflowTaskScheduled,
    e.WorkflowExecutionPaused,
    e.WorkflowExecutionTerminated,
    e.WorkflowExecutionTimedOut,
)
"""Events after the last workflow task that was applied which tell why local activities may be open there."""

_UNSPECIFIED: Final = VersioningBehavior.UNSPECIFIED

ordering.install()
unsafe.set_guard_suspension(guard.suspended)


@final
class WorkflowMachine(FollowingMachine):
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
        super().__init__(
            definition, namespace, task_queue, workflow_id, run_id, workflow_type, payload_converter, failure_converter,
            limits, options or MachineOptions(), traces_sites,
        )  # fmt: skip
        self._label = f"{workflow_type} {workflow_id}"
        self._is_broken = False
        self.buried_count = 0
        self._open_task: WorkflowTask | None = None
        self._offered_count = 0
        """Requests of the open task that have been given to the worker as `ActivationResult.unrecorded_markers`."""
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
        self._ledger.let_go()
        runtime.let_go_of_rows()
        for part in (runtime.used_handlers, runtime.out, runtime):
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


_ACTIVATE: Final = WorkflowMachine.activate.__code__
_REPLAY: Final = WorkflowMachine.replay.__code__
_GO_ON: Final = WorkflowMachine._go_on.__code__
"""Where the guard begins."""


def _completed_updates(asked: Sequence[requests.Pending]) -> tuple[UpdateCompletion, ...]:
    return tuple(
        [
            UpdateCompletion(message_id=r.message_id, update_id=r.update_id, outcome=r.outcome)
            for r in asked
            if isinstance(r, requests.CompleteUpdate)
        ]
    )


_guarded_modules_count = 0


def _install_guard(definition: Definition) -> None:
    """Set the guard up; again when modules came in since, which may have bound what it stands in for."""

    global _guarded_modules_count
    count = len(sys.modules)
    if count != _guarded_modules_count:
        _guarded_modules_count = count
        guard.install()
        guard.adopt(definition.cls.__module__)
