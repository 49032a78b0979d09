"""One session, as the node has it: serves calls, and carries offers to the workers behind it.

Owns: calls under way, attached workers with their credits. Never: greets, resumes or gives up (`server` does), or
knows what a call means.

How it works: an answer is sent when the service gives it, in whatever order. While much waits for a client that reads
slowly, nothing more is taken from it: its messages wait unacknowledged, until its window is full and it stops sending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from clew.link import frames as f
from clew.link.admission import Admission
from clew.link.calls import METHODS, Method, decode_worker_hello, encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.link.early import EarlyNumbers, first_number, worthless
from clew.link.lane import Lane
from clew.link.server_worker import EarlyServerSink, ServerWorker
from clew.link.spans import EndSpan
from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.reply import Reply

if TYPE_CHECKING:
    from clew.link.server import Connection, LinkServer

_log: Final = logging.getLogger("clew.link")

METHOD_NAME_CHARS_SHOWN: Final = 80

_NOTHING: Final = encode_body(None)
"""The answer to most calls."""


@final
class _Call:
    """One call under way, and the listener to its answer."""

    __slots__ = ("_session", "answer", "call_id", "deadline", "early", "end_span", "method")

    def __init__(self, session: ServerSession, call_id: int, method: Method) -> None:
        self._session = session
        self.call_id = call_id
        self.method = method
        self.deadline: asyncio.TimerHandle | None = None
        self.answer: asyncio.Future[Any] | Reply[Any] | None = None
        self.end_span: EndSpan | None = None
        self.early: TaskToken | None = None
        """Of the task that it answers, if that was given out early."""

    def __call__(self, answer: asyncio.Future[Any] | Reply[Any]) -> None:
        """The service has answered."""
        self._session.answered(self, answer)


@final
class ServerSession:
    """See the module docstring.

    Args:
        server: Keeps it.
        token: Its secret name.
        admission: What its calls go to, and who may go on with it.
        now_ns: The engine's time.
    """

    def __init__(self, server: LinkServer, token: str, admission: Admission, now_ns: Callable[[], int]) -> None:
        self.token = token
        self.principal = admission.principal
        self.connection: Connection | None = None
        self.is_ended = False
        self._server = server
        self._service = admission.service
        self._on_end = admission.on_end
        self._tracer = server.tracer
        self.options = server.options
        self._much_bytes = min(server.options.window_bytes, server.options.queue_bytes_max)
        self._loop = asyncio.get_running_loop()
        self.lane = Lane(
            self._loop, f.FROM_CLIENT, self.options, self.options.message_bytes_max, self._received, now_ns=now_ns
        )
        self._bound: dict[str, tuple[Method, Callable[[Any], Awaitable[Any]]]] = {}
        """The methods that were called, with what serves them."""
        self._calls: dict[int, _Call] = {}
        self._reports_count = 0
        self._workers: dict[int, ServerWorker] = {}
        self.early = EarlyNumbers(first_number(token))
        self._unbound_at = self._loop.time()
        self._is_released = False
        self._is_holding = False

    # --- connections ------------------------------------------------------------------------------------------------

    def bind(self, connection: Connection, peer_received: int) -> None:
        """Go on over this connection.

        Raises:
            LinkViolation: What the client says it has cannot be.
        """
        former, self.connection = self.connection, connection
        if former is not None and former is not connection:
            self.lane.unbind()
            former.supersede()
        self.lane.bind(connection.wire, peer_received)
        if self._is_released:
            self._is_released = False
            for worker in self._workers.values():
                worker.resume()

    def unbind(self) -> None:
        """The connection is gone."""
        self.connection = None
        self._unbound_at = self._loop.time()
        self.lane.unbind()
        if self.options.release_seconds <= 0:
            self.release()

    def is_given_up(self, now: float) -> bool:
        """Whether its client has stayed away for too long; releases its workflow tasks before that."""
        if self.connection is not None:
            return False
        away = now - self._unbound_at
        if away >= self.options.release_seconds:
            self.release()
        return away >= self.options.resume_seconds

    def end(self, *, is_node_stopping: bool = False) -> None:
        """Let go of everything: what its workers held is given to others.

        Args:
            is_node_stopping: The workers live on: what they hold is theirs until their next node has taken it over.
        """
        self.is_ended = True
        self.lane.unbind()
        for worker in list(self._workers.values()):
            if is_node_stopping:
                worker.suspend()
            else:
                worker.end()
        self._workers.clear()
        for call in list(self._calls.values()):
            self._take_back(call)
            if call.end_span is not None:
                call.end_span(asyncio.CancelledError())
        self._calls.clear()
        if self._on_end is not None:
            self._on_end()

    def send_go_away(self, reason: str) -> None:
        """Ask the client to go elsewhere."""
        self.lane.send(f.GoAway(reason))

    def check_pace(self, now: float) -> None:
        """Cut a client that does not take what is sent."""
        lane = self.lane
        if lane.queued_bytes and now - lane.progress_at > self.options.slow_seconds:
            assert self.connection is not None, "only connected sessions are looked at"
            self.connection.cut(
                CutCode.SLOW_READER,
                f"{lane.queued_bytes} bytes wait, and nothing was taken for {self.options.slow_seconds:g} s",
            )

    def release(self) -> None:
        """Give its workflow tasks to others; it may come back."""
        if not self._is_released:
            self._is_released = True
            for worker in self._workers.values():
                worker.suspend()

    # --- what comes -------------------------------------------------------------------------------------------------

    def frame_received(self, data: bytes) -> None:
        """Take one frame.

        Raises:
            LinkViolation: The client broke the rules.
        """
        self.lane.frame_received(data)
        if self.lane.is_over:
            self._server.end_session(self)
        elif self._is_holding:
            self._go_on()

    def _received(self, message: Any) -> None:
        if type(message) is f.Call:
            self._call(message)
            return
        match message:
            case f.Grant():
                self._worker(message.worker).grant(message.workflow_tasks, message.activity_tasks)
            case f.Forget():
                self._forget(message.call_id)
            case f.Attach():
                self._attach(message)
            case f.StopPolling():
                self._worker(message.worker).stop_polling()
            case f.Detach():
                self._worker(message.worker).end()
                del self._workers[message.worker]
            case f.Unanswered():
                self._worker(message.worker).note_unanswered(message.token)
            case _:
                raise LinkViolation(CutCode.MALFORMED, f"a client may not send {type(message).__name__}")

    def _worker(self, number: int) -> ServerWorker:
        worker = self._workers.get(number)
        if worker is None:
            raise LinkViolation(CutCode.MALFORMED, f"worker {number} is not attached to this session")
        return worker

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, message: f.Call) -> None:
        call_id, name = message.call_id, message.method
        if call_id in self._calls:
            raise _in_use(call_id)
        bound = self._bound.get(name) or self._bind_method(name)
        if bound is None:
            self._refuse(call_id, _unknown_method(name))
            return
        method, serve = bound
        if method.is_report:
            self._reports_count += 1
        if len(self._calls) >= self.options.calls_max:
            self._check_calls_count()
        self._calls[call_id] = call = _Call(self, call_id, method)
        if self._tracer is not None and (message.trace or not method.is_report):
            call.end_span = self._tracer(name, message.trace)
        try:
            request = method.decode_request(message.body)
            if method.is_task_answer and request.token.early:
                self._check_early(request.token)
                call.early = request.token
            answer = serve(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer
            self._pop(call_id, error)
            self._refuse(call_id, _rejection(error, name))
            return
        self._wait_for(call, answer, message.timeout_ms)

    def _check_early(self, token: TaskToken) -> None:
        if self.early.is_worthless(token.early):
            raise worthless()

    def _bind_method(self, name: str) -> tuple[Method, Callable[[Any], Awaitable[Any]]] | None:
        method = METHODS.get(name)
        if method is None:
            return None
        bound = self._bound[name] = method, getattr(self._service, name)
        return bound

    def _wait_for(self, call: _Call, answer: Awaitable[Any], timeout_ms: int) -> None:
        if isinstance(answer, Reply):
            # Those of the engine are answered in their own time, which is bounded; they need no deadline here.
            reply: Reply[Any] = answer
            call.answer = reply
            reply.listen(call)
            return
        future = asyncio.ensure_future(answer)
        if future.done():
            self.answered(call, future)
            return
        call.answer = future
        seconds = self.options.call_seconds
        if timeout_ms > 0:
            seconds = min(seconds, timeout_ms / 1_000)
        call.deadline = self._loop.call_later(seconds, self._too_late, call.call_id, seconds)
        future.add_done_callback(call)

    def answered(self, call: _Call, answer: asyncio.Future[Any] | Reply[Any]) -> None:
        """Send the answer to a call, if it is still waited for."""
        is_cancelled = answer.cancelled()
        error = None if is_cancelled else answer.exception()
        if self._pop(call.call_id, error) is None:
            return
        if call.early is not None:
            self.early.answered(call.early)
        if is_cancelled:
            self._refuse(call.call_id, _stopped(call.method.name))
        elif error is not None:
            self._refuse(call.call_id, _rejection(error, call.method.name))
        else:
            value = answer.result()
            self.send(f.Answer(call.call_id, _NOTHING if value is None else encode_body(value)))

    def _too_late(self, call_id: int, seconds: float) -> None:
        call = self._pop(call_id, TimeoutError())
        if call is not None:
            self._take_back(call)
            self._refuse(call_id, _too_late(call.method.name, seconds))

    def _forget(self, call_id: int) -> None:
        call = self._pop(call_id, asyncio.CancelledError())
        if call is not None:
            self._take_back(call)

    def _pop(self, call_id: int, error: BaseException | None = None) -> _Call | None:
        call = self._calls.pop(call_id, None)
        if call is not None:
            if call.end_span is not None:
                call.end_span(error)
            if call.method.is_report:
                self._reports_count -= 1
            if call.deadline is not None:
                call.deadline.cancel()
        return call

    def _take_back(self, call: _Call) -> None:
        if call.deadline is not None:
            call.deadline.cancel()
        answer = call.answer
        if answer is None or answer.done() or not call.method.is_abandonable:
            return
        if isinstance(answer, Reply):
            answer.abandon()
        else:
            answer.cancel()

    def _check_calls_count(self) -> None:
        """To be asked when that many are under way, or more."""
        limit = self.options.calls_max
        if self._reports_count > 2 * limit or len(self._calls) - self._reports_count >= limit:
            raise LinkViolation(CutCode.FLOODED, f"more than {limit} calls at a time")

    def _refuse(self, call_id: int, rejection: Rejection) -> None:
        self.send(f.Refusal(call_id, encode_body(rejection)))

    # --- workers ----------------------------------------------------------------------------------------------------

    def _attach(self, message: f.Attach) -> None:
        if message.call_id in self._calls:
            raise _in_use(message.call_id)
        if message.worker in self._workers:
            raise LinkViolation(CutCode.MALFORMED, f"worker {message.worker} is attached already")
        if len(self._workers) >= self.options.attachments_max:
            raise LinkViolation(CutCode.FLOODED, f"more than {self.options.attachments_max} workers on one link")
        self._check_calls_count()
        worker = self._workers[message.worker] = ServerWorker(self, message.worker)
        call = self._calls[message.call_id] = _Call(self, message.call_id, _ATTACH)
        self._wait_for(call, worker.attach(message.body), 0)

    async def attach_worker(self, body: bytes, worker: ServerWorker) -> str:
        """Attach a worker to the service, and give the id of its session there."""
        try:
            hello = msgspec.structs.replace(decode_worker_hello(body), is_remote=True)
            sink = EarlyServerSink(worker) if hello.takes_early_tasks else worker
            session = await self._service.attach_worker(hello, sink)
        except BaseException:
            self._workers.pop(worker.number, None)
            raise
        worker.session = session
        if self.is_ended or self._workers.get(worker.number) is not worker:
            session.detach()
        elif self._is_released:
            worker.suspend()
        return session.session_id

    # --- what goes --------------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send something that the engine has for a worker, or an answer."""
        if self.is_ended:
            return
        queued = self.lane.send(message)
        if queued > self._much_bytes:
            self._note_much(queued)

    def _note_much(self, queued: int) -> None:
        """Much waits for the client: take nothing more from it, or cut it."""
        if queued > self.options.window_bytes and not self._is_holding:
            self._is_holding = True
            self.lane.hold()
        if queued > self.options.queue_bytes_max:
            self._loop.call_soon(self._cut_slow, queued)

    def _cut_slow(self, queued: int) -> None:
        if self.connection is not None:
            self.connection.cut(CutCode.SLOW_READER, f"{queued} bytes wait to be read")
        else:
            self._server.end_session(self)

    def _go_on(self) -> None:
        if self.lane.queued_bytes <= self.options.window_bytes // 2:
            self._is_holding = False
            self.lane.release()


