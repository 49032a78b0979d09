"""The fleet, as a node sees it and talks to it.

Owns: `Fleet`, what this node tells the others and what it knows of their workers. Never: acts on what others say
(``engine.reactions`` does), or keeps leases (``engine.nodes``).

How it works: there are two ways to tell another node something. A *hint* may get lost, and something slower stands
behind it. *Mail* is a row that the other node takes, woken by a hint, or else at its next renewal; it is for what
nobody else would notice: a question for workflow code and its answer, an attempt that should stop, an update that was
rejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from clew.core.transition import UpdateSettled
from clew.engine.background import Background
from clew.engine.hints import (
    ALL_NODES,
    FleetChanged,
    Hint,
    Hints,
    MailWaits,
    QueueHasTasks,
    RowToShare,
    RunRerouted,
    SettingsChanged,
    SettingsKnown,
    StickyTask,
)
from clew.engine.ids import NODE_NUMBERS, TimedIds
from clew.engine.mail import Answer, Ask, CancelAttempt, Mail, UpdateRejected, encode_mail
from clew.engine.node_clock import NodeClock
from clew.engine.nodes import LEASE_DEFAULT, Nodes
from clew.engine.peers import Attached, Peers, Presence
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.entropy import Entropy
from clew.ports.notifier import Notifier
from clew.ports.store import FleetView, Store, StoreError, TaskRow
from clew.service.errors import RPCError
from clew.service.requests import ActivityCancelReason, QueryWorkflowRequest, QueryWorkflowResponse, TaskToken

if TYPE_CHECKING:
    from clew.core.transition import Transition
    from clew.engine.reactions import Reactions
    from clew.engine.runs import RunEntry

logger: Final = logging.getLogger("clew.engine")

ANSWER_SECONDS: Final = 12.0
"""How long a question sent to another node waits; that node's own patience with its worker is shorter."""

SPREAD_SECONDS: Final = 1.0
"""How long a change of settings waits for others to follow; a node that missed it follows within a lease time."""

QUEUES_REMEMBERED_MAX: Final = 1_000
ROWS_SHARED_MAX: Final = 2_000
"""With one worker that comes; the claims on the others end after a while."""

_presence_decoder: Final = msgspec.json.Decoder(Presence)


