"""The engine: one node, offering the service contract over one store.

Owns: the composition of the node's parts, its start and stop, and the calls of the contract.
Never: decides (``core``), speaks SQL (``storage``) or knows who calls (client, worker, link, CLI).

How it works: every call finds its run (`WaysIn`), wraps its decision in an `Operation` and gives it to the `Funnel`;
what only reads goes to the store or to memory. All of it belongs to one event loop. Starting means: know the
namespaces, take up what was out at workers when the store was last let go of (`LostWorkers`), arm the timers, deliver
the outbox. Stopping means: refuse new calls, wait until everything accepted is durable, let go of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

import msgspec

from clew.core.decisions import (
    decide_cancel_activity,
    decide_cancel_request,
    decide_complete_activity,
    decide_complete_workflow_task,
    decide_detach_activity,
    decide_due,
    decide_fail_activity,
    decide_fail_workflow_task,
    decide_heartbeat_activity,
    decide_record_markers,
    decide_release_activity,
    decide_signal,
    decide_terminate,
    decide_update_options,
)
from clew.core.replies import RecordedMarkers
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.api_keys import ApiKeys
from clew.engine.asking import Asking
from clew.engine.attention import Attention
from clew.engine.claims import Claims
from clew.engine.close_waits import CloseWaits
from clew.engine.deletion import Deletions
from clew.engine.deployments import Deployments
from clew.engine.describe import describe_state
from clew.engine.early import EarlyTasks
from clew.engine.express import Express
from clew.engine.fleet import Fleet, FleetSettings
from clew.engine.funnel import Decision, Funnel, Operation, telling_store_errors
from clew.engine.held_results import HeldResults
from clew.engine.history import HistoryWaiters
from clew.engine.ids import IdBlocks, Ids
from clew.engine.keeping import Keeping
from clew.engine.locate import Locator, load_again
from clew.engine.lost_workers import LostWorkers
from clew.engine.matching import CLAIM_LEASE, Matcher, Session, Want
from clew.engine.namespaces import Namespaces
from clew.engine.node_clock import NodeClock
from clew.engine.offers import OfferDesk
from clew.engine.operations import Operations
from clew.engine.outbox import Outbox
from clew.engine.peers import Peers
from clew.engine.pipeline import CommitPipeline
from clew.engine.queries import QueryDesk
from clew.engine.reactions import Reactions
from clew.engine.reading import Reader
from clew.engine.recovery import Lost, LostSessions
from clew.engine.resets import Resets
from clew.engine.runs import TAIL_EVENTS_MAX, RunCache, RunEntry
from clew.engine.starts import Started, Starter, StartExtras
from clew.engine.update_with_start import UpdatesWithStart
from clew.engine.updates import UpdateDesk
from clew.engine.versions import Versions
from clew.engine.ways_in import WaysIn, decide_nothing, lacks_started
from clew.model import inputs as i
from clew.model.events import WorkflowExecutionOptionsUpdated, WorkflowTaskCompleted
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.policies import VersioningBehavior, WorkflowIDConflictPolicy
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import OutboxRow, Store, StoreError, TaskKind
from clew.ports.telemetry import SILENCE, Telemetry
from clew.service import deployments as d
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.service.reply import Reply

logger = logging.getLogger("clew.engine")

T = TypeVar("T")


class Engine:
    """One node. Implements ``service.contract.Service``; make it with `Engine(...)`, then `await start()`.

    Args:
        store: An open store; `stop` closes it.
        clock: Time.
        entropy: Identifiers and secrets.
        node_id: Unique per engine process; part of its sessions' ids. In a fleet the node takes ids of its own.
        limits: What runs may take, where a namespace does not say its own.
        fleet: How this node takes part in a fleet; None when the store is its alone.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        entropy: Entropy,
        node_id: str = "",
        limits: Limits = LIMITS_DEFAULT,
        fleet: FleetSettings | None = None,
        telemetry: Telemetry = SILENCE,
    ) -> None:
        if fleet is not None:
            clock = node_clock = NodeClock(clock)
            self._fleet: Fleet | None = Fleet(store, node_clock, entropy, fleet)
        else:
            self._fleet = None
        self._peers = peers = self._fleet or Peers()
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._own_id = node_id or entropy.uuid7()
        self._loop = asyncio.get_running_loop()
        self._is_open = False
        self.namespaces = Namespaces(store, entropy, limits_default=limits)
        self._ids: Ids = IdBlocks(store) if self._fleet is None else self._fleet.ids
        self._cache = RunCache(
            store, on_stale=self._discarded, on_unneeded=lambda entry: self._attention.release(entry)
        )
        self._waiters = HistoryWaiters()
        self._waking: set[int] = set()
        """Runs with a deadline that is due, whose first event is being read."""
        self._locator = Locator(
            store,
            self._cache,
            self.namespaces,
            peers,
            on_stale=self._discarded,
            wait_settled=self._wait_settled,
            telemetry=telemetry,
        )
        self._pipeline = CommitPipeline(
            store,
            self._ids,
            on_discard=self._discarded,
            on_finished=self._finished,
            version_after=self._ids.version_after,
        )
        self._versions = Versions(store, clock, on_rerouted=self._rerouted, peers=peers)
        self._matcher: Matcher = Matcher(
            store,
            clock,
            node_id=self._own_id,
            start_claimed=lambda row, is_shared: self._claims.start(row, is_shared=is_shared),
            start_sticky=lambda session, run_key, event_id, attempt: self._claims.start_sticky(
                session, run_key, event_id, attempt
            ),
            recheck_sticky=lambda session: self._claims.recheck_sticky(session),
            on_suspended=self._suspended,
            on_detached=self._detached,
            on_unanswered=self._unanswered,
            peers=peers,
            claim_lease=CLAIM_LEASE if fleet is None else fleet.lease,
        )
        self._desk = OfferDesk(
            store,
            self._matcher,
            self._ids,
            limits_of=lambda name: self.namespaces.get(name).limits,
            secret_of=self.namespaces.secret_of,
            spawn=lambda work: self._funnel.spawn(work),
            versions=self._versions,
            peers=peers,
        )
        self._early = EarlyTasks(self._matcher, self._pipeline)
        self._funnel: Funnel = Funnel(
            clock=clock,
            cache=self._cache,
            pipeline=self._pipeline,
            desk=self._desk,
            early=self._early,
            adopt_new_run=lambda entry, state: self._starter.adopt_successor(entry, state),
            on_changed=self._changed,
            on_outbox=self._deliver,
            on_discard=self._discarded,
            on_failed=self._commit_failed,
            peers=peers,
            is_current=self._locator.is_current,
        )
        self._starter: Starter = Starter(
            store=store,
            clock=clock,
            entropy=entropy,
            ids=self._ids,
            cache=self._cache,
            pipeline=self._pipeline,
            funnel=self._funnel,
            namespaces=self.namespaces,
            locator=self._locator,
        )
        self._attention = Attention(
            store,
            clock,
            self._cache,
            peers=peers,
            rescan=None if fleet is None else fleet.lease,
            wake=self._wake_due,
            on_stale=self._discarded,
            telemetry=telemetry,
        )
        self._express = Express(
            clock=clock,
            entropy=entropy,
            ids=self._ids,
            cache=self._cache,
            pipeline=self._pipeline,
            funnel=self._funnel,
            desk=self._desk,
            matcher=self._matcher,
            versions=self._versions,
            namespaces=self.namespaces,
            attention=self._attention,
            waiters=self._waiters,
            peers=self._peers,
            early=self._early,
            starter=self._starter,
            general_operation=self._general_operation,
            wake_askers=self._wake_askers,
        )
        self._claims: Claims = Claims(
            store=store,
            clock=clock,
            cache=self._cache,
            matcher=self._matcher,
            desk=self._desk,
            funnel=self._funnel,
            versions=self._versions,
            locator=self._locator,
            peers=peers,
        )
        self._held = HeldResults(self._clock)
        self._outbox = Outbox(
            store=store,
            cache=self._cache,
            funnel=self._funnel,
            locator=self._locator,
            starter=lambda: self._starter,
            versions=self._versions,
            peers=peers,
            limits_of=self._limits,
        )
        self._queries = QueryDesk(store, clock, entropy, self._matcher, self._versions, self._wait_settled)
        self._asking = Asking(
            queries=self._queries,
            locator=self._locator,
            matcher=self._matcher,
            versions=self._versions,
            namespaces=self.namespaces,
            fleet=self._fleet,
        )
        self._updates = UpdateDesk(store, self._cache, self._funnel, self._locator, self.namespaces, peers)
        self._updates_with_start = UpdatesWithStart(
            starter=self._starter, updates=self._updates, locator=self._locator, namespaces=self.namespaces
        )
        self._resets = Resets(
            store=store, entropy=entropy, funnel=self._funnel, locator=self._locator, namespaces=self.namespaces
        )
        self._deployments = Deployments(
            store, clock, self._versions, self.namespaces, is_attached=self._matcher.is_version_attached
        )
        self._operations = Operations(
            store,
            clock,
            entropy,
            cache=self._cache,
            matcher=self._matcher,
            locator=self._locator,
            namespaces=self.namespaces,
            peers=peers,
        )
        self._deletions = Deletions(store, self._cache, self._locator, self._wait_settled)
        self._api_keys = ApiKeys(store, clock, entropy)
        self._reader = Reader(store, self._locator, self._waiters, self.namespaces, peers)
        self._close_waits = CloseWaits(
            cache=self._cache, waiters=self._waiters, peers=peers, read=self._reader.get_history
        )
        self._keeping = Keeping(
            store, clock, self._cache, self._funnel, self._desk, namespaces=self.namespaces, peers=peers
        )
        self._ways = WaysIn(
            locator=self._locator,
            funnel=self._funnel,
            reader=self._reader,
            early=self._early,
            refuses=self._refuses,
        )
        self._lost_workers = LostWorkers(
            store=store,
            clock=clock,
            cache=self._cache,
            funnel=self._funnel,
            ways=self._ways,
            queries=self._queries,
            limits_of=self._limits,
            is_open=lambda: self._is_open,
            on_came_back=None if self._fleet is None else self._came_back,
        )
        self._reactions = self._react(self._fleet) if self._fleet is not None else None

    def _react(self, fleet: Fleet) -> Reactions:
        return Reactions(
            store=self._store,
            clock=self._clock,
            fleet=fleet,
            cache=self._cache,
            matcher=self._matcher,
            claims=self._claims,
            asking=self._asking,
            updates=self._updates,
            waiters=self._waiters,
            attention=self._attention,
            outbox=self._outbox,
            versions=self._versions,
            namespaces=self.namespaces,
            lost=LostSessions(
                self._store,
                self._cache,
                self._funnel,
                fleet,
                limits_of=self._limits,
                is_attached=lambda session_id: self._matcher.session(session_id) is not None,
            ),
            on_stale=self._discarded,
            release=lambda entry, is_lost: self._lost_workers.release(entry, Lost(is_lost)),
        )

    @property
    def node_id(self) -> str:
        """The id of this node; in a fleet it changes when the node was silent for too long."""
        return self._own_id if self._fleet is None else self._fleet.nodes.node_id

    @property
    def store(self) -> Store:
        """The store that it works on, for what stands beside the engine (such as the check of API keys)."""
        return self._store

    @property
    def clock(self) -> Clock:
        """Its time."""
        return self._clock

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up the store's work. To be awaited once, before any call.

        Raises:
            StoreError: The store cannot be read or written.
        """
        await self.namespaces.load()
        await self._versions.load()
        await self._ids.fill()
        if self._fleet is not None and self._reactions is not None:
            await self._fleet.start(self._reactions)
            self._reactions.start()
        else:
            await self._lost_workers.recover()
        self._is_open = True
        await self._attention.start()
        self._outbox.wake()
        self._keeping.start()

    async def stop(self) -> None:
        """Refuse new calls, make everything accepted durable, and let go of the store."""
        if not self._is_open:
            return
        self._is_open = False
        await self._keeping.close()
        if self._reactions is not None:
            await self._reactions.close()
        await self._matcher.close()
        await self._attention.close()
        await self._outbox.close()
        self._held.close()
        self._funnel.close()
        await self._funnel.wait_spawned()
        await self._pipeline.wait_idle()
        await self._ids.close()
        self._close_waits.close()
        self._waiters.wake_all()
        if self._fleet is not None:
            await self._fleet.close()
        await self._store.close()

    # --- clients: changing a run ------------------------------------------------------------------------------------

    def start_workflow(self, request: i.StartWorkflowRequest) -> Awaitable[r.StartWorkflowResponse]:
        """Start a run, or answer with the one that the policies say to use."""
        if self._is_open and (reply := self._express.start_workflow(request)) is not None:
            return reply
        future: asyncio.Future[r.StartWorkflowResponse] = self._loop.create_future()
        if self._refuses(future):
            return future
        started = self._starter.start(request)
        started.add_done_callback(partial(_forward_response, future))
        return future

    def signal_workflow(self, request: i.SignalWorkflowRequest) -> Awaitable[None]:
        """Record a signal."""
        return self._ways.change(
            request,
            lambda s, now: decide_signal(s, request, now, limits=self._limits(request.namespace)),
            may_be_early=True,
        )

    async def signal_with_start(self, request: r.SignalWithStartRequest) -> r.StartWorkflowResponse:
        """Signal the open run, or start one with the signal in its first task, atomically."""
        self._check_open()
        start = request.start
        signal = i.SignalWorkflowRequest(
            namespace=start.namespace,
            workflow_id=start.workflow_id,
            signal_name=request.signal_name,
            request_id=start.request_id,
            input=request.signal_input,
            identity=start.identity,
            header=request.signal_header,
        )
        limits = self._limits(start.namespace)
        while True:
            started = await self._starter.start(with_use_existing(start), StartExtras(signal=signal))
            if started.response.started:
                return started.response
            answer: asyncio.Future[None] = self._loop.create_future()
            self._funnel.apply(
                started.entry,
                Operation(
                    lambda s, now: decide_signal(s, signal, now, dispatch_now=True, limits=limits),
                    answer,
                    locate=lambda: self._locator.find(start.namespace, start.workflow_id),
                ),
            )
            try:
                await answer
            except RPCError as error:
                # It has closed in between; or another start was about to make it, and has lost.
                if error.code not in (RejectionCode.WORKFLOW_ALREADY_COMPLETED, RejectionCode.WORKFLOW_NOT_FOUND):
                    raise
            else:
                return started.response

    def request_cancel_workflow(self, request: i.RequestCancelRequest) -> Awaitable[None]:
        """Record a cancel request; a second one is no event."""
        return self._ways.change(
            request,
            lambda s, now: decide_cancel_request(s, request, now, limits=self._limits(request.namespace)),
            first_execution_run_id=request.first_execution_run_id,
        )

    def terminate_workflow(self, request: i.TerminateWorkflowRequest) -> Awaitable[None]:
        """Close the run now."""
        return self._ways.change(
            request,
            lambda s, now: decide_terminate(s, request, now),
            first_execution_run_id=request.first_execution_run_id,
        )

    def reset_workflow(self, request: i.ResetWorkflowRequest) -> Awaitable[r.ResetWorkflowResponse]:
        """Go on from an earlier point of a run, as a new run; the latest run is terminated if it is open."""
        future: asyncio.Future[r.ResetWorkflowResponse] = self._loop.create_future()
        return future if self._refuses(future) else self._resets.reset(request, future)

    def delete_workflow(self, request: o.DeleteWorkflowRequest) -> Awaitable[o.DeleteWorkflowResponse]:
        """Remove a closed run and its history."""
        return self._operate(self._deletions.delete(request))

    def update_workflow(self, request: r.UpdateWorkflowRequest) -> Awaitable[r.UpdateResponse]:
        """Send an update and wait for its stage."""
        reply = self._updates.update_at_hand(request) if self._is_open else None
        return self._update_workflow(request) if reply is None else reply

    async def _update_workflow(self, request: r.UpdateWorkflowRequest) -> r.UpdateResponse:
        self._check_open()
        with telling_store_errors():
            return await self._updates.update(request)

    async def poll_update(self, request: r.PollUpdateRequest) -> r.UpdateResponse:
        """Wait for the stage of an update sent before."""
        self._check_open()
        with telling_store_errors():
            return await self._updates.poll(request)

    async def update_with_start(self, request: r.UpdateWithStartRequest) -> r.UpdateWithStartResponse:
        """Start a run with an update in its first task, or send the update to the open run, atomically."""
        self._check_open()
        with telling_store_errors():
            return await self._updates_with_start.apply(request)

    def update_workflow_options(
        self, request: i.UpdateWorkflowOptionsRequest
    ) -> Awaitable[r.UpdateWorkflowOptionsResponse]:
        """Make, change or take away a run's exception from the routing of worker versions."""

        def answer(entry: RunEntry, _: Transition) -> r.UpdateWorkflowOptionsResponse:
            return r.UpdateWorkflowOptionsResponse(
                run_id=entry.state.run_id, versioning_override=request.versioning_override
            )

        return self._ways.change(
            request,
            lambda s, now: decide_update_options(s, request, now, limits=self._limits(request.namespace)),
            reply=answer,
        )

    # --- operators: worker deployments ------------------------------------------------------------------------------

    def set_current_version(self, request: d.SetCurrentVersionRequest) -> Awaitable[d.DeploymentInfo]:
        """Give runs that are not pinned another version."""
        return self._operate(self._deployments.set_current(request))

    def set_ramping_version(self, request: d.SetRampingVersionRequest) -> Awaitable[d.DeploymentInfo]:
        """Begin, change or end a ramp."""
        return self._operate(self._deployments.set_ramping(request))

    def describe_deployment(self, request: d.DescribeDeploymentRequest) -> Awaitable[d.DeploymentDescription]:
        """Everything about a deployment, and which of its versions are still needed."""
        return self._operate(self._deployments.describe(request))

    def list_deployments(self, request: d.ListDeploymentsRequest) -> Awaitable[d.ListDeploymentsResponse]:
        """The deployments of a namespace."""
        return self._operate(self._deployments.list_all(request))

    def delete_deployment_version(self, request: d.DeleteDeploymentVersionRequest) -> Awaitable[None]:
        """Forget a version that nothing needs."""
        return self._operate(self._deployments.delete_version(request))

    # --- operators: namespaces, task queues, callbacks --------------------------------------------------------------

    def create_namespace(self, request: o.CreateNamespaceRequest) -> Awaitable[o.NamespaceInfo]:
        """Make a namespace."""
        return self._operate(self._operations.create_namespace(request))

    def describe_namespace(self, request: o.DescribeNamespaceRequest) -> Awaitable[o.NamespaceInfo]:
        """One namespace."""
        return self._operate(self._operations.describe_namespace(request))

    def list_namespaces(self, request: o.ListNamespacesRequest) -> Awaitable[o.ListNamespacesResponse]:
        """All namespaces."""
        return self._operate(self._operations.list_namespaces(request))

    def describe_task_queue(self, request: o.DescribeTaskQueueRequest) -> Awaitable[o.TaskQueueInfo]:
        """What waits in one task queue, and for whom."""
        return self._operate(self._operations.describe_task_queue(request))

    def list_task_queues(self, request: o.ListTaskQueuesRequest) -> Awaitable[o.ListTaskQueuesResponse]:
        """The task queues in use."""
        return self._operate(self._operations.list_task_queues(request))

    def issue_callback(self, request: o.IssueCallbackRequest) -> Awaitable[o.IssueCallbackResponse]:
        """Sign a token with which one activity can be ended."""
        return self._operate(self._operations.issue_callback(request))

    def open_callback(self, request: o.OpenCallbackRequest) -> Awaitable[o.OpenCallbackResponse]:
        """Which activity a callback token is for."""
        return self._operate(self._operations.open_callback(request))

    # --- admins: API keys -------------------------------------------------------------------------------------------

    def create_api_key(self, request: k.CreateApiKeyRequest) -> Awaitable[k.CreateApiKeyResponse]:
        """Make a key; the answer alone has its secret."""
        return self._operate(self._api_keys.create(request))

    def list_api_keys(self, request: k.ListApiKeysRequest) -> Awaitable[k.ListApiKeysResponse]:
        """The keys, without their secrets."""
        return self._operate(self._api_keys.list_all(request))

    def revoke_api_key(self, request: k.RevokeApiKeyRequest) -> Awaitable[k.ApiKeyInfo]:
        """Take a key back, for good."""
        return self._operate(self._api_keys.revoke(request))

    def rotate_api_key(self, request: k.RotateApiKeyRequest) -> Awaitable[k.CreateApiKeyResponse]:
        """Make a key in place of another."""
        return self._operate(self._api_keys.rotate(request))

    async def _operate(self, call: Awaitable[T]) -> T:
        self._check_open()
        with telling_store_errors():
            await self._peers.refresh()
            return await call

    def _why_unmatched(self, state: ExecutionState, task_queue: str, kind: TaskKind, type_name: str) -> str:
        version = (
            self._versions.for_workflow(state)
            if kind is TaskKind.WORKFLOW
            else self._versions.for_activity(state, task_queue)
        )
        return self._matcher.why_unmatched(state.namespace, task_queue, Want(kind, type_name, version))

    # --- clients: reading -------------------------------------------------------------------------------------------

    async def query_workflow(self, request: r.QueryWorkflowRequest) -> r.QueryWorkflowResponse:
        """Ask workflow code."""
        self._check_open()
        with telling_store_errors():
            return await self._asking.ask(request)

    async def describe_workflow(self, request: r.DescribeWorkflowRequest) -> r.WorkflowDescription:
        """Everything about one run, and why it waits."""
        self._check_open()
        with telling_store_errors():
            entry = await self._locator.find_current(request.namespace, request.workflow_id, request.run_id)
            # What is on its way to the store may yet be lost: nobody is told of it (law 3).
            while entry.unsettled_count:
                await self._wait_settled(entry)
                if entry.is_discarded:
                    entry = await self._locator.find(request.namespace, request.workflow_id, request.run_id)
        return describe_state(entry.state, why_unmatched=self._why_unmatched)

    def get_history(self, request: r.GetHistoryRequest) -> Awaitable[r.GetHistoryResponse]:
        """Read events, or wait for them."""
        if self._is_open and (reply := self._close_waits.wait(request)) is not None:
            return reply
        return self._reader.get_history(request)

    def list_workflows(self, request: r.ListWorkflowsRequest) -> Awaitable[r.ListWorkflowsResponse]:
        """List runs, newest first."""
        return self._reader.list_workflows(request)

    def count_workflows(self, request: r.CountWorkflowsRequest) -> Awaitable[r.CountWorkflowsResponse]:
        """Count runs by status."""
        return self._reader.count_workflows(request)

    # --- workers ----------------------------------------------------------------------------------------------------

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """Take in a worker."""
        self._check_open()
        with telling_store_errors():
            await self.namespaces.find(hello.namespace)
        self._check_open()
        if hello.uses_versioning:
            with telling_store_errors():
                await self._deployments.admit_worker(hello)
            self._check_open()
        session = self._matcher.attach(hello, sink)
        await self._peers.announce()
        if hello.held_attempts or hello.former_sessions:
            self._funnel.spawn(self._lost_workers.take_over(session))
        return session

    def complete_workflow_task(self, request: i.CompleteWorkflowTaskRequest) -> Awaitable[None]:
        """Take the commands of a workflow task."""
        if self._is_open and (reply := self._express.complete_workflow_task(request)) is not None:
            return reply
        return self._ways.by_token(
            request.token,
            lambda entry: partial(self._decide_complete_workflow_task, entry, request),
            needs_started=True,
            may_answer_early=True,
            on_committed=(lambda entry, _: self._queries.on_task_completed(entry, request.query_results))
            if request.query_results
            else None,
        )

    def _decide_complete_workflow_task(
        self, entry: RunEntry, request: i.CompleteWorkflowTaskRequest, state: ExecutionState, now: Any
    ) -> Transition | Rejection | None:
        task = state.workflow_task
        session_id = task.session if task is not None else ""
        if request.versioning_behavior is not VersioningBehavior.UNSPECIFIED:
            session = self._matcher.session(session_id)
            if session is None or session.version is None:
                # Only a worker that is routed to by its version can keep a run on it.
                request = msgspec.structs.replace(request, versioning_behavior=VersioningBehavior.UNSPECIFIED)
        return decide_complete_workflow_task(
            state,
            request,
            now,
            session=session_id,
            new_run_id=self._entropy.uuid7,
            started=entry.started_event,
            limits=self._limits(state.namespace),
        )

    def fail_workflow_task(self, request: i.FailWorkflowTaskRequest) -> Awaitable[None]:
        """Take the failure of a workflow task; it is tried again."""
        return self._ways.by_token(
            request.token,
            lambda entry: lambda s, now: decide_fail_workflow_task(s, request, now, limits=self._limits(s.namespace)),
            on_committed=lambda entry, _: self._queries.refuse_waiting(entry, self._limits(entry.state.namespace)),
        )

    def record_markers(self, request: i.RecordMarkersRequest) -> Awaitable[r.RecordMarkersResponse]:
        """Record markers while their workflow task goes on."""
        if self._is_open and (reply := self._express.record_markers(request)) is not None:
            return reply
        return self._ways.by_token(request.token, lambda _: self._record_of(request), reply=_recorded_markers)

    def _record_of(self, request: i.RecordMarkersRequest) -> Decision:
        return lambda s, now: decide_record_markers(s, request, now, limits=self._limits(s.namespace))

    async def answer_query(self, request: r.AnswerQueryRequest) -> None:
        """Take the answer to a direct query."""
        self._queries.answer(request)

    def complete_activity(self, request: i.CompleteActivityRequest) -> Awaitable[None]:
        """Record an activity's result."""
        if self._is_open and (reply := self._express.complete_activity(request)) is not None:
            return reply
        token = request.token
        if not self._is_open or not isinstance(token, i.TaskToken):
            return self._ways.by_target(token, self._completion_of(request))
        future: Reply[Any] = Reply()
        operation = Operation(self._completion_of(request), future, locate=lambda: self._locator.by_token(token))
        entry = self._locator.by_token_at_hand(token)
        if entry is None or not self._held.hold(entry, token, partial(self._go_on, token, operation, future)):
            self._ways.take(entry, operation)
        return future

    def _go_on(self, token: i.TaskToken, operation: Operation, future: Reply[Any]) -> None:
        """Decide what was held up, unless the engine has been stopped meanwhile."""
        if not self._refuses(future):
            self._ways.take(self._locator.by_token_at_hand(token), operation)

    def _completion_of(self, request: i.CompleteActivityRequest) -> Decision:
        return lambda s, now: decide_complete_activity(s, request, now, limits=self._limits(s.namespace))

    def _general_operation(self, request: Any, reply: Reply[Any]) -> Operation:
        """The operation of an input that took the express way and has to be decided again, or refused."""
        if isinstance(request, i.CompleteActivityRequest):
            token = request.token
            assert isinstance(token, i.TaskToken), "the express way takes tokens only"
            return Operation(self._completion_of(request), reply, locate=lambda: self._locator.by_token(token))
        if isinstance(request, i.CompleteWorkflowTaskRequest):
            return self._ways.bound(
                lambda entry: partial(self._decide_complete_workflow_task, entry, request), None, request.token, reply
            )
        if isinstance(request, i.RecordMarkersRequest):
            bind = self._record_of(request)
            return self._ways.bound(lambda _: bind, None, request.token, reply, reply=_recorded_markers)
        return Operation(decide_nothing, reply)

    def fail_activity(self, request: i.FailActivityRequest) -> Awaitable[None]:
        """Record a failed attempt: it is tried again, or the activity fails."""
        return self._ways.by_target(
            request.token, lambda s, now: decide_fail_activity(s, request, now, limits=self._limits(s.namespace))
        )

    def cancel_activity(self, request: i.CancelActivityRequest) -> Awaitable[None]:
        """Record that an activity ended because it was asked to."""
        return self._ways.by_target(
            request.token, lambda s, now: decide_cancel_activity(s, request, now, limits=self._limits(s.namespace))
        )

    def release_activity(self, request: i.ReleaseActivityRequest) -> Awaitable[None]:
        """Take an attempt back unused."""
        return self._ways.by_target(request.token, lambda s, now: decide_release_activity(s, request, now))

    def detach_activity(self, token: i.TaskToken) -> Awaitable[None]:
        """The attempt will be completed from elsewhere: it no longer ends with its worker's session."""
        return self._ways.by_target(token, lambda s, now: decide_detach_activity(s, token, now))

    def heartbeat_activity(self, request: i.HeartbeatActivityRequest) -> Awaitable[r.HeartbeatActivityResponse]:
        """Record that an attempt is alive, with its progress."""
        return self._ways.by_target(
            request.token,
            lambda s, now: decide_heartbeat_activity(s, request, now),
            reply=lambda _, transition: r.HeartbeatActivityResponse(cancel_requested=transition.reply.cancel_requested),
        )

    async def _wait_settled(self, entry: RunEntry) -> None:
        settled = asyncio.Event()
        self._pipeline.after_current(entry, settled.set)
        await settled.wait()

    # --- what happens by itself -------------------------------------------------------------------------------------

    def _wake_due(self, entry: RunEntry) -> bool:
        """A deadline of the run is due; False when its first event has to be read before, and it is armed anew then."""
        if lacks_started(entry):
            if entry.run_key not in self._waking:
                self._waking.add(entry.run_key)
                self._funnel.spawn(self._wake_due_later(entry))
            return False
        limits = self._limits(entry.state.namespace)

        def bind(entry: RunEntry) -> Decision:
            return lambda s, now: decide_due(
                s, now, limits, new_run_id=self._entropy.uuid7, started=entry.started_event
            )

        async def locate() -> RunEntry:
            again = await load_again(self._cache, entry)
            await self._reader.ensure_started_event(again)
            operation.decide = bind(again)
            return again

        operation = Operation(bind(entry), locate=locate, may_be_early=True)
        self._funnel.apply(entry, operation)
        return True

    async def _wake_due_later(self, entry: RunEntry) -> None:
        try:
            await self._reader.ensure_started_event(entry)
        except StoreError as error:
            logger.warning("attention.load_failed run_id=%s error=%s", entry.state.run_id, error)
            self._attention.arm_again_later(entry.shard, entry.run_key)
            return
        except RPCError:
            self._discarded(entry)  # It was deleted meanwhile.
            return
        finally:
            self._waking.discard(entry.run_key)
        self._wake_due(entry)
        self._attention.arm(entry)

    def _changed(self, entry: RunEntry, transition: Transition) -> None:
        """A transition of this run is durable."""
        state = entry.state
        self._attention.arm_at(entry, entry.next_at)
        if transition.events:
            first = transition.events[0]
            entry.durable_last_event_id = transition.events[-1].event_id
            if type(first) is WorkflowTaskCompleted and state.sticky_session:
                entry.forget_until(first.started_event_id)
            if len(entry.tail) > TAIL_EVENTS_MAX:
                entry.trim_tail()
            self._waiters.wake(entry.run_key, is_closed=not state.is_open)
            for event in transition.events:
                if type(event) is WorkflowExecutionOptionsUpdated:
                    self._matcher.reroute(state.namespace, entry.run_key)
                    self._peers.on_run_rerouted(entry)
        if entry.update_waiters:
            self._updates.wake(entry, transition)
        self._peers.on_changed(entry, transition)
        self._outbox.room.note_changed(entry)
        self._held.note_changed(entry)
        if entry.queries or entry.queries_on_task:
            self._wake_askers(entry)

    def _wake_askers(self, entry: RunEntry) -> None:
        """Ask what waited for a workflow task, and can be asked without one once all of the run is durable."""
        self._pipeline.after_current(entry, partial(self._ask_waiting, entry))

    def _ask_waiting(self, entry: RunEntry) -> None:
        for query in self._queries.ask_waiting(entry):
            self._funnel.spawn(self._queries.ask_directly(entry, query))

    def _deliver(self, rows: list[OutboxRow]) -> None:
        self._outbox.deliver(rows)

    def _unanswered(self, token: i.TaskToken) -> None:
        """An early task will not be answered soon."""
        entry = self._cache.get(token.run_key)
        if entry is not None:
            self._early.note_unanswered(entry, token)

    def _finished(self, entry: RunEntry) -> None:
        """The run is closed, and that is durable."""
        self._attention.forget(entry)
        self._cache.drop_closed(entry)

    def _discarded(self, entry: RunEntry) -> None:
        """The run's state in memory cannot be trusted any more."""
        self._early.on_discarded(entry)
        self._cache.discard(entry)
        self._outbox.room.note_changed(entry)
        self._held.note_changed(entry)
        self._pipeline.abandon(entry)
        if self._reactions is not None:
            self._reactions.on_discarded(entry)
        elif entry.update_waiters:
            self._updates.abandon(entry)
        self._queries.abandon(entry)

    def _commit_failed(self, entry: RunEntry, error: StoreError) -> None:
        logger.warning("engine.commit_failed run_id=%s error=%s", entry.state.run_id, error)
        self._attention.arm_again_later(entry.shard, entry.run_key)
        # It may have become durable all the same: whoever waits for it has to look.
        self._outbox.wake()
        self._waiters.wake(entry.run_key, is_closed=True)

    def _suspended(self, session: Session) -> None:
        """A worker cannot be reached; it may come back."""
        self._lost_workers.lost(session, keeps_attempt=lambda session_id: True)

    def _detached(self, session: Session) -> None:
        """A worker is gone."""
        self._lost_workers.lost(session)

    def _came_back(self, namespace: str, sessions: tuple[str, ...]) -> None:
        """A worker has named what it still has of its former sessions."""
        if self._reactions is not None:
            self._reactions.on_came_back(namespace, sessions)
        self._peers.on_workers_changed()

    def _rerouted(self, namespace: str) -> None:
        """The routing of worker versions has changed."""
        self._matcher.reroute(namespace)

    def _limits(self, namespace: str) -> Limits:
        return self.namespaces.get(namespace).limits

    def _check_open(self) -> None:
        if not self._is_open:
            raise stopped()

    def _refuses(self, future: asyncio.Future[Any] | Reply[Any]) -> bool:
        if self._is_open:
            return False
        future.set_exception(stopped())
        return True


def stopped() -> RPCError:
    """The refusal of an engine that does not run."""
    return RPCError(
        Rejection(
            code=RejectionCode.UNAVAILABLE,
            message="the engine is stopped or has not started yet; nothing was done; connect again",
        )
    )


def with_use_existing(start: i.StartWorkflowRequest) -> i.StartWorkflowRequest:
    """Signal-with-start uses an open run unless told otherwise (semantics 1.1)."""
    if start.id_conflict_policy is not WorkflowIDConflictPolicy.UNSPECIFIED:
        return start
    return msgspec.structs.replace(start, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING)


def _recorded_markers(entry: RunEntry, transition: Transition) -> r.RecordMarkersResponse:
    recorded: RecordedMarkers = transition.reply
    return r.RecordMarkersResponse(
        last_event_id=recorded.last_event_id,
        event_time=recorded.event_time,
        is_end_wanted=recorded.is_end_wanted or bool(entry.queries),
    )


def _forward_response(future: asyncio.Future[r.StartWorkflowResponse], started: asyncio.Future[Started]) -> None:
    error = started.exception()  # Looked at also when nobody waits any more, so that it counts as seen.
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(started.result().response)
