"""Queries: questions to workflow code that leave no trace in history.

Owns: the choice between asking at once and riding on the next workflow task, the waiting answers, and the refusals.
Never: changes a run.

How it works: a run with no workflow task pending (or a closed one) is asked *directly*: a task with nothing but the
question, to the session that has it cached, else to any session of its queue with the full history. While a task is
pending the question waits and rides on the next one that is started; when that task ends without a follow-up, what is
unanswered is asked directly. Code that has answered a task knows what it did there, and nobody else may before that is
durable: nothing is asked directly while anything of the run is on its way to the store. What waits when a reset ends
the run is asked of the run that goes on, unless that very run was meant. Every question has a deadline, and ends with
an error that says what was missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from clew.core.state import ExecutionState
from clew.engine.funnel import store_error
from clew.engine.history import read_events
from clew.engine.matching import Matcher, Session, Want
from clew.engine.runs import BufferedQuery, RunEntry
from clew.engine.versions import Versions
from clew.model.events import Event
from clew.model.limits import Limits
from clew.model.policies import QueryRejectCondition, WorkflowExecutionStatus
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.entropy import Entropy
from clew.ports.store import Store, StoreError, TaskKind
from clew.service.errors import RPCError
from clew.service.requests import (
    AnswerQueryRequest,
    QueryResult,
    QueryTask,
    QueryWorkflowRequest,
    QueryWorkflowResponse,
    TaskToken,
    WorkflowTask,
)

NO_WORKER_SECONDS: Final = 2.0
"""How long a query waits for a worker to come to a queue that nobody polls."""

ANSWER_SECONDS: Final = 10.0
"""How long a query waits for its answer."""


class _WasReset(Exception):
    """The run that was to be asked has been reset while the question waited."""

    def __init__(self, successor: RunEntry) -> None:
        super().__init__(successor.state.run_id)
        self.successor = successor


class _Asked:
    __slots__ = ("future", "session")

    def __init__(self, future: asyncio.Future[QueryResult], session: Session) -> None:
        self.future = future
        self.session = session


class QueryDesk:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        matcher: Matcher,
        versions: Versions,
        wait_settled: Callable[[RunEntry], Awaitable[None]],
    ) -> None:
        self._wait_settled = wait_settled
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._matcher = matcher
        self._versions = versions
        self._asked: dict[str, _Asked] = {}
        self._loop = asyncio.get_running_loop()

    async def ask(self, entry: RunEntry, request: QueryWorkflowRequest, limits: Limits) -> QueryWorkflowResponse:
        """Ask the run's code.

        Raises:
            RPCError: ``no_worker``, ``workflow_not_ready``, ``query_buffer_full``, ``deadline_exceeded``.
        """
        while True:
            try:
                return await self._ask(entry, request, limits)
            except _WasReset as reset:
                entry = reset.successor

    async def _ask(self, entry: RunEntry, request: QueryWorkflowRequest, limits: Limits) -> QueryWorkflowResponse:
        while entry.unsettled_count and not entry.state.is_open:
            # That it is closed may yet be lost.
            await self._wait_settled(entry)
        if entry.is_discarded:
            raise _lost()
        rejected = _rejected_status(entry.state, request.reject_condition)
        if rejected is not None:
            return QueryWorkflowResponse(rejected_status=rejected)
        self._check_ready(entry.state, limits)
        task = QueryTask(
            query_id=self._entropy.uuid7(),
            query_type=request.query_type,
            query_args=request.query_args,
            header=request.header,
        )
        future: asyncio.Future[QueryResult] = self._loop.create_future()
        await self._wait_polled(entry, future)
        query = BufferedQuery(task, future, follows=not request.run_id)
        if _is_direct(entry):
            await self._ask_directly(entry, query)
        else:
            entry.queries.append(query)
        try:
            result = await asyncio.wait_for(future, ANSWER_SECONDS)
        except TimeoutError:
            raise self._overdue(entry.state) from None
        finally:
            self._forget(entry, query)
        if result.failure is not None:
            raise RPCError(
                Rejection(
                    code=RejectionCode.QUERY_FAILED,
                    message=result.failure.message,
                    details={"failure": _encode_failure(result)},
                )
            )
        return QueryWorkflowResponse(result=result.result)

    def answer(self, request: AnswerQueryRequest) -> None:
        """A worker answered a direct query; an answer that nobody waits for, or of another namespace, is dropped."""
        asked = self._asked.get(request.result.query_id)
        if asked is None or asked.session.hello.namespace != request.token.namespace:
            return
        del self._asked[request.result.query_id]
        if not asked.future.done():
            asked.future.set_result(request.result)

    def on_task_completed(self, entry: RunEntry, results: tuple[QueryResult, ...]) -> None:
        """A workflow task that carried queries was completed."""
        by_id = {result.query_id: result for result in results}
        remaining: list[BufferedQuery] = []
        for query in entry.queries_on_task:
            result = by_id.get(query.task.query_id)
            if result is None:
                remaining.append(query)
            elif not query.future.done():
                query.future.set_result(result)
        entry.queries_on_task = []
        entry.queries = remaining + entry.queries

    def ask_waiting(self, entry: RunEntry) -> list[BufferedQuery]:
        """After a change of the run: the waiting queries that can now be asked directly (and no longer wait)."""
        if not entry.state.is_open and entry.queries_on_task:
            # The task that carried them was taken away when the run closed, and is answered by nobody.
            entry.queries, entry.queries_on_task = entry.queries_on_task + entry.queries, []
        if not entry.queries or not _is_direct(entry):
            return []
        waiting, entry.queries = entry.queries, []
        return waiting

    async def ask_directly(self, entry: RunEntry, query: BufferedQuery) -> None:
        """Ask a query that waited for a task which did not come."""
        try:
            await self._ask_directly(entry, query)
        except (RPCError, _WasReset) as error:
            if not query.future.done():
                query.future.set_exception(error)
        except StoreError as error:
            if not query.future.done():
                query.future.set_exception(store_error(error))

    def abandon(self, entry: RunEntry) -> None:
        """The run's memory is gone, and with it the task that was to carry its questions: they are asked again."""
        for query in [*entry.queries, *entry.queries_on_task]:
            if not query.future.done():
                query.future.set_exception(_lost())
        entry.queries, entry.queries_on_task = [], []

    def refuse_waiting(self, entry: RunEntry, limits: Limits) -> None:
        """The run's workflow task keeps failing: tell those who wait for it."""
        try:
            self._check_ready(entry.state, limits)
        except RPCError as error:
            for query in [*entry.queries, *entry.queries_on_task]:
                if not query.future.done():
                    query.future.set_exception(error)
            entry.queries, entry.queries_on_task = [], []

    def on_detached(self, session: Session) -> None:
        """A worker is gone, and with it the answers it owed."""
        for query_id, asked in list(self._asked.items()):
            if asked.session is session:
                del self._asked[query_id]
                if not asked.future.done():
                    asked.future.set_exception(
                        RPCError(
                            Rejection(
                                code=RejectionCode.UNAVAILABLE,
                                message="the worker that was asked went away before it answered; ask again",
                            )
                        )
                    )

    def _forget(self, entry: RunEntry, query: BufferedQuery) -> None:
        self._asked.pop(query.task.query_id, None)
        for waiting in (entry.queries, entry.queries_on_task):
            if query in waiting:
                waiting.remove(query)

    async def _wait_polled(self, entry: RunEntry, future: asyncio.Future[QueryResult]) -> None:
        state = entry.state
        deadline = self._loop.time() + NO_WORKER_SECONDS
        while not self._matcher.is_polled(
            state.namespace, state.task_queue, TaskKind.WORKFLOW, self._versions.for_workflow(state)
        ):
            left = deadline - self._loop.time()
            if left <= 0:
                raise RPCError(
                    Rejection(
                        code=RejectionCode.NO_WORKER,
                        message=f"query of workflow {state.workflow_id!r}: "
                        + self._why_unmatched(state)
                        + "; start a worker that has this workflow registered, then ask again",
                    )
                )
            await self._matcher.wait_change(left)

    async def _ask_directly(self, entry: RunEntry, query: BufferedQuery) -> None:
        while True:
            if query.follows and entry.successor is not None and entry.successor.state.origins:
                raise _WasReset(entry.successor)
            _check_ran(entry.state)  # It may have closed while the question waited for its first workflow task.
            session, is_partial = await self._session_for(entry)
            try:
                events = [] if is_partial else entry.events_from(1) or await self._read_all(entry)
                if entry.is_discarded:
                    raise _lost()
            except BaseException:
                self._matcher.refund(session, TaskKind.WORKFLOW)
                raise
            state = entry.state
            is_direct = _is_direct(entry)
            if is_direct and (is_partial or events[-1].event_id == state.next_event_id - 1):
                break
            # It has gone on while a session, or its history, was waited for.
            self._matcher.refund(session, TaskKind.WORKFLOW)
            if not is_direct:
                if not query.future.done():
                    entry.queries.append(query)
                return
        self._asked[query.task.query_id] = _Asked(query.future, session)
        session.sink.offer_workflow_task(
            WorkflowTask(
                token=TaskToken(
                    namespace=state.namespace,
                    workflow_id=state.workflow_id,
                    run_id=state.run_id,
                    shard=entry.shard,
                    run_key=entry.run_key,
                    scheduled_event_id=0,
                    attempt=1,
                    lease_id=0,
                ),
                workflow_type=state.workflow_type,
                task_queue=state.task_queue,
                previous_started_event_id=state.previous_started_event_id,
                started_event_id=state.previous_started_event_id,
                events=tuple(events),
                is_partial=is_partial,
                query=query.task,
                scheduled_time=self._clock.now(),
                started_time=self._clock.now(),
            )
        )

    async def _read_all(self, entry: RunEntry) -> list[Event]:
        return await read_events(self._store, entry.shard, entry.run_key, 1, entry.state.next_event_id - 1)

    async def _session_for(self, entry: RunEntry) -> tuple[Session, bool]:
        """A session with a credit to spend on this run, and whether it has the run cached."""
        state = entry.state
        deadline = self._loop.time() + ANSWER_SECONDS
        while True:
            version = self._versions.for_workflow(state)
            sticky = self._matcher.take_sticky_session(state.sticky_session) if state.sticky_session else None
            if sticky is not None and sticky.version != version:
                sticky = None
            if sticky is not None and self._matcher.use_workflow_credit(sticky):
                return sticky, True
            if sticky is None:
                session = self._matcher.take_workflow_session(
                    state.namespace, state.task_queue, state.workflow_type, version
                )
                if session is not None:
                    return session, False
            left = deadline - self._loop.time()
            if left <= 0:
                raise self._overdue(state)
            await self._matcher.wait_change(left)

    def _why_unmatched(self, state: ExecutionState) -> str:
        want = Want(TaskKind.WORKFLOW, state.workflow_type, self._versions.for_workflow(state))
        return self._matcher.why_unmatched(state.namespace, state.task_queue, want)

    def _check_ready(self, state: ExecutionState, limits: Limits) -> None:
        problem = state.last_workflow_task_failure
        if state.is_open and problem is not None and state.workflow_task_attempt >= limits.task_attempts_not_ready:
            cause = problem.cause.value if problem.cause else "timed out"
            text = problem.failure.message if problem.failure is not None else ""
            raise RPCError(
                Rejection(
                    code=RejectionCode.WORKFLOW_NOT_READY,
                    message=f"workflow {state.workflow_id!r} cannot answer: its workflow task fails since attempt "
                    f"{problem.attempt} ({cause}: {text}); deploy code that can process it, then ask again",
                    details={"cause": cause},
                )
            )
        _check_ran(state)

    def _overdue(self, state: ExecutionState) -> RPCError:
        why = self._why_unmatched(state)
        return RPCError(
            Rejection(
                code=RejectionCode.DEADLINE_EXCEEDED,
                message=f"query of workflow {state.workflow_id!r} had no answer within {ANSWER_SECONDS:g} s; "
                f"its worker may be busy or gone ({why})",
            )
        )


