"""What the wrapper does round a call: seals, redaction, the audit log, limits, the end of a credential."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew.model.commands import ScheduleActivityTask
from clew.model.events import event_type
from clew.model.failure import ApplicationInfo, Failure
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.audit import AuditRecord
from clew.server.security.authorized import AuthorizedService, Guards
from clew.server.security.limits import CALLERS_MAX, RateLimiter
from clew.server.security.principal import Principal
from clew.server.security.redaction import REDACTED_PAYLOAD, without_payloads
from clew.server.security.seals import TokenSeals
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.testing import ManualClock
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon
from tests.server.security.samples import (
    PAYLOADS,
    REQUESTS,
    SECRET_VALUE,
    FakeService,
    NullSink,
    token,
)
from tests.server.security.test_permissions import call, service_as

MINUTE = timedelta(minutes=1)


class Notebook:
    """An audit log that a test reads."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.is_working = True

    def write(self, record: AuditRecord) -> None:
        self.records.append(record)

    def is_healthy(self) -> bool:
        return self.is_working

    def close(self) -> None: ...


async def refusal(call: Awaitable[object]) -> RejectionCode:
    with pytest.raises(RPCError) as refused:
        await soon(call)
    return refused.value.code


# --- seals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def shop() -> Any:
    shop = Shop(":memory:")
    await shop.open()
    for name in ("ours", "theirs"):
        await soon(shop.engine.create_namespace(o.CreateNamespaceRequest(name=name)))
    yield shop
    await shop.close()


def authorized(shop: Shop, *grants: str, **fields: Any) -> AuthorizedService:
    guards = Guards(clock=shop.engine._clock, seals=TokenSeals(shop.engine.namespaces.secret_of), **fields)
    principal = service_as(FakeService(), *grants).principal
    return AuthorizedService(shop.engine, principal, guards)


async def event_types(shop: Shop, namespace: str) -> list[str]:
    request = r.GetHistoryRequest(namespace=namespace, workflow_id="w1")
    return [event_type(event) for event in (await soon(shop.engine.get_history(request))).events]


async def worker_of(service: AuthorizedService, namespace: str) -> ScriptedWorker:
    worker = ScriptedWorker(service)  # type: ignore[arg-type]
    await worker.attach(namespace=namespace)
    return worker


async def started_attempt(shop: Shop, worker: ScriptedWorker, namespace: str) -> r.ActivityTask:
    await shop.start(namespace=namespace)
    command = ScheduleActivityTask(activity_id="a-1", activity_type="a", start_to_close_timeout=MINUTE)
    await worker.complete(await worker.workflow_task(), command)
    return await worker.activity_task()


async def test_a_worker_works_with_the_tokens_that_it_was_given(shop: Shop) -> None:
    worker = await worker_of(authorized(shop, "ours:worker"), "ours")
    attempt = await started_attempt(shop, worker, "ours")
    assert len(attempt.token.seal) == 16
    await worker.complete_activity(attempt, "done")
    assert (await worker.workflow_task()).attempt == 1


async def test_a_token_is_good_on_another_node_and_after_a_restart(shop: Shop) -> None:
    worker = await worker_of(authorized(shop, "ours:worker"), "ours")
    attempt = await started_attempt(shop, worker, "ours")
    elsewhere = authorized(shop, "ours:client")
    await soon(elsewhere.heartbeat_activity(r.HeartbeatActivityRequest(token=attempt.token)))
    await soon(elsewhere.complete_activity(r.CompleteActivityRequest(token=attempt.token)))


@pytest.mark.parametrize(
    "change",
    [
        {"seal": b""},
        {"seal": bytes(16)},
        {"namespace": "ours"},
        {"namespace": "ours", "seal": bytes(16)},
        {"lease_id": 99},
        {"run_key": 10**30},
        {"workflow_id": "\ud800"},
    ],
)
async def test_a_made_up_token_is_refused_without_a_change(shop: Shop, change: dict[str, Any]) -> None:
    owner = await worker_of(authorized(shop, "theirs:worker"), "theirs")
    attempt = await started_attempt(shop, owner, "theirs")
    before = await event_types(shop, "theirs")
    forged = msgspec.structs.replace(attempt.token, **change)
    liar = authorized(shop, "ours:worker", "theirs:worker")
    for report in (
        liar.complete_activity(r.CompleteActivityRequest(token=forged)),
        liar.fail_activity(r.FailActivityRequest(token=forged, failure=Failure(message="x"))),
        liar.cancel_activity(r.CancelActivityRequest(token=forged)),
        liar.release_activity(r.ReleaseActivityRequest(token=forged, reason="x")),
        liar.detach_activity(forged),
        liar.complete_workflow_task(r.CompleteWorkflowTaskRequest(token=forged)),
        liar.answer_query(r.AnswerQueryRequest(token=forged, result=r.QueryResult(query_id="1"))),
        liar.issue_callback(o.IssueCallbackRequest(target=forged)),
    ):
        assert await refusal(report) is RejectionCode.PERMISSION_DENIED
    assert await event_types(shop, "theirs") == before
    await owner.complete_activity(attempt, "still mine")


