"""Heartbeats of running attempts: throttled, retried, and listened to.

Owns: when a heartbeat is sent, and what its answer means for the attempt.
Never: makes heartbeats up; only the activity says that it is alive.

How it works: the latest details wait in the attempt. The first heartbeat is sent at once, the next not before the
throttle interval is over, with what is then the latest. A call that fails for a passing reason is tried again, until
the attempt is over by the worker's own clock (`ActivityTasks` looks at that); an answer that the attempt is unknown,
to be cancelled, paused or reset is passed on at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, final

from clew.activity._context import ActivityCancellationDetails
from clew.model.events import ZERO
from clew.model.inputs import HeartbeatActivityRequest
from clew.model.payload import Payloads
from clew.service.contract import Service
from clew.service.errors import RPCError, RPCStatusCode
from clew.service.reply import Reply
from clew.service.requests import HeartbeatActivityResponse
from clew.worker._attempt import Attempt
from clew.worker._reports import RETRY_SECONDS_FIRST, call_back, is_passing

THROTTLE_SHARE: Final = 0.8
"""Share of the heartbeat timeout after which the next heartbeat is sent (semantics 1.3)."""

RETRY_SECONDS_MAX: Final = 1.0
"""A heartbeat is tried again sooner than a report: a deadline is running."""

_log: Final = logging.getLogger("clew.worker.activity")


@final
class HeartbeatSender:
    """Sends the heartbeats of all attempts; on the service loop.

    Args:
        loop: The service loop.
        service: Where they go.
        identity: Of the worker.
        interval_max: Longest throttle interval.
        interval_default: Throttle interval where no heartbeat timeout is set.
        cancel: Told that the engine wants an attempt to stop.
        encode: The payload codec, if there is one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        identity: str,
        *,
        interval_max: timedelta,
        interval_default: timedelta,
        cancel: Callable[[Attempt, ActivityCancellationDetails], None],
        encode: Callable[[Payloads], Awaitable[Payloads]] | None,
    ) -> None:
        self.loop = loop
        self.cancel = cancel
        self._service = service
        self._identity = identity
        self._interval_max = interval_max
        self._interval_default = interval_default
        self._encode = encode

    def beat(self, attempt: Attempt) -> None:
        """The attempt has new details."""
        if attempt.is_over or attempt.is_gone:
            return
        if attempt.beat is None:
            attempt.beat = Heartbeat(self, attempt)
        attempt.beat.soon()

    def interval(self, heartbeat_timeout: timedelta) -> float:
        """Seconds from one heartbeat to the next."""
        if heartbeat_timeout == ZERO:
            return min(self._interval_default, self._interval_max).total_seconds()
        return min(heartbeat_timeout * THROTTLE_SHARE, self._interval_max).total_seconds()

    def send(self, attempt: Attempt, details: Payloads) -> Awaitable[HeartbeatActivityResponse]:
        """Make the call."""
        if self._encode is not None:
            return self._send_encoded(attempt, self._encode(details))
        return self._service.heartbeat_activity(
            HeartbeatActivityRequest(token=attempt.task.token, details=details, identity=self._identity)
        )

    async def _send_encoded(self, attempt: Attempt, details: Awaitable[Payloads]) -> HeartbeatActivityResponse:
        request = HeartbeatActivityRequest(token=attempt.task.token, details=await details, identity=self._identity)
        return await self._service.heartbeat_activity(request)


@final
class Heartbeat:
    """The heartbeats of one attempt."""

    __slots__ = ("_attempt", "_details", "_interval", "_is_in_flight", "_not_before", "_sender", "_timer", "_tries")

    def __init__(self, sender: HeartbeatSender, attempt: Attempt) -> None:
        self._sender = sender
        self._attempt = attempt
        self._interval = sender.interval(attempt.task.heartbeat_timeout)
        self._not_before = 0.0
        self._is_in_flight = False
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self._details: Payloads = ()

    def soon(self) -> None:
        """Send the latest details as soon as the throttle allows."""
        if self._is_in_flight or self._timer is not None:
            return
        wait = self._not_before - self._sender.loop.time()
        if wait <= 0:
            self._send_latest()
        else:
            self._timer = self._sender.loop.call_later(wait, self._send_latest)

    def stop(self) -> None:
        """The attempt is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_latest(self) -> None:
        self._timer = None
        attempt = self._attempt
        if attempt.is_over or attempt.is_gone:
            return
        # The flag goes down first: details that come from now on announce themselves again.
        attempt.is_beat_posted = False
        details, attempt.beat_details = attempt.beat_details, None
        if details is not None:
            self._details = details
        self._is_in_flight = True
        self._not_before = self._sender.loop.time() + self._interval
        try:
            call_back(self._sender.send(attempt, self._details), self._answered)
        except Exception as error:  # noqa: BLE001 - a service may refuse before it hands out a future
            self._failed(error)

    def _answered(self, future: asyncio.Future[Any] | Reply[Any]) -> None:
        self._is_in_flight = False
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._failed(error)
            return
        attempt = self._attempt
        self._tries = 0
        attempt.acked_at = self._sender.loop.time()
        answer = future.result()
        if answer.cancel_requested or answer.activity_paused or answer.activity_reset:
            details = ActivityCancellationDetails(
                cancel_requested=answer.cancel_requested,
                paused=answer.activity_paused,
                reset=answer.activity_reset,
            )
            self._sender.cancel(attempt, details)
        if attempt.beat_details is not None:
            self.soon()

    def _failed(self, error: BaseException) -> None:
        self._is_in_flight = False
        attempt = self._attempt
        if attempt.is_over or attempt.is_gone:
            return
        if is_passing(error):
            self._tries += 1
            if self._tries == 1:
                _log.warning("activity.heartbeat_delayed %s: %s; it will be sent again", attempt, error)
            wait = min(RETRY_SECONDS_FIRST * 2 ** min(self._tries - 1, 10), RETRY_SECONDS_MAX)
            self._timer = self._sender.loop.call_later(wait, self._send_latest)
        elif isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            attempt.is_gone = True
            self._sender.cancel(attempt, ActivityCancellationDetails(not_found=True))
        else:
            _log.error("activity.heartbeat_refused %s: %s", attempt, error, exc_info=error)
