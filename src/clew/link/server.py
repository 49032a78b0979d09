"""The node's end of all links: takes connections in, and keeps their sessions.

Owns: greetings, the table of sessions, resuming, what happens to sessions whose connection broke, keepalive, draining.
Never: serves a call (`server_session` does), or listens on a socket (the composition root has a transport do it).

How it works: a transport calls `accept` for each connection and passes frames on to what it gets. The first frame has
to be a `Hello`. `admit` judges its credentials and answers with the service as this client may use it; so whatever
stands between a client and the engine (authorization, audit, limits) is a wrapper round the contract. A session
outlives its connection: for `release_seconds` nothing happens, then its workflow tasks are offered elsewhere, and after
`resume_seconds` it is given up. One timer looks after the silence of all connections, another after the sessions that
have none; so an idle link costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, final

from clew.link.admission import Admission, Admit
from clew.link.calls import encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.link.frames import OPTIONS_DEFAULT, VERSIONS, Hello, LinkOptions, Refused, Welcome, decode_hello, encode
from clew.link.refusals import RefusalLog
from clew.link.server_session import ServerSession
from clew.link.spans import CallTracer
from clew.link.wire import Peer, Wire
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.service.contract import Service
from clew.service.errors import RPCError

_log: Final = logging.getLogger("clew.link")

SWEEPS_PER_PATIENCE: Final = 4
"""How often, in the shortest time that is watched, connections or sessions are looked at."""


@final
class LinkServer:
    """See the module docstring; belongs to the loop of its service.

    Args:
        service: The contract, for clients that are let in without question.
        node: Names this node.
        new_token: Makes secret names of sessions.
        now_ns: The engine's time.
        limits: What runs may take, told to clients.
        options: What each link may take.
        admit: Judges credentials; everybody is let in when not given.
        tracer: Told of each call; none is traced when not given.
    """

    def __init__(
        self,
        service: Service,
        *,
        node: str,
        new_token: Callable[[], str],
        now_ns: Callable[[], int],
        limits: Limits = LIMITS_DEFAULT,
        options: LinkOptions = OPTIONS_DEFAULT,
        admit: Admit | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        self.node = node
        self.tracer = tracer
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._new_token = new_token
        self._now_ns = now_ns
        self._limits = limits
        self._admit = admit
        self._connections: set[Connection] = set()
        self._sessions: dict[str, ServerSession] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._away: dict[str, ServerSession] = {}
        self._away_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_draining = False
        self._is_closed = False
        self.refusals = RefusalLog(self._loop)

    @property
    def connections_count(self) -> int:
        """Connections there are, greeted or not."""
        return len(self._connections)

    @property
    def sessions_count(self) -> int:
        """Sessions there are, with a connection or waiting for one."""
        return len(self._sessions)

    def accept(self, wire: Wire, peer: Peer) -> Connection:
        """Take a new connection in; its frames go to what is returned."""
        connection = Connection(self, wire, peer)
        if self._is_closed or self._is_draining:
            connection.refuse(CutCode.GOING_AWAY, "this node is going away; connect to another")
        elif len(self._connections) >= self.options.connections_max:
            connection.refuse(
                CutCode.OVERLOADED, f"this node has {len(self._connections)} connections, which is its most"
            )
        else:
            self._connections.add(connection)
            self._sweep_soon()
        return connection

    def drain(self, reason: str = "this node is going away") -> None:
        """Ask all clients to go elsewhere, and let no more in."""
        self._is_draining = True
        for session in self._sessions.values():
            session.send_go_away(reason)

    async def wait_drained(self, seconds: float) -> bool:
        """Wait until all clients have gone, at most so long; whether they have."""
        if self._connections:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=seconds)
        return not self._connections

    def close(self) -> None:
        """Cut all links and end all sessions."""
        self._is_closed = True
        self.refusals.close()
        for timer in (self._sweep_timer, self._away_timer):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections):
            connection.leave("this node has stopped")
        for session in self._sessions.values():
            session.end(is_node_stopping=True)
        self._sessions.clear()
        self._away.clear()

    def cut_sessions(self, is_meant: Callable[[str], bool], code: CutCode, reason: str) -> int:
        """End every session whose principal is meant (such as one whose key was revoked), and say how many."""
        meant = [session for session in self._sessions.values() if is_meant(session.principal)]
        for session in meant:
            self._end(session)
            if session.connection is not None:
                session.connection.cut(code, reason)
        return len(meant)

    # --- greetings --------------------------------------------------------------------------------------------------

    async def greet(self, connection: Connection, hello: Hello) -> None:
        """Answer a greeting: bind the connection to a session, new or old."""
        version = next((version for version in hello.versions if version in VERSIONS), 0)
        if not version:
            connection.refuse(
                CutCode.UNSUPPORTED_VERSION,
                f"the client speaks link protocol {_listed(hello.versions)}, this node {_listed(VERSIONS)}; use "
                "versions of Clew that have one in common",
            )
            return
        try:
            admission = await self._admission(hello, connection.peer)
        except RPCError as error:
            connection.refuse(_cut_code(error), error.message, error.rejection)
            return
        if connection.is_lost or self._is_closed:
            return
        session = self._resumable(hello, admission)
        is_resumed = session is not None
        if is_resumed and admission.on_end is not None:
            admission.on_end()
        if session is None:
            session = ServerSession(self, self._new_token(), admission, self._now_ns)
            self._sessions[session.token] = session
        welcome = Welcome(
            version=version,
            session=session.token,
            is_resumed=is_resumed,
            received=session.lane.received,
            node=self.node,
            now_ns=self._now_ns(),
            limits=self._limits,
            options=self.options,
        )
        connection.wire.allow(self.options.frame_bytes_max)
        connection.wire.send(encode(welcome))
        connection.session = session
        self._away.pop(session.token, None)
        session.bind(connection, hello.received if is_resumed else 0)
        _log.debug("link.connected peer=%s resumed=%s", connection.peer.address, is_resumed)

    async def _admission(self, hello: Hello, peer: Peer) -> Admission:
        if self._admit is None:
            return Admission(self._service)
        return await self._admit(hello, peer)

    def _resumable(self, hello: Hello, admission: Admission) -> ServerSession | None:
        session = self._sessions.get(hello.session) if hello.session else None
        if session is None or session.principal != admission.principal:
            return None
        return session

    # --- ends -------------------------------------------------------------------------------------------------------

    def connection_lost(self, connection: Connection, code: int) -> None:
        """A connection is over; its session waits for another, unless it was ended."""
        self._connections.discard(connection)
        if not self._connections and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.unbind()
        if session.is_ended or connection.is_cut_for_good or session.lane.is_over:
            self._end(session)
            return
        if code == CutCode.GOING_AWAY:
            session.release()
        elif self.options.resume_seconds <= 0:
            self._end(session)
            return
        self._away[session.token] = session
        self._look_at_away_soon()

    def _end(self, session: ServerSession) -> None:
        self._away.pop(session.token, None)
        if self._sessions.pop(session.token, None) is not None:
            session.end()

    def end_session(self, session: ServerSession) -> None:
        """The client is done with it."""
        self._end(session)

    # --- silence ----------------------------------------------------------------------------------------------------

    def _sweep_soon(self) -> None:
        if self._sweep_timer is None and not self._is_closed:
            options = self.options
            shortest = min(options.hello_seconds, options.silence_seconds, options.slow_seconds)
            self._sweep_timer = self._loop.call_later(max(shortest / SWEEPS_PER_PATIENCE, 0.01), self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_silence(now)
        if self._connections:
            self._sweep_soon()

    def _look_at_away_soon(self) -> None:
        if self._away_timer is None and not self._is_closed:
            patience = [self.options.release_seconds, self.options.resume_seconds]
            shortest = min((seconds for seconds in patience if seconds > 0), default=0.0)
            self._away_timer = self._loop.call_later(max(shortest / SWEEPS_PER_PATIENCE, 0.01), self._look_at_away)

    def _look_at_away(self) -> None:
        self._away_timer = None
        now = self._loop.time()
        for session in list(self._away.values()):
            # While this node goes away, its workers go to others, which take over what they run.
            if not self._is_draining and session.is_given_up(now):
                _log.info("link.session_lost principal=%s", session.principal)
                self._end(session)
        if self._away:
            self._look_at_away_soon()


@final
class Connection:
    """One connection: the user of its wire, before and after the greeting."""

    __slots__ = ("_greeting", "_server", "is_cut_for_good", "is_lost", "opened_at", "peer", "session", "wire")

    def __init__(self, server: LinkServer, wire: Wire, peer: Peer) -> None:
        self._server = server
        self.wire = wire
        self.peer = peer
        self.session: ServerSession | None = None
        self.is_lost = False
        self.is_cut_for_good = False
        self.opened_at = asyncio.get_running_loop().time()
        self._greeting: asyncio.Task[None] | None = None

    def frame_received(self, frame: bytes) -> None:
        """A frame came."""
        if self.is_cut_for_good or self.is_lost:
            return
        try:
            if self.session is not None:
                self.session.frame_received(frame)
            elif self._greeting is None:
                self._begin(frame)
            else:
                raise LinkViolation(CutCode.MALFORMED, "a second frame before the answer to the greeting")
        except LinkViolation as violation:
            self.cut(violation.code, violation.reason)
        except Exception:  # noqa: BLE001 - whatever it is, it must not harm other links; it is logged
            _log.exception("link.failed peer=%s", self.peer.address)
            self.cut(CutCode.INTERNAL, "this node failed while it served this link; see its log")

    def wire_lost(self, code: int, reason: str) -> None:
        """The connection is over."""
        if self.is_lost:
            return
        self.is_lost = True
        _log.debug("link.connection_lost peer=%s code=%d reason=%s", self.peer.address, code, reason)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.cancel()
        self._server.connection_lost(self, code)

    def refuse(self, code: CutCode, reason: str, rejection: Rejection | None = None) -> None:
        """Answer the greeting with a no, and close."""
        body = encode_body(rejection) if rejection is not None else b""
        self.wire.send(encode(Refused(code=int(code), reason=reason, rejection=body)))
        self.cut(code, reason)

    def cut(self, code: CutCode, reason: str) -> None:
        """Close; the session does not outlive it."""
        if not self.is_cut_for_good:
            self.is_cut_for_good = True
            if self.session is None:
                self._server.refusals.note(code, self.peer.address, reason)
            else:
                _log.warning("link.cut peer=%s code=%s reason=%s", self.peer.address, code.name, reason)
            self.wire.close(code, reason)

    def leave(self, reason: str) -> None:
        """Close, because the node stops."""
        self.is_cut_for_good = True
        self.wire.close(CutCode.GOING_AWAY, reason)

    def supersede(self) -> None:
        """Close; its session goes on elsewhere."""
        self.session = None
        self.wire.close(CutCode.SUPERSEDED, "the session came back on another connection")

    def check_silence(self, now: float) -> None:
        """Cut what is silent, or does not read."""
        options = self._server.options
        if self.is_cut_for_good:
            # It was told to close and did not.
            self.wire.abort()
        elif self.session is None:
            if now - self.opened_at > options.hello_seconds:
                self.cut(CutCode.TIMED_OUT, f"no greeting within {options.hello_seconds:g} s")
        elif now - self.session.lane.heard_at > options.silence_seconds:
            # Not for good: it may come back on another connection.
            _log.info("link.silent peer=%s", self.peer.address)
            self.wire.abort()
        else:
            self.session.check_pace(now)

    def _begin(self, frame: bytes) -> None:
        limit = self._server.options.hello_bytes_max
        if len(frame) > limit:
            raise LinkViolation(CutCode.TOO_LARGE, f"a greeting of {len(frame)} bytes; at most {limit} are taken")
        hello = decode_hello(frame)
        self._greeting = asyncio.get_running_loop().create_task(self._greet(hello), name="clew-link-greeting")

    async def _greet(self, hello: Hello) -> None:
        try:
            await self._server.greet(self, hello)
        except LinkViolation as violation:
            self.cut(violation.code, violation.reason)
        except Exception:  # noqa: BLE001 - whatever it is, it must not harm other links; it is logged
            _log.exception("link.greeting_failed peer=%s", self.peer.address)
            self.refuse(CutCode.INTERNAL, "this node failed while it answered the greeting; see its log")


def _cut_code(error: RPCError) -> CutCode:
    """Refused credentials, or a refusal that may pass."""
    if error.is_retryable:
        return CutCode.OVERLOADED
    return CutCode.UNAUTHENTICATED if error.code is RejectionCode.UNAUTHENTICATED else CutCode.FORBIDDEN


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions[:10])) or "none"
