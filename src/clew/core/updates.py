"""Updates: requests that the workflow's code may accept or reject, and answers (semantics 1.5 and 2.4).

Owns: admission, the messages by which a workflow task answers, and what becomes of updates that it leaves unanswered.
Never: knows who waits for an update (``engine`` does).

How it works: an admitted update is a fact without an event. It rides on the next workflow task; when none is wanted for
another reason, a speculative one is made. Rejected, it leaves nothing in history; accepted, it is an event, and its
completion another.
"""

from __future__ import annotations

from datetime import datetime

from clew.core.checks import check_id, check_payloads, refuse, sentence
from clew.core.closing import finish
from clew.core.command_checks import Problem
from clew.core.evolve import update_message_id
from clew.core.pending import PendingUpdate, PendingWorkflowTask
from clew.core.replies import SentUpdate, UpdateAdmission
from clew.core.state import ExecutionState
from clew.core.step import Step
from clew.core.tasks import can_schedule, schedule_task
from clew.core.transition import Transition, UpdateSettled
from clew.model import events as e
from clew.model.events import UpdateOutcome, UpdateRequest, WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, UpdateAcceptance, UpdateCompletion, UpdateRejection
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.payload import payloads_size
from clew.model.policies import WorkflowExecutionStatus
from clew.model.rejection import Rejection, RejectionCode

UNANSWERED_UPDATE_TYPE = "UnhandledUpdate"
"""Error type of an update that a workflow task carried and did not answer."""


def decide_admit_update(
    state: ExecutionState, request: UpdateRequest, now: datetime, limits: Limits = LIMITS_DEFAULT
) -> Transition | Rejection:
    """Take in an update; a repeat of one that the run knows says how far that has come.

    Reply: `UpdateAdmission`.
    """
    known = find_update(state, request.update_id)
    if known is not None:
        return Transition(reply=known)
    refusal = _refuse_update(state, request, limits)
    if refusal is not None:
        return refusal
    step = Step(state, now, limits)
    update_id = request.update_id
    state.updates[update_id] = PendingUpdate(
        update_id=update_id,
        message_id=update_message_id(update_id),
        request=request,
        admitted_after_event_id=0 if state.buffered_events else state.next_event_id - 1,
    )
    want_update_task(step)
    step.reply = UpdateAdmission(update_id=update_id, is_new=True)
    return finish(step)


def find_update(state: ExecutionState, update_id: str) -> UpdateAdmission | None:
    """How far the update has come; None when the run does not know it."""
    completed = state.derived.update_ids.get(update_id)
    if completed is not None:
        return UpdateAdmission(
            update_id=update_id,
            accepted_event_id=completed.accepted_event_id,
            completed_event_id=completed.completed_event_id,
        )
    update = state.updates.get(update_id)
    run_id = state.earlier_updates.get(update_id)
    if update is not None and (run_id is None or state.is_open):  # A reset takes updates of the run it closes along.
        return UpdateAdmission(update_id=update_id, accepted_event_id=update.accepted_event_id)
    return UpdateAdmission(update_id=update_id, run_id=run_id) if run_id is not None else None


def _refuse_update(state: ExecutionState, request: UpdateRequest, limits: Limits) -> Rejection | None:
    code = RejectionCode
    if not state.is_open:
        return refuse(
            code.WORKFLOW_ALREADY_COMPLETED,
            f"Workflow {state.workflow_id!r} is closed ({state.status.value}), so it takes no update.",
            run_id=state.run_id,
        )
    finding = (
        check_id("the update id", request.update_id, limits)
        or check_id("the update name", request.name, limits)
        or check_payloads(f"the input of update {request.name!r}", request.input, limits)
    )
    if finding:
        return refuse(code.INVALID_ARGUMENT, sentence(finding))
    if state.status is WorkflowExecutionStatus.PAUSED:
        return refuse(code.WORKFLOW_PAUSED, f"Workflow {state.workflow_id!r} is paused; unpause it, then try again.")
    if state.is_close_attempted and state.is_task_started:
        return refuse(code.WORKFLOW_CLOSING, f"Workflow {state.workflow_id!r} is about to close; try again at once.")
    if state.workflow_task_attempt >= limits.task_attempts_not_ready:
        return refuse(
            code.WORKFLOW_NOT_READY,
            f"Workflow {state.workflow_id!r} cannot take an update now: its workflow task has failed "
            f"{state.workflow_task_attempt - 1} times. Describe the workflow, mend its code, then try again.",
        )
    if len(state.updates) >= limits.updates_in_flight_max:
        return refuse(
            code.LIMIT_EXCEEDED,
            f"Workflow {state.workflow_id!r} has {len(state.updates)} updates in flight, at most "
            f"{limits.updates_in_flight_max} are allowed; wait for one to end.",
        )
    if len(state.updates) + len(state.completed_updates) >= limits.updates_per_run_max:
        return refuse(
            code.LIMIT_EXCEEDED,
            f"This run of workflow {state.workflow_id!r} had {limits.updates_per_run_max} updates, which is the most "
            "one run takes; let it continue as new.",
        )
    in_flight = sum(payloads_size(u.request.input) for u in state.updates.values() if u.request is not None)
    if in_flight + payloads_size(request.input) > limits.updates_bytes_max:
        return refuse(
            code.LIMIT_EXCEEDED,
            f"The updates in flight would take more than {limits.updates_bytes_max} bytes; wait for one to end.",
        )
    return None


def has_admitted(state: ExecutionState) -> bool:
    """Whether an update waits to be accepted or rejected."""
    return any(not update.accepted_event_id for update in state.updates.values())


