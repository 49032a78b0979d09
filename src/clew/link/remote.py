"""The contract as a client of a link has it: every call becomes a message, every answer comes back as one.

Owns: calls that wait for their answers, workers that are attached through this link. Never: connects (`client` does).

How it works: a call is answered by a `Reply`, like those of an engine in the same process, so that nobody can tell the
difference. Calls and workers are remembered until they are over, so that they can be made again in another session
(`connected`). A worker's session here lives as long as the worker says, through all the sessions that the nodes have
for it: credits that were granted and not used are granted again, and attempts at activities that it still has are told
to the next node, so that they stay with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, final

import msgspec

from clew.link import frames as f
from clew.link.calls import METHODS, Method, decode_rejection, encode_body
from clew.link.codes import CutCode, LinkViolation
from clew.link.early import AheadTasks, worthless
from clew.link.lane import Lane
from clew.link.remote_calls import RemoteCalls
from clew.link.remote_worker import AttemptKey, RemoteWorker, attempt_key
from clew.model import inputs as i
from clew.model.rejection import Rejection, RejectionCode
from clew.service import requests as r
from clew.service.contract import Service, TaskSink
from clew.service.errors import RPCError, RPCStatusCode
from clew.service.reply import Reply

T = TypeVar("T")

SENDS_MAX: Final = 5
"""A call that was under way when so many sessions in a row ended is likely to be what ends them."""

_HEAD_BYTES_MAX: Final = 1_000
"""What a message adds to its body, at most."""

_ATTACH: Final = Method("attach_worker")


class _Call(Reply[Any], eq=False, kw_only=False):
    """One call that waits for its answer."""

    call_id: int
    method: Method
    body: bytes
    made_at: float
    worker: int = 0
    trace: str = ""
    is_sent: bool = False
    sends_count: int = 0
    is_of_session: bool = False
    """Whether it rests on what only this session's node knows."""
    attempt: tuple[RemoteWorker, AttemptKey] | None = None
    """The attempt at an activity that it is about, and whose that is."""


