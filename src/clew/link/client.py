"""The client's end of a link: the contract, as it is to be had over a connection.

Owns: `LinkClient`, which keeps a connection to one of some nodes: dialling, greeting, resuming, moving away, patience.
Never: sockets (it is given a `Dial`), threads (the composition root has them), or what a call means (`remote`).

How it works: one task keeps the connection. When it breaks, the next is made at once and, if that fails, after waits
that grow with jitter, to whichever node answers. The node is asked to go on with the session: then nothing was lost,
and nothing is done twice. If it cannot (it is another node, or was restarted), a new session begins: workers are
attached again, and calls that were under way are made again where a repeat is harmless; the others are refused with
UNAVAILABLE. Calls that are made while there is no connection wait for one, for `patience_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, final

import msgspec

from clew.link import frames as f
from clew.link.calls import decode_rejection
from clew.link.codes import CutCode, LinkViolation
from clew.link.lane import Lane
from clew.link.outage import OutageLog
from clew.link.remote import RemoteService
from clew.link.wire import Wire, WireUser
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError

_log: Final = logging.getLogger("clew.link")

WAIT_SECONDS_FIRST: Final = 0.05
WAIT_SECONDS_MAX: Final = 2.0
"""A node that restarts is back within seconds; a thousand clients that ask twice in two seconds do not keep it down."""

GREETING_SECONDS_MAX: Final = 10.0
MOVE_SECONDS_MAX: Final = 5.0
"""How long calls that are under way may take when a node asks to go elsewhere."""


class Dial(Protocol):
    """Makes connections: to the next node of a list, to a socket beside a file."""

    async def __call__(self, user: WireUser) -> Wire:
        """Connect, and pass what comes to `user`.

        Raises:
            OSError: Nobody answers.
            RPCError: There will never be an answer, or one that says why not.
        """
        ...

    def avoid_last(self) -> None:
        """The node connected to last is going away: try others first."""
        ...


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client greets, and how patient it is.

    Args:
        identity: Who this is, for people.
        sdk: Name and version of the library.
        patience_seconds: How long a call waits for a connection before it is refused.
        connect_seconds: The same for the first connection.
        address: Where the nodes are, for the log.
    """

    identity: str = ""
    sdk: str = "clew"
    patience_seconds: float = 10.0
    connect_seconds: float = 5.0
    address: str = ""


