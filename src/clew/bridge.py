"""The bridge between callers' event loops and the service loop's thread.

Owns: the service loop's thread, and how calls and results hop between it and any number of other loops.
Never: knows what a service is made of (``embedded`` starts an engine in it), or interprets a request.

How it works: a call is put in the service thread's *inbox* and answered into the calling loop's *mailbox*. Each of
the two is a deque with a flag "a wake-up is under way", so that a burst of calls costs one wake-up, whatever its size,
and the same on the way back. The consumer lowers the flag before it empties the deque; so whoever finds the flag up
knows that his entry will be seen. While the service loop sleeps nobody is woken: the caller's thread runs what it has
put there itself, after all that its own loop has ready (`ServiceLoop.borrow`, docs/adr/0045).

A caller that stops waiting harms nobody: his result is dropped, and a call that only waits for news is taken back. A
loop that was closed with calls in flight is forgotten.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import signal
import sys
import threading
import weakref
from _thread import get_ident
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final, TypeVar, final

from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import GetHistoryRequest, PollUpdateRequest, QueryWorkflowRequest
from clew.service_loop import LoopMoved, ServiceLoop

T = TypeVar("T")

_log: Final = logging.getLogger("clew.service")

_ABANDONABLE: Final = frozenset((GetHistoryRequest, PollUpdateRequest, QueryWorkflowRequest))
"""Requests that change nothing: when their caller has gone, they are cancelled on the service loop too."""


_MAY_RUN_IN_A_TASK: Final = sys.version_info < (3, 14)
"""From then on a thread, not a loop, knows which task it is in, and a borrowed loop could enter none of its own."""

_getsignal: Final[Callable[[int], object]] = importlib.import_module("_signal").getsignal
"""`signal.getsignal` as it is in C: the one in Python writes down what it has found, to look it up in an enumeration,
which takes 70 µs for a handler of asyncio's."""

_CTRL_C: Final = int(signal.SIGINT)
_OTHER_SIGNALS: Final = tuple(
    int(number)
    for name in ("TERM", "HUP", "QUIT", "ALRM", "USR1", "USR2", "VTALRM", "PROF", "BREAK")
    if (number := getattr(signal, f"SIG{name}", None)) is not None
)
"""Those for which programs set handlers in Python."""

_HANDLERS_THAT_RAISE_NOTHING: Final = frozenset(
    {
        ("asyncio.unix_events", "_sighandler_noop"),
        ("asyncio.runners", "Runner._on_sigint"),  # raises at the second Ctrl-C
        ("uvloop.loop", "Loop.__sighandler"),
        ("uvicorn.server", "Server.handle_exit"),
        ("gunicorn.workers.base", "Worker.handle_usr1"),
        # Raises, once, when the test is lost anyway.
        ("pytest_timeout", "pytest_timeout_set_timer.<locals>.handler"),
    }
)
"""Modules and names of the handlers in Python of which that is known."""

_main_thread_id: int = threading.main_thread().ident or 0

_process: object = object()
"""Stands for this process: a forked child gets another (cheaper to compare than to ask for the process id)."""


_known_others: tuple[object, ...] = ()
"""The handlers of the other signals that were looked at last and raise nothing."""

_known_ctrl_c: Callable[[], object] = lambda: None  # noqa: E731 - a weak reference, later on
"""Likewise; it holds the program's main task, so it is not to be kept."""


def _may_be_interrupted() -> bool:
    """Whether a signal could raise an error in whatever this thread is at; asyncio's first Ctrl-C does not."""
    global _known_others, _known_ctrl_c
    if get_ident() != _main_thread_id:
        return False
    others = tuple(map(_getsignal, _OTHER_SIGNALS))
    if others != _known_others:
        if not all(map(_raises_nothing, others)):
            return True
        _known_others = others
    ctrl_c = _getsignal(_CTRL_C)
    if ctrl_c is not _known_ctrl_c():
        if not _raises_nothing(ctrl_c):
            return True
        if callable(ctrl_c):
            _known_ctrl_c = weakref.ref(ctrl_c)
    return False


def _raises_nothing(handler: object) -> bool:
    if handler is None or isinstance(handler, int):
        return True  # The system's own, or none.
    function = handler.func if isinstance(handler, functools.partial) else handler
    name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return name in _HANDLERS_THAT_RAISE_NOTHING


def _note_fork() -> None:
    global _process, _main_thread_id
    _process = object()
    _main_thread_id = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@final
