"""A worker that is attached through a link, as its program sees it.

Owns: `RemoteWorker`: credits that are not used, attempts that are not over. Never: calls (`remote` makes them).

How it works: a busy worker has a credit for each task that it has ended. Those of one turn of the loop go as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec

from clew.link import frames as f
from clew.link.calls import decode_activity_task, decode_token, decode_workflow_task, encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.model.inputs import ActivityCancelReason, TaskToken
from clew.service.contract import EarlyTaskSink, TaskSink
from clew.service.reply import Reply
from clew.service.requests import WorkerHello

if TYPE_CHECKING:
    from clew.link.remote import RemoteService

_log: Final = logging.getLogger("clew.link")

ATTACH_AGAIN_SECONDS: Final = 1.0

AttemptKey: TypeAlias = tuple[int, int, int]

FORMER_SESSIONS_MAX: Final = 16
"""Named to a node, the last ones: what a node that died soon after its start had not yet seen to, the next one does."""


@final
class RemoteWorker:
    """The session of one worker, through all its lives (implements ``service.contract.WorkerSession``)."""

    def __init__(self, owner: RemoteService, number: int, hello: WorkerHello, sink: TaskSink) -> None:
        self.number = number
        self.session_id = ""
        self.is_attached = False
        self.held: dict[AttemptKey, TaskToken] = {}
        """Attempts at activities that it was offered and of whose end it has no verdict."""
        self._owner = owner
        self._former_sessions: deque[str] = deque(maxlen=FORMER_SESSIONS_MAX)
        self.hello = hello
        self.sink = sink
        self.early_sink: EarlyTaskSink | None = sink if isinstance(sink, EarlyTaskSink) else None
        self._open_workflow = 0
        self._open_activity = 0
        self._unsent_workflow = 0
        self._unsent_activity = 0
        self._is_polling = True

    def hello_now(self) -> WorkerHello:
        """What it says when it attaches now."""
        return msgspec.structs.replace(
            self.hello,
            held_attempts=tuple(self.held.values()),
            former_sessions=tuple(self._former_sessions),
            takes_early_tasks=self.early_sink is not None,
        )

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        """Allow the engine to offer this many more tasks of each kind."""
        if not self._is_polling:
            return
        self._open_workflow += workflow_tasks
        self._open_activity += activity_tasks
        if self.is_attached:
            if not self._unsent_workflow and not self._unsent_activity:
                self._owner.grant_soon(self)
            self._unsent_workflow += workflow_tasks
            self._unsent_activity += activity_tasks

    def send_grants(self) -> None:
        """Send what was granted in this turn, unless it is told otherwise by now."""
        workflow_tasks, self._unsent_workflow = self._unsent_workflow, 0
        activity_tasks, self._unsent_activity = self._unsent_activity, 0
        if self.is_attached and (workflow_tasks or activity_tasks):
            self._owner.send(f.Grant(self.number, workflow_tasks, activity_tasks))

    def stop_polling(self) -> None:
        """Take back all credits."""
        self._is_polling = False
        self._open_workflow = self._open_activity = 0
        self.stop_offers()

    def stop_offers(self) -> None:
        """Take no more from this node."""
        self._unsent_workflow = self._unsent_activity = 0
        if self.is_attached:
            self._owner.send(f.StopPolling(self.number))

    def note_unanswered(self, token: TaskToken) -> None:
        """Tell the node that an early task will not be answered soon."""
        if self.is_attached:
            self._owner.send(f.Unanswered(self.number, encode_body(token)))

    def suspend(self) -> None:
        """Offer it nothing for now; only the node's end does this."""
        raise NotImplementedError("a link's client is never told that its worker cannot be reached")

    def resume(self) -> None:
        """The end of `suspend`; only the node's end does this."""
        raise NotImplementedError("a link's client is never told that its worker can be reached again")

    def detach(self) -> None:
        """End the session."""
        self._owner.forget_worker(self)
        if self.is_attached:
            self.is_attached = False
            self._owner.send(f.Detach(self.number))

    def begin_again(self) -> None:
        """The node's session is gone: attach to the next."""
        if self.is_attached:
            self.is_attached = False
            self._unsent_workflow = self._unsent_activity = 0
            self._former_sessions.append(self.session_id)
            asyncio.get_running_loop().call_soon(self._owner.attach_again, self)

    def attached_again(self, reply: Reply[str]) -> None:
        """The next node has answered."""
        error = reply.exception()
        if error is None:
            self.session_id = reply.result()
            self.is_attached = True
            self._owner.send(f.Grant(self.number, max(self._open_workflow, 0), max(self._open_activity, 0)))
            if not self._is_polling:
                self.stop_offers()
            return
        _log.warning("link.attach_failed task_queue=%s error=%r", self.hello.task_queue, error)
        asyncio.get_running_loop().call_later(ATTACH_AGAIN_SECONDS, self._try_again)

    def _try_again(self) -> None:
        if not self.is_attached and self._owner.knows(self):
            self._owner.attach_again(self)

    def received(self, message: Any) -> None:
        """Take what the engine has for it."""
        try:
            match message:
                case f.OfferWorkflowTask() if not self.hello.takes_workflow_tasks:
                    raise LinkViolation(CutCode.MALFORMED, "a workflow task for a worker that takes none")
                case f.OfferActivityTask() if not self.hello.takes_activity_tasks:
                    raise LinkViolation(CutCode.MALFORMED, "an attempt at an activity for a worker that takes none")
                case f.OfferWorkflowTask():
                    workflow_task = decode_workflow_task(message.body)
                    self._open_workflow -= 1
                    if workflow_task.token.early:
                        self._owner.ahead.take(self, workflow_task)
                    else:
                        self.sink.offer_workflow_task(workflow_task)
                case f.OfferActivityTask():
                    activity_task = decode_activity_task(message.body)
                    self._open_activity -= 1
                    self.held[attempt_key(activity_task.token)] = activity_task.token
                    self.sink.offer_activity_task(activity_task)
                case f.CancelActivity():
                    token, reason = decode_token(message.token), ActivityCancelReason(message.reason)
                    if reason is not ActivityCancelReason.CANCEL_REQUESTED:
                        self.held.pop(attempt_key(token), None)  # it has been given up, and will not be reported
                    self.sink.cancel_activity(token, reason)
                case f.ConfirmWorkflowTask():
                    self._owner.ahead.confirmed(message.early)
                case _:
                    self._owner.ahead.evicted(self, message.run_id)
                    self.sink.evict_workflow(message.namespace, message.run_id)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise LinkViolation(
                CutCode.MALFORMED, f"{type(message).__name__} that this version cannot read ({error})"
            ) from error


def attempt_key(token: TaskToken) -> AttemptKey:
    """Names one attempt at an activity."""
    return token.shard, token.run_key, token.lease_id
