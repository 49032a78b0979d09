"""The service-loop side of workflow tasks: cached runs, turns, and what is reported of them.

Owns: which runs are cached, which task goes to which machine, and the answer to each task.
Never: runs workflow code (``_threads`` lends the thread, ``replay`` the machine); touches a machine that has a turn.

How it works: a task goes to the machine that has its run cached if that stands where the task's events begin; else to
a new machine with the whole history, fetched first when the task brings only part of it. A run has at most one turn at
a time; what comes meanwhile waits behind it. A finished turn frees its slot before its result is sent, so that the
engine can answer one task with the next. A run whose task failed, was refused or blocked is dropped: the next task
replays it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Protocol, final

import msgspec

from clew.model.events import Event, WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest, QueryResult
from clew.service.contract import Service
from clew.service.requests import AnswerQueryRequest, GetHistoryRequest, WorkflowTask
from clew.worker._inbox import Inbox
from clew.worker._reports import Report, is_passing
from clew.worker._threads import TICK_SECONDS, Turn, TurnThreads

FETCH_EVENTS_MAX: Final = 1_000
"""Events a page when a history is fetched anew."""

_OUR_FILES: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STDLIB_FILES: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES: Final = f"{os.sep}site-packages{os.sep}"

_log: Final = logging.getLogger("clew.worker.workflow")


class Machine(Protocol):
    """What a worker needs of the machine of one run."""

    @property
    def cached_through_event_id(self) -> int: ...
    def activate(self, task: WorkflowTask) -> Any: ...
    def evict(self) -> None: ...


class Machines(Protocol):
    """Makes machines, and completes their answers with what only the worker knows."""

    def make(self, task: WorkflowTask) -> Machine:
        """Make the machine for the run of `task`; on a workflow thread.

        Raises:
            ClewError: There is no workflow of that type.
        """
        ...

    def sign(self, completion: CompleteWorkflowTaskRequest, *, is_sticky: bool) -> CompleteWorkflowTaskRequest: ...


class WorkflowCodec(Protocol):
    """Decodes what a task brings and encodes what its answer holds, when the data converter has a codec."""

    def decode_task(self, task: WorkflowTask) -> Awaitable[WorkflowTask]: ...
    def encode_completion(self, completion: Any) -> Awaitable[Any]: ...


@final
class _Run:
    """One run in the cache."""

    __slots__ = ("backlog", "is_dropped", "machine", "run_id", "turn")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.machine: Machine | None = None
        self.turn: _Activation | None = None
        self.backlog: deque[WorkflowTask] = deque()
        self.is_dropped = False


@final
class _Activation:
    """One task on a workflow thread."""

    __slots__ = ("completion", "error", "machine", "make", "of", "task")

    def __init__(self, of: _Run, task: WorkflowTask, make: Callable[[WorkflowTask], Machine]) -> None:
        self.of = of
        self.task = task
        self.make = make
        self.machine: Machine | None = None
        self.completion: CompleteWorkflowTaskRequest | FailWorkflowTaskRequest | AnswerQueryRequest | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            machine = self.of.machine
            if machine is None:
                machine = self.of.machine = self.make(self.task)
            self.machine = machine
            self.completion = machine.activate(self.task).completion
        except BaseException as error:  # noqa: BLE001 - becomes the failure of this task
            self.error = error

    def discard(self) -> None:
        if self.machine is not None:
            self.machine.evict()


@final
class _Eviction:
    """The end of a cached run, on a workflow thread."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def run(self) -> None:
        self.machine.evict()

    def discard(self) -> None:
        pass