def _nothing_is_known(_: str) -> bool:
    return False


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node takes part in a fleet.

    Args:
        notifier: Carries hints between the nodes; the engine closes it.
        lease: How long a node that is silent counts as alive; timers are late by at most this when a node dies.
        address: Where this node can be reached, for people.
        process: The mark of this process, by which others may find that it is over; empty when that cannot be told.
        has_ended: Whether the process with a mark is known to be over.
    """

    notifier: Notifier
    lease: timedelta = LEASE_DEFAULT
    address: str = ""
    process: str = ""
    has_ended: Callable[[str], bool] = _nothing_is_known


class Fleet(Peers):
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self, store: Store, clock: NodeClock, entropy: Entropy, settings: FleetSettings) -> None:
        self._store = store
        self._entropy = entropy
        self.lease = settings.lease
        self._process = settings.process
        self._has_ended = settings.has_ended
        self.ids = TimedIds(clock)
        self._number = 0
        self.hints = Hints(settings.notifier, on_hint=self._on_hint, on_gap=self._on_gap)
        self.nodes = Nodes(store, clock, entropy, lease=settings.lease, address=settings.address, events=self)
        self._bodies: dict[str, bytes] = {}
        self._workers: dict[str, list[Attached]] = {}
        self._asked: dict[str, asyncio.Future[QueryWorkflowResponse]] = {}
        self._setting_changes = 0
        self._spreading: dict[int, tuple[set[str], asyncio.Future[None]]] = {}
        """The nodes that have not yet followed a change of settings, and who waits for them."""
        self._queued_at: dict[tuple[str, str], float] = {}
        """When this node last queued rows, by namespace and task queue."""
        self._loop = asyncio.get_running_loop()
        self._background = Background("fleet")
        self._reactions: Reactions | None = None

    async def start(self, reactions: Reactions) -> None:
        """Join the fleet.

        Raises:
            StoreError: The store cannot be read or written.
        """
        self._reactions = reactions
        await self.nodes.start()

    async def close(self) -> None:
        """Leave the fleet."""
        await self.nodes.close()
        await self._background.cancel()
        await self.hints.close()

    # --- the view ---------------------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Never: another node may come at any moment."""
        return False

    def own_shards(self) -> Sequence[int]:
        """The shards that this node holds."""
        return self.nodes.held

    def owns(self, shard: int) -> bool:
        """Whether this node holds the shard."""
        return self.nodes.holds(shard)

    def does_housekeeping(self, key: str) -> bool:
        """Whether this node holds the shard that stands for `key`."""
        return self.nodes.holds(sum(key.encode()) % self._store.shard_count)

    def is_elsewhere(self, session_id: str) -> bool:
        """Whether the session belongs to another node that lives."""
        return node_of(session_id) in self.nodes.live

    def workers(self, namespace: str, task_queue: str | None = None) -> Iterable[Attached]:
        """The workers attached to other nodes that live."""
        return [
            worker
            for node_id, workers in self._workers.items()
            if node_id in self.nodes.live
            for worker in workers
            if worker.hello.namespace == namespace and task_queue in (None, worker.hello.task_queue)
        ]

    async def refresh(self) -> None:
        """Read the view of the fleet; what cannot be read stays as it was."""
        try:
            await self.nodes.look_now()
        except StoreError as error:
            logger.warning("fleet.view_unread error=%s", error)

    async def announce(self) -> None:
        """Write what this node's workers poll."""
        try:
            await self.nodes.tell_news()
        except StoreError as error:
            logger.warning("fleet.workers_not_announced error=%s", error)
            self.nodes.look_soon()

    async def spread_settings(self) -> None:
        """Have the others read namespaces and routes of worker versions; wait until they have, though not long."""
        if not (self.nodes.live and self.hints.is_connected):
            return
        self._setting_changes += 1
        change, missing = self._setting_changes, set(self.nodes.live)
        spread: asyncio.Future[None] = self._loop.create_future()
        self._spreading[change] = missing, spread
        try:
            self.hints.send(ALL_NODES, SettingsChanged(change))
            await asyncio.wait([spread], timeout=SPREAD_SECONDS)
        finally:
            del self._spreading[change]
        if missing:
            logger.warning("fleet.settings_not_confirmed nodes=%s", ", ".join(sorted(missing)))

    def on_settings_known(self, sender: str, hint: SettingsKnown) -> None:
        """Another node goes by what this one has changed."""
        missing, spread = self._spreading.get(hint.change, (set[str](), None))
        missing.discard(sender)
        if not missing and spread is not None and not spread.done():
            spread.set_result(None)

    # --- what `Nodes` tells -----------------------------------------------------------------------------------------

    def describe_node(self) -> bytes:
        """The workers attached here, and the node's number."""
        presence = Presence(number=self._number, workers=self._parts().attached(), process=self._process)
        return msgspec.json.encode(presence)

    def is_over(self, body: bytes) -> bool:
        """Whether the process of the node that describes itself so is known to have ended."""
        return self._has_ended(_decode_presence(body).process)

    async def on_joining(self) -> None:
        """Take a number that no other node is known to have."""
        self._number = await self._store.reserve_run_keys(1) % NODE_NUMBERS

    async def on_joined(self, node_id: str, old_id: str, view: FleetView) -> None:
        """This node has an id now."""
        others = {_decode_presence(node.body).number for node in view.nodes if node.node_id != node_id}
        while self._number in others:
            # Of two that came at once with one number, the later at least sees the other here.
            self._number = await self._store.reserve_run_keys(1) % NODE_NUMBERS
        self.ids.renumber(self._number)
        await self.hints.listen(node_id)
        self._parts().on_joined(node_id, old_id)

    def on_view(self, view: FleetView, new: set[str], gone: set[str]) -> None:
        """There is a fresh view of the fleet."""
        for node in view.nodes:
            if node.node_id != self.nodes.node_id and self._bodies.get(node.node_id) != node.body:
                self._bodies[node.node_id] = node.body
                self._learn_workers(node.node_id, _decode_presence(node.body).workers)
        for node_id in gone:
            self._bodies.pop(node_id, None)
            self._workers.pop(node_id, None)
        parts = self._parts()
        if view.has_mail:
            parts.fetch_mail()
        parts.on_nodes(new, gone)

    def _learn_workers(self, node_id: str, workers: list[Attached]) -> None:
        """Workers that came just now may have missed rows that this node queued before it knew of them."""
        known = {worker.session_id for worker in self._workers.get(node_id, ())}
        for worker in workers:
            if worker.former_sessions:
                self._parts().on_came_back(worker.hello.namespace, worker.former_sessions)
        self._workers[node_id] = workers
        since = self._loop.time() - self.lease.total_seconds()
        new = [worker for worker in workers if worker.session_id not in known]
        for namespace, task_queue in {(worker.hello.namespace, worker.hello.task_queue) for worker in new}:
            if self._queued_at.get((namespace, task_queue), 0.0) > since:
                self.hints.send(node_id, QueueHasTasks(namespace, task_queue))
            for row in self._parts().rows_set_aside(namespace, task_queue, new)[:ROWS_SHARED_MAX]:
                self.hints.send(node_id, RowToShare(row))

    def on_gained(self, shards: list[int]) -> None:
        """The work of these shards is this node's from now on."""
        self._parts().on_gained(shards)

    def on_told_others(self) -> None:
        """Something changed that other nodes should look at."""
        self.hints.send(ALL_NODES, FleetChanged())

    # --- notices ----------------------------------------------------------------------------------------------------

    def on_workers_changed(self) -> None:
        """A worker of this node came or went."""
        self.nodes.look_soon()

    def on_run_rerouted(self, entry: RunEntry) -> None:
        """Tasks of this run may go to another worker version."""
        self.tell(ALL_NODES, RunRerouted(entry.state.namespace, entry.shard, entry.run_key))

    def on_rows_queued(self, rows: Iterable[TaskRow]) -> None:
        """Rows wait for a worker: say so, if another node has one on the queue."""
        now = self._loop.time()
        for namespace, task_queue in {(row.namespace, row.task_queue) for row in rows}:
            self._queued_at[namespace, task_queue] = now
            if self.workers(namespace, task_queue):
                self.tell(ALL_NODES, QueueHasTasks(namespace, task_queue))
        if len(self._queued_at) > QUEUES_REMEMBERED_MAX:
            self._queued_at.clear()

    def on_set_aside(self, row: TaskRow) -> None:
        """No worker here can have this task: offer it to nodes that have workers on the queue."""
        if self.nodes.live and self.workers(row.namespace, row.task_queue):
            self.tell(ALL_NODES, RowToShare(row))

    def on_sticky(self, entry: RunEntry, session_id: str) -> None:
        """A task waits for a session of another node."""
        self.tell(node_of(session_id), StickyTask(entry.shard, entry.run_key))

    def on_cancel_wanted(self, session_id: str, token: TaskToken, reason: ActivityCancelReason) -> None:
        """An attempt at another node should stop."""
        self.post(node_of(session_id), CancelAttempt(session_id=session_id, token=token, reason=reason))

    def on_waiting(self, entry: RunEntry, *, close_only: bool) -> None:
        """Somebody here begins to wait on this run; when its worker is not here, the others hear of it at once."""
        state = entry.state
        task = state.workflow_task
        holder = (task.session or task.sticky_session) if task is not None else state.sticky_session
        is_here = node_of(holder) == self.nodes.node_id
        self._parts().watches.watch(entry, close_only=close_only, at_once=not close_only and not is_here)

    def on_changed(self, entry: RunEntry, transition: Transition) -> None:
        """This node changed a run: tell those who wait on it."""
        watches = self._parts().watches
        for effect in transition.effects:
            if type(effect) is UpdateSettled and effect.rejected:
                for node_id in watches.watchers(entry.run_key):
                    self.post(node_id, UpdateRejected(run_key=entry.run_key, settled=effect))
        watches.on_committed(entry)

    # --- mail -------------------------------------------------------------------------------------------------------

    async def ask(self, node_id: str, request: QueryWorkflowRequest) -> QueryWorkflowResponse:
        """Have another node ask workflow code.

        Raises:
            RPCError: What that node answered; ``unavailable`` when it did not.
        """
        question_id = self._entropy.uuid7()
        future: asyncio.Future[QueryWorkflowResponse] = asyncio.get_running_loop().create_future()
        self._asked[question_id] = future
        try:
            body = encode_mail(Ask(sender=self.nodes.node_id, question_id=question_id, request=request))
            if not await self._store.post_mail(node_id, body):
                self.nodes.look_soon()
                raise _unanswered("the node whose worker has the run has just gone")
            self.tell(node_id, MailWaits())
            return await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            raise _unanswered(f"the node whose worker has the run did not answer within {ANSWER_SECONDS:g} s") from None
        finally:
            del self._asked[question_id]

    def on_answer(self, answer: Answer) -> None:
        """Another node has answered a question."""
        future = self._asked.get(answer.question_id)
        if future is None or future.done():
            return
        if answer.rejection is not None:
            future.set_exception(RPCError(answer.rejection))
        else:
            assert answer.response is not None, "an answer without a rejection has a response"
            future.set_result(answer.response)

    def post(self, node_id: str, mail: Mail) -> None:
        """Leave mail for another node, in the background."""
        self._background.spawn(self._post(node_id, mail))

    async def _post(self, node_id: str, mail: Mail) -> None:
        try:
            if await self._store.post_mail(node_id, encode_mail(mail)):
                self.tell(node_id, MailWaits())
        except StoreError as error:
            logger.warning("fleet.mail_failed node=%s kind=%s error=%s", node_id, type(mail).__name__, error)

    # --- parts ------------------------------------------------------------------------------------------------------

    def tell(self, channel: str, hint: Hint) -> None:
        """Send a hint, if there is another node."""
        if self.nodes.live:
            self.hints.send(channel, hint)

    def _on_hint(self, sender: str, hint: Hint) -> None:
        self._parts().on_hint(sender, hint)

    def _on_gap(self) -> None:
        self._parts().on_gap()

    def _parts(self) -> Reactions:
        assert self._reactions is not None, "the fleet is started before anything is told or asked"
        return self._reactions


def node_of(session_id: str) -> str:
    """The node that a session is attached to: the first part of its id."""
    return session_id.rpartition("/")[0]


def _decode_presence(body: bytes) -> Presence:
    try:
        return _presence_decoder.decode(body)
    except msgspec.DecodeError as error:
        # A node of another release may describe itself in other words.
        logger.debug("fleet.node_unreadable error=%s", error)
        return Presence(number=-1, workers=[])


def _unanswered(what: str) -> RPCError:
    return RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message=f"{what}; ask again"))
