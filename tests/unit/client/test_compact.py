"""The compact form of a history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew.client import compact_history, format_compact_history
from clew.model import events as e
from clew.model.compact import _HANDLERS, LEFT_OUT, format_duration
from clew.model.failure import ApplicationInfo, Failure

START = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)


def at(event_id: int, seconds: float) -> dict[str, Any]:
    return {"event_id": event_id, "event_time": START + timedelta(seconds=seconds)}


def started() -> e.WorkflowExecutionStarted:
    return e.WorkflowExecutionStarted(
        **at(1, 0), workflow_id="claim-1", workflow_type="Claim", task_queue="claims", input=(msgspec.Raw(b'{"n":1}'),)
    )


HISTORY: list[e.Event] = [
    started(),
    e.WorkflowTaskScheduled(**at(2, 0), task_queue="claims", start_to_close_timeout=timedelta(seconds=10)),
    e.WorkflowTaskStarted(**at(3, 0), scheduled_event_id=2),
    e.WorkflowTaskCompleted(**at(4, 0), scheduled_event_id=2, started_event_id=3),
    e.ActivityTaskScheduled(**at(5, 0), activity_id="pay-1", activity_type="pay", task_queue="claims"),
    e.TimerStarted(**at(6, 0), timer_id="1", start_to_fire_timeout=timedelta(days=2)),
    e.WorkflowExecutionSignaled(**at(7, 1), signal_name="photos", input=(msgspec.Raw(b"3"),)),
    e.ActivityTaskStarted(**at(8, 2), scheduled_event_id=5, attempt=3),
    e.ActivityTaskCompleted(**at(9, 4), scheduled_event_id=5, started_event_id=8, result=(msgspec.Raw(b'"receipt"'),)),
    e.TimerCanceled(**at(10, 4), timer_id="1", started_event_id=6),
    e.ActivityTaskScheduled(**at(11, 4), activity_id="send-1", activity_type="send", task_queue="claims"),
    e.WorkflowExecutionCompleted(**at(12, 5), result=(msgspec.Raw(b'"paid"'),)),
]


def test_pairs_are_one_line_and_workflow_tasks_are_folded_away() -> None:
    lines = compact_history(HISTORY)
    assert [(line.event_id, line.kind, line.name, line.outcome) for line in lines] == [
        (1, "workflow", "Claim", "started"),
        (5, "activity", "pay", "completed"),
        (6, "timer", "2d00h", "canceled"),
        (7, "signal", "photos", "received"),
        (11, "activity", "send", "abandoned"),
        (12, "workflow", "", "completed"),
    ]
    pay = lines[1]
    assert (pay.attempts, pay.duration, pay.detail, pay.last_event_id) == (3, timedelta(seconds=4), '"receipt"', 9)


def test_a_local_step_is_named_by_its_activity() -> None:
    data = msgspec.Raw(b'{"activity_id":"price-local-1","activity_type":"price"}')
    failure = Failure(message="no price", info=ApplicationInfo(type="NoPrice"))
    lines = compact_history(
        [
            started(),
            e.MarkerRecorded(
                **at(2, 1),
                marker_name="core_local_activity",
                details={"data": (data,), "result": (msgspec.Raw(b"17"),)},
            ),
            e.MarkerRecorded(**at(3, 2), marker_name="core_local_activity", details={"data": (data,)}, failure=failure),
            e.MarkerRecorded(
                **at(4, 3), marker_name="core_local_activity", details={"data": (msgspec.Raw(b'"secret"'),)}
            ),
            e.MarkerRecorded(**at(5, 3), marker_name="core_patch"),
        ]
    )
    assert [(line.kind, line.name, line.outcome, line.detail) for line in lines[1:]] == [
        ("local step", "price", "completed", "17"),
        ("local step", "price", "failed", lines[2].detail),
        ("local step", "core_local_activity", "completed", ""),
        ("marker", "core_patch", "recorded", ""),
    ]
    assert "no price" in lines[2].detail


def test_what_is_not_over_is_pending() -> None:
    assert compact_history(HISTORY[:6])[-1].outcome == "pending"


def test_the_text_says_how_often_and_how_long() -> None:
    text = format_compact_history(HISTORY)
    assert "activity pay" in text
    assert "completed after 3 attempts in 4.0s" in text
    assert text.splitlines()[0].split() == ["1", "+0ms", "workflow", "Claim", "started", '{"n":1}']


def test_a_failure_is_told_with_its_causes() -> None:
    cause = Failure(message="no money", info=ApplicationInfo(type="Refused"))
    failed = e.WorkflowExecutionFailed(**at(2, 1), failure=Failure(message="activity failed", cause=cause))
    assert compact_history([started(), failed])[-1].detail == "activity failed ← Refused: no money"


def test_a_failing_workflow_task_is_shown_but_a_normal_race_is_not() -> None:
    def task_failed(cause: e.WorkflowTaskFailedCause) -> e.WorkflowTaskFailed:
        return e.WorkflowTaskFailed(**at(4, 0), scheduled_event_id=2, started_event_id=3, cause=cause)

    bad = compact_history([task_failed(e.WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR)])
    assert [(line.kind, line.name) for line in bad] == [("task", "NonDeterministicError")]
    assert compact_history([task_failed(e.WorkflowTaskFailedCause.UNHANDLED_COMMAND)]) == []


def test_every_event_type_has_its_line_or_is_left_out_on_purpose() -> None:
    assert set(_HANDLERS) | set(LEFT_OUT) == set(e.EVENT_NUMBERS)
    assert not set(_HANDLERS) & set(LEFT_OUT)


def test_binary_payloads_are_named_not_printed() -> None:
    stored = msgspec.Raw(b'{"$payload":{"metadata":{"encoding":"YmluYXJ5L3BsYWlu"},"data":"AAEC"}}')
    signal = e.WorkflowExecutionSignaled(**at(2, 0), signal_name="raw", input=(stored,))
    assert compact_history([signal])[0].detail == "<binary/plain, 3 bytes>"


def test_long_details_are_cut_to_one_line() -> None:
    stored = msgspec.Raw(msgspec.json.encode("x\n" * 500))
    detail = compact_history([e.WorkflowExecutionSignaled(**at(2, 0), signal_name="s", input=(stored,))])[0].detail
    assert len(detail) <= 72
    assert detail.endswith("…")


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(milliseconds=850), "850ms"),
        (timedelta(seconds=4.25), "4.2s"),
        (timedelta(minutes=3, seconds=5), "3m05s"),
        (timedelta(hours=2, minutes=10), "2h10m"),
        (timedelta(days=5, hours=3), "5d03h"),
    ],
)
def test_durations_are_told_in_the_units_that_matter(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text
