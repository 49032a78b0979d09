"""Worker versions: which version of the code a run may meet (semantics 1.8).

Owns: what a run's behaviour and override mean, the choice between current and ramping version, and the change of an
override. Never: knows which versions are deployed (``engine.deployments`` does).

How it works: a run is *pinned* to one version by its override, or by the behaviour that its code said with the last
completed workflow task; a run that follows a pinned one, and the child of one, begins pinned to the same. Any other run
goes with its deployment: to the ramping version if its workflow id falls into the ramp, else to the current one. The
hash of the id decides, so that a run does not change sides while the ramp grows.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

import msgspec

from clew.core.checks import refuse, sentence
from clew.core.closing import finish
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import expect_news, want_task
from clew.core.transition import Transition
from clew.model import events as e
from clew.model.inputs import UpdateWorkflowOptionsRequest
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.policies import DeploymentVersion, VersioningBehavior, VersioningOverride
from clew.model.rejection import Rejection, RejectionCode

RAMP_STEPS: Final = 10_000
"""A ramp is exact to a hundredth of a percent."""


class Route(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where runs of a task queue go that are not pinned; None stands for workers without versioning.

    Args:
        current: For all runs, but those in the ramp.
        ramping: For those in the ramp.
        ramp_percentage: How many of a hundred workflow ids are in the ramp.
    """

    current: DeploymentVersion | None = None
    ramping: DeploymentVersion | None = None
    ramp_percentage: float = 0.0

    def version_of(self, workflow_id: str) -> DeploymentVersion | None:
        """The version for this workflow."""
        if self.ramp_percentage > 0 and ramp_position(workflow_id) < self.ramp_percentage * (RAMP_STEPS / 100):
            return self.ramping
        return self.current


def ramp_position(workflow_id: str) -> int:
    """Where a workflow id stands in a ramp, from 0 to `RAMP_STEPS` - 1; the same in every process and release."""
    digest = hashlib.blake2b(workflow_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % RAMP_STEPS


def behavior_of(state: ExecutionState) -> VersioningBehavior:
    """What holds for the run: its override's behaviour, else its own."""
    override = state.versioning_override
    return override.behavior if override is not None else state.versioning_behavior


def pinned_version(state: ExecutionState) -> DeploymentVersion | None:
    """The only version that may have this run; None when it goes with its deployment."""
    override = state.versioning_override
    if override is not None:
        return override.pinned_version
    return state.deployment_version if state.versioning_behavior is VersioningBehavior.PINNED else None


def check_override(override: VersioningOverride) -> str:
    """An override: pinned to a whole version, or auto-upgrade without one."""
    version = override.pinned_version
    if override.behavior is VersioningBehavior.PINNED:
        if version is None or not version.deployment_name or not version.build_id:
            return "the versioning override is pinned without a version; name its deployment and its build id"
    elif override.behavior is VersioningBehavior.AUTO_UPGRADE:
        if version is not None:
            return "the versioning override is auto-upgrade, but names a version to be pinned to; leave one of them out"
    else:
        return "the versioning override has no behavior; it must be Pinned or AutoUpgrade"
    return ""


def decide_update_options(
    state: ExecutionState,
    request: UpdateWorkflowOptionsRequest,
    now: datetime,
    *,
    limits: Limits = LIMITS_DEFAULT,
) -> Transition | Rejection:
    """Change the run's versioning override; what is the same already changes nothing.

    A task that a worker holds ends as it began; the next one goes by the new override.
    """
    if not state.is_open:
        return refuse(
            RejectionCode.WORKFLOW_ALREADY_COMPLETED,
            f"Workflow {state.workflow_id!r} is already completed: run {state.run_id!r} has status "
            f"{state.status.value}.",
            run_id=state.run_id,
        )
    override = request.versioning_override
    finding = check_override(override) if override is not None else ""
    if finding:
        return refuse(RejectionCode.INVALID_ARGUMENT, sentence(finding))
    if override == _coming_override(state):
        return Transition()
    step = Step(state, now, limits)
    had_task = state.workflow_task is not None
    expect_news(step)
    step.record(
        e.WorkflowExecutionOptionsUpdated(
            event_id=step.outside_event_id,
            event_time=now,
            versioning_override=override,
            unset_versioning_override=override is None,
            identity=request.identity,
        )
    )
    if had_task:
        want_task(step)
    return finish(step)


def _coming_override(state: ExecutionState) -> VersioningOverride | None:
    """The override once the buffered events are recorded."""
    for event in reversed(state.buffered_events):
        if isinstance(event, e.WorkflowExecutionOptionsUpdated):
            if event.unset_versioning_override:
                return None
            if event.versioning_override is not None:
                return event.versioning_override
    return state.versioning_override


def forget_sticky(state: ExecutionState) -> None:
    """The session that has the run cached must not have it any more."""
    state.sticky_session = ""
    if state.workflow_task is not None and not state.workflow_task.started_event_id:
        state.workflow_task.sticky_session = ""