class ServiceThread:
    """A thread with the event loop on which one service lives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads_count = 0
        self._ended = threading.Event()
        self.loop: ServiceLoop = ServiceLoop(self._start_thread)
        self._inbox: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._borrower: asyncio.AbstractEventLoop | None = None
        """The loop whose thread is about to do what was posted."""
        self._is_at_end = False
        """Whether a thread does, before it returns, what it posted last."""
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = weakref.WeakKeyDictionary()
        self._is_stopped = False
        self._process = _process
        self._pid = os.getpid()
        self._start_thread()

    @property
    def is_alive(self) -> bool:
        """Whether calls can still be served: not after `stop`, and not in a forked child."""
        return not self._is_stopped and self._process is _process

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the service loop soon, after what was posted before; from any thread."""
        self._inbox.append(callback)
        if not self._is_woken:
            if not self.is_alive:
                return
            if self.loop.is_asleep:
                loop = asyncio_events._get_running_loop()
                if loop is not None and (loop is self._borrower or self._may_borrow(loop)):
                    return
            self._wake()

    def post_last(self, callback: Callable[[], None]) -> None:
        """`post`, by one that does nothing else afterwards, such as a task at its end.

        What comes of it is done before this returns, if nobody else wants the calling thread: that spares its loop a
        round, which is a good part of what a lone step costs.
        """
        loop = asyncio_events._get_running_loop()
        if (
            type(loop) is not asyncio.SelectorEventLoop
            or loop._ready  # type: ignore[attr-defined]
            or self._is_woken
            or self._borrower is not None
            or self._is_at_end
            or not (_MAY_RUN_IN_A_TASK and self.is_alive and self.loop.is_asleep)
            or _may_be_interrupted()
        ):
            self.post(callback)
            return
        self._inbox.append(callback)
        # What comes of it may begin a task that is at its end at once: each in the one before, it would go ever deeper.
        self._is_at_end = True
        try:
            Context().run(self._borrow, loop, False)
        finally:
            self._is_at_end = False

    def _wake(self) -> None:
        self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop was closed between the check and here; otherwise this is a bug.
            if self.is_alive:
                raise

    def _may_borrow(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Let the calling thread do what was posted, after all that its loop has ready; gives whether it will."""
        kind = type(loop)
        if not (kind is asyncio.SelectorEventLoop or kind.__module__ == "uvloop") or _may_be_interrupted():
            return False
        self._promise_to_borrow(loop, False)
        return True

    def _promise_to_borrow(self, loop: asyncio.AbstractEventLoop, is_begun: bool) -> None:
        self._borrower = loop
        self.loop.promise(self._drain)
        # In a context of its own: what the caller has set is not meant for the service, nor for other runs.
        loop.call_soon(self._borrow, loop, is_begun, context=Context())

    def _borrow(self, loop: asyncio.AbstractEventLoop, is_begun: bool) -> None:
        self._borrower = None
        self.loop.end_promise()
        if not (self._inbox or is_begun) or not self.is_alive:
            return
        try:
            is_more = self.loop.borrow(loop, self._drain)
        except BaseException as error:
            self._break_off(error)
            raise
        if is_more or (is_more is False and self._inbox and not self._is_woken):
            # The rest after what the caller's loop has heard of meanwhile.
            self._promise_to_borrow(loop, True)
        elif is_more is None and self._inbox and not self._is_woken:
            self._wake()

    def _break_off(self, error: BaseException) -> None:
        """Something of the service was broken off in the middle: nothing that it has in memory can be trusted."""
        _log.error(
            "service.broken_off by=%s: the service of this process ends as if the process had; what was accepted is in "
            "the store. Connect again to go on.",
            type(error).__name__,
        )
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call `method` on the service loop; the future belongs to the running loop.

        Raises:
            RPCError: The thread was stopped, or this is a forked child, which has no service thread.
        """
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return asyncio.ensure_future(method(request))
        if not self.is_alive:
            raise RPCError(_gone(self._pid))
        future: asyncio.Future[T] = loop.create_future()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            mailbox = self._mailboxes[loop] = _Mailbox(self.loop)
        call = _Call(method, request, future, mailbox)
        if type(request) in _ABANDONABLE:
            future.add_done_callback(lambda done: self.post(call.abandon) if done.cancelled() else None)
        self.post(call)
        return future

    def stop(self) -> None:
        """End the loop once what was posted has been run; does not wait. Later calls are refused."""
        self.post(self._stop_loop)

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, at most `seconds`."""
        if self._process is not _process or self._thread is threading.current_thread():
            return
        # Not the thread's own end alone: the loop may be moving to another one at this moment.
        if self._ended.wait(seconds):
            self._thread.join(seconds)

    def _start_thread(self) -> None:
        """Let the loop run in a new thread: the first one, or one in place of that which user code blocks."""
        self._threads_count += 1
        name = self._name if self._threads_count == 1 else f"{self._name}-{self._threads_count}"
        # A daemon: a program that forgets to close its client must still be able to end (embedded drains at exit).
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _stop_loop(self) -> None:
        self._is_stopped = True
        self.loop.stop_lending()
        self.loop.call_soon(self.loop.stop)

    def _drain(self) -> None:
        self._is_woken = False
        inbox, has_borrowed_long = self._inbox, self.loop.has_borrowed_long
        # Only what is there now, so that a caller that never pauses cannot starve the loop's own timers.
        for _ in range(len(inbox)):
            entry = inbox.popleft()
            try:
                entry()
            except Exception:  # noqa: BLE001 - one entry must not cost the others their turn; it is logged
                _log.exception("service.posted_callback_failed callback=%r", entry)
            if has_borrowed_long():
                # The borrower comes back for the rest, unless somebody wakes the loop before.
                return
        if inbox and not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._drain)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except LoopMoved:
            pass
        finally:
            if self._thread is threading.current_thread():
                self._is_stopped = True
                try:
                    self._end()
                finally:
                    self._ended.set()

    def _end(self) -> None:
        self.loop.stop_lending()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        while self._inbox:
            entry = self._inbox.popleft()
            if isinstance(entry, _Call):
                entry.refuse(RPCError(_gone(self._pid)))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        # A transport that was closed lets go of its socket in a later turn.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@final
class _Call:
    """One call on its way: run on the service loop, answered into the caller's mailbox."""

    __slots__ = ("_future", "_inner", "_mailbox", "_method", "_request")

    def __init__(
        self, method: Callable[[Any], Awaitable[Any]], request: Any, future: asyncio.Future[Any], mailbox: _Mailbox
    ) -> None:
        self._method = method
        self._request = request
        self._future = future
        self._mailbox = mailbox
        self._inner: asyncio.Future[Any] | Reply[Any] | None = None

    def __call__(self) -> None:
        if self._future.cancelled():
            return
        try:
            answer = self._method(self._request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer
            self.refuse(error)
            return
        if isinstance(answer, Reply):
            self._inner = answer
            answer.listen(self._finish)
            return
        self._inner = asyncio.ensure_future(answer)
        if self._inner.done():
            self._finish(self._inner)
        else:
            self._inner.add_done_callback(self._finish)

    def abandon(self) -> None:
        """The caller has gone: stop waiting on the service loop."""
        inner = self._inner
        if inner is None or inner.done():
            return
        if isinstance(inner, Reply):
            inner.abandon()
        else:
            inner.cancel()

    def refuse(self, error: BaseException) -> None:
        """Answer with an error."""
        self._mailbox.deliver(self._future, None, _crossing(error, self._method))

    def _finish(self, inner: asyncio.Future[Any] | Reply[Any]) -> None:
        if inner.cancelled():
            self.refuse(RPCError(_cancelled(self._method)))
            return
        error = inner.exception()
        if error is not None:
            self.refuse(error)
        else:
            self._mailbox.deliver(self._future, inner.result(), None)


@final
class _Mailbox:
    """Answers on their way to one caller's loop."""

    __slots__ = ("_is_woken", "_letters", "_service_loop")

    def __init__(self, service_loop: ServiceLoop) -> None:
        self._service_loop = service_loop
        self._letters: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    def deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """Hand over one answer; called on the service loop."""
        loop = future.get_loop()
        self._letters.append((future, result, error))
        if self._is_woken and not loop.is_closed():
            return
        self._is_woken = True
        try:
            self._service_loop.wake_other(loop, self._drain)
        except RuntimeError:
            # The caller's loop is closed: nobody waits for these any more.
            self._letters.clear()

    def _drain(self) -> None:
        self._is_woken = False
        letters = self._letters
        for _ in range(len(letters)):
            future, result, error = letters.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if letters and not self._is_woken:
            self._is_woken = True
            letters[0][0].get_loop().call_soon(self._drain)


def _crossing(error: BaseException, method: Callable[..., Any]) -> BaseException:
    """The error as the caller meets it: an expected no unchanged, anything else named as our bug."""
    if isinstance(error, RPCError):
        return error
    name = getattr(method, "__name__", repr(method))
    _log.error("service.call_failed method=%s", name, exc_info=error)
    wrapped = RPCError(
        Rejection(
            code=RejectionCode.INTERNAL,
            message=(
                f"The engine failed inside {name}: {type(error).__name__}: {error}. This is a bug in Clew, not in "
                "your call; whether the call took effect is not known. Please report it with the log of logger "
                "'clew.service'."
            ),
        )
    )
    wrapped.__cause__ = error
    return wrapped


def _cancelled(method: Callable[..., Any]) -> Rejection:
    name = getattr(method, "__name__", repr(method))
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message=f"The engine was stopped while {name} was under way. Connect again and repeat the call.",
    )


def _gone(pid: int) -> Rejection:
    if pid != os.getpid():
        return Rejection(
            code=RejectionCode.UNAVAILABLE,
            message=(
                f"This client belongs to the parent process {pid}; a forked child has no engine. Connect in the "
                "process that uses the client, or start children with the 'spawn' method."
            ),
        )
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message="This client's connection is closed. Call Client.connect again.",
    )
