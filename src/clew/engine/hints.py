"""Hints: what nodes tell each other that may get lost.

Owns: the kinds of hints, their text, and the gathering of those that come close together into one message. Never: a
guarantee: whatever a hint would start happens a little later without it (``docs/explanation/fleet.md`` says when).

How it works: a hint that follows a pause is sent in the same turn of the loop; those that come within
`GATHER_SECONDS` after a message go out together, each once, in messages that the notifier takes. Hints for all nodes go
to one channel, hints for one node to the channel of its id. Nothing is sent while no other node lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from clew.ports.notifier import MESSAGE_BYTES_MAX, Notifier
from clew.ports.store import TaskRow

logger: Final = logging.getLogger("clew.engine")

ALL_NODES: Final = "fleet"
"""The channel that every node listens on."""

GATHER_SECONDS: Final = 0.005
"""Bounds the messages a node sends to 200 a second and channel, and what a hint can be late by."""


class _Hint(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of the hints."""


class QueueHasTasks(_Hint, frozen=True, array_like=True):
    """Rows wait in a task queue."""

    namespace: str
    task_queue: str


class RowToShare(_Hint, frozen=True, array_like=True):
    """A claimed row that no worker of the sender can have."""

    row: TaskRow


class StickyTask(_Hint, frozen=True, array_like=True):
    """A workflow task of this run waits for a session of the receiver."""

    shard: int
    run_key: int


class RunChanged(_Hint, frozen=True, array_like=True):
    """A run that the receiver waits on has a new version."""

    run_key: int
    version: int


class RunWatched(_Hint, frozen=True, array_like=True):
    """The sender wants to hear of changes of this run (or of its close)."""

    run_key: int
    close_only: bool


class FleetChanged(_Hint, frozen=True, array_like=True):
    """Nodes came or went, gave shards back, or have other workers."""


class SettingsChanged(_Hint, frozen=True, array_like=True):
    """A namespace was made, or the routing of worker versions changed; `change` is the sender's number for it."""

    change: int


class SettingsKnown(_Hint, frozen=True, array_like=True):
    """The sender goes by the settings as they are since that change of the receiver."""

    change: int


class RunRerouted(_Hint, frozen=True, array_like=True):
    """Tasks of this run may go to another worker version from now on."""

    namespace: str
    shard: int
    run_key: int


class MailWaits(_Hint, frozen=True, array_like=True):
    """There is mail for the receiver."""


Hint: TypeAlias = (
    QueueHasTasks
    | RowToShare
    | StickyTask
    | RunChanged
    | RunWatched
    | FleetChanged
    | SettingsChanged
    | SettingsKnown
    | RunRerouted
    | MailWaits
)


class _Message(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    hints: list[Hint]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Message)


class Hints:
    """See the module docstring. All methods belong to the engine's loop.

    Args:
        notifier: Carries the messages.
        on_hint: Called with the sender's node id and each hint of another node.
        on_gap: Called when hints may have been lost.
    """

    def __init__(self, notifier: Notifier, *, on_hint: Callable[[str, Hint], None], on_gap: Callable[[], None]) -> None:
        self._notifier = notifier
        self._on_hint = on_hint
        self._on_gap = on_gap
        self._loop = asyncio.get_running_loop()
        self._node_id = ""
        self._pending: dict[str, dict[Hint, None]] = {}
        self._sent_at = 0.0
        self._flush: asyncio.Handle | None = None

    @property
    def is_connected(self) -> bool:
        """Whether hints are expected to arrive at present."""
        return self._notifier.is_connected

    async def listen(self, node_id: str) -> None:
        """Listen for what is meant for all, and for the node of this id."""
        self._node_id = node_id
        await self._notifier.subscribe([ALL_NODES, node_id], self._receive, self._on_gap)

    def send(self, channel: str, hint: Hint) -> None:
        """Tell the node with this id, or `ALL_NODES`, soon."""
        self._pending.setdefault(channel, {})[hint] = None
        if self._flush is None:
            pause = self._sent_at + GATHER_SECONDS - self._loop.time()
            self._flush = self._loop.call_later(pause, self._send) if pause > 0 else self._loop.call_soon(self._send)

    async def close(self) -> None:
        """Send what waits, and listen no more."""
        if self._flush is not None:
            self._flush.cancel()
            self._send()
        await self._notifier.close()

    def _send(self) -> None:
        self._flush = None
        self._sent_at = self._loop.time()
        pending, self._pending = self._pending, {}
        for channel, hints in pending.items():
            self._publish(channel, list(hints))

    def _publish(self, channel: str, hints: list[Hint]) -> None:
        text = _encoder.encode(_Message(self._node_id, hints))
        if len(text) <= MESSAGE_BYTES_MAX:
            self._notifier.publish(channel, text.decode())
        elif len(hints) > 1:
            middle = len(hints) // 2
            self._publish(channel, hints[:middle])
            self._publish(channel, hints[middle:])

    def _receive(self, text: str) -> None:
        try:
            message = _decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            # A node of another release may say things that this one does not know, and whoever may connect to the
            # database can send anything.
            logger.debug("hints.message_dropped error=%s", error)
            return
        if message.sender == self._node_id:
            return
        for hint in message.hints:
            try:
                self._on_hint(message.sender, hint)
            except Exception:
                logger.exception("hints.not_followed hint=%r", hint)
