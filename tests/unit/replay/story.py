"""A small engine for one run, in memory: it turns the machine's answers into history, event by event.

It follows the ordering rules of the real one as far as workflow code can see them, and keeps the whole history, so
that a test can rebuild the run anew (`cold`) or check that a replay fits (`replay_check`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from clew.converter import DataConverter, to_stored_payloads
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure, TimeoutInfo, TimeoutType
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest, TaskToken
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.replay import (
    ActivationResult,
    LocalActivityOutcome,
    LocalActivityRequest,
    MachineOptions,
    WorkflowMachine,
    step_marker,
)
from clew.service.requests import AnswerQueryRequest, QueryTask, UpdateMessage, WorkflowTask
from clew.workflow._definition import Definition

CONVERTER = DataConverter.default
ZERO_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def payloads(*values: Any) -> Any:
    return to_stored_payloads(CONVERTER.payload_converter, values)


def value_of(stored: Any, hint: Any = None) -> Any:
    return CONVERTER.payload_converter.from_stored(stored[0], hint) if stored else None


class WorkerDied(Exception):
    """The worker died after its markers were recorded."""


class Story:
    """One run and its history."""

    def __init__(
        self,
        workflow: type[Any],
        *args: Any,
        options: MachineOptions | None = None,
        limits: Limits = LIMITS_DEFAULT,
        workflow_type: str | None = None,
        run_id: str = "run-1",
        **started: Any,
    ) -> None:
        self.definition = Definition.must_from_class(workflow)
        self.options = options or MachineOptions()
        self.limits = limits
        self.workflow_type = workflow_type or self.definition.name or "Dynamic"
        self.run_id = run_id
        self.events: list[Any] = []
        self.time = ZERO_TIME
        self.machine: WorkflowMachine | None = None
        self.last_started = 0
        self.results: list[ActivationResult] = []
        self.messages: list[UpdateMessage] = []
        self.updates: dict[str, Any] = {}
        self.is_closed = False
        self.local: Callable[[LocalActivityRequest], LocalActivityOutcome | None] = lambda request: None
        """Runs a local activity; None leaves it running."""
        self.running_local: list[LocalActivityRequest] = []
        self.local_runs: list[str] = []
        self.recorded_together = 1
        """Finished local activities that one call records."""
        self.records = 0
        self.dies_after_record = 0
        """The call, counted from 1, whose answer the worker does not live to see."""
        self.is_end_wanted = False
        self.keeps_cancelled = False
        """Whether local activities that are told to stop have an outcome."""
        self.on_cancelled: Callable[[tuple[int, ...]], object] = lambda sequences: None
        self.add(
            e.WorkflowExecutionStarted,
            workflow_id="story",
            workflow_type=self.workflow_type,
            task_queue="queue",
            input=payloads(*args),
            original_execution_run_id=run_id,
            first_execution_run_id=run_id,
            **started,
        )

    # --- events from outside -------------------------------------------------------------------------------

    def add(self, kind: type[Any], **fields: Any) -> Any:
        event = kind(event_id=len(self.events) + 1, event_time=self.time, **fields)
        self.events.append(event)
        return event

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def find(self, kind: type[Any], **fields: Any) -> list[Any]:
        return [ev for ev in self.events if type(ev) is kind and all(getattr(ev, k) == v for k, v in fields.items())]

    def one(self, kind: type[Any], **fields: Any) -> Any:
        found = self.find(kind, **fields)
        assert len(found) == 1, f"{kind.__name__} {fields}: {found}"
        return found[0]

    def kinds(self) -> list[str]:
        return [type(ev).__name__ for ev in self.events if not type(ev).__name__.startswith("WorkflowTask")]

    def complete_activity(self, activity_id: str, result: Any = None) -> None:
        scheduled = self.one(e.ActivityTaskScheduled, activity_id=activity_id)
        started = self.add(e.ActivityTaskStarted, scheduled_event_id=scheduled.event_id)
        self.add(
            e.ActivityTaskCompleted,
            scheduled_event_id=scheduled.event_id,
            started_event_id=started.event_id,
            result=payloads(result),
        )

    def fail_activity(self, activity_id: str, message: str = "broken", type: str = "Broken") -> None:
        scheduled = self.one(e.ActivityTaskScheduled, activity_id=activity_id)
        started = self.add(e.ActivityTaskStarted, scheduled_event_id=scheduled.event_id)
        failure = Failure(message=message, info=ApplicationInfo(type=type, non_retryable=True))
        self.add(
            e.ActivityTaskFailed,
            scheduled_event_id=scheduled.event_id,
            started_event_id=started.event_id,
            failure=failure,
        )

    def time_out_activity(self, activity_id: str) -> None:
        scheduled = self.one(e.ActivityTaskScheduled, activity_id=activity_id)
        failure = Failure(message="late", info=TimeoutInfo(timeout_type=TimeoutType.START_TO_CLOSE))
        self.add(e.ActivityTaskTimedOut, scheduled_event_id=scheduled.event_id, started_event_id=0, failure=failure)

    def cancel_activity(self, activity_id: str) -> None:
        scheduled = self.one(e.ActivityTaskScheduled, activity_id=activity_id)
        self.add(e.ActivityTaskCanceled, scheduled_event_id=scheduled.event_id)

    def fire(self, timer_id: str) -> None:
        started = self.one(e.TimerStarted, timer_id=timer_id)
        self.time = max(self.time, started.event_time + started.start_to_fire_timeout)
        self.add(e.TimerFired, timer_id=timer_id, started_event_id=started.event_id)

    def signal(self, name: str, *args: Any, raw: Any = None) -> None:
        self.add(e.WorkflowExecutionSignaled, signal_name=name, input=raw if raw is not None else payloads(*args))

    def request_cancel(self, reason: str = "") -> None:
        self.add(e.WorkflowExecutionCancelRequested, cause=reason)

    def update(self, name: str, *args: Any, id: str | None = None) -> str:
        update_id = id or f"u{len(self.messages) + len(self.updates) + 1}"
        request = e.UpdateRequest(update_id=update_id, name=name, input=payloads(*args))
        last = self.events[-1].event_id
        self.messages.append(
            UpdateMessage(message_id=f"{update_id}/request", request=request, sequencing_event_id=last)
        )
        return update_id

    # --- workflow tasks ------------------------------------------------------------------------------------

    def make_machine(self, workflow: type[Any] | None = None, options: MachineOptions | None = None) -> WorkflowMachine:
        return WorkflowMachine(
            definition=Definition.must_from_class(workflow) if workflow is not None else self.definition,
            namespace="default",
            task_queue="queue",
            workflow_id="story",
            run_id=self.run_id,
            workflow_type=self.workflow_type,
            payload_converter=CONVERTER.payload_converter,
            failure_converter=CONVERTER.failure_converter,
            limits=self.limits,
            options=options or self.options,
        )

    def token(self) -> TaskToken:
        return TaskToken(
            namespace="default",
            workflow_id="story",
            run_id=self.run_id,
            shard=0,
            run_key=1,
            scheduled_event_id=0,
            attempt=1,
            lease_id=1,
        )

    def cold(self) -> Story:
        """Take the run out of the cache; the next task replays it."""
        if self.machine is not None:
            self.machine.evict()
        self.machine = None
        self.running_local = []
        return self

    def task(self, *, is_cold: bool = False, queries: tuple[QueryTask, ...] = ()) -> ActivationResult:
        """Run one workflow task and record what it asked for."""
        if is_cold:
            self.cold()
        self.add(e.WorkflowTaskScheduled, task_queue="queue", start_to_close_timeout=timedelta(seconds=10))
        started = self.add(e.WorkflowTaskStarted, scheduled_event_id=self.events[-1].event_id)
        machine = self.machine or self.make_machine()
        self.machine = machine
        first = machine.cached_through_event_id
        task = WorkflowTask(
            token=self.token(),
            workflow_type=self.workflow_type,
            task_queue="queue",
            previous_started_event_id=self.last_started,
            started_event_id=started.event_id,
            events=tuple(self.events[first:]),
            is_partial=first > 0,
            messages=tuple(self.messages),
            queries=queries,
        )
        try:
            result = self._finish_local(machine, machine.activate(task))
        except WorkerDied:
            self.add(
                e.WorkflowTaskTimedOut,
                scheduled_event_id=started.event_id - 1,
                started_event_id=started.event_id,
                timeout_type=TimeoutType.START_TO_CLOSE,
            )
            self.cold()
            raise
        self.results.append(result)
        if isinstance(result.completion, FailWorkflowTaskRequest):
            self.add(
                e.WorkflowTaskFailed,
                scheduled_event_id=started.event_id - 1,
                started_event_id=started.event_id,
                cause=result.completion.cause,
                failure=result.completion.failure,
            )
            self.cold()
            return result
        assert isinstance(result.completion, CompleteWorkflowTaskRequest)
        self.last_started = started.event_id
        self._record(result.completion, started)
        return result

    def _finish_local(self, machine: WorkflowMachine, result: ActivationResult) -> ActivationResult:
        """Run local activities, in the order asked for, until the task is answered."""
        self._start_local(result)
        unrecorded = [*result.unrecorded_markers]
        while result.completion is None:
            finished: list[tuple[LocalActivityRequest, LocalActivityOutcome]] = []
            for request in list(self.running_local):
                outcome = self.local(request)
                if outcome is not None:
                    self.running_local.remove(request)
                    finished.append((request, outcome))
                    if len(finished) == self.recorded_together or request.input.durable == "batch":
                        break
            if not finished:
                further = machine.extend_task()
                assert further is not None, "a task is open"
                result = further
            elif finished[0][0].input.durable == "batch":
                result = machine.finish_local_activity(finished[0][1])
            else:
                markers = [*unrecorded, *[step_marker(request, outcome) for request, outcome in finished]]
                self.advance(1)
                for marker in markers:
                    kind, fields = RECORDED[c.RecordMarker](self, marker)
                    self.add(kind, **fields)
                unrecorded = []
                self.records += 1
                if self.records == self.dies_after_record:
                    raise WorkerDied
                result = machine.take_recorded(
                    [outcome for _, outcome in finished],
                    last_event_id=self.events[-1].event_id,
                    event_time=self.time,
                    is_end_wanted=self.is_end_wanted,
                )
            unrecorded += result.unrecorded_markers
            self._start_local(result)
        return result

    def _start_local(self, result: ActivationResult) -> None:
        for request in result.local_activities:
            self.running_local.append(request)
            self.local_runs.append(f"{request.activity_id}/{request.attempt}")
        gone = set(result.forgotten_local_activities)
        gone.update(() if self.keeps_cancelled else result.cancelled_local_activities)
        self.on_cancelled(result.cancelled_local_activities)
        self.running_local = [r for r in self.running_local if r.sequence not in gone]

    def run(self, *, is_cold: bool = False) -> list[Any]:
        """Run one workflow task that must not fail and give its commands."""
        completion = self.task(is_cold=is_cold).completion
        assert isinstance(completion, CompleteWorkflowTaskRequest), completion
        return list(completion.commands)

    def failure(self) -> Failure:
        """The failure of the workflow task that is run now."""
        completion = self.task().completion
        assert isinstance(completion, FailWorkflowTaskRequest), completion
        assert completion.failure is not None
        return completion.failure

    def query(self, name: str, *args: Any, is_cold: bool = False) -> Any:
        """Answer a query on its own."""
        machine = self.make_machine() if is_cold or self.machine is None else self.machine
        first = machine.cached_through_event_id
        task = WorkflowTask(
            token=self.token(),
            workflow_type=self.workflow_type,
            task_queue="queue",
            previous_started_event_id=self.last_started,
            events=() if first else tuple(self.events),
            is_partial=first > 0,
            query=QueryTask(query_id="q", query_type=name, query_args=payloads(*args)),
        )
        completion = machine.activate(task).completion
        assert isinstance(completion, AnswerQueryRequest)
        if machine is not self.machine:
            machine.evict()
        if completion.result.failure is not None:
            raise CONVERTER.failure_converter.from_failure(completion.result.failure, CONVERTER.payload_converter)
        return value_of(completion.result.result)

    def _record(self, completion: CompleteWorkflowTaskRequest, started: Any) -> None:
        completed = self.add(
            e.WorkflowTaskCompleted, scheduled_event_id=started.event_id - 1, started_event_id=started.event_id
        )
        for update in completion.acceptances:
            self.updates[update.update_id] = "accepted"
        for rejection in completion.rejections:
            self.updates[rejection.update_id] = rejection.failure
        answered = {u.update_id for u in (*completion.acceptances, *completion.rejections)}
        self.messages = [m for m in self.messages if m.request.update_id not in answered]
        for command in completion.commands:
            if isinstance(command, c.ProtocolMessage):
                self._record_message(command, completion)
            else:
                kind, fields = RECORDED[type(command)](self, command)
                self.add(kind, workflow_task_completed_event_id=completed.event_id, **fields)
                self.is_closed |= isinstance(command, c.CLOSE_COMMANDS)

    def _record_message(self, command: c.ProtocolMessage, completion: CompleteWorkflowTaskRequest) -> None:
        for acceptance in completion.acceptances:
            if acceptance.message_id == command.message_id:
                self.add(
                    e.WorkflowExecutionUpdateAccepted,
                    protocol_instance_id=acceptance.update_id,
                    accepted_request=acceptance.request,
                    accepted_request_sequencing_event_id=acceptance.sequencing_event_id,
                )
                return
        for done in completion.completions:
            if done.message_id == command.message_id:
                accepted = self.one(e.WorkflowExecutionUpdateAccepted, protocol_instance_id=done.update_id)
                self.updates[done.update_id] = done.outcome
                self.add(
                    e.WorkflowExecutionUpdateCompleted,
                    update_id=done.update_id,
                    accepted_event_id=accepted.event_id,
                    outcome=done.outcome,
                )
                return
        raise AssertionError(f"no message {command.message_id!r}")

    # --- checks --------------------------------------------------------------------------------------------

    def result(self) -> Any:
        """The result of the closed run."""
        return value_of(self.one(e.WorkflowExecutionCompleted).result)

    def close_failure(self) -> Failure:
        failure: Failure = self.one(e.WorkflowExecutionFailed).failure
        return failure

    def replay_check(self, workflow: type[Any] | None = None) -> None:
        """Replay the whole history with a new machine, also cut at each event."""
        self.replay(workflow)
        for last in range(1, len(self.events)):
            machine = self.make_machine(workflow)
            machine.replay(self.events[:last])
            machine.evict()

    def replay(self, workflow: type[Any] | None = None) -> None:
        machine = self.make_machine(workflow)
        machine.replay(self.events)
        machine.evict()


def _activity(story: Story, command: c.ScheduleActivityTask) -> tuple[type[Any], dict[str, Any]]:
    return e.ActivityTaskScheduled, {
        "activity_id": command.activity_id,
        "activity_type": command.activity_type,
        "task_queue": command.task_queue,
        "input": command.input,
        "start_to_close_timeout": command.start_to_close_timeout,
        "user_metadata": command.user_metadata,
    }


def _timer(story: Story, command: c.StartTimer) -> tuple[type[Any], dict[str, Any]]:
    return e.TimerStarted, {
        "timer_id": command.timer_id,
        "start_to_fire_timeout": command.start_to_fire_timeout,
        "user_metadata": command.user_metadata,
    }


def _child(story: Story, command: c.StartChildWorkflowExecution) -> tuple[type[Any], dict[str, Any]]:
    return e.StartChildWorkflowExecutionInitiated, {
        "workflow_id": command.workflow_id,
        "workflow_type": command.workflow_type,
        "task_queue": command.task_queue,
        "input": command.input,
    }


def _cancel_timer(story: Story, command: c.CancelTimer) -> tuple[type[Any], dict[str, Any]]:
    started = story.one(e.TimerStarted, timer_id=command.timer_id)
    assert not story.find(e.TimerFired, timer_id=command.timer_id), "a fired timer cannot be cancelled"
    return e.TimerCanceled, {"timer_id": command.timer_id, "started_event_id": started.event_id}


def _cancel_activity(story: Story, command: c.RequestCancelActivityTask) -> tuple[type[Any], dict[str, Any]]:
    assert command.scheduled_event_id > 0
    return e.ActivityTaskCancelRequested, {"scheduled_event_id": command.scheduled_event_id}


RECORDED: dict[type[Any], Callable[[Story, Any], tuple[type[Any], dict[str, Any]]]] = {
    c.ScheduleActivityTask: _activity,
    c.RequestCancelActivityTask: _cancel_activity,
    c.StartTimer: _timer,
    c.CancelTimer: _cancel_timer,
    c.StartChildWorkflowExecution: _child,
    c.SignalExternalWorkflowExecution: lambda s, x: (
        e.SignalExternalWorkflowExecutionInitiated,
        {"workflow_execution": x.workflow_execution, "signal_name": x.signal_name, "input": x.input},
    ),
    c.RequestCancelExternalWorkflowExecution: lambda s, x: (
        e.RequestCancelExternalWorkflowExecutionInitiated,
        {"workflow_execution": x.workflow_execution},
    ),
    c.RecordMarker: lambda s, x: (
        e.MarkerRecorded,
        {"marker_name": x.marker_name, "details": x.details, "failure": x.failure},
    ),
    c.UpsertSearchAttributes: lambda s, x: (
        e.UpsertWorkflowSearchAttributes,
        {"search_attributes": x.search_attributes},
    ),
    c.ModifyWorkflowProperties: lambda s, x: (e.WorkflowPropertiesModified, {"upserted_memo": x.upserted_memo}),
    c.CompleteWorkflowExecution: lambda s, x: (e.WorkflowExecutionCompleted, {"result": x.result}),
    c.FailWorkflowExecution: lambda s, x: (e.WorkflowExecutionFailed, {"failure": x.failure}),
    c.CancelWorkflowExecution: lambda s, x: (e.WorkflowExecutionCanceled, {"details": x.details}),
    c.ContinueAsNewWorkflowExecution: lambda s, x: (
        e.WorkflowExecutionContinuedAsNew,
        {
            "new_execution_run_id": "next",
            "workflow_type": x.workflow_type,
            "task_queue": x.task_queue,
            "input": x.input,
        },
    ),
}
