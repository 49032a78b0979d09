"""Time, chance and waiting, as workflow code sees them: all of it repeats on replay.

Owns: `now`, `time`, `random`, `uuid4`, `sleep`, `wait_condition`, `wait`, `as_completed` and their like.
Never: the clock (time is that of the workflow task at hand).

How it works: `asyncio.sleep`, `asyncio.timeout` and `wait_for` are durable in workflow code as well; the functions
here add a summary, or an order. One rule for durations (`sleep`, timeouts): zero or less is a mere turn of the loop
and leaves no event; anything more starts a timer, of at least 1 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar, overload
from uuid import UUID

from clew.workflow._runtime import current

T = TypeVar("T")
FutureT = TypeVar("FutureT", bound="asyncio.Future[Any]")


def now() -> datetime:
    """Give the time of the workflow task at hand, aware and in UTC. It stands still between awaits."""
    return current().now()


def time() -> float:
    """Give the time of the workflow task at hand in seconds since the epoch; see `now`."""
    return current().time_ns() / 1e9


def time_ns() -> int:
    """Give the time of the workflow task at hand in nanoseconds since the epoch; see `now`."""
    return current().time_ns()


def random() -> Random:
    """Give the random generator of this run. Do not keep it in module state; draw from it only in workflow code."""
    return current().random()


def new_random(name: str) -> Random:
    """Give a random generator of its own, seeded by the run and `name`; draws from others do not shift it.

    Args:
        name: Tells generators of one run apart.
    """
    return current().new_random(name)


def random_seed() -> int:
    """Give the seed of this run. It changes when the run is reset."""
    return current().random_seed()


def register_random_seed_callback(callback: Callable[[int], None]) -> None:
    """Be told the new seed when a reset changes it."""
    current().register_random_seed_callback(callback)


def uuid4() -> UUID:
    """Give a random UUID that replay repeats."""
    return current().uuid4()


def uuid7() -> UUID:
    """Give a UUID that begins with the time of the workflow task; replay repeats it."""
    return current().uuid7()


async def sleep(duration: float | timedelta, *, summary: str | None = None) -> None:
    """Wait durably: for milliseconds or months, through restarts.

    Args:
        duration: Seconds, or a timedelta. Zero or less only lets other tasks run.
        summary: For people; shown with the timer.

    Raises:
        ValueError: The duration is over 100 years.
    """
    await current().sleep(seconds_of(duration), summary)


async def wait_condition(
    fn: Callable[[], bool], *, timeout: timedelta | float | None = None, timeout_summary: str | None = None
) -> None:
    """Wait until a condition holds.

    Args:
        fn: Says whether it holds; asked after every event. It must not change anything.
        timeout: Longest wait, in seconds or as timedelta; None means any time. If the condition holds at once, no timer
            is started.
        timeout_summary: For people; shown with the timer.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    await current().wait_condition(fn, None if timeout is None else seconds_of(timeout), timeout_summary)


@overload
async def wait(
    fs: Iterable[FutureT], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[list[FutureT], list[FutureT]]: ...
@overload
async def wait(
    fs: Iterable[asyncio.Task[T]], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[list[asyncio.Task[T]], list[asyncio.Task[T]]]: ...
async def wait(
    fs: Iterable[Any], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
) -> tuple[list[Any], list[Any]]:
    """Wait like `asyncio.wait`, but give lists in the order of `fs`.

    Args:
        fs: Tasks or futures.
        timeout: Longest wait in seconds.
        return_when: ``ALL_COMPLETED``, ``FIRST_COMPLETED`` or ``FIRST_EXCEPTION`` of asyncio.

    Returns:
        What is done, and what is still pending.
    """
    current()
    ordered = list(dict.fromkeys(fs))
    done, _ = await asyncio.wait(ordered, timeout=timeout, return_when=return_when)
    return [f for f in ordered if f in done], [f for f in ordered if f not in done]


def as_completed(fs: Iterable[Awaitable[T]], *, timeout: float | None = None) -> Iterator[Awaitable[T]]:
    """Give awaitables in the order of completion, like `asyncio.as_completed`, the same on every replay.

    Args:
        fs: Tasks, futures or coroutines.
        timeout: Longest wait in seconds.
    """
    current()
    return iter(asyncio.as_completed(fs, timeout=timeout))


def seconds_of(duration: float | timedelta) -> float:
    """Give a duration in seconds, whichever way it came."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
