"""The exported history."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from clew.client import WorkflowHistory
from clew.model import events as e

STARTED = e.WorkflowExecutionStarted(
    event_id=1,
    event_time=datetime(2024, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
    workflow_id="w",
    workflow_type="W",
    task_queue="q",
    original_execution_run_id="r-1",
    input=(msgspec.Raw(b"9007199254740993"), msgspec.Raw(b'{"$payload":{"metadata":{},"data":"AA=="}}')),
)
HISTORY = WorkflowHistory("w", [STARTED])


@pytest.mark.parametrize("indent", [None, 2])
def test_json_round_trip_keeps_every_event(indent: int | None) -> None:
    text = HISTORY.to_json(indent=indent)
    assert WorkflowHistory.from_json(None, text).to_json() == HISTORY.to_json()
    assert WorkflowHistory.from_json("other", text).workflow_id == "other"
    assert '"2024-03-01T12:00:00.000005Z"' in text
    assert "9007199254740993" in text


def test_dictionaries_work_as_well_as_text() -> None:
    assert WorkflowHistory.from_json("w", HISTORY.to_json_dict()) == HISTORY


def test_the_run_is_named_by_the_first_event() -> None:
    assert HISTORY.run_id == "r-1"
    with pytest.raises(ValueError, match="begins with nothing"):
        _ = WorkflowHistory("w", []).run_id


@pytest.mark.parametrize("text", ["", "[]", '{"events": 1}', '{"events": [{"type": "Nonsense"}]}', '{"a": 1}'])
def test_what_is_no_history_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(ValueError, match="not an exported history"):
        WorkflowHistory.from_json("w", text)
