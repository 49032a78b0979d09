"""A worker behind a link that takes workflow tasks before their cause is durable (docs/adr/0049).

Owns: the two ends of that: `EarlyWire`, with the numbers of early tasks, and `FarWorker`. Never: what a number is good
for (``clew.link.early``, which is the real one), or the wire's misfortunes (`wire`).

How it works: a session of the real link is an epoch of the wire here: a cut ends it. The node's end knows at once, and
has new numbers; what was given out early and not confirmed becomes void at the worker's end when that notices. Until
then the worker goes on, and its answers reach the node, in the epoch that follows or, had they been sent before, never.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from clew.link.calls import TASK_ANSWERS
from clew.link.early import AheadTasks, EarlyNumbers, first_number, worthless
from clew.model.inputs import TaskToken
from clew.service.contract import TaskSink
from tests.simulation.inside import EarlySink, SlowTurns
from tests.simulation.wire import FarSink, Wire
from tests.simulation.workers import SimWorker, Sink, Turns

if TYPE_CHECKING:
    from tests.simulation.node import Node


class FarWorker(SimWorker):
    """See the module docstring."""

    takes_early_tasks = True

    def make_turns(self) -> Turns:
        return SlowTurns(self.loop, self.workflows._finished.put, self._chance)

    def make_sink(self) -> Sink:
        return EarlySink(self)


class EarlyWire(Wire):
    """See the module docstring."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._answering: dict[int, TaskToken] = {}
        self._begin_session()

    def _begin_session(self) -> None:
        self.numbers = EarlyNumbers(first_number(f"{self.lane.name}/{self.epoch}"))
        self.ahead = AheadTasks()

    def call(self, method: str, request: Any) -> asyncio.Future[Any]:
        token = _early(method, request)
        if token is not None:
            self.ahead.answer(token)
        return super().call(method, request)

    def _arrive(self, node: Node, epoch: int, number: int, method: str, request: Any) -> None:
        token = _early(method, request)
        if token is not None and epoch == self.epoch and not self.is_cut and not self.is_mute:
            if self.numbers.is_worthless(token.early):
                self._reply(epoch, number, None, worthless())
                return
            self._answering[number] = token
        super()._arrive(node, epoch, number, method, request)

    def _answered(self, epoch: int, number: int, done: asyncio.Future[Any]) -> None:
        token = self._answering.pop(number, None)
        if token is not None and epoch == self.epoch:
            self.numbers.answered(token)
        super()._answered(epoch, number, done)

    def lose(self, notice_here: float, notice_there: float) -> None:
        self.loop.post(self.lane, notice_here, self.ahead.end_session)
        super().lose(notice_here, notice_there)
        self._begin_session()

    def far_sink(self, epoch: int, sink: TaskSink) -> FarSink:
        return _EarlyFarSink(self, epoch, sink)


class _EarlyFarSink(FarSink):
    """The node's end of such a worker, and what comes of it at the other."""

    def __init__(self, wire: EarlyWire, epoch: int, sink: Any) -> None:
        super().__init__(wire, epoch, sink)
        self._numbers = wire.numbers
        self._ahead = wire.ahead
        self.sink = self.early_sink = sink

    # --- at the node

    def offer_early_workflow_task(self, task: Any) -> bool:
        self._tell("begin_early", self._numbers.number(task))
        return True

    def confirm_workflow_task(self, task: Any) -> None:
        number = self._numbers.durable(task.token.run_id)
        if number:
            self._tell("confirm_early", number)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self._numbers.lost(run_id)
        self._tell("evict_early", run_id)
        super().evict_workflow(namespace, run_id)

    # --- at the worker

    def arrived(self, method: str, args: Any) -> None:
        if method == "begin_early":
            self._ahead.take(self, args[0])
        elif method == "confirm_early":
            self._ahead.confirmed(args[0])
        elif method == "evict_early":
            self._ahead.evicted(self, args[0])
        else:
            super().arrived(method, args)

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        session = self.sink._session()
        if session is not None:
            session.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def note_unanswered(self, token: TaskToken) -> None:
        self.sink.note_unanswered(token)


def _early(method: str, request: Any) -> TaskToken | None:
    """The token of an early task that is answered."""
    if method in TASK_ANSWERS and request.token.early:
        token: TaskToken = request.token
        return token
    return None
