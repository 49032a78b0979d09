"""Workflow tasks that go over a link before their cause is durable (docs/adr/0049).

Owns: how both ends know whether an answer rests on what was lost: `EarlyNumbers` at the node's, `AheadTasks` at the
client's. Never: messages (the sessions have them), what such a task may do (``service.contract.EarlyTaskSink``), or
when its cause is written (``engine.early``).

How it works: the numbers by which the engine knows a task (its events, its lease) are given to others when the task's
cause is lost, and an answer may be on its way at that moment. So each early task carries a number of its own in its
token, which every answer brings along. Nobody else ever gets it: a session has its own range. The node keeps the
numbers of what was lost, and refuses answers that bear one, or one of another session: what a former session had not
confirmed is void at the client as soon as a new one begins.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple, Protocol, final

import msgspec

from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.contract import EarlyTaskSink, TaskSink
from clew.service.errors import RPCError
from clew.service.requests import WorkflowTask

LOST_MAX: Final = 100_000
"""So many lost causes are remembered for one session; after that it gets no early tasks."""

_RANGE_BYTES: Final = 5
_RANGE_BITS: Final = 13


def first_number(session: str) -> int:
    """Where the range of a session begins, by its secret name: far from that of any other."""
    digest = hashlib.blake2b(session.encode(), digest_size=_RANGE_BYTES).digest()
    return (int.from_bytes(digest) << _RANGE_BITS) + 1


@final
class EarlyNumbers:
    """The early tasks of one session, at the node's end.

    Args:
        first: The first number to give.
    """

    def __init__(self, first: int) -> None:
        self._first = self._next = first
        self._open: dict[str, int] = {}
        """By run: the number of its early task, until its cause is known to be durable, or lost."""
        self._lost: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether too much was lost to be remembered."""
        return len(self._lost) > LOST_MAX

    def number(self, task: WorkflowTask) -> WorkflowTask:
        """The task as it goes to the client."""
        token, number = task.token, self._next
        self._next = number + 1
        self._open[token.run_id] = number
        return msgspec.structs.replace(task, token=msgspec.structs.replace(token, early=number))

    def durable(self, run_id: str) -> int:
        """The cause of a run's early task is durable; gives its number, 0 when it has none that is open."""
        return self._open.pop(run_id, 0)

    def lost(self, run_id: str) -> None:
        """A run was evicted: if it has an early task, its cause is lost."""
        number = self._open.pop(run_id, 0)
        if number:
            self._lost.add(number)

    def answered(self, token: TaskToken) -> None:
        """An answer was taken, so its cause is durable, or refused by the engine, which knows what became of that."""
        if self._open.get(token.run_id) == token.early:
            del self._open[token.run_id]

    def is_worthless(self, number: int) -> bool:
        """Whether what bears this number rests on what was lost, or on another session."""
        return not self._first <= number < self._next or number in self._lost


class AheadWorker(Protocol):
    """A worker that takes early tasks, at the client's end."""

    sink: TaskSink
    early_sink: EarlyTaskSink | None

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        """Give back the slot of a task that it was never given."""
        ...

    def note_unanswered(self, token: TaskToken) -> None:
        """Tell the node that no answer will come soon."""
        ...


class _AheadTask(NamedTuple):
    worker: AheadWorker
    task: WorkflowTask
    is_begun: bool


@final
class AheadTasks:
    """The early tasks at the client's end that have no answer, and of whose cause nothing was heard."""

    def __init__(self) -> None:
        self._tasks: dict[int, _AheadTask] = {}
        self._first = self._last = 0
        """Of the numbers that came in this session."""

    def take(self, worker: AheadWorker, task: WorkflowTask) -> None:
        """Let a worker begin with a task, or keep it until its cause is durable."""
        number = self._last = task.token.early
        self._first = self._first or number
        # Noted before it begins: its answer takes it out.
        self._tasks[number] = _AheadTask(worker, task, True)
        if worker.early_sink is None or not worker.early_sink.offer_early_workflow_task(task):
            self._tasks[number] = _AheadTask(worker, task, False)
            worker.note_unanswered(task.token)

    def answer(self, token: TaskToken) -> None:
        """A task is about to be answered.

        Raises:
            RPCError: It was given out by a session that is over, before its cause was durable.
        """
        if not self._first <= token.early <= self._last:
            raise worthless()
        self._tasks.pop(token.early, None)

    def confirmed(self, number: int) -> None:
        """The cause of a task is durable."""
        ahead = self._tasks.pop(number, None)
        if ahead is None:
            return
        if ahead.is_begun and ahead.worker.early_sink is not None:
            ahead.worker.early_sink.confirm_workflow_task(ahead.task)
        else:
            ahead.worker.sink.offer_workflow_task(ahead.task)

    def evicted(self, worker: AheadWorker, run_id: str) -> None:
        """A run was evicted, of which the worker is told apart from this: what it has early of that is void."""
        for number, ahead in list(self._tasks.items()):
            if ahead.worker is worker and ahead.task.token.run_id == run_id:
                del self._tasks[number]
                if not ahead.is_begun:
                    worker.grant(workflow_tasks=1)

    def detached(self, worker: AheadWorker) -> None:
        """A worker is gone."""
        self._tasks = {number: ahead for number, ahead in self._tasks.items() if ahead.worker is not worker}

    def end_session(self) -> None:
        """Nobody will say any more what became of their causes: the workers forget the runs."""
        tasks, self._tasks = self._tasks, {}
        self._first = self._last = 0
        for ahead in tasks.values():
            token = ahead.task.token
            if ahead.is_begun:
                ahead.worker.sink.evict_workflow(token.namespace, token.run_id)
            else:
                ahead.worker.grant(workflow_tasks=1)


def worthless() -> RPCError:
    """What is told to the sender of an answer that rests on what was lost, or on a session that is over."""
    return RPCError(
        Rejection(
            code=RejectionCode.WORKFLOW_TASK_NOT_FOUND,
            message=(
                "the workflow task was given out before what had caused it was durable, and that was lost, or the "
                "session that gave it out is over; the answer counts for nothing, and the task will be given out again"
            ),
        )
    )
