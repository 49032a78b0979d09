"""Interceptors of activities: what a worker lets others put around every call.

Owns: the two base classes and their inputs, with the published names.
Never: calls an activity itself (``_activity_calls`` ends each chain).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew.activity._context import Info
from clew.model.payload import Payload


@dataclass
class ExecuteActivityInput:
    """Input of `ActivityInboundInterceptor.execute_activity`.

    Attributes:
        fn: The function.
        args: Its converted arguments.
        executor: Where a plain function runs; None for an async one and for the worker's own threads.
        headers: What the workflow sent along.
    """

    fn: Callable[..., Any]
    args: Sequence[Any]
    executor: concurrent.futures.Executor | None
    headers: Mapping[str, Payload]


class ActivityInboundInterceptor:
    """Wraps calls of activities; subclass it and pass on to `next`."""

    def __init__(self, next: ActivityInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """Called once an attempt, with the outbound interceptor, which may be wrapped before it is passed on."""
        self.next.init(outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run the activity and give its result."""
        return await self.next.execute_activity(input)


class ActivityOutboundInterceptor:
    """Wraps what an activity asks of its surroundings; subclass it and pass on to `next`."""

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        self.next = next

    def info(self) -> Info:
        """Serve `activity.info`."""
        return self.next.info()

    def heartbeat(self, *details: Any) -> None:
        """Serve `activity.heartbeat`."""
        self.next.heartbeat(*details)
