"""Local steps take the express way at every length of history, but for the one that the code has to be told of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew.core.decisions import decide_start
from clew.core.express import Bounds
from clew.core.express_markers import is_usual_record
from clew.core.pending import PendingWorkflowTask
from clew.core.state import ExecutionState
from clew.model.commands import RecordMarker
from clew.model.inputs import RecordMarkersRequest, StartWorkflowRequest
from clew.model.limits import LIMITS_DEFAULT
from clew.model.rejection import Rejection

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUGGESTED = LIMITS_DEFAULT.history_events_suggest


def long_run(events_count: int) -> ExecutionState:
    request = StartWorkflowRequest(
        namespace="default", workflow_id="w", workflow_type="Some", task_queue="q", request_id="r"
    )
    decided = decide_start(request, run_id="one", now=NOW, key_generation="one")
    assert not isinstance(decided, Rejection)
    state, _ = decided
    state.next_event_id = events_count + 1
    return state


@pytest.mark.parametrize(
    ("events_count", "is_told", "expected"),
    [
        (10, False, True),
        (SUGGESTED - 2, False, True),
        (SUGGESTED - 1, False, False),
        (SUGGESTED + 1, False, False),
        (SUGGESTED - 1, True, True),
    ],
)
def test_a_run_that_was_told_to_continue_as_new_goes_on_as_fast(
    events_count: int, is_told: bool, expected: bool
) -> None:
    task = PendingWorkflowTask(
        scheduled_event_id=2,
        attempt=1,
        scheduled_time=NOW,
        start_to_close_timeout=timedelta(seconds=10),
        suggest_continue_as_new=is_told,
    )
    token: Any = None
    request = RecordMarkersRequest(token=token, markers=(RecordMarker(marker_name="m"),), after_event_id=events_count)
    bounds = Bounds.of(LIMITS_DEFAULT)
    assert is_usual_record(request, long_run(events_count), task, bounds) is expected


def test_bytes_are_bounded_alike() -> None:
    task = PendingWorkflowTask(
        scheduled_event_id=2, attempt=1, scheduled_time=NOW, start_to_close_timeout=timedelta(seconds=10)
    )
    token: Any = None
    request = RecordMarkersRequest(token=token, markers=(RecordMarker(marker_name="m"),), after_event_id=10)
    bounds, state = Bounds.of(LIMITS_DEFAULT), long_run(10)
    state.history_size_bytes = LIMITS_DEFAULT.history_bytes_suggest
    assert not is_usual_record(request, state, task, bounds)
    told = msgspec.structs.replace(task, suggest_continue_as_new=True)
    assert is_usual_record(request, state, told, bounds)
    state.history_size_bytes -= 1
    assert is_usual_record(request, state, task, bounds)
