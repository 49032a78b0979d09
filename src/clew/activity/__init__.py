"""What authors of activities import: ``from clew import activity``.

Owns: the functions below, which speak to the running attempt's context. Never: knows how the attempt is run.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NoReturn

from clew.activity._context import ActivityCancellationDetails, Info, _Context, in_activity
from clew.activity._context import _CancellationDetailsHolder as _CancellationDetailsHolder
from clew.activity._context import _CompositeEvent as _CompositeEvent
from clew.activity._definition import _Definition as _Definition
from clew.activity._definition import defn
from clew.activity._log import LoggerAdapter, logger
from clew.common import MetricMeter
from clew.converter import PayloadConverter

__all__ = [
    "ActivityCancellationDetails",
    "Info",
    "LoggerAdapter",
    "cancellation_details",
    "client",
    "defn",
    "heartbeat",
    "in_activity",
    "info",
    "is_cancelled",
    "is_worker_shutdown",
    "logger",
    "metric_meter",
    "payload_converter",
    "raise_complete_async",
    "shield_thread_cancel_exception",
    "wait_for_cancelled",
    "wait_for_cancelled_sync",
    "wait_for_worker_shutdown",
    "wait_for_worker_shutdown_sync",
]


class _CompleteAsyncError(BaseException):
    """The activity will be completed from elsewhere. Not an `Exception`, as published, so that no handler eats it."""


def info() -> Info:
    """Give what is known of the running attempt, with its idempotency key.

    Raises:
        RuntimeError: No activity is running here; so for every function below.
    """
    return _Context.current().get_info()


def heartbeat(*details: Any) -> None:
    """Say that the attempt is alive, and how far it is.

    Cheap enough to call often: the worker sends only as many as the heartbeat timeout needs. A later attempt finds the
    last details in `Info.heartbeat_details`. Cancellation reaches the activity even between heartbeats.

    Args:
        *details: Any convertible values.
    """
    _Context.current().heartbeat(*details)


def is_cancelled() -> bool:
    """Say whether the attempt was told to stop."""
    return _Context.current().cancelled_event.is_set()


async def wait_for_cancelled() -> None:
    """Wait, in an async activity, until the attempt is told to stop."""
    await _Context.current().cancelled_event.wait()


def wait_for_cancelled_sync(timeout: timedelta | float | None = None) -> None:
    """Wait, in a thread or process, until the attempt is told to stop.

    Args:
        timeout: Longest wait, as a duration or in seconds; None means no limit. Ask `is_cancelled` afterwards.
    """
    _Context.current().cancelled_event.wait_sync(_seconds(timeout))


def cancellation_details() -> ActivityCancellationDetails | None:
    """Say why the attempt was told to stop; None if it was not."""
    return _Context.current().cancellation_details.details


def is_worker_shutdown() -> bool:
    """Say whether the worker has begun to stop."""
    return _Context.current().worker_shutdown_event.is_set()


async def wait_for_worker_shutdown() -> None:
    """Wait, in an async activity, until the worker begins to stop."""
    await _Context.current().worker_shutdown_event.wait()


def wait_for_worker_shutdown_sync(timeout: timedelta | float | None = None) -> None:
    """Wait, in a thread or process, until the worker begins to stop.

    Args:
        timeout: Longest wait, as a duration or in seconds; None means no limit.
    """
    _Context.current().worker_shutdown_event.wait_sync(_seconds(timeout))


def shield_thread_cancel_exception() -> AbstractContextManager[None]:
    """Hold back, in a thread, the exception of a cancellation until the block ends. Elsewhere it does nothing."""
    shield = _Context.current().shield_thread_cancel_exception
    return contextlib.nullcontext() if shield is None else shield()


def raise_complete_async() -> NoReturn:
    """End the function without an outcome: it comes later, through `Client.get_async_activity_handle`."""
    _Context.current()
    raise _CompleteAsyncError


def client() -> Any:
    """Give the worker's client, in an async activity.

    Raises:
        RuntimeError: The activity runs in a thread or process, where the client cannot be used.
    """
    found = _Context.current().client
    if found is None:
        raise RuntimeError("The worker's client belongs to its event loop; use it from an async activity.")
    return found


def payload_converter() -> PayloadConverter:
    """Give the payload converter of the worker."""
    return _Context.current().payload_converter


def metric_meter() -> MetricMeter:
    """Give the meter with the attributes of the running attempt."""
    return _Context.current().metric_meter


def _seconds(timeout: timedelta | float | None) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
