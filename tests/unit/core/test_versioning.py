"""Worker versions in the history machine: pinning, overrides, what is handed on, the ramp."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from clew.core.decisions import (
    decide_complete_workflow_task,
    decide_fail_workflow_task,
    decide_signal,
    decide_start,
    decide_start_workflow_task,
    decide_update_options,
)
from clew.core.evolve import fold
from clew.core.facts import durable_facts
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.core.versioning import RAMP_STEPS, Route, behavior_of, pinned_version, ramp_position
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import (
    CompleteWorkflowTaskRequest,
    FailWorkflowTaskRequest,
    SignalWorkflowRequest,
    StartWorkflowRequest,
    TaskToken,
    UpdateWorkflowOptionsRequest,
)
from clew.model.policies import DeploymentVersion, RetryPolicy, VersioningBehavior, VersioningOverride
from clew.model.rejection import Rejection, RejectionCode

T0 = datetime(2026, 3, 1, tzinfo=UTC)
ONE = DeploymentVersion("billing", "1")
TWO = DeploymentVersion("billing", "2")
PINNED = VersioningBehavior.PINNED
AUTO_UPGRADE = VersioningBehavior.AUTO_UPGRADE
PIN_TO_TWO = VersioningOverride(behavior=PINNED, pinned_version=TWO)
FOLLOW = VersioningOverride(behavior=AUTO_UPGRADE)


class Run:
    """A run with its whole history."""

    def __init__(self, **fields: Any) -> None:
        inherited = fields.pop("inherited_pinned_version", None)
        request = StartWorkflowRequest(
            **{"namespace": "n", "workflow_id": "w", "workflow_type": "W", "task_queue": "q", "request_id": "r"}
            | fields
        )
        decided = decide_start(request, run_id="run", now=T0, key_generation="run", inherited_pinned_version=inherited)
        assert not isinstance(decided, Rejection), decided
        self.state, transition = decided
        self.events = list(transition.events)

    def take(self, outcome: Transition | Rejection) -> Transition:
        assert isinstance(outcome, Transition), outcome
        self.events += outcome.events
        if self.state.is_open:
            folded = fold(self.events, namespace="n", run_id="run")
            assert durable_facts(folded) == durable_facts(self.state)
        return outcome

    def start_task(self) -> TaskToken:
        task = self.state.workflow_task
        assert task is not None
        started = decide_start_workflow_task(
            self.state,
            scheduled_event_id=task.scheduled_event_id,
            attempt=task.attempt,
            session="s",
            identity="w",
            now=T0,
        )
        reply = self.take(started).reply
        return TaskToken(
            namespace="n",
            workflow_id="w",
            run_id="run",
            shard=0,
            run_key=1,
            scheduled_event_id=task.scheduled_event_id,
            attempt=task.attempt,
            lease_id=reply.lease_id,
        )

    def complete(self, token: TaskToken, *commands: c.Command, **fields: Any) -> Transition:
        request = CompleteWorkflowTaskRequest(token=token, commands=commands, **fields)
        return self.take(
            decide_complete_workflow_task(
                self.state,
                request,
                T0,
                session="s",
                new_run_id=lambda: "next",
                started=self.events[0] if isinstance(self.events[0], e.WorkflowExecutionStarted) else None,
            )
        )

    def run_task(self, *commands: c.Command, version: DeploymentVersion | None = ONE, **fields: Any) -> Transition:
        return self.complete(self.start_task(), *commands, deployment_version=version, **fields)

    def update_options(self, override: VersioningOverride | None) -> Transition:
        return self.take(decide_update_options(self.state, options(override), T0))


def options(override: VersioningOverride | None) -> UpdateWorkflowOptionsRequest:
    return UpdateWorkflowOptionsRequest(namespace="n", workflow_id="w", versioning_override=override, identity="me")


def next_run(transition: Transition) -> ExecutionState:
    assert transition.new_run is not None
    state = transition.new_run[0]
    assert isinstance(state, ExecutionState)
    return state


def test_a_run_is_free_until_its_code_pins_it() -> None:
    run = Run()
    assert pinned_version(run.state) is None
    run.run_task(versioning_behavior=PINNED)
    assert (behavior_of(run.state), pinned_version(run.state)) == (PINNED, ONE)


def test_a_run_that_follows_its_deployment_is_pinned_to_nothing() -> None:
    run = Run()
    run.run_task(versioning_behavior=AUTO_UPGRADE)
    assert (pinned_version(run.state), run.state.deployment_version) == (None, ONE)


def test_the_override_comes_before_what_the_code_says() -> None:
    run = Run(versioning_override=PIN_TO_TWO)
    assert pinned_version(run.state) == TWO
    run.run_task(version=TWO, versioning_behavior=AUTO_UPGRADE)
    assert (behavior_of(run.state), pinned_version(run.state)) == (PINNED, TWO)
    run.update_options(FOLLOW)
    assert (behavior_of(run.state), pinned_version(run.state)) == (AUTO_UPGRADE, None)
    run.update_options(None)
    assert (behavior_of(run.state), pinned_version(run.state)) == (AUTO_UPGRADE, None)


def test_moving_a_run_is_one_event_and_the_same_again_none() -> None:
    run = Run()
    run.run_task(versioning_behavior=PINNED)
    (event,) = run.update_options(PIN_TO_TWO).events
    assert isinstance(event, e.WorkflowExecutionOptionsUpdated)
    assert (event.versioning_override, event.unset_versioning_override, event.identity) == (PIN_TO_TWO, False, "me")
    assert run.update_options(PIN_TO_TWO).events == []
    (event,) = run.update_options(None).events
    assert isinstance(event, e.WorkflowExecutionOptionsUpdated)
    assert event.unset_versioning_override
    assert pinned_version(run.state) == ONE
    assert run.update_options(None).events == []


def test_a_move_while_a_worker_holds_the_task_counts_from_the_next_one() -> None:
    run = Run()
    run.run_task(versioning_behavior=PINNED)
    run.take(decide_signal(run.state, SignalWorkflowRequest(**_IDS, signal_name="s", request_id="r1"), T0))
    token = run.start_task()
    assert run.update_options(PIN_TO_TWO).events == []
    assert run.update_options(PIN_TO_TWO).events == []
    assert len(run.state.buffered_events) == 1
    assert pinned_version(run.state) == ONE
    run.complete(token, deployment_version=ONE, versioning_behavior=PINNED)
    assert pinned_version(run.state) == TWO


def test_a_move_makes_no_task_of_its_own_and_keeps_one_that_waits() -> None:
    parked = Run()
    parked.run_task(versioning_behavior=PINNED)
    parked.update_options(PIN_TO_TWO)
    assert parked.state.workflow_task is None
    waiting = Run()
    waiting.update_options(PIN_TO_TWO)
    assert waiting.state.workflow_task is not None


def test_a_run_that_keeps_failing_gets_a_fresh_attempt_where_it_is_moved_to() -> None:
    run = Run()
    for _ in range(3):
        failed = FailWorkflowTaskRequest(
            token=run.start_task(),
            cause=e.WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR,
            failure=Failure(message="no"),
        )
        run.take(decide_fail_workflow_task(run.state, failed, T0))
    task = run.state.workflow_task
    assert task is not None
    assert (task.attempt, task.is_virtual) == (4, True)
    assert task.not_before is not None
    run.update_options(PIN_TO_TWO)
    task = run.state.workflow_task
    assert task is not None
    assert (task.attempt, task.is_virtual, task.not_before) == (1, False, None)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (VersioningOverride(behavior=PINNED), "pinned without a version"),
        (VersioningOverride(behavior=PINNED, pinned_version=DeploymentVersion("billing", "")), "without a version"),
        (VersioningOverride(behavior=AUTO_UPGRADE, pinned_version=ONE), "leave one of them out"),
        (VersioningOverride(behavior=VersioningBehavior.UNSPECIFIED), "must be Pinned or AutoUpgrade"),
    ],
)
def test_an_override_must_be_whole(override: VersioningOverride, says: str) -> None:
    outcome = decide_update_options(Run().state, options(override), T0)
    assert isinstance(outcome, Rejection)
    assert outcome.code is RejectionCode.INVALID_ARGUMENT
    assert says in outcome.message
    with pytest.raises(AssertionError, match=says):
        Run(versioning_override=override)


def test_a_closed_run_is_not_moved() -> None:
    run = Run()
    run.run_task(c.CompleteWorkflowExecution())
    outcome = decide_update_options(run.state, options(FOLLOW), T0)
    assert isinstance(outcome, Rejection)
    assert outcome.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED


@pytest.mark.parametrize(
    ("behavior", "command", "expected"),
    [
        (PINNED, c.ContinueAsNewWorkflowExecution(), ONE),
        (PINNED, c.ContinueAsNewWorkflowExecution(task_queue="q"), ONE),
        (PINNED, c.ContinueAsNewWorkflowExecution(task_queue="other"), None),
        (PINNED, c.ContinueAsNewWorkflowExecution(initial_versioning_behavior=AUTO_UPGRADE), None),
        (AUTO_UPGRADE, c.ContinueAsNewWorkflowExecution(), None),
        (VersioningBehavior.UNSPECIFIED, c.ContinueAsNewWorkflowExecution(), None),
    ],
)
def test_what_continue_as_new_hands_on(
    behavior: VersioningBehavior, command: c.ContinueAsNewWorkflowExecution, expected: DeploymentVersion | None
) -> None:
    run = Run()
    following = next_run(run.run_task(command, versioning_behavior=behavior))
    assert pinned_version(following) == expected


def test_an_override_goes_with_the_chain() -> None:
    run = Run()
    run.run_task(versioning_behavior=AUTO_UPGRADE)
    run.update_options(PIN_TO_TWO)
    run.take(decide_signal(run.state, SignalWorkflowRequest(**_IDS, signal_name="s", request_id="r1"), T0))
    following = next_run(run.run_task(c.ContinueAsNewWorkflowExecution(), version=TWO))
    assert pinned_version(following) == TWO


def test_a_retry_keeps_what_was_handed_on_and_a_cron_run_does_not() -> None:
    fails = c.FailWorkflowExecution(failure=Failure(message="no", info=ApplicationInfo(type="T")))
    retried = Run(inherited_pinned_version=ONE, retry_policy=RetryPolicy())
    assert pinned_version(next_run(retried.run_task(fails, versioning_behavior=PINNED))) == ONE
    fresh = Run(retry_policy=RetryPolicy())
    assert pinned_version(next_run(fresh.run_task(fails, versioning_behavior=PINNED))) is None


def test_a_child_of_a_pinned_parent_begins_pinned_and_then_says_itself() -> None:
    run = Run(inherited_pinned_version=ONE)
    assert (behavior_of(run.state), pinned_version(run.state)) == (PINNED, ONE)
    run.run_task(versioning_behavior=AUTO_UPGRADE)
    assert pinned_version(run.state) is None


def test_a_ramp_takes_its_share_and_only_grows() -> None:
    ids = [f"order-{n}" for n in range(4_000)]
    before: set[str] = set()
    for percentage in (0.0, 1.0, 10.0, 50.0, 99.99, 100.0):
        route = Route(current=ONE, ramping=TWO, ramp_percentage=percentage)
        ramped = {workflow_id for workflow_id in ids if route.version_of(workflow_id) == TWO}
        assert before <= ramped
        assert abs(len(ramped) / len(ids) - percentage / 100) < 0.03
        before = ramped
    assert before == set(ids)


def test_positions_are_the_same_for_ever() -> None:
    assert [ramp_position(text) for text in ("", "order-1", "größe")] == POSITIONS
    assert all(0 <= position < RAMP_STEPS for position in POSITIONS)


def test_versions_as_text() -> None:
    version = DeploymentVersion("billing", "1.2.3")
    assert version.to_canonical_string() == "billing.1.2.3"
    assert DeploymentVersion.from_canonical_string("billing.1.2.3") == version
    with pytest.raises(ValueError, match="no version"):
        DeploymentVersion.from_canonical_string("billing")


_IDS: dict[str, Any] = {"namespace": "n", "workflow_id": "w"}
POSITIONS = [9876, 6429, 5705]
