"""One incarnation of an engine node.

Owns: `Node`: the real engine in a lane, from its start to its stop or death. Never: when it dies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from clew.engine import Engine
from clew.engine.fleet import FleetSettings
from clew.ports.store import StoreError
from tests.simulation.clock import SimClock, SimEntropy
from tests.simulation.disks import CommitSeen, Disk, NodeStore, StoreFaults
from tests.simulation.hints import HintBus
from tests.simulation.leases import Leases
from tests.simulation.loop import Lane, SimLoop
from tests.simulation.wire import Wire

LEASE = timedelta(seconds=10)


class Node:
    """See the module docstring.

    Args:
        name: Unique for this incarnation.
        on_ready: Called when it serves.
        on_dead: Called when it has died.
        leases: Told what it asks of the store, and is answered.
        hints: What carries hints between nodes; None for a node that has the store to itself.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: SimLoop,
        disk: Disk,
        chance: random.Random,
        late_chance: random.Random,
        clock_offset: float,
        faults: Callable[[], StoreFaults],
        is_full: Callable[[], bool],
        on_commit: CommitSeen,
        on_delete: Callable[[int], None],
        on_ready: Callable[[Node], None],
        on_dead: Callable[[Node], None],
        leases: Leases,
        hints: HintBus | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.lane: Lane = loop.lane(name)
        self.clock = SimClock(loop, clock_offset)
        self.engine: Engine
        self.is_serving = False
        self.wires: dict[Wire, None] = {}
        """Those who talk to it."""
        self._disk = disk
        self._chance = chance
        self._late_chance = late_chance
        self._faults = faults
        self._is_full = is_full
        self._on_commit = on_commit
        self._on_delete = on_delete
        self._on_ready = on_ready
        self._on_dead = on_dead
        self._leases = leases
        self._hints = hints

    def start(self) -> None:
        """Open the store, and the engine on it."""
        self.loop.post(self._disk.lane, 0.001, self._open)

    def _open(self) -> None:
        """In the disk's lane."""
        if not self.lane.is_dead:
            self.loop.spawn(self.lane, self._run(self._disk.open(self.clock)))

    async def _run(self, opened: Any) -> None:
        store = NodeStore(
            loop=self.loop,
            disk=self._disk,
            store=opened,
            lane=self.lane,
            chance=self._chance,
            late_chance=self._late_chance,
            faults=self._faults,
            is_full=self._is_full,
            on_commit=self._on_commit,
            on_delete=self._on_delete,
            leases=self._leases,
            crash=self.crash,
        )
        engine = Engine(
            store,  # type: ignore[arg-type]
            clock=self.clock,
            entropy=SimEntropy(self.loop, self._chance),
            node_id=self.name,
            fleet=None if self._hints is None else FleetSettings(notifier=self._hints.end(self.lane), lease=LEASE),
        )
        try:
            await engine.start()
        except Exception as error:
            if not isinstance(error, StoreError) and not getattr(error, "is_retryable", False):
                raise
            self.crash(f"could not start: {error!r}")
            return
        self.engine = engine
        self.is_serving = True
        self._on_ready(self)

    def crash(self, why: str) -> None:
        """It dies here and now."""
        if self.lane.is_dead:
            return
        self.is_serving = False
        self.loop.note(f"crash {self.name} {why}")
        self.loop.kill(self.lane)
        self._end()

    def be_given_up(self) -> None:
        """Those who talk to it hear nothing any more: their links break, and they look for another node."""
        for wire in list(self.wires):
            wire.give_up(self)

    async def stop(self) -> None:
        """It stops in order; to be awaited in its lane."""
        self.is_serving = False
        await self.engine.stop()
        self.loop.kill(self.lane)
        self._end()

    def _end(self) -> None:
        self._leases.forget(self.name)
        for wire in list(self.wires):
            wire.lose(self._chance.choice((0.0, 0.01, 0.5)), 0.0)
        self.loop.post(self.loop.root, 0.0, self._on_dead, self)
