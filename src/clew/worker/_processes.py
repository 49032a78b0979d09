"""Process activities: calls in a process pool that can be cancelled, heartbeat, and survive the death of a child.

Owns: `ProcessCalls`, the pool in use and its successor. Never: what an outcome means for the attempt.

How it works: calls go through the executor that the user gave; beside it children keep one local connection each to the
worker (`_process_child`). When a child dies the executor is broken for good and gives up all its calls, so it is
replaced by one of the same make. A call that no child had begun is simply submitted again; one that had fails as
``ProcessDied``, and the retry policy decides.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final, final

import msgspec

from clew.activity._context import ActivityCancellationDetails, Info
from clew.adapters import SystemEntropy
from clew.converter import PayloadConverter
from clew.exceptions import ApplicationError
from clew.model.payload import Payloads
from clew.worker._attempt import Attempt
from clew.worker._process_child import BEAT, BEGIN, CANCEL, END, SHUTDOWN, ChildCall, run_in_child

DEATH_SECONDS_MAX: Final = 2.0
"""How long to wait for the last words of dead children, before it is decided which calls had begun."""

CONNECTIONS_WAITING_MAX: Final = 64
"""Children of a new pool come all at once."""

FUTILE_POOLS_MAX: Final = 3
"""Pools in a row whose children die before they begin a call: then it is not a call that kills them."""

_SECRET_BYTES: Final = 32
_POOL_IS_FUTILE: Final = (
    "The children of the process pool die before they begin any call. Look at their standard error: often a module "
    "cannot be imported there, or the main module lacks `if __name__ == '__main__':`."
)
_log: Final = logging.getLogger("clew.worker.activity")


@final
class _Call:
    """One call, until its future has its result."""

    __slots__ = ("attempt", "beat", "child", "done", "message", "pid")

    def __init__(
        self, attempt: Attempt, message: ChildCall, beat: Callable[[Payloads], None], done: Future[Any]
    ) -> None:
        self.attempt = attempt
        self.message = message
        self.beat = beat
        self.done = done
        self.child: _Child | None = None
        self.pid: int | None = None


@final
class _Child:
    """The worker's end of one child's connection."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self.is_closed = threading.Event()
        self._lock = threading.Lock()

    def send(self, message: tuple[str, int, Any]) -> None:
        # A child that is gone is noticed by its reader and by the pool.
        with self._lock, contextlib.suppress(OSError):
            self.connection.send(message)


