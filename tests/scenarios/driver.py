"""Drives one run of the history machine by hand, the way engine and workers would, and checks the laws at each step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from clew.core import decisions as d
from clew.core.replies import StartedActivity, StartedWorkflowTask
from clew.core.reset import ResetSource, check_reset
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.model import inputs as i
from clew.model.commands import Command
from clew.model.events import Event, WorkflowExecutionStarted, WorkflowTaskFailedCause
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection
from tests.scenarios.laws import Snapshot, check_transition, check_unchanged

T0 = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
NAMESPACE, WORKFLOW_ID = "default", "w1"


class Driver:
    """A run, its history, the clock, and the tokens that workers hold."""

    def __init__(self, limits: Limits = LIMITS_DEFAULT) -> None:
        self.limits = limits
        self.now = T0
        self.history: list[Event] = []
        self.task_tokens: list[i.TaskToken] = []
        self.activity_tokens: dict[str, list[i.TaskToken]] = {}
        self.run_count = 0
        self.last: Transition | Rejection | None = None
        self.earlier: dict[str, tuple[ExecutionState, list[Event]]] = {}
        """The runs before this one, with their histories."""
        self.next_runs: list[tuple[ExecutionState, Transition]] = []
        self._state: ExecutionState | None = None

    @property
    def state(self) -> ExecutionState:
        assert self._state is not None, "nothing was started"
        return self._state

    def new_run_id(self) -> str:
        self.run_count += 1
        return f"run{self.run_count}"

    def start(self, **options: Any) -> Transition | Rejection:
        kwargs = {
            name: options.pop(name)
            for name in ("parent", "parent_initiated_event_id", "hold_first_task", "signal")
            if name in options
        }
        fields = {
            "namespace": NAMESPACE,
            "workflow_id": WORKFLOW_ID,
            "workflow_type": "Claim",
            "task_queue": "q",
            "request_id": "start-1",
        }
        request = i.StartWorkflowRequest(**{**fields, **options})
        run_id = self.new_run_id()
        answer = d.decide_start(
            request, run_id=run_id, now=self.now, key_generation=run_id, limits=self.limits, **kwargs
        )
        if isinstance(answer, Rejection):
            self.last = answer
            return answer
        self._state, transition = answer
        return self._take_in(None, transition)

    def decide(self, decision: Callable[[], Transition | Rejection | None]) -> Transition | Rejection:
        """Make one decision on the state, and check the laws."""
        before = Snapshot(self.state)
        answer = decision()
        if isinstance(answer, Rejection):
            check_unchanged(before, self.state)
            self.last = answer
            return answer
        return self._take_in(before, answer or Transition())

    def _take_in(self, before: Snapshot | None, transition: Transition) -> Transition:
        self.history += transition.events
        check_transition(before, self.state, transition, self.history)
        if transition.new_run is not None:
            state, following = transition.new_run
            check_transition(None, state, following, list(following.events))
            self.next_runs.append((state, following))
        self.last = transition
        return transition

    def follow(self) -> None:
        """Go on with the next run of the chain."""
        self.earlier[self.state.run_id] = (self.state, self.history)
        self._state, transition = self.next_runs.pop()
        self.history = list(transition.events)

    @property
    def first_event(self) -> WorkflowExecutionStarted:
        first = self.history[0]
        assert isinstance(first, WorkflowExecutionStarted)
        return first

    def advance(self, by: timedelta) -> None:
        self.now += by

    # workflow tasks

    def take_task(self, session: str = "s1") -> Transition | Rejection:
        task = self.state.workflow_task
        assert task is not None, "no workflow task is scheduled"
        offered = {"scheduled_event_id": task.scheduled_event_id, "attempt": task.attempt}
        answer = self.decide(
            lambda: d.decide_start_workflow_task(
                self.state, session=session, identity=session, now=self.now, limits=self.limits, **offered
            )
        )
        if isinstance(answer, Transition):
            reply = answer.reply
            assert isinstance(reply, StartedWorkflowTask)
            self.task_tokens.append(
                self._token(reply.scheduled_event_id, reply.attempt, reply.lease_id, reply.started_event_id)
            )
        return answer

    def _token(self, scheduled: int, attempt: int, lease: int, started: int = 0, activity_id: str = "") -> i.TaskToken:
        return i.TaskToken(
            namespace=NAMESPACE,
            workflow_id=WORKFLOW_ID,
            run_id=self.state.run_id,
            shard=0,
            run_key=1,
            scheduled_event_id=scheduled,
            attempt=attempt,
            lease_id=lease,
            started_event_id=started,
            activity_id=activity_id,
        )

    def complete(
        self, *commands: Command, session: str = "s1", token: i.TaskToken | None = None, **fields: Any
    ) -> Transition | Rejection:
        request = i.CompleteWorkflowTaskRequest(
            token=token or self.task_tokens[-1], commands=commands, identity=session, **fields
        )
        return self.decide(
            lambda: d.decide_complete_workflow_task(
                self.state,
                request,
                self.now,
                session=session,
                new_run_id=self.new_run_id,
                started=self.first_event if self.state.needs_started_event else None,
                limits=self.limits,
            )
        )

    def fail_task(
        self, cause: WorkflowTaskFailedCause = WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
    ) -> Transition | Rejection:
        request = i.FailWorkflowTaskRequest(token=self.task_tokens[-1], cause=cause)
        return self.decide(lambda: d.decide_fail_workflow_task(self.state, request, self.now, limits=self.limits))

    # activities

    def take_activity(self, activity_id: str, session: str = "s1") -> Transition | Rejection:
        scheduled_event_id = self.state.derived.activity_ids.get(activity_id, 0)
        activity = self.state.activities.get(scheduled_event_id)
        attempt = activity.attempt if activity is not None else 1
        answer = self.decide(
            lambda: d.decide_start_activity(
                self.state,
                scheduled_event_id=scheduled_event_id,
                attempt=attempt,
                session=session,
                identity=session,
                now=self.now,
            )
        )
        if isinstance(answer, Transition):
            reply = answer.reply
            assert isinstance(reply, StartedActivity)
            token = self._token(scheduled_event_id, reply.attempt, reply.lease_id, activity_id=activity_id)
            self.activity_tokens.setdefault(activity_id, []).append(token)
        return answer

    def activity_token(self, activity_id: str, attempt: int = 0) -> i.TaskToken:
        """The latest token, or that of an earlier attempt."""
        tokens = self.activity_tokens[activity_id]
        return tokens[-1] if not attempt else next(token for token in tokens if token.attempt == attempt)

    def target(self, activity_id: str) -> i.ActivityTarget:
        return i.ActivityTarget(namespace=NAMESPACE, workflow_id=WORKFLOW_ID, activity_id=activity_id)

    def due(self) -> Transition | Rejection:
        return self.decide(
            lambda: d.decide_due(
                self.state,
                self.now,
                self.limits,
                new_run_id=self.new_run_id,
                started=self.first_event if self.state.needs_started_event else None,
            )
        )

    def lose(self, *sessions: str) -> Transition | Rejection:
        return self.decide(lambda: d.decide_sessions_lost(self.state, sessions.__contains__, self.now))

    # messages

    def signal(self, name: str = "go", request_id: str = "", **fields: Any) -> Transition | Rejection:
        request = i.SignalWorkflowRequest(
            namespace=NAMESPACE, workflow_id=WORKFLOW_ID, signal_name=name, request_id=request_id, **fields
        )
        return self.decide(lambda: d.decide_signal(self.state, request, self.now, limits=self.limits))

    def cancel(self) -> Transition | Rejection:
        request = i.RequestCancelRequest(namespace=NAMESPACE, workflow_id=WORKFLOW_ID, request_id="c")
        return self.decide(lambda: d.decide_cancel_request(self.state, request, self.now))

    def terminate(self, reason: str = "enough") -> Transition | Rejection:
        request = i.TerminateWorkflowRequest(namespace=NAMESPACE, workflow_id=WORKFLOW_ID, reason=reason)
        return self.decide(lambda: d.decide_terminate(self.state, request, self.now))

    def reset(self, run_id: str = "", request_id: str = "r", **point: Any) -> Transition | Rejection:
        """Go back to a point of this run, or of one before it, along with the runs that came in between."""
        request = i.ResetWorkflowRequest(
            namespace=NAMESPACE,
            workflow_id=WORKFLOW_ID,
            run_id=run_id,
            request_id=request_id,
            **{"reason": "mend", **point},
        )
        refusal = check_reset(request, self.limits)
        if refusal is not None:
            self.last = refusal
            return refusal
        runs = {**self.earlier, self.state.run_id: (self.state, list(self.history))}
        names = list(runs)
        base = run_id or names[-1]
        later = [runs[name] for name in names[names.index(base) + 1 :]]
        source = ResetSource(base=runs[base][0], events=runs[base][1], later=later)
        new_id = f"run{self.run_count + 1}"
        answer = self.decide(
            lambda: d.decide_reset(self.state, request, source, self.now, run_id=new_id, limits=self.limits)
        )
        if isinstance(answer, Transition):
            self.run_count += 1
        return answer
