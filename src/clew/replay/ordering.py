"""Makes the parts of asyncio that go by memory addresses go by creation, inside workflows only.

Owns: the few functions of asyncio that are stood in for, and their behaviour inside a workflow.
Never: changes anything for code that runs on another loop.

How it works: `asyncio.wait`, `as_completed` and `TaskGroup` keep tasks in sets, whose order is that of addresses and
thus differs from one process to the next. The stand-ins look at the running loop: on a `WorkflowLoop` they go by the
number that the loop gives each task, elsewhere they call the original. `asyncio.timeout` is told that a cancelled
activity is a cancellation, whatever else the exception is.
"""

from __future__ import annotations

import asyncio
import asyncio.taskgroups
import asyncio.tasks
import asyncio.timeouts
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableSet
from types import TracebackType
from typing import AbstractSet, Any, Final, final  # noqa: UP035 (set algebra needs the abstract one)

from clew.replay.loop import ORDER_ATTRIBUTE, WorkflowLoop

_LAST: Final = 1 << 62
"""Plain futures have no number; they follow the tasks, in the order given."""


@final
class OrderedTasks(MutableSet[Any]):
    """A set of tasks that is gone through in a fixed order."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Any) -> None:
        """Put one in, at the end."""
        self._items[value] = None

    def discard(self, value: Any) -> None:
        """Take one out, if it is in."""
        self._items.pop(value, None)

    def copy(self) -> OrderedTasks:
        """Give another set with the same members."""
        return OrderedTasks(self)

    def update(self, *others: Iterable[Any]) -> None:
        """Put several in."""
        for other in others:
            self._items.update(dict.fromkeys(other))

    def union(self, *others: Iterable[Any]) -> OrderedTasks:
        """Give the members of this and the others."""
        joined = self.copy()
        joined.update(*others)
        return joined

    def difference(self, *others: Iterable[Any]) -> OrderedTasks:
        """Give the members of this that are in none of the others."""
        left = self.copy()
        for other in others:
            for item in other:
                left.discard(item)
        return left

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}"


def by_creation(items: Iterable[Any]) -> list[Any]:
    """Give tasks in the order in which the run created them."""
    return sorted(items, key=lambda item: getattr(item, ORDER_ATTRIBUTE, _LAST))


def _is_unordered(fs: object) -> bool:
    return isinstance(fs, AbstractSet) and not isinstance(fs, OrderedTasks)


def _ordered(fs: Iterable[Any]) -> list[Any]:
    """Give what was passed to `wait` in an order that replay repeats."""
    items = list(dict.fromkeys(fs))
    if _is_unordered(fs):
        if sum(1 for item in items if not hasattr(item, ORDER_ATTRIBUTE)) > 1:
            raise TypeError(
                "A set of futures or coroutines has no order that a replay could repeat. Pass a list, or tasks made by "
                "asyncio.create_task."
            )
        return by_creation(items)
    return items


_original_wait = asyncio.tasks.wait
_original_bare_wait: Callable[..., Coroutine[Any, Any, Any]] = asyncio.tasks._wait  # type: ignore[attr-defined]
_original_as_completed: Callable[..., Any] = asyncio.tasks.as_completed
_original_abort: Callable[..., None] = asyncio.taskgroups.TaskGroup._abort  # type: ignore[attr-defined]
_original_timeout_exit: Callable[..., Coroutine[Any, Any, bool | None]] = asyncio.timeouts.Timeout.__aexit__


def _in_workflow() -> bool:
    return type(asyncio._get_running_loop()) is WorkflowLoop


async def _wait(fs: Any, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED) -> Any:
    if not _in_workflow():
        return await _original_wait(fs, timeout=timeout, return_when=return_when)
    if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        raise TypeError(f"wait() takes several tasks, not one: {fs!r}")
    items = _ordered(fs)
    if not items:
        raise ValueError("wait() was given no tasks.")
    if any(asyncio.iscoroutine(item) for item in items):
        raise TypeError("wait() takes tasks, not coroutines; make tasks by asyncio.create_task.")
    if return_when not in (asyncio.ALL_COMPLETED, asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION):
        raise ValueError(f"Invalid return_when value: {return_when}")
    await _original_bare_wait(items, timeout, return_when, asyncio.get_running_loop())
    return OrderedTasks(f for f in items if f.done()), OrderedTasks(f for f in items if not f.done())


async def _bare_wait(fs: Any, timeout: float | None, return_when: str, loop: Any) -> Any:
    """Stands where a `wait` that was imported by name before ends up."""
    done, pending = await _original_bare_wait(fs, timeout, return_when, loop)
    if type(loop) is WorkflowLoop and isinstance(fs, AbstractSet):
        return OrderedTasks(by_creation(done)), OrderedTasks(by_creation(pending))
    return done, pending


def _as_completed(fs: Any, *, timeout: float | None = None) -> Any:
    if not _in_workflow():
        return _original_as_completed(fs, timeout=timeout)
    if asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        raise TypeError(f"as_completed() takes several awaitables, not one: {fs!r}")
    tasks = [asyncio.ensure_future(item) for item in _ordered(fs)]
    return _Completions(tasks, timeout)


@final
class _Completions:
    """What `as_completed` gives: both an iterator of awaitables and an asynchronous one."""

    def __init__(self, tasks: list[asyncio.Future[Any]], timeout: float | None) -> None:
        self._left = len(tasks)
        self._done: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue()
        self._tasks = tasks
        for task in tasks:
            task.add_done_callback(self._done.put_nowait)
        self._timer: Any = None
        if timeout is not None and tasks:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._on_timeout)

    def _on_timeout(self) -> None:
        for task in self._tasks:
            task.remove_done_callback(self._done.put_nowait)
        for _ in range(self._left):
            self._done.put_nowait(None)

    async def _next_task(self) -> asyncio.Future[Any]:
        task = await self._done.get()
        if task is None:
            raise TimeoutError
        if self._timer is not None and not any(not t.done() for t in self._tasks):
            self._timer.cancel()
        return task

    async def _next_result(self) -> Any:
        return (await self._next_task()).result()

    def __iter__(self) -> Iterator[Awaitable[Any]]:
        return self

    def __next__(self) -> Awaitable[Any]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._next_result()

    def __aiter__(self) -> _Completions:
        return self

    async def __anext__(self) -> asyncio.Future[Any]:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return await self._next_task()


def _abort(self: Any) -> None:
    if not _in_workflow():
        _original_abort(self)
        return
    self._aborting = True
    for task in by_creation(self._tasks):
        if not task.done():
            task.cancel()


async def _timeout_exit(
    self: Any, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
) -> bool | None:
    if exc_type is not None and exc_type is not asyncio.CancelledError and issubclass(exc_type, asyncio.CancelledError):
        exc_type = asyncio.CancelledError
    return await _original_timeout_exit(self, exc_type, exc, traceback)


def install() -> None:
    """Put the stand-ins into asyncio. Does nothing the second time."""
    if asyncio.wait is _wait:
        return
    tasks: Any = asyncio.tasks
    module: Any = asyncio
    tasks.wait = module.wait = _wait
    tasks._wait = _bare_wait
    tasks.as_completed = module.as_completed = _as_completed
    group: Any = asyncio.taskgroups.TaskGroup
    group._abort = _abort
    timeout: Any = asyncio.timeouts.Timeout
    timeout.__aexit__ = _timeout_exit
