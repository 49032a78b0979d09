"""An answer of the service that can be listened to without a turn of the loop.

Owns: `Reply`, and `Teller`, who hears of one first. Never: threads; a reply belongs to the service loop, like every
call of the contract.

How it works: an asyncio future tells its callbacks one turn of the loop later, through a handle and a context each.
That costs more than most answers, of which a busy worker takes ten thousand a second. A reply tells its one listener at
once; awaited, it is an ordinary future. (A struct, because making one costs half of what a class with slots does.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

T = TypeVar("T")

_log: Final = logging.getLogger("clew.service")


class Reply(msgspec.Struct, Generic[T], eq=False, kw_only=True):
    """The answer to one call: nothing yet, a value, or an error. A call's own record may be a reply by inheritance."""

    _is_done: bool = False
    _value: T | None = None
    _error: BaseException | None = None
    _listener: Callable[[Reply[T]], None] | None = None

    def done(self) -> bool:
        """Whether there is an answer."""
        return self._is_done

    def cancelled(self) -> bool:
        """Never: whoever asked may stop listening, but the call goes on."""
        return False

    def exception(self) -> BaseException | None:
        """The error, if that is the answer."""
        return self._error

    def result(self) -> T:
        """The value; raises the error if that is the answer."""
        assert self._is_done, "a reply is read after it has come"
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def set_result(self, value: T) -> None:
        """Answer with a value."""
        assert not self._is_done, "a reply is given once"
        self._is_done = True
        if value is not None:
            self._value = value
        listener = self._listener
        if listener is not None:
            self._listener = None
            try:
                listener(self)
            except Exception:  # noqa: BLE001 - amid a commit's effects, a listener's fault must not cost others theirs
                _log.exception("service.listener_failed listener=%r", listener)

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error."""
        assert not self._is_done, "a reply is given once"
        self._is_done = True
        self._error = error
        if self._listener is not None:
            self._call()

    def listen(self, listener: Callable[[Reply[T]], None]) -> None:
        """Call back with this reply when it comes, at once if it is there; one listener only, behind all tellers."""
        if self._listener is not None:
            _last_teller(self._listener).next = listener
            return
        self._listener = listener
        if self._is_done:
            self._call()

    def abandon(self) -> None:
        """Whoever asked has gone, and what was asked changes nothing. By default it is answered all the same."""

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: Reply[T]) -> None:
                if not future.done():
                    future.set_result(None)

            self.listen(wake)
            yield from future.__await__()
        return self.result()

    def _call(self) -> None:
        listener, self._listener = self._listener, None
        assert listener is not None, "there is someone to tell"
        try:
            listener(self)
        except Exception:  # noqa: BLE001 - likewise
            _log.exception("service.listener_failed listener=%r", listener)


class Teller:
    """Hears of an answer before whoever asked does: a wrapper's own ear. Listens like others, and hands on.

    So an answer goes through any number of wrappers as the one object that it is.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next: Callable[[Reply[Any]], None] | None = None

    def tell(self, error: BaseException | None) -> None:
        """The answer has come, with this error or with none."""
        raise NotImplementedError

    def __call__(self, reply: Reply[Any]) -> None:
        try:
            self.tell(reply._error)
        finally:
            if self.next is not None:
                self.next(reply)


def _last_teller(listener: Callable[[Reply[Any]], None]) -> Teller:
    while True:
        assert isinstance(listener, Teller), "a reply has one listener"
        if listener.next is None:
            return listener
        listener = listener.next
