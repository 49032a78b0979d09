"""The wire between processes: calls that take time, are cut, come twice, and answers that are lost.

Owns: `Wire`, which is one process's end of its link to a node, and speaks the service contract. Never: what is said.

How it works: a call is posted to the node's lane after a delay and done there; the answer is posted back. Calls of one
process may overtake each other, since each takes its own time; what a node says to a worker's sink comes in order. A
cut link loses what is on it in both directions, and both ends notice some time later: the caller's open calls fail as
unavailable (they may have been done), the node ends the sessions of the worker. Or it is cut in one direction: what the
one end says is lost, while the other is heard, until the link breaks. A cut may wait for something to be on the wire: a
request, an answer, or what a node says to a worker. A request may come twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.contract import TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.service.requests import WorkerHello
from tests.simulation.loop import Lane, SimLoop

if TYPE_CHECKING:
    from tests.simulation.node import Node


class WireFaults(msgspec.Struct):
    """How likely each misfortune is, for one message.

    Args:
        slow: It takes up to `slow_seconds` more.
        twice: The request arrives twice.
        lose: The answer is lost: the caller is told that the link broke.
    """

    slow: float = 0.0
    slow_seconds: float = 1.0
    twice: float = 0.0
    lose: float = 0.0


def connection_lost() -> RPCError:
    """What a caller is told whose link broke."""
    return RPCError(
        Rejection(code=RejectionCode.UNAVAILABLE, message="simulated: the link broke; it may have been done; try again")
    )


class Wire:
    """See the module docstring.

    Args:
        loop: The simulation's.
        lane: Of the process at this end.
        node: Gives the node at the other end: the one it had, if that serves, or another; None when none does.
        chance: Decides delays and faults.
        faults: Gives the present faults.
        arrived: Told each call when it reaches a node; gives who is told the answer, unless that is a refusal.
    """

    def __init__(
        self,
        *,
        loop: SimLoop,
        lane: Lane,
        node: Callable[[Node | None], Node | None],
        chance: random.Random,
        faults: Callable[[], WireFaults],
        arrived: Callable[[str, Any], Callable[[Any], None]],
    ) -> None:
        self.loop = loop
        self.lane = lane
        self._choose = node
        self._last: Node | None = None
        self._chance = chance
        self._faults = faults
        self._arrived = arrived
        self.epoch = 0
        """Grows with each cut: what was sent before never arrives after it."""
        self.is_cut = False
        self.is_deaf = False
        """Whether nothing arrives at this end, while what it says is heard at the other."""
        self.is_mute = False
        """Whether nothing arrives at the other end."""
        self._cuts: dict[str, Callable[[], None]] = {}
        """Cuts that wait for something to be on the wire: by what that is."""
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._sessions: list[tuple[Node, WorkerSession]] = []
        self.on_lost: Callable[[], None] | None = None
        """Called in this end's lane when the link is found broken."""

    # --- calls ------------------------------------------------------------------------------------------------------

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda request: self.call(method, request)

    def call(self, method: str, request: Any) -> asyncio.Future[Any]:
        """Make a call of the contract; answers or fails as over a real link."""
        self._count += 1
        number = self._count
        answer: asyncio.Future[Any] = self.loop.create_future()
        node = self._last = self._choose(self._last)
        if node is None or self.is_cut:
            self.loop.post(self.lane, 0.01, _fail, answer)
            return answer
        self._open[number] = answer
        node.wires[self] = None
        self._send(node, number, method, request)
        if self._chance.random() < self._faults().twice:
            self._send(node, -number, method, request)
        return answer

    def _send(self, node: Node, number: int, method: str, request: Any) -> None:
        delay = self._delay()
        self.note_sent("request", delay)
        self.loop.post(node.lane, delay, self._arrive, node, self.epoch, number, method, request)

    def _arrive(self, node: Node, epoch: int, number: int, method: str, request: Any) -> None:
        """In the node's lane."""
        if epoch != self.epoch or self.is_cut or self.is_mute:
            return
        heard = self._arrived(method, request)
        try:
            work = getattr(node.engine, method)(request)
        except RPCError as error:
            self._reply(epoch, number, None, error)
            return
        asyncio.ensure_future(_awaited(work, heard)).add_done_callback(lambda done: self._answered(epoch, number, done))

    def _answered(self, epoch: int, number: int, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            self._reply(epoch, number, None, connection_lost())
            return
        error = done.exception()
        self._reply(epoch, number, None if error is not None else done.result(), error)

    def _reply(self, epoch: int, number: int, value: Any, error: BaseException | None) -> None:
        if number < 0:
            return
        if self._chance.random() < self._faults().lose:
            value, error = None, connection_lost()
        delay = self._delay()
        self.note_sent("answer", delay)
        self.loop.post(self.lane, delay, self._settle, epoch, number, value, error)

    def _settle(self, epoch: int, number: int, value: Any, error: BaseException | None) -> None:
        if self.is_deaf:
            return
        answer = self._open.pop(number, None)
        if epoch != self.epoch or answer is None or answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def _delay(self) -> float:
        faults, chance = self._faults(), self._chance
        delay = chance.choice((0.0, 0.0002, 0.001, 0.003))
        return delay + chance.random() * faults.slow_seconds if chance.random() < faults.slow else delay

    # --- sessions of workers ----------------------------------------------------------------------------------------

    async def attach_worker(self, hello: WorkerHello, sink: TaskSink) -> SessionEnd:
        """Attach a worker; what the engine says to the sink arrives here in order."""
        node = self._last = self._choose(self._last)
        if node is None or self.is_cut:
            await asyncio.sleep(0.01)
            raise connection_lost()
        answer: asyncio.Future[SessionEnd] = self.loop.create_future()
        self._count += 1
        self._open[self._count] = answer
        node.wires[self] = None
        self.loop.post(node.lane, self._delay(), self._attach, node, self.epoch, self._count, hello, sink)
        return await answer

    def _attach(self, node: Node, epoch: int, number: int, hello: WorkerHello, sink: TaskSink) -> None:
        if self.is_mute:
            return

        async def attach() -> SessionEnd:
            session = await node.engine.attach_worker(hello, self.far_sink(epoch, sink))
            if epoch != self.epoch:
                session.detach()
            self._sessions.append((node, session))
            return SessionEnd(self, node, epoch, session)

        asyncio.ensure_future(attach()).add_done_callback(lambda done: self._answered(epoch, number, done))

    def far_sink(self, epoch: int, sink: TaskSink) -> FarSink:
        """A worker's end as the node has it."""
        return FarSink(self, epoch, sink)

    # --- cuts -------------------------------------------------------------------------------------------------------

    def cut(self, seconds: float, notice_here: float, notice_there: float, way: str = "") -> None:
        """Nothing passes for so long; each end notices after its time.

        Args:
            seconds: How long.
            notice_here, notice_there: After how long each end knows.
            way: ``deaf`` or ``mute``: this end hears, or says, nothing for so long, and only then the link breaks.
        """
        self.loop.note(f"cut {self.lane.name} {way} {seconds:.3f}")
        if way:
            self.is_deaf, self.is_mute = way == "deaf", way == "mute"
            self.loop.post(self.loop.root, seconds, self._break, notice_here, notice_there)
            return
        self.is_cut = True
        self.lose(notice_here, notice_there)
        self.loop.post(self.loop.root, seconds, self._mend)

    def _break(self, notice_here: float, notice_there: float) -> None:
        self._mend()
        self.lose(notice_here, notice_there)

    def _mend(self) -> None:
        self.is_cut = self.is_deaf = self.is_mute = False

    def cut_when(self, what: str, cut: Callable[[], None], seconds_max: float) -> None:
        """Begin a cut as soon as this is on the wire, or at last after so long."""
        self._cuts[what] = cut
        self.loop.post(self.loop.root, seconds_max, self._cut_at_last, what, cut)

    def _cut_at_last(self, what: str, cut: Callable[[], None]) -> None:
        if self._cuts.get(what) is cut:
            del self._cuts[what]
            cut()

    def note_sent(self, what: str, delay: float) -> None:
        """Something is on the wire for so long."""
        cut = self._cuts.pop(what, None) if self._cuts else None
        if cut is not None:
            self.loop.post(self.loop.root, delay * self._chance.random(), cut)

    def give_up(self, node: Node) -> None:
        """The node at the other end is silent."""
        if self._last is node:
            self._last = None
            self.lose(0.0, 0.0)

    def lose(self, notice_here: float, notice_there: float) -> None:
        """The link breaks, whether or not it can be made again at once."""
        self.epoch += 1
        sessions, self._sessions = self._sessions, []
        for node, session in sessions:
            self.loop.post(node.lane, notice_there, session.detach)
        opened, self._open = self._open, {}
        self.loop.post(self.lane, notice_here, self._notice, list(opened.values()))

    def _notice(self, opened: list[asyncio.Future[Any]]) -> None:
        for answer in opened:
            if not answer.done():
                answer.set_exception(connection_lost())
        if self.on_lost is not None:
            self.on_lost()


class SessionEnd:
    """The worker's end of its session."""

    def __init__(self, wire: Wire, node: Node, epoch: int, session: WorkerSession) -> None:
        self.session_id = session.session_id
        self._wire = wire
        self._node = node
        self._epoch = epoch
        self._session = session

    @property
    def is_alive(self) -> bool:
        return self._epoch == self._wire.epoch

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        self._tell("grant", workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def stop_polling(self) -> None:
        self._tell("stop_polling")

    def detach(self) -> None:
        self._tell("detach")

    def note_unanswered(self, token: TaskToken) -> None:
        self._tell("note_unanswered", token=token)

    def _tell(self, method: str, **values: Any) -> None:
        if self.is_alive:
            self._wire.loop.post(self._node.lane, 0.0, self._arrive, method, values)

    def _arrive(self, method: str, values: dict[str, Any]) -> None:
        if self.is_alive and not self._wire.is_mute:
            getattr(self._session, method)(**values)


class FarSink:
    """A worker's sink as the engine sees it: what it is told travels, in order."""

    def __init__(self, wire: Wire, epoch: int, sink: TaskSink) -> None:
        self._wire = wire
        self._epoch = epoch
        self._sink = sink
        self._last_at = 0.0

    def offer_workflow_task(self, task: Any) -> None:
        self._tell("offer_workflow_task", task)

    def offer_activity_task(self, task: Any) -> None:
        self._tell("offer_activity_task", task)

    def cancel_activity(self, token: Any, reason: Any) -> None:
        self._tell("cancel_activity", token, reason)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self._tell("evict_workflow", namespace, run_id)

    def _tell(self, method: str, *args: Any) -> None:
        loop = self._wire.loop
        at = self._last_at = max(loop.time() + self._wire._delay(), self._last_at + 1e-7)
        self._wire.note_sent("task", at - loop.time())
        loop.post(self._wire.lane, at - loop.time(), self._arrive, method, args)

    def _arrive(self, method: str, args: Any) -> None:
        wire = self._wire
        if self._epoch == wire.epoch and not wire.is_cut and not wire.is_deaf:
            self.arrived(method, args)

    def arrived(self, method: str, args: Any) -> None:
        """At the worker."""
        getattr(self._sink, method)(*args)


def _fail(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(connection_lost())


async def _awaited(work: Any, heard: Callable[[Any], None]) -> Any:
    value = await work
    heard(value)
    return value
