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
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, final

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


class LocalAttempt(Protocol):
    """What an attempt at a local activity knows beyond its task."""

    def make_key(self) -> str:
        """Give its idempotency key; made when somebody asks."""
        ...

    def times(self) -> tuple[datetime, datetime]:
        """Give when the local activity was asked for, and when this attempt began; from any thread."""
        ...

    def take(self, attempt: Attempt) -> None:
        """Take the report in place of the engine; on the service loop."""
        ...


@final
class Attempt:
    """One attempt.

    Args:
        task: What the engine handed over.
        definition: The function that runs it.
        started_at: When, on the service loop's clock.
        settle: Gives its slot back; called once, on the service loop.
    """

    # Written by the service loop. Most of what follows is never written, so it stands here and not in each attempt.
    deadline: float | None = None
    acked_at: float = 0.0
    beat: Heartbeat | None = None
    is_gone = False
    """The engine no longer counts on this attempt: nothing needs to be reported."""
    is_over = False
    local: LocalAttempt | None = None
    """Set for a local activity."""
    # Written by the side that runs the function.
    has_begun = False
    """Whether the task of an async function has come to it."""
    async_event: asyncio.Event | None = None
    async_task: asyncio.Task[Any] | None = None
    call: ThreadCall | None = None
    cancel_in_child: Callable[[ActivityCancellationDetails], None] | None = None
    kill_child: Callable[[], None] | None = None
    is_cancel_wanted = False
    is_returning = False
    """The function has ended; a cancellation would hit what comes after it."""
    report: ActivityReport | None = None
    """What is to be reported; None after the end means: nothing."""
    has_ended = False
    beat_details: Payloads | None = None
    """Details of a heartbeat that has not been sent yet."""
    is_beat_posted = False

    def __init__(
        self, task: ActivityTask, definition: _Definition, started_at: float, settle: Callable[[], None]
    ) -> None:
        self.task = task
        token = task.token
        self.key: AttemptKey = (token.shard, token.run_key, token.lease_id)
        self.definition = definition
        self.settle = settle
        # Each attempt is asked for these, and what an object has itself is read several times as fast. What most are
        # given later stands here too: what is new to a class of which many objects live makes a dictionary of each.
        self.beat = self.local = self.report = self.deadline = self.async_task = None
        self.is_gone = self.is_over = self.has_ended = self.is_cancel_wanted = self.has_begun = False
        self.started_at = self.acked_at = started_at

    @property
    def holder(self) -> _CancellationDetailsHolder:
        """Where the reasons to stop are written."""
        return cast("_CancellationDetailsHolder", self._once("_holder", _CancellationDetailsHolder))

    @property
    def cancelled_event(self) -> LazyEvent:
        """Set when it is to stop."""
        return cast("LazyEvent", self._once("_cancelled_event", LazyEvent))

    def _once(self, name: str, make: Callable[[], object]) -> object:
        """Give a part that both sides may ask for first, always the same one."""
        parts = vars(self)
        found = parts.get(name)
        return found if found is not None else parts.setdefault(name, make())

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