async def test_the_engine_itself_lets_no_token_cross_namespaces(shop: Shop) -> None:
    """Without seals (everybody is trusted) the namespace that was checked is still the one that is changed."""
    worker = ScriptedWorker(shop.engine)
    await worker.attach(namespace="theirs")
    attempt = await started_attempt(shop, worker, "theirs")
    crossed = msgspec.structs.replace(attempt.token, namespace="ours")
    code = await refusal(shop.engine.complete_activity(r.CompleteActivityRequest(token=crossed)))
    assert code is RejectionCode.WORKFLOW_NOT_FOUND
    await worker.complete_activity(attempt)


async def test_a_callback_ends_its_activity_and_no_other(shop: Shop) -> None:
    service = authorized(shop, "ours:worker")
    worker = await worker_of(service, "ours")
    attempt = await started_attempt(shop, worker, "ours")
    issued = await soon(service.issue_callback(o.IssueCallbackRequest(target=attempt.token)))
    opened = await soon(shop.engine.open_callback(o.OpenCallbackRequest(token=issued.token)))
    assert opened.target == msgspec.structs.replace(attempt.token, seal=b"")
    by_ids = o.IssueCallbackRequest(target=r.ActivityTarget(namespace="ours", workflow_id="w1", activity_id="a-1"))
    assert await refusal(service.issue_callback(by_ids)) is RejectionCode.PERMISSION_DENIED


# --- payloads ------------------------------------------------------------------------------------------------------


async def run_with_payloads_everywhere(shop: Shop, worker: ScriptedWorker) -> None:
    secret = payloads(SECRET_VALUE)
    await shop.start(
        namespace="ours",
        input=secret,
        memo={"note": secret[0]},
        header={"trace": secret[0]},
        search_attributes={"Customer": msgspec.Raw(b'"ada"')},
    )
    command = ScheduleActivityTask(
        activity_id="a-1", activity_type="a", start_to_close_timeout=MINUTE, input=secret, header={"h": secret[0]}
    )
    await worker.complete(await worker.workflow_task(), command)
    attempt = await worker.activity_task()
    await soon(worker.service.heartbeat_activity(r.HeartbeatActivityRequest(token=attempt.token, details=secret)))
    info = ApplicationInfo(type="Boom", details=secret)
    failed = r.FailActivityRequest(token=attempt.token, failure=Failure(message="it broke", info=info))
    await soon(worker.service.fail_activity(failed))
    signal = r.SignalWorkflowRequest(namespace="ours", workflow_id="w1", signal_name="s", request_id="1", input=secret)
    await soon(shop.engine.signal_workflow(signal))


@pytest.mark.parametrize("role", ["reader", "operator"])
async def test_payloads_are_seen_only_with_the_permission(shop: Shop, role: str) -> None:
    worker = await worker_of(authorized(shop, "ours:worker"), "ours")
    await run_with_payloads_everywhere(shop, worker)
    for grants, is_seen in (((f"ours:{role}",), False), ((f"ours:{role}", "ours:payloads"), True)):
        service = authorized(shop, *grants)
        answers = [
            await soon(service.describe_workflow(r.DescribeWorkflowRequest(namespace="ours", workflow_id="w1"))),
            await soon(service.get_history(r.GetHistoryRequest(namespace="ours", workflow_id="w1"))),
            await soon(service.list_workflows(r.ListWorkflowsRequest(namespace="ours"))),
        ]
        for answer in answers:
            text = msgspec.json.encode(answer).decode()
            assert (SECRET_VALUE in text) is is_seen, type(answer).__name__
            assert "w1" in text or "WorkflowExecutionStarted" in text
        assert "it broke" in msgspec.json.encode(answers[0]).decode()  # why a run is stuck stays visible
        assert '"ada"' in msgspec.json.encode(answers[2]).decode()  # and so does what it is searched by


