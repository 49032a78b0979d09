"""What a decision gives: a transition, or a rejection.

Owns: `Transition` and the effects it may ask for. Never: performs one (``engine`` does, after the commit).

How it works: a decision *owns* the state it is given. When it answers with a transition, the state has been moved
forward in place by exactly the transition's events (through ``evolve``) and facts without events; when it answers with
a `Rejection`, the state is as it was. Decisions can follow one another on the same state before anything is committed:
the shell then merges their transitions with `Transition.absorb`, and commits them as one.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from clew.model.events import Event, ExecutionRef, UpdateOutcome
from clew.model.policies import WorkflowExecutionStatus


class _Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Base of the effects."""


class WorkflowTaskReady(_Effect, frozen=True, kw_only=True):
    """A workflow task is scheduled and wants a worker; `sticky_session` is the session that has the run cached."""

    task_queue: str
    scheduled_event_id: int
    attempt: int
    sticky_session: str = ""


class ActivityTaskReady(_Effect, frozen=True, kw_only=True):
    """An attempt of an activity wants a worker."""

    task_queue: str
    scheduled_event_id: int
    attempt: int
    priority: int = 3


class ActivityCancelWanted(_Effect, frozen=True, kw_only=True):
    """A running attempt should be told to stop. `reason` is a value of ``service.requests.ActivityCancelReason``."""

    scheduled_event_id: int
    attempt: int
    lease_id: int
    session: str
    reason: str


class WorkflowTaskDropped(_Effect, frozen=True, kw_only=True):
    """The lease of a started workflow task ended without an answer (timed out, forced)."""

    lease_id: int
    session: str


class StartChild(_Effect, frozen=True, kw_only=True):
    """Start the child that event `initiated_event_id` names."""

    initiated_event_id: int


class SignalExternal(_Effect, frozen=True, kw_only=True):
    """Send the signal that event `initiated_event_id` names."""

    initiated_event_id: int


class CancelExternal(_Effect, frozen=True, kw_only=True):
    """Send the cancel request that event `initiated_event_id` names."""

    initiated_event_id: int


class ApplyParentClosePolicy(_Effect, frozen=True, kw_only=True):
    """The run closed: terminate or cancel this child. `policy` is a value of ``ParentClosePolicy``."""

    child: ExecutionRef
    policy: str


class ReportChild(_Effect, frozen=True, kw_only=True):
    """The run waits, since a reset, for a child that another run started: let that begin if it has not, and record its
    end if it has ended."""

    initiated_event_id: int


class NotifyParent(_Effect, frozen=True, kw_only=True):
    """Tell the parent that this child was started (`closing` is None) or has ended with that event."""

    parent: ExecutionRef
    initiated_event_id: int
    closing: Event | None = None


class UpdateSettled(_Effect, frozen=True, kw_only=True):
    """An update was accepted (`outcome` is None), or ended. `rejected`: it left nothing in history; without an outcome,
    because the run closed before it had accepted the update."""

    update_id: str
    outcome: UpdateOutcome | None = None
    rejected: bool = False


class RunClosed(_Effect, frozen=True, kw_only=True):
    """The run closed."""

    status: WorkflowExecutionStatus


Effect: TypeAlias = (
    WorkflowTaskReady
    | ActivityTaskReady
    | ActivityCancelWanted
    | WorkflowTaskDropped
    | StartChild
    | SignalExternal
    | CancelExternal
    | ApplyParentClosePolicy
    | ReportChild
    | NotifyParent
    | UpdateSettled
    | RunClosed
)

ITEM_ACTIVITY: Final = 1
ITEM_TIMER: Final = 2
ITEM_CHILD: Final = 3
ITEM_SIGNAL: Final = 4
ITEM_CANCEL: Final = 5
ITEM_UPDATE: Final = 6
"""Kinds of pending items; the item id is the id of the event that made it."""


class Transition(msgspec.Struct, gc=False, kw_only=True):
    """The facts and effects of one input, to be committed together.

    Args:
        events: New events, dense, in order. Empty when only facts without events changed (an attempt started).
        effects: What the shell does once this is durable, in order.
        dirty_items: ``(kind, item_id)`` of pending items that were added, changed or removed.
        new_run: For continue-as-new, retry, cron and reset: the state of the run that follows, and its own transition,
            to be committed in the same unit.
        reply: What the caller gets (decision-specific).
    """

    events: list[Event] = []
    effects: list[Effect] = []
    dirty_items: set[tuple[int, int]] = set()
    new_run: tuple[Any, Transition] | None = None
    reply: Any = None

    def absorb(self, later: Transition) -> None:
        """Make this transition cover also what was decided after it on the same state."""
        self.events.extend(later.events)
        self.effects.extend(later.effects)
        self.dirty_items |= later.dirty_items
        if later.new_run is not None:
            self.new_run = later.new_run
        if later.reply is not None:
            self.reply = later.reply
