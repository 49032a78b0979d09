"""Hearing of the answers that go through a wrapper of the service.

Owns: `telling`. Never: changes an answer, holds it up, or keeps it from being abandoned.

How it works: a call answers with a `Reply`, a future or a coroutine. Each keeps its kind, so that whoever asked waits
for it as without the wrapper, and a busy node pays for no task or closure a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from clew.service.reply import Reply

T = TypeVar("T")


def telling(answer: Awaitable[T], tell: Callable[[BaseException | None], None]) -> Awaitable[T]:
    """The same answer; `tell` hears the error, or None, when it comes.

    Args:
        answer: Of a call; nobody listens to it yet.
        tell: Told once, before whoever asked; of a wait that was cancelled it hears `asyncio.CancelledError`.
    """
    if isinstance(answer, Reply):
        reply = cast("Reply[T]", answer)
        told = _ToldReply(reply, tell)
        reply.listen(told.forward)
        return told
    if isinstance(answer, asyncio.Future):
        return _telling_future(cast("asyncio.Future[T]", answer), tell)
    return _telling_coroutine(answer, tell)


class _ToldReply(Reply[T], eq=False):
    """An answer of which somebody else hears first."""

    inner: Reply[T]
    tell: Callable[[BaseException | None], None]

    def forward(self, reply: Reply[T]) -> None:
        """It has come."""
        error = reply.exception()
        self.tell(error)
        if error is None:
            self.set_result(reply.result())
        else:
            self.set_exception(error)

    def abandon(self) -> None:
        """Whoever asked has gone."""
        self.inner.abandon()


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
