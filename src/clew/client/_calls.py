"""How a client's calls reach the engine: deadline, retries, patience.

Owns: what is tried again, and for how long. Never: what a call means (``_outbound`` does).

How it works: a refusal that the table of codes calls retryable is met by the very same request again, with growing
waits, for `RETRY_SECONDS_MAX`. The request carries its request id, so a repeat of something that did take effect is
recognised. Long polls have no such bound: whoever waits for a result goes on waiting while the engine is away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from clew.client._request_check import checked
from clew.exceptions import RestrictedWorkflowAccessError
from clew.model.option_types import check_durations
from clew.model.rejection import Rejection, RejectionCode
from clew.service.connection import Connection
from clew.service.errors import RPCError
from clew.workflow import in_workflow

T = TypeVar("T")

RETRY_SECONDS_MAX: Final = 10.0
"""As long as the published SDKs insist on a call before they give its error to the caller."""

_FIRST_WAIT_SECONDS: Final = 0.05
_WAIT_FACTOR: Final = 1.7
_LONGEST_WAIT_SECONDS: Final = 2.0


async def call_service(
    connection: Connection,
    method: Callable[[Any], Awaitable[T]],
    request: Any,
    *,
    timeout: timedelta | None = None,
    is_long_poll: bool = False,
) -> T:
    """Make one call and see it through passing faults.

    Args:
        connection: The way to the engine.
        method: The method of ``connection.service``.
        request: Its request.
        timeout: Longest time the whole may take; None leaves it to the engine and the retries.
        is_long_poll: Try again for as long as it takes.

    Raises:
        RPCError: The call was refused for good, or the time was over (``DEADLINE_EXCEEDED``).
        TypeError: A field of the request has another type than it is declared with.
    """
    if in_workflow():
        refuse_in_workflow(getattr(method, "__name__", "a call"))
    request = checked(getattr(method, "__name__", "a call"), request)
    if timeout is None:
        try:
            return await connection.call(method, request)
        except RPCError as error:
            return await _call_again(connection, method, request, is_long_poll, error)
    check_durations(getattr(method, "__name__", "call"), rpc_timeout=timeout)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            try:
                return await connection.call(method, request)
            except RPCError as error:
                return await _call_again(connection, method, request, is_long_poll, error)
    except TimeoutError as error:
        raise RPCError(_too_late(method, timeout)) from error


def refuse_in_workflow(what: str) -> None:
    """Refuse to be called by workflow code, whose loop could not even wait for the answer.

    Raises:
        RestrictedWorkflowAccessError: Names what to use instead.
    """
    if in_workflow():
        raise RestrictedWorkflowAccessError(
            f"Workflow code used a client ({what}), and a replay would do that again. Do it in an activity, or use "
            "workflow.execute_child_workflow(), workflow.get_external_workflow_handle() or workflow.continue_as_new().",
            qualified_name=f"clew.client.{what}",
        )


async def _call_again(
    connection: Connection, method: Callable[[Any], Awaitable[T]], request: Any, is_long_poll: bool, error: RPCError
) -> T:
    """Repeat a call that was met by `error`, if that may pass."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + RETRY_SECONDS_MAX
    wait_seconds = _FIRST_WAIT_SECONDS
    while True:
        if not error.is_retryable or connection.is_closed:
            raise error
        if not is_long_poll and loop.time() + wait_seconds > give_up_at:
            raise error
        told_seconds = _seconds_told(error)
        await asyncio.sleep(max(wait_seconds, min(told_seconds, _LONGEST_WAIT_SECONDS)))
        wait_seconds = min(wait_seconds * _WAIT_FACTOR, _LONGEST_WAIT_SECONDS)
        try:
            return await connection.call(method, request)
        except RPCError as later:
            error = later


def _seconds_told(error: RPCError) -> float:
    """After which the node wants to be asked again; 0 when it says nothing, or nothing that is a time."""
    try:
        seconds = float(error.rejection.details.get("retry_after_seconds", 0))
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _too_late(method: Callable[..., Any], timeout: timedelta) -> Rejection:
    name = getattr(method, "__name__", repr(method))
    return Rejection(
        code=RejectionCode.DEADLINE_EXCEEDED,
        message=(
            f"{name} was not answered within {timeout.total_seconds():g} s (rpc_timeout); whether it took effect is "
            "not known. Repeat it with a longer rpc_timeout, or ask describe() what the run waits for."
        ),
    )
