"""Workflow tasks that are given to a worker of this process before their cause is durable (docs/adr/0029).

Owns: what becomes of such tasks: when their cause is durable, and that nothing is left of them when it is lost.
Never: lets anything but workflow code see what is not durable; gives out a task (``engine.express`` does).

How it works: workflow code acts on nothing but its own memory, so it may run on facts that are on their way to the
store, as long as what it asks for goes no further than they have. A worker in this process says of each task whether it
can be begun at once, on the service loop's own thread. Then the answer usually comes before the pipeline writes the
cause, and *joins* it: one row of history, one of the run, one guard for both. An answer that comes later is a
transition of its own, which *rests on* the cause.

The memory of a run is given up as soon as anything of it fails to be committed, and that is where the worker is told to
forget the run, before anybody else hears of it: its machine has seen events that will never have been, and other ones
will get their numbers. For the same reason an answer that rests on a cause which was lost is never decided again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clew.engine.early_causes import ANSWERED, BEGUN, DURABLE, EVICTED, EarlyCause
from clew.engine.express_tasks import ExpressSubmission
from clew.engine.matching import Matcher, Session
from clew.engine.pipeline import CommitPipeline
from clew.engine.runs import RunEntry
from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import WorkflowTask

ANSWER_SECONDS_MAX: Final = 0.05
"""How long the cause of a task that went over a link is kept back for its answer. Under load answers take ten or twenty
milliseconds; a lone one takes less than one."""

_WORTHLESS: Final = (
    "the workflow task was given out before what had caused it was durable, and that was lost; the answer to it counts "
    "for nothing, and the task will be given out again"
)


class EarlyTasks:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self, matcher: Matcher, pipeline: CommitPipeline) -> None:
        self._matcher = matcher
        self._pipeline = pipeline

    def begin(self, cause: EarlyCause, task: WorkflowTask, session: Session) -> bool:
        """Give out the task of a transition that took the general way, if it can be begun at once, and hold the
        transition for its answer; gives whether that is done."""
        entry, sink = cause.entry, session.early_sink
        if (
            sink is None
            or entry.early is not None
            or entry.unsettled_count  # It might overtake a task that waits for its commit.
            or entry.is_discarded
            or entry.queries
            or entry.queries_on_task
            or not sink.offer_early_workflow_task(task)
        ):
            return False
        cause.session = cause.early_session = session
        cause.task = task
        cause.early = BEGUN
        entry.early = cause
        self.keep_back(cause, session)
        return True

    def keep_back(self, cause: EarlyCause, session: Session) -> None:
        """Submit the cause of a task that is begun, so that an answer which comes soon is written with it."""
        if not session.hello.takes_early_tasks:
            self._pipeline.hold(cause)
        elif session.early_pauses_left:
            session.early_pauses_left -= 1
            self._pipeline.submit(cause)
        else:
            self._pipeline.hold_for(cause, ANSWER_SECONDS_MAX)

    def note_answered_in_time(self, cause: EarlyCause) -> None:
        """An answer is written with its cause."""
        if cause.held_at and cause.early_session is not None:
            cause.early_session.early_pauses_next = 1

    def note_unanswered(self, entry: RunEntry, token: TaskToken) -> None:
        """The worker says that it will not answer soon: the cause is written at once."""
        cause = self.rests_on(entry, token)
        if cause is not None and cause.early == BEGUN and entry.open_head is cause:
            cause.note_overdue()
            self._pipeline.release(cause)

    def take_answer(self, cause: EarlyCause) -> bool:
        """Whether an answer for the general way comes in time to be written with its cause; it rests on that then."""
        if cause.early != BEGUN or cause.entry.open_head is not cause:
            return False
        cause.early = ANSWERED
        self.note_answered_in_time(cause)
        return True

    def rests_on(self, entry: RunEntry, token: TaskToken) -> EarlyCause | None:
        """What gave out the task of this token before it was durable, which it still is not."""
        cause = entry.early
        if cause is None or cause.task is None or cause.task.token.lease_id != token.lease_id:
            return None
        return cause

    def rest(self, entry: RunEntry, answer: ExpressSubmission, token: TaskToken) -> None:
        """Note that an answer which is a transition of its own rests on a cause that is not durable yet."""
        cause = self.rests_on(entry, token)
        if cause is not None:
            cause.early = ANSWERED
            answer.rests_on = cause

    def note_durable(self, cause: EarlyCause) -> bool:
        """An early task's cause is durable; gives whether its task is still to be offered in the usual way."""
        entry, task, session = cause.entry, cause.task, cause.session
        stage, cause.early = cause.early, DURABLE
        if entry.early is cause:
            entry.early = None
        if stage == BEGUN:
            assert session is not None, "what is begun has a session"
            assert isinstance(task, WorkflowTask), "what is begun is a workflow task"
            if session.early_sink is not None and session.is_attached:
                session.early_sink.confirm_workflow_task(task)
            return False
        if stage == EVICTED and session is not None and isinstance(task, WorkflowTask):
            # Its worker has given the slot back, and got nothing for it.
            return self._matcher.use_workflow_credit(session)
        return not isinstance(task, WorkflowTask)

    def may_offer_again(self, cause: EarlyCause) -> bool:
        """Whether the early task of a cause that may or may not be durable can be offered, should it prove to be so."""
        return cause.session is not None and self._matcher.use_workflow_credit(cause.session)

    def on_discarded(self, entry: RunEntry) -> None:
        """The run's memory is given up: the worker that is ahead of it must forget the run."""
        cause = entry.early
        if cause is None:
            return
        entry.early = None
        cause.early = EVICTED
        session = cause.early_session
        if session is not None and session.is_attached:
            session.sink.evict_workflow(entry.state.namespace, entry.state.run_id)

    def when_durable(self, entry: RunEntry, cause: EarlyCause, reply: Reply[None], go_on: Callable[[], None]) -> None:
        """Go on with an unusual answer once the cause of its task is durable; refuse it if that is lost."""

        if entry.open_head is cause:
            self._pipeline.release(cause)

        def settled() -> None:
            if cause.early == DURABLE:
                go_on()
            elif cause.early == EVICTED:
                reply.set_exception(worthless())
            else:
                # A later change of the run was heard of before it.
                self._pipeline.after_current(entry, settled)

        self._pipeline.after_current(entry, settled)


def worthless() -> RPCError:
    """What is told to the sender of an answer whose cause was lost; no repeat will be taken."""
    return RPCError(Rejection(code=RejectionCode.WORKFLOW_TASK_NOT_FOUND, message=_WORTHLESS))