@final
class WorkflowTasks:
    """Takes offered workflow tasks and sees that each is answered.

    Args:
        loop: The service loop; every method but `Turn.run` belongs to it.
        service: Where answers go.
        machines: Makes the machine of a run.
        identity: Of the worker, set in every answer.
        cached_runs_max: Runs kept between their tasks; 0 means none, and no sticky tasks.
        blocked_timeout: How long a turn may hold its thread; None means any time.
        post: Runs a callback on the service loop; from any thread.
        on_error: Told what must bring the worker down.
        codec: The payload codec, if there is one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        machines: Machines,
        *,
        identity: str,
        cached_runs_max: int,
        blocked_timeout: timedelta | None,
        post: Callable[[Callable[[], None]], object],
        on_error: Callable[[BaseException], None],
        codec: WorkflowCodec | None = None,
    ) -> None:
        self._loop = loop
        self._service = service
        self._machines = machines
        self._identity = identity
        self._cached_runs_max = cached_runs_max
        self._blocked_timeout = blocked_timeout
        self._settle_slot: Callable[[], None] = _no_slot
        self._on_error = on_error
        self._codec = codec
        self._runs: dict[str, _Run] = {}
        self._finished: Inbox[Turn] = Inbox(post, self._take_finished, on_error)
        self._threads = TurnThreads(
            loop,
            self._finished.put,
            self._give_up,
            on_error,
            blocked_timeout=None if blocked_timeout is None else blocked_timeout.total_seconds(),
        )
        self._open_count = 0
        self._drained: asyncio.Future[None] | None = None
        self._side_tasks: set[asyncio.Task[None]] = set()

    @property
    def cached_runs_count(self) -> int:
        """Runs that are held now."""
        return len(self._runs)

    # --- tasks come in --------------------------------------------------------------------------------------

    def offer(self, task: WorkflowTask, settle: Callable[[], None]) -> None:
        """Take one task; `settle` gives a slot back, once for each task."""
        self._settle_slot = settle
        self._open_count += 1
        if self._codec is not None:
            self._start_side_task(self._decode(task, self._codec), task)
        else:
            self._route(task)

    def evict(self, run_id: str) -> None:
        """Drop one run, now or after its turn."""
        run = self._runs.get(run_id)
        if run is not None:
            self._drop(run)

    def _route(self, task: WorkflowTask) -> None:
        run = self._runs.get(task.token.run_id)
        if run is None:
            self._route_uncached(task)
        elif run.turn is not None:
            run.backlog.append(task)
        elif run.machine is not None and _continues(task, run.machine):
            self._touch(run)
            self._hand_over(run, task)
        else:
            self._drop(run)
            self._route_uncached(task)

    def _route_uncached(self, task: WorkflowTask) -> None:
        run = _Run(task.token.run_id)
        self._runs[run.run_id] = run
        if task.is_partial:
            # The run is there from now on, so that what comes while the history is fetched waits behind it.
            run.turn = _Activation(run, task, self._machines.make)
            self._start_side_task(self._complete_history(run, task), task)
        else:
            self._hand_over(run, task)

    def _hand_over(self, run: _Run, task: WorkflowTask) -> None:
        run.turn = turn = _Activation(run, task, self._machines.make)
        self._threads.submit(turn)

    def _touch(self, run: _Run) -> None:
        runs = self._runs
        del runs[run.run_id]
        runs[run.run_id] = run

    # --- histories, codecs: the ways that take a coroutine --------------------------------------------------

    def _start_side_task(self, work: Awaitable[None], task: WorkflowTask) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - this task alone fails
                self._fail_before_turn(task, error)

        side_task = self._loop.create_task(guarded(), name=f"clew-workflow-task:{task.token.workflow_id}")
        self._side_tasks.add(side_task)
        side_task.add_done_callback(self._side_tasks.discard)

    async def _decode(self, task: WorkflowTask, codec: WorkflowCodec) -> None:
        self._route(await codec.decode_task(task))

    async def _complete_history(self, run: _Run, task: WorkflowTask) -> None:
        # A question alone brings no events, and is answered after all that is recorded.
        events = await self._fetch(task, task.events[0].event_id if task.events else None)
        if self._codec is not None and events:
            # What came with the task has been decoded already.
            bare = WorkflowTask(
                token=task.token, workflow_type=task.workflow_type, task_queue=task.task_queue, events=tuple(events)
            )
            events = list((await self._codec.decode_task(bare)).events)
        self._hand_over(run, msgspec.structs.replace(task, events=(*events, *task.events), is_partial=False))

    async def _fetch(self, task: WorkflowTask, before_event_id: int | None) -> list[Event]:
        """Read the events of a run, up to and without `before_event_id` if there is one."""
        events: list[Event] = []
        next_id = 1
        deadline = self._loop.time() + task.workflow_task_timeout.total_seconds()
        while next_id and (before_event_id is None or next_id < before_event_id):
            request = GetHistoryRequest(
                namespace=task.token.namespace,
                workflow_id=task.token.workflow_id,
                run_id=task.token.run_id,
                from_event_id=next_id,
                events_max=FETCH_EVENTS_MAX,
            )
            try:
                page = await self._service.get_history(request)
            except Exception as error:
                if not is_passing(error) or self._loop.time() > deadline:
                    raise
                await asyncio.sleep(TICK_SECONDS)
                continue
            events.extend(page.events)
            next_id = page.next_event_id
        return [event for event in events if before_event_id is None or event.event_id < before_event_id]

    def _fail_before_turn(self, task: WorkflowTask, error: Exception) -> None:
        run = self._runs.get(task.token.run_id)
        if run is not None and run.turn is not None and run.turn.task is task:
            run.turn = None
            self._drop(run)
        self._report_failure(task, _to_failure(error, "The worker could not prepare this workflow task"))
        if run is not None:
            self._take_up_backlog(run)

    # --- turns come back ------------------------------------------------------------------------------------

    def _take_finished(self, turn: Turn) -> None:
        if not isinstance(turn, _Activation):
            return
        run, task = turn.of, turn.task
        run.turn = None
        completion = turn.completion
        if run.is_dropped:
            self._evict_machine(run)
        if completion is None:
            assert turn.error is not None, "a turn ends with an answer or an error"
            self._drop(run)
            self._report_failure(task, _to_failure(turn.error, "The workflow machine failed"))
        elif isinstance(completion, CompleteWorkflowTaskRequest):
            self._report_completion(run, task, completion)
        elif isinstance(completion, FailWorkflowTaskRequest):
            self._drop(run)
            self._report_failure(task, completion.failure, completion.cause)
        else:
            self._report_answer(run, task, completion)
        if run.backlog:
            self._take_up_backlog(run)

    def _take_up_backlog(self, run: _Run) -> None:
        if run.is_dropped:
            tasks, run.backlog = run.backlog, deque()
            for task in tasks:
                self._route(task)
        elif run.backlog and run.turn is None:
            self._route(run.backlog.popleft())

    def _give_up(self, turn: Turn, stack: traceback.StackSummary) -> None:
        """A turn blocks its thread, which is lost; its machine must not be touched again."""
        if not isinstance(turn, _Activation):
            _log.error("workflow.eviction_blocked; its thread was abandoned at:\n%s", "".join(stack.format()))
            return
        run, task = turn.of, turn.task
        run.turn = None
        run.machine = None
        self._drop(run)
        assert self._blocked_timeout is not None, "no turn is given up without a time-out"
        self._report_failure(task, _blocked(task, self._blocked_timeout, stack))
        self._take_up_backlog(run)

    # --- answers --------------------------------------------------------------------------------------------

    def _report_completion(self, run: _Run, task: WorkflowTask, completion: CompleteWorkflowTaskRequest) -> None:
        is_sticky = self._cached_runs_max > 0 and not run.is_dropped
        if completion.commands and _closes(completion):
            is_sticky = False
            self._drop(run)
        elif self._cached_runs_max == 0:
            self._drop(run)
        completion = self._machines.sign(completion, is_sticky=is_sticky)
        if self._codec is not None:
            self._start_side_task(self._encode_and_send(run, task, completion, self._codec), task)
            return
        self._send_completion(run, task, completion)

    async def _encode_and_send(self, run: _Run, task: WorkflowTask, completion: Any, codec: WorkflowCodec) -> None:
        try:
            encoded = await codec.encode_completion(completion)
        except Exception:
            self._drop(run)
            raise
        if isinstance(encoded, CompleteWorkflowTaskRequest):
            self._send_completion(run, task, encoded)
        else:
            self._send_answer(run, task, encoded)

    def _send_completion(self, run: _Run, task: WorkflowTask, completion: CompleteWorkflowTaskRequest) -> None:
        def on_verdict(error: BaseException | None) -> None:
            if error is not None:
                self._on_refused(run, task, error)

        self._settle()
        self._send(self._service.complete_workflow_task, completion, task, on_verdict)
        self._trim()

    def _report_answer(self, run: _Run, task: WorkflowTask, answer: AnswerQueryRequest) -> None:
        if self._cached_runs_max == 0:
            self._drop(run)
        if self._codec is not None:
            self._start_side_task(self._encode_and_send(run, task, answer, self._codec), task)
        else:
            self._send_answer(run, task, answer)

    def _send_answer(self, run: _Run, task: WorkflowTask, answer: AnswerQueryRequest) -> None:
        self._settle()
        self._send(self._service.answer_query, answer, task, lambda error: _log_refusal(task, error))
        self._trim()

    def _report_failure(
        self,
        task: WorkflowTask,
        failure: Failure | None,
        cause: WorkflowTaskFailedCause = WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE,
    ) -> None:
        self._settle()
        if task.query is not None:
            result = QueryResult(query_id=task.query.query_id, failure=failure or Failure(message="The query failed."))
            answer = AnswerQueryRequest(token=task.token, result=result)
            self._send(self._service.answer_query, answer, task, lambda error: _log_refusal(task, error))
            return
        _log_failure(task, failure, cause)
        request = FailWorkflowTaskRequest(token=task.token, cause=cause, failure=failure, identity=self._identity)
        self._send(self._service.fail_workflow_task, request, task, lambda error: _log_refusal(task, error))

    def _send(
        self,
        call: Callable[[Any], Awaitable[Any]],
        request: Any,
        task: WorkflowTask,
        on_verdict: Callable[[BaseException | None], None],
    ) -> None:
        Report(
            self._loop,
            call,
            request,
            task.token.workflow_id,
            on_verdict,
            give_up_after=task.workflow_task_timeout.total_seconds(),
        ).send()

    def _on_refused(self, run: _Run, task: WorkflowTask, error: BaseException) -> None:
        """The machine stands where history does not: its run has to be replayed."""
        self._drop(run)
        _log_refusal(task, error)

    def _settle(self) -> None:
        """One task has its answer: give its slot back."""
        self._open_count -= 1
        self._settle_slot()
        if self._open_count == 0 and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # --- the cache ------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        excess = len(self._runs) - self._cached_runs_max
        if excess <= 0:
            return
        idle = [run for run in self._runs.values() if run.turn is None][:excess]
        for run in idle:
            self._drop(run)

    def _drop(self, run: _Run) -> None:
        """Forget a run; its machine is evicted when it has no turn (any more)."""
        run.is_dropped = True
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]
        if run.turn is None:
            self._evict_machine(run)

    def _evict_machine(self, run: _Run) -> None:
        machine, run.machine = run.machine, None
        if machine is not None:
            self._threads.submit(_Eviction(machine))

    # --- the end --------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Wait until every task that was offered is answered, at most `timeout` seconds."""
        if self._open_count == 0:
            return
        self._drained = self._loop.create_future()
        await asyncio.wait((self._drained,), timeout=timeout)

    async def close(self, timeout: float) -> None:
        """Evict every run and end the threads; bounded by `timeout` seconds."""
        for run in list(self._runs.values()):
            self._drop(run)
        for side_task in list(self._side_tasks):
            side_task.cancel()
        for stack in await self._threads.close(timeout):
            _log.warning("worker.workflow_thread_left; workflow code still holds its thread at:\n%s", stack)


