"""Every payload of a message goes through the codec, list by list, and nothing else changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from clew.model.commands import ScheduleActivityTask
from clew.model.events import ActivityTaskFailed, MarkerRecorded, UserMetadata, WorkflowExecutionStarted
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, QueryResult
from clew.worker._codecs import rewrite
from tests.unit.worker.fakes import NOW, token, workflow_task


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(f'"{text}"'.encode())


def hide(payloads: Any) -> Any:
    return tuple(msgspec.Raw(b'"hidden ' + bytes(payload)[1:]) for payload in payloads)


def payloads_in(value: Any) -> list[str]:
    found: list[str] = []

    def collect(payloads: Any) -> Any:
        found.extend(bytes(payload).decode() for payload in payloads)
        return payloads

    rewrite(value, collect)
    return found


def test_a_task_is_decoded_down_to_causes_and_markers() -> None:
    inner = Failure(message="inner", info=ApplicationInfo(details=(raw("d1"),)))
    outer = Failure(message="outer", info=ApplicationInfo(details=(raw("d2"),)), cause=inner)
    task = workflow_task(
        events=(
            WorkflowExecutionStarted(
                event_id=1,
                event_time=NOW,
                workflow_id="wf",
                workflow_type="W",
                task_queue="q",
                original_execution_run_id="r",
                first_execution_run_id="r",
                input=(raw("a1"), raw("a2")),
                memo={"m": raw("memo")},
                search_attributes={"s": raw("plain")},
            ),
            ActivityTaskFailed(event_id=2, event_time=NOW, scheduled_event_id=1, started_event_id=1, failure=outer),
            MarkerRecorded(event_id=3, event_time=NOW, marker_name="m", details={"data": (raw("x1"),)}),
        )
    )
    hidden = rewrite(task, hide)
    assert sorted(payloads_in(hidden)) == sorted(f'"hidden {name}"' for name in ("a1", "a2", "memo", "d1", "d2", "x1"))
    assert bytes(hidden.events[0].search_attributes["s"]) == b'"plain"'
    assert hidden.events[1].failure.cause.message == "inner"
    assert hidden.token is task.token


def test_commands_and_query_results_are_encoded() -> None:
    completion = CompleteWorkflowTaskRequest(
        token=token(),
        commands=(
            ScheduleActivityTask(
                activity_id="1",
                activity_type="a",
                task_queue="q",
                input=(raw("in"),),
                header={"h": raw("head")},
                start_to_close_timeout=timedelta(seconds=1),
                user_metadata=UserMetadata(summary=raw("sum")),
            ),
        ),
        query_results=(QueryResult(query_id="q", result=(raw("out"),)),),
    )
    assert sorted(payloads_in(rewrite(completion, hide))) == [
        '"hidden head"',
        '"hidden in"',
        '"hidden out"',
        '"hidden sum"',
    ]


def test_a_list_may_change_its_length() -> None:
    result = QueryResult(query_id="q", result=(raw("a"), raw("b")))
    merged = rewrite(result, lambda payloads: (raw("+".join(bytes(p).decode().strip('"') for p in payloads)),))
    assert payloads_in(merged) == ['"a+b"']


def test_what_holds_no_payload_stays_the_same_object() -> None:
    task = workflow_task()
    assert rewrite(task, hide) is task
