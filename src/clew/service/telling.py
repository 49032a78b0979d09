"""Hearing of the answers that go through a wrapper of the service.

Owns: `telling`. Never: changes an answer, holds it up, or keeps it from being abandoned.

How it works: a call answers with a `Reply`, a future or a coroutine. Each keeps its kind, and a reply stays the object
that it is, so that whoever asked waits for it as without the wrapper, and a busy node pays for no task a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, final

from clew.service.reply import Reply, Teller

T = TypeVar("T")


def telling(answer: Awaitable[T], tell: Callable[[BaseException | None], None]) -> Awaitable[T]:
    """The same answer; `tell` hears the error, or None, when it comes.

    Args:
        answer: Of a call; nobody listens to it yet.
        tell: Told once, before whoever asked; of a wait that was cancelled it hears `asyncio.CancelledError`.
    """
    if isinstance(answer, Reply):
        cast("Reply[T]", answer).listen(_Telling(tell))
        return answer
    if isinstance(answer, asyncio.Future):
        return _telling_future(cast("asyncio.Future[T]", answer), tell)
    return _telling_coroutine(answer, tell)


@final
class _Telling(Teller):
    __slots__ = ("_whom",)

    def __init__(self, whom: Callable[[BaseException | None], None]) -> None:
        super().__init__()
        self._whom = whom

    def tell(self, error: BaseException | None) -> None:
        self._whom(error)


def _telling_future(answer: asyncio.Future[T], tell: Callable[[BaseException | None], None]) -> asyncio.Future[T]:
    def listen(done: asyncio.Future[T]) -> None:
        tell(asyncio.CancelledError() if done.cancelled() else done.exception())

    # Callbacks run in order: this one before that of whoever is going to wait.
    if answer.done():
        listen(answer)
    else:
        answer.add_done_callback(listen)
    return answer


async def _telling_coroutine(answer: Awaitable[T], tell: Callable[[BaseException | None], None]) -> T:
    try:
        result = await answer
    except BaseException as error:
        tell(error)
        raise
    tell(None)
    return result
