"""Finished local steps, recorded in one pass: the express way of `core.markers.decide_record_markers`.

Owns: that decision for the usual markers on a plain run (``core.express``), and which are usual.
Never: differs from the general way in its outcome.
"""

from __future__ import annotations

from datetime import datetime

from clew.core.express import Bounds
from clew.core.pending import PendingWorkflowTask
from clew.core.state import FEW_ITEMS, ExecutionState
from clew.model import events as e
from clew.model.inputs import RecordMarkersRequest


def is_usual_record(
    request: RecordMarkersRequest, state: ExecutionState, task: PendingWorkflowTask, bounds: Bounds
) -> bool:
    """Whether the markers stand at the end of history, are few, and none has anything that a check could refuse.

    The one after which the run should continue as new is not: its task has to end, so that the next one says so.
    """
    markers = request.markers
    count, last_event_id = len(markers), state.next_event_id - 1
    if request.after_event_id != last_event_id or not 0 < count <= FEW_ITEMS:
        return False
    if (
        last_event_id + count >= bounds.events_suggest or state.history_size_bytes >= bounds.bytes_suggest
    ) and not task.suggest_continue_as_new:
        return False
    name_length_max, bytes_left = bounds.name_length_max, bounds.payload_bytes_max
    for marker in markers:
        name = marker.marker_name
        if marker.user_metadata is not None or not 0 < len(name) <= name_length_max or not name.isascii():
            return False
        for payloads in marker.details.values():
            bytes_left -= sum(map(len, payloads))
    return bytes_left >= 0


def record_markers(
    state: ExecutionState, task: PendingWorkflowTask, request: RecordMarkersRequest, now: datetime
) -> list[e.Event]:
    """Record the markers after all else; the time of the task runs anew."""
    event_id = state.next_event_id
    events: list[e.Event] = []
    for marker in request.markers:
        events.append(
            e.MarkerRecorded(
                event_id=event_id,
                event_time=now,
                marker_name=marker.marker_name,
                details=marker.details,
                header=marker.header,
                failure=marker.failure,
            )
        )
        event_id += 1
    state.next_event_id = event_id
    task.recorded_event_id = event_id - 1
    task.recorded_time = now
    return events
