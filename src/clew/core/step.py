"""One transition in the making: the only hand that adds events to a run.

Owns: `Step`, which appends or buffers events, and the flush of the buffer (semantics 2.4, rules 2 to 4).
Never: decides which events there are.

How it works: *command-made* events, workflow-task events and closes are appended at once. *Outside* events (signals,
outcomes of activities, timers, …) are appended unless a worker holds the workflow task: then they are buffered, without
an id, and get one when the task ends, after the events of its commands. At the flush, outcomes of activities and
children go behind everything else, which keeps its order of arrival.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from clew.core.evolve import evolve
from clew.core.state import WIDE_ITEMS, ExecutionState
from clew.core.transition import ITEM_ACTIVITY, ITEM_CHILD, Effect, Transition
from clew.model import events as e
from clew.model.limits import Limits

OUTCOME_EVENTS: Final = frozenset(
    {
        e.ActivityTaskCompleted,
        e.ActivityTaskFailed,
        e.ActivityTaskTimedOut,
        e.ActivityTaskCanceled,
        e.ChildWorkflowExecutionCompleted,
        e.ChildWorkflowExecutionFailed,
        e.ChildWorkflowExecutionCanceled,
        e.ChildWorkflowExecutionTimedOut,
        e.ChildWorkflowExecutionTerminated,
    }
)
"""Events that go behind the others when the buffer is flushed; each names the event that started what it ends."""

_encoder: Final = msgspec.json.Encoder()


class Step:
    """See the module docstring.

    Attributes:
        state: The run, already moved by everything in `events`.
        now: The instant of this transition.
    """

    __slots__ = ("dirty", "effects", "events", "limits", "new_run", "now", "reply", "state")

    def __init__(self, state: ExecutionState, now: datetime, limits: Limits) -> None:
        self.state = state
        self.now = now
        self.limits = limits
        self.events: list[e.Event] = []
        self.effects: list[Effect] = []
        self.dirty: set[tuple[int, int]] = set()
        self.new_run: tuple[ExecutionState, Transition] | None = None
        self.reply: Any = None

    def append(self, event: e.Event) -> None:
        """Add an event that has the next id."""
        touched = evolve(self.state, event)
        self.events.append(event)
        if touched is not None:
            self.dirty.add(touched)

    @property
    def outside_event_id(self) -> int:
        """The id for the next outside event: 0 while it would be buffered."""
        task = self.state.workflow_task
        return 0 if task is not None and task.started_event_id else self.state.next_event_id

    def record(self, event: e.Event) -> None:
        """Add an outside event that was given `outside_event_id`: at once, or to the buffer."""
        if event.event_id:
            self.append(event)
            return
        state = self.state
        state.buffered_events.append(event)
        state.buffered_bytes += len(_encoder.encode(event))

    def flush(self) -> bool:
        """Give ids to the buffered events; whether there were any."""
        state = self.state
        buffered = state.buffered_events
        if not buffered:
            return False
        state.buffered_events = []
        state.buffered_bytes = 0
        late: list[e.Event] = []
        for event in buffered:
            if type(event) in OUTCOME_EVENTS:
                late.append(event)
            else:
                self.append(msgspec.structs.replace(event, event_id=state.next_event_id))
        for event in late:
            self.append(self._wired(event))
        return True

    def _wired(self, event: Any) -> Any:
        state = self.state
        if isinstance(
            event, e.ActivityTaskCompleted | e.ActivityTaskFailed | e.ActivityTaskTimedOut | e.ActivityTaskCanceled
        ):
            started_event_id = state.activities[event.scheduled_event_id].started_event_id
        else:
            started_event_id = state.children[event.initiated_event_id].started_event_id
        return msgspec.structs.replace(event, event_id=state.next_event_id, started_event_id=started_event_id)

    def touch_activity(self, scheduled_event_id: int) -> None:
        """Note that an activity changed without an event."""
        self.dirty.add((ITEM_ACTIVITY, scheduled_event_id))

    def touch_child(self, initiated_event_id: int) -> None:
        """Note that a child changed without an event."""
        self.dirty.add((ITEM_CHILD, initiated_event_id))

    def transition(self) -> Transition:
        """What was decided."""
        state = self.state
        if self.dirty and not state.is_wide and state.pending_item_count > WIDE_ITEMS:
            state.is_wide = True
        return Transition(
            events=self.events,
            effects=self.effects,
            dirty_items=self.dirty,
            new_run=self.new_run,
            reply=self.reply,
        )
