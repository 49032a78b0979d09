"""Handles that workflow code holds of what it started.

Owns: the concrete handles. Never: sends anything itself (the runtime does).

How it works: a handle is a task whose coroutine waits for the outcome and turns a cancellation into a request. A task
that is cancelled before its first step never enters its coroutine, so that case is caught at the call of `cancel`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, final

from clew.model import events as e
from clew.workflow._activities import ActivityHandle
from clew.workflow._children import ChildWorkflowHandle, ExternalWorkflowHandle

EarlyCancel = Callable[[], None]
"""Asks for cancellation before the handle's first step, which will then meet its outcome."""

SendSignal = Callable[[e.ExecutionRef, str, Sequence[Any], bool], Coroutine[Any, Any, None]]


@final
class StartedActivity(ActivityHandle[Any]):
    """The handle of an activity."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: asyncio.AbstractEventLoop,
        name: str,
        on_early_cancel: EarlyCancel,
    ) -> None:
        self._on_early_cancel = on_early_cancel
        super().__init__(coro, loop=loop, name=name)

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask the activity to stop; see `ActivityCancellationType`."""
        if _is_unbegun(self):
            self._on_early_cancel()
            return True
        return super().cancel(msg)


@final
class StartedChild(ChildWorkflowHandle[Any, Any]):
    """The handle of a child."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: asyncio.AbstractEventLoop,
        target: e.ExecutionRef,
        first_execution_run_id: str,
        on_early_cancel: EarlyCancel,
        send_signal: SendSignal,
    ) -> None:
        self._on_early_cancel = on_early_cancel
        self._target = target
        self._first_execution_run_id = first_execution_run_id
        self._send_signal = send_signal
        super().__init__(coro, loop=loop, name=f"child-{target.workflow_id}")

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask the child to cancel; see `ChildWorkflowCancellationType`."""
        if _is_unbegun(self):
            self._on_early_cancel()
            return True
        return super().cancel(msg)

    @property
    def id(self) -> str:
        return self._target.workflow_id

    @property
    def first_execution_run_id(self) -> str | None:
        return self._first_execution_run_id or None

    async def _signal(self, name: str, args: Sequence[Any]) -> None:
        await self._send_signal(self._target, name, args, True)


@final
class External(ExternalWorkflowHandle[Any]):
    """The handle of another workflow."""

    def __init__(
        self,
        target: e.ExecutionRef,
        send_signal: SendSignal,
        request_cancel: Callable[[e.ExecutionRef, str], Coroutine[Any, Any, None]],
    ) -> None:
        self._target = target
        self._send_signal = send_signal
        self._request_cancel = request_cancel

    @property
    def id(self) -> str:
        return self._target.workflow_id

    @property
    def run_id(self) -> str | None:
        return self._target.run_id or None

    async def cancel(self, *, reason: str = "") -> None:
        await self._request_cancel(self._target, reason)

    async def _signal(self, name: str, args: Sequence[Any]) -> None:
        await self._send_signal(self._target, name, args, False)


def _is_unbegun(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
