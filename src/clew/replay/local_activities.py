"""Local activities: steps that the worker runs itself, each recorded by one marker (semantics 0.5, docs/adr/0016).

Owns: which of them are open, what of them the worker is to run, and how an outcome settles one. Never: runs one.

How it works: an open local activity keeps the workflow task open. When the worker has an outcome, there are two ways:

* ``durable="step"``: it is recorded as a marker at once, while the task goes on, and only then given to the code. So
  nothing the code does rests on an outcome that is not durable. In history the marker stands between the task's start
  and its end, and is applied there on replay.
* ``durable="batch"``: the outcome reaches the code at once and its marker leaves with the task's other commands. On
  replay the markers of a task are known beforehand and settle their activities, in their order, after the task's
  events. A step that is recorded meanwhile takes the markers of the batch along, ahead of its own.

An attempt that failed and is to be tried again only later than the worker cares to wait ends with a back-off: a
marker too, after which the run sets a durable timer and asks for the next attempt.

Whether a cancelled one is waited for depends on whether the worker has been asked for it. On replay that must come out
the same, so it does not go by when the worker was told: what was asked for is *handed out* after each event, live or
replayed (`epoch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, cast, final

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
from clew.replay.matching import DOCS, Ledger
from clew.replay.options import LocalActivityOutcome, LocalActivityRequest
from clew.replay.values import Values
from clew.workflow._activities import ActivityCancellationType
from clew.workflow._local_calls import LocalActivityCall

_WAIT: Final = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
_ABANDON: Final = ActivityCancellationType.ABANDON

BATCH: Final = "batch"
"""`MarkerData.durable` of what is recorded with the workflow task, or with the next step."""

ARGUMENT: Final = "argument of local activity"

NAMED_MAX: Final = 3
"""Local activities that an error message names; there may be thousands."""


class MarkerData(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """What a marker says besides result or failure, readable in history."""

    activity_id: str
    activity_type: str
    durable: str = "step"
    attempt: int = 1
    backoff_seconds: float = 0.0
    ordinal: int = 1
    """Which one it is of those that were started under this id, one after the other."""


decode_marker_data = msgspec.json.Decoder(MarkerData).decode
_encode = msgspec.json.Encoder().encode


def marker_data(event: e.MarkerRecorded) -> MarkerData | None:
    """Read a marker; None if it is not that of a local activity."""
    if event.marker_name != LOCAL_ACTIVITY_MARKER:
        return None
    return decode_marker_data(event.details["data"][0])


class _Backoff(Exception):
    def __init__(self, seconds: float, attempt: int) -> None:
        super().__init__(seconds, attempt)
        self.seconds = seconds
        self.attempt = attempt


@final
class OpenLocalActivity(msgspec.Struct, eq=False):
    """A local activity that has no outcome yet.

    Args:
        sequence: How many were asked for before it, and one.
        call: What was asked for.
        args: With what.
        activity_id: Its id.
        ordinal: Which one it is of those under this id.
        payloads: The arguments converted; None while that can wait (see `Values.can_encode_later`).
        future: Of its outcome.
        epoch: The event after which it was asked for, as `LocalActivities` counts.
        attempt: The next.
        is_done: Whether it has an outcome, or nobody waits for that any more.
        is_told: Whether the worker was told.
    """

    sequence: int
    call: LocalActivityCall
    args: Sequence[Any]
    activity_id: str
    ordinal: int
    payloads: Payloads | None
    future: asyncio.Future[Any]
    epoch: int
    attempt: int = 1
    is_done: bool = False
    is_told: bool = False


def marker_of(data: MarkerData, outcome: LocalActivityOutcome) -> c.RecordMarker:
    """Give the marker that records an outcome."""
    details: dict[str, Payloads] = {"data": (msgspec.Raw(_encode(data)),)}
    failure = outcome.failure
    if outcome.is_cancelled and failure is None:
        failure = Failure(message="Local activity cancelled", info=CanceledInfo())
    if failure is None:
        details["result"] = outcome.result
    return c.RecordMarker(marker_name=LOCAL_ACTIVITY_MARKER, details=details, failure=failure)


def step_marker(request: LocalActivityRequest, outcome: LocalActivityOutcome) -> c.RecordMarker:
    """Give the marker by which the worker makes the outcome of a step durable."""
    data = MarkerData(
        activity_id=request.activity_id,
        activity_type=request.activity_type,
        attempt=outcome.attempt,
        backoff_seconds=outcome.backoff.total_seconds() if outcome.backoff is not None else 0.0,
        ordinal=request.ordinal,
    )
    return marker_of(data, outcome)


@final
class RecordLocalActivity(Pending):
    """The outcome of a local activity in a batch, on its way into history."""

    __slots__ = ("data", "outcome")
    event_type = e.MarkerRecorded

    def __init__(self, data: MarkerData, outcome: LocalActivityOutcome) -> None:
        super().__init__()
        self.data = data
        self.outcome = outcome

    def to_command(self) -> c.RecordMarker:
        return marker_of(self.data, self.outcome)

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
        self.surely_takes = values.payload_converter.surely_takes
        self.bytes_max = values.limits.payload_bytes_max
        self.from_stored = values.payload_converter.from_stored
        self.open: dict[str, OpenLocalActivity] = {}
        """In the order in which they were asked for: those the worker has not been told of are the last."""
        self._told: dict[int, OpenLocalActivity] = {}
        """By their sequence numbers, under which the worker knows them."""
        self.abandoned: dict[tuple[str, int], str] = {}
        """Types of those that nobody waits for, by id and ordinal: the outcome may have been on its way."""
        self.counts: dict[str, int] = {}
        self.ordinals: dict[str, int] = {}
        self.sequence = 0
        self.epoch = 0
        """Grows after each event, live or replayed: what was asked for in an earlier one is handed out."""
        self._cancelled: list[int] = []
        self._forgotten: list[int] = []

    # --- from the code -------------------------------------------------------------------------------------

    def ask(self, call: LocalActivityCall, args: Sequence[Any]) -> OpenLocalActivity:
        """Ask for a local activity."""
        self._check_writable("start a local activity")
        name, activity_id, ordinal, payloads = call.activity, call.activity_id, 1, None
        # What is sure to be the same later is converted when the worker needs it: of a finished step, never.
        if args and not (len(args) == 1 and self.surely_takes(args[0], self.bytes_max)):
            payloads = self._values.encode(args, ARGUMENT, name)
        if activity_id is None:
            self.counts[name] = count = self.counts.get(name, 0) + 1
            activity_id = f"{name}-local-{count}"
        else:
            self.ordinals[activity_id] = ordinal = self.ordinals.get(activity_id, 0) + 1
        if activity_id in self.open:
            raise ValueError(
                f"Local activity id {activity_id!r} is in use by one that is not finished; choose another."
            )
        self.sequence = sequence = self.sequence + 1
        activity = OpenLocalActivity(
            sequence, call, args, activity_id, ordinal, payloads, self._loop.create_future(), self.epoch
        )
        self.open[activity_id] = activity
        return activity

    def start(self, call: LocalActivityCall, args: Sequence[Any]) -> StartedActivity:
        """Ask for a local activity and give its handle."""
        activity = self.ask(call, args)

        def on_early_cancel() -> None:
            if self._stop(activity) and not activity.future.done():
                activity.future.set_exception(self._cancelled_error(activity))

        handle = StartedActivity(
            self.result(activity), loop=self._loop, name=activity.activity_id, on_early_cancel=on_early_cancel
        )
        self._loop.adopt(handle)
        return handle

    async def result(self, activity: OpenLocalActivity) -> Any:
        """Wait for its outcome."""
        while True:
            try:
                payloads = await activity.future
            except CancelledActivityError:
                raise
            except asyncio.CancelledError:
                if activity.is_done:
                    raise
                if self._stop(activity):
                    error = self._cancelled_error(activity)
                    raise error from error.cause
                activity.future = self._loop.create_future()
            except _Backoff as backoff:
                await self._sleep(backoff.seconds, f"Back-off of {activity.activity_id}")
                activity.attempt = backoff.attempt
                activity.future = self._loop.create_future()
                activity.is_done = activity.is_told = False
                activity.epoch = self.epoch
                self.open[activity.activity_id] = activity
            else:
                return self.from_stored(payloads[0], activity.call.ret_type) if payloads else None

    def _remove(self, activity: OpenLocalActivity) -> None:
        activity.is_done = True
        self.open.pop(activity.activity_id, None)
        self._told.pop(activity.sequence, None)

    def _stop(self, activity: OpenLocalActivity) -> bool:
        """Stop one as its options say; say whether its outcome is not waited for."""
        kind = activity.call.cancellation_type
        is_handed_out = activity.epoch < self.epoch
        if kind is not _ABANDON and is_handed_out:
            self._cancelled.append(activity.sequence)
        if kind is _WAIT and is_handed_out:
            return False
        if is_handed_out:
            self._forgotten.append(activity.sequence)
            self.abandoned[activity.activity_id, activity.ordinal] = activity.call.activity
        self._remove(activity)
        return True

    # --- to and from the worker ----------------------------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """Whether one has no outcome yet."""
        return bool(self.open)

    @property
    def has_news(self) -> bool:
        """Whether there is anything to tell the worker."""
        if self._cancelled or self._forgotten:
            return True
        return bool(self.open) and not next(reversed(self.open.values())).is_told

    def take_requests(self) -> tuple[LocalActivityRequest, ...]:
        """Give what the worker has to run and has not been told yet."""
        new: list[LocalActivityRequest] = []
        told = self._told
        for activity in reversed(self.open.values()):
            if activity.is_told:
                break
            activity.is_told = True
            told[activity.sequence] = activity
            new.append(self._request(activity))
        new.reverse()
        return tuple(new)

    def _request(self, activity: OpenLocalActivity) -> LocalActivityRequest:
        call = activity.call
        if activity.payloads is None:
            activity.payloads = self._values.encode(activity.args, ARGUMENT, call.activity)
        return LocalActivityRequest(
            sequence=activity.sequence,
            activity_id=activity.activity_id,
            activity_type=call.activity,
            input=call.asked,
            payloads=activity.payloads,
            attempt=activity.attempt,
            ordinal=activity.ordinal,
        )

    def take_cancellations(self) -> tuple[int, ...]:
        """Give the sequence numbers of those that are to stop."""
        if not self._cancelled:
            return ()
        cancelled, self._cancelled = tuple(self._cancelled), []
        return cancelled

    def take_forgotten(self) -> tuple[int, ...]:
        """Give the sequence numbers of those whose outcome nobody waits for."""
        if not self._forgotten:
            return ()
        forgotten, self._forgotten = tuple(self._forgotten), []
        return forgotten

    def finish(self, outcome: LocalActivityOutcome) -> None:
        """Take the outcome of one in a batch, which is recorded with the other requests."""
        activity = self._told.get(outcome.sequence)
        if activity is None:
            return
        data = MarkerData(
            activity_id=activity.activity_id,
            activity_type=activity.call.activity,
            durable=BATCH,
            attempt=outcome.attempt,
            backoff_seconds=outcome.backoff.total_seconds() if outcome.backoff is not None else 0.0,
            ordinal=activity.ordinal,
        )
        self._ledger.add(RecordLocalActivity(data, outcome))
        self._settle(activity, outcome)

    def take_recorded(self, outcome: LocalActivityOutcome) -> None:
        """Take the outcome of a step, which is durable."""
        activity = self._told.get(outcome.sequence)
        if activity is not None:  # else it was cancelled by what was recorded together with it
            self._settle(activity, outcome)

    # --- from history --------------------------------------------------------------------------------------

    def apply_recorded(self, event: e.MarkerRecorded) -> None:
        """Settle the local activity that a marker within its task is of.

        Time goes on with a step. One of a batch reached the code before it was recorded, at the time of what came
        before.

        Raises:
            NondeterminismError: The code has not asked for it.
        """
        if event.marker_name == LOCAL_ACTIVITY_MARKER and event.failure is None and not self.abandoned:
            details, waiting = event.details, self.open
            data = decode_marker_data(details["data"][0])
            activity = waiting.get(data.activity_id)
            if (
                activity is not None
                and activity.ordinal == data.ordinal
                and activity.call.activity == data.activity_type
                and not data.backoff_seconds
            ):
                # The usual: the outcome of what the code waits for.
                if data.durable != BATCH:
                    self._loop.moment = event.event_time
                del waiting[data.activity_id]
                activity.is_done = True
                future = activity.future
                if not future.done():
                    future.set_result(details.get("result", ()))
                return
        if cast(MarkerData, marker_data(event)).durable != BATCH:
            self._loop.moment = event.event_time
        self.apply_marker(event, is_among_requests=False)

    def apply_marker(self, event: e.MarkerRecorded, *, is_among_requests: bool) -> None:
        """Settle the local activity that a marker is of.

        Args:
            event: The marker.
            is_among_requests: Whether it stands among the events of the task's commands, not between start and end.

        Raises:
            NondeterminismError: The code has not asked for it.
        """
        data = marker_data(event)
        assert data is not None, "only markers of local activities come here"
        activity = self.open.get(data.activity_id)
        if self.abandoned and self.abandoned.get((data.activity_id, data.ordinal)) == data.activity_type:
            return
        if activity is None or activity.call.activity != data.activity_type or activity.ordinal != data.ordinal:
            recorded = f"the outcome of local activity {data.activity_type!r} with id {data.activity_id!r}"
            raise self._mismatch(event.event_id, recorded, activity)
        result = event.details.get("result", ())
        outcome = LocalActivityOutcome(
            sequence=activity.sequence,
            result=result,
            failure=event.failure,
            attempt=data.attempt,
            backoff=timedelta(seconds=data.backoff_seconds) if data.backoff_seconds else None,
        )
        if is_among_requests:
            self._ledger.add(RecordLocalActivity(data, outcome))
        self._settle(activity, outcome)

    def check_end(self, event_id: int) -> None:
        """Make sure that the code waits for none at the end of a history whose last workflow task was completed.

        A task that leaves one open asks for the next task, so history would have that.

        Raises:
            NondeterminismError: It does.
        """
        if self.open:
            raise self._mismatch(event_id, "no local activity under way at the end", None)

    def _mismatch(self, event_id: int, recorded: str, found: OpenLocalActivity | None) -> NondeterminismError:
        open_ones = [found] if found is not None else list(self.open.values())
        named = [f"local activity {a.call.activity!r} with id {a.activity_id!r}" for a in open_ones[:NAMED_MAX]]
        attempted = ", ".join(named) or "no local activity"
        place = self._ledger.where()
        return NondeterminismError(
            f"Workflow code no longer fits its history at event {event_id}. Recorded: {recorded}. Attempted: "
            f"{attempted} at {place}. Put the former code back, or guard the change with workflow.patched(). "
            f"See {DOCS}.",
            event_id=event_id,
            recorded=recorded,
            attempted=attempted,
            source_line=place,
        )

    def _settle(self, activity: OpenLocalActivity, outcome: LocalActivityOutcome) -> None:
        failure = outcome.failure
        if failure is None and outcome.backoff is None and not outcome.is_cancelled:
            self._complete(activity, outcome.result)
            return
        self._remove(activity)
        future = activity.future
        if future.done():
            return
        if outcome.backoff is not None:
            future.set_exception(_Backoff(outcome.backoff.total_seconds(), outcome.attempt + 1))
        elif outcome.is_cancelled or (failure is not None and isinstance(failure.info, CanceledInfo)):
            future.set_exception(self._cancelled_error(activity))
        elif failure is not None:
            error = ActivityError("Local activity failed", **self._fields(activity, RetryState.NON_RETRYABLE_FAILURE))
            error.__cause__ = self._values.from_failure(failure)
            future.set_exception(error)

    def _complete(self, activity: OpenLocalActivity, result: Payloads) -> None:
        self._remove(activity)
        if not activity.future.done():
            activity.future.set_result(result)

    def _cancelled_error(self, activity: OpenLocalActivity) -> CancelledActivityError:
        error = CancelledActivityError(
            "Local activity cancelled", **self._fields(activity, RetryState.CANCEL_REQUESTED)
        )
        error.__cause__ = CancelledError("Local activity cancelled")
        return error

    @staticmethod
    def _fields(activity: OpenLocalActivity, retry_state: RetryState) -> dict[str, Any]:
        return {
            "scheduled_event_id": 0,
            "started_event_id": 0,
            "identity": "",
            "activity_type": activity.call.activity,
            "activity_id": activity.activity_id,
            "retry_state": retry_state,
        }
