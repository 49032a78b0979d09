"""One attached worker, at the node's end of a link: what the engine tells it goes out as messages.

Owns: `ServerWorker`, which is the engine's sink and holds the session there, and `EarlyServerSink`, which is the sink
of one that takes workflow tasks early. Never: calls, or when a message goes (`server_session` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import msgspec

from clew.link import frames as f
from clew.link.calls import decode_token, encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.model.inputs import ActivityCancelReason, TaskToken
from clew.service.contract import WorkerSession
from clew.service.requests import ActivityTask, WorkflowTask

if TYPE_CHECKING:
    from clew.link.server_session import ServerSession


@final
class ServerWorker:
    """One attached worker: the engine's sink, and the holder of its session there."""

    __slots__ = ("_open_activity", "_open_workflow", "number", "owner", "session")

    def __init__(self, owner: ServerSession, number: int) -> None:
        self.owner = owner
        self.number = number
        self.session: WorkerSession | None = None
        self._open_workflow = 0
        self._open_activity = 0

    async def attach(self, body: bytes) -> str:
        """Attach to the service."""
        return await self.owner.attach_worker(body, self)

    def grant(self, workflow_tasks: int, activity_tasks: int) -> None:
        """Pass credits on.

        Raises:
            LinkViolation: More than a worker may have, or it is not attached yet.
        """
        if self.session is None:
            raise LinkViolation(CutCode.MALFORMED, f"credits for worker {self.number} before it was attached")
        limit = self.owner.options.credits_max
        self._open_workflow += workflow_tasks
        self._open_activity += activity_tasks
        if min(workflow_tasks, activity_tasks) < 0 or max(self._open_workflow, self._open_activity) > limit:
            raise LinkViolation(CutCode.FLOODED, f"credits of a worker have to be between 0 and {limit}")
        self.session.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def stop_polling(self) -> None:
        """Take back all credits."""
        if self.session is not None:
            self._open_workflow = self._open_activity = 0
            self.session.stop_polling()

    def note_unanswered(self, token: bytes) -> None:
        """Pass on that an early task will not be answered soon.

        Raises:
            LinkViolation: That is no token.
        """
        try:
            early = decode_token(token)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkViolation(CutCode.MALFORMED, f"a token that cannot be read ({error})") from error
        if self.session is not None:
            self.session.note_unanswered(early)

    def suspend(self) -> None:
        """The worker cannot be reached."""
        if self.session is not None:
            self.session.suspend()

    def resume(self) -> None:
        """It can be reached again."""
        if self.session is not None:
            self.session.resume()

    def end(self) -> None:
        """It is gone."""
        if self.session is not None:
            self.session.detach()

    # --- TaskSink ---------------------------------------------------------------------------------------------------

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        """Hand over one workflow task."""
        self._open_workflow -= 1
        self.owner.send(f.OfferWorkflowTask(self.number, encode_body(task)))

    def offer_activity_task(self, task: ActivityTask) -> None:
        """Hand over one attempt of an activity."""
        self._open_activity -= 1
        self.owner.send(f.OfferActivityTask(self.number, encode_body(task)))

    def cancel_activity(self, token: TaskToken, reason: ActivityCancelReason) -> None:
        """Tell a running attempt to stop."""
        self.owner.send(f.CancelActivity(self.number, encode_body(token), reason.value))

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        """The run need not be kept cached."""
        self.owner.send(f.EvictWorkflow(self.number, namespace, run_id))


@final
class EarlyServerSink:
    """The same for a worker that takes workflow tasks early."""

    def __init__(self, worker: ServerWorker) -> None:
        self._worker = worker
        self.owner = worker.owner
        self._numbers = self.owner.early
        self.offer_workflow_task = worker.offer_workflow_task
        self.offer_activity_task = worker.offer_activity_task
        self.cancel_activity = worker.cancel_activity

    def offer_early_workflow_task(self, task: WorkflowTask) -> bool:
        """Send a task ahead of its cause; whether the worker can begin at once, it says itself."""
        if not self.owner.lane.is_bound or self._numbers.is_full:
            return False
        self._worker.offer_workflow_task(self._numbers.number(task))
        return True

    def confirm_workflow_task(self, task: WorkflowTask) -> None:
        """Its cause is durable."""
        number = self._numbers.durable(task.token.run_id)
        if number:
            self.owner.send(f.ConfirmWorkflowTask(self._worker.number, number))

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        """The run need not be kept; what was given out early of it is void."""
        self._numbers.lost(run_id)
        self._worker.evict_workflow(namespace, run_id)
