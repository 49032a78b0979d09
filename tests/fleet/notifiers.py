"""A notifier within one process, which can be cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence


class Exchange:
    """Carries the messages of the nodes of one test.

    Args:
        is_cut: Whether messages are dropped, and the nodes know that none arrive.
        is_lossy: Whether messages are dropped without anyone knowing.
    """

    def __init__(self, *, is_cut: bool = False, is_lossy: bool = False) -> None:
        self.is_cut = is_cut
        self.is_lossy = is_lossy
        self.sent: Counter[str] = Counter()
        self._listeners: list[LocalNotifier] = []

    def join(self) -> LocalNotifier:
        """The end of one node."""
        end = LocalNotifier(self)
        self._listeners.append(end)
        return end

    def mend(self) -> None:
        """Messages arrive again."""
        self.is_cut = False
        for end in self._listeners:
            end.miss()

    def carry(self, channel: str, message: str) -> None:
        """Hand a message to all that listen on the channel, in a later turn of the loop."""
        self.sent[channel] += 1
        if self.is_cut or self.is_lossy:
            return
        for end in self._listeners:
            asyncio.get_running_loop().call_soon(end.receive, channel, message)


class LocalNotifier:
    """A ``ports.notifier.Notifier``."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._channels: frozenset[str] = frozenset()
        self._on_message: Callable[[str], None] | None = None
        self._on_gap: Callable[[], None] | None = None
        self.is_paused = False

    @property
    def is_connected(self) -> bool:
        return not self._exchange.is_cut

    async def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], None], on_gap: Callable[[], None]
    ) -> None:
        self._channels = frozenset(channels)
        self._on_message, self._on_gap = on_message, on_gap

    def publish(self, channel: str, message: str) -> None:
        if not self.is_paused:
            self._exchange.carry(channel, message)

    def receive(self, channel: str, message: str) -> None:
        if channel in self._channels and self._on_message is not None and not self.is_paused:
            self._on_message(message)

    def miss(self) -> None:
        if self._on_gap is not None:
            self._on_gap()

    async def close(self) -> None:
        self._channels = frozenset()
