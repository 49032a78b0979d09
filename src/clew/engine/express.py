"""The express way of the inputs that come most: starts, results of activities, answers to workflow tasks.

Owns: the choice between the express and the general way, express submissions, and what follows from their commit.
Never: decides (``core.express`` does), or does anything the general way (``funnel``, ``offers``) would not have done.

How it works: each method looks whether its input is the usual one, on a plain run that is in memory, and whether a
worker waits for what it makes ready. If anything is not so, it answers None, nothing is changed, and the input takes
the general way. Otherwise one record is made: the events, the task that goes out with the commit, and the reply to the
caller. Should the commit fail, that record is turned into a general one, which knows all about failed commits.

That a run is plain is asked once; it stays so while only express transitions happen to it, which the count of its
submissions tells.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from clew.core import express, express_markers
from clew.core.pending import PendingWorkflowTask
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.attention import Attention
from clew.engine.early import EarlyTasks, worthless
from clew.engine.early_causes import ANSWERED, BEGUN, DURABLE
from clew.engine.express_tasks import (
    ExpressSubmission,
    make_activity_task,
    make_workflow_task,
    offer_of,
    tasks_of,
)
from clew.engine.funnel import Funnel, Operation, OpSubmission
from clew.engine.history import HistoryWaiters
from clew.engine.ids import Ids
from clew.engine.matching import Matcher, Session
from clew.engine.namespaces import Namespace, Namespaces
from clew.engine.offers import OfferDesk, with_queries
from clew.engine.peers import Peers
from clew.engine.pipeline import CommitPipeline, Outcome
from clew.engine.runs import TAIL_EVENTS_MAX, RunCache, RunEntry
from clew.engine.versions import Versions
from clew.model.commands import CompleteWorkflowExecution, ScheduleActivityTask, StartTimer
from clew.model.events import ActivityTaskScheduled, Event, TimerStarted
from clew.model.inputs import (
    CompleteActivityRequest,
    CompleteWorkflowTaskRequest,
    RecordMarkersRequest,
    StartWorkflowRequest,
    TaskToken,
)
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import CommitStatus, StoreError
from clew.service.reply import Reply
from clew.service.requests import ActivityTask, RecordMarkersResponse, StartWorkflowResponse, WorkflowTask

if TYPE_CHECKING:
    from clew.engine.starts import Starter

_COMMITTED: Final = CommitStatus.COMMITTED
_NOTHING_ELSE: Final = Transition()
"""What an express transition is to those who look for effects: it has none that concern anybody else."""


class Express:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        ids: Ids,
        cache: RunCache,
        pipeline: CommitPipeline,
        funnel: Funnel,
        desk: OfferDesk,
        matcher: Matcher,
        versions: Versions,
        namespaces: Namespaces,
        attention: Attention,
        waiters: HistoryWaiters,
        peers: Peers,
        early: EarlyTasks,
        starter: Starter,
        general_operation: Callable[[Any, Reply[Any]], Operation],
        wake_askers: Callable[[RunEntry], None],
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._ids = ids
        self._cache = cache
        self._pipeline = pipeline
        self._funnel = funnel
        self._desk = desk
        self._matcher = matcher
        self._versions = versions
        self._namespaces = namespaces
        self._attention = attention
        self._waiters = waiters
        self._peers = peers
        self._early = early
        self._has_peers = not peers.is_alone
        self._starter = starter
        self._general_operation = general_operation
        self._wake_askers = wake_askers
        self._on_settled: Callable[[Any, Outcome], None] = self._settle

    # --- inputs -----------------------------------------------------------------------------------------------------

    def start_workflow(self, request: StartWorkflowRequest) -> Reply[StartWorkflowResponse] | None:
        """Start a run whose workflow id is believed to be new, with its first task handed over."""
        namespace = self._namespaces.known(request.namespace)
        if (
            namespace is None
            or self._versions.has_routes
            or not express.is_usual_start(request, namespace.bounds)
            or self._cache.get_open(request.namespace, request.workflow_id) is not None
        ):
            return None
        session = self._matcher.take_workflow_session(
            request.namespace, request.task_queue, request.workflow_type, None
        )
        if session is None:
            return None
        run_id = self._entropy.uuid7()
        state, events = express.start_run(request, run_id, self._clock.now(), session.taker)
        entry = RunEntry(state, self._starter.shard_of(request), self._ids.next_run_key())
        task = state.workflow_task
        assert task is not None, "the first workflow task is handed over"
        sent = make_workflow_task(entry, task, events, is_partial=False)
        self._cache.add(entry)
        answer = StartWorkflowResponse(run_id=run_id, first_execution_run_id=run_id)
        return self._submit(entry, events, request, task.start_to_close_timeout, session, sent, answer=answer)

    def complete_activity(self, request: CompleteActivityRequest) -> Reply[None] | None:
        """Record the result of an activity, with the next workflow task handed over to the session that has the run."""
        token = request.token
        entry = self._cache.get(token.run_key) if type(token) is TaskToken else None
        if entry is None:
            return None
        assert type(token) is TaskToken, "only a token has led to the entry"
        state = entry.state
        activity = state.activities.get(token.scheduled_event_id)
        if (
            activity is None
            or activity.lease_id != token.lease_id
            or activity.attempt != token.attempt
            or activity.started_time is None
            or activity.is_closing
            or state.workflow_task is not None
            or (namespace := self._namespace_of(entry, token)) is None
            or not express.is_usual_result(request, namespace.bounds)
        ):
            return None
        first_event_id = state.previous_started_event_id + 1
        if first_event_id < entry.tail_from:
            return None
        session = self._matcher.take_cached_session(state.sticky_session)
        if session is None:
            return None
        try:
            now, bounds = self._clock.now(), namespace.bounds
            events = express.complete_activity(state, activity, request, now, session.taker, bounds)
            entry.scheduled.pop(activity.scheduled_event_id, None)
            task = entry.state.workflow_task
            assert task is not None, "the next workflow task is handed over"
            kept = entry.tail[first_event_id - entry.tail_from :]
            sent = make_workflow_task(entry, task, kept + events, is_partial=True)
            return self._submit(entry, events, request, task.start_to_close_timeout, session, sent)
        except Exception as error:  # noqa: BLE001 - as in the general way: a bug parks this run and leaves the others be
            return self._park(entry, request, error)

    def complete_workflow_task(self, request: CompleteWorkflowTaskRequest) -> Reply[None] | None:
        """Take the commands of a workflow task: activities, each handed over, or the result of the run."""
        token = request.token
        entry = self._cache.get(token.run_key)
        if entry is None:
            return None
        state = entry.state
        task = _task_of(state, token)
        commands = request.commands
        if (
            task is None
            or not commands
            or not express.is_usual_answer(request)
            or (namespace := self._namespace_of(entry, token)) is None
        ):
            return None
        if type(commands[-1]) is CompleteWorkflowExecution:
            return self._complete_run(entry, task, request, namespace)
        if type(commands[0]) is StartTimer and len(commands) == 1:
            return self._start_timer(entry, task, request, namespace)
        return self._schedule_activities(entry, task, request, namespace)

    def record_markers(self, request: RecordMarkersRequest) -> Reply[RecordMarkersResponse] | None:
        """Record markers while their workflow task goes on."""
        token = request.token
        entry = self._cache.get(token.run_key)
        if entry is None:
            return None
        state = entry.state
        task = _task_of(state, token)
        if (
            task is None
            or entry.early is not None
            or (namespace := self._namespace_of(entry, token)) is None
            or not express_markers.is_usual_record(request, state, task, namespace.bounds)
        ):
            return None
        try:
            now = self._clock.now()
            events = express_markers.record_markers(state, task, request, now)
            answer = RecordMarkersResponse(last_event_id=task.recorded_event_id, event_time=now)
            timeout = task.start_to_close_timeout
            reply = self._submit(entry, events, request, timeout, None, None, answer=answer, is_parked=False)
            if len(entry.tail) > TAIL_EVENTS_MAX:
                entry.trim_tail()
            return reply
        except Exception as error:  # noqa: BLE001 - likewise
            return self._park(entry, request, error)

    def _complete_run(
        self, entry: RunEntry, task: PendingWorkflowTask, request: CompleteWorkflowTaskRequest, namespace: Namespace
    ) -> Reply[None] | None:
        command = request.commands[0]
        if (
            type(command) is not CompleteWorkflowExecution
            or not express.may_close(entry.state)
            or not express.is_usual_close(command, namespace.bounds)
        ):
            return None
        try:
            events = express.complete_run(entry.state, task, request, command, self._clock.now())
            return self._submit(entry, events, request, None, None, None)
        except Exception as error:  # noqa: BLE001 - likewise
            return self._park(entry, request, error)

    def _start_timer(
        self, entry: RunEntry, task: PendingWorkflowTask, request: CompleteWorkflowTaskRequest, namespace: Namespace
    ) -> Reply[None] | None:
        command = request.commands[0]
        if type(command) is not StartTimer or not express.is_usual_timer(command, entry.state, namespace.bounds):
            return None
        try:
            events = express.start_timer(entry.state, task, request, command, self._clock.now())
            cached = task.started_event_id if request.is_sticky else 0
            started = events[-1]
            assert type(started) is TimerStarted, "the command starts a timer"
            return self._submit(entry, events, request, started.start_to_fire_timeout, None, None, forget_until=cached)
        except Exception as error:  # noqa: BLE001 - likewise
            return self._park(entry, request, error)

    def _schedule_activities(
        self, entry: RunEntry, task: PendingWorkflowTask, request: CompleteWorkflowTaskRequest, namespace: Namespace
    ) -> Reply[None] | None:
        if len(request.commands) == 1:
            return self._schedule_activity(entry, task, request, namespace)
        state = entry.state
        commands: list[ScheduleActivityTask] = []
        for command in request.commands:
            if type(command) is not ScheduleActivityTask or not express.is_usual_activity(
                command, state, namespace.bounds
            ):
                return None
            commands.append(command)
        if not express.may_schedule(state, commands, namespace.bounds):
            return None
        sessions = self._take_activity_sessions(entry, commands)
        if sessions is None:
            return None
        try:
            now = self._clock.now()
            takers = [session.taker for session in sessions]
            events = express.schedule_activities(state, task, request, commands, now, takers)
            tasks: list[ActivityTask] = []
            timeout: timedelta | None = None
            lease_id = state.lease_count - len(commands)
            for event in events[1:]:
                assert type(event) is ActivityTaskScheduled, "each command asks for an activity"
                lease_id += 1
                tasks.append(make_activity_task(entry, event, lease_id, namespace.secret))
                if timeout is None or event.start_to_close_timeout < timeout:
                    timeout = event.start_to_close_timeout
                entry.scheduled[event.event_id] = event
            others = list(zip(sessions[1:], tasks[1:], strict=True))
            cached = task.started_event_id if request.is_sticky else 0
            return self._submit(
                entry, events, request, timeout, sessions[0], tasks[0], others=others, forget_until=cached
            )
        except Exception as error:  # noqa: BLE001 - likewise
            return self._park(entry, request, error)

    def _schedule_activity(
        self, entry: RunEntry, task: PendingWorkflowTask, request: CompleteWorkflowTaskRequest, namespace: Namespace
    ) -> Reply[None] | None:
        """The same for one activity, which is what most answers ask for."""
        state, command, bounds = entry.state, request.commands[0], namespace.bounds
        if (
            type(command) is not ScheduleActivityTask
            or not express.is_usual_activity(command, state, bounds)
            or len(state.activities) + len(state.timers) >= bounds.activities_max
        ):
            return None
        session = self._matcher.take_activity_session(
            state.namespace, command.task_queue or state.task_queue, command.activity_type, None
        )
        if session is None:
            return None
        try:
            events = express.schedule_activities(state, task, request, (command,), self._clock.now(), (session.taker,))
            event = events[1]
            assert type(event) is ActivityTaskScheduled, "the command asks for an activity"
            sent = make_activity_task(entry, event, state.lease_count, namespace.secret)
            entry.scheduled[event.event_id] = event
            cached = task.started_event_id if request.is_sticky else 0
            return self._submit(
                entry, events, request, event.start_to_close_timeout, session, sent, forget_until=cached
            )
        except Exception as error:  # noqa: BLE001 - likewise
            return self._park(entry, request, error)

    def _take_activity_sessions(self, entry: RunEntry, commands: list[ScheduleActivityTask]) -> list[Session] | None:
        """A session for each command; None, and nothing taken, when one of them has to wait."""
        state, matcher = entry.state, self._matcher
        sessions: list[Session] = []
        for command in commands:
            session = matcher.take_activity_session(
                state.namespace, command.task_queue or state.task_queue, command.activity_type, None
            )
            if session is None:
                for taken in sessions:
                    matcher.give_back_activity(taken)
                return None
            sessions.append(session)
        return sessions

    def _namespace_of(self, entry: RunEntry, token: TaskToken) -> Namespace | None:
        """The namespace of a run whose next transition may be express; None when it must be general."""
        state = entry.state
        if (
            (entry.plain_at != entry.submitted_count and not express.is_plain(state))
            or state.run_id != token.run_id
            or self._versions.has_routes
            or (namespace := self._namespaces.known(state.namespace)) is None
        ):
            return None
        bounds = namespace.bounds
        if state.next_event_id > bounds.events_max or state.history_size_bytes >= bounds.bytes_max:
            return None
        return namespace

    def _submit(
        self,
        entry: RunEntry,
        events: list[Event],
        request: Any,
        timeout: timedelta | None,
        session: Session | None,
        task: WorkflowTask | ActivityTask | None,
        *,
        answer: StartWorkflowResponse | RecordMarkersResponse | None = None,
        others: list[tuple[Session, ActivityTask]] | None = None,
        forget_until: int = 0,
        is_parked: bool | None = None,
    ) -> Reply[Any]:
        entry.tail += events
        due_at = None if timeout is None else events[-1].event_time + timeout
        cause = entry.early
        if (
            type(cause) is ExpressSubmission
            and cause.early == BEGUN
            and entry.open_head is cause
            and cause.more is None
            and cause.unit is None
            and type(request) is CompleteWorkflowTaskRequest
        ):
            # Nothing else has happened to the run since its task was given out: this is the answer to that.
            # Unparametrised: making one of the generic alias costs five times as much.
            rider: Reply[None] = Reply()
            cause.rider = rider
            cause.early = ANSWERED
            cause.events += events
            cause.due_at = due_at
            cause.is_parked = session is None
            cause.session = session
            cause.task = task
            cause.others = others
            cause.forget_until = forget_until
            self._early.note_answered_in_time(cause)
            self._pipeline.release(cause)
            return rider
        entry.plain_at = entry.submitted_count + 1
        submission = ExpressSubmission(
            entry,
            events,
            self._on_settled,
            due_at=due_at,
            is_parked=session is None if is_parked is None else is_parked,
            request=request,
            answer=answer,
            session=session,
            task=task,
            others=others,
            forget_until=forget_until,
        )
        if cause is not None:
            if type(request) is CompleteWorkflowTaskRequest:
                self._early.rest(entry, submission, request.token)
        elif (
            session is not None
            and type(task) is WorkflowTask
            and (sink := session.early_sink) is not None
            and not (entry.queries or entry.queries_on_task)
            and sink.offer_early_workflow_task(task)
        ):
            entry.early = submission
            submission.early = BEGUN
            submission.early_session = session
            self._early.keep_back(submission, session)
            return submission
        self._pipeline.submit(submission)
        return submission

    def _park(self, entry: RunEntry, request: Any, error: Exception) -> Reply[Any]:
        reply: Reply[Any] = Reply()
        self._funnel.park(entry, self._general_operation(request, reply), error)
        return reply

    # --- after the commit -------------------------------------------------------------------------------------------

    def _settle(self, submission: ExpressSubmission, outcome: Outcome) -> None:
        """The pipeline's word on a submission: what `Funnel.settle` and `Engine._changed` do, as far as it applies."""
        if outcome is not _COMMITTED:
            self._lost(submission, outcome)
            return
        entry, session, due_at = submission.entry, submission.session, submission.due_at
        rider = submission.rider
        if rider is not None:
            submission.early = DURABLE
            entry.early = None
            has_task = True
        else:
            has_task = not submission.early or self._early.note_durable(submission)
        if session is None:
            if due_at is None:
                self._cache.mark_closed(entry)
        elif has_task and session.is_attached:
            task = submission.task
            if type(task) is ActivityTask:
                session.sink.offer_activity_task(task)
            elif isinstance(task, WorkflowTask):
                _send_workflow_task(entry, session, task)
        if submission.others is not None:
            for other, also in submission.others:
                if other.is_attached:
                    other.sink.offer_activity_task(also)
        answer = submission.answer
        if entry.queries and type(answer) is RecordMarkersResponse:
            # Whoever asks can only be answered when the workflow task is over.
            answer = structs.replace(answer, is_end_wanted=True)
        submission.set_result(answer)
        if rider is not None:
            rider.set_result(None)
        events = submission.events
        entry.durable_last_event_id = events[-1].event_id
        if due_at is None:
            self._waiters.wake(entry.run_key, is_closed=True)
        else:
            armed_at = entry.armed_at
            if armed_at is None or due_at < armed_at:
                self._attention.arm_at(entry, due_at)
            if submission.forget_until:
                entry.forget_until(submission.forget_until)
            if self._waiters.of_any:
                self._waiters.wake(entry.run_key, is_closed=False)
        if self._has_peers:
            self._peers.on_changed(entry, _NOTHING_ELSE)
        if entry.queries:
            self._wake_askers(entry)

    def _lost(self, submission: ExpressSubmission, outcome: Outcome) -> None:
        """It is not known to be durable: go on as the general way does."""
        entry, request = submission.entry, submission.request
        offers = [offer_of(entry, session, task) for session, task in tasks_of(submission)]
        if submission.rider is not None:
            submission.rider.set_exception(worthless())
        elif submission.early and not (isinstance(outcome, StoreError) and self._early.may_offer_again(submission)):
            # The worker gives the slot back by itself.
            offers = []
        rests_on = submission.rests_on
        if rests_on is not None and rests_on.early != DURABLE:
            self._funnel.lost(OpSubmission(entry, submission.events, self._on_settled, offers=offers), outcome)
            submission.set_exception(worthless())
            return
        if type(request) is StartWorkflowRequest and not isinstance(outcome, StoreError):
            for offer in offers:
                self._desk.withdraw(offer)
            self._starter.start_again(request, submission)
            return
        operation = self._general_operation(request, submission)
        general = OpSubmission(entry, submission.events, self._on_settled, operation=operation, offers=offers)
        self._funnel.lost(general, outcome)


def _task_of(state: ExecutionState, token: TaskToken) -> PendingWorkflowTask | None:
    """The workflow task that this token holds; None when that is over, or is not one in history."""
    task = state.workflow_task
    if (
        task is None
        or task.lease_id != token.lease_id
        or task.scheduled_event_id != token.scheduled_event_id
        or task.attempt != token.attempt
        or not task.started_event_id
        or task.is_virtual
    ):
        return None
    return task


def _send_workflow_task(entry: RunEntry, session: Session, task: WorkflowTask) -> None:
    if entry.queries or entry.queries_on_task:
        task = with_queries(entry, task)
    session.sink.offer_workflow_task(task)
