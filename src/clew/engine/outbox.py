"""The outbox: effects on other executions, delivered at least once and felt once.

Owns: the delivery of each kind of effect, and its retries. Never: decides (``core``), or writes rows (the pipeline
does, in the transition that wants the effect).

How it works: a node delivers what it has committed right after the commit, from memory, concurrently, one task a row.
What nobody delivers (its node went down, or the outcome of the commit was unknown) is read from the store: at the
start, and in a fleet by the owner of the shard, when it takes that over and when two of its sweeps find the same row.
Each delivery is idempotent: a start and a signal carry a request id made from the run and event that want them, a
result is refused when the parent has it already. The row is removed in the very commit that records the outcome on the
sender, or by itself when there is nothing to record. A delivery that meets a passing fault is tried again with
back-off; a crash delivers again after the restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypeVar, assert_never

from clew.core.decisions import (
    decide_cancel_request,
    decide_child_closed,
    decide_child_start_failed,
    decide_child_started,
    decide_external_cancel_failed,
    decide_external_cancel_requested,
    decide_external_signal_failed,
    decide_external_signaled,
    decide_release_first_task,
    decide_signal,
    decide_terminate,
)
from clew.core.state import ExecutionState
from clew.core.transition import (
    ApplyParentClosePolicy,
    CancelExternal,
    NotifyParent,
    ReportChild,
    SignalExternal,
    StartChild,
    Transition,
)
from clew.engine.background import Background
from clew.engine.funnel import Decision, Funnel, Operation
from clew.engine.locate import Locator
from clew.engine.outbox_rows import decode_outbox
from clew.engine.peers import Peers
from clew.engine.resets import following_run
from clew.engine.room import Room
from clew.engine.runs import RunCache, RunEntry
from clew.engine.starts import Started, Starter, StartExtras
from clew.engine.versions import Versions
from clew.model.events import (
    BaseEvent,
    Event,
    ExecutionRef,
    ExternalFailedCause,
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionInitiated,
    StartChildWorkflowExecutionInitiated,
    decode_events,
)
from clew.model.inputs import (
    RequestCancelRequest,
    SignalWorkflowRequest,
    StartWorkflowRequest,
    TerminateWorkflowRequest,
)
from clew.model.limits import Limits
from clew.model.policies import DeploymentVersion, ParentClosePolicy, VersioningBehavior
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import OutboxRow, Store, StoreError
from clew.service.errors import CODE_TABLE, RPCError

E = TypeVar("E", bound=BaseEvent)

logger = logging.getLogger("clew.engine")

READ_ROWS: Final = 500
IN_FLIGHT_MAX: Final = 500
RETRY_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0)

SIGNAL_FAILED: Final = {
    RejectionCode.LIMIT_EXCEEDED: ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED,
    RejectionCode.NAMESPACE_NOT_FOUND: ExternalFailedCause.NAMESPACE_NOT_FOUND,
}
START_FAILED: Final = {
    RejectionCode.NAMESPACE_NOT_FOUND: ExternalFailedCause.NAMESPACE_NOT_FOUND,
}


class Outbox:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        store: Store,
        cache: RunCache,
        funnel: Funnel,
        locator: Locator,
        starter: Callable[[], Starter],
        versions: Versions,
        peers: Peers,
        limits_of: Callable[[str], Limits],
    ) -> None:
        self._store = store
        self._cache = cache
        self._funnel = funnel
        self._locator = locator
        self._starter = starter
        self._versions = versions
        self._peers = peers
        self._limits_of = limits_of
        self._queued: deque[OutboxRow] = deque()
        """Committed here, and waiting for others to be delivered."""
        self._seen: set[int] = set()
        """Messages that the last sweep found."""
        self._is_reading = False
        self._is_wanted = False
        self._is_closed = False
        self._in_flight: set[int] = set()
        self._background = Background("outbox")
        self.room = Room()
        """Told of every change of a run."""

    def deliver(self, rows: Iterable[OutboxRow]) -> None:
        """These rows are durable now."""
        if self._is_closed:
            return
        for row in rows:
            if row.message_id in self._in_flight:
                continue
            if self._is_free():
                self._begin(row)
            else:
                self._queued.append(row)

    async def sweep(self) -> None:
        """Deliver rows of this node's shards that lay there at the last sweep already."""
        shards = self._peers.own_shards()
        rows = await self._store.read_outbox(shards, 0, READ_ROWS) if shards != [] else []
        left = [row for row in rows if row.message_id in self._seen and row.message_id not in self._in_flight]
        self._seen = {row.message_id for row in rows}
        if left:
            logger.info("outbox.taken_over messages=%d", len(left))
            self.deliver(left)

    def wake(self) -> None:
        """There may be rows in the store that nobody delivers."""
        self._is_wanted = True
        if not self._is_reading and not self._is_closed:
            self._is_reading = True
            self._background.spawn(self._read())

    async def close(self) -> None:
        """Deliver nothing more; what is left is delivered after the next start."""
        self._is_closed = True
        await self._background.cancel()

    async def _read(self) -> None:
        try:
            while self._is_wanted and self._is_free():
                self._is_wanted = False
                shards = self._peers.own_shards()
                if shards == []:
                    return
                rows = await self._store.read_outbox(shards, 0, READ_ROWS + len(self._in_flight))
                fresh = [row for row in rows if row.message_id not in self._in_flight]
                for row in fresh:
                    self._begin(row)
                if len(fresh) >= READ_ROWS:
                    self._is_wanted = True
        except StoreError as error:
            logger.warning("outbox.read_failed error=%s", error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS[2], self.wake)
        finally:
            self._is_reading = False

    def _begin(self, row: OutboxRow) -> None:
        self._in_flight.add(row.message_id)
        self._background.spawn(self._deliver(row))

    def _begin_queued(self) -> None:
        while self._queued and self._is_free() and not self._is_closed:
            self._begin(self._queued.popleft())

    def _is_free(self) -> bool:
        """Whether one more can be delivered beside the others; those that wait for room hold up nobody."""
        return len(self._in_flight) - self.room.waiting_count < IN_FLIGHT_MAX

    async def _deliver(self, row: OutboxRow) -> None:
        attempt = 0
        try:
            while not self._is_closed:
                try:
                    await self._deliver_once(row)
                    return
                except StoreError as error:
                    logger.warning("outbox.delivery_failed message_id=%s error=%s", row.message_id, error)
                except RPCError as error:
                    if not CODE_TABLE[error.code].is_retryable:
                        logger.error("outbox.delivery_refused message_id=%s error=%s", row.message_id, error)
                        raise
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
        finally:
            self._in_flight.discard(row.message_id)
            self._begin_queued()
            if self._is_wanted and not self._is_closed:
                self.wake()

    async def _deliver_once(self, row: OutboxRow) -> None:
        effect = decode_outbox(row.body)
        sender = await self._cache.load(row.shard, row.run_key)
        if sender is None:
            await self._remove(row)
            return
        match effect:
            case StartChild():
                await self._start_child(row, sender, effect.initiated_event_id)
            case SignalExternal():
                await self._signal(row, sender, effect.initiated_event_id)
            case CancelExternal():
                await self._cancel(row, sender, effect.initiated_event_id)
            case ApplyParentClosePolicy():
                await self._close_child(row, sender, effect)
            case ReportChild():
                await self._report_child(sender, effect.initiated_event_id)
                await self._remove(row)
            case NotifyParent():
                await self._notify_parent(row, sender, effect)
            case _:
                assert_never(effect)

    # --- children ---------------------------------------------------------------------------------------------------

    async def _start_child(self, row: OutboxRow, parent: RunEntry, initiated_event_id: int) -> None:
        event = await self._asking_event(parent, initiated_event_id, StartChildWorkflowExecutionInitiated)
        state = parent.state
        if not state.is_open and await self._is_over(parent):
            await self._leave_behind(row, parent, event)
            return
        request = StartWorkflowRequest(
            namespace=event.namespace or state.namespace,
            workflow_id=event.workflow_id,
            workflow_type=event.workflow_type,
            task_queue=event.task_queue,
            request_id=_request_id(state.recorded_by(initiated_event_id), initiated_event_id),
            input=event.input,
            workflow_execution_timeout=event.workflow_execution_timeout,
            workflow_run_timeout=event.workflow_run_timeout,
            workflow_task_timeout=event.workflow_task_timeout,
            id_reuse_policy=event.workflow_id_reuse_policy,
            retry_policy=event.retry_policy,
            cron_schedule=event.cron_schedule,
            memo=event.memo,
            search_attributes=event.search_attributes,
            header=event.header,
            priority=event.priority,
            versioning_override=state.versioning_override,
            user_metadata=event.user_metadata,
        )
        extras = StartExtras(
            # The run that asked first, as in the request id: every reset that went back to behind this event knows it.
            parent=ExecutionRef(state.workflow_id, state.recorded_by(initiated_event_id), state.namespace),
            parent_initiated_event_id=initiated_event_id,
            root=state.root_ref,
            hold_first_task=True,
            inherited_pinned_version=self._handed_on(state, request),
        )
        try:
            started: Started = await self._starter().start(request, extras)
        except RPCError as error:
            if error.code is not RejectionCode.WORKFLOW_ALREADY_STARTED and error.code not in START_FAILED:
                raise
            cause = START_FAILED.get(error.code, ExternalFailedCause.WORKFLOW_ALREADY_EXISTS)
            await self._record(row, parent, self._decision(decide_child_start_failed, initiated_event_id, cause))
            return
        run_id = started.response.run_id
        await self._tell_parent(parent, self._decision(decide_child_started, initiated_event_id, run_id))
        if state.origins and not started.response.started:
            await self._report_child(parent, initiated_event_id)
        # The row goes last, with the child's release: a crash in between delivers the start again, as a repeat.
        child = started.entry
        now = await self._cache.load(row.shard, row.run_key)
        if now is not None and not now.state.is_open and await self._is_over(now):
            await self._leave_behind(row, now, event)
        elif child.state.is_first_task_held:
            await self._record(row, child, self._decision(decide_release_first_task))
        else:
            await self._remove(row)

    async def _leave_behind(
        self, row: OutboxRow, parent: RunEntry, event: StartChildWorkflowExecutionInitiated
    ) -> None:
        """The parent has closed without knowing that its child was started: deal with the child, if it was."""
        state = parent.state
        ref = ExecutionRef(state.workflow_id, state.recorded_by(event.event_id), state.namespace)
        following = await self._after_reset(ref, state.namespace, event.event_id)
        if following is not None and following.run_key != parent.run_key:
            await self._remove(row)  # The run that goes on with it starts the child itself, as a repeat.
            return
        child = await self._find(event.namespace or parent.state.namespace, event.workflow_id, "")
        if (
            child is None
            or not self._is_child_of(child, parent)
            or (child.state.parent_initiated_event_id != event.event_id)
        ):
            await self._remove(row)
            return
        await self._apply_close_policy(row, parent, child, event.parent_close_policy)
        await self._record(row, child, self._decision(decide_release_first_task))

    async def _is_over(self, entry: RunEntry) -> bool:
        """Whether the run is closed for good: a close that is not durable yet may be lost."""
        is_open = False

        def look(state: ExecutionState, now: datetime) -> None:
            nonlocal is_open
            is_open = state.is_open

        await self._apply(entry, look, None)
        return not is_open

    def _handed_on(self, parent: ExecutionState, child: StartWorkflowRequest) -> DeploymentVersion | None:
        """The version that a pinned parent hands on: its own, if that serves the task queue of the child."""
        version = parent.deployment_version
        if parent.versioning_behavior is not VersioningBehavior.PINNED or version is None:
            return None
        is_served = child.task_queue == parent.task_queue or self._versions.serves(
            child.namespace, version, child.task_queue
        )
        return version if is_served and child.namespace == parent.namespace else None

    async def _close_child(self, row: OutboxRow, parent: RunEntry, effect: ApplyParentClosePolicy) -> None:
        child = effect.child
        target = await self._find(child.namespace or parent.state.namespace, child.workflow_id, "")
        if target is not None and self._is_child_of(target, parent):
            await self._apply_close_policy(row, parent, target, ParentClosePolicy(effect.policy))
        await self._remove(row)

    async def _apply_close_policy(
        self, row: OutboxRow, parent: RunEntry, child: RunEntry, policy: ParentClosePolicy
    ) -> None:
        namespace, workflow_id = child.state.namespace, child.state.workflow_id
        if policy is ParentClosePolicy.TERMINATE:
            terminate = TerminateWorkflowRequest(
                namespace=namespace, workflow_id=workflow_id, reason="by parent close policy"
            )
            await self._tell(child, lambda s, now: decide_terminate(s, terminate, now))
        elif policy is ParentClosePolicy.REQUEST_CANCEL:
            cancel = RequestCancelRequest(
                namespace=namespace,
                workflow_id=workflow_id,
                request_id=_request_id(parent.state.run_id, row.message_id),
                reason="by parent close policy",
            )
            by = parent.state.ref
            await self._tell(child, self._decision(decide_cancel_request, cancel, external=by))

    @staticmethod
    def _is_child_of(target: RunEntry, parent: RunEntry) -> bool:
        state = target.state
        return state.parent is not None and parent.state.goes_on_with(state.parent.run_id)

    async def _notify_parent(self, row: OutboxRow, child: RunEntry, effect: NotifyParent) -> None:
        ref = effect.parent
        namespace = ref.namespace or child.state.namespace
        closing = effect.closing
        parent = await self._find(namespace, ref.workflow_id, ref.run_id)
        run_id = child.state.run_id
        while closing is not None:
            if parent is not None and await self._tell_parent(
                parent,
                self._decision(decide_child_closed, effect.initiated_event_id, closing, run_id=run_id),
            ):
                break
            # It is closed for good, or deleted even; after a reset another run waits for the child.
            following = await self._after_reset(ref, namespace, effect.initiated_event_id)
            if following is None or (parent is not None and following.run_key == parent.run_key):
                break
            parent = following
        await self._remove(row)

    async def _after_reset(self, ref: ExecutionRef, namespace: str, initiated_event_id: int) -> RunEntry | None:
        """The run that, since a reset of `ref`, waits for the child which that initiated; None when there is none."""
        latest = await self._find(namespace, ref.workflow_id, "")
        if latest is None:
            return None
        state = latest.state
        waits = initiated_event_id in state.children and state.recorded_by(initiated_event_id) == ref.run_id
        return latest if waits else None

    async def _report_child(self, parent: RunEntry, initiated_event_id: int) -> None:
        """A child that ended while no run waited for it: tell the run that waits for it since a reset.

        One that has not begun is let go, which the run that started it did not come to.
        """
        current = await self._cache.load(parent.shard, parent.run_key)
        pending = None if current is None else current.state.children.get(initiated_event_id)
        if current is None or pending is None or not pending.run_id:
            return
        namespace, workflow_id = pending.namespace or current.state.namespace, pending.workflow_id
        child = await self._find(namespace, workflow_id, pending.run_id)
        if child is not None and child.state.is_first_task_held:
            await self._tell(child, self._decision(decide_release_first_task))
        end = await self._end_of(namespace, workflow_id, pending.run_id)
        if end is not None:
            run_id, closing = end
            await self._tell(current, self._decision(decide_child_closed, initiated_event_id, closing, run_id=run_id))

    async def _end_of(self, namespace: str, workflow_id: str, run_id: str) -> tuple[str, Event] | None:
        """The event that ended the chain of this run, with the run that it ended; None while the chain goes on."""
        first = await self._find(namespace, workflow_id, run_id)
        last = await self._find(namespace, workflow_id, "")
        if first is None:
            return None
        if last is None or last.state.first_execution_run_id != first.state.first_execution_run_id:
            last = first
        while not last.state.is_open and await self._is_over(last):
            closing = await self._event(last, last.state.close_event_id)
            following = following_run(closing)
            if not following:
                return last.state.run_id, closing
            found = await self._find(namespace, workflow_id, following)
            if found is None:
                return None
            last = found
        return None

    # --- signals and cancel requests to other executions --------------------------------------------------------------

    async def _signal(self, row: OutboxRow, sender: RunEntry, initiated_event_id: int) -> None:
        event = await self._asking_event(sender, initiated_event_id, SignalExternalWorkflowExecutionInitiated)
        target = event.workflow_execution
        namespace = target.namespace or sender.state.namespace
        request = SignalWorkflowRequest(
            namespace=namespace,
            workflow_id=target.workflow_id,
            run_id=target.run_id,
            signal_name=event.signal_name,
            request_id=_request_id(sender.state.recorded_by(initiated_event_id), initiated_event_id),
            input=event.input,
            header=event.header,
        )
        sender_ref = sender.state.ref
        cause = await self._reach(
            sender,
            target,
            namespace,
            child_only=event.child_workflow_only,
            decide=self._decision(decide_signal, request, external=sender_ref),
        )
        if cause is None:
            await self._record(row, sender, self._decision(decide_external_signaled, initiated_event_id))
        else:
            await self._record(row, sender, self._decision(decide_external_signal_failed, initiated_event_id, cause))

    async def _cancel(self, row: OutboxRow, sender: RunEntry, initiated_event_id: int) -> None:
        event = await self._asking_event(sender, initiated_event_id, RequestCancelExternalWorkflowExecutionInitiated)
        target = event.workflow_execution
        namespace = target.namespace or sender.state.namespace
        request = RequestCancelRequest(
            namespace=namespace,
            workflow_id=target.workflow_id,
            run_id=target.run_id,
            request_id=_request_id(sender.state.recorded_by(initiated_event_id), initiated_event_id),
            reason=event.reason,
        )
        sender_ref = sender.state.ref
        cause = await self._reach(
            sender,
            target,
            namespace,
            child_only=event.child_workflow_only,
            decide=self._decision(
                decide_cancel_request, request, external=sender_ref, external_initiated_event_id=initiated_event_id
            ),
        )
        if cause is None:
            await self._record(row, sender, self._decision(decide_external_cancel_requested, initiated_event_id))
        else:
            await self._record(row, sender, self._decision(decide_external_cancel_failed, initiated_event_id, cause))

    async def _reach(
        self, sender: RunEntry, target: ExecutionRef, namespace: str, *, child_only: bool, decide: Decision
    ) -> ExternalFailedCause | None:
        """Change the target; None when that worked, or was done before."""
        try:
            entry = await self._find(namespace, target.workflow_id, target.run_id)
        except RPCError as error:
            return SIGNAL_FAILED.get(error.code, ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND)
        if entry is None or (child_only and not self._is_child_of(entry, sender)):
            return ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND
        try:
            await self._change(entry, decide)
        except RPCError as error:
            if CODE_TABLE[error.code].is_retryable:
                raise
            return SIGNAL_FAILED.get(error.code, ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND)
        return None

    # --- small parts ------------------------------------------------------------------------------------------------

    def _decision(self, decide: Callable[..., Transition | Rejection | None], *args: Any, **facts: Any) -> Decision:
        """The decision with these arguments, under the limits of the run's own namespace."""
        return lambda state, now: decide(state, *args, now, limits=self._limits_of(state.namespace), **facts)

    async def _find(self, namespace: str, workflow_id: str, run_id: str) -> RunEntry | None:
        try:
            return await self._locator.find_current(namespace, workflow_id, run_id)
        except RPCError as error:
            if error.code is RejectionCode.WORKFLOW_NOT_FOUND:
                return None
            raise

    async def _event(self, entry: RunEntry, event_id: int) -> Event:
        event = entry.event_at(event_id)
        return event if event is not None else await self._stored_event(entry, event_id)

    async def _asking_event(self, entry: RunEntry, event_id: int, kind: type[E]) -> E:
        """The event that asked for an effect: the one in memory if it is of this kind, else the one that is stored.

        In memory there may be one that another node forestalled: the row is of its commit, and so is the event.
        """
        event = await self._event(entry, event_id)
        if not isinstance(event, kind):
            event = await self._stored_event(entry, event_id)
        assert isinstance(event, kind), f"event {event_id} of run {entry.state.run_id} is no {kind.__name__}"
        return event

    async def _stored_event(self, entry: RunEntry, event_id: int) -> Event:
        # One batch; with the event come those of its siblings, which are wanted next.
        batches = await self._store.read_history(entry.shard, entry.run_key, event_id, 1)
        found = [other for batch in batches for other in decode_events(batch.events)]
        entry.keep_initiated(found)
        events = [other for other in found if other.event_id == event_id]
        assert events, f"event {event_id} of run {entry.state.run_id} is stored before its effect is delivered"
        return events[0]

    async def _tell_parent(self, parent: RunEntry, decide: Decision) -> bool:
        """Tell news of a child, as soon as the parent has room for it."""
        await self.room.wait(parent, self._begin_queued)
        try:
            return await self._tell(parent, decide)
        finally:
            # Should it have been no news to the parent, nothing of it has changed, and the next has its turn.
            self.room.note_changed(parent)

    async def _tell(self, entry: RunEntry, decide: Decision) -> bool:
        """Change the run, unless it knows already; False when it refuses, as a closed one does."""
        try:
            await self._apply(entry, decide, None)
        except RPCError as error:
            if CODE_TABLE[error.code].is_retryable or error.code is RejectionCode.INTERNAL:
                raise
            return False
        return True

    async def _change(self, entry: RunEntry, decide: Decision) -> None:
        await self._apply(entry, decide, None)

    async def _record(self, row: OutboxRow, sender: RunEntry, decide: Decision) -> None:
        """Record the outcome and remove the row in one commit; a refused outcome is known already.

        A commit touches one shard: if a run of another is changed, a child that begins, the row goes after that.
        """
        is_one_commit = sender.shard == row.shard
        try:
            await self._apply(sender, decide, row.message_id if is_one_commit else None)
        except RPCError as error:
            if CODE_TABLE[error.code].is_retryable or error.code is RejectionCode.INTERNAL:
                raise
            is_one_commit = False
        if not is_one_commit:
            await self._remove(row)

    async def _apply(self, entry: RunEntry, decide: Decision, outbox_delete: int | None) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        state = entry.state
        self._funnel.apply(
            entry,
            Operation(
                decide,
                future,
                locate=lambda: self._locator.by_key(
                    entry.shard,
                    entry.run_key,
                    namespace=state.namespace,
                    workflow_id=state.workflow_id,
                    run_id=state.run_id,
                ),
                outbox_delete=outbox_delete,
            ),
        )
        await future

    async def _remove(self, row: OutboxRow) -> None:
        await self._store.delete_outbox([row.message_id])


def _request_id(run_id: str, number: int) -> str:
    return f"{run_id}:{number}"