@final
class ProcessCalls:
    """Calls functions in the children of a process pool.

    Args:
        executor: The user's pool.
        payload_converter_class: Made anew in each child, for heartbeats.
        on_error: Told a bug; from any thread.
    """

    def __init__(
        self,
        executor: ProcessPoolExecutor,
        payload_converter_class: type[PayloadConverter],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._executor = executor
        self._is_own_executor = False
        self._converter_class = payload_converter_class
        self._on_error = on_error
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._broken: list[_Call] = []
        self._children: list[_Child] = []
        self._numbers = itertools.count(1)
        self._is_stopping = False
        self._futile_pools_count = 0
        self._secret = SystemEntropy().token(_SECRET_BYTES)
        self._listener = Listener(backlog=CONNECTIONS_WAITING_MAX, authkey=self._secret)
        threading.Thread(target=self._accept, name="clew-activity-processes", daemon=True).start()

    def call(self, attempt: Attempt, info: Info, args: Sequence[Any], beat: Callable[[Payloads], None]) -> Future[Any]:
        """Call the attempt's function in a child; gives its result.

        Args:
            attempt: Gets the way to cancel and to kill the call.
            info: For `activity.info` in the child.
            args: Must pickle, like the function.
            beat: Takes the details of a heartbeat; called on a thread.
        """
        message = ChildCall(
            address=self._listener.address,
            secret=self._secret,
            call_id=next(self._numbers),
            fn=attempt.definition.fn,
            args=args,
            info=info,
            payload_converter_class=self._converter_class,
            can_interrupt=not attempt.definition.no_thread_cancel_exception,
        )
        done: Future[Any] = Future()
        call = _Call(attempt, message, beat, done)
        with self._lock:
            self._calls[message.call_id] = call
        attempt.cancel_in_child = lambda details: self._cancel(call, details)
        attempt.kill_child = lambda: self._kill(call)
        self._submit(call)
        return done

    def begin_shutdown(self) -> None:
        """Let running functions see that the worker is about to stop."""
        for child in list(self._children):
            child.send((SHUTDOWN, 0, None))

    def close(self) -> None:
        """Let go of the children; a pool that the user gave stays theirs."""
        self._is_stopping = True
        # Closing alone would not wake the thread that waits for connections.
        with contextlib.suppress(OSError, EOFError):
            Client(self._listener.address, authkey=self._secret).close()
        self._listener.close()
        if self._is_own_executor:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- calls ----------------------------------------------------------------------------------------------

    def _submit(self, call: _Call) -> None:
        executor = self._executor
        try:
            inner = executor.submit(run_in_child, call.message)
        except BrokenExecutor:
            self._on_broken(call, executor)
            return
        except RuntimeError as error:
            # The user shut the pool down.
            self._resolve(call, None, error)
            return
        inner.add_done_callback(lambda future: self._on_done(call, future, executor))

    def _on_done(self, call: _Call, inner: Future[bytes], executor: ProcessPoolExecutor) -> None:
        if inner.cancelled():
            self._resolve(call, None, concurrent.futures.CancelledError())
            return
        error = inner.exception()
        if isinstance(error, BrokenExecutor):
            self._on_broken(call, executor)
            return
        if error is not None:
            self._resolve(call, None, error)
            return
        is_ok, value = pickle.loads(inner.result())
        self._resolve(call, value if is_ok else None, None if is_ok else value)

    def _resolve(self, call: _Call, result: Any, error: BaseException | None) -> None:
        with self._lock:
            self._calls.pop(call.message.call_id, None)
        if call.done.cancelled():
            return
        if error is not None:
            call.done.set_exception(error)
        else:
            call.done.set_result(result)

    # --- cancellation ---------------------------------------------------------------------------------------

    def _cancel(self, call: _Call, details: ActivityCancellationDetails) -> None:
        if call.child is not None:
            call.child.send((CANCEL, call.message.call_id, details))

    def _kill(self, call: _Call) -> None:
        if call.pid is not None and not call.done.done():
            _log.warning("activity.process_killed pid=%d %s", call.pid, call.attempt)
            with contextlib.suppress(ProcessLookupError):
                os.kill(call.pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    # --- a dead child ---------------------------------------------------------------------------------------

    def _on_broken(self, call: _Call, executor: ProcessPoolExecutor) -> None:
        with self._lock:
            self._broken.append(call)
            is_first = len(self._broken) == 1
        if is_first:
            # Not here: this may be the thread that is about to end the other children.
            threading.Thread(target=self._recover, args=(executor,), name="clew-activity-recovery", daemon=True).start()

    def _recover(self, broken: ProcessPoolExecutor) -> None:
        try:
            if broken is self._executor:
                self._replace_pool(broken)
            self._settle_broken()
        except Exception as error:  # noqa: BLE001 - calls would wait for ever
            self._on_error(error)

    def _replace_pool(self, old: ProcessPoolExecutor) -> None:
        for child in list(self._children):
            child.is_closed.wait(DEATH_SECONDS_MAX)
        old.shutdown(wait=True)
        if not self._is_stopping:
            _log.error("activity.process_pool_replaced: a child of the process pool died; the pool is made anew")
            self._executor = _same_make(old)
            self._is_own_executor = True
            self._futile_pools_count += 1
            if self._futile_pools_count > FUTILE_POOLS_MAX:
                self._on_error(RuntimeError(_POOL_IS_FUTILE))

    def _settle_broken(self) -> None:
        with self._lock:
            broken, self._broken = self._broken, []
        for call in broken:
            if call.pid is None and not self._is_stopping and self._futile_pools_count <= FUTILE_POOLS_MAX:
                self._submit(call)
            else:
                self._resolve(call, None, _process_died(call))

    # --- connections ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                connection = self._listener.accept()
            except OSError:
                # The listener was closed, or whoever came is gone already.
                continue
            except Exception as error:  # noqa: BLE001 - a stranger at the door, without the secret
                _log.warning("activity.process_link_refused: %s", error)
                continue
            child = _Child(connection)
            self._children.append(child)
            threading.Thread(target=self._read, args=(child,), name="clew-activity-link", daemon=True).start()

    def _read(self, child: _Child) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    kind, call_id, content = child.connection.recv()
                    self._take(child, kind, call_id, content)
        except Exception as error:  # noqa: BLE001 - a reader that dies must not do so unseen
            self._on_error(error)
        finally:
            self._children.remove(child)
            child.is_closed.set()
            child.connection.close()

    def _take(self, child: _Child, kind: str, call_id: int, content: Any) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        if kind == BEGIN:
            call.child, call.pid = child, content
            self._futile_pools_count = 0
            if call.attempt.is_cancel_wanted:
                self._cancel(call, call.attempt.cancellation)
        elif kind == BEAT:
            call.beat(tuple(msgspec.Raw(data) for data in content))
        else:
            assert kind == END, "a child says only what is in the protocol"


def _same_make(executor: ProcessPoolExecutor) -> ProcessPoolExecutor:
    """A new pool like `executor`, whose own settings have no public name."""
    options: dict[str, Any] = {
        "max_workers": getattr(executor, "_max_workers", None),
        "mp_context": getattr(executor, "_mp_context", None),
        "initializer": getattr(executor, "_initializer", None),
        "initargs": getattr(executor, "_initargs", ()),
        "max_tasks_per_child": getattr(executor, "_max_tasks_per_child", None),
    }
    return ProcessPoolExecutor(**options)


def _process_died(call: _Call) -> ApplicationError:
    return ApplicationError(
        f"The process that ran {call.attempt} died before it gave a result (it was killed, ran out of memory, or "
        "ended itself, or a neighbour in its pool did).",
        type="ProcessDied",
    )
