"""A handle on an activity that is completed from outside of its function.

Owns: `AsyncActivityHandle` and `AsyncActivityIDReference`.
Never: runs an activity (``worker`` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

from clew.client._interceptor import (
    CompleteAsyncActivityInput,
    FailAsyncActivityInput,
    HeartbeatAsyncActivityInput,
    ReportCancellationAsyncActivityInput,
)
from clew.model.inputs import ActivityTarget, TaskToken

if TYPE_CHECKING:
    from clew.client._client import Client


@dataclass(frozen=True)
class AsyncActivityIDReference:
    """Names an activity by ids.

    Args:
        workflow_id: The workflow that scheduled it.
        run_id: Its run; None for whichever is current.
        activity_id: Id of the activity in that run.
    """

    workflow_id: str
    run_id: str | None
    activity_id: str


@final
class AsyncActivityHandle:
    """A handle on an activity that called `activity.raise_complete_async`."""

    def __init__(self, client: Client, target: TaskToken | ActivityTarget) -> None:
        self._client = client
        self._target = target

    async def heartbeat(self, *details: Any, rpc_timeout: timedelta | None = None) -> None:
        """Say that the activity is alive.

        Args:
            *details: Progress, given to the next attempt if this one fails.
            rpc_timeout: Longest wait for the answer.

        Raises:
            AsyncActivityCancelledError: It is to stop; clean up and call `report_cancellation`.
            RPCError: It is not waiting any more.
        """
        await self._client._outbound.heartbeat_async_activity(
            HeartbeatAsyncActivityInput(self._target, details, rpc_timeout)
        )

    async def complete(self, result: Any = None, *, rpc_timeout: timedelta | None = None) -> None:
        """Give the activity's result.

        Raises:
            EncodeError: The result cannot be converted, or is too large.
            RPCError: It is not waiting any more.
        """
        await self._client._outbound.complete_async_activity(
            CompleteAsyncActivityInput(self._target, result, rpc_timeout)
        )

    async def fail(
        self, error: Exception, *, last_heartbeat_details: Sequence[Any] = (), rpc_timeout: timedelta | None = None
    ) -> None:
        """Fail this attempt of the activity.

        Args:
            error: Why; an `ApplicationError` can say whether to try again.
            last_heartbeat_details: Progress for the next attempt.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: It is not waiting any more.
        """
        await self._client._outbound.fail_async_activity(
            FailAsyncActivityInput(self._target, error, last_heartbeat_details, rpc_timeout)
        )

    async def report_cancellation(self, *details: Any, rpc_timeout: timedelta | None = None) -> None:
        """Say that the activity stopped because it was asked to.

        Raises:
            RPCError: It was not asked to, or is not waiting any more.
        """
        await self._client._outbound.report_cancellation_async_activity(
            ReportCancellationAsyncActivityInput(self._target, details, rpc_timeout)
        )
