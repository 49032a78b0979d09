"""What travels over a link: greetings, frames and the messages in them.

Owns: the structs and their codec. Never: sockets, sessions, or the meaning of a request's body.

How it works: a connection begins with one `Hello` from the client, answered by a `Welcome` or a `Refused`; these are
msgpack maps, in which a newer end may add fields. What follows are frames: small msgpack arrays, told apart by their
first number. A `Data` frame carries any number of messages, numbered from `first` on without gaps over the whole life
of the session, whatever connection carries them; `ack` says up to which number the sender has taken what came to it.
A request or response lies in a message as JSON bytes, the very form in which payloads and events are stored, so that
payloads are slices that nobody on the way decodes. A message that is too long for a frame travels as `Part`s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from clew.link.codes import CutCode, LinkViolation
from clew.model.limits import LIMITS_DEFAULT, Limits

VERSIONS: Final = (1,)
"""Protocol versions that this build speaks, the best first."""

KIB: Final = 1024
MIB: Final = 1024 * KIB


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a node grants to each link, and how patient it is.

    Args:
        hello_bytes_max: Of the first frame, which anybody may send.
        frame_bytes_max: Of every other frame.
        message_bytes_max: Of one message from a client, put together from its parts.
        answer_bytes_max: Of one message to a client; a whole history has to fit.
        window_bytes: Sent and not yet taken by the other end; beyond it the sender waits.
        queue_bytes_max: What may wait for a client that does not read; beyond it the link is cut.
        calls_max: Calls of a client that wait for their answers; reports of workers are counted apart.
        credits_max: Of one kind, of one worker.
        attachments_max: Workers on one link.
        connections_max: On this node.
        hello_seconds: From the connection to its greeting.
        ping_seconds: A client that has heard nothing for so long asks.
        silence_seconds: A link on which nothing came for so long is lost.
        slow_seconds: A reader that took nothing for so long, while something waits for it, is cut.
        call_seconds: An answer that takes longer than this, or the call's own deadline, is given up.
        resume_seconds: A session whose connection broke is kept for so long.
        release_seconds: The workflow tasks of such a session are offered elsewhere after so long.
    """

    hello_bytes_max: int = 64 * KIB
    frame_bytes_max: int = 1 * MIB
    message_bytes_max: int = 16 * MIB
    answer_bytes_max: int = 256 * MIB
    window_bytes: int = 8 * MIB
    queue_bytes_max: int = 320 * MIB
    calls_max: int = 10_000
    credits_max: int = 100_000
    attachments_max: int = 1_000
    connections_max: int = 20_000
    hello_seconds: float = 10.0
    ping_seconds: float = 15.0
    silence_seconds: float = 40.0
    slow_seconds: float = 30.0
    call_seconds: float = 300.0
    resume_seconds: float = 30.0
    release_seconds: float = 1.0


OPTIONS_DEFAULT: Final = LinkOptions()

# --- greetings -------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="hello"):
    """The first frame of a connection, from the client.

    Args:
        versions: Protocol versions that it speaks, the best first.
        token: Credentials; how they are judged is the server's affair.
        session: To be gone on with; empty for a new one.
        received: Of that session: the number of the last message that came here.
        identity: Who this is, for people.
        sdk: Name and version of the program's library.
    """

    versions: tuple[int, ...]
    token: str = ""
    session: str = ""
    received: int = 0
    identity: str = ""
    sdk: str = ""

    def __repr__(self) -> str:
        return f"Hello(versions={self.versions}, received={self.received}, identity={self.identity!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("versions", self.versions), ("received", self.received), ("identity", self.identity)]


class Welcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="welcome"):
    """The answer to a greeting that is accepted.

    Args:
        version: Of the protocol, for the rest of the connection.
        session: Its secret name, by which it can be gone on with.
        is_resumed: Whether it is the one asked for; else all that belonged to that one is gone.
        received: Of a resumed session: the number of the last message that came here.
        node: Names the node.
        now_ns: Its time.
        limits: What runs may take.
        options: What this link may take, and how patient the node is.
    """

    version: int
    session: str
    is_resumed: bool = False
    received: int = 0
    node: str = ""
    now_ns: int = 0
    limits: Limits = LIMITS_DEFAULT
    options: LinkOptions = OPTIONS_DEFAULT


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="refused"):
    """The answer to a greeting that is not accepted; the connection is closed after it.

    Args:
        code: A `CutCode`.
        reason: In words.
        rejection: JSON of a ``Rejection``, if that is what it is; what callers of the client meet.
    """

    code: int
    reason: str
    rejection: bytes = b""


# --- messages --------------------------------------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    pass


class Part(_Message, frozen=True, tag=0):
    """A piece of the encoding of a longer message."""

    data: bytes
    is_last: bool


class Call(_Message, frozen=True, tag=1):
    """Client: call a method of the service. `timeout_ms` 0 leaves it to the node.

    `trace` names the trace that the call belongs to, as W3C's ``traceparent`` does; it came later, so a node may not
    know it, and a client may leave it out.
    """

    call_id: int
    method: str
    timeout_ms: int
    body: bytes
    trace: str = ""


class Forget(_Message, frozen=True, tag=2):
    """Client: nobody waits for this answer any more."""

    call_id: int


class Attach(_Message, frozen=True, tag=3):
    """Client: a call of ``attach_worker``; `worker` numbers the worker within the session."""

    call_id: int
    worker: int
    body: bytes


class Grant(_Message, frozen=True, tag=4):
    """Client: so many more tasks may be offered to the worker."""

    worker: int
    workflow_tasks: int
    activity_tasks: int


