"""The two numbered streams of messages of one session, over one connection after another.

Owns: numbering, acknowledging, keeping what is not acknowledged, batching, the window, and putting parts together.
Never: what a message means, or when to connect.

How it works: `send` only queues; the queue is put into as few frames as possible at the end of the loop's turn, so that
all that one turn produced travels together. A frame is kept until the other end has acknowledged it. When a connection
breaks, the lane is bound to the next one and sends again what the other end says it does not have; what it does have is
recognised there by its number. So a message is taken once, in order, however often the connection breaks.

Acknowledgements ride on frames that go the other way, and go alone only when much has come or some time has passed.
What is sent and not acknowledged stays below the window; the rest waits here, and its size is known.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from clew.link.codes import CutCode, LinkViolation
from clew.link.frames import (
    KIB,
    Ack,
    Bye,
    ClientData,
    Data,
    Decoders,
    LinkOptions,
    Part,
    Ping,
    Pong,
    ServerData,
    encode,
    encode_data,
)
from clew.link.wire import Wire

ACK_SECONDS: Final = 0.1
"""How long an acknowledgement waits for a frame that it can ride on."""
ACK_MESSAGES: Final = 256
ACK_BYTES: Final = 256 * KIB
"""So much is acknowledged without waiting: far below the window, so that the sender never has to stop for it."""

MESSAGES_PER_FRAME: Final = 1_000
PART_BYTES: Final = 128 * KIB
"""A longer message lets others through between its parts."""


@final
class Lane:
    """See the module docstring.

    Args:
        loop: Everything happens on it.
        decoders: Of what the other end sends.
        options: The limits of this session.
        message_bytes_max: Of one message that comes.
        on_message: Told each message that comes, once, in order; what it raises as `LinkViolation` goes to the caller
            of `frame_received`.
        now_ns: Put into answers to pings.
        before_flush: Called before what is queued is sent, to send what it has gathered (see `flush_soon`).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        decoders: Decoders,
        options: LinkOptions,
        message_bytes_max: int,
        on_message: Callable[[Any], None],
        *,
        now_ns: Callable[[], int] = lambda: 0,
        before_flush: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._decoders = decoders
        self._options = options
        self._message_bytes_max = message_bytes_max
        self._on_message = on_message
        self._now_ns = now_ns
        self._before_flush = before_flush
        self._wire: Wire | None = None
        # outgoing
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._sent_number = 0
        self._acknowledged = 0
        self._is_flush_due = False
        self.progress_at = loop.time()
        """When the other end last took something, or had nothing to take."""
        # incoming
        self.received = 0
        """The number of the last message that came and was taken."""
        self._held: deque[Any] = deque()
        self._held_bytes = 0
        self._is_holding = False
        self._acknowledged_to_peer = 0
        self._unacknowledged_bytes = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self.heard_at = loop.time()
        """When anything last came."""
        self.peer_now_ns = 0
        self.peer_now_at = 0.0
        self.is_over = False
        """The other end has said goodbye."""

    # --- connections ------------------------------------------------------------------------------------------------

    def bind(self, wire: Wire, peer_received: int) -> None:
        """Go on over this connection, from after the message that the other end has.

        Raises:
            LinkViolation: It claims what was never sent, or what it acknowledged before is gone.
        """
        if peer_received < self._acknowledged:
            raise LinkViolation(
                CutCode.MALFORMED,
                f"message {peer_received} was named as the last that came, but {self._acknowledged} was acknowledged",
            )
        self._acknowledge(peer_received)
        self._wire = wire
        self.heard_at = self.progress_at = self._loop.time()
        self._acknowledged_to_peer = self.received - len(self._held)
        for _, frame in self._kept:
            wire.send(frame)
        self.flush_soon()

    def unbind(self) -> None:
        """The connection is gone; what is sent waits for the next."""
        self._wire = None
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    @property
    def is_bound(self) -> bool:
        """Whether there is a connection."""
        return self._wire is not None

    # --- outgoing ---------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """What the other end has not acknowledged, sent or not."""
        return self._waiting_bytes + self._kept_bytes

    @property
    def is_idle(self) -> bool:
        """Whether the other end has everything, and everything that came was taken."""
        return not self._waiting and not self._kept and not self._held

    def send(self, message: Any) -> int:
        """Queue one message; gives `queued_bytes`."""
        data = encode(message)
        size = len(data)
        if size > PART_BYTES:
            self._queue_parts(data)
        else:
            self._waiting.append(data)
            self._waiting_bytes += size
        if not self._is_flush_due:
            self.flush_soon()
        return self._waiting_bytes + self._kept_bytes

    def send_ping(self) -> None:
        """Ask for a sign of life."""
        if self._wire is not None:
            self._wire.send(encode(Ping(self._ack())))

    def send_bye(self) -> None:
        """Say that this end is done with the session."""
        if self._wire is not None:
            self.flush()
            self._wire.send(encode(Bye(self._ack())))

    def flush(self) -> None:
        """Send what is queued and fits the window."""
        self._is_flush_due = True
        if self._before_flush is not None:
            self._before_flush()
        self._is_flush_due = False
        wire = self._wire
        if wire is None:
            return
        while self._waiting and self._kept_bytes < self._options.window_bytes:
            wire.send(self._next_frame())

    def _queue_parts(self, data: bytes) -> None:
        for start in range(0, len(data), PART_BYTES):
            end = start + PART_BYTES
            part = encode(Part(data[start:end], end >= len(data)))
            self._waiting.append(part)
            self._waiting_bytes += len(part)

    def flush_soon(self) -> None:
        """Send at the end of the loop's turn."""
        if not self._is_flush_due and self._wire is not None:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def _next_frame(self) -> bytes:
        waiting = self._waiting
        room = self._options.frame_bytes_max // 2
        if self._waiting_bytes <= room and len(waiting) <= MESSAGES_PER_FRAME:
            # As a rule: all of it.
            messages = list(waiting)
            waiting.clear()
            self._waiting_bytes = 0
        else:
            size = len(waiting[0])
            messages = [waiting.popleft()]
            while waiting and len(messages) < MESSAGES_PER_FRAME and size + len(waiting[0]) <= room:
                size += len(waiting[0])
                messages.append(waiting.popleft())
            self._waiting_bytes -= size
        frame = encode_data(self._sent_number + 1, self._ack(), messages)
        self._sent_number += len(messages)
        if not self._kept:
            self.progress_at = self._loop.time()
        self._kept.append((self._sent_number, frame))
        self._kept_bytes += len(frame)
        return frame

    # --- incoming ---------------------------------------------------------------------------------------------------

    def frame_received(self, data: bytes) -> None:
        """Take one frame.

        Raises:
            LinkViolation: The other end broke the rules.
        """
        if len(data) > self._options.frame_bytes_max:
            raise LinkViolation(
                CutCode.TOO_LARGE, f"a frame of {len(data)} bytes; at most {self._options.frame_bytes_max} are taken"
            )
        frame = self._decoders.frame(data)
        self.heard_at = self._loop.time()
        self._acknowledge(frame.ack)
        match frame:
            case ClientData() | ServerData():
                self._take(frame, len(data))
            case Ping():
                if self._wire is not None:
                    self._wire.send(encode(Pong(self._ack(), self._now_ns())))
            case Pong():
                self.peer_now_ns, self.peer_now_at = frame.now_ns, self.heard_at
            case Bye():
                self.is_over = True
            case Ack():
                pass

    def hold(self) -> None:
        """Take no messages for now; they wait, unacknowledged, so that the other end's window closes."""
        self._is_holding = True

    def release(self) -> None:
        """Take what waits, and go on.

        Raises:
            LinkViolation: As `frame_received`.
        """
        self._is_holding = False
        while self._held and not self._is_holding:
            self._deliver(self._held.popleft())
        if not self._held:
            self._held_bytes = 0
        self._ack_soon()

    def _take(self, frame: Data, size: int) -> None:
        messages = frame.messages
        known = self.received + 1 - frame.first
        if known < 0 or frame.first < 1:
            raise LinkViolation(
                CutCode.MALFORMED, f"message {frame.first} came, but {self.received + 1} is the next of this session"
            )
        if known:
            # Sent again after a break, though it had come.
            messages = messages[known:]
        self._unacknowledged_bytes += size
        on_message = self._on_message
        for message in messages:
            self.received += 1
            if self._is_holding:
                self._held.append(message)
            elif type(message) is Part:
                self._deliver(message)
            else:
                on_message(message)
        if self._held:
            self._held_bytes += size
            if self._held_bytes > 2 * self._options.window_bytes:
                raise LinkViolation(
                    CutCode.FLOODED,
                    f"more than {self._options.window_bytes} bytes sent without waiting for them to be taken",
                )
        self._ack_soon()

    def _deliver(self, message: Any) -> None:
        if type(message) is Part:
            message = self._put_together(message)
            if message is None:
                return
        self._on_message(message)

    def _put_together(self, part: Part) -> Any:
        self._parts_bytes += len(part.data)
        if self._parts_bytes > self._message_bytes_max:
            raise LinkViolation(
                CutCode.TOO_LARGE, f"a message of more than {self._message_bytes_max} bytes, which is the most taken"
            )
        self._parts.append(part.data)
        if not part.is_last:
            return None
        data, self._parts, self._parts_bytes = b"".join(self._parts), [], 0
        message = self._decoders.message(data)
        if type(message) is Part:
            raise LinkViolation(CutCode.MALFORMED, "a part of a message within a part of a message")
        return message

    # --- acknowledgements -------------------------------------------------------------------------------------------

    def _acknowledge(self, number: int) -> None:
        """The other end has everything up to `number`."""
        if number > self._sent_number:
            raise LinkViolation(
                CutCode.MALFORMED,
                f"message {number} was acknowledged, but {self._sent_number} is the last that was sent",
            )
        if number <= self._acknowledged:
            return
        self._acknowledged = number
        self.progress_at = self._loop.time()
        kept = self._kept
        while kept and kept[0][0] <= number:
            self._kept_bytes -= len(kept.popleft()[1])
        if self._waiting:
            self.flush_soon()

    def _ack(self) -> int:
        """The number to acknowledge in a frame that goes out now."""
        number = self.received - len(self._held)
        self._acknowledged_to_peer = number
        self._unacknowledged_bytes = 0
        return number

    def _ack_soon(self) -> None:
        owed = self.received - len(self._held) - self._acknowledged_to_peer
        if self._wire is None or owed <= 0:
            return
        if owed >= ACK_MESSAGES or self._unacknowledged_bytes >= ACK_BYTES:
            if not self._is_flush_due:
                self._wire.send(encode(Ack(self._ack())))
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_SECONDS, self._ack_now)

    def _ack_now(self) -> None:
        self._ack_timer = None
        if self._wire is not None and self.received - len(self._held) > self._acknowledged_to_peer:
            self._wire.send(encode(Ack(self._ack())))
