"""Operations on runs that are more than one call of the contract.

Owns: the bodies that differ from the contract's requests, and what is done with them. Never: routes (``table``).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.responses import Response

from clew.adapters import new_request_id
from clew.model import events as e
from clew.model.failure import Failure
from clew.model.inputs import Message
from clew.model.payload import Payloads
from clew.model.policies import WorkflowExecutionStatus
from clew.server.api.calls import Call, json_response
from clew.server.api.values import body_of, made_struct
from clew.service import requests as r

WAIT_SECONDS_MAX: Final = 60.0
_RUNS_FOLLOWED_MAX: Final = 1_000

# --- bodies ----------------------------------------------------------------------------------------------------------

StartBody: Any = body_of(
    r.StartWorkflowRequest, "StartWorkflow", without=("namespace", "header"), optional=("request_id",)
)
_StartInPath: Any = body_of(
    r.StartWorkflowRequest, "StartOfWorkflow", without=("namespace", "workflow_id", "header"), optional=("request_id",)
)
SignalBody: Any = body_of(
    r.SignalWorkflowRequest,
    "SignalWorkflow",
    without=("namespace", "workflow_id", "header"),
    optional=("request_id",),
)
SignalWithStartBody: Any = made_struct(
    "SignalWithStart",
    [("start", _StartInPath), ("signal_name", str), ("signal_input", Payloads, ())],
    r.SignalWithStartRequest.__doc__ or "Signal the open run, or start one with the signal in its first task.",
)
QueryBody: Any = body_of(r.QueryWorkflowRequest, "QueryWorkflow", without=("namespace", "workflow_id", "header"))
UpdateBody: Any = made_struct(
    "UpdateWorkflow",
    [
        ("name", str),
        ("input", Payloads, ()),
        ("update_id", str, ""),
        ("run_id", str, ""),
        ("first_execution_run_id", str, ""),
        ("wait_stage", r.UpdateStage, r.UpdateStage.COMPLETED),
        ("identity", str, ""),
    ],
    "Send an update, and wait until it has come to a stage. A repeat with the same update id is the same update.",
)
UpdateWithStartBody: Any = made_struct(
    "UpdateWithStart",
    [("start", _StartInPath), ("update", UpdateBody)],
    "Start a run with an update in its first task, or send the update to the open run.",
)
CancelBody: Any = body_of(
    r.RequestCancelRequest, "CancelWorkflow", without=("namespace", "workflow_id"), optional=("request_id",)
)
TerminateBody: Any = body_of(r.TerminateWorkflowRequest, "TerminateWorkflow", without=("namespace", "workflow_id"))
ResetBody: Any = body_of(
    r.ResetWorkflowRequest, "ResetWorkflow", without=("namespace", "workflow_id"), optional=("request_id",)
)
OptionsBody: Any = body_of(
    r.UpdateWorkflowOptionsRequest, "UpdateWorkflowOptions", without=("namespace", "workflow_id")
)


class ListQuery(msgspec.Struct, frozen=True):
    query: str = ""
    page_size: int = 100
    page_token: str = ""


class CountQuery(msgspec.Struct, frozen=True):
    query: str = ""


class StreamListQuery(msgspec.Struct, frozen=True):
    query: str = ""
    limit: int = 100


class RunQuery(msgspec.Struct, frozen=True):
    run_id: str = ""


class HistoryQuery(msgspec.Struct, frozen=True):
    run_id: str = ""
    from_event_id: int = 1
    events_max: int = 1_000
    wait_new_event: bool = False
    close_event_only: bool = False


class StreamRunQuery(msgspec.Struct, frozen=True):
    run_id: str = ""
    from_event_id: int = 1


class UpdateQuery(msgspec.Struct, frozen=True):
    run_id: str = ""
    wait_stage: r.UpdateStage = r.UpdateStage.COMPLETED


class ResultQuery(msgspec.Struct, frozen=True):
    """`wait` is in seconds, 60 at most; zero only looks."""

    run_id: str = ""
    wait: float = 0.0
    follow_runs: bool = True


class WorkflowResult(Message, frozen=True, kw_only=True):
    """How a run ended, if it has.

    Args:
        run_id: The run, which with `follow_runs` may be a later one than was asked for.
        status: ``Running`` when it has not ended yet.
        result: What its code returned.
        failure: Why it failed, timed out or was cancelled.
        reason: Why it was terminated.
        new_execution_run_id: The run that followed, if it was not followed.
    """

    run_id: str
    status: WorkflowExecutionStatus
    result: Payloads = ()
    failure: Failure | None = None
    reason: str = ""
    new_execution_run_id: str = ""


# --- what they do ----------------------------------------------------------------------------------------------------


async def start(call: Call) -> Response:
    """Start a run; 201 when it was started by this request, 200 when there was one."""
    return _started(await call.service.start_workflow(_start_request(call, call.body)))


async def signal_with_start(call: Call) -> Response:
    """Signal the open run, or start one with the signal in its first task."""
    body = call.body
    request = r.SignalWithStartRequest(
        start=_start_request(call, body.start), signal_name=body.signal_name, signal_input=body.signal_input
    )
    return _started(await call.service.signal_with_start(request))


async def update(call: Call) -> Response:
    """Send an update and wait for its stage."""
    return json_response(await call.service.update_workflow(_update_request(call, call.body)))


async def update_with_start(call: Call) -> Response:
    """Start a run with an update in its first task, or send the update to the open run."""
    body = call.body
    request = r.UpdateWithStartRequest(
        start=_start_request(call, body.start), update=_update_request(call, body.update)
    )
    return json_response(await call.service.update_with_start(request))


async def result(call: Call) -> Response:
    """How a run ended; 202 when it has not."""
    query: ResultQuery = call.query
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0.0, min(query.wait, WAIT_SECONDS_MAX))
    run_id = query.run_id
    for _ in range(_RUNS_FOLLOWED_MAX):
        found = await _closed(call, run_id, deadline)
        if found.new_execution_run_id and query.follow_runs:
            run_id = found.new_execution_run_id
            continue
        return json_response(found, status=202 if found.status.is_open else 200)
    raise AssertionError(f"a chain of more than {_RUNS_FOLLOWED_MAX} runs was followed in one request")


async def _closed(call: Call, run_id: str, deadline: float) -> WorkflowResult:
    loop = asyncio.get_running_loop()
    request = r.GetHistoryRequest(
        namespace=call.path["namespace"], workflow_id=call.path["workflow_id"], run_id=run_id, close_event_only=True
    )
    answer = await call.service.get_history(request)
    request = msgspec.structs.replace(request, run_id=answer.run_id, wait_new_event=True)
    while not answer.events:
        seconds_left = deadline - loop.time()
        if seconds_left <= 0:
            return WorkflowResult(run_id=answer.run_id, status=WorkflowExecutionStatus.RUNNING)
        try:
            answer = await asyncio.wait_for(call.service.get_history(request), seconds_left)
        except TimeoutError:
            continue
    return _result_of(answer.run_id, answer.events[-1])


def _result_of(run_id: str, closing: e.Event) -> WorkflowResult:
    status = WorkflowExecutionStatus
    match closing:
        case e.WorkflowExecutionCompleted():
            return WorkflowResult(
                run_id=run_id,
                status=status.COMPLETED,
                result=closing.result,
                new_execution_run_id=closing.new_execution_run_id,
            )
        case e.WorkflowExecutionFailed():
            return WorkflowResult(
                run_id=run_id,
                status=status.FAILED,
                failure=closing.failure,
                new_execution_run_id=closing.new_execution_run_id,
            )
        case e.WorkflowExecutionTimedOut():
            following = closing.new_execution_run_id
            return WorkflowResult(run_id=run_id, status=status.TIMED_OUT, new_execution_run_id=following)
        case e.WorkflowExecutionCanceled():
            return WorkflowResult(run_id=run_id, status=status.CANCELED, result=closing.details)
        case e.WorkflowExecutionTerminated():
            return WorkflowResult(run_id=run_id, status=status.TERMINATED, reason=closing.reason)
        case e.WorkflowExecutionContinuedAsNew():
            following = closing.new_execution_run_id
            return WorkflowResult(run_id=run_id, status=status.CONTINUED_AS_NEW, new_execution_run_id=following)
        case _:
            raise AssertionError(f"{type(closing).__name__} closes no run")


def _started(answer: r.StartWorkflowResponse) -> Response:
    return json_response(answer, status=201 if answer.started else 200)


def _start_request(call: Call, body: Any) -> r.StartWorkflowRequest:
    fields: dict[str, Any] = {**call.path, **{name: getattr(body, name) for name in body.__struct_fields__}}
    fields["request_id"] = call.request_id(body.request_id)
    fields["identity"] = body.identity or call.identity
    return r.StartWorkflowRequest(**fields)


def _update_request(call: Call, body: Any) -> r.UpdateWorkflowRequest:
    return r.UpdateWorkflowRequest(
        namespace=call.path["namespace"],
        workflow_id=call.path["workflow_id"],
        run_id=body.run_id,
        first_execution_run_id=body.first_execution_run_id,
        wait_stage=body.wait_stage,
        request=e.UpdateRequest(
            update_id=body.update_id or new_request_id(),
            name=body.name,
            input=body.input,
            identity=body.identity or call.identity,
        ),
    )
