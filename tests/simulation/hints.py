"""Hints between nodes, some of which get lost.

Owns: `HintBus` and `SimNotifier`, one node's end of it. Never: what a hint means.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.simulation.loop import Lane, SimLoop


class HintBus:
    """What carries hints.

    Args:
        loop: The simulation's.
        chance: Decides delays and losses.
        loss: Gives the share of hints that are lost at present.
    """

    def __init__(self, loop: SimLoop, chance: random.Random, loss: Callable[[], float]) -> None:
        self._loop = loop
        self._chance = chance
        self._loss = loss
        self._ends: list[SimNotifier] = []

    def end(self, lane: Lane) -> SimNotifier:
        """The end of a node that lives in a lane."""
        end = SimNotifier(self, lane)
        self._ends = [other for other in self._ends if not other.lane.is_dead] + [end]
        return end

    def carry(self, channel: str, message: str) -> None:
        """To all that listen, each after its time, or never."""
        for end in self._ends:
            if channel in end.channels and self._chance.random() >= self._loss():
                delay = self._chance.choice((0.0, 0.001, 0.01, 0.2))
                self._loop.post(end.lane, delay, end.arrive, channel, message)

    def tell_gap(self) -> None:
        """Every node learns that it may have missed something."""
        for end in self._ends:
            self._loop.post(end.lane, 0.0, end.notice_gap)


class SimNotifier:
    """A ``ports.Notifier``."""

    is_connected = True

    def __init__(self, bus: HintBus, lane: Lane) -> None:
        self.lane = lane
        self.channels: frozenset[str] = frozenset()
        self._bus = bus
        self._on_message: Callable[[str], None] = lambda message: None
        self._on_gap: Callable[[], None] = lambda: None

    async def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], None], on_gap: Callable[[], None]
    ) -> None:
        self.channels = frozenset(channels)
        self._on_message = on_message
        self._on_gap = on_gap

    def publish(self, channel: str, message: str) -> None:
        self._bus.carry(channel, message)

    async def close(self) -> None:
        self.channels = frozenset()

    def arrive(self, channel: str, message: str) -> None:
        """In the node's lane."""
        if channel in self.channels:
            self._on_message(message)

    def notice_gap(self) -> None:
        """In the node's lane."""
        if self.channels:
            self._on_gap()