@final
class LinkClient:
    """See the module docstring; belongs to one loop.

    Args:
        dial: Makes connections.
        token: Gives the credentials, asked before each greeting.
        chance: Gives a number from 0 up to 1, for jitter.
        options: See `ClientOptions`.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        token: Callable[[], Awaitable[str]] | None = None,
        chance: Callable[[], float],
        options: ClientOptions | None = None,
    ) -> None:
        self.options = options if options is not None else ClientOptions()
        self.limits: Limits = LIMITS_DEFAULT
        self.node = ""
        self.is_closed = False
        self.service = RemoteService(self.options.patience_seconds, self._go_away)
        self.last_error: RPCError | None = None
        self.connects_count = 0
        """How often a session was begun or gone on with."""
        self._dial = dial
        self._token = token
        self._token_error = ""
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._lane: Lane | None = None
        self._session = ""
        self._server_options = f.OPTIONS_DEFAULT
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._connection: _ClientConnection | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._is_moving = False
        self._outage = OutageLog(self.options.address, self._loop.time)

    async def start(self) -> None:
        """Connect; returns when a node has let this client in.

        Raises:
            RPCError: No node answered in time, or one refused for good.
        """
        self._task = self._loop.create_task(self._keep_connected(), name="clew-link")
        self._task.add_done_callback(self._kept)
        try:
            await asyncio.shield(self._ready)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Say goodbye, and let go: calls that are under way are refused."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self._ready.done():
            self._ready.cancel()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None and self._lane is not None:
            self.service.detach_all()
            self._lane.send_bye()
            self._lane.unbind()
            connection.close(CutCode.NORMAL, "the client is done")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if connection is not None:
            await connection.wait_lost(1.0)
        self.service.close(RPCError(_closed()))

    def now_ns(self, monotonic: float) -> int:
        """The node's time at this time of the loop, by its last word on it; 0 before there was one."""
        lane = self._lane
        if lane is None or not lane.peer_now_ns:
            return 0
        return lane.peer_now_ns + int((monotonic - lane.peer_now_at) * 1e9)

    # --- staying connected ------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        tries = 0
        lost_at = self._loop.time()
        while not self.is_closed:
            try:
                connection = await self._connect()
            except (OSError, TimeoutError, RPCError, LinkViolation) as error:
                tries += 1
                self._not_connected(error, lost_at)
                ceiling = min(WAIT_SECONDS_FIRST * 2 ** min(tries - 1, 10), WAIT_SECONDS_MAX)
                await asyncio.sleep(ceiling * (0.5 + self._chance() / 2))
                continue
            tries = 0
            self.last_error = None
            # Not the future itself: cancelling this task would end it too, and `close` would not wait for the socket.
            await asyncio.wait([connection.lost])
            lost_at = self._loop.time()
            self._disconnected()
            if not self.is_closed:
                self._outage.lost(connection.lost.result(), is_planned=self._is_moving)
            if not self._is_moving:
                # Many clients of one node lose it in the same moment.
                await asyncio.sleep(self._chance() * WAIT_SECONDS_FIRST)
            self._is_moving = False

    def _kept(self, task: asyncio.Task[None]) -> None:
        """Nothing keeps the connection any more: the client is closed, or this is a bug, which must not be silent."""
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        _log.critical("link.ended node=%s", self.node, exc_info=error)
        refusal = RPCError(
            Rejection(
                code=RejectionCode.INTERNAL,
                message=f"The link ended by a bug in Clew ({error!r}). Connect again, and report it with the log.",
            )
        )
        if not self._ready.done():
            self._ready.set_exception(refusal)
        self.service.close(refusal)

    async def _connect(self) -> _ClientConnection:
        connection = _ClientConnection(self)
        async with asyncio.timeout(GREETING_SECONDS_MAX):
            connection.wire = await self._dial(connection)
            try:
                await self._greet(connection)
            except BaseException:
                connection.wire.abort()
                raise
        return connection

    async def _greet(self, connection: _ClientConnection) -> None:
        lane = self._lane
        hello = f.Hello(
            versions=f.VERSIONS,
            token=await self._credentials(),
            session=self._session,
            received=lane.received if lane is not None else 0,
            identity=self.options.identity,
            sdk=self.options.sdk,
        )
        assert connection.wire is not None, "the connection is made before the greeting"
        connection.wire.send(f.encode(hello))
        await connection.greeted

    async def _credentials(self) -> str:
        """What the user's function gives; whatever it raises, it is asked again with the next try.

        Raises:
            ConnectionError: It failed.
            OSError: It said this itself.
            RPCError: Likewise.
        """
        if self._token is None:
            return ""
        try:
            token = await self._token()
        except Exception as error:
            if repr(error) != self._token_error:
                self._token_error = repr(error)
                _log.warning("link.no_credentials address=%s error=%r; asked again", self.options.address, error)
            if isinstance(error, (OSError, RPCError)):
                raise
            raise ConnectionError(
                f"the function that gives the credentials failed with {type(error).__name__}: {error}"
            ) from error
        self._token_error = ""
        return token

    def welcomed(self, connection: _ClientConnection, welcome: f.Welcome) -> None:
        """A node has let this client in: called in the very turn, before any frame that follows."""
        wire = connection.wire
        assert wire is not None, "the connection is made before the greeting is answered"
        if welcome.is_resumed and self._lane is None:
            raise LinkViolation(CutCode.MALFORMED, "a session was resumed that this client never had")
        self.limits, self.node, self._server_options = welcome.limits, welcome.node, welcome.options
        is_new = not welcome.is_resumed
        if is_new:
            self._lane = Lane(
                self._loop,
                f.FROM_SERVER,
                welcome.options,
                welcome.options.answer_bytes_max,
                self.service.received,
                before_flush=self.service.send_grants,
            )
            self._session = welcome.session
        lane = self._lane
        assert lane is not None, "made above, or kept from before"
        lane.peer_now_ns, lane.peer_now_at = welcome.now_ns, self._loop.time()
        lane.bind(wire, 0 if is_new else welcome.received)
        self._connection = connection
        self.connects_count += 1
        self.service.connected(lane, welcome.options, is_new=is_new)
        self._ping_later()
        self._outage.back()
        if not self._ready.done():
            self._ready.set_result(None)
        _log.debug("link.connected node=%s resumed=%s", welcome.node, welcome.is_resumed)

    def _not_connected(self, error: Exception, lost_at: float) -> None:
        refusal = error if isinstance(error, RPCError) else RPCError(_unreachable(error))
        self.last_error = refusal
        self._outage.failed(refusal)
        is_final = not refusal.is_retryable
        away = self._loop.time() - lost_at
        if not self._ready.done() and (is_final or away >= self.options.connect_seconds):
            self._ready.set_exception(refusal)
        if is_final or away >= self.options.patience_seconds:
            self.service.refuse_waiting(refusal, older_than=None)
        else:
            self.service.refuse_waiting(refusal, older_than=self._loop.time() - self.options.patience_seconds)

    def _disconnected(self) -> None:
        self._connection = None
        if self._lane is not None:
            self._lane.unbind()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None

    # --- what comes -------------------------------------------------------------------------------------------------

    def frame_received(self, connection: _ClientConnection, frame: bytes) -> None:
        """A frame after the greeting."""
        if self._lane is not None and connection is self._connection:
            self._lane.frame_received(frame)

    def _go_away(self, reason: str) -> None:
        if not self._is_moving:
            self._is_moving = True
            self._loop.create_task(self._move(reason), name="clew-link-moving")

    async def _move(self, reason: str) -> None:
        """Leave this node: let what is under way end, then connect to another."""
        connection = self._connection
        if connection is None:
            return
        _log.info("link.moving node=%s reason=%s", self.node, reason)
        self._dial.avoid_last()
        self.service.hold_back()
        await self.service.wait_reports_answered(MOVE_SECONDS_MAX)
        if self._connection is connection:
            # No goodbye: what its workers still run stays theirs until the next node has taken it over.
            self._session = ""
            connection.close(CutCode.GOING_AWAY, "moving to another node")

    # --- signs of life ----------------------------------------------------------------------------------------------

    def _ping_later(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        seconds = self._server_options.ping_seconds * (0.75 + self._chance() / 4)
        self._ping_timer = self._loop.call_later(seconds, self._ping)

    def _ping(self) -> None:
        self._ping_timer = None
        lane, connection = self._lane, self._connection
        if lane is None or connection is None:
            return
        if self._loop.time() - lane.heard_at > self._server_options.silence_seconds:
            _log.info("link.silent node=%s", self.node)
            connection.abort(f"nothing was heard for {self._server_options.silence_seconds:g} s")
            return
        if self._loop.time() - lane.heard_at > self._server_options.ping_seconds / 2:
            lane.send_ping()
        self._ping_later()


@final
class _ClientConnection:
    """One connection of a client: the user of its wire."""

    def __init__(self, client: LinkClient) -> None:
        loop = asyncio.get_running_loop()
        self.wire: Wire | None = None
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        """Why, for the log."""
        self._client = client
        self._is_cut = False
        self._end_reason = ""

    def frame_received(self, frame: bytes) -> None:
        """A frame came."""
        if self._is_cut:
            return
        try:
            if self.greeted.done():
                self._client.frame_received(self, frame)
            else:
                self._answered(f.decode_greeting(frame))
        except LinkViolation as violation:
            _log.warning("link.cut node=%s code=%s reason=%s", self._client.node, violation.code.name, violation.reason)
            self._fail(violation)
            self.close(violation.code, violation.reason)
        except Exception as error:  # noqa: BLE001 - a bug here must not end the loop's reader; it is logged
            _log.exception("link.failed node=%s", self._client.node)
            self._fail(error)
            self.close(CutCode.INTERNAL, "the client failed")

    def wire_lost(self, code: int, reason: str) -> None:
        """The connection is over."""
        self._is_cut = True
        if not self.greeted.done():
            self._fail(ConnectionError(f"the connection was closed before the greeting was answered ({code} {reason})"))
        if not self.lost.done():
            known = self._end_reason or reason
            self.lost.set_result(f"{known or 'the connection broke'} ({code})")

    def close(self, code: CutCode, reason: str) -> None:
        """Close."""
        self._is_cut = True
        self._end_reason = reason
        if self.wire is not None:
            self.wire.close(code, reason)

    def abort(self, reason: str = "") -> None:
        """Close at once."""
        self._end_reason = reason
        if self.wire is not None:
            self.wire.abort()

    async def wait_lost(self, seconds: float) -> None:
        """Wait for the end of the connection, at most so long."""
        await asyncio.wait([self.lost], timeout=seconds)
        if not self.lost.done():
            self.abort()

    def _answered(self, greeting: f.Welcome | f.Refused) -> None:
        if isinstance(greeting, f.Welcome):
            self._client.welcomed(self, greeting)
            if not self.greeted.done():
                self.greeted.set_result(None)
        else:
            self._fail(_refusal(greeting))

    def _fail(self, error: Exception) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(error)
            self.greeted.exception()  # looked at also when nobody waits any more


def _refusal(refused: f.Refused) -> Exception:
    if refused.rejection:
        return RPCError(decode_rejection(refused.rejection))
    details = {"link_code": str(refused.code)}
    if refused.code == CutCode.UNSUPPORTED_VERSION:
        return RPCError(Rejection(code=RejectionCode.UNSUPPORTED, message=refused.reason, details=details))
    return RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message=refused.reason, details=details))


def _unreachable(error: Exception) -> Rejection:
    if isinstance(error, LinkViolation):
        what = f"what answers does not speak this protocol: {error.reason}"
    elif isinstance(error, TimeoutError) and not str(error):
        what = f"no answer within {GREETING_SECONDS_MAX:g} s"
    else:
        what = str(error) or type(error).__name__
    expected = "a running node at this address; the call is safe to repeat when there is one."
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        expected = (
            "a certificate from an authority that this machine trusts, for the name in the address. Give the PEM of "
            "the authority as TLSConfig(server_root_ca_cert=…), for the command line as server_root_ca_file under "
            "[profile.NAME.tls]; and the name in the certificate, if it is another one, as domain."
        )
    return Rejection(code=RejectionCode.UNAVAILABLE, message=f"No node can be reached ({what}). Expected: {expected}")


def _closed() -> Rejection:
    return Rejection(
        code=RejectionCode.UNAVAILABLE, message="This client's connection is closed. Call Client.connect again."
    )
