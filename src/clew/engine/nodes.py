"""Which nodes there are, and which shards are whose (laws 8 and 9).

Owns: this node's row and lease, the view of the others, and the shards that this node holds. Never: does the work of a
shard (it says which were gained), or makes anything safe: a commit is guarded by the version of its run, whoever makes
it. Two nodes that believe they own a shard are slow.

How it works: a node has an id that is new each time it joins. It renews its lease every third of it; the answer is the
view of the fleet. Over the nodes with a good lease each shard has one *home*, by rendezvous hashing, so that all nodes
agree without talking and few shards move when one comes or goes. A node gives back the shards whose home is another,
and takes those whose home it is as soon as nobody with a good lease holds them; each taking raises the shard's epoch.

The row of a node whose lease is over is removed by another, and only then are its sessions lost. Whoever removes it has
itself kept its lease for a whole lease time without a break, so that after an outage of the store, which ends all
leases at once, nobody is declared dead who is only about to renew. A node that finds its row gone joins under a new id.

A node whose process is known to have ended (it ran on the same machine, and is no more) is not waited for: its row is
removed at the first look, as the node itself would have done had it left in good order.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Protocol

from clew.engine.node_clock import NodeClock
from clew.ports.clock import Cancellable
from clew.ports.entropy import Entropy
from clew.ports.store import FleetView, ShardLease, Store, StoreError

logger: Final = logging.getLogger("clew.engine")

LEASE_DEFAULT: Final = timedelta(seconds=10)
RENEWALS_PER_LEASE: Final = 3
RETRIES_PER_LEASE: Final = 20
"""How often a renewal is tried again while the store does not answer."""


END_MARGIN: Final = timedelta(milliseconds=50)
"""The end of another's lease is looked at this much later, so that it is over also by the store's clock."""


class NodeEvents(Protocol):
    """What `Nodes` tells the node's other parts."""

    def describe_node(self) -> bytes:
        """What others should know of this node."""
        ...

    def is_over(self, body: bytes) -> bool:
        """Whether the process of the node that describes itself so is known to have ended."""
        ...

    async def on_joining(self) -> None:
        """This node is about to enter the fleet under a new id."""
        ...

    async def on_joined(self, node_id: str, old_id: str, view: FleetView) -> None:
        """This node has an id now; the old one, if it had one, is gone with its sessions."""
        ...

    def on_view(self, view: FleetView, new: set[str], gone: set[str]) -> None:
        """There is a fresh view; `new` and `gone` are ids of other nodes."""
        ...

    def on_gained(self, shards: list[int]) -> None:
        """The work of these shards is this node's from now on."""
        ...

    def on_told_others(self) -> None:
        """Something changed that other nodes should look at."""
        ...


