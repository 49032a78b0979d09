"""The service contract on behalf of one caller: allowed, counted, written down, redacted.

Owns: `AuthorizedService`, which every call from outside of the process goes through. Never: who the caller is
(authenticators), what a call needs (``calls``), or what it does (the engine behind).

How it works: each method looks its rule up by name and, before the engine sees the request, asks in this order: is the
credential still good, does a grant allow the call in each namespace that it touches, has the caller calls left, and is
the task token one that this server gave away. A refusal never reaches the engine. On the way back the outcome of a
mutating call is written down, and payloads are taken out for callers who may not see them. A caller whose credential
ends while it is attached as a worker loses its sessions: its tasks are offered to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec

from clew.model.access import Permission
from clew.model.failure import Failure
from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.audit import AuditLog, AuditRecord
from clew.ports.clock import Clock
from clew.server.security.calls import CALLS, CallRule
from clew.server.security.limits import RateLimiter
from clew.server.security.principal import Principal, permission_denied, unauthenticated
from clew.server.security.redaction import without_payloads
from clew.server.security.seals import TokenSeals
from clew.server.security.subjects import subject_of
from clew.service import deployments as d
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import EarlyTaskSink, Service, TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.telling import telling

T = TypeVar("T")

_PAYLOADS: Final = Permission.PAYLOADS

_NAMESPACES_MAX: Final = 1_000
"""Whose permissions are remembered for one caller: names come from requests, so their number is not ours to choose."""


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """What the services of all callers share.

    Args:
        clock: Time.
        seals: Makes and checks the seals of task tokens; None where every caller is trusted.
        limiter: Counts calls; None for no limit.
        audit: Where mutating calls are written down; None for nowhere.
        audits_tasks: Whether the traffic of tasks is written down too; it takes a fifth of what a task costs, and
            histories name the worker of each task anyway.
        is_audit_required: Whether a mutating call is refused while the audit log cannot be written.
        on_key_change: Told when a key was revoked or replaced through this node.
    """

    clock: Clock
    seals: TokenSeals | None = None
    limiter: RateLimiter | None = None
    audit: AuditLog | None = None
    audits_tasks: bool = True
    is_audit_required: bool = False
    on_key_change: Callable[[], None] | None = None

    @property
    def watches(self) -> bool:
        """Whether anything is looked at but grants."""
        return self.seals is not None or self.limiter is not None or self.audit is not None or self.is_audit_required


@final
class AuthorizedService:
    """See the module docstring. Implements ``service.contract.Service``; belongs to the service loop.

    Args:
        service: The engine.
        principal: Who calls.
        guards: What all callers share.
        source: Where the calls come from, for the audit log.
        is_live: Whether the caller's credential is still good.
        on_end: Told once, when it no longer is: close the connection.
    """

    def __init__(
        self,
        service: Service,
        principal: Principal,
        guards: Guards,
        *,
        source: str = "",
        is_live: Callable[[], bool] | None = None,
        on_end: Callable[[RPCError], None] | None = None,
    ) -> None:
        self.principal: Final = principal
        self._service = service
        self._guards = guards
        self._source = source
        self._is_live = is_live
        self._on_end = on_end
        self._is_ended = False
        self._is_open = is_live is None and not guards.watches
        """Whether a call needs nothing but a grant: no credential that could end, nothing counted, noted or sealed."""
        self._permissions: dict[str, frozenset[Permission]] = {}
        self._sessions: set[_Session] = set()

    # --- clients: changing a run ------------------------------------------------------------------------------------

    def start_workflow(self, request: r.StartWorkflowRequest) -> Awaitable[r.StartWorkflowResponse]:
        """See `Service`, here and below."""
        return self._call("start_workflow", request, self._service.start_workflow)

    def signal_workflow(self, request: r.SignalWorkflowRequest) -> Awaitable[None]:
        return self._call("signal_workflow", request, self._service.signal_workflow)

    def signal_with_start(self, request: r.SignalWithStartRequest) -> Awaitable[r.StartWorkflowResponse]:
        return self._call("signal_with_start", request, self._service.signal_with_start)

    def request_cancel_workflow(self, request: r.RequestCancelRequest) -> Awaitable[None]:
        return self._call("request_cancel_workflow", request, self._service.request_cancel_workflow)

    def terminate_workflow(self, request: r.TerminateWorkflowRequest) -> Awaitable[None]:
        return self._call("terminate_workflow", request, self._service.terminate_workflow)

    def reset_workflow(self, request: r.ResetWorkflowRequest) -> Awaitable[r.ResetWorkflowResponse]:
        return self._call("reset_workflow", request, self._service.reset_workflow)

    def delete_workflow(self, request: o.DeleteWorkflowRequest) -> Awaitable[o.DeleteWorkflowResponse]:
        return self._call("delete_workflow", request, self._service.delete_workflow)

    def update_workflow(self, request: r.UpdateWorkflowRequest) -> Awaitable[r.UpdateResponse]:
        return self._call("update_workflow", request, self._service.update_workflow)

    def poll_update(self, request: r.PollUpdateRequest) -> Awaitable[r.UpdateResponse]:
        return self._call("poll_update", request, self._service.poll_update)

    def update_with_start(self, request: r.UpdateWithStartRequest) -> Awaitable[r.UpdateWithStartResponse]:
        return self._call("update_with_start", request, self._service.update_with_start)

    def update_workflow_options(
        self, request: r.UpdateWorkflowOptionsRequest
    ) -> Awaitable[r.UpdateWorkflowOptionsResponse]:
        return self._call("update_workflow_options", request, self._service.update_workflow_options)

    # --- clients: reading -------------------------------------------------------------------------------------------

    def query_workflow(self, request: r.QueryWorkflowRequest) -> Awaitable[r.QueryWorkflowResponse]:
        return self._call("query_workflow", request, self._service.query_workflow)

    def describe_workflow(self, request: r.DescribeWorkflowRequest) -> Awaitable[r.WorkflowDescription]:
        return self._call("describe_workflow", request, self._service.describe_workflow)

    def get_history(self, request: r.GetHistoryRequest) -> Awaitable[r.GetHistoryResponse]:
        return self._call("get_history", request, self._service.get_history)

    def list_workflows(self, request: r.ListWorkflowsRequest) -> Awaitable[r.ListWorkflowsResponse]:
        return self._call("list_workflows", request, self._service.list_workflows)

    def count_workflows(self, request: r.CountWorkflowsRequest) -> Awaitable[r.CountWorkflowsResponse]:
        return self._call("count_workflows", request, self._service.count_workflows)

    # --- operators and admins ---------------------------------------------------------------------------------------

    def set_current_version(self, request: d.SetCurrentVersionRequest) -> Awaitable[d.DeploymentInfo]:
        return self._call("set_current_version", request, self._service.set_current_version)

    def set_ramping_version(self, request: d.SetRampingVersionRequest) -> Awaitable[d.DeploymentInfo]:
        return self._call("set_ramping_version", request, self._service.set_ramping_version)

    def describe_deployment(self, request: d.DescribeDeploymentRequest) -> Awaitable[d.DeploymentDescription]:
        return self._call("describe_deployment", request, self._service.describe_deployment)

    def list_deployments(self, request: d.ListDeploymentsRequest) -> Awaitable[d.ListDeploymentsResponse]:
        return self._call("list_deployments", request, self._service.list_deployments)

    def delete_deployment_version(self, request: d.DeleteDeploymentVersionRequest) -> Awaitable[None]:
        return self._call("delete_deployment_version", request, self._service.delete_deployment_version)

    def create_namespace(self, request: o.CreateNamespaceRequest) -> Awaitable[o.NamespaceInfo]:
        return self._call("create_namespace", request, self._service.create_namespace)

    def describe_namespace(self, request: o.DescribeNamespaceRequest) -> Awaitable[o.NamespaceInfo]:
        return self._call("describe_namespace", request, self._service.describe_namespace)

    async def list_namespaces(self, request: o.ListNamespacesRequest) -> o.ListNamespacesResponse:
        """Those in which the caller may read."""
        answer: o.ListNamespacesResponse = await self._call("list_namespaces", request, self._service.list_namespaces)
        needed = CALLS["list_namespaces"].any_of
        seen = tuple(info for info in answer.namespaces if self._permissions_in(info.name) & needed)
        return o.ListNamespacesResponse(namespaces=seen)

    def describe_task_queue(self, request: o.DescribeTaskQueueRequest) -> Awaitable[o.TaskQueueInfo]:
        return self._call("describe_task_queue", request, self._service.describe_task_queue)

    def list_task_queues(self, request: o.ListTaskQueuesRequest) -> Awaitable[o.ListTaskQueuesResponse]:
        return self._call("list_task_queues", request, self._service.list_task_queues)

    def issue_callback(self, request: o.IssueCallbackRequest) -> Awaitable[o.IssueCallbackResponse]:
        return self._call("issue_callback", request, self._service.issue_callback)

    def open_callback(self, request: o.OpenCallbackRequest) -> Awaitable[o.OpenCallbackResponse]:
        return self._call("open_callback", request, self._service.open_callback)

    def create_api_key(self, request: k.CreateApiKeyRequest) -> Awaitable[k.CreateApiKeyResponse]:
        return self._call("create_api_key", request, self._service.create_api_key)

    def list_api_keys(self, request: k.ListApiKeysRequest) -> Awaitable[k.ListApiKeysResponse]:
        return self._call("list_api_keys", request, self._service.list_api_keys)

    def revoke_api_key(self, request: k.RevokeApiKeyRequest) -> Awaitable[k.ApiKeyInfo]:
        return self._telling_of_keys(self._call("revoke_api_key", request, self._service.revoke_api_key))

    def rotate_api_key(self, request: k.RotateApiKeyRequest) -> Awaitable[k.CreateApiKeyResponse]:
        return self._telling_of_keys(self._call("rotate_api_key", request, self._service.rotate_api_key))

    def _telling_of_keys(self, answer: Awaitable[T]) -> Awaitable[T]:
        """The same answer; this node looks at the keys again as soon as it has come."""
        on_change = self._guards.on_key_change
        return answer if on_change is None else telling(answer, lambda error: on_change() if error is None else None)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """Take in a worker, if a grant lets it serve this very queue."""

        async def attach(hello: r.WorkerHello) -> WorkerSession:
            if not self.principal.may_serve(hello.namespace, hello.task_queue):
                raise _queue_denied(self.principal, hello)
            seals = self._guards.seals
            inner = await self._service.attach_worker(hello, sink if seals is None else _sealing(sink, seals))
            session = _Session(inner, self._sessions)
            if self._is_ended:
                session.detach()
                raise unauthenticated()
            return session

        session: WorkerSession = await self._call("attach_worker", hello, attach)
        return session

    def complete_workflow_task(self, request: r.CompleteWorkflowTaskRequest) -> Awaitable[None]:
        return self._call("complete_workflow_task", request, self._service.complete_workflow_task)

    def fail_workflow_task(self, request: r.FailWorkflowTaskRequest) -> Awaitable[None]:
        return self._call("fail_workflow_task", request, self._service.fail_workflow_task)

    def record_markers(self, request: r.RecordMarkersRequest) -> Awaitable[r.RecordMarkersResponse]:
        return self._call("record_markers", request, self._service.record_markers)

    def answer_query(self, request: r.AnswerQueryRequest) -> Awaitable[None]:
        return self._call("answer_query", request, self._service.answer_query)

    def complete_activity(self, request: r.CompleteActivityRequest) -> Awaitable[None]:
        return self._call("complete_activity", request, self._service.complete_activity)

    def fail_activity(self, request: r.FailActivityRequest) -> Awaitable[None]:
        return self._call("fail_activity", request, self._service.fail_activity)

    def cancel_activity(self, request: r.CancelActivityRequest) -> Awaitable[None]:
        return self._call("cancel_activity", request, self._service.cancel_activity)

    def release_activity(self, request: r.ReleaseActivityRequest) -> Awaitable[None]:
        return self._call("release_activity", request, self._service.release_activity)

    def detach_activity(self, token: r.TaskToken) -> Awaitable[None]:
        return self._call("detach_activity", token, self._service.detach_activity)

    def heartbeat_activity(self, request: r.HeartbeatActivityRequest) -> Awaitable[r.HeartbeatActivityResponse]:
        return self._call("heartbeat_activity", request, self._service.heartbeat_activity)

    # --- the life of a caller ---------------------------------------------------------------------------------------

    @property
    def is_ended(self) -> bool:
        """Whether the credential has ended: every call is refused from then on."""
        return self._is_ended

    def check(self) -> None:
        """End this caller's sessions if its credential has ended; to be called now and then while it is connected."""
        if not self._is_ended and self._is_live is not None and not self._is_live():
            self._end()

    def _end(self) -> None:
        self._is_ended = True
        for session in list(self._sessions):
            session.detach()
        self._note(event="session_ended", outcome=RejectionCode.UNAUTHENTICATED.value)
        if self._on_end is not None:
            self._on_end(unauthenticated())

    # --- one call ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, request: Any, method: Callable[[Any], Awaitable[T]]) -> Awaitable[T]:
        rule = CALLS[name]
        namespaces = rule.namespaces_of(request)
        if self._is_open and self._may(namespaces, rule.needed_for(request)):
            return method(request) if rule.is_task or self._may_see(namespaces) else _redacted(method(request))
        now = self._guards.clock.now()
        try:
            opened = self._admit(name, rule, request, namespaces, now)
        except RPCError as error:
            self._note_refusal(name, namespaces, request, error, now)
            refused: Reply[T] = Reply()
            refused.set_exception(error)
            return refused
        answer = method(opened)
        if rule.changes and self._guards.audit is not None and (self._guards.audits_tasks or not rule.is_task):
            answer = telling(answer, partial(self._note_outcome, name, namespaces, request, now))
        return answer if rule.is_task or self._may_see(namespaces) else _redacted(answer)

    def _may(self, namespaces: tuple[str, ...], needed: frozenset[Permission]) -> bool:
        for namespace in namespaces:  # noqa: SIM110 - a generator would cost more than what it asks
            if needed.isdisjoint(self._permissions_in(namespace)):
                return False
        return True

    def _may_see(self, namespaces: tuple[str, ...]) -> bool:
        return all(_PAYLOADS in self._permissions_in(namespace) for namespace in namespaces)

    def _admit(self, name: str, rule: CallRule, request: Any, namespaces: tuple[str, ...], now: datetime) -> Any:
        """The request as the engine may see it; raises the refusal."""
        self.check()
        if self._is_ended:
            raise unauthenticated()
        needed = rule.needed_for(request)
        for namespace in namespaces:
            if not self._permissions_in(namespace) & needed:
                raise permission_denied(self.principal, name, namespace, needed)
        guards = self._guards
        if guards.limiter is not None and not rule.is_task:
            refusal = guards.limiter.take(self.principal.principal_id, now, self.principal.calls_per_second_max)
            if refusal is not None:
                raise refusal
        if rule.changes and guards.is_audit_required and (guards.audit is None or not guards.audit.is_healthy()):
            raise _audit_unavailable()
        return request if guards.seals is None else _opened(request, guards.seals)

    def _permissions_in(self, namespace: str) -> frozenset[Permission]:
        known = self._permissions.get(namespace)
        if known is None:
            if len(self._permissions) >= _NAMESPACES_MAX:
                self._permissions.clear()
            known = self._permissions[namespace] = self.principal.permissions_in(namespace)
        return known

    # --- the audit log ----------------------------------------------------------------------------------------------

    def _note_outcome(
        self, name: str, namespaces: tuple[str, ...], request: Any, at: datetime, error: BaseException | None
    ) -> None:
        took = (self._guards.clock.now() - at).total_seconds() * 1000
        self._note(
            event="call", call=name, namespaces=namespaces, request=request, at=at, outcome=_outcome_of(error),
            duration_ms=round(took, 3),
        )  # fmt: skip

    def _note_refusal(
        self, name: str, namespaces: tuple[str, ...], request: Any, error: RPCError, at: datetime
    ) -> None:
        self._note(event="refused", call=name, namespaces=namespaces, request=request, at=at, outcome=error.code.value)

    def _note(
        self,
        *,
        event: str,
        outcome: str,
        call: str = "",
        namespaces: tuple[str, ...] = (),
        request: Any = None,
        at: datetime | None = None,
        duration_ms: float | None = None,
    ) -> None:
        audit = self._guards.audit
        if audit is None:
            return
        record = AuditRecord(
            at=at if at is not None else self._guards.clock.now(),
            event=event,
            principal=self.principal.principal_id,
            principal_name=self.principal.name,
            source=self._source,
            call=call,
            namespace=" ".join(dict.fromkeys(namespaces)),
            subject=subject_of(request) if request is not None else {},
            outcome=outcome,
            duration_ms=duration_ms,
        )
        audit.write(record)