def _check_ran(state: ExecutionState) -> None:
    if not state.is_open and state.previous_started_event_id == 0:
        raise RPCError(
            Rejection(
                code=RejectionCode.WORKFLOW_NOT_READY,
                message=f"workflow {state.workflow_id!r} closed before its code ever ran (run {state.run_id!r}), so "
                "nobody can answer; if another run has followed, ask that",
            )
        )


def _is_direct(entry: RunEntry) -> bool:
    state = entry.state
    if entry.unsettled_count:
        # The worker may be ahead of what is durable, and must not tell of it.
        return False
    if not state.is_open:
        return True
    return state.previous_started_event_id > 0 and state.workflow_task is None


def _lost() -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.UNAVAILABLE,
            message="what the question was to be asked after could not be made durable; ask again",
        )
    )


def _rejected_status(state: ExecutionState, condition: QueryRejectCondition) -> WorkflowExecutionStatus | None:
    if condition is QueryRejectCondition.NOT_OPEN and not state.is_open:
        return state.status
    if condition is QueryRejectCondition.NOT_COMPLETED_CLEANLY and state.status not in (
        WorkflowExecutionStatus.RUNNING,
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.CONTINUED_AS_NEW,
        WorkflowExecutionStatus.PAUSED,
    ):
        return state.status
    return None


def _encode_failure(result: QueryResult) -> str:
    return msgspec.json.encode(result.failure).decode()