class Nodes:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: NodeClock,
        entropy: Entropy,
        *,
        lease: timedelta,
        address: str,
        events: NodeEvents,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._lease = lease
        self._address = address
        self._events = events
        self.node_id = ""
        self.live: set[str] = set()
        """The other nodes whose lease is good."""
        self._known: set[str] = set()
        self._held: dict[int, ShardLease] = {}
        self._lease_until: datetime | None = None
        self._kept_since: datetime | None = None
        """Since when this node has had its lease without a break."""
        self._renewed_at: datetime | None = None
        self._described = b""
        self._others_end_at: datetime | None = None
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None
        self._woken: asyncio.Event = asyncio.Event()
        self._lock = asyncio.Lock()
        """One view is acted on at a time."""

    @property
    def held(self) -> list[int]:
        """The shards whose work is this node's."""
        return list(self._held)

    def holds(self, shard: int) -> bool:
        """Whether the work of the shard is this node's."""
        return shard in self._held

    async def start(self) -> None:
        """Join, and take the shards that are this node's.

        Raises:
            StoreError: The store cannot be read or written.
        """
        await self._join()
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Leave, so that others take over at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._held = {}
        try:
            await self._store.leave_fleet(self.node_id)
        except StoreError as error:
            logger.warning("nodes.leave_failed node=%s error=%s", self.node_id, error)
        else:
            self._events.on_told_others()

    def look_soon(self) -> None:
        """Something may have changed: read the view, or renew when there is news of this node."""
        self._is_wanted = True
        self._woken.set()

    async def look_now(self) -> None:
        """Read the view and act on it.

        Raises:
            StoreError: It cannot be read.
        """
        async with self._lock:
            await self._look()

    async def tell_news(self) -> None:
        """Renew at once if there is something about this node that others do not know.

        Raises:
            StoreError: The store cannot be written.
        """
        async with self._lock:
            if self._events.describe_node() != self._described:
                await self._renew()

    async def _look(self) -> None:
        asked_at = self._clock.own_now()
        view = await self._store.read_fleet(self.node_id)
        self._clock.learn(asked_at, view.now)
        await self._apply(view)

    async def _join(self) -> None:
        old_id, self.node_id = self.node_id, self._entropy.uuid7()
        self._held, self._known = {}, set()
        await self._events.on_joining()
        self._described = self._events.describe_node()
        asked_at = self._clock.own_now()
        view = await self._store.join_fleet(self.node_id, self._address, self._described, self._lease)
        self._clock.learn(asked_at, view.now)
        self._renewed_at = self._kept_since = view.now
        self._lease_until = view.now + self._lease
        logger.info("nodes.joined node=%s nodes=%d", self.node_id, len(view.nodes))
        await self._events.on_joined(self.node_id, old_id, view)
        await self._apply(view)
        self._events.on_told_others()

    async def _keep(self) -> None:
        """Renew, and look when asked to, for as long as the node lives."""
        while True:
            try:
                await self._sleep()
                await self._turn()
            except StoreError as error:
                logger.warning("nodes.renewal_failed node=%s error=%s", self.node_id, error)
                await self._pause(self._lease / RETRIES_PER_LEASE)
            except Exception:
                # Without its lease the node would sooner or later be taken for dead: it must go on.
                logger.exception("nodes.turn_failed node=%s", self.node_id)
                await self._pause(self._lease / RETRIES_PER_LEASE)

    async def _turn(self) -> None:
        self._is_wanted = False
        async with self._lock:
            if self._events.describe_node() == self._described and self._clock.now() < self._renewal_at():
                await self._look()
            else:
                await self._renew()

    async def _renew(self) -> None:
        described = self._events.describe_node()
        is_news = described != self._described
        asked_at = self._clock.own_now()
        view = await self._store.renew_node(self.node_id, described if is_news else None, self._lease)
        if view is None:
            logger.warning("nodes.lease_lost node=%s: it was silent for too long; joining anew", self.node_id)
            await self._join()
            return
        self._clock.learn(asked_at, view.now)
        if self._lease_until is not None and view.now > self._lease_until:
            self._kept_since = view.now
        self._renewed_at = view.now
        self._lease_until = view.now + self._lease
        self._described = described
        await self._apply(view)
        if is_news:
            self._events.on_told_others()

    async def _apply(self, view: FleetView) -> None:
        ended = [n.node_id for n in view.nodes if n.node_id != self.node_id and self._events.is_over(n.body)]
        for node_id in ended:
            await self._store.leave_fleet(node_id)
        if ended:
            logger.warning("nodes.process_ended nodes=%s", ", ".join(sorted(ended)))
            view = await self._store.read_fleet(self.node_id)
        unseen = set(ended) - self._known
        await self._act_on(view)
        if unseen:  # what was known of the others is told as gone by then
            self._events.on_view(view, set(), unseen)
        if ended:
            self._events.on_told_others()

    async def _act_on(self, view: FleetView) -> None:
        rows = {node.node_id for node in view.nodes if node.node_id != self.node_id}
        ends = {node.node_id: node.lease_until for node in view.nodes if node.node_id in rows}
        self.live = {node_id for node_id, end in ends.items() if end > view.now}
        self._others_end_at = min((ends[node_id] for node_id in self.live), default=None)
        new, gone = rows - self._known, self._known - rows
        self._known = rows
        is_changed = await self._move_shards(view)
        self._events.on_view(view, new, gone)
        if self._may_remove(view):
            dead = [node_id for node_id in rows if node_id not in self.live]
            removed: set[str] = set(await self._store.remove_expired_nodes(dead)) if dead else set()
            if removed:
                logger.warning("nodes.declared_dead nodes=%s", ", ".join(sorted(removed)))
                self._known -= removed
                self._events.on_view(view, set(), removed)
                is_changed = True
        if is_changed:
            self._events.on_told_others()

    def _may_remove(self, view: FleetView) -> bool:
        return self._kept_since is not None and view.now - self._kept_since >= self._lease

    async def _move_shards(self, view: FleetView) -> bool:
        """Give back and take shards; whether others can now take some."""
        homes = {shard: home_of(shard, [*self.live, self.node_id]) for shard in range(self._store.shard_count)}
        mine = {lease.shard: lease for lease in view.shards if lease.node_id == self.node_id}
        kept = {shard: lease for shard, lease in mine.items() if homes[shard] == self.node_id}
        returned = [lease for shard, lease in mine.items() if shard not in kept]
        before = self._held
        self._held = kept
        if returned:
            await self._store.release_shards(returned)
        taken_by_others = {lease.shard for lease in view.shards if lease.node_id in self.live}
        free = [
            shard
            for shard, home in homes.items()
            if home == self.node_id and shard not in kept and shard not in taken_by_others
        ]
        if free:
            got = await self._store.take_free_shards(self.node_id, free)
            self._held = {**kept, **{lease.shard: lease for lease in got}}
        gained = [shard for shard in self._held if shard not in before]
        if gained or returned:
            logger.info("nodes.shards_moved node=%s gained=%s returned=%d", self.node_id, gained, len(returned))
        if gained:
            self._events.on_gained(gained)
        return bool(returned)

    # --- sleeping ---------------------------------------------------------------------------------------------------

    def _renewal_at(self) -> datetime:
        assert self._renewed_at is not None, "a node renews after it has joined"
        return self._renewed_at + self._lease / RENEWALS_PER_LEASE

    def _next_look(self) -> datetime:
        """The renewal; or earlier the end of a lease that by then others would have renewed; or the end of patience."""
        wanted = [self._renewal_at()]
        if self._others_end_at is not None:
            wanted.append(self._others_end_at + END_MARGIN)
        silent = self._known - self.live
        if silent and self._kept_since is not None:
            patience = self._kept_since + self._lease
            if patience > self._clock.now():
                wanted.append(patience)
        return min(wanted)

    async def _sleep(self) -> None:
        if not self._is_wanted:
            await self._pause_until(self._next_look())

    async def _pause(self, duration: timedelta) -> None:
        self._woken.clear()
        await self._pause_until(self._clock.now() + duration)

    async def _pause_until(self, when: datetime) -> None:
        self._woken.clear()
        alarm: Cancellable = self._clock.call_at(when, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()


def home_of(shard: int, node_ids: Iterable[str]) -> str:
    """The node that a shard belongs to, among these: the same in every process."""
    return max(node_ids, key=lambda node_id: (_weight(shard, node_id), node_id))


def _weight(shard: int, node_id: str) -> bytes:
    return hashlib.blake2b(f"{shard}:{node_id}".encode(), digest_size=8).digest()
