"""The HTTP API: each thing the contract can, over HTTP; and what it says to requests that are wrong."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from clew.model.commands import CompleteWorkflowExecution, ScheduleActivityTask
from clew.model.failure import ApplicationInfo
from clew.model.policies import DeploymentVersion
from clew.server.api import sse
from clew.server.streams import Streams
from clew.service import requests as r
from clew.service.tokens import encode_task_token
from tests.conformance.service.scripted import ScriptedWorker, payloads, soon
from tests.server.conftest import API, Served

W1 = f"{API}/workflows/w1"


async def started(served: Served, workflow_id: str = "w1", **fields: Any) -> httpx.Response:
    body = {"workflow_id": workflow_id, "workflow_type": "W", "task_queue": "q", **fields}
    return await served.http.post(f"{API}/workflows", json=body)


def problem(response: httpx.Response, status: int, code: str) -> str:
    """Check that it is a problem document, and give what it says."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["code"] == code
    assert found["status"] == status
    assert found["type"] == f"urn:clew:problem:{code}"
    assert found["request_id"] == response.headers["x-request-id"]
    detail: str = found["detail"]
    return detail


# --- runs ------------------------------------------------------------------------------------------------------------


async def test_a_run_from_start_to_result(served: Served) -> None:
    answer = await started(served, input=[1, {"a": "ü"}, None])
    assert answer.status_code == 201
    run_id = answer.json()["run_id"]
    worker = await served.worker()
    task = await worker.workflow_task()
    assert [bytes(payload) for payload in task.events[0].input] == [b"1", b'{"a":"\xc3\xbc"}', b"null"]
    open_result = await served.http.get(f"{W1}/result")
    assert (open_result.status_code, open_result.json()["status"]) == (202, "Running")
    waiting = asyncio.ensure_future(served.http.get(f"{W1}/result", params={"wait": 30}))
    await worker.complete(task, CompleteWorkflowExecution(result=payloads({"paid": 7})))
    closed = await soon(waiting)
    assert closed.status_code == 200
    assert closed.json() == {"run_id": run_id, "status": "Completed", "result": [{"paid": 7}]}
    described = (await served.http.get(W1)).json()
    assert described["info"]["status"] == "Completed"


async def test_an_id_may_hold_any_character(served: Served) -> None:
    for workflow_id in ("a/b", "100%", "x?y#z", "ü 中", "..", "a%2Fb"):
        assert (await started(served, workflow_id)).status_code == 201
        quoted = httpx.URL("/", params={"i": workflow_id}).query.decode()[2:].replace("+", "%20")
        quoted = quoted.replace("/", "%2F").replace("?", "%3F").replace(".", "%2E")
        found = await served.http.get(f"{API}/workflows/{quoted}")
        assert found.json()["info"]["workflow_id"] == workflow_id


