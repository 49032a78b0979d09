"""Random inputs in random order: the laws of the history machine hold after every transition.

The driver checks them (``tests/scenarios/laws.py``): dense ids, nothing after the close, fold(history) == state,
indexes and heap as a scan would have them, snapshots that round-trip, dirty items marked, and rejections that change
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clew.core import decisions as d
from clew.core import step as step_module
from clew.core.codec import decode_state, encode_item, encode_state, item_keys
from clew.core.evolve import fold
from clew.core.transition import Transition
from clew.model import commands as c
from clew.model import events as e
from clew.model import inputs as i
from clew.model.limits import LIMITS_DEFAULT
from clew.model.policies import ParentClosePolicy, RetryPolicy
from clew.model.rejection import Rejection, RejectionCode
from tests.scenarios.driver import T0, Driver
from tests.scenarios.tables import failure, payload

SECONDS = st.sampled_from([0, 1, 2, 5, 10, 60]).map(lambda n: timedelta(seconds=n))
SESSIONS = st.sampled_from(["s1", "s2"])
RETRIES = st.sampled_from([None, RetryPolicy(maximum_attempts=1), RetryPolicy(maximum_attempts=3)])

LONG = st.sampled_from([5, 10, 60]).map(lambda n: timedelta(seconds=n))

ACTIVITY = st.builds(
    c.ScheduleActivityTask,
    activity_id=st.just(""),
    activity_type=st.just("Work"),
    start_to_close_timeout=LONG,
    schedule_to_close_timeout=SECONDS,
    schedule_to_start_timeout=SECONDS,
    heartbeat_timeout=SECONDS,
    retry_policy=RETRIES,
    input=st.just((payload("in"),)),
)
TIMER = st.builds(c.StartTimer, timer_id=st.just(""), start_to_fire_timeout=SECONDS)
CHILD = st.builds(
    c.StartChildWorkflowExecution,
    workflow_id=st.just("child"),
    workflow_type=st.just("Child"),
    parent_close_policy=st.sampled_from(ParentClosePolicy),
)
OTHER = st.sampled_from(
    [
        c.RecordMarker(marker_name="m"),
        c.SignalExternalWorkflowExecution(workflow_execution=e.ExecutionRef("x"), signal_name="s"),
        c.RequestCancelExternalWorkflowExecution(workflow_execution=e.ExecutionRef("x")),
        c.UpsertSearchAttributes(search_attributes={"k": msgspec.Raw(b"1")}),
        c.ModifyWorkflowProperties(upserted_memo={"m": msgspec.Raw(b"null")}),
        c.ModifyWorkflowProperties(upserted_memo={"m": msgspec.Raw(b"2")}),
        c.CancelTimer(timer_id="unknown"),
        c.ScheduleActivityTask(activity_id="no-timeout", activity_type="Work"),
    ]
)
PLAIN_COMMANDS = st.one_of(ACTIVITY, TIMER, CHILD, OTHER)
CLOSE_COMMANDS = st.sampled_from(
    [
        c.CompleteWorkflowExecution(result=(payload("r"),)),
        c.FailWorkflowExecution(failure=failure()),
        c.CancelWorkflowExecution(),
        c.ContinueAsNewWorkflowExecution(),
    ]
)


def is_accepted(event: Any) -> bool:
    return isinstance(event, e.WorkflowExecutionUpdateAccepted)


def signals_of(events: list[Any]) -> Counter[str]:
    return Counter(event.request_id for event in events if isinstance(event, e.WorkflowExecutionSignaled))


class HistoryMachine(RuleBasedStateMachine):
    """One run, poked at random; after its close, everything must be refused or change nothing."""

    def __init__(self) -> None:
        super().__init__()
        limits = msgspec.structs.replace(LIMITS_DEFAULT, buffered_events_max=6, updates_in_flight_max=3)
        self.driver = Driver(limits)
        self.update_count = 0
        self.command_count = 0
        self.wide_items = step_module.WIDE_ITEMS
        step_module.WIDE_ITEMS = 3

    def teardown(self) -> None:
        step_module.WIDE_ITEMS = self.wide_items

    @initialize(
        run=SECONDS,
        delay=st.sampled_from([timedelta(0), timedelta(seconds=3)]),
        retry=RETRIES,
        execution=st.sampled_from([timedelta(0), timedelta(minutes=5)]),
        child=st.booleans(),
    )
    def start(
        self, run: timedelta, delay: timedelta, retry: RetryPolicy | None, execution: timedelta, child: bool
    ) -> None:
        fields: dict[str, Any] = {}
        if child:
            fields = {"parent": e.ExecutionRef("p", "r"), "parent_initiated_event_id": 5, "hold_first_task": True}
        answer = self.driver.start(
            workflow_run_timeout=run * 100,
            start_delay=delay,
            retry_policy=retry,
            workflow_execution_timeout=execution,
            **fields,
        )
        assert isinstance(answer, Transition)

    @property
    def state(self) -> Any:
        return self.driver.state

    def decide(self, decision: Callable[[], Transition | Rejection | None]) -> Transition | Rejection:
        return self.driver.decide(decision)

    # workflow tasks

    def _can_take(self) -> bool:
        task = self.state.workflow_task
        return task is not None and not task.started_event_id and task.not_before is None

    @precondition(lambda self: self._can_take())
    @rule(session=SESSIONS)
    def take_task(self, session: str) -> None:
        answer = self.driver.take_task(session)
        assert isinstance(answer, Transition), answer

    def _holds_task(self) -> bool:
        return bool(self.driver.task_tokens) and self.state.is_task_started

    def _numbered(self, command: c.Command) -> c.Command:
        """The same command under an id of its own."""
        self.command_count += 1
        if isinstance(command, c.ScheduleActivityTask) and not command.activity_id:
            return msgspec.structs.replace(command, activity_id=f"a{self.command_count}")
        if isinstance(command, c.StartTimer):
            return msgspec.structs.replace(command, timer_id=f"t{self.command_count}")
        return command

    @precondition(lambda self: self._holds_task() or self._can_take())
    @rule(
        commands=st.lists(PLAIN_COMMANDS, max_size=4),
        cancels=st.sampled_from(["", "", "activity", "timer", "both"]),
        sticky=st.booleans(),
        force=st.sampled_from([False, False, True]),
        verdict=st.sampled_from(["accept", "reject", "ignore"]),
        finish=st.booleans(),
    )
    def complete_task(
        self, commands: list[c.Command], cancels: str, sticky: bool, force: bool, verdict: str, finish: bool
    ) -> None:
        if not self._holds_task():
            self.driver.take_task()
        state = self.state
        commands = [self._numbered(command) for command in commands]
        if cancels in ("activity", "both") and state.activities:
            commands.append(c.RequestCancelActivityTask(scheduled_event_id=min(state.activities)))
        if cancels in ("timer", "both") and state.timers:
            commands.append(c.CancelTimer(timer_id=state.timers[min(state.timers)].timer_id))
        messages = self._messages(verdict, finish)
        self.driver.complete(*commands, is_sticky=sticky, force_create_new_workflow_task=force, **messages)

    def _messages(self, verdict: str, finish: bool) -> dict[str, Any]:
        updates = self.state.updates.values()
        admitted = [u.update_id for u in updates if not u.accepted_event_id]
        done = [u.update_id for u in updates if u.accepted_event_id] if finish else []
        fields: dict[str, Any] = {}
        if verdict == "accept":
            done += admitted if finish else []
            fields["acceptances"] = tuple(
                i.UpdateAcceptance(message_id=f"{u}/a", update_id=u, sequencing_event_id=1) for u in admitted
            )
        elif verdict == "reject":
            fields["rejections"] = tuple(
                i.UpdateRejection(message_id=f"{u}/r", update_id=u, failure=failure()) for u in admitted
            )
        fields["completions"] = tuple(
            i.UpdateCompletion(message_id=f"{u}/c", update_id=u, outcome=e.UpdateOutcome()) for u in done
        )
        return fields

    @precondition(lambda self: self._holds_task() and len(self.driver.history) > 15)
    @rule(close=CLOSE_COMMANDS, first=st.one_of(st.none(), ACTIVITY, CHILD), cancels=st.booleans())
    def close(self, close: c.Command, first: c.Command | None, cancels: bool) -> None:
        state = self.state
        commands = [] if first is None else [self._numbered(first)]
        if cancels:
            commands += [c.CancelTimer(timer_id=timer.timer_id) for timer in state.timers.values()]
        fired = {timer.started_event_id for timer in state.timers.values() if cancels}
        left = [
            event
            for event in state.buffered_events
            if not (isinstance(event, e.TimerFired) and event.started_event_id in fired)
        ]
        answer = self.driver.complete(*commands, close)
        assert isinstance(answer, Transition)
        assert state.is_open is bool(left)
        assert isinstance(answer.reply, Rejection) is bool(left)

    @precondition(lambda self: self._holds_task())
    @rule(count=st.integers(1, 3), repeats=st.booleans())
    def record_markers(self, count: int, repeats: bool) -> None:
        task = self.state.workflow_task
        request = i.RecordMarkersRequest(
            token=self.driver.task_tokens[-1],
            markers=(c.RecordMarker(marker_name="step"),) * count,
            after_event_id=max(task.started_event_id, task.recorded_event_id),
        )
        for _ in range(2 if repeats else 1):
            answer = self.decide(lambda: d.decide_record_markers(self.state, request, self.driver.now))
            assert isinstance(answer, Transition)
            assert answer.reply.last_event_id == self.driver.history[-1].event_id == request.after_event_id + count
        assert self.state.is_task_started, "it goes on"

    @precondition(lambda self: len(self.driver.task_tokens) > 1)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.driver.task_tokens[:-1]))
        answer = self.driver.complete(token=token)
        assert isinstance(answer, Rejection)
        assert answer.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND

    @precondition(lambda self: self._holds_task())
    @rule()
    def fail_task(self) -> None:
        self.driver.fail_task()

    # activities

    @precondition(lambda self: self.state.activities)
    @rule(data=st.data(), session=SESSIONS)
    def take_activity(self, data: st.DataObject, session: str) -> None:
        activity = data.draw(st.sampled_from(sorted(self.state.activities.values(), key=lambda a: a.activity_id)))
        is_free = activity.started_time is None and activity.next_attempt_time is None and not activity.is_closing
        answer = self.driver.take_activity(activity.activity_id, session)
        assert isinstance(answer, Transition) is is_free

    @precondition(lambda self: self.driver.activity_tokens)
    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["complete", "fail", "fatal", "cancel", "heartbeat", "release", "detach", "adopt", "by-id"]
        ),
    )
    def report(self, data: st.DataObject, what: str) -> None:
        tokens = [token for tokens in self.driver.activity_tokens.values() for token in tokens]
        token = data.draw(st.sampled_from(tokens))
        state, now = self.state, self.driver.now
        activity = state.activities.get(token.scheduled_event_id)
        is_held = activity is not None and activity.started_time is not None and not activity.is_closing
        is_held = is_held and activity.lease_id == token.lease_id
        fatal = failure(non_retryable=True)
        decision: dict[str, Callable[[], Transition | Rejection]] = {
            "complete": lambda: d.decide_complete_activity(state, i.CompleteActivityRequest(token=token), now),
            "fail": lambda: d.decide_fail_activity(state, i.FailActivityRequest(token=token, failure=failure()), now),
            "fatal": lambda: d.decide_fail_activity(state, i.FailActivityRequest(token=token, failure=fatal), now),
            "cancel": lambda: d.decide_cancel_activity(state, i.CancelActivityRequest(token=token), now),
            "heartbeat": lambda: d.decide_heartbeat_activity(
                state, i.HeartbeatActivityRequest(token=token, details=(payload("x"),)), now
            ),
            "release": lambda: d.decide_release_activity(state, i.ReleaseActivityRequest(token=token, reason="x"), now),
            "detach": lambda: d.decide_detach_activity(state, token, now),
            "adopt": lambda: d.decide_adopt_attempt(state, token, "other-node/1~", now),
            "by-id": lambda: d.decide_complete_activity(
                state, i.CompleteActivityRequest(token=self.driver.target(token.activity_id)), now
            ),
        }
        answer = self.decide(decision[what])
        if not is_held and what != "by-id":
            assert isinstance(answer, Rejection)
        elif is_held and what != "cancel":
            assert isinstance(answer, Transition)

    @precondition(lambda self: self.state.activities)
    @rule(data=st.data(), ok=st.booleans(), session=SESSIONS)
    def run_activity(self, data: st.DataObject, ok: bool, session: str) -> None:
        """Take an attempt that waits, if there is one, and end it."""
        waiting = [task.scheduled_event_id for task in d.outstanding_tasks(self.state)]
        waiting = [event_id for event_id in waiting if event_id in self.state.activities]
        if not waiting:
            return
        activity_id = self.state.activities[data.draw(st.sampled_from(waiting))].activity_id
        self.driver.take_activity(activity_id, session)
        token, now = self.driver.activity_token(activity_id), self.driver.now
        if ok:
            request = i.CompleteActivityRequest(token=token)
            self.decide(lambda: d.decide_complete_activity(self.state, request, now))
        else:
            problem = i.FailActivityRequest(token=token, failure=failure())
            self.decide(lambda: d.decide_fail_activity(self.state, problem, now))

    # time and loss

    @rule(by=SECONDS)
    def advance(self, by: timedelta) -> None:
        self.driver.advance(by)

    @rule()
    def due(self) -> None:
        attention = self.state.next_attention()
        answer = self.driver.due()
        assert isinstance(answer, Transition)
        if attention is None or attention > self.driver.now:
            assert not answer.events
        after = self.state.next_attention()
        assert after is None or after > self.driver.now, "something due was left"

    @rule(session=SESSIONS)
    def lose(self, session: str) -> None:
        self.driver.lose(session)
        state = self.state
        assert state.sticky_session != session
        assert all(a.session != session or a.is_closing for a in state.activities.values() if a.started_time)

    # messages

    @rule(request_id=st.sampled_from(["", "r1", "r2"]))
    def signal(self, request_id: str) -> None:
        before = self.state.signal_count + len(self.state.buffered_events)
        known = request_id and request_id in self.state.recent_request_ids
        answer = self.driver.signal(request_id=request_id)
        if known and isinstance(answer, Transition):
            assert before == self.state.signal_count + len(self.state.buffered_events)

    @rule()
    def cancel(self) -> None:
        assert isinstance(self.driver.cancel(), Transition)

    @precondition(lambda self: len(self.driver.history) > 30)
    @rule()
    def terminate(self) -> None:
        was_open = self.state.is_open
        assert isinstance(self.driver.terminate(), Transition) is was_open

    @precondition(lambda self: len(self.driver.history) > 8)
    @rule(data=st.data(), goes_on=st.booleans())
    def reset(self, data: st.DataObject, goes_on: bool) -> None:
        """Go back to any event: where a task is pending a run begins, which has every signal and the same keys."""
        old = self.state
        event_id = data.draw(st.integers(0, len(self.driver.history) + 1))
        pending = fold(self.driver.history[: event_id - 1]).workflow_task if event_id > 1 else None
        is_point = event_id <= len(self.driver.history) and pending is not None
        answer = self.driver.reset(event_id=event_id, request_id=f"reset-{self.driver.run_count}")
        assert isinstance(answer, Transition) is is_point, answer
        if not isinstance(answer, Transition):
            return
        assert not old.is_open
        assert answer.new_run is not None
        state, transition = answer.new_run
        assert state.is_open or len(transition.events) > self.driver.limits.history_events_max
        assert state.key_generation == old.key_generation
        assert state.recorded_by(1) == (old.origins[0].run_id if old.origins else old.run_id)
        copied, tail = transition.events[: event_id - 1], transition.events[event_id - 1 :]
        assert copied == self.driver.history[: event_id - 1]
        assert signals_of(transition.events) == signals_of(self.driver.history)
        assert not any(isinstance(event, e.WorkflowExecutionCancelRequested) for event in tail)
        accepted = {event.protocol_instance_id for event in self.driver.history if is_accepted(event)}
        assert accepted <= state.updates.keys() | state.derived.update_ids.keys()
        if goes_on:
            self.driver.follow()
            self.driver.next_runs.clear()
            self.driver.task_tokens.clear()
            self.driver.activity_tokens.clear()

    @rule()
    def update(self) -> None:
        self.update_count += 1
        request = e.UpdateRequest(update_id=f"u{self.update_count}", name="set")
        self.decide(lambda: d.decide_admit_update(self.state, request, self.driver.now, self.driver.limits))

    @rule()
    def release(self) -> None:
        self.decide(lambda: d.decide_release_first_task(self.state, self.driver.now))

    # other executions

    @rule(data=st.data(), what=st.sampled_from(["started", "refused", "closed"]))
    def child(self, data: st.DataObject, what: str) -> None:
        state, now = self.state, self.driver.now
        event_id = data.draw(st.sampled_from([*sorted(state.children), 99]))
        closing = e.WorkflowExecutionCompleted(event_id=9, event_time=T0)
        cause = e.ExternalFailedCause.WORKFLOW_ALREADY_EXISTS
        decision: dict[str, Callable[[], Transition | Rejection]] = {
            "started": lambda: d.decide_child_started(state, event_id, "cr", now),
            "refused": lambda: d.decide_child_start_failed(state, event_id, cause, now),
            "closed": lambda: d.decide_child_closed(state, event_id, closing, now, run_id="cr"),
        }
        self.decide(decision[what])

    @rule(data=st.data(), fails=st.booleans())
    def external(self, data: st.DataObject, fails: bool) -> None:
        state, now = self.state, self.driver.now
        cause = e.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND
        event_id = data.draw(st.sampled_from([*sorted(state.external_signals), *sorted(state.external_cancels), 99]))
        if event_id in state.external_cancels:
            if fails:
                self.decide(lambda: d.decide_external_cancel_failed(state, event_id, cause, now))
            else:
                self.decide(lambda: d.decide_external_cancel_requested(state, event_id, now))
        elif fails:
            self.decide(lambda: d.decide_external_signal_failed(state, event_id, cause, now))
        else:
            self.decide(lambda: d.decide_external_signaled(state, event_id, now))

    @rule()
    def reload(self) -> None:
        """The engine forgets the run and loads it again."""
        state = self.state
        items = [(*key, encode_item(state, *key) or b"") for key in item_keys(state)] if state.is_wide else []
        self.driver._state = decode_state(encode_state(state), items)

    @invariant()
    def everything_that_happened_is_seen(self) -> None:
        """An open run with news has a workflow task, unless that is put off, held, or the news is buffered."""
        if self.driver._state is None:
            return
        state = self.state
        if not state.is_open or state.workflow_task is not None or state.is_first_task_held:
            return
        if state.first_task_at is not None:
            return
        seen = state.previous_started_event_id
        news = [
            event
            for event in self.driver.history[seen:]
            if type(event) in (e.WorkflowExecutionSignaled, e.TimerFired, e.WorkflowExecutionCancelRequested)
            or type(event) in (e.ActivityTaskCompleted, e.ActivityTaskFailed, e.ActivityTaskTimedOut)
            or type(event) in (e.ChildWorkflowExecutionCompleted, e.ChildWorkflowExecutionStarted)
        ]
        assert not news, "the workflow will not see what happened"
        assert all(update.accepted_event_id for update in state.updates.values()), "an update waits for nothing"

    @invariant()
    def offers_match(self) -> None:
        """What would be offered again after a restart can be taken."""
        if self.driver._state is None or not self.state.is_open:
            return
        offered = d.outstanding_tasks(self.state)
        assert self.state.is_busy or not offered
        assert len({(type(task), task.scheduled_event_id) for task in offered}) == len(offered)


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_wide_run_marks_what_it_changes() -> None:
    """Past 64 pending items a run keeps them in rows of its own; the driver checks that each change is marked."""
    driver = Driver()
    driver.start()
    driver.take_task()
    commands = [
        c.ScheduleActivityTask(activity_id=f"a{n}", activity_type="W", start_to_close_timeout=timedelta(seconds=9))
        for n in range(70)
    ]
    driver.complete(*commands, c.StartTimer(timer_id="t", start_to_fire_timeout=timedelta(seconds=1)))
    assert driver.state.is_wide
    assert len(item_keys(driver.state)) == 71
    for n in range(70):
        driver.take_activity(f"a{n}")
    driver.advance(timedelta(seconds=1))
    driver.due()
    driver.take_task()
    for n in range(3):
        request = i.CompleteActivityRequest(token=driver.activity_token(f"a{n}"))
        driver.decide(lambda request=request: d.decide_complete_activity(driver.state, request, driver.now))
    driver.complete(c.RequestCancelActivityTask(scheduled_event_id=driver.state.derived.activity_ids["a9"]))
    driver.advance(timedelta(seconds=10))
    driver.due()
    driver.lose("s1")
    driver.terminate()
    assert not driver.state.is_open
    assert not item_keys(driver.state)
