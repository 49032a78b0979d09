"""Local activities: steps that the worker runs itself, each recorded by one marker (semantics 0.5).

Owns: which of them are open, what of them the worker is to run, and how a marker settles one. Never: runs one.

How it works: an open local activity keeps the workflow task open. When the worker has an outcome, there are two ways:

* ``durable="step"``: the outcome leaves as a marker, with a wish for the next task at once. It reaches the code only
  when that task brings the marker back, as an event like any other. So nothing the code does rests on an outcome that
  is not durable, and replay needs no special rule.
* ``durable="batch"``: the outcome reaches the code at once and its marker leaves with the task's other commands. On
  replay the markers of a task are known beforehand and settle their activities, in their order, after the task's
  events.

An attempt that failed and is to be tried again only later than the worker cares to wait ends with a back-off: a
marker too, after which the run sets a durable timer and asks for the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, final

import msgspec

from clew.exceptions import ActivityError, CancelledError, NondeterminismError
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import CanceledInfo, Failure, RetryState
from clew.model.payload import Payloads
from clew.replay.commands import LOCAL_ACTIVITY_MARKER, Pending
from clew.replay.errors import CancelledActivityError
from clew.replay.handles import StartedActivity
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.options import LocalActivityOutcome, LocalActivityRequest
from clew.replay.values import Values
from clew.workflow._activities import ActivityCancellationType
from clew.workflow._interceptor import StartLocalActivityInput

_WAIT: Final = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
_ABANDON: Final = ActivityCancellationType.ABANDON


class MarkerData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a marker says besides result or failure, readable in history."""

    activity_id: str
    activity_type: str
    durable: str = "step"
    attempt: int = 1
    backoff_seconds: float = 0.0


_decode_data = msgspec.json.Decoder(MarkerData).decode
_encode = msgspec.json.Encoder().encode


def marker_data(event: e.MarkerRecorded) -> MarkerData | None:
    """Read a marker; None if it is not that of a local activity."""
    if event.marker_name != LOCAL_ACTIVITY_MARKER:
        return None
    return _decode_data(bytes(event.details["data"][0]))


class _Backoff(Exception):
    def __init__(self, seconds: float, attempt: int) -> None:
        super().__init__(seconds, attempt)
        self.seconds = seconds
        self.attempt = attempt


@final
class _Open:
    """A local activity that has no outcome yet."""

    __slots__ = ("activity_id", "attempt", "future", "input", "is_done", "is_handed_out", "payloads", "sequence")

    def __init__(
        self,
        sequence: int,
        asked: StartLocalActivityInput,
        activity_id: str,
        payloads: Payloads,
        future: asyncio.Future[Any],
    ) -> None:
        self.sequence = sequence
        self.input = asked
        self.activity_id = activity_id
        self.payloads = payloads
        self.future = future
        self.attempt = 1
        self.is_done = False
        self.is_handed_out = False


@final
class RecordLocalActivity(Pending):
    """The outcome of a local activity, on its way into history."""

    __slots__ = ("data", "outcome")
    event_type = e.MarkerRecorded

    def __init__(self, data: MarkerData, outcome: LocalActivityOutcome) -> None:
        super().__init__()
        self.data = data
        self.outcome = outcome

    def to_command(self) -> c.Command:
        details: dict[str, Payloads] = {"data": (msgspec.Raw(_encode(self.data)),)}
        if self.outcome.failure is None and not self.outcome.is_cancelled:
            details["result"] = self.outcome.result
        failure = self.outcome.failure
        if failure is None and self.outcome.is_cancelled:
            failure = Failure(message="Local activity cancelled", info=CanceledInfo())
        return c.RecordMarker(marker_name=LOCAL_ACTIVITY_MARKER, details=details, failure=failure)

    def differences(self, event: e.MarkerRecorded) -> list[str]:
        data = marker_data(event)
        if data is not None and (data.activity_id, data.activity_type) == (
            self.data.activity_id,
            self.data.activity_type,
        ):
            return []
        return [f"recorded marker {event.marker_name!r} {data}, attempted one of {self.data.activity_id!r}"]

    def describe(self) -> str:
        return f"RecordMarker of local activity {self.data.activity_id!r}"


