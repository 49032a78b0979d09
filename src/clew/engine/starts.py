"""Starting runs: the optimistic insert, the id policies, and the repeat of a start that was answered before.

Owns: `Starter`. Never: the policies themselves (``core`` decides them).

How it works: a start is decided and committed at once in the belief that its workflow id is new; the store's guard on
the latest run of the id says when that was wrong. Only then is the latest run looked at, the policy decided on it, and
the start tried again with that run as its guard. So the common case costs no read, and no race can open two runs (law
4).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from clew.core.decisions import decide_attach_request, decide_id_policy, decide_start, decide_terminate
from clew.core.replies import ExistingRun, Repeat, Start, TerminateThenStart, UseExisting
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.funnel import Funnel, Operation, OpSubmission, store_error, submission_of
from clew.engine.ids import Ids
from clew.engine.locate import Locator
from clew.engine.namespaces import Namespaces
from clew.engine.pipeline import CommitPipeline, Outcome
from clew.engine.runs import RunCache, RunEntry
from clew.model.events import ExecutionRef
from clew.model.inputs import SignalWorkflowRequest, StartWorkflowRequest, TerminateWorkflowRequest
from clew.model.policies import DeploymentVersion
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import CommitStatus, Store, StoreError
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import StartWorkflowResponse

RACES_MAX: Final = 20
"""Times a start looks again because another start won, before it gives up as busy."""


class StartExtras:
    """What the engine itself adds to a start: the parent of a child, a signal or an update that comes with it."""

    __slots__ = (
        "follow",
        "hold_first_task",
        "inherited_pinned_version",
        "parent",
        "parent_initiated_event_id",
        "root",
        "signal",
    )

    def __init__(
        self,
        *,
        parent: ExecutionRef | None = None,
        parent_initiated_event_id: int = 0,
        root: ExecutionRef | None = None,
        hold_first_task: bool = False,
        signal: SignalWorkflowRequest | None = None,
        inherited_pinned_version: DeploymentVersion | None = None,
        follow: Callable[[RunEntry], Transition | Rejection] | None = None,
    ) -> None:
        self.parent = parent
        self.parent_initiated_event_id = parent_initiated_event_id
        self.root = root
        self.hold_first_task = hold_first_task
        self.signal = signal
        self.inherited_pinned_version = inherited_pinned_version
        self.follow = follow


NO_EXTRAS: Final = StartExtras()


class Started:
    """How a start went: the run, and whether this call made it."""

    __slots__ = ("entry", "response")

    def __init__(self, entry: RunEntry, response: StartWorkflowResponse) -> None:
        self.entry = entry
        self.response = response


class Starter:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        ids: Ids,
        cache: RunCache,
        pipeline: CommitPipeline,
        funnel: Funnel,
        namespaces: Namespaces,
        locator: Locator,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._ids = ids
        self._cache = cache
        self._pipeline = pipeline
        self._funnel = funnel
        self._namespaces = namespaces
        self._locator = locator
        self._loop = asyncio.get_running_loop()

    def start(self, request: StartWorkflowRequest, extras: StartExtras = NO_EXTRAS) -> asyncio.Future[Started]:
        """Start a run, or find the one that the policies say to use.

        The future fails with `RPCError`: ``workflow_already_started``, ``invalid_argument``, ``namespace_not_found`` …
        """
        future: asyncio.Future[Started] = self._loop.create_future()
        try:
            self._namespaces.get(request.namespace)
        except RPCError as error:
            future.set_exception(error)
            return future
        if self._cache.get_open(request.namespace, request.workflow_id) is not None:
            self._funnel.spawn(self._start_on_existing(request, extras, future, 0))
        else:
            self._insert(request, extras, future, latest_run_key=0, races=0)
        return future

    def start_again(self, request: StartWorkflowRequest, reply: Reply[StartWorkflowResponse]) -> None:
        """A start in the belief that its workflow id is new has met another run: see what the policies say."""
        future: asyncio.Future[Started] = self._loop.create_future()
        future.add_done_callback(partial(_forward_response, reply))
        self._funnel.spawn(self._start_on_existing(request, NO_EXTRAS, future, 1))

    def adopt_successor(self, predecessor: RunEntry, state: ExecutionState) -> RunEntry:
        """The entry of the run that follows another one of its chain."""
        entry = RunEntry(state, predecessor.shard, self._ids.next_run_key(predecessor.run_key))
        entry.expected_latest_run_key = predecessor.run_key
        predecessor.successor = entry
        for update_id in state.updates:
            waiting = predecessor.update_waiters.pop(update_id, None)
            if waiting:
                entry.update_waiters[update_id] = waiting
        self._cache.mark_closed(predecessor)
        self._cache.add(entry)
        return entry

    # --- inserting --------------------------------------------------------------------------------------------------

    def _insert(
        self,
        request: StartWorkflowRequest,
        extras: StartExtras,
        future: asyncio.Future[Started],
        *,
        latest_run_key: int,
        races: int,
    ) -> None:
        decided = self._decide(request, extras, latest_run_key)
        if isinstance(decided, Rejection):
            _refuse(future, RPCError(decided))
            return
        entry, transition = decided
        entry.expected_latest_run_key = latest_run_key

        def settled(submission: OpSubmission, outcome: Outcome) -> None:
            self._insert_settled(submission, outcome, request, extras, future, races)

        submission = self._submission(entry, transition, settled)
        self._pipeline.submit(submission)

    def _decide(
        self, request: StartWorkflowRequest, extras: StartExtras, latest_run_key: int
    ) -> tuple[RunEntry, Transition] | Rejection:
        namespace = self._namespaces.get(request.namespace)
        run_id = self._entropy.uuid7()
        decided = decide_start(
            request,
            run_id=run_id,
            now=self._clock.now(),
            key_generation=run_id,
            parent=extras.parent,
            parent_initiated_event_id=extras.parent_initiated_event_id,
            root=extras.root,
            hold_first_task=extras.hold_first_task,
            signal=extras.signal,
            inherited_pinned_version=extras.inherited_pinned_version,
            limits=namespace.limits,
        )
        if isinstance(decided, Rejection):
            return decided
        state, transition = decided
        entry = RunEntry(state, self.shard_of(request), self._ids.next_run_key(latest_run_key))
        if extras.follow is not None:
            followed = extras.follow(entry)
            if isinstance(followed, Rejection):
                return followed
            transition.absorb(followed)
        return entry, transition

    def _submission(
        self, entry: RunEntry, transition: Transition, settled: Callable[[OpSubmission, Outcome], None]
    ) -> OpSubmission:
        submission = submission_of(entry, transition, settled)
        self._cache.add(entry)
        self._funnel.hand_over(submission, entry.state.start_time)
        entry.remember(transition.events)
        return submission

    def _insert_settled(
        self,
        submission: OpSubmission,
        outcome: Outcome,
        request: StartWorkflowRequest,
        extras: StartExtras,
        future: asyncio.Future[Started],
        races: int,
    ) -> None:
        self._funnel.settle(submission, outcome)
        entry = submission.entry
        if outcome is CommitStatus.COMMITTED:
            _answer(future, Started(entry, _response(entry.state, started=True)))
        elif isinstance(outcome, StoreError):
            _refuse(future, store_error(outcome))
        elif races >= RACES_MAX:
            _refuse(future, _busy(request))
        else:
            self._funnel.spawn(self._start_on_existing(request, extras, future, races + 1))

    # --- when the workflow id was used before -----------------------------------------------------------------------

    async def _start_on_existing(
        self, request: StartWorkflowRequest, extras: StartExtras, future: asyncio.Future[Started], races: int
    ) -> None:
        try:
            existing = await self._locator.find_current(request.namespace, request.workflow_id)
        except StoreError as error:
            _refuse(future, store_error(error))
            return
        except RPCError as error:
            if error.code is RejectionCode.WORKFLOW_NOT_FOUND:
                self._insert(request, extras, future, latest_run_key=0, races=races)
            else:
                _refuse(future, error)
            return
        except Exception as error:
            _refuse(future, error)
            raise
        if not existing.state.is_open:
            # Another start may have replaced it while this one looked; one that followed on it now would lose for sure.
            existing = self._cache.get_open(request.namespace, request.workflow_id) or existing
        try:
            self._decide_on(existing, request, extras, future, races)
        except Exception as error:
            _refuse(future, error)
            raise

    def _decide_on(
        self,
        existing: RunEntry,
        request: StartWorkflowRequest,
        extras: StartExtras,
        future: asyncio.Future[Started],
        races: int,
    ) -> None:
        state = existing.state
        verdict = decide_id_policy(
            request,
            ExistingRun(
                run_id=state.run_id,
                first_execution_run_id=state.first_execution_run_id,
                status=state.status,
                start_time=state.start_time,
                start_request_id=state.start_request_id,
                request_ids=tuple(state.attached_request_ids),
            ),
            self._clock.now(),
        )
        if extras.signal is not None and has_taken(state, request.request_id):
            verdict = Repeat(run_id=state.run_id, first_execution_run_id=state.first_execution_run_id)
        if isinstance(verdict, Rejection | Repeat):
            told = verdict

            def tell() -> None:
                if existing.is_discarded:
                    self._funnel.spawn(self._start_on_existing(request, extras, future, races + 1))
                elif isinstance(told, Rejection):
                    _refuse(future, RPCError(told))
                else:
                    _answer(future, Started(existing, _response(state, started=False)))

            self._pipeline.after_current(existing, tell)
        elif isinstance(verdict, UseExisting) and extras.signal is not None:
            # The signal that follows carries the request id. A start noted by itself would outlive a run that closes
            # in between, and claim that the signal was taken.
            _answer(future, Started(existing, _response(state, started=False)))
        elif isinstance(verdict, UseExisting):
            self._use_existing(existing, request, extras, future, races)
        elif isinstance(verdict, TerminateThenStart):
            self._replace(existing, verdict.reason, request, extras, future, races)
        else:
            assert isinstance(verdict, Start), f"unknown verdict: {verdict}"
            self._insert(request, extras, future, latest_run_key=existing.run_key, races=races)

    def _use_existing(
        self,
        existing: RunEntry,
        request: StartWorkflowRequest,
        extras: StartExtras,
        future: asyncio.Future[Started],
        races: int,
    ) -> None:
        answer: asyncio.Future[Any] = self._loop.create_future()
        operation = Operation(
            lambda state, now: decide_attach_request(state, request.request_id, now),
            answer,
            locate=lambda: self._locator.find(request.namespace, request.workflow_id, existing.state.run_id),
            reply=lambda entry, _: Started(entry, _response(entry.state, started=False)),
        )

        def attached(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, RPCError) and error.code is RejectionCode.WORKFLOW_NOT_FOUND and races < RACES_MAX:
                # The run was one that another start was about to make, and that start has lost: there is no such run.
                self._funnel.spawn(self._start_on_existing(request, extras, future, races + 1))
            else:
                _forward(done, future)

        answer.add_done_callback(attached)
        self._funnel.apply(existing, operation)

    def _replace(
        self,
        existing: RunEntry,
        reason: str,
        request: StartWorkflowRequest,
        extras: StartExtras,
        future: asyncio.Future[Started],
        races: int,
    ) -> None:
        """Terminate the open run and start the new one in one unit: never two open, never none."""
        decided = self._decide(request, extras, existing.run_key)
        if isinstance(decided, Rejection):
            _refuse(future, RPCError(decided))
            return
        entry, transition = decided
        terminate = TerminateWorkflowRequest(
            namespace=request.namespace,
            workflow_id=request.workflow_id,
            run_id=existing.state.run_id,
            identity=request.identity,
            reason=reason,
            details=(msgspec.Raw(msgspec.json.encode(f"replaced by run {entry.state.run_id}")),),
        )
        ended = decide_terminate(existing.state, terminate, self._clock.now())
        if isinstance(ended, Rejection):
            self._funnel.spawn(self._start_on_existing(request, extras, future, races + 1))
            return
        entry.expected_latest_run_key = existing.run_key
        self._cache.mark_closed(existing)

        def settled(submission: OpSubmission, outcome: Outcome) -> None:
            self._insert_settled(submission, outcome, request, extras, future, races)

        closing = submission_of(existing, ended, self._funnel.settle)
        self._funnel.hand_over(closing, self._clock.now())
        existing.remember(ended.events)
        self._pipeline.submit_together(closing, self._submission(entry, transition, settled))

    def shard_of(self, request: StartWorkflowRequest) -> int:
        """The shard of the run that this start begins."""
        return shard_of(request.namespace, request.workflow_id, self._store.shard_count)


def has_taken(state: ExecutionState, request_id: str) -> bool:
    """Whether a signal-with-start of this request id started the run, or has signalled it."""
    if not request_id:
        return False
    known = (state.start_request_id, *state.recent_request_ids, *state.earlier_request_ids)
    return request_id in known


def shard_of(namespace: str, workflow_id: str, shard_count: int) -> int:
    """The shard that a workflow id belongs to: stable across processes and versions."""
    if shard_count == 1:
        return 0
    return zlib.crc32(f"{len(namespace)}:{namespace}{workflow_id}".encode()) % shard_count


def _response(state: ExecutionState, *, started: bool) -> StartWorkflowResponse:
    return StartWorkflowResponse(
        run_id=state.run_id, first_execution_run_id=state.first_execution_run_id, started=started
    )


def _busy(request: StartWorkflowRequest) -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.WORKFLOW_BUSY,
            message=f"workflow id {request.workflow_id!r} is being started by others all the time; nothing was done; "
            "try again later",
        )
    )


def _answer(future: asyncio.Future[Started], value: Started) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: asyncio.Future[Started], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _forward(done: asyncio.Future[Any], future: asyncio.Future[Started]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _forward_response(reply: Reply[StartWorkflowResponse], done: asyncio.Future[Started]) -> None:
    error = done.exception()
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(done.result().response)
