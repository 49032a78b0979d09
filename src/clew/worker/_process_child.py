"""The child's side of process activities: runs the function, and listens for its cancellation.

Owns: what happens in a child of the process pool. Never: imports the worker's shells (a child starts in little time).

How it works: each child keeps one connection to its worker. It says when a call begins and ends, passes heartbeats up,
and a thread of it reads cancellations and notices the death of the worker's process. Results and errors travel as bytes
that were tried for unpickling here, because one that cannot be read would break the whole pool on the other side.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any, Final, final

from clew.activity import _CompleteAsyncError
from clew.activity._context import (
    ActivityCancellationDetails,
    Info,
    _CancellationDetailsHolder,
    _CompositeEvent,
    _Context,
)
from clew.converter import PayloadConverter, to_stored_payloads
from clew.exceptions import ApplicationError
from clew.worker._thread_calls import ThreadCall

BEGIN: Final = "begin"
END: Final = "end"
BEAT: Final = "beat"
CANCEL: Final = "cancel"
SHUTDOWN: Final = "shutdown"

PARENT_LOOK_SECONDS: Final = 1.0
"""How often a child without a connection looks whether the process of its pool is still there."""


@dataclass(frozen=True)
class ChildCall:
    """One call for a child; pickled on its way."""

    address: Any
    secret: bytes
    call_id: int
    fn: Callable[..., Any]
    args: Sequence[Any]
    info: Info
    payload_converter_class: type[PayloadConverter]
    can_interrupt: bool


@final
class _Running:
    """What a cancellation has to reach."""

    def __init__(self, call: ChildCall) -> None:
        self.cancelled = threading.Event()
        self.holder = _CancellationDetailsHolder()
        self.thread_call = ThreadCall()
        self.can_interrupt = call.can_interrupt

    def cancel(self, details: ActivityCancellationDetails) -> None:
        self.holder.details = details
        self.cancelled.set()
        if self.can_interrupt:
            self.thread_call.interrupt()


@final
class _Link:
    """The connection of this child to its worker."""

    def __init__(self, address: Any, secret: bytes) -> None:
        self._connection: Connection[Any, Any] = Client(address, authkey=secret)
        self._send_lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self.shutdown = threading.Event()
        threading.Thread(target=self._listen, name="clew-activity-link", daemon=True).start()

    def begin(self, call: ChildCall) -> _Running:
        running = self._running[call.call_id] = _Running(call)
        self.send((BEGIN, call.call_id, os.getpid()))
        return running

    def end(self, call_id: int) -> None:
        del self._running[call_id]
        self.send((END, call_id, None))

    def send(self, message: tuple[str, int, Any]) -> None:
        # A worker that is gone has no use for messages; what becomes of this process, see `_end_with_parent`.
        with self._send_lock, contextlib.suppress(OSError):
            self._connection.send(message)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, call_id, content = self._connection.recv()
                if kind == SHUTDOWN:
                    self.shutdown.set()
                elif kind == CANCEL and (running := self._running.get(call_id)) is not None:
                    running.cancel(content)
        _end_with_parent()


def _end_with_parent() -> None:
    """Wait for the end of the process that owns the pool, however it comes, then end this one.

    A pool ends its children when it is shut down. One whose process was killed cannot, and they would wait for ever for
    its calls; a call that still runs is of no use any more, as its attempt counts as lost.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    # Siblings of a forked child keep its view of the parent open, so the parent's process id is looked at as well.
    is_own_child = os.getppid() == parent.pid
    while parent.is_alive() and not (is_own_child and os.getppid() != parent.pid):
        parent.join(PARENT_LOOK_SECONDS)
    os._exit(1)


_links: Final[dict[tuple[int, str], _Link]] = {}


def run_in_child(call: ChildCall) -> bytes:
    """Run one call; gives ``(is_ok, result or error)``, pickled."""
    link = _link_to(call)
    running = link.begin(call)
    try:
        return _to_bytes(True, running.thread_call.run(_call, (call, link, running)))
    except _CompleteAsyncError as error:
        return _to_bytes(False, error)
    except BaseException as error:  # noqa: BLE001 - the outcome of the attempt, carried to the worker
        return _to_bytes(False, error)
    finally:
        link.end(call.call_id)


def _link_to(call: ChildCall) -> _Link:
    key = (os.getpid(), str(call.address))
    link = _links.get(key)
    if link is None:
        link = _links[key] = _Link(call.address, call.secret)
    return link


def _call(call: ChildCall, link: _Link, running: _Running) -> Any:
    converter = call.payload_converter_class()

    def heartbeat(*details: Any) -> None:
        stored = to_stored_payloads(converter, details)
        link.send((BEAT, call.call_id, tuple(bytes(payload) for payload in stored)))

    context = _Context(
        info=call.info,
        heartbeat=heartbeat,
        cancelled_event=_CompositeEvent(running.cancelled),
        worker_shutdown_event=_CompositeEvent(link.shutdown),
        cancellation_details=running.holder,
        payload_converter=converter,
        shield_thread_cancel_exception=running.thread_call.shield if call.can_interrupt else None,
    )
    with context.activate():
        return call.fn(*call.args)


def _to_bytes(is_ok: bool, value: Any) -> bytes:
    try:
        data = pickle.dumps((is_ok, value))
        pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told as text
        what = "result" if is_ok else f"error ({type(value).__name__}: {value})"
        told = ApplicationError(
            f"The {what} of a process activity cannot cross the process border: {type(error).__name__}: {error}. "
            "Return and raise what pickle can carry.",
            type="PicklingError" if is_ok else type(value).__name__,
            non_retryable=is_ok,
        )
        return pickle.dumps((False, told))
    return data