@final
class RemoteService(RemoteCalls):
    """See the module docstring; implements ``service.contract.Service``.

    Args:
        patience_seconds: How long a call waits for a connection.
        on_go_away: The node wants its clients elsewhere, for this reason.
    """

    def __init__(self, patience_seconds: float, on_go_away: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience_seconds = patience_seconds
        self._on_go_away = on_go_away
        self._lane: Lane | None = None
        self._calls: dict[int, _Call] = {}
        self._queued: deque[_Call] = deque()
        self._plain_count = 0
        self._reports_count = 0
        self._calls_max = 0
        self._body_bytes_max = f.OPTIONS_DEFAULT.message_bytes_max - _HEAD_BYTES_MAX
        self._quiet: asyncio.Future[None] | None = None
        self._last_call_id = 0
        self._workers: dict[int, RemoteWorker] = {}
        self.ahead = AheadTasks()
        self._last_worker = 0
        self._granting: list[RemoteWorker] = []
        self._refusal: RPCError | None = None
        self._is_held_back = False
        self._closed_by: RPCError | None = None
        self._trace = ""

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> RemoteWorker:
        """Attach a worker; what is given back lives through all reconnects."""
        self._last_worker += 1
        worker = RemoteWorker(self, self._last_worker, hello, sink)
        self._workers[worker.number] = worker
        try:
            worker.session_id = await self._attach(worker)
        except BaseException:
            self._workers.pop(worker.number, None)
            raise
        worker.is_attached = True
        return worker

    # --- connections ------------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether no call waits for its answer."""
        return not self._calls and not self._queued

    @property
    def refuses_at_once(self) -> bool:
        """Whether there has been no connection for so long that calls are refused without waiting for one."""
        return self._refusal is not None

    async def wait_reports_answered(self, seconds: float) -> None:
        """Wait until no worker waits for the verdict on something it reported, at most so long."""
        if self._reports_count:
            self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet], timeout=seconds)

    def connected(self, lane: Lane, options: f.LinkOptions, *, is_new: bool) -> None:
        """There is a connection; in a new session, everything that is not over is begun again."""
        self._lane = lane
        self._calls_max = options.calls_max
        self._body_bytes_max = options.message_bytes_max - _HEAD_BYTES_MAX
        self._refusal = None
        self._is_held_back = False
        if is_new:
            self._begin_again()
        self._send_queued()

    def hold_back(self) -> None:
        """Send no more of what can wait for the next session."""
        self._is_held_back = True
        for worker in self._workers.values():
            worker.stop_offers()

    def refuse_waiting(self, error: RPCError, older_than: float | None) -> None:
        """There is no connection: refuse what was called before an instant of the loop, or all, and what comes.

        Args:
            error: What they get.
            older_than: The instant; None means all, and what is called from now on until there is a connection.
        """
        if older_than is None:
            self._refusal = error
        for call in [*self._calls.values(), *self._queued]:
            if call.method is not _ATTACH_AGAIN and (older_than is None or call.made_at < older_than):
                self._drop(call)
                call.set_exception(error)

    def detach_all(self) -> None:
        """The client closes: workers that are still attached are detached."""
        for worker in list(self._workers.values()):
            worker.detach()

    def close(self, error: RPCError) -> None:
        """Refuse everything from now on."""
        self._closed_by = error
        self._workers.clear()
        for call in [*self._calls.values(), *self._queued]:
            self._drop(call)
            call.set_exception(error)

    def _begin_again(self) -> None:
        self.ahead.end_session()
        under_way, self._calls = list(self._calls.values()), {}
        self._plain_count = self._reports_count = 0
        void = [call for call in (*under_way, *self._queued) if call.is_of_session]
        if void:
            under_way = [call for call in under_way if not call.is_of_session]
            self._queued = deque(call for call in self._queued if not call.is_of_session)
        for worker in self._workers.values():
            worker.begin_again()
        again: list[_Call] = []
        for call in under_way:
            if call.method.is_repeatable and call.sends_count < SENDS_MAX:
                again.append(call)
            else:
                call.set_exception(RPCError(_unknown_outcome(call.method.name)))
        for call in reversed(again):
            call.is_sent = False
            self._queued.appendleft(call)
        for call in void:
            call.set_exception(worthless())

    # --- calls ------------------------------------------------------------------------------------------------------

    def in_trace(self, trace: str, method: Callable[[Any], Awaitable[T]], request: Any) -> Awaitable[T]:
        """Make a call of this service that belongs to a trace (``traceparent``).

        Calls that wait are made when they are awaited, and belong to none.
        """
        self._trace = trace
        try:
            return method(request)
        finally:
            self._trace = ""

    def _call(self, name: str, request: Any) -> Reply[Any]:
        return self._make(METHODS[name], encode_body(request))

    async def _wait(self, name: str, request: Any) -> Any:
        """Make a call that is taken back when nobody waits for it any more."""
        call = self._make(METHODS[name], encode_body(request))
        try:
            return await call
        except asyncio.CancelledError:
            if not call.done():
                self._drop(call)
            raise

    def _make(self, method: Method, body: bytes, worker: int = 0) -> _Call:
        refusal = self._closed_by or self._refusal
        if refusal is not None and method is not _ATTACH_AGAIN:
            raise RPCError(refusal.rejection)
        if len(body) > self._body_bytes_max:
            raise RPCError(_too_large(method.name, len(body), self._body_bytes_max))
        self._last_call_id += 1
        call = _Call(self._last_call_id, method, body, self._loop.time(), worker, self._trace)
        if self._queued or self._lane is None or not self._may_send(call):
            self._queued.append(call)
            self._send_queued()
        else:
            self._send(self._lane, call)
        return call

    def _may_send(self, call: _Call) -> bool:
        if self._lane is None:
            return False
        return call.method.is_report or (self._plain_count < self._calls_max and not self._is_held_back)

    def _send_queued(self) -> None:
        if self._lane is None or not self._queued:
            return
        kept: deque[_Call] = deque()
        while self._queued:
            call = self._queued.popleft()
            if self._may_send(call):
                self._send(self._lane, call)
            else:
                kept.append(call)
        self._queued = kept

    def _send(self, lane: Lane, call: _Call) -> None:
        self._calls[call.call_id] = call
        call.is_sent = True
        call.sends_count += 1
        if call.method.is_report:
            self._reports_count += 1
        else:
            self._plain_count += 1
        if call.worker:
            lane.send(f.Attach(call.call_id, call.worker, call.body))
        else:
            lane.send(f.Call(call.call_id, call.method.name, 0, call.body, call.trace))

    def _answer_task(self, name: str, request: Any, token: i.TaskToken) -> Reply[Any]:
        if not token.early:
            return self._make(METHODS[name], encode_body(request))
        self.ahead.answer(token)
        call = self._make(METHODS[name], encode_body(request))
        call.is_of_session = True
        return call

    def _tell_of_attempt(self, name: str, request: Any, token: i.TaskToken | i.ActivityTarget) -> Reply[Any]:
        call = self._make(METHODS[name], encode_body(request))
        if isinstance(token, i.TaskToken):
            key = attempt_key(token)
            for worker in self._workers.values():
                if key in worker.held:
                    call.attempt = worker, key
                    break
        return call

    def _pop(self, call_id: int) -> _Call | None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return None
        if call.method.is_report:
            self._reports_count -= 1
            if not self._reports_count and self._quiet is not None and not self._quiet.done():
                self._quiet.set_result(None)
        else:
            self._plain_count -= 1
        return call

    def _drop(self, call: _Call) -> None:
        if call.is_sent:
            self._pop(call.call_id)
            if self._lane is not None and self._lane.is_bound:
                self._lane.send(f.Forget(call.call_id))
        else:
            self._queued.remove(call)

    # --- what comes -------------------------------------------------------------------------------------------------

    def received(self, message: Any) -> None:
        """Take one message from the node."""
        if type(message) is f.Answer:
            self._answered(message)
            return
        match message:
            case (
                f.OfferWorkflowTask()
                | f.OfferActivityTask()
                | f.CancelActivity()
                | f.EvictWorkflow()
                | f.ConfirmWorkflowTask()
            ):
                worker = self._workers.get(message.worker)
                # One that has just been detached is still offered what was on its way.
                if worker is not None:
                    worker.received(message)
            case f.Refusal():
                self._refused(message)
            case f.GoAway():
                self._on_go_away(message.reason)
            case _:
                raise LinkViolation(CutCode.MALFORMED, f"a node may not send {type(message).__name__}")

    def _answered(self, message: f.Answer) -> None:
        call = self._pop(message.call_id)
        if call is None:
            return
        if self._queued:
            self._send_queued()
        try:
            value = (
                msgspec.json.decode(message.body, type=str)
                if call.worker
                else call.method.decode_response(message.body)
            )
        except RPCError as error:
            call.set_exception(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkViolation(CutCode.MALFORMED, f"an answer to attach_worker that is none ({error})") from error
        else:
            if call.attempt is not None and call.method.is_end_of_attempt:
                worker, key = call.attempt
                worker.held.pop(key, None)
            call.set_result(value)

    def _refused(self, message: f.Refusal) -> None:
        call = self._pop(message.call_id)
        if call is None:
            return
        if self._queued:
            self._send_queued()
        error = RPCError(decode_rejection(message.body))
        call.set_exception(error)
        # Until the verdict is final the next node must leave the attempt here: it will be reported again.
        if call.attempt is not None and not error.is_retryable:
            self._let_go(call, call.attempt, error)

    def _let_go(self, call: _Call, attempt: tuple[RemoteWorker, AttemptKey], error: RPCError) -> None:
        """What was said of an attempt was refused for good: it is over, unless the worker says something else of it."""
        if error.status is not RPCStatusCode.NOT_FOUND:
            others = (*self._calls.values(), *self._queued)
            if not call.method.is_end_of_attempt or any(other.attempt == attempt for other in others):
                return
        worker, key = attempt
        worker.held.pop(key, None)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _attach(self, worker: RemoteWorker, *, is_again: bool = False) -> Reply[str]:
        return self._make(_ATTACH_AGAIN if is_again else _ATTACH, encode_body(worker.hello_now()), worker.number)

    def attach_again(self, worker: RemoteWorker) -> None:
        """Attach a worker in a new session."""
        self._attach(worker, is_again=True).listen(worker.attached_again)

    def send(self, message: Any) -> None:
        """Send something of a worker's."""
        if self._lane is not None:
            self._lane.send(message)

    def grant_soon(self, worker: RemoteWorker) -> None:
        """Ask it for its credits at the end of this turn."""
        self._granting.append(worker)
        if self._lane is not None:
            self._lane.flush_soon()

    def send_grants(self) -> None:
        """Called by the lane before it sends."""
        if self._granting:
            granting, self._granting = self._granting, []
            for worker in granting:
                worker.send_grants()

    def knows(self, worker: RemoteWorker) -> bool:
        """Whether it has not been detached."""
        return self._workers.get(worker.number) is worker

    def forget_worker(self, worker: RemoteWorker) -> None:
        """It is detached."""
        self._workers.pop(worker.number, None)
        self.ahead.detached(worker)


_ATTACH_AGAIN: Final = Method("attach_worker")


def _too_large(method: str, size: int, limit: int) -> Rejection:
    return Rejection(
        code=RejectionCode.LIMIT_EXCEEDED,
        message=(
            f"The request of {method} has {size} bytes; the node takes at most {limit}. Keep large data elsewhere, "
            "such as in a payload store, and pass a reference."
        ),
    )


def _unknown_outcome(method: str) -> Rejection:
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message=(
            f"The link broke while {method} was under way, and its session could not be gone on with; whether the call "
            "took effect is not known. Look, then repeat it if it did not."
        ),
    )


def as_service(remote: RemoteService) -> Service:
    """The same, for what wants the contract; the type check sees here that no call is missing."""
    return remote