_CLOSING: Final = frozenset(
    {
        "CompleteWorkflowExecution",
        "FailWorkflowExecution",
        "CancelWorkflowExecution",
        "ContinueAsNewWorkflowExecution",
    }
)


def _no_slot() -> None:
    """Before the first task there is no slot to give back."""


def _closes(completion: CompleteWorkflowTaskRequest) -> bool:
    return type(completion.commands[-1]).__name__ in _CLOSING


def _continues(task: WorkflowTask, machine: Machine) -> bool:
    """Whether the events of `task` begin where `machine` stands."""
    if not task.is_partial:
        return False
    if task.events:
        return task.events[0].event_id == machine.cached_through_event_id + 1
    return task.previous_started_event_id == machine.cached_through_event_id


def _blocked(task: WorkflowTask, timeout: timedelta, stack: traceback.StackSummary) -> Failure:
    return Failure(
        message=(
            f"Workflow {task.workflow_type!r} did not yield for {timeout.total_seconds():g} s; its thread stands at "
            f"{_place(stack)}. Workflow code has to await: move blocking calls and long computations into an activity, "
            "or raise the worker's blocked_thread_timeout."
        ),
        source="clew",
        stack_trace="".join(_without_ours(stack).format()),
        info=ApplicationInfo(type="BlockedThreadError"),
    )