_ATTACH: Final = Method("attach_worker")


def _rejection(error: BaseException, method: str) -> Rejection:
    if isinstance(error, RPCError):
        return error.rejection
    _log.error("link.call_failed method=%s", method, exc_info=error)
    return Rejection(
        code=RejectionCode.INTERNAL,
        message=(
            f"The engine failed inside {method}: {type(error).__name__}. This is a bug in Clew, not in your call; "
            "whether the call took effect is not known. Please report it with the node's log of logger 'clew.link'."
        ),
    )


def _in_use(call_id: int) -> LinkViolation:
    return LinkViolation(CutCode.MALFORMED, f"call {call_id} is under way already")


def _unknown_method(name: str) -> Rejection:
    return Rejection(
        code=RejectionCode.UNSUPPORTED,
        message=(
            f"This node has no call {name[:METHOD_NAME_CHARS_SHOWN]!r}. Expected: a call of its version of Clew; "
            "update the node, or use a client of its version."
        ),
    )


def _stopped(method: str) -> Rejection:
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message=f"The node stopped while {method} was under way. Repeat the call.",
    )


def _too_late(method: str, seconds: float) -> Rejection:
    return Rejection(
        code=RejectionCode.DEADLINE_EXCEEDED,
        message=(
            f"{method} was not answered within {seconds:g} s; whether it took effect is not known. Repeat it, or ask "
            "describe what the run waits for."
        ),
    )
