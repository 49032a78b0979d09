"""How code without an event loop waits for an async client: a loop of its own in a thread.

Owns: that thread, what happens to it at a fork, and the iterators over what is fetched. Never: what a call means.

How it works: the client lives on the loop of a background thread; a caller hands a coroutine over and waits for its
future. Callers' context variables go along. A forked child has the thread's memory but not the thread: it forgets
both and connects anew at its first call, with what the first connection was made with. What belonged to the parent is
neither closed nor freed there, since both processes share its descriptors.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, final

from clew.client._client import Client
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STOP_SECONDS_MAX: Final = 5.0


class Pages(Protocol[T_co]):
    """An async iterator that tells how much of it is there already."""

    @property
    def current_page(self) -> Sequence[T_co] | None: ...
    @property
    def current_page_index(self) -> int: ...
    def __aiter__(self) -> AsyncIterator[T_co]: ...


@final
class _LoopThread:
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="clew-blocking-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._give_up())
            self._loop.close()

    async def _give_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def wait(self, work: Coroutine[Any, Any, T], timeout: timedelta | None) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise _closed() from error
        try:
            return future.result(None if timeout is None else timeout.total_seconds())
        except concurrent.futures.CancelledError as error:
            raise _closed() from error
        except BaseException:
            # Interrupted, or out of time: nobody waits any more. Without effect where the call itself raised.
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS_MAX)


@final
class BlockingCalls:
    """A client on a loop in a thread, and how to wait for it; safe to use from any number of threads.

    Args:
        connect: Makes the client; called on the loop, at the first call and once more in each forked child.
    """

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._client: Client | None = None
        self._is_closed = False
        self._forked_from: int | None = None
        self._process_id = os.getpid()
        self._left_behind: list[Any] = []
        _all.add(self)

    def client(self) -> Client:
        """Give the client, connected in this process.

        Raises:
            RPCError: It cannot be connected, or is closed.
            RuntimeError: An event loop runs in this thread, which a blocking call would stop.
        """
        return self._ready()[1]

    def call(self, use: Callable[[Client], Coroutine[Any, Any, T]], timeout: timedelta | None = None) -> T:
        """Await what `use` does with the client.

        Raises:
            TimeoutError: The time is over.
            RPCError: The client is closed, or was closed meanwhile.
            RuntimeError: An event loop runs in this thread, which a blocking call would stop.
        """
        thread, client = self._ready()
        return thread.wait(use(client), timeout)

    def iterate(self, pages: Callable[[Client], Pages[T]]) -> Iterator[T]:
        """Give one after the other what an async iterator of the client gives."""
        found = pages(self.client())
        iterator = aiter(found)

        async def take(_: Client) -> list[T]:
            """The next entry, and with it those that are there already: one hop to the loop for a page."""
            taken: list[T] = []
            async for entry in iterator:
                taken.append(entry)
                if found.current_page is None or found.current_page_index >= len(found.current_page):
                    break
            return taken

        while taken := self.call(take):
            yield from taken

    def close(self) -> None:
        """Close the client and end the thread; calls under way are given up."""
        with self._lock:
            self._is_closed = True
            thread, client = self._thread, self._client
            self._thread = self._client = None
        if thread is not None:
            try:
                if client is not None:
                    thread.wait(client.close(), None)
            finally:
                thread.stop()

    def _ready(self) -> tuple[_LoopThread, Client]:
        _check_no_loop()
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._thread is None:
                self._thread = _LoopThread()
            if self._client is None:
                self._client = self._connected(self._thread)
            return self._thread, self._client

    def _connected(self, thread: _LoopThread) -> Client:
        async def connect() -> Client:
            return await self._connect()

        try:
            return thread.wait(connect(), None)
        except RPCError as error:
            if self._forked_from is not None:
                error.add_note(
                    f"This process was forked from process {self._forked_from}, which was connected, and tried to "
                    "connect for itself. A SQLite file has one process that runs it: connect after the fork, in one "
                    "process, or close the client before it. Of a server, every process may have its own connection."
                )
            raise

    def _forget_after_fork(self) -> None:
        self._lock = threading.Lock()
        self._left_behind.append((self._thread, self._client))
        if self._client is not None:
            self._forked_from = self._process_id
        self._thread = self._client = None
        self._process_id = os.getpid()


_all: Final[weakref.WeakSet[BlockingCalls]] = weakref.WeakSet()


def _forget_all_after_fork() -> None:
    for calls in list(_all):
        calls._forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_after_fork)


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "A BlockingClient was called in a thread that runs an event loop, which the call would bring to a standstill. "
        "In async code use clew.client.Client and await its methods, or go through asyncio.to_thread."
    )


def _closed() -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.UNAVAILABLE,
            message="This BlockingClient is closed. Make a new one with BlockingClient.connect.",
        )
    )
