"""Several engines of one process on one store, in the test's hand."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any, cast

from clew.adapters import SystemEntropy
from clew.engine import Engine, FleetSettings
from clew.ports.store import Store
from clew.service.contract import Service
from clew.storage.sqlite import open_store
from clew.testing.faults import Faults
from tests.conformance.service.scripted import ScriptedWorker, Shop
from tests.fleet.notifiers import Exchange, LocalNotifier

LEASE = timedelta(seconds=10)
SHARD_COUNT = 8


class _Shared:
    """A store that many engines use: none of them closes it. While its node is stopped, calls wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gate: asyncio.Event | None = None

    def stop(self) -> None:
        """Calls wait from now on."""
        self._gate = asyncio.Event()

    def go_on(self) -> None:
        """The calls that wait are made now."""
        assert self._gate is not None, "only what was stopped goes on"
        self._gate.set()
        self._gate = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        gate = self._gate
        if gate is None or not callable(value):
            return value

        async def wait_then_call(*args: Any, **kwargs: Any) -> Any:
            await gate.wait()
            return await value(*args, **kwargs)

        return wait_then_call

    async def close(self) -> None:
        """Left to the shop."""


class Node:
    """One engine of a fleet, with what it takes to kill or pause it."""

    def __init__(self, engine: Engine, store: _Shared, notifier: LocalNotifier, process: str) -> None:
        self.engine = engine
        self.process = process
        self.store = store
        self.notifier = notifier
        self.is_up = True

    @property
    def fleet(self) -> Any:
        return self.engine._fleet

    @property
    def shards(self) -> set[int]:
        """The shards that it holds, as far as it knows."""
        return set(self.fleet.nodes.held)

    def kill(self) -> None:
        """From now on nothing that it does reaches anyone."""
        self.pause()

    def pause(self) -> None:
        """Nothing that it does reaches anyone until it goes on."""
        self.is_up = False
        self.store.stop()
        self.notifier.is_paused = True

    def go_on(self) -> None:
        """It does not know that time has passed."""
        self.is_up = True
        self.notifier.is_paused = False
        self.store.go_on()


class _AnyNode:
    """The contract, each call of it served by the next node."""

    def __init__(self, shop: FleetShop) -> None:
        self._shop = shop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shop.next_node().engine, name)


class FleetShop(Shop):
    """A `Shop` whose calls go to one node after the other, and whose workers are attached to different ones."""

    def __init__(self, *, nodes: int = 3, exchange: Exchange | None = None) -> None:
        super().__init__(":memory:")
        self.exchange = exchange or Exchange()
        self.faults = Faults()
        """Also counts the calls of the store."""
        self.ended: set[str] = set()
        """Processes of which it is known that they are over."""
        self._nodes_wanted = nodes
        self.nodes: list[Node] = []
        self._turn = itertools.count()

    async def open(self) -> None:
        """Open the store and start the engines."""
        clock = self.clock.attach(asyncio.get_running_loop())
        self.store = await open_store(self.path, clock=clock, shard_count=SHARD_COUNT)
        for _ in range(self._nodes_wanted):
            await self.add_node()
        self.service = cast(Service, _AnyNode(self))
        await self.until_spread()

    async def add_node(self) -> Node:
        """One node more."""
        clock = self.clock.attach(asyncio.get_running_loop())
        store, notifier = _Shared(self.faults.wrap(cast(Store, self.store))), self.exchange.join()
        process = f"process-{len(self.nodes)}"
        engine = Engine(
            cast(Store, store),
            clock=clock,
            entropy=SystemEntropy(),
            fleet=FleetSettings(
                notifier=notifier, lease=LEASE, process=process, has_ended=lambda mark: mark in self.ended
            ),
        )
        await engine.start()
        node = Node(engine, store, notifier, process)
        self.nodes.append(node)
        return node

    async def close(self) -> None:
        """Stop the engines that are up."""
        for node in self.up():
            await node.engine.stop()
        for node in self.nodes:
            if not node.is_up:
                await _abandon()
        await self.store.close()

    def up(self) -> list[Node]:
        """The nodes that were not killed."""
        return [node for node in self.nodes if node.is_up]

    def next_node(self) -> Node:
        """The node whose turn it is."""
        nodes = self.up()
        return nodes[next(self._turn) % len(nodes)]

    @property
    def engine(self) -> Engine:
        return self.up()[0].engine

    @engine.setter
    def engine(self, _: Engine) -> None:
        raise AssertionError("a fleet has several engines")

    async def worker(self, node: Node | None = None, **hello: Any) -> ScriptedWorker:
        """A worker attached to the given node, else to the next one."""
        worker = ScriptedWorker((node or self.next_node()).engine)
        session = await worker.attach(**hello)
        if not (self.exchange.is_cut or self.exchange.is_lossy):
            await self.until(lambda: all(self._knows(other, session.session_id) for other in self.up()))
        return worker

    @staticmethod
    def _knows(node: Node, session_id: str) -> bool:
        others = node.fleet._workers.values()
        return node.engine._matcher.session(session_id) is not None or any(
            worker.session_id == session_id for workers in others for worker in workers
        )

    async def settle(self) -> None:
        """Wait until the engines have done all that was asked of them so far."""
        for _ in range(3):
            for node in self.up():
                engine = node.engine
                await asyncio.sleep(0)
                while not (engine._matcher._background.is_idle and engine._funnel._background.is_idle):
                    await asyncio.sleep(0)
                await engine._pipeline.wait_idle()

    async def until(self, holds: Any, *, ticking: float = 0.0, seconds: float = 5.0) -> None:
        """Wait until the condition holds; with `ticking`, the clock is moved by so much again and again."""

        async def look() -> None:
            while not holds():
                if ticking:
                    self.advance(ticking)
                await asyncio.sleep(0.002)

        await asyncio.wait_for(look(), seconds)

    async def until_spread(self) -> None:
        """Wait until every shard has one owner, and each node knows its own."""
        await self.until(self._is_spread)

    def _is_spread(self) -> bool:
        held = [shard for node in self.up() for shard in node.shards]
        everybody = {node.engine.node_id for node in self.up()}
        knows = all(node.fleet.nodes.live == everybody - {node.engine.node_id} for node in self.up())
        return knows and sorted(held) == list(range(SHARD_COUNT))


async def _abandon() -> None:
    """End what engines that were killed still do."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
