"""What workflow code asks of the world: activities, children, other workflows, timers.

Owns: making requests and waiting for their outcome, including what cancellation does meanwhile.
Never: applies events (``resolutions`` does), or decides what an uncaught error means.

How it works: each wait is a coroutine on a future that an event will settle. `Task.cancel` cancels that future, which
is how the coroutine learns of it; by the cancellation type it asks the other side to stop and raises at once, or
takes a new future and goes on waiting. When a wait swallows the cancellation of the run itself (because the activity
completed after all), the run is cancelled again at its next await (`on_swallowed`), so that a request to cancel is
never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, final

from clew.converter import encode_search_attributes
from clew.exceptions import CancelledError
from clew.model import events as e
from clew.replay.commands import (
    CancelActivity,
    CancelExternal,
    CancelTimer,
    ScheduleActivity,
    SignalExternal,
    StartChild,
    StartTimer,
)
from clew.replay.errors import CancelledActivityError, CancelledChildError
from clew.replay.handles import External, SendSignal, StartedActivity, StartedChild
from clew.replay.loop import Timer, WorkflowLoop, checked_seconds
from clew.replay.matching import Ledger
from clew.replay.resolutions import cancelled_activity, cancelled_child
from clew.replay.values import Values
from clew.workflow._activities import ActivityCancellationType
from clew.workflow._children import ChildWorkflowCancellationType
from clew.workflow._interceptor import StartActivityInput, StartChildWorkflowInput

RUN_CANCELLED: Final = "Workflow execution cancelled"
"""The message of the cancellation that an event brings, by which waits know it from others."""

_TRY: Final = ActivityCancellationType.TRY_CANCEL
_WAIT: Final = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
_ABANDON: Final = ActivityCancellationType.ABANDON
_Child: Final = ChildWorkflowCancellationType


@final
class Outbound:
    """Requests of one run.

    Args:
        ledger: Takes the requests.
        values: Converts arguments and results.
        check_writable: Raises where nothing may be changed.
        on_swallowed: Told when a wait outlived the cancellation of the run.
        namespace: Of the run.
        task_queue: Of the worker, for what names none.
    """

    def __init__(
        self,
        ledger: Ledger,
        values: Values,
        check_writable: Callable[[str], None],
        on_swallowed: Callable[[], None],
        namespace: str,
        task_queue: str,
    ) -> None:
        self._ledger = ledger
        self._values = values
        self._check_writable = check_writable
        self._on_swallowed = on_swallowed
        self._namespace = namespace
        self._task_queue = task_queue
        self.activity_counts: dict[str, int] = {}
        self._timer_count = 0
        self.loop: WorkflowLoop
        """Set by whoever makes both."""
        self.send_signal: SendSignal = self.signal_external
        """What handles call; set by whoever puts interceptors in between."""

    # --- timers --------------------------------------------------------------------------------------------

    def start_timer(self, timer: Timer, seconds: float) -> None:
        """Ask for a durable timer."""
        self._check_writable("start a timer")
        self._timer_count += 1
        metadata = self._values.metadata(timer.summary) if timer.summary else None
        started = StartTimer(str(self._timer_count), timedelta(seconds=checked_seconds(seconds)), timer, metadata)
        timer.pending = started
        self._ledger.add(started)
        self._ledger.open.timers[started.timer_id] = started

    def cancel_timer(self, timer: Timer) -> None:
        """Take a durable timer back."""
        started: StartTimer = timer.pending
        timer.pending = None
        if started.is_done or started.cancel is not None:
            return
        if self._ledger.drop(started):
            del self._ledger.open.timers[started.timer_id]
            return
        started.cancel = CancelTimer(started)
        self._ledger.add(started.cancel)

    async def sleep(self, seconds: float, summary: str | None) -> None:
        """Wait for durable time; see `workflow.sleep`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = self.loop.create_future()
        timer = self.loop.call_later(seconds, _wake, woken, summary=summary)
        try:
            await woken
        finally:
            timer.cancel()

    # --- activities ----------------------------------------------------------------------------------------

    def schedule_activity(self, asked: StartActivityInput) -> ScheduleActivity:
        """Ask for an activity.

        Raises:
            EncodeError: An argument cannot be converted, or is too large.
        """
        check = self._check_writable
        check("start an activity")
        payloads = self._values.encode(asked.args, "argument of activity", asked.activity)
        activity_id = asked.activity_id
        if activity_id is None:
            count = self.activity_counts.get(asked.activity, 0) + 1
            activity_id = f"{asked.activity}-{count}"
            self.activity_counts[asked.activity] = count
        metadata = self._values.metadata(asked.summary) if asked.summary else None
        activity = ScheduleActivity(
            asked, activity_id, asked.task_queue or self._task_queue, payloads, metadata, self.loop.create_future()
        )
        self._ledger.add(activity)
        return activity

    async def activity_result(self, activity: ScheduleActivity) -> Any:
        """Wait for the outcome of an activity."""
        is_run_cancel_swallowed = False
        while True:
            try:
                payloads = await activity.future
            except CancelledActivityError:
                raise
            except asyncio.CancelledError as cancelled:
                if activity.is_done:
                    raise
                self._request_stop(activity)
                if activity.is_dropped or activity.input.cancellation_type is not _WAIT:
                    error = cancelled_activity(activity, CancelledError("Activity cancelled"))
                    raise error from error.cause
                is_run_cancel_swallowed |= RUN_CANCELLED in cancelled.args
                activity.future = self.loop.create_future()
                continue
            if is_run_cancel_swallowed:
                self._on_swallowed()
            return self._values.decode_result(payloads, activity.input.ret_type)

    def _request_stop(self, activity: ScheduleActivity) -> None:
        if activity.cancel is not None or activity.is_dropped or activity.input.cancellation_type is _ABANDON:
            return
        if self._ledger.drop(activity):
            activity.is_done = True
            return
        activity.cancel = CancelActivity(activity)
        self._ledger.add(activity.cancel)

    def start_activity(self, asked: StartActivityInput) -> StartedActivity:
        """Ask for an activity and give its handle."""
        activity = self.schedule_activity(asked)

        def on_early_cancel() -> None:
            self._request_stop(activity)
            if (activity.is_dropped or asked.cancellation_type is not _WAIT) and not activity.future.done():
                activity.future.set_exception(cancelled_activity(activity, CancelledError("Activity cancelled")))

        handle = StartedActivity(
            self.activity_result(activity), loop=self.loop, name=activity.activity_id, on_early_cancel=on_early_cancel
        )
        self.loop.adopt(handle)
        return handle

    # --- children ------------------------------------------------------------------------------------------

    async def start_child(self, asked: StartChildWorkflowInput) -> StartedChild:
        """Ask for a child and wait until it has started."""
        self._check_writable(f"start child workflow {asked.workflow!r}")
        child = StartChild(
            asked,
            self._namespace,
            asked.task_queue or self._task_queue,
            self._values.encode(asked.args, "argument of child workflow", asked.workflow),
            self.loop.create_future(),
            self.loop.create_future(),
        )
        child.memo = self._values.encode_mapping(asked.memo, "memo", asked.workflow)
        child.search_attributes = encode_search_attributes(asked.search_attributes) or None
        child.metadata = self._values.metadata(asked.static_summary, asked.static_details)
        self._ledger.add(child)
        run_id = ""
        is_run_cancel_swallowed = False
        while not run_id:
            try:
                run_id = await child.start
            except asyncio.CancelledError as cancelled:
                if child.is_done or isinstance(cancelled, CancelledChildError):
                    raise
                self._request_child_stop(child)
                if child.is_dropped or asked.cancellation_type in (_Child.ABANDON, _Child.TRY_CANCEL):
                    error = cancelled_child(child, CancelledError("Child workflow cancelled"))
                    raise error from error.cause
                is_run_cancel_swallowed |= RUN_CANCELLED in cancelled.args
                child.start = self.loop.create_future()
                if child.run_id:
                    child.start.set_result(child.run_id)
        if is_run_cancel_swallowed:
            self._on_swallowed()

        def on_early_cancel() -> None:
            self._request_child_stop(child)
            if asked.cancellation_type in (_Child.ABANDON, _Child.TRY_CANCEL):
                _end_wait(child)
            elif asked.cancellation_type is _Child.WAIT_CANCELLATION_REQUESTED and child.cancel is not None:
                child.cancel.future.add_done_callback(lambda _: _end_wait(child), context=self.loop.context)

        handle = StartedChild(
            self._child_result(child),
            loop=self.loop,
            target=e.ExecutionRef(asked.id, "", self._namespace),
            first_execution_run_id=run_id,
            on_early_cancel=on_early_cancel,
            send_signal=self.send_signal,
        )
        self.loop.adopt(handle)
        return handle

    async def _child_result(self, child: StartChild) -> Any:
        kind = child.input.cancellation_type
        is_run_cancel_swallowed = False
        while True:
            try:
                payloads = await child.result
            except CancelledChildError:
                raise
            except asyncio.CancelledError as cancelled:
                if child.is_done:
                    raise
                self._request_child_stop(child)
                if kind in (_Child.ABANDON, _Child.TRY_CANCEL):
                    error = cancelled_child(child, CancelledError("Child workflow cancelled"))
                    raise error from error.cause
                is_run_cancel_swallowed |= RUN_CANCELLED in cancelled.args
                child.result = self.loop.create_future()
                if kind is _Child.WAIT_CANCELLATION_REQUESTED and child.cancel is not None:
                    child.cancel.future.add_done_callback(lambda _: _end_wait(child), context=self.loop.context)
                continue
            if is_run_cancel_swallowed:
                self._on_swallowed()
            return self._values.decode_result(payloads, child.input.ret_type)

    def _request_child_stop(self, child: StartChild) -> None:
        if child.cancel is not None or child.is_dropped or child.input.cancellation_type is _Child.ABANDON:
            return
        if self._ledger.drop(child):
            child.is_done = True
            return
        target = e.ExecutionRef(child.input.id, "", child.namespace)
        child.cancel = CancelExternal(target, "", child, self.loop.create_future())
        self._ledger.add(child.cancel)

    # --- other workflows -----------------------------------------------------------------------------------

    def external(self, workflow_id: str, run_id: str | None) -> External:
        """Give the handle of another workflow."""
        target = e.ExecutionRef(workflow_id, run_id or "", self._namespace)
        return External(target, self.send_signal, self.cancel_external)

    async def signal_external(
        self, target: e.ExecutionRef, name: str, args: Sequence[Any], is_child: bool, headers: Any = None
    ) -> None:
        """Send a signal to another workflow and wait until it is recorded there."""
        self._check_writable(f"signal workflow {target.workflow_id!r}")
        payloads = self._values.encode(args, "argument of signal", name)
        signal = SignalExternal(target, name, payloads, headers or {}, is_child, self.loop.create_future())
        self._ledger.add(signal)
        try:
            await signal.future
        except asyncio.CancelledError:
            self._ledger.drop(signal)
            raise

    async def cancel_external(self, target: e.ExecutionRef, reason: str) -> None:
        """Ask another workflow to cancel and wait until that is recorded there."""
        self._check_writable(f"cancel workflow {target.workflow_id!r}")
        cancel = CancelExternal(target, reason, None, self.loop.create_future())
        self._ledger.add(cancel)
        try:
            await cancel.future
        except asyncio.CancelledError:
            self._ledger.drop(cancel)
            raise


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _end_wait(child: StartChild) -> None:
    if not child.result.done():
        child.result.set_exception(cancelled_child(child, CancelledError("Child workflow cancelled")))