if TYPE_CHECKING:
    _is_the_contract: type[Service] = AuthorizedService


@final
class _Session:
    """A worker's session that its caller's end can end."""

    def __init__(self, inner: WorkerSession, sessions: set[_Session]) -> None:
        self._inner = inner
        self._sessions = sessions
        self.session_id = inner.session_id
        sessions.add(self)

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        self._inner.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def stop_polling(self) -> None:
        self._inner.stop_polling()

    def note_unanswered(self, token: TaskToken) -> None:
        self._inner.note_unanswered(token)

    def suspend(self) -> None:
        self._inner.suspend()

    def resume(self) -> None:
        self._inner.resume()

    def detach(self) -> None:
        self._sessions.discard(self)
        self._inner.detach()


class _SealingSink:
    """A worker's end that gets sealed tokens."""

    def __init__(self, inner: TaskSink, seals: TokenSeals) -> None:
        self._inner = inner
        self._seals = seals

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        self._inner.offer_workflow_task(msgspec.structs.replace(task, token=self._seals.seal(task.token)))

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self._inner.offer_activity_task(msgspec.structs.replace(task, token=self._seals.seal(task.token)))

    def cancel_activity(self, token: r.TaskToken, reason: r.ActivityCancelReason) -> None:
        self._inner.cancel_activity(self._seals.seal(token), reason)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self._inner.evict_workflow(namespace, run_id)


