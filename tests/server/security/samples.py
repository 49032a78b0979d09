"""A request for every call of the contract, and a service that only takes note of what reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from clew.model.events import UpdateRequest, WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.service import deployments as d
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import TaskSink
from clew.service.reply import Reply

SECRET_VALUE = "s3cret-payload-value"
PAYLOADS = (msgspec.Raw(msgspec.json.encode(SECRET_VALUE)),)


def token(namespace: str, **fields: Any) -> r.TaskToken:
    values = {
        "namespace": namespace, "workflow_id": "w1", "run_id": "r1", "shard": 0, "run_key": 7, "scheduled_event_id": 5,
        "attempt": 1, "lease_id": 3, "activity_id": "a-1", **fields,
    }  # fmt: skip
    return r.TaskToken(**values)


def _start(namespace: str) -> r.StartWorkflowRequest:
    return r.StartWorkflowRequest(
        namespace=namespace, workflow_id="w1", workflow_type="W", task_queue="q", request_id="1", input=PAYLOADS
    )


def _update(namespace: str) -> r.UpdateWorkflowRequest:
    return r.UpdateWorkflowRequest(
        namespace=namespace,
        workflow_id="w1",
        request=UpdateRequest(update_id="u1", name="add", input=PAYLOADS),
    )


def _target(namespace: str) -> r.ActivityTarget:
    return r.ActivityTarget(namespace=namespace, workflow_id="w1", activity_id="a-1")


_RUN: dict[str, Any] = {"workflow_id": "w1"}
_DEPLOYMENT: dict[str, Any] = {"deployment_name": "billing"}
_FAILURE = Failure(message="no")
_MARK = WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE

REQUESTS: dict[str, Callable[[str], Any]] = {
    "start_workflow": _start,
    "signal_workflow": lambda n: r.SignalWorkflowRequest(
        namespace=n, signal_name="s", request_id="2", input=PAYLOADS, **_RUN
    ),
    "signal_with_start": lambda n: r.SignalWithStartRequest(start=_start(n), signal_name="s", signal_input=PAYLOADS),
    "request_cancel_workflow": lambda n: r.RequestCancelRequest(namespace=n, request_id="3", **_RUN),
    "terminate_workflow": lambda n: r.TerminateWorkflowRequest(
        namespace=n, reason=SECRET_VALUE, details=PAYLOADS, **_RUN
    ),
    "reset_workflow": lambda n: r.ResetWorkflowRequest(
        namespace=n, reason=SECRET_VALUE, request_id="4", event_id=4, **_RUN
    ),
    "delete_workflow": lambda n: o.DeleteWorkflowRequest(namespace=n, **_RUN),
    "update_workflow": _update,
    "poll_update": lambda n: r.PollUpdateRequest(namespace=n, update_id="u1", **_RUN),
    "update_with_start": lambda n: r.UpdateWithStartRequest(start=_start(n), update=_update(n)),
    "update_workflow_options": lambda n: r.UpdateWorkflowOptionsRequest(namespace=n, **_RUN),
    "query_workflow": lambda n: r.QueryWorkflowRequest(namespace=n, query_type="q", query_args=PAYLOADS, **_RUN),
    "describe_workflow": lambda n: r.DescribeWorkflowRequest(namespace=n, **_RUN),
    "get_history": lambda n: r.GetHistoryRequest(namespace=n, **_RUN),
    "list_workflows": lambda n: r.ListWorkflowsRequest(namespace=n),
    "count_workflows": lambda n: r.CountWorkflowsRequest(namespace=n),
    "set_current_version": lambda n: d.SetCurrentVersionRequest(namespace=n, build_id="1", **_DEPLOYMENT),
    "set_ramping_version": lambda n: d.SetRampingVersionRequest(namespace=n, build_id="1", **_DEPLOYMENT),
    "describe_deployment": lambda n: d.DescribeDeploymentRequest(namespace=n, **_DEPLOYMENT),
    "list_deployments": lambda n: d.ListDeploymentsRequest(namespace=n),
    "delete_deployment_version": lambda n: d.DeleteDeploymentVersionRequest(namespace=n, build_id="1", **_DEPLOYMENT),
    "create_namespace": lambda n: o.CreateNamespaceRequest(name=n),
    "describe_namespace": lambda n: o.DescribeNamespaceRequest(namespace=n),
    "list_namespaces": lambda n: o.ListNamespacesRequest(),
    "describe_task_queue": lambda n: o.DescribeTaskQueueRequest(namespace=n, task_queue="q"),
    "list_task_queues": lambda n: o.ListTaskQueuesRequest(namespace=n),
    "issue_callback": lambda n: o.IssueCallbackRequest(target=token(n)),
    "issue_callback (by ids)": lambda n: o.IssueCallbackRequest(target=_target(n)),
    "open_callback": lambda n: o.OpenCallbackRequest(token="t"),
    "create_api_key": lambda n: k.CreateApiKeyRequest(name="ci", grants=(f"{n}:client",)),
    "list_api_keys": lambda n: k.ListApiKeysRequest(),
    "revoke_api_key": lambda n: k.RevokeApiKeyRequest(key_id="ab"),
    "rotate_api_key": lambda n: k.RotateApiKeyRequest(key_id="ab"),
    "attach_worker": lambda n: r.WorkerHello(namespace=n, task_queue="q", identity="w", instance_id="w-1"),
    "complete_workflow_task": lambda n: r.CompleteWorkflowTaskRequest(token=token(n)),
    "fail_workflow_task": lambda n: r.FailWorkflowTaskRequest(token=token(n), cause=_MARK),
    "record_markers": lambda n: r.RecordMarkersRequest(token=token(n), markers=(), after_event_id=3),
    "answer_query": lambda n: r.AnswerQueryRequest(token=token(n), result=r.QueryResult(query_id="1")),
    "complete_activity": lambda n: r.CompleteActivityRequest(token=token(n), result=PAYLOADS),
    "complete_activity (by ids)": lambda n: r.CompleteActivityRequest(token=_target(n), result=PAYLOADS),
    "fail_activity": lambda n: r.FailActivityRequest(token=token(n), failure=_FAILURE),
    "fail_activity (by ids)": lambda n: r.FailActivityRequest(token=_target(n), failure=_FAILURE),
    "cancel_activity": lambda n: r.CancelActivityRequest(token=token(n), details=PAYLOADS),
    "cancel_activity (by ids)": lambda n: r.CancelActivityRequest(token=_target(n), details=PAYLOADS),
    "release_activity": lambda n: r.ReleaseActivityRequest(token=token(n), reason="full"),
    "detach_activity": token,
    "heartbeat_activity": lambda n: r.HeartbeatActivityRequest(token=token(n), details=PAYLOADS),
    "heartbeat_activity (by ids)": lambda n: r.HeartbeatActivityRequest(token=_target(n), details=PAYLOADS),
}
"""By the name of the call; calls that can name an activity in two ways have two samples."""


class NullSink:
    """A worker's end that nothing should reach."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.cancelled: list[r.TaskToken] = []

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        self.tasks.append(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self.tasks.append(task)

    def cancel_activity(self, token: r.TaskToken, reason: r.ActivityCancelReason) -> None:
        self.cancelled.append(token)

    def evict_workflow(self, namespace: str, run_id: str) -> None: ...


class FakeSession:
    def __init__(self) -> None:
        self.session_id = "s1"
        self.is_detached = False
        self.granted = 0

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        self.granted += workflow_tasks + activity_tasks

    def stop_polling(self) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...

    def detach(self) -> None:
        self.is_detached = True


class FakeService:
    """Answers every call with what `answers` has for it, in one of the three ways in which the engine answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.sinks: list[TaskSink] = []
        self.sessions: list[FakeSession] = []

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> FakeSession:
        self.calls.append(("attach_worker", hello))
        self.sinks.append(sink)
        self.sessions.append(FakeSession())
        return self.sessions[-1]

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        def method(request: Any) -> Awaitable[Any]:
            self.calls.append((name, request))
            answer = self.answers.get(name, o.ListNamespacesResponse() if name == "list_namespaces" else None)
            kind = len(self.calls) % 3
            return _reply(answer) if kind == 0 else _future(answer) if kind == 1 else _coroutine(answer)

        return method


def _reply(answer: Any) -> Reply[Any]:
    reply: Reply[Any] = Reply()
    if isinstance(answer, BaseException):
        reply.set_exception(answer)
    else:
        reply.set_result(answer)
    return reply


def _future(answer: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


async def _coroutine(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer
