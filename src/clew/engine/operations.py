"""What operators ask of a node: namespaces, task queues, callback tokens.

Owns: these calls of the contract. Never: decides about a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from clew.engine.callbacks import open_callback, sign_callback
from clew.engine.locate import Locator
from clew.engine.matching import Matcher, Session
from clew.engine.namespaces import SECRET_BYTES, Namespace, Namespaces
from clew.engine.peers import Peers
from clew.engine.runs import RunCache
from clew.model.inputs import ActivityTarget
from clew.model.limits import DURATION_MAX, RETENTION_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import Backlog, NamespaceRow, Store, TaskKind
from clew.service import operations as o
from clew.service.errors import RPCError
from clew.service.requests import WorkerHello

CALLBACK_EXPIRY_DEFAULT: Final = timedelta(days=7)

_NAMESPACE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Operations:
    """All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        *,
        cache: RunCache,
        matcher: Matcher,
        locator: Locator,
        namespaces: Namespaces,
        peers: Peers,
    ) -> None:
        self._store = store
        self._peers = peers
        self._clock = clock
        self._entropy = entropy
        self._cache = cache
        self._matcher = matcher
        self._locator = locator
        self._namespaces = namespaces

    # --- namespaces -------------------------------------------------------------------------------------------------

    async def create_namespace(self, request: o.CreateNamespaceRequest) -> o.NamespaceInfo:
        """Make a namespace; refused when there is one of the name."""
        retention = request.retention or RETENTION_DEFAULT
        _check_namespace(request, retention)
        row = NamespaceRow(
            name=request.name,
            secret=self._entropy.token(SECRET_BYTES),
            retention_seconds=int(retention.total_seconds()),
            settings=msgspec.json.encode(request.limits, order="sorted"),
        )
        if not await self._store.put_namespace(row):
            raise RPCError(
                Rejection(
                    code=RejectionCode.NAMESPACE_ALREADY_EXISTS,
                    message=f"namespace {request.name!r} is there already and was left as it is; choose another name",
                    details={"namespace": request.name},
                )
            )
        made = await self._namespaces.find(request.name)
        await self._peers.spread_settings()
        return _info(made)

    async def describe_namespace(self, request: o.DescribeNamespaceRequest) -> o.NamespaceInfo:
        """One namespace."""
        return _info(await self._namespaces.find(request.namespace))

    async def list_namespaces(self, request: o.ListNamespacesRequest) -> o.ListNamespacesResponse:
        """All namespaces, by name."""
        await self._namespaces.load()
        found = sorted(self._namespaces.all(), key=lambda namespace: namespace.name)
        return o.ListNamespacesResponse(namespaces=tuple(_info(one) for one in found))

    # --- task queues ------------------------------------------------------------------------------------------------

    async def describe_task_queue(self, request: o.DescribeTaskQueueRequest) -> o.TaskQueueInfo:
        """What waits in one queue; one that nobody ever used is empty."""
        await self._namespaces.find(request.namespace)
        backlogs = [one for one in await self._store.list_backlogs() if one.namespace == request.namespace]
        return await self._queue(request.namespace, request.task_queue, backlogs)

    async def list_task_queues(self, request: o.ListTaskQueuesRequest) -> o.ListTaskQueuesResponse:
        """The queues with work waiting or workers attached."""
        await self._namespaces.find(request.namespace)
        backlogs = [one for one in await self._store.list_backlogs() if one.namespace == request.namespace]
        names = {one.task_queue for one in backlogs}
        names |= {one.hello.task_queue for one in self._matcher.sessions() if one.hello.namespace == request.namespace}
        names |= {one.hello.task_queue for one in self._peers.workers(request.namespace)}
        queues = [await self._queue(request.namespace, name, backlogs) for name in sorted(names)]
        return o.ListTaskQueuesResponse(task_queues=tuple(queues))

    async def _queue(self, namespace: str, name: str, backlogs: Iterable[Backlog]) -> o.TaskQueueInfo:
        counts = dict.fromkeys(TaskKind, 0)
        oldest: dict[TaskKind, datetime | None] = dict.fromkeys(TaskKind)
        for backlog in backlogs:
            if backlog.task_queue == name:
                counts[backlog.kind] = backlog.count
                oldest[backlog.kind] = await self._waits_since(backlog)
        pollers = [
            _poller(session)
            for session in self._matcher.sessions()
            if (session.hello.namespace, session.hello.task_queue) == (namespace, name)
        ]
        pollers += [_distant_poller(worker.hello) for worker in self._peers.workers(namespace, name)]
        return o.TaskQueueInfo(
            namespace=namespace,
            task_queue=name,
            workflow_backlog=counts[TaskKind.WORKFLOW],
            activity_backlog=counts[TaskKind.ACTIVITY],
            workflow_oldest_at=oldest[TaskKind.WORKFLOW],
            activity_oldest_at=oldest[TaskKind.ACTIVITY],
            pollers=tuple(pollers),
        )

    async def _waits_since(self, backlog: Backlog) -> datetime | None:
        """Since when its oldest task has waited; None when it was taken or given up meanwhile."""
        row = backlog.oldest
        entry = await self._cache.load(row.shard, row.run_key)
        if entry is None:
            return None
        if backlog.kind is TaskKind.ACTIVITY:
            activity = entry.state.activities.get(row.scheduled_event_id)
            return None if activity is None else activity.attempt_scheduled_time or activity.scheduled_time
        task = entry.state.workflow_task
        return None if task is None else task.scheduled_time

    # --- callbacks --------------------------------------------------------------------------------------------------

    async def issue_callback(self, request: o.IssueCallbackRequest) -> o.IssueCallbackResponse:
        """Sign a token for one activity that is pending."""
        target = request.target
        expires_in = request.expires_in or CALLBACK_EXPIRY_DEFAULT
        if not timedelta(seconds=1) <= expires_in <= DURATION_MAX:
            raise _invalid(f"expires_in is {expires_in}; a callback token lives from one second to 100 years")
        await self._namespaces.find(target.namespace)
        entry = await self._locator.find(target.namespace, target.workflow_id, target.run_id)
        state = entry.state
        if not any(activity.activity_id == target.activity_id for activity in state.activities.values()):
            raise RPCError(
                Rejection(
                    code=RejectionCode.ACTIVITY_NOT_FOUND,
                    message=f"run {state.run_id} of workflow {target.workflow_id!r} has no pending activity "
                    f"{target.activity_id!r}; it has closed, or was never scheduled; look at `describe`",
                    details={"activity_id": target.activity_id, "run_id": state.run_id},
                )
            )
        if isinstance(target, ActivityTarget):
            # Pinned: "the latest run" may be another one by the time the token is used.
            target = msgspec.structs.replace(target, run_id=state.run_id)
        expires_at = (self._clock.now() + expires_in).replace(microsecond=0)
        secret = self._namespaces.secret_of(target.namespace)
        return o.IssueCallbackResponse(token=sign_callback(secret, target, expires_at), expires_at=expires_at)

    async def open_callback(self, request: o.OpenCallbackRequest) -> o.OpenCallbackResponse:
        """The activity that a genuine token is for."""
        target, expires_at = open_callback(request.token, self._namespaces.secret_of, self._clock.now())
        return o.OpenCallbackResponse(target=target, expires_at=expires_at)


