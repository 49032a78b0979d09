"""What a client asks of the service, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from clew import workflow
from clew.client import (
    Interceptor,
    OutboundInterceptor,
    RPCError,
    SignalWorkflowInput,
    StartWorkflowInput,
    WorkflowAlreadyStartedError,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from clew.common import RetryPolicy, WorkflowExecutionStatus, WorkflowIDConflictPolicy
from clew.converter import DataConverter, Payload, PayloadCodec
from clew.exceptions import ArgumentsError, CancelledError, EncodeError, TerminatedError, TimeoutError
from clew.model import events as e
from clew.model.failure import ApplicationInfo, Failure
from clew.model.limits import Limits
from clew.model.payload import Payloads
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from tests.unit.client.fakes import FakeService, client_of, refusal

NOW = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)
STARTED = r.StartWorkflowResponse(run_id="run-1", first_execution_run_id="run-1")


@dataclass
class Claim:
    number: int


@workflow.defn
class Claims:
    @workflow.run
    async def run(self, claim: Claim) -> Claim:
        return claim

    @workflow.signal
    def photos(self, count: int) -> None: ...

    @workflow.query
    def state(self) -> str:
        return ""

    @workflow.update
    async def decide(self, by: str) -> Claim:
        return Claim(0)


def stored(value: Any) -> Payloads:
    return (msgspec.Raw(msgspec.json.encode(value)),)


def closing(event: e.Event, run_id: str = "run-1") -> r.GetHistoryResponse:
    return r.GetHistoryResponse(run_id=run_id, events=(event,))


def completed(value: Any, new_run_id: str = "") -> e.WorkflowExecutionCompleted:
    return e.WorkflowExecutionCompleted(
        event_id=9, event_time=NOW, result=stored(value), new_execution_run_id=new_run_id
    )


def continued(new_run_id: str) -> e.WorkflowExecutionContinuedAsNew:
    return e.WorkflowExecutionContinuedAsNew(
        event_id=9, event_time=NOW, new_execution_run_id=new_run_id, workflow_type="Claims", task_queue="q"
    )


# --- start ------------------------------------------------------------------------------------------------------------


async def test_a_start_sends_what_was_said() -> None:
    service = FakeService(start_workflow=STARTED)
    client = client_of(service, identity="me")
    handle = await client.start_workflow(
        Claims.run,
        Claim(7),
        id="claim-7",
        task_queue="claims",
        run_timeout=timedelta(days=3),
        retry_policy=RetryPolicy(maximum_attempts=2),
        memo={"by": "post"},
        static_summary="A claim",
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    [request] = service.sent("start_workflow")
    assert (request.workflow_type, request.workflow_id, request.task_queue) == ("Claims", "claim-7", "claims")
    assert bytes(request.input[0]) == b'{"number":7}'
    assert request.workflow_run_timeout == timedelta(days=3)
    assert request.retry_policy.maximum_attempts == 2
    assert bytes(request.memo["by"]) == b'"post"'
    assert bytes(request.user_metadata.summary) == b'"A claim"'
    assert request.id_conflict_policy is WorkflowIDConflictPolicy.USE_EXISTING
    assert (request.identity, request.namespace) == ("me", "default")
    assert (handle.id, handle.run_id, handle.result_run_id, handle.first_execution_run_id) == (
        "claim-7",
        None,
        "run-1",
        "run-1",
    )


async def test_a_retried_start_is_the_very_same_request() -> None:
    service = FakeService(start_workflow=[refusal(RejectionCode.UNAVAILABLE), STARTED])
    await client_of(service).start_workflow("W", id="w", task_queue="q")
    first, second = service.sent("start_workflow")
    assert first.request_id
    assert first == second


async def test_two_starts_have_different_request_ids() -> None:
    service = FakeService(start_workflow=STARTED)
    client = client_of(service)
    await client.start_workflow("W", id="w", task_queue="q")
    await client.start_workflow("W", id="w", task_queue="q")
    first, second = service.sent("start_workflow")
    assert first.request_id != second.request_id


async def test_a_start_with_a_signal_is_one_call() -> None:
    service = FakeService(signal_with_start=STARTED)
    client = client_of(service)
    await client.start_workflow("W", id="w", task_queue="q", start_signal="photos", start_signal_args=[3])
    [request] = service.sent("signal_with_start")
    assert (request.signal_name, bytes(request.signal_input[0])) == ("photos", b"3")


async def test_a_taken_id_is_told_with_its_run() -> None:
    service = FakeService(start_workflow=refusal(RejectionCode.WORKFLOW_ALREADY_STARTED, run_id="run-0"))
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        await client_of(service).start_workflow("W", id="w", task_queue="q")
    assert caught.value.run_id == "run-0"


async def test_other_refusals_are_not_retried_when_they_are_final() -> None:
    service = FakeService(start_workflow=refusal(RejectionCode.INVALID_ARGUMENT))
    with pytest.raises(RPCError, match="invalid_argument"):
        await client_of(service).start_workflow("W", id="w", task_queue="q")
    assert len(service.sent("start_workflow")) == 1


async def test_rpc_timeout_ends_the_wait_with_a_named_error() -> None:
    service = FakeService(start_workflow=lambda _: refusal(RejectionCode.UNAVAILABLE))
    with pytest.raises(RPCError, match="rpc_timeout") as caught:
        await client_of(service).start_workflow("W", id="w", task_queue="q", rpc_timeout=timedelta(seconds=0.1))
    assert caught.value.code is RejectionCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"id": ""}, TypeError, "needs id="),
        ({"task_queue": None}, TypeError, "needs task_queue="),
        ({"run_timeout": 5}, TypeError, "run_timeout must be a datetime.timedelta"),
        ({"run_timeout": timedelta(seconds=-1)}, ValueError, "must not be negative"),
        ({"retry_policy": {"maximum_attempts": 1}}, TypeError, "RetryPolicy"),
        ({"task_que": "q"}, TypeError, "no option 'task_que'"),
        ({"args": "abc"}, TypeError, "args must be a list"),
    ],
)
async def test_a_wrong_option_is_named_before_anything_is_sent(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    service = FakeService(start_workflow=STARTED)
    given: dict[str, Any] = {"id": "w", "task_queue": "q", **options}
    with pytest.raises(error, match=says):
        await client_of(service).start_workflow("W", **given)
    assert service.requests == []


async def test_a_wrong_count_of_arguments_names_the_function() -> None:
    client: Any = client_of(FakeService())
    with pytest.raises(ArgumentsError, match=r"Claims\.run.*takes 1 argument.*given no|Claims\.run.*takes 1 argument"):
        await client.start_workflow(Claims.run, id="w", task_queue="q")
    with pytest.raises(TypeError, match="not both"):
        await client.start_workflow(Claims.run, Claim(1), args=[Claim(1)], id="w", task_queue="q")


async def test_what_is_no_workflow_is_named() -> None:
    client: Any = client_of(FakeService())
    with pytest.raises(TypeError, match=r"Claims is a class; pass its run method"):
        await client.start_workflow(Claims, Claim(1), id="w", task_queue="q")
    with pytest.raises(ValueError, match=r"workflow\.defn"):
        await client.start_workflow(test_what_is_no_workflow_is_named, id="w", task_queue="q")


async def test_a_value_that_cannot_be_converted_is_named_with_its_place() -> None:
    with pytest.raises(EncodeError, match=r"arguments of workflow 'W' with id 'w'"):
        await client_of(FakeService()).start_workflow("W", {"lock": object()}, id="w", task_queue="q")


async def test_an_oversize_argument_is_refused_with_size_and_limit() -> None:
    service = FakeService(start_workflow=STARTED)
    client = client_of(service, limits=Limits(payload_bytes_max=1_000))
    with pytest.raises(EncodeError, match=r"take 2004 bytes, the largest being number 2 with 2002 bytes.*1000 bytes"):
        await client.start_workflow("W", args=[10, "x" * 2_000], id="w", task_queue="q")
    assert service.requests == []


# --- result -----------------------------------------------------------------------------------------------------------


async def test_the_result_has_the_type_of_the_run_method() -> None:
    service = FakeService(start_workflow=STARTED, get_history=closing(completed({"number": 8})))
    handle = await client_of(service).start_workflow(Claims.run, Claim(7), id="w", task_queue="q")
    assert await handle.result() == Claim(8)
    [request] = service.sent("get_history")
    assert (request.run_id, request.wait_new_event, request.close_event_only) == ("run-1", True, True)


async def test_a_long_poll_that_ends_empty_is_repeated_on_the_same_run() -> None:
    empty = r.GetHistoryResponse(run_id="run-5", next_event_id=4)
    service = FakeService(get_history=[empty, empty, closing(completed(1), "run-5")])
    assert await client_of(service).get_workflow_handle("w").result() == 1
    assert [request.run_id for request in service.sent("get_history")] == ["", "run-5", "run-5"]


async def test_the_result_follows_the_chain() -> None:
    service = FakeService(
        get_history=[closing(continued("run-2")), closing(completed(None, "run-3")), closing(completed("end"))]
    )
    assert await client_of(service).get_workflow_handle("w", run_id="run-1").result() == "end"
    assert [request.run_id for request in service.sent("get_history")] == ["run-1", "run-2", "run-3"]


async def test_without_following_the_runs_own_end_counts() -> None:
    service = FakeService(get_history=[closing(continued("run-2")), closing(completed(5, "run-3"))])
    handle = client_of(service).get_workflow_handle("w", run_id="run-1")
    with pytest.raises(WorkflowContinuedAsNewError) as caught:
        await handle.result(follow_runs=False)
    assert caught.value.new_execution_run_id == "run-2"
    assert await handle.result(follow_runs=False) == 5


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (e.WorkflowExecutionCanceled(event_id=9, event_time=NOW), CancelledError),
        (e.WorkflowExecutionTerminated(event_id=9, event_time=NOW, reason="enough"), TerminatedError),
        (e.WorkflowExecutionTimedOut(event_id=9, event_time=NOW), TimeoutError),
    ],
)
async def test_a_run_that_did_not_complete_says_why(event: e.Event, cause: type[Exception]) -> None:
    service = FakeService(get_history=closing(event))
    with pytest.raises(WorkflowFailureError) as caught:
        await client_of(service).get_workflow_handle("w").result()
    assert type(caught.value.cause) is cause


async def test_a_failed_run_gives_its_error_with_type_and_message() -> None:
    failure = Failure(message="no money", info=ApplicationInfo(type="Refused"))
    event = e.WorkflowExecutionFailed(event_id=9, event_time=NOW, failure=failure)
    with pytest.raises(WorkflowFailureError) as caught:
        await client_of(FakeService(get_history=closing(event))).get_workflow_handle("w").result()
    cause: Any = caught.value.cause
    assert (cause.type, cause.message) == ("Refused", "no money")


async def test_waiting_for_a_result_outlasts_an_engine_that_is_away() -> None:
    away = refusal(RejectionCode.UNAVAILABLE)
    service = FakeService(get_history=[away, away, closing(completed(1))])
    assert await client_of(service).get_workflow_handle("w").result() == 1


async def test_a_closed_connection_is_not_retried() -> None:
    client = client_of(FakeService(get_history=refusal(RejectionCode.UNAVAILABLE)))
    await client.close()
    with pytest.raises(RPCError):
        await asyncio.wait_for(client.get_workflow_handle("w").result(), 5)


# --- signal, query, update --------------------------------------------------------------------------------------------


async def test_a_signal_goes_to_the_current_run_with_a_request_id() -> None:
    service = FakeService(signal_workflow=None)
    handle = client_of(service).get_workflow_handle_for(Claims.run, "w")
    await handle.signal(Claims.photos, 4)
    [request] = service.sent("signal_workflow")
    assert (request.signal_name, bytes(request.input[0]), request.run_id) == ("photos", b"4", "")
    assert request.request_id


async def test_a_method_of_another_kind_is_refused() -> None:
    handle: Any = client_of(FakeService()).get_workflow_handle("w")
    with pytest.raises(TypeError, match="not a signal"):
        await handle.signal(Claims.state)
    with pytest.raises(TypeError, match="not a query"):
        await handle.query(Claims.photos)
    with pytest.raises(ArgumentsError, match="photos"):
        await handle.signal(Claims.photos)


async def test_a_query_gives_a_typed_answer_or_says_why_not() -> None:
    service = FakeService(
        query_workflow=[
            r.QueryWorkflowResponse(result=stored("waiting")),
            r.QueryWorkflowResponse(rejected_status=WorkflowExecutionStatus.FAILED),
            refusal(RejectionCode.QUERY_FAILED),
        ]
    )
    handle = client_of(service).get_workflow_handle_for(Claims.run, "w")
    assert await handle.query(Claims.state) == "waiting"
    with pytest.raises(WorkflowQueryRejectedError) as rejected:
        await handle.query(Claims.state)
    assert rejected.value.status is WorkflowExecutionStatus.FAILED
    with pytest.raises(WorkflowQueryFailedError):
        await handle.query("nonsense")


async def test_an_update_is_sent_until_it_is_done_and_converted() -> None:
    def answer(stage: r.UpdateStage, outcome: e.UpdateOutcome | None = None) -> r.UpdateResponse:
        return r.UpdateResponse(update_id="u", workflow_id="w", run_id="run-1", stage=stage, outcome=outcome)

    done = answer(r.UpdateStage.COMPLETED, e.UpdateOutcome(result=stored({"number": 3})))
    service = FakeService(update_workflow=[answer(r.UpdateStage.ADMITTED), answer(r.UpdateStage.ACCEPTED), done])
    handle = client_of(service).get_workflow_handle_for(Claims.run, "w")
    assert await handle.execute_update(Claims.decide, "Ada") == Claim(3)
    requests = service.sent("update_workflow")
    assert len({request.request.update_id for request in requests}) == 1
    assert len(requests) == 3


async def test_a_refused_update_says_why() -> None:
    failure = Failure(message="too late", info=ApplicationInfo(type="TooLate"))
    response = r.UpdateResponse(
        update_id="u",
        workflow_id="w",
        run_id="run-1",
        stage=r.UpdateStage.COMPLETED,
        outcome=e.UpdateOutcome(failure=failure),
    )
    handle = client_of(FakeService(update_workflow=response)).get_workflow_handle("w")
    with pytest.raises(WorkflowUpdateFailedError, match="too late"):
        await handle.execute_update("decide", "Ada")


async def test_an_accepted_update_is_waited_for_by_its_handle() -> None:
    accepted = r.UpdateResponse(update_id="u", workflow_id="w", run_id="run-1", stage=r.UpdateStage.ACCEPTED)
    done = r.UpdateResponse(
        update_id="u",
        workflow_id="w",
        run_id="run-1",
        stage=r.UpdateStage.COMPLETED,
        outcome=e.UpdateOutcome(result=stored(1)),
    )
    service = FakeService(update_workflow=accepted, poll_update=[accepted, done])
    handle = client_of(service).get_workflow_handle("w")
    update = await handle.start_update("decide", "Ada", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
    assert await update.result() == 1
    with pytest.raises(ValueError, match="ADMITTED cannot be waited for"):
        await handle.start_update("decide", wait_for_stage=WorkflowUpdateStage.ADMITTED)


async def test_cancel_and_terminate_hit_only_the_chain_that_was_started() -> None:
    service = FakeService(start_workflow=STARTED, request_cancel_workflow=None, terminate_workflow=None)
    handle = await client_of(service).start_workflow("W", id="w", task_queue="q")
    await handle.cancel(reason="changed my mind")
    await handle.terminate({"by": "me"}, reason="enough")
    [cancel] = service.sent("request_cancel_workflow")
    [terminate] = service.sent("terminate_workflow")
    assert (cancel.run_id, cancel.first_execution_run_id, cancel.reason) == ("", "run-1", "changed my mind")
    assert (terminate.first_execution_run_id, terminate.reason) == ("run-1", "enough")
    assert bytes(terminate.details[0]) == b'{"by":"me"}'


# --- lists, activities ------------------------------------------------------------------------------------------------


def info(number: int) -> r.WorkflowExecutionInfo:
    return r.WorkflowExecutionInfo(
        namespace="default",
        workflow_id=f"w-{number}",
        run_id=f"r-{number}",
        workflow_type="W",
        task_queue="q",
        status=WorkflowExecutionStatus.RUNNING,
        start_time=NOW,
        memo={"n": msgspec.Raw(b"1")},
    )


async def test_a_list_is_fetched_page_by_page_up_to_its_limit() -> None:
    pages = [
        r.ListWorkflowsResponse(executions=(info(1), info(2)), next_page_token="2"),
        r.ListWorkflowsResponse(executions=(info(3),), next_page_token="3"),
    ]
    service = FakeService(list_workflows=pages)
    found = [run async for run in client_of(service).list_workflows("q", limit=3, page_size=2)]
    assert [run.id for run in found] == ["w-1", "w-2", "w-3"]
    assert [(request.page_size, request.page_token) for request in service.sent("list_workflows")] == [
        (2, ""),
        (1, "2"),
    ]
    assert await found[0].memo() == {"n": 1}
    assert await found[0].memo_value("n", type_hint=float) == 1.0
    with pytest.raises(KeyError, match="no memo 'x'"):
        await found[0].memo_value("x")


async def test_an_activity_is_completed_by_ids_or_by_token() -> None:
    service = FakeService(complete_activity=None, fail_activity=None)
    client = client_of(service)
    await client.get_async_activity_handle(workflow_id="w", run_id=None, activity_id="a-1").complete(5)
    [request] = service.sent("complete_activity")
    assert (request.token.activity_id, bytes(request.result[0])) == ("a-1", b"5")
    with pytest.raises(ValueError, match="not a task token"):
        client.get_async_activity_handle(task_token=b"nonsense")
    with pytest.raises(ValueError, match="named by"):
        client.get_async_activity_handle()  # type: ignore[call-overload]


# --- interceptors, codec ----------------------------------------------------------------------------------------------


async def test_interceptors_wrap_each_other_and_may_change_inputs() -> None:
    seen: list[str] = []

    class Tracing(Interceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            name = self.name

            class Outbound(OutboundInterceptor):
                async def start_workflow(self, input: StartWorkflowInput) -> Any:
                    seen.append(name)
                    input.headers = {**input.headers, name: Payload({"encoding": b"json/plain"}, b"1")}
                    return await super().start_workflow(input)

                async def signal_workflow(self, input: SignalWorkflowInput) -> None:
                    input.args = [*input.args, name]
                    await super().signal_workflow(input)

            return Outbound(next)

    service = FakeService(start_workflow=STARTED, signal_workflow=None)
    client = client_of(service, interceptors=(Tracing("outer"), Tracing("inner")))
    handle = await client.start_workflow("W", id="w", task_queue="q")
    await handle.signal("s")
    assert seen == ["outer", "inner"]
    assert set(service.sent("start_workflow")[0].header) == {"outer", "inner"}
    assert [bytes(p) for p in service.sent("signal_workflow")[0].input] == [b'"outer"', b'"inner"']


class Backwards(PayloadCodec):
    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload({"encoding": b"binary/backwards"}, p.data[::-1]) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload({"encoding": b"json/plain"}, p.data[::-1]) for p in payloads]


async def test_a_codec_sees_everything_that_is_sent_and_received() -> None:
    service = FakeService(start_workflow=STARTED)
    client = client_of(service, data_converter=DataConverter(payload_codec=Backwards()))
    handle = await client.start_workflow("W", "secret", id="w", task_queue="q", memo={"m": "secret"})
    [request] = service.sent("start_workflow")
    assert b"secret" not in msgspec.json.encode(request)
    event = e.WorkflowExecutionCompleted(event_id=9, event_time=NOW, result=request.input)
    service.answers["get_history"] = closing(event)
    assert await handle.result() == "secret"