def _without_ours(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The stack from the first line of user code on; all of it if there is none."""
    first = next((n for n, frame in enumerate(stack) if _is_of_user(frame.filename)), 0)
    return traceback.StackSummary.from_list(list(stack)[first:])


def _place(stack: traceback.StackSummary) -> str:
    """The innermost line of user code."""
    lines = [frame for frame in stack if _is_of_user(frame.filename)] or list(stack)
    return f"{lines[-1].filename}:{lines[-1].lineno} in {lines[-1].name}" if lines else "an unknown line"


def _is_of_user(filename: str) -> bool:
    if filename.startswith(_STDLIB_FILES) and _PACKAGES not in filename:
        return False
    return not filename.startswith(_OUR_FILES)


def _to_failure(error: BaseException, what: str) -> Failure:
    return Failure(
        message=f"{what}: {type(error).__name__}: {error}",
        source="clew",
        info=ApplicationInfo(type=type(error).__name__),
    )


def _log_failure(task: WorkflowTask, failure: Failure | None, cause: WorkflowTaskFailedCause) -> None:
    _log.warning(
        "workflow.task_failed workflow_type=%s workflow_id=%s run_id=%s attempt=%d cause=%s: %s%s",
        task.workflow_type,
        task.token.workflow_id,
        task.token.run_id,
        task.attempt,
        cause.value,
        failure.message if failure is not None else "no failure given",
        f"\n{failure.stack_trace}" if failure is not None and failure.stack_trace else "",
    )


def _log_refusal(task: WorkflowTask, error: BaseException | None) -> None:
    if error is None or isinstance(error, asyncio.CancelledError):
        return
    _log.info(
        "workflow.answer_refused workflow_id=%s run_id=%s attempt=%d: %s",
        task.token.workflow_id,
        task.token.run_id,
        task.attempt,
        error,
    )
