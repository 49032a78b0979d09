"""Reports to the service that outlive passing faults.

Owns: when a report is sent again and when it is given up.
Never: what a report says, or what a refusal means to its sender.

How it works: a report is one call of the service, made on the service loop. An answer that says "not now" (or a broken
connection) is followed by another try, after waits that double up to `RETRY_SECONDS_MAX`, until the service takes the
report or refuses it for good; what was done is done, so there is nothing better to do with the result than to go on
offering it (law 6 makes a repeat harmless). No task is made while the service answers with a future.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from clew.service.errors import RPCError
from clew.service.reply import Reply

RETRY_SECONDS_FIRST: Final = 0.05
RETRY_SECONDS_MAX: Final = 5.0
"""A fault that lasts is asked about often enough to notice its end soon, rarely enough not to add to it."""

_log: Final = logging.getLogger("clew.worker")


def is_passing(error: BaseException) -> bool:
    """Whether the very same call may succeed later."""
    if isinstance(error, RPCError):
        return error.is_retryable
    return isinstance(error, (ConnectionError, TimeoutError))


def call_back(answer: Awaitable[Any], done: Callable[[asyncio.Future[Any] | Reply[Any]], None]) -> None:
    """Call `done` with the finished future of `answer`, on the running loop."""
    if isinstance(answer, Reply):
        answer.listen(done)
    else:
        asyncio.ensure_future(answer).add_done_callback(done)


@final
class Report:
    """One call of the service that is repeated until there is a verdict.

    Args:
        loop: The service loop, on which everything here happens.
        call: The method of the service.
        request: Its request.
        label: Names the thing reported, for the log, as text of it.
        on_verdict: Told the refusal, or None when it was taken.
        give_up_after: Seconds after the first passing fault, from which on another counts as a refusal; None means
            never.
    """

    # Most reports never write these, so they stand here and not in each.
    answer: Any = None
    """What the service gave when it took the report."""
    _deadline: float | None = None
    _tries = 1
    _is_dropped = False
    _waiting: asyncio.TimerHandle | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[Any], Awaitable[Any]],
        request: Any,
        label: object,
        on_verdict: Callable[[BaseException | None], None],
        *,
        give_up_after: float | None = None,
    ) -> None:
        self._loop = loop
        self._call = call
        self._request = request
        self.label = label
        self._on_verdict = on_verdict
        self._give_up_after = give_up_after

    def take(self, answer: asyncio.Future[Any] | Reply[Any]) -> None:
        """Look at what came of the call, which somebody has made in the place of `send`."""
        self._answered(answer)

    def refuse(self, error: Exception) -> None:
        """Look at the error that the call raised, which somebody has made in the place of `send`."""
        self._refused(error)

    def wait_for(self, answer: Awaitable[Any]) -> None:
        """Take what will come of the call, which somebody has made in the place of `send`."""
        call_back(answer, self._answered)

    def send(self) -> None:
        """Make the call."""
        try:
            call_back(self._call(self._request), self._answered)
        except Exception as error:  # noqa: BLE001 - a service may refuse before it hands out a future
            self._refused(error)

    def _send_again(self) -> None:
        self._waiting = None
        self._tries += 1
        if not self._is_dropped:
            self.send()

    def drop(self) -> None:
        """Do not try again."""
        self._is_dropped = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _answered(self, future: asyncio.Future[Any] | Reply[Any]) -> None:
        try:
            self.answer = future.result()
        except asyncio.CancelledError as error:
            # Only the end of the service loop cancels its futures; nobody is left to report to.
            self._end(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            self._refused(error)
        else:
            if self._tries > 1:
                _log.info("worker.report_delivered what=%s tries=%d", self.label, self._tries)
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        # Told once, then let go of: what is told refers to this report, and only the cycle collector would free both.
        tell, self._on_verdict = self._on_verdict, _forget
        tell(error)

    def _refused(self, error: BaseException) -> None:
        wait = min(RETRY_SECONDS_FIRST * 2 ** min(self._tries - 1, 10), RETRY_SECONDS_MAX)
        if self._is_dropped:
            return
        if self._deadline is None and self._give_up_after is not None:
            # From the first refusal on: nearly every report has none, and reading the clock costs as much as the rest.
            self._deadline = self._loop.time() + self._give_up_after
        if not is_passing(error) or (self._deadline is not None and self._loop.time() + wait > self._deadline):
            self._end(error)
            return
        if self._tries == 1:
            _log.warning(
                "worker.report_delayed what=%s error=%r; it will be sent again until it is taken", self.label, error
            )
        self._waiting = self._loop.call_later(wait, self._send_again)


def _forget(error: BaseException | None) -> None:
    """There is nobody left to tell."""