async def test_a_repeated_start_is_one_start(served: Served) -> None:
    body = {"workflow_id": "w1", "workflow_type": "W", "task_queue": "q"}
    answers = [
        await served.http.post(f"{API}/workflows", json=body, headers={"Idempotency-Key": "order-7"}) for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    problem(await started(served), 409, "workflow_already_started")
    other = await served.http.post(
        f"{API}/workflows", json={**body, "request_id": "x"}, headers={"Idempotency-Key": "y"}
    )
    assert "Give one of them" in problem(other, 400, "invalid_argument")
    too_long = await served.http.post(f"{API}/workflows", json=body, headers={"Idempotency-Key": "k" * 256})
    problem(too_long, 400, "invalid_argument")


async def test_a_repeated_signal_is_one_signal(served: Served) -> None:
    await started(served)
    for _ in range(2):
        body = {"signal_name": "photo", "input": [1]}
        answer = await served.http.post(f"{W1}/signal", json=body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.content) == (204, b"")
    assert (await served.event_types()).count("WorkflowExecutionSignaled") == 1


async def test_signal_with_start_starts_once_and_then_signals(served: Served) -> None:
    body = {"start": {"workflow_type": "W", "task_queue": "q"}, "signal_name": "s", "signal_input": ["x"]}
    first = await served.http.post(f"{W1}/signal-with-start", json=body)
    second = await served.http.post(f"{W1}/signal-with-start", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (await served.event_types()).count("WorkflowExecutionSignaled") == 2


async def test_a_query_and_an_update_are_answered_by_a_worker(served: Served) -> None:
    await started(served)
    worker = await served.worker()
    await worker.complete(await worker.workflow_task())
    asked = asyncio.ensure_future(served.http.post(f"{W1}/query", json={"query_type": "state", "query_args": [3]}))
    question = (await worker.workflow_task()).query
    assert question is not None
    assert question.query_args == payloads(3)
    task = worker_task(worker)
    await served.engine.answer_query(
        r.AnswerQueryRequest(
            token=task.token, result=r.QueryResult(query_id=question.query_id, result=payloads("open"))
        )
    )
    assert (await soon(asked)).json() == {"result": ["open"]}
    sent = asyncio.ensure_future(
        served.http.post(f"{W1}/update", json={"name": "approve", "input": [True], "update_id": "u1"})
    )
    message = (task := await worker.workflow_task()).messages[0]
    assert (message.request.update_id, message.request.input) == ("u1", payloads(True))
    await worker.complete(
        task,
        rejections=(
            r.UpdateRejection(
                message_id=message.message_id,
                update_id="u1",
                failure=r.Failure(message="no", info=ApplicationInfo(type="Refused")),
            ),
        ),
    )
    refused = (await soon(sent)).json()
    assert refused["stage"] == "Completed"
    assert refused["outcome"]["failure"]["message"] == "no"
    problem(await served.http.get(f"{W1}/updates/u9", params={"wait_stage": "Accepted"}), 404, "update_not_found")


def worker_task(worker: ScriptedWorker) -> r.WorkflowTask:
    """The task that was taken last."""
    return worker.taken[-1]


async def test_cancel_terminate_and_what_is_left(served: Served) -> None:
    await started(served)
    assert (await served.http.post(f"{W1}/cancel", json={"reason": "late"})).status_code == 204
    assert (await served.http.get(W1)).json()["cancel_requested"] is True
    assert (await served.http.post(f"{W1}/terminate", json={"reason": "enough"})).status_code == 204
    ended = (await served.http.get(f"{W1}/result")).json()
    assert (ended["status"], ended["reason"]) == ("Terminated", "enough")
    again = await served.http.post(f"{W1}/signal", json={"signal_name": "s"})
    problem(again, 404, "workflow_already_completed")


async def test_a_closed_run_can_be_deleted(served: Served) -> None:
    await started(served)
    problem(await served.http.delete(W1), 409, "workflow_not_closed")
    assert (await served.http.post(f"{W1}/terminate", json={})).status_code == 204
    run_id = (await served.http.get(W1)).json()["info"]["run_id"]
    problem(await served.http.delete(W1, params={"run_id": "another"}), 404, "workflow_not_found")
    deleted = await served.http.delete(W1, params={"run_id": run_id})
    assert (deleted.status_code, deleted.json()) == (200, {"run_id": run_id})
    problem(await served.http.get(W1), 404, "workflow_not_found")
    problem(await served.http.delete(W1), 404, "workflow_not_found")


async def test_lists_counts_and_pages(served: Served) -> None:
    for number in range(5):
        await started(served, f"w{number}", search_attributes={"Customer": "x" if number % 2 else "y", "Rank": number})
    pages: list[list[str]] = []
    token = ""
    while True:
        page = (await served.http.get(f"{API}/workflows", params={"page_size": 2, "page_token": token})).json()
        pages.append([run["workflow_id"] for run in page["executions"]])
        token = page.get("next_page_token", "")
        if not token:
            break
    assert pages == [["w4", "w3"], ["w2", "w1"], ["w0"]]
    found = await served.http.get(f"{API}/workflows", params={"query": "Customer = 'x' AND Rank > 1"})
    assert [run["workflow_id"] for run in found.json()["executions"]] == ["w3"]
    counted = await served.http.get(f"{API}/workflow-count", params={"query": "Customer = 'y'"})
    assert counted.json() == {"count": 3, "groups": {"Running": 3}}
    problem(await served.http.get(f"{API}/workflows", params={"query": "Nope ="}), 400, "invalid_argument")
    problem(await served.http.get(f"{API}/workflows", params={"page_token": "zzz"}), 400, "invalid_argument")


async def test_an_unchanged_answer_is_not_sent_again(served: Served) -> None:
    await started(served)
    first = await served.http.get(W1)
    tag = first.headers["etag"]
    same = await served.http.get(W1, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    await served.signal("s")
    assert (await served.http.get(W1, headers={"If-None-Match": tag})).status_code == 200
    head = await served.http.head(W1)
    assert head.status_code == 200
    assert head.headers["etag"] != tag


# --- streams ---------------------------------------------------------------------------------------------------------


def messages(text: str) -> list[tuple[str, str, Any]]:
    """The messages of a stream: id, kind, data."""
    found: list[tuple[str, str, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id", ""), fields["event"], msgspec.json.decode(fields["data"])))
    return found


async def test_a_stream_tells_all_events_and_ends_with_the_run(served: Served) -> None:
    await started(served, input=["a\nb"])
    following = asyncio.ensure_future(served.http.get(f"{W1}/stream"))
    await served.signal("s")
    await served.http.post(f"{W1}/terminate", json={})
    told = messages((await soon(following)).text)
    assert [kind for _, kind, _ in told] == ["event"] * (len(told) - 1) + ["end"]
    assert [data["type"] for _, _, data in told[:-1]] == await served.event_types()
    assert [int(id_) for id_, _, _ in told[:-1]] == list(range(1, len(told)))
    assert told[-1][2]["reason"] == "closed"
    again = await soon(served.http.get(f"{W1}/stream", headers={"Last-Event-ID": "2"}))
    assert messages(again.text) == told[2:]


async def test_streams_end_when_the_server_stops_and_are_bounded(served: Served) -> None:
    streams = Streams(1)
    await served.serve(streams=streams)
    await started(served)
    following = asyncio.ensure_future(served.http.get(f"{W1}/stream"))
    listing = f"{API}/workflow-stream"
    while streams.count == 0:
        await asyncio.sleep(0)
    problem(await served.http.get(listing), 429, "limit_exceeded")
    streams.stop()
    assert messages((await soon(following)).text)[-1][2]["reason"] == "stopping"
    problem(await served.http.get(listing), 503, "unavailable")
    assert (await served.http.get("/readyz")).status_code == 503
    assert (await served.http.get("/healthz")).status_code == 200


async def test_a_stream_of_a_list_tells_what_is_new_what_changed_and_what_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.01)
    streams = Streams(1)
    request = r.ListWorkflowsRequest(namespace="default", query="ExecutionStatus = 'Running'")
    await started(served, "w1")
    first = await served.engine.list_workflows(request)
    stream = sse._list_messages(served.engine, streams, request, first)

    async def told() -> tuple[str, Any]:
        message = messages((await soon(anext(stream))).decode())[0]
        return message[1], message[2].get("workflow_id", message[2].get("run_id", message[2].get("reason")))

    assert await told() == ("run", "w1")
    await started(served, "w2")
    assert await told() == ("run", "w2")
    await served.signal("s")
    assert await told() == ("run", "w1")
    await served.http.post(f"{W1}/terminate", json={})
    assert await told() == ("gone", first.executions[0].run_id)
    streams.stop()
    assert await told() == ("end", "stopping")


# --- activities that end elsewhere -----------------------------------------------------------------------------------


async def pending_activity(served: Served) -> r.ActivityTask:
    await started(served)
    worker = await served.worker()
    command = ScheduleActivityTask(activity_id="a/1", activity_type="a", start_to_close_timeout=timedelta(hours=1))
    await worker.complete(await worker.workflow_task(), command)
    task = await worker.activity_task()
    await soon(served.engine.detach_activity(task.token))
    return task


async def test_an_activity_is_completed_by_ids(served: Served) -> None:
    await pending_activity(served)
    activity = f"{W1}/activities/a%2F1"
    beat = await served.http.post(f"{activity}/heartbeat", json={"details": [50]})
    assert beat.json() == {}
    done = await served.http.post(f"{activity}/complete", json={"result": [{"ok": True}]})
    assert done.status_code == 204
    problem(await served.http.post(f"{activity}/complete", json={}), 404, "activity_not_found")
    assert "ActivityTaskCompleted" in await served.event_types()


async def test_an_attempt_is_failed_by_its_task_token(served: Served) -> None:
    task = await pending_activity(served)
    token = base64.urlsafe_b64encode(encode_task_token(task.token)).decode().rstrip("=")
    body = {"message": "no stock", "type": "OutOfStock", "non_retryable": True, "details": [1]}
    failed = await served.http.post(f"{API}/task-tokens/{token}/fail", json=body)
    assert failed.status_code == 204
    assert "ActivityTaskFailed" in await served.event_types()
    problem(await served.http.post(f"{API}/task-tokens/abc/fail", json=body), 400, "invalid_argument")
    elsewhere = f"/api/v1/namespaces/other/task-tokens/{token}/complete"
    problem(await served.http.post(elsewhere, json={}), 400, "invalid_argument")


async def test_a_person_ends_an_activity_by_a_callback(served: Served) -> None:
    await pending_activity(served)
    issued = await served.http.post(f"{W1}/activities/a%2F1/callback", json={"expires_in": "PT60S"})
    assert issued.status_code == 201
    path = issued.json()["path"]
    shown = (await served.http.get(path)).json()
    assert (shown["workflow_id"], shown["activity_id"]) == ("w1", "a/1")
    problem(await served.http.post(f"{path}x/complete", json={}), 403, "callback_refused")
    served.advance(61)
    problem(await served.http.post(f"{path}/complete", json={}), 403, "callback_refused")
    fresh = (await served.http.post(f"{W1}/activities/a%2F1/callback", json={})).json()["path"]
    assert (await served.http.post(f"{fresh}/complete", json={"result": ["approved"]})).status_code == 204
    assert "ActivityTaskCompleted" in await served.event_types()


# --- operators -------------------------------------------------------------------------------------------------------


async def test_namespaces_and_task_queues(served: Served) -> None:
    made = await served.http.post("/api/v1/namespaces", json={"name": "claims", "retention": "P3D"})
    assert (made.status_code, made.json()["retention"]) == (201, "P3D")
    problem(await served.http.post("/api/v1/namespaces", json={"name": "claims"}), 409, "namespace_already_exists")
    names = [one["name"] for one in (await served.http.get("/api/v1/namespaces")).json()["namespaces"]]
    assert names == ["claims", "default"]
    problem(await served.http.get("/api/v1/namespaces/nope"), 404, "namespace_not_found")
    await started(served)
    queues = (await served.http.get(f"{API}/task-queues")).json()["task_queues"]
    assert [(one["task_queue"], one["workflow_backlog"]) for one in queues] == [("q", 1)]
    assert (await served.http.get(f"{API}/task-queues/q")).json() == queues[0]


async def test_deployments(served: Served) -> None:
    problem(await served.http.get(f"{API}/deployments/shop"), 404, "deployment_not_found")
    await served.worker(deployment_version=DeploymentVersion("shop", "v1"), uses_versioning=True)
    assert [one["name"] for one in (await served.http.get(f"{API}/deployments")).json()["deployments"]] == ["shop"]
    current = await served.http.post(f"{API}/deployments/shop/current", json={"build_id": "v1"})
    assert current.json()["current_build_id"] == "v1"
    stale = {"build_id": "", "conflict_token": "old"}
    problem(await served.http.post(f"{API}/deployments/shop/current", json=stale), 409, "deployment_changed")
    ramp = await served.http.post(f"{API}/deployments/shop/ramping", json={"build_id": None})
    assert ramp.status_code == 200
    in_use = await served.http.delete(f"{API}/deployments/shop/versions/v1")
    problem(in_use, 409, "deployment_not_ready")


# --- requests that are wrong -----------------------------------------------------------------------------------------


async def test_what_cannot_be_read_is_refused_with_a_reason(served: Served) -> None:
    http, url = served.http, f"{API}/workflows"
    json_type = {"content-type": "application/json"}
    assert "JSON" in problem(await http.post(url, content=b"{", headers=json_type), 400, "invalid_argument")
    assert "UTF-8" in problem(await http.post(url, content=b'{"\xff":1}', headers=json_type), 400, "invalid_argument")
    deep = (
        b'{"workflow_id":"w","workflow_type":"W","task_queue":"q","input":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"
    )
    problem(await http.post(url, content=deep, headers=json_type), 400, "invalid_argument")
    assert "workflow_id" in problem(await http.post(url, json={}), 400, "invalid_argument")
    assert "inputs" in problem(await started(served, inputs=[]), 400, "invalid_argument")
    form = await http.post(url, content=b"workflow_id=w1", headers={"content-type": "text/plain"})
    problem(form, 415, "unsupported_media_type")
    assert "run_ID" in problem(await http.get(W1, params={"run_ID": "x"}), 400, "invalid_argument")
    problem(await http.get(f"{W1}/history", params={"from_event_id": "one"}), 400, "invalid_argument")
    problem(await http.get(f"{W1}?run_id=a&run_id=b"), 400, "invalid_argument")
    problem(await http.get(f"{API}/workflows/%FF"), 400, "invalid_argument")
    problem(await http.get(f"{API}/nothing/here"), 404, "route_not_found")
    refused = await http.put(W1, json={})
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "DELETE, GET, HEAD"
    problem(await http.get("/elsewhere"), 404, "route_not_found")


@pytest.mark.parametrize(
    "payload", ['{"$payload":3}', '{ "$payload" : {"metadata":{"encoding":"!"}} }', '{"$payload":{"metadata":{}},"x":1']
)
async def test_a_payload_that_no_worker_could_read_gets_no_further(served: Served, payload: str) -> None:
    await started(served)
    body = b'{"signal_name":"s","input":[' + payload.encode() + b"]}"
    answer = await served.http.post(f"{W1}/signal", content=body, headers={"content-type": "application/json"})
    problem(answer, 400, "invalid_argument")
    assert "WorkflowExecutionSignaled" not in await served.event_types()


async def test_an_envelope_is_stored_as_what_it_is(served: Served) -> None:
    envelope = {"$payload": {"metadata": {"encoding": base64.b64encode(b"binary/plain").decode()}, "data": "AAE="}}
    await started(served, input=[envelope, {"x": "$payload"}])
    kept = (await served.http.get(f"{W1}/history")).json()["events"][0]["input"]
    assert kept[0] == envelope
    assert base64.b64decode(kept[1]["$payload"]["data"]) == b'{"x":"$payload"}'


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    from clew.server.settings import ServerSettings

    await served.serve(settings=ServerSettings(body_bytes_max=1_000))
    problem(await started(served, input=["x" * 1_000]), 413, "body_too_large")

    async def endless() -> Any:
        for _ in range(1_000):
            yield b'{"input":["' + b"x" * 1_000

    answer = await served.http.post(f"{API}/workflows", content=endless(), headers={"content-type": "application/json"})
    problem(answer, 413, "body_too_large")


async def test_a_bug_is_told_in_the_log_alone(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise KeyError("secret detail")

    from clew.server.gate import OpenGate

    await served.serve(gate=OpenGate(Broken()))  # type: ignore[arg-type]
    answer = await served.http.get(W1)
    assert "bug" in problem(answer, 500, "internal")
    assert "secret detail" not in answer.text
    assert any("secret detail" in str(record.exc_info) for record in caplog.records)


async def test_a_request_keeps_the_id_that_its_caller_gave(served: Served) -> None:
    given = await served.http.get("/healthz", headers={"X-Request-Id": "trace-7"})
    assert given.headers["x-request-id"] == "trace-7"
    odd = await served.http.get("/healthz", headers={"X-Request-Id": "a b\tc"})
    assert odd.headers["x-request-id"] not in ("", "a b\tc")
