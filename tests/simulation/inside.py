"""A worker that lives in an engine node's process, as an embedded one does, and takes tasks early.

Owns: its wire, which is no wire at all, and when its turns are run. Never: what the worker does (`workers`).

How it works: it is a `SimWorker` in the node's lane, so it dies with the node, and calls go straight to the engine. A
task that is offered early is taken as often as chance says; its turn is run at once after the call, before the node
writes what has caused it, or some moments later, when that is on its way, or long durable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from clew.model.inputs import TaskToken
from clew.service.requests import WorkerHello, WorkflowTask
from tests.simulation.answers import REPORTS, Answers
from tests.simulation.outside import Outside
from tests.simulation.places import MAIN, named
from tests.simulation.workers import SimWorker, Sink, Turns

if TYPE_CHECKING:
    from tests.simulation.node import Node

MOMENTS = (0.0, 0.0, 0.0, 0.0005, 0.003, 0.05)
"""How long a turn waits for its thread."""


def start_inside(
    node: Node,
    *,
    chance: random.Random,
    outside: Outside,
    answers: Answers,
    cached_runs: int,
    slots: int,
    namespace: str = MAIN,
) -> InsideWorker:
    """Begin a worker in the process of a node that serves."""
    worker = InsideWorker(
        named(namespace, f"inside.{node.name}"),
        loop=node.loop,
        lane=node.lane,
        wire=_NoWire(node, answers),  # type: ignore[arg-type]
        chance=chance,
        outside=outside,
        cached_runs=cached_runs,
        slots=slots,
        namespace=namespace,
    )
    worker.start()
    return worker


class InsideWorker(SimWorker):
    """See the module docstring."""

    def make_turns(self) -> Turns:
        return SlowTurns(self.loop, self.workflows._finished.put, self._chance)

    def make_sink(self) -> Sink:
        return EarlySink(self)


class SlowTurns(Turns):
    """Turns wait for their thread; most can be lent."""

    def __init__(self, loop: Any, finish: Any, chance: random.Random) -> None:
        super().__init__(loop, finish)
        self._chance = chance

    def submit(self, turn: Any) -> None:
        moment = self._chance.choice(MOMENTS)
        if moment:
            self._loop.call_later(moment, self._run, turn)
        else:
            super().submit(turn)

    def lend(self, turn: Any) -> bool:
        if self._chance.random() < 0.1:
            return False
        self.submit(turn)
        return True


class EarlySink(Sink):
    """The end of a worker that takes tasks early."""

    def offer_early_workflow_task(self, task: WorkflowTask) -> bool:
        session = self._session()
        return self._worker.workflows.offer_early(
            task,
            lambda: session.grant(workflow_tasks=1) if session is not None else None,
            lambda task: self.note_unanswered(task.token),
        )

    def note_unanswered(self, token: TaskToken) -> None:
        session = self._session()
        if session is not None:
            session.note_unanswered(token)

    def confirm_workflow_task(self, task: WorkflowTask) -> None:
        self._worker.workflows.confirm(task)


class _NoWire:
    """The calls of a process to itself."""

    on_lost: Any = None

    def __init__(self, node: Node, answers: Answers) -> None:
        self._node = node
        self._answers = answers

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        call = getattr(self._node.engine, method)
        return partial(self._report, method, call) if method in REPORTS else call

    def _report(self, method: str, call: Callable[[Any], Awaitable[Any]], request: Any) -> asyncio.Future[Any]:
        """Make a call whose answer is judged."""
        heard = self._answers.arrived(method, request)
        answer = asyncio.ensure_future(call(request))
        answer.add_done_callback(lambda done: None if done.cancelled() or done.exception() else heard(done.result()))
        return answer

    async def attach_worker(self, hello: WorkerHello, sink: Any) -> _NearSession:
        return _NearSession(await self._node.engine.attach_worker(hello, sink))


class _NearSession:
    """A session that lasts as long as its node."""

    is_alive = True

    def __init__(self, session: Any) -> None:
        self._session = session
        self.session_id = session.session_id
        self.grant = session.grant
        self.stop_polling = session.stop_polling
        self.note_unanswered = session.note_unanswered
        self.detach = session.detach