def want_update_task(step: Step) -> None:
    """Make sure that a workflow task carries the admitted updates."""
    state = step.state
    if state.workflow_task is None and state.first_task_at is None and can_schedule(step):
        schedule_task(step, is_speculative=True)


def send_updates(state: ExecutionState, task: PendingWorkflowTask) -> tuple[SentUpdate, ...]:
    """The updates that ride on a task that is being started."""
    sent: list[SentUpdate] = []
    for update in state.updates.values():
        if update.accepted_event_id == 0 and update.request is not None:
            update.sent_lease_id = task.lease_id
            sent.append(
                SentUpdate(
                    message_id=update.message_id,
                    request=update.request,
                    sequencing_event_id=update.admitted_after_event_id or task.started_event_id - 1,
                )
            )
    return tuple(sent)


# --- answers ---------------------------------------------------------------------------------------------------------


class Messages:
    """The update messages of one answer, by message id, in the order acceptances, rejections, completions."""

    __slots__ = ("by_id",)

    def __init__(self, request: CompleteWorkflowTaskRequest) -> None:
        self.by_id: dict[str, UpdateAcceptance | UpdateRejection | UpdateCompletion] = {}
        for messages in (request.acceptances, request.rejections, request.completions):
            for message in messages:
                self.by_id[message.message_id] = message

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def check(self, state: ExecutionState, request: CompleteWorkflowTaskRequest, limits: Limits) -> Problem | None:
        """The first message that does not fit the updates of the run."""
        cause = WorkflowTaskFailedCause.BAD_UPDATE_MESSAGE
        total = len(request.acceptances) + len(request.rejections) + len(request.completions)
        if len(self.by_id) != total:
            return Problem(cause, "Two update messages of one task have the same message id.")
        accepted: set[str] = set()
        for acceptance in request.acceptances:
            update = state.updates.get(acceptance.update_id)
            if update is None and acceptance.request is None:
                return Problem(cause, f"Update {acceptance.update_id!r} was accepted, but no such update is admitted.")
            if update is not None and update.accepted_event_id:
                return Problem(cause, f"Update {acceptance.update_id!r} was accepted twice.")
            accepted.add(acceptance.update_id)
        for rejection in request.rejections:
            update = state.updates.get(rejection.update_id)
            if (update is not None and update.accepted_event_id) or rejection.update_id in accepted:
                return Problem(cause, f"Update {rejection.update_id!r} was rejected after it had been accepted.")
        for completion in request.completions:
            update = state.updates.get(completion.update_id)
            if completion.update_id not in accepted and (update is None or not update.accepted_event_id):
                return Problem(cause, f"Update {completion.update_id!r} was completed, but it is not accepted.")
            finding = check_payloads(
                f"the result of update {completion.update_id!r}", completion.outcome.result, limits
            )
            if finding:
                return Problem(WorkflowTaskFailedCause.PAYLOADS_TOO_LARGE, sentence(finding))
        return None

    def process(self, step: Step, message_id: str) -> None:
        """Process one message at its place among the commands."""
        message = self.by_id.pop(message_id, None)
        if message is not None:
            _process(step, message)

    def process_rest(self, step: Step) -> None:
        """Process the messages that no command named."""
        for message_id in list(self.by_id):
            self.process(step, message_id)


def _process(step: Step, message: UpdateAcceptance | UpdateRejection | UpdateCompletion) -> None:
    state = step.state
    if isinstance(message, UpdateAcceptance):
        known = state.updates.get(message.update_id)
        step.append(
            e.WorkflowExecutionUpdateAccepted(
                event_id=state.next_event_id,
                event_time=step.now,
                protocol_instance_id=message.update_id,
                accepted_request_message_id=known.message_id if known is not None else message.message_id,
                accepted_request_sequencing_event_id=message.sequencing_event_id,
                accepted_request=_request_to_record(known, message),
            )
        )
        step.effects.append(UpdateSettled(update_id=message.update_id))
    elif isinstance(message, UpdateRejection):
        reject_update(step, message.update_id, message.failure)
    else:
        step.append(
            e.WorkflowExecutionUpdateCompleted(
                event_id=state.next_event_id,
                event_time=step.now,
                update_id=message.update_id,
                accepted_event_id=state.updates[message.update_id].accepted_event_id,
                outcome=message.outcome,
            )
        )
        step.effects.append(UpdateSettled(update_id=message.update_id, outcome=message.outcome))


def _request_to_record(known: PendingUpdate | None, message: UpdateAcceptance) -> UpdateRequest | None:
    """What the caller sent, unless history has it already."""
    if known is None:
        return message.request
    return None if known.admitted_event_id else known.request


def reject_update(step: Step, update_id: str, failure: Failure) -> None:
    """Forget an update that was not accepted, and tell who waits for it."""
    if step.state.updates.pop(update_id, None) is not None:
        step.effects.append(UpdateSettled(update_id=update_id, outcome=UpdateOutcome(failure=failure), rejected=True))


def reject_unanswered(step: Step, lease_id: int) -> None:
    """Reject the updates that the task carried and left without an answer."""
    left = [
        update.update_id
        for update in step.state.updates.values()
        if not update.accepted_event_id and update.sent_lease_id == lease_id
    ]
    for update_id in left:
        failure = Failure(
            message=f"The workflow task neither accepted nor rejected update {update_id!r}; is there a handler for it?",
            info=ApplicationInfo(type=UNANSWERED_UPDATE_TYPE, non_retryable=True),
        )
        reject_update(step, update_id, failure)