async def test_results_of_queries_and_updates_are_redacted() -> None:
    fake = FakeService()
    fake.answers["query_workflow"] = r.QueryWorkflowResponse(result=PAYLOADS)
    for grants, expected in ((["ours:reader"], (REDACTED_PAYLOAD,)), (["ours:client"], PAYLOADS)):
        for _ in range(3):  # the engine answers in three ways
            answer = await call(service_as(fake, *grants), "query_workflow")
            assert [bytes(one) for one in answer.result] == [bytes(one) for one in expected]


async def test_the_failure_of_a_query_is_redacted_too() -> None:
    failure = Failure(message="no", info=ApplicationInfo(type="Boom", details=PAYLOADS))
    rejection = Rejection(
        code=RejectionCode.QUERY_FAILED,
        message="no",
        details={"failure": msgspec.json.encode(failure).decode()},
    )
    for grants, is_seen in ((["ours:reader"], False), (["ours:client"], True)):
        fake = FakeService()
        fake.answers["query_workflow"] = RPCError(rejection)
        with pytest.raises(RPCError) as error:
            await call(service_as(fake, *grants), "query_workflow")
        told = error.value.rejection.details["failure"]
        assert (SECRET_VALUE in told) is is_seen
        assert msgspec.json.decode(told, type=Failure).message == "no"


def test_redaction_leaves_alone_what_has_no_payload() -> None:
    answer = r.CountWorkflowsResponse(count=3, groups={"Running": 3})
    assert without_payloads(answer) == answer
    listed = k.ListApiKeysResponse()
    assert without_payloads(listed) is listed


# --- the audit log -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", list(REQUESTS))
async def test_every_mutating_call_is_written_down_without_payloads(sample: str) -> None:
    name = sample.partition(" ")[0]
    changing = {
        "start_workflow", "signal_workflow", "signal_with_start", "request_cancel_workflow", "terminate_workflow",
        "reset_workflow", "delete_workflow",
        "update_workflow", "update_with_start", "update_workflow_options", "set_current_version",
        "set_ramping_version", "delete_deployment_version", "create_namespace", "issue_callback", "create_api_key",
        "revoke_api_key", "rotate_api_key", "attach_worker", "complete_workflow_task", "fail_workflow_task",
        "record_markers", "complete_activity", "fail_activity", "cancel_activity", "release_activity",
        "detach_activity",
    }  # fmt: skip
    fake = FakeService()
    for _ in range(3):
        audit = Notebook()
        await call(service_as(fake, "*:admin", audit=audit), sample, "ours")
        assert len(audit.records) == (name in changing)
        for record in audit.records:
            assert (record.event, record.call, record.outcome) == ("call", name, "ok")
            assert (record.principal, record.principal_name) == ("key:1", "ci")
            assert record.namespace in ("ours", "*")
            assert SECRET_VALUE not in msgspec.json.encode(record).decode()


async def test_the_traffic_of_tasks_can_be_left_out() -> None:
    audit = Notebook()
    service = service_as(FakeService(), "*:admin", audit=audit, audits_tasks=False)
    for sample in ("complete_activity", "complete_workflow_task", "attach_worker", "start_workflow"):
        await call(service, sample)
    assert [record.call for record in audit.records] == ["attach_worker", "start_workflow"]


async def test_the_record_names_what_was_acted_on() -> None:
    audit = Notebook()
    service = service_as(FakeService(), "ours:client", audit=audit)
    await call(service, "signal_with_start")
    assert audit.records[0].subject == {
        "signal_name": "s", "workflow_id": "w1", "workflow_type": "W", "task_queue": "q",
    }  # fmt: skip
    assert audit.records[0].duration_ms is not None


async def test_refusals_are_written_down_with_their_code() -> None:
    fake, audit = FakeService(), Notebook()
    gone = RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_FOUND, message="gone"))
    fake.answers["signal_workflow"] = gone
    for _ in range(3):
        with pytest.raises(RPCError):
            await call(service_as(fake, "ours:client", audit=audit), "signal_workflow")
    with pytest.raises(RPCError):
        await call(service_as(fake, "ours:reader", audit=audit), "signal_workflow")
    with pytest.raises(RPCError):
        await call(service_as(fake, audit=audit), "get_history")
    assert [(one.event, one.outcome) for one in audit.records] == [
        *[("call", "workflow_not_found")] * 3,
        ("refused", "permission_denied"),
        ("refused", "permission_denied"),
    ]