@final
class _SealingEarlySink(_SealingSink):
    """The same of one that takes workflow tasks early."""

    def __init__(self, inner: TaskSink, early: EarlyTaskSink, seals: TokenSeals) -> None:
        super().__init__(inner, seals)
        self._early = early
        self.confirm_workflow_task = early.confirm_workflow_task

    def offer_early_workflow_task(self, task: r.WorkflowTask) -> bool:
        return self._early.offer_early_workflow_task(msgspec.structs.replace(task, token=self._seals.seal(task.token)))


def _sealing(sink: TaskSink, seals: TokenSeals) -> TaskSink:
    return _SealingEarlySink(sink, sink, seals) if isinstance(sink, EarlyTaskSink) else _SealingSink(sink, seals)


def _opened(request: Any, seals: TokenSeals) -> Any:
    if type(request) is TaskToken:
        return seals.open(request)
    for name in ("token", "target"):
        token = getattr(request, name, None)
        if type(token) is TaskToken:
            return msgspec.structs.replace(request, **{name: seals.open(token)})
    return request


async def _redacted(answer: Awaitable[T]) -> T:
    try:
        return without_payloads(await answer)
    except RPCError as error:
        failure = error.rejection.details.get("failure")
        if failure is None:
            raise
        told = msgspec.json.encode(without_payloads(msgspec.json.decode(failure, type=Failure))).decode()
        details = {**error.rejection.details, "failure": told}
        raise RPCError(msgspec.structs.replace(error.rejection, details=details)) from None


def _outcome_of(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    if isinstance(error, RPCError):
        return error.code.value
    return "cancelled" if isinstance(error, asyncio.CancelledError) else RejectionCode.INTERNAL.value


def _queue_denied(principal: Principal, hello: r.WorkerHello) -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.PERMISSION_DENIED,
            message=f"{principal} may not serve task queue {hello.task_queue!r} of namespace {hello.namespace!r}: its "
            "grants name other queues; ask an admin for a key with this one",
            details={"call": "attach_worker", "namespace": hello.namespace, "task_queue": hello.task_queue},
        )
    )


def _audit_unavailable() -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.UNAVAILABLE,
            message="the audit log cannot be written, and this server makes no change that is not written down; "
            "nothing was done; try again once its disk has room",
        )
    )