@final
class LocalActivities:
    """The local activities of one run.

    Args:
        ledger: Takes markers that go with the other commands.
        values: Converts arguments and results.
        loop: Of the run.
        check_writable: Raises where nothing may be changed.
        sleep: Waits durably, for back-offs.
    """

    def __init__(
        self,
        ledger: Ledger,
        values: Values,
        loop: WorkflowLoop,
        check_writable: Callable[[str], None],
        sleep: Callable[[float, str | None], Any],
    ) -> None:
        self._ledger = ledger
        self._values = values
        self._loop = loop
        self._check_writable = check_writable
        self._sleep = sleep
        self._open: dict[str, _Open] = {}
        self._counts: dict[str, int] = {}
        self._sequence = 0
        self._finished: list[RecordLocalActivity] = []
        self._cancelled: list[int] = []

    # --- from the code -------------------------------------------------------------------------------------

    def start(self, asked: StartLocalActivityInput) -> StartedActivity:
        """Ask for a local activity and give its handle."""
        self._check_writable("start a local activity")
        payloads = self._values.encode(asked.args, "argument of local activity", asked.activity)
        activity_id = asked.activity_id
        if activity_id is None:
            self._counts[asked.activity] = count = self._counts.get(asked.activity, 0) + 1
            activity_id = f"{asked.activity}-local-{count}"
        if activity_id in self._open:
            raise ValueError(
                f"Local activity id {activity_id!r} is in use by one that is not finished; choose another."
            )
        self._sequence += 1
        activity = _Open(self._sequence, asked, activity_id, payloads, self._loop.create_future())
        self._open[activity_id] = activity

        def on_early_cancel() -> None:
            self._stop(activity)
            if asked.cancellation_type is not _WAIT and not activity.future.done():
                activity.future.set_exception(self._cancelled_error(activity))

        handle = StartedActivity(
            self._result(activity), loop=self._loop, name=activity_id, on_early_cancel=on_early_cancel
        )
        self._loop.adopt(handle)
        return handle

    async def _result(self, activity: _Open) -> Any:
        while True:
            try:
                payloads = await activity.future
            except CancelledActivityError:
                raise
            except asyncio.CancelledError:
                if activity.is_done:
                    raise
                self._stop(activity)
                if activity.input.cancellation_type is not _WAIT:
                    error = self._cancelled_error(activity)
                    raise error from error.cause
                activity.future = self._loop.create_future()
            except _Backoff as backoff:
                await self._sleep(backoff.seconds, f"Back-off of {activity.activity_id}")
                activity.attempt = backoff.attempt
                activity.future = self._loop.create_future()
                activity.is_done = activity.is_handed_out = False
                self._open[activity.activity_id] = activity
            else:
                return self._values.decode_result(payloads, activity.input.ret_type)

    def _stop(self, activity: _Open) -> None:
        kind = activity.input.cancellation_type
        if kind is not _ABANDON and activity.is_handed_out:
            self._cancelled.append(activity.sequence)
        if kind is not _WAIT or not activity.is_handed_out:
            activity.is_done = True
            self._open.pop(activity.activity_id, None)
            if kind is _WAIT and not activity.future.done():
                activity.future.set_exception(self._cancelled_error(activity))

    # --- to and from the worker ----------------------------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """Whether one has no outcome yet."""
        return bool(self._open)

    @property
    def has_finished(self) -> bool:
        """Whether an outcome waits to leave."""
        return bool(self._finished)

    def take_requests(self) -> tuple[LocalActivityRequest, ...]:
        """Give what the worker has to run and has not been told yet."""
        requests: list[LocalActivityRequest] = []
        for activity in self._open.values():
            if not activity.is_handed_out:
                activity.is_handed_out = True
                requests.append(
                    LocalActivityRequest(
                        sequence=activity.sequence,
                        activity_id=activity.activity_id,
                        activity_type=activity.input.activity,
                        input=activity.input,
                        payloads=activity.payloads,
                        attempt=activity.attempt,
                    )
                )
        return tuple(requests)

    def take_cancellations(self) -> tuple[int, ...]:
        """Give the sequence numbers of those that are to stop."""
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled

    def take_finished(self) -> list[Pending]:
        """Give the markers that are to leave."""
        finished: list[Pending] = [*self._finished]
        self._finished = []
        return finished

    def finish(self, outcome: LocalActivityOutcome) -> bool:
        """Take an outcome; say whether the code can go on with it now."""
        activity = next((a for a in self._open.values() if a.sequence == outcome.sequence), None)
        if activity is None:
            return False
        backoff = outcome.backoff.total_seconds() if outcome.backoff is not None else 0.0
        data = MarkerData(
            activity_id=activity.activity_id,
            activity_type=activity.input.activity,
            durable=activity.input.durable,
            attempt=outcome.attempt,
            backoff_seconds=backoff,
        )
        record = RecordLocalActivity(data, outcome)
        if activity.input.durable == "step":
            self._finished.append(record)
            return False
        self._ledger.add(record)
        self._settle(data, outcome)
        return True

    # --- from history --------------------------------------------------------------------------------------

    def apply_marker(self, event: e.MarkerRecorded) -> None:
        """Settle the local activity that a marker is of.

        Raises:
            NondeterminismError: The code has not asked for it.
        """
        data = marker_data(event)
        assert data is not None, "only markers of local activities come here"
        activity = self._open.get(data.activity_id)
        if activity is None or activity.input.activity != data.activity_type:
            attempted = activity.input.activity if activity is not None else "nothing"
            raise NondeterminismError(
                f"Workflow code no longer fits its history at event {event.event_id}. Recorded: the outcome of local "
                f"activity {data.activity_type!r} with id {data.activity_id!r}. Attempted under that id: {attempted}. "
                "Put the former code back, or guard the change with workflow.patched().",
                event_id=event.event_id,
                recorded=f"local activity {data.activity_type!r} with id {data.activity_id!r}",
                attempted=attempted,
            )
        outcome = LocalActivityOutcome(
            sequence=activity.sequence,
            result=event.details.get("result", ()),
            failure=event.failure,
            attempt=data.attempt,
            backoff=timedelta(seconds=data.backoff_seconds) if data.backoff_seconds else None,
        )
        if data.durable == "batch":
            self._ledger.add(RecordLocalActivity(data, outcome))
        self._settle(data, outcome)

    def _settle(self, data: MarkerData, outcome: LocalActivityOutcome) -> None:
        activity = self._open.pop(data.activity_id)
        activity.is_done = True
        if activity.future.done():
            return
        if data.backoff_seconds:
            activity.future.set_exception(_Backoff(data.backoff_seconds, data.attempt + 1))
        elif outcome.is_cancelled or (outcome.failure is not None and isinstance(outcome.failure.info, CanceledInfo)):
            activity.future.set_exception(self._cancelled_error(activity))
        elif outcome.failure is not None:
            error = ActivityError("Local activity failed", **self._fields(activity, RetryState.NON_RETRYABLE_FAILURE))
            error.__cause__ = self._values.from_failure(outcome.failure)
            activity.future.set_exception(error)
        else:
            activity.future.set_result(outcome.result)

    def _cancelled_error(self, activity: _Open) -> CancelledActivityError:
        error = CancelledActivityError(
            "Local activity cancelled", **self._fields(activity, RetryState.CANCEL_REQUESTED)
        )
        error.__cause__ = CancelledError("Local activity cancelled")
        return error

    @staticmethod
    def _fields(activity: _Open, retry_state: RetryState) -> dict[str, Any]:
        return {
            "scheduled_event_id": 0,
            "started_event_id": 0,
            "identity": "",
            "activity_type": activity.input.activity,
            "activity_id": activity.activity_id,
            "retry_state": retry_state,
        }