class StopPolling(_Message, frozen=True, tag=5):
    """Client: the worker takes no more tasks."""

    worker: int


class Detach(_Message, frozen=True, tag=6):
    """Client: the worker is gone."""

    worker: int


class Unanswered(_Message, frozen=True, tag=7):
    """Client: the early task of this ``TaskToken`` will not be answered soon."""

    worker: int
    token: bytes


class Answer(_Message, frozen=True, tag=1):
    """Server: the response to a call."""

    call_id: int
    body: bytes


class Refusal(_Message, frozen=True, tag=2):
    """Server: a call was refused; `body` is a ``Rejection``."""

    call_id: int
    body: bytes


class OfferWorkflowTask(_Message, frozen=True, tag=3):
    """Server: a ``WorkflowTask`` for the worker; an early one if its token has a number for that (``link.early``)."""

    worker: int
    body: bytes


class OfferActivityTask(_Message, frozen=True, tag=4):
    """Server: an ``ActivityTask`` for the worker."""

    worker: int
    body: bytes


class CancelActivity(_Message, frozen=True, tag=5):
    """Server: a running attempt shall stop."""

    worker: int
    token: bytes
    reason: str


class EvictWorkflow(_Message, frozen=True, tag=6):
    """Server: the run need not be kept cached."""

    worker: int
    namespace: str
    run_id: str


class GoAway(_Message, frozen=True, tag=7):
    """Server: end what is under way and connect to another node."""

    reason: str


class ConfirmWorkflowTask(_Message, frozen=True, tag=8):
    """Server: the cause of the early task with this number is durable. Only to workers that take such tasks."""

    worker: int
    early: int


FromClient: TypeAlias = Part | Call | Forget | Attach | Grant | StopPolling | Detach | Unanswered
FromServer: TypeAlias = (
    Part
    | Answer
    | Refusal
    | OfferWorkflowTask
    | OfferActivityTask
    | CancelActivity
    | EvictWorkflow
    | GoAway
    | ConfirmWorkflowTask
)

# --- frames ----------------------------------------------------------------------------------------------------------


class ClientData(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=0):
    """Messages from a client."""

    first: int
    ack: int
    messages: tuple[FromClient, ...]


class ServerData(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=0):
    """Messages from a server."""

    first: int
    ack: int
    messages: tuple[FromServer, ...]


class Ack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """Nothing but an acknowledgement."""

    ack: int


class Ping(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """Asks for a sign of life."""

    ack: int


class Pong(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """Gives one; `now_ns` is the server's time (0 from a client)."""

    ack: int
    now_ns: int


class Bye(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """The sender is done with the session for good; it is not kept."""

    ack: int


Data: TypeAlias = ClientData | ServerData
Frame: TypeAlias = ClientData | ServerData | Ack | Ping | Pong | Bye

_encoder: Final = msgspec.msgpack.Encoder()
encode: Final = _encoder.encode
"""Of greetings, messages and frames without messages."""

_hello_decoder: Final = msgspec.msgpack.Decoder(Hello)
_greeting_decoder: Final = msgspec.msgpack.Decoder(Welcome | Refused)


class Decoders:
    """Decoders of what comes from one kind of end."""

    def __init__(self, frames: Any, messages: Any) -> None:
        self._frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(frames)
        self._messages: msgspec.msgpack.Decoder[FromClient | FromServer] = msgspec.msgpack.Decoder(messages)

    def frame(self, data: bytes) -> Frame:
        """Decode one frame.

        Raises:
            LinkViolation: It is none.
        """
        try:
            return self._frames.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _malformed("a frame", data, error) from error

    def message(self, data: bytes) -> FromClient | FromServer:
        """Decode a message that came in parts.

        Raises:
            LinkViolation: It is none.
        """
        try:
            return self._messages.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _malformed("a message in parts", data, error) from error


FROM_CLIENT: Final = Decoders(ClientData | Ack | Ping | Pong | Bye, FromClient)
FROM_SERVER: Final = Decoders(ServerData | Ack | Ping | Pong | Bye, FromServer)


def decode_hello(data: bytes) -> Hello:
    """Decode the first frame of a connection.

    Raises:
        LinkViolation: It is none.
    """
    try:
        return _hello_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed("a greeting", data, error) from error


_MAY_BE_ZERO: Final = frozenset({"release_seconds", "resume_seconds"})
"""Of a node that gives a session up with its connection, as the owner of a SQLite file does."""


def decode_greeting(data: bytes) -> Welcome | Refused:
    """Decode the first frame from a server.

    Raises:
        LinkViolation: It is none.
    """
    try:
        greeting = _greeting_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed("an answer to a greeting", data, error) from error
    if isinstance(greeting, Welcome):
        for name, value in msgspec.structs.asdict(greeting.options).items():
            may_be_zero = name in _MAY_BE_ZERO
            if not (0 < value < math.inf or (may_be_zero and value == 0)):
                least = "0 or more" if may_be_zero else "above 0"
                raise LinkViolation(CutCode.MALFORMED, f"a node whose {name} is {value}; it is a number {least}")
    return greeting


def encode_data(first: int, ack: int, messages: Sequence[bytes]) -> bytes:
    """A data frame from messages that are encoded already."""
    count = len(messages)
    if count == 1:
        return b"".join((b"\x94\x00", encode(first), encode(ack), b"\x91", messages[0]))
    size = bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    return b"".join((b"\x94\x00", encode(first), encode(ack), size, *messages))


def _malformed(what: str, data: bytes, error: Exception) -> LinkViolation:
    return LinkViolation(CutCode.MALFORMED, f"{len(data)} bytes that are not {what} of this protocol version ({error})")
