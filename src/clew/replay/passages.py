"""Passages of a history: what belongs to which workflow task.

Owns: looking ahead in a list of events. Never: applies one (the machine does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from clew.model import events as e
from clew.replay.matching import COMMAND_EVENTS

Kinds: TypeAlias = list[type[e.Event]]
"""The types of a list of events: to look through them costs a tenth of looking at the events."""


def recorded_requests(events: Sequence[e.Event], kinds: Kinds, first: int) -> Sequence[Any]:
    """Give the events, from `first` on, that record the requests of one task."""
    last = first
    while last < len(kinds) and kinds[last] in COMMAND_EVENTS:
        last += 1
    return events[first:last]


def accepted_updates(recorded: Sequence[Any]) -> Sequence[Any]:
    """Give the updates that a task accepted, among the events of its requests."""
    return [event for event in recorded if isinstance(event, e.WorkflowExecutionUpdateAccepted)]


def next_of(kind: type[e.Event], kinds: Kinds, first: int) -> int:
    """Give the index, from `first` on, of the next event of a kind; else that after the last event."""
    try:
        return kinds.index(kind, first)
    except ValueError:
        return len(kinds)


def is_of_task(events: Sequence[e.Event], completed: int, started_event_id: int) -> bool:
    """Whether the completion at an index is that of the workflow task with this start."""
    if completed == len(events):
        return False
    event = events[completed]
    return isinstance(event, e.WorkflowTaskCompleted) and event.started_event_id == started_event_id


def is_last_recorded(kinds: Kinds, index: int) -> bool:
    """Whether nothing after the marker at an index tells of what the code did next."""
    return not any(kind is e.MarkerRecorded or kind is e.WorkflowTaskCompleted for kind in kinds[index + 1 :])


def brings_signals_next(kinds: Kinds, index: int) -> bool:
    """Whether the marker at an index is the last word of a task without an answer, and signals came before the next."""
    for later in range(index + 1, len(kinds)):
        kind = kinds[later]
        if kind is e.WorkflowExecutionSignaled:
            return True
        if kind is e.MarkerRecorded or kind is e.WorkflowTaskCompleted or kind is e.WorkflowTaskStarted:
            return False
    return False


def position_of(update: Any, task_event: e.WorkflowTaskStarted) -> int:
    """Give the event after which an update is applied."""
    position = (
        update.accepted_request_sequencing_event_id
        if isinstance(update, e.WorkflowExecutionUpdateAccepted)
        else update.sequencing_event_id
    )
    return position or task_event.event_id - 1