def _check_namespace(request: o.CreateNamespaceRequest, retention: timedelta) -> None:
    if not _NAMESPACE_NAME.fullmatch(request.name):
        raise _invalid(
            f"{request.name!r} cannot be the name of a namespace; use letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit, 63 characters at most"
        )
    if not timedelta(seconds=1) <= retention <= DURATION_MAX:
        raise _invalid(f"retention is {retention}; it may be from one second to 100 years")
    for name, number in request.limits.items():
        if name not in Limits.__struct_fields__:
            raise _invalid(f"there is no limit {name!r}; there are: {', '.join(Limits.__struct_fields__)}")
        if number < 1:
            raise _invalid(f"limit {name} is {number}; it must be at least 1")


def _info(namespace: Namespace) -> o.NamespaceInfo:
    return o.NamespaceInfo(
        name=namespace.name, retention=timedelta(seconds=namespace.retention_seconds), limits=namespace.settings
    )


def _poller(session: Session) -> o.PollerInfo:
    hello = session.hello
    return o.PollerInfo(
        identity=hello.identity,
        takes_workflow_tasks=hello.takes_workflow_tasks,
        takes_activity_tasks=hello.takes_activity_tasks,
        deployment_version=hello.deployment_version,
        workflow_credits=max(0, session.workflow_credits),
        activity_credits=session.activity_credits,
    )


def _distant_poller(hello: WorkerHello) -> o.PollerInfo:
    return o.PollerInfo(
        identity=hello.identity,
        takes_workflow_tasks=hello.takes_workflow_tasks,
        takes_activity_tasks=hello.takes_activity_tasks,
        deployment_version=hello.deployment_version,
        workflow_credits=None,
        activity_credits=None,
    )


def _invalid(message: str) -> RPCError:
    return RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=message))
