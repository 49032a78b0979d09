"""How answers look to a program without our library: nothing is missing, nothing is wrapped, refusals are alike."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.middleware import Middleware

from clew.model.commands import CompleteWorkflowExecution, UpsertSearchAttributes
from clew.server.api.openapi import openapi_document
from clew.server.api.table import OPERATIONS
from clew.server.app import create_app
from clew.server.problems import problem_response
from clew.server.security.limits import rate_limited
from clew.server.security.origins import HostAndOriginMiddleware
from tests.conformance.service.scripted import payloads
from tests.server.conftest import API, Served
from tests.server.test_api import W1, problem, started

ATTRIBUTES = {
    "Customer": "ann",
    "Rank": 7,
    "Share": 0.5,
    "Vip": True,
    "Tags": ["a", "b"],
    "Due": {"type": "Datetime", "value": "2026-01-01T00:00:00Z"},
}
SHOWN = {
    "Customer": {"type": "Keyword", "value": "ann"},
    "Rank": {"type": "Int", "value": 7},
    "Share": {"type": "Double", "value": 0.5},
    "Vip": {"type": "Bool", "value": True},
    "Tags": {"type": "KeywordList", "value": ["a", "b"]},
    "Due": {"type": "Datetime", "value": "2026-01-01T00:00:00Z"},
}


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (f"{API}/workflows", "executions"),
        (f"{API}/deployments", "deployments"),
        (f"{API}/task-queues", "task_queues"),
        ("/api/v1/api-keys", "keys"),
    ],
)
async def test_an_empty_list_is_there(served: Served, path: str, key: str) -> None:
    answer = await served.http.get(path)
    assert answer.status_code == 200
    assert answer.json()[key] == []


async def test_lists_and_maps_within_an_answer_are_there(served: Served) -> None:
    await started(served)
    described = (await served.http.get(W1)).json()
    for key in ("pending_activities", "pending_timers", "pending_children"):
        assert described[key] == []
    (event, *_) = (await served.http.get(f"{W1}/history")).json()["events"]
    assert event["type"] == "WorkflowExecutionStarted"
    assert event["input"] == []
    terminated = await served.http.post(f"{W1}/terminate", json={"reason": "enough"})
    assert terminated.status_code == 204
    assert (await served.http.get(f"{W1}/result")).json()["result"] == []


async def test_search_attributes_are_values_with_types(served: Served) -> None:
    await started(served, search_attributes=ATTRIBUTES, input=[{"plain": 1}])
    listed = (await served.http.get(f"{API}/workflows")).json()["executions"]
    assert [run["search_attributes"] for run in listed] == [SHOWN]
    assert (await served.http.get(W1)).json()["info"]["search_attributes"] == SHOWN
    (event, *_) = (await served.http.get(f"{W1}/history")).json()["events"]
    assert event["search_attributes"] == SHOWN
    assert event["input"] == [{"plain": 1}]
    # What was shown can be given again, and means the same.
    assert (await started(served, "w2", search_attributes=SHOWN)).status_code == 201
    again = (await served.http.get(f"{API}/workflows/w2")).json()["info"]["search_attributes"]
    assert again == SHOWN


async def test_a_search_attribute_that_was_taken_away_is_null_in_history(served: Served) -> None:
    await started(served, search_attributes={"Rank": 7})
    worker = await served.worker()
    task = await worker.workflow_task()
    gone = {"Rank": payloads(None)[0]}
    await worker.complete(task, UpsertSearchAttributes(search_attributes=gone), CompleteWorkflowExecution())
    events = (await served.http.get(f"{W1}/history")).json()["events"]
    (upserted,) = [event for event in events if event["type"] == "UpsertWorkflowSearchAttributes"]
    assert list(upserted["search_attributes"]) == ["Rank"]
    assert upserted["search_attributes"]["Rank"] in (None, {"type": "Int", "value": None})


async def test_a_timeout_of_zero_is_none(served: Served) -> None:
    zero = {"workflow_execution_timeout": "P0D", "workflow_run_timeout": "PT0S", "workflow_task_timeout": "P0D"}
    assert (await started(served, **zero)).status_code == 201
    assert "workflow_execution_timeout" not in (await served.http.get(W1)).json()
    schemas: dict[str, Any] = openapi_document(OPERATIONS)["components"]["schemas"]
    told = schemas["StartWorkflow"]["properties"]["workflow_execution_timeout"]["description"]
    assert "Zero" in told
    assert "no limit" in told


async def test_what_is_refused_before_the_api_is_refused_in_its_manner(served: Served) -> None:
    places: dict[str, Any] = {"hosts": ["127.0.0.1"], "origins": []}
    served.http._transport.app = create_app(  # type: ignore[attr-defined]
        served.service, middleware=[Middleware(HostAndOriginMiddleware, **places)]
    )
    form = await served.http.post(f"{W1}/cancel", content=b"a=1", headers={"content-type": "text/plain"})
    assert "application/json" in problem(form, 415, "unsupported_media_type")
    host = await served.http.get(W1, headers={"host": "evil.example"})
    assert "allowed_hosts" in problem(host, 421, "unknown_host")
    origin = await served.http.get(W1, headers={"origin": "https://evil.example"})
    assert "allowed_origins" in problem(origin, 403, "foreign_origin")


async def test_nothing_redirects_to_an_address_of_the_servers_own_making(served: Served) -> None:
    for path in ("/", "/ui", "/ui/"):
        answer = await served.http.get(path)
        if answer.is_redirect:
            assert answer.headers["location"].startswith("/"), path
        else:
            assert answer.status_code == 200, path


@pytest.mark.parametrize(("seconds", "header"), [(0.009, "1"), (2.2, "3"), (5.0, "5")])
def test_when_to_come_again_is_told_in_whole_seconds(seconds: float, header: str) -> None:
    answer = problem_response(rate_limited(50, seconds), "r1")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, header)
