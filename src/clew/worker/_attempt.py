"""One attempt of an activity on this worker, as both of its sides see it.

Owns: `Attempt`, with what the user's side and the service loop tell each other. Never: decides when to cancel or
    report.

How it works: the attempt is made on the service loop and handed to the side that runs the function; from there it comes
back with a report. Each field below says which side writes it. Events are made when somebody waits for them, as most
attempts never do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from clew.activity._context import ActivityCancellationDetails, _CancellationDetailsHolder
from clew.activity._definition import _Definition
from clew.model.inputs import CancelActivityRequest, CompleteActivityRequest, FailActivityRequest, TaskToken
from clew.model.payload import Payloads
from clew.service.requests import ActivityTask
from clew.worker._thread_calls import ThreadCall

if TYPE_CHECKING:
    from clew.worker._heartbeats import Heartbeat

ActivityReport: TypeAlias = CompleteActivityRequest | FailActivityRequest | CancelActivityRequest | TaskToken
"""A bare token says: the outcome comes from elsewhere."""

AttemptKey: TypeAlias = tuple[int, int, int]
NO_DETAILS: Final = ActivityCancellationDetails()


def key_of(token: TaskToken) -> AttemptKey:
    """Give what names an attempt among those of a worker: the lease is unique within its run."""
    return (token.shard, token.run_key, token.lease_id)


@final
class LazyEvent:
    """A `threading.Event` that costs nothing until somebody waits for it."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        if self._event is None:
            self._event = threading.Event()
            if self.is_set():
                # `set` came between the two looks.
                return True
        return self._event.wait(timeout)


@final
class Attempt:
    """One attempt.

    Args:
        task: What the engine handed over.
        definition: The function that runs it.
        settle: Gives its slot back; called once, on the service loop.
    """

    __slots__ = (
        "acked_at",
        "async_event",
        "async_task",
        "beat",
        "beat_details",
        "call",
        "cancel_in_child",
        "cancelled_event",
        "deadline",
        "definition",
        "has_ended",
        "holder",
        "is_beat_posted",
        "is_cancel_wanted",
        "is_gone",
        "is_over",
        "is_returning",
        "key",
        "kill_child",
        "make_key",
        "on_end",
        "report",
        "settle",
        "started_at",
        "task",
    )

    def __init__(
        self, task: ActivityTask, definition: _Definition, started_at: float, settle: Callable[[], None]
    ) -> None:
        self.task = task
        self.key = key_of(task.token)
        self.definition = definition
        self.settle = settle
        self.holder = _CancellationDetailsHolder()
        self.cancelled_event = LazyEvent()
        # Written by the service loop.
        self.started_at = started_at
        self.deadline: float | None = None
        self.acked_at = started_at
        self.beat: Heartbeat | None = None
        self.is_gone = False
        """The engine no longer counts on this attempt: nothing needs to be reported."""
        self.is_over = False
        # Written by the side that runs the function.
        self.async_event: asyncio.Event | None = None
        self.async_task: asyncio.Task[Any] | None = None
        self.call: ThreadCall | None = None
        self.cancel_in_child: Callable[[ActivityCancellationDetails], None] | None = None
        self.kill_child: Callable[[], None] | None = None
        self.is_cancel_wanted = False
        self.is_returning = False
        """The function has ended; a cancellation would hit what comes after it."""
        self.report: ActivityReport | None = None
        """What is to be reported; None after the end means: nothing."""
        self.has_ended = False
        self.on_end: Callable[[Attempt], None] | None = None
        """Takes the report in place of the engine, for a local activity."""
        self.make_key: Callable[[], str] | None = None
        """Makes its idempotency key, for a local activity."""
        self.beat_details: Payloads | None = None
        """Details of a heartbeat that has not been sent yet."""
        self.is_beat_posted = False

    def __str__(self) -> str:
        """Name the attempt for people."""
        task = self.task
        return (
            f"activity {task.activity_type} (id {task.activity_id}, attempt {task.attempt}) of {task.token.workflow_id}"
        )

    def note_cancel(self, details: ActivityCancellationDetails) -> bool:
        """Write down a reason to stop; gives whether it is the first."""
        known = self.holder.details
        if known is None:
            self.holder.details = details
            return True
        added = {name: True for name, value in vars(details).items() if value}
        self.holder.details = replace(known, **added)
        return False

    @property
    def cancellation(self) -> ActivityCancellationDetails:
        """Why it is to stop; nothing set when it is not."""
        return self.holder.details or NO_DETAILS