async def test_no_change_without_an_audit_log_where_one_is_required() -> None:
    fake, audit = FakeService(), Notebook()
    audit.is_working = False
    service = service_as(fake, "ours:client", audit=audit, is_audit_required=True)
    with pytest.raises(RPCError) as error:
        await call(service, "start_workflow")
    assert error.value.code is RejectionCode.UNAVAILABLE
    await call(service, "describe_workflow")
    audit.is_working = True
    await call(service, "start_workflow")
    assert [name for name, _ in fake.calls] == ["describe_workflow", "start_workflow"]


# --- limits --------------------------------------------------------------------------------------------------------


async def test_too_many_calls_are_refused_until_time_has_passed() -> None:
    loop = asyncio.get_running_loop()
    manual = ManualClock()
    clock = manual.attach(loop)
    fake, limiter = FakeService(), RateLimiter(10, burst=3)
    principal = service_as(fake, "ours:client").principal
    service = AuthorizedService(fake, principal, Guards(clock=clock, limiter=limiter))  # type: ignore[arg-type]
    for _ in range(3):
        await call(service, "describe_workflow")
    with pytest.raises(RPCError) as error:
        await call(service, "describe_workflow")
    assert error.value.code is RejectionCode.RATE_LIMITED
    assert error.value.is_retryable
    assert float(error.value.rejection.details["retry_after_seconds"]) == pytest.approx(0.1)
    assert len(fake.calls) == 3
    other = AuthorizedService(fake, Principal(principal_id="key:2", grants=principal.grants), service._guards)  # type: ignore[arg-type]
    await call(other, "describe_workflow")
    manual.advance(timedelta(milliseconds=101))
    await call(service, "describe_workflow")
    with pytest.raises(RPCError):
        await call(service, "describe_workflow")


async def test_tasks_are_not_counted_as_calls() -> None:
    fake = FakeService()
    service = service_as(fake, "ours:worker", limiter=RateLimiter(1, burst=1))
    for _ in range(20):
        await call(service, "complete_activity")
    assert len(fake.calls) == 20


def test_the_memory_of_callers_is_bounded() -> None:
    clock = ManualClock()
    limiter = RateLimiter(1)
    for number in range(CALLERS_MAX + 500):
        limiter.take(str(number), clock.now())
    assert len(limiter._buckets) == CALLERS_MAX


@pytest.mark.parametrize(("rate", "burst"), [(0, None), (-1, None), (float("nan"), None), (1, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(rate: float, burst: float | None) -> None:
    with pytest.raises(ValueError, match="rate limit"):
        RateLimiter(rate, burst)


# --- the end of a credential ---------------------------------------------------------------------------------------


async def test_a_caller_whose_key_ends_loses_its_sessions_and_every_call() -> None:
    fake, audit = FakeService(), Notebook()
    is_live = True
    ends: list[RPCError] = []
    clock = ManualClock().attach(asyncio.get_running_loop())
    principal = service_as(fake, "ours:admin").principal
    service = AuthorizedService(
        fake,  # type: ignore[arg-type]
        principal,
        Guards(clock=clock, audit=audit),
        is_live=lambda: is_live,
        on_end=ends.append,
    )
    session = await service.attach_worker(REQUESTS["attach_worker"]("ours"), NullSink())
    session.grant(workflow_tasks=2)
    service.check()
    assert (fake.sessions[0].is_detached, fake.sessions[0].granted) == (False, 2)
    is_live = False
    service.check()
    service.check()
    assert fake.sessions[0].is_detached
    assert [error.code for error in ends] == [RejectionCode.UNAUTHENTICATED]
    is_live = True  # ended is ended
    with pytest.raises(RPCError) as error:
        await call(service, "describe_workflow")
    assert error.value.code is RejectionCode.UNAUTHENTICATED
    assert [record.event for record in audit.records] == ["call", "session_ended", "refused"]


async def test_a_cancel_reaches_a_worker_with_the_sealed_token() -> None:
    fake, sink = FakeService(), NullSink()
    seals = TokenSeals(lambda namespace: b"secret of " + namespace.encode())
    service = service_as(fake, "ours:worker", seals=seals)
    await service.attach_worker(REQUESTS["attach_worker"]("ours"), sink)
    fake.sinks[0].cancel_activity(token("ours"), r.ActivityCancelReason.CANCEL_REQUESTED)
    assert seals.open(sink.cancelled[0]) == token("ours")
