"""The service-loop side of workflow tasks: cached runs, turns, and what is answered.

Owns: which runs are cached, which task goes to which machine, and that each task gets its answer.
Never: runs workflow code (``_threads`` lends the thread, ``replay`` the machine); touches a machine that has a turn.

How it works: a task goes to the machine that has its run cached if that stands where the task's events begin; else to
a new machine with the whole history, fetched first when the task brings only part of it. A run has at most one turn at
a time; what comes meanwhile waits behind it. A turn may leave its task open because local activities have to be run
first; each that finishes is recorded at once (docs/adr/0016), those that finish meanwhile together with the next call,
and then given to the code in another turn, until one brings the answer, or the task's time is nearly over and it is
answered without them. A task that comes *early*, before its cause is durable, is begun only if its turn can be run at
once, and local activities that it asks for wait for the word that it is. A slot is given back before its answer is
sent, so that the engine can answer one task with the next. A run whose task failed, was refused or blocked is dropped:
the next task replays it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, Protocol, final

import msgspec

from clew.model.events import WorkflowExecutionStarted, WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest, RecordMarkersRequest
from clew.replay import ActivationResult, LocalActivityOutcome, LocalActivityRequest
from clew.service.contract import Service
from clew.service.requests import AnswerQueryRequest, RecordMarkersResponse, WorkflowTask
from clew.worker._answers import Answers
from clew.worker._blame import blocked_failure, worker_failure
from clew.worker._histories import fetch_events
from clew.worker._idle import IdleRuns
from clew.worker._inbox import Inbox
from clew.worker._local_activities import LocalActivities, LocalRun
from clew.worker._metrics import WorkerMetrics, started_at
from clew.worker._threads import Turn, TurnThreads
from clew.worker._turns import (
    Activation,
    CachedRun,
    Eviction,
    ExtendTask,
    Extension,
    Finished,
    LocalOutcome,
    Machine,
    Machines,
    RecordedSteps,
    RunTurn,
)

EXTEND_SHARE: Final = 0.8
"""Share of a workflow task's time after which it is answered although local activities go on (semantics 1.3)."""

_UNHANDLED: Final = WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
_log: Final = logging.getLogger("clew.worker.workflow")


class WorkflowCodec(Protocol):
    """Decodes what a task brings and encodes what its answer holds, when the data converter has a codec."""

    def decode_task(self, task: WorkflowTask) -> Awaitable[WorkflowTask]: ...
    def encode_completion(self, completion: Any) -> Awaitable[Any]: ...


@final
class WorkflowTasks:
    """Takes offered workflow tasks and sees that each is answered.

    Args:
        loop: The service loop; every method belongs to it.
        service: Where answers go.
        machines: Makes the machine of a run.
        identity: Of the worker, set in every answer.
        cached_runs_max: Runs kept between their tasks; 0 means none, and no sticky tasks.
        blocked_timeout: How long a turn may hold its thread; None means any time.
        post: Runs a callback on the service loop; from any thread.
        on_error: Told what must bring the worker down.
        codec: The payload codec, if there is one.
        metrics: Where the worker measures itself, if anybody wants to know.
    """

    local_activities: LocalActivities | None = None
    """Runs local activities; None in a worker without activities."""

    slots_max = 0
    """Workflow tasks at a time, for the metrics."""

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
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._service = service
        self._machines = machines
        self._identity = identity
        self._answers = Answers(loop, service, identity)
        self._cached_runs_max = cached_runs_max
        self._blocked_timeout = blocked_timeout
        self._settle_slot: Callable[[], None] = _no_slot
        self._note_unanswered: Callable[[WorkflowTask], None] | None = None
        self._codec = codec
        self._runs: dict[str, CachedRun] = {}
        self._idle = IdleRuns(loop, self._runs, may_drop=_is_idle, drop=self._let_go)
        self._finished: Inbox[Turn] = Inbox(post, self._take_finished, on_error)
        self._threads = TurnThreads(
            loop,
            self._finished.put,
            self._give_up,
            on_error,
            blocked_timeout=None if blocked_timeout is None else blocked_timeout.total_seconds(),
            finish_here=self._take_finished,
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
        if self._metrics is not None:
            self._metrics.count("workflow_task_queue_poll_succeed", {"workflow_type": task.workflow_type})
            self._show_slots()
        if self._codec is not None:
            self._start_side_task(self._decode(task, self._codec), task)
        else:
            self._route(task)

    def offer_early(
        self,
        task: WorkflowTask,
        settle: Callable[[], None],
        note_unanswered: Callable[[WorkflowTask], None] | None = None,
    ) -> bool:
        """Take a task whose cause is not durable yet, if its turn can be run at once; gives whether it is taken.

        `note_unanswered` is told if there will be no answer before `confirm`.
        """
        runs, run_id = self._runs, task.token.run_id
        run = runs.get(run_id)
        if run is None:
            if task.is_partial:
                return False
            run = CachedRun(run_id, task.workflow_type)
        elif (
            run.turn is not None
            or run.task is not None
            or run.machine is None
            or run.jobs
            or run.locals
            or run.finished
            or not _continues(task, run.machine)
        ):
            return False
        turn = Activation(run, task, self._machines.make)
        if self._codec is not None or not self._threads.lend(turn):
            return False
        # It is run when the loop comes to it, and not before.
        runs.pop(run_id, None)
        runs[run_id] = run
        run.is_early = True
        run.turn = turn
        self._settle_slot = settle
        self._note_unanswered = note_unanswered
        self._open_count += 1
        if self._metrics is not None:
            self._metrics.count("workflow_task_queue_poll_succeed", {"workflow_type": task.workflow_type})
            self._show_slots()
        self._note_begun(run, task)
        return True

    def confirm(self, task: WorkflowTask) -> None:
        """The cause of an early task is durable; one that is answered by now may be named as well."""
        run = self._runs.get(task.token.run_id)
        if run is None or run.task is not task:
            return
        run.is_early = False
        held, run.held = run.held, None
        if held is not None:
            self._take_outcome_of(run, None, held)

    def evict(self, run_id: str) -> None:
        """Drop one run, now or after its turn."""
        run = self._runs.get(run_id)
        if run is not None:
            run.is_void = run.is_early
            self._drop(run)

    def _route(self, task: WorkflowTask) -> None:
        run = self._runs.get(task.token.run_id)
        if run is None:
            self._route_uncached(task)
        elif run.turn is not None:
            run.put_job(task)
        elif run.task is None and run.machine is not None and _continues(task, run.machine):
            # Moved to the end, as the one used last.
            del self._runs[run.run_id]
            self._runs[run.run_id] = run
            self._hand_over(run, task)
        else:
            self._drop(run)
            self._route_uncached(task)
            # What waited behind this task waits for the new machine.
            self._go_on(run)

    def _route_uncached(self, task: WorkflowTask) -> None:
        run = CachedRun(task.token.run_id, task.workflow_type)
        run.began_at = self._loop.time()
        self._runs[run.run_id] = run
        if task.is_partial:
            # The run is there from now on, so that what comes while the history is fetched waits behind it.
            run.task, run.turn = task, Activation(run, task, self._machines.make)
            self._start_side_task(self._complete_history(run, task), task)
        else:
            self._hand_over(run, task)

    def _hand_over(self, run: CachedRun, task: WorkflowTask) -> None:
        self._note_begun(run, task)
        self._begin(run, Activation(run, task, self._machines.make))

    def _note_begun(self, run: CachedRun, task: WorkflowTask) -> None:
        run.task = task
        run.position = task.started_event_id
        run.renewed_at = run.began_at = self._loop.time()
        if self._metrics is not None:
            self._metrics.note_workflow_task(task, is_cached=run.machine is not None)
            run.started_at = run.started_at or started_at(task)
        if task.events and type(task.events[0]) is WorkflowExecutionStarted:
            run.key_generation = task.events[0].key_generation

    def _begin(self, run: CachedRun, turn: RunTurn) -> None:
        run.turn = turn
        self._threads.submit(turn)

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

    async def _complete_history(self, run: CachedRun, task: WorkflowTask) -> None:
        # A question alone brings no events, and is answered after all that is recorded.
        events = await fetch_events(self._service, task, task.events[0].event_id if task.events else None)
        if self._codec is not None and events:
            # What came with the task has been decoded already.
            bare = WorkflowTask(
                token=task.token, workflow_type=task.workflow_type, task_queue=task.task_queue, events=tuple(events)
            )
            events = list((await self._codec.decode_task(bare)).events)
        self._hand_over(run, msgspec.structs.replace(task, events=(*events, *task.events), is_partial=False))

    def _fail_before_turn(self, task: WorkflowTask, error: Exception) -> None:
        run = self._runs.get(task.token.run_id)
        if run is not None and run.task is task:
            run.turn = run.task = None
            self._drop(run)
        self._fail(task, worker_failure(error, "The worker could not prepare this workflow task"))
        if run is not None:
            self._go_on(run)

    # --- turns come back ------------------------------------------------------------------------------------

    def _take_finished(self, turn: Turn) -> None:
        if type(turn) is Eviction:
            return
        assert isinstance(turn, RunTurn), "there are turns of runs, and evictions"
        run, result = turn.of, turn.result
        run.turn = None
        if (
            result is not None
            and result.is_answer_alone
            and type(result.completion) is CompleteWorkflowTaskRequest
            and not (run.is_dropped or run.unrecorded or run.extension is not None)
        ):
            # The usual, also for an early task: it asks for nothing but what the engine keeps until that is durable.
            task = run.task
            assert task is not None, "a machine answers only while a task is open"
            run.task = None
            run.is_early = False
            self._complete(run, task, result.completion, is_closed=result.is_closed)
            self._end_turn(run)
            return
        self._take_outcome_of(run, turn.error, result)

    def _take_outcome_of(self, run: CachedRun, error: BaseException | None, result: ActivationResult | None) -> None:
        run.is_settling = True
        try:
            if run.is_void:
                if run.task is not None:
                    self._close_task(run)
                    self._settle()
            elif error is not None:
                self._fail_open_task(run, worker_failure(error, "The workflow machine failed"), _UNHANDLED)
            elif result is not None:
                self._take_result(run, result)
        finally:
            run.is_settling = False
        self._end_turn(run)

    def _end_turn(self, run: CachedRun) -> None:
        if run.is_dropped:
            self._evict_machine(run)
        if run.jobs or run.finished:
            self._go_on(run)

    def _take_result(self, run: CachedRun, result: ActivationResult) -> None:
        if run.is_early and result.local_activities:
            run.held = result
            if self._note_unanswered is not None and run.task is not None:
                self._note_unanswered(run.task)
            return
        if result.local_activities or result.cancelled_local_activities or result.forgotten_local_activities:
            self._take_local_activities(run, result)
        if result.unrecorded_markers:
            run.unrecorded += result.unrecorded_markers
        completion, task = result.completion, run.task
        assert task is not None, "a machine answers, or waits, only while a task is open"
        if completion is None:
            self._wait_for_locals(run, task)
            return
        self._close_task(run)
        if isinstance(completion, CompleteWorkflowTaskRequest):
            self._complete(run, task, completion, is_closed=result.is_closed)
        elif isinstance(completion, FailWorkflowTaskRequest):
            self._drop(run)
            self._fail(task, completion.failure, completion.cause)
        else:
            self._answer(run, task, completion)

    def _go_on(self, run: CachedRun) -> None:
        """Take up what waited behind a turn."""
        if run.is_dropped:
            jobs, run.jobs = run.jobs, None
            for job in jobs or ():
                if isinstance(job, WorkflowTask):
                    self._route(job)
        elif run.turn is not None or run.is_recording or run.is_settling:
            return
        elif run.task is not None and run.finished:
            self._take_finished_locals(run, run.task, run.finished)
        elif run.jobs:
            job = run.jobs.popleft()
            if isinstance(job, WorkflowTask):
                self._route(job)
            else:
                self._begin(run, Extension(run))

    def _give_up(self, turn: Turn, stack: traceback.StackSummary) -> None:
        """A turn blocks its thread, which is lost; its machine must not be touched again."""
        if not isinstance(turn, RunTurn):
            _log.error("workflow.eviction_blocked; its thread was abandoned at:\n%s", "".join(stack.format()))
            return
        run = turn.of
        run.turn = run.machine = None
        assert self._blocked_timeout is not None, "no turn is given up without a time-out"
        if run.task is not None:
            self._fail_open_task(run, blocked_failure(run.task, self._blocked_timeout, stack), _UNHANDLED)
        else:
            self._drop(run)
        self._go_on(run)

    # --- local activities -----------------------------------------------------------------------------------

    def _take_local_activities(self, run: CachedRun, result: ActivationResult) -> None:
        runner = self.local_activities
        assert runner is not None, "machines ask for local activities only where something runs them"
        for request in result.local_activities:
            self._start_local(run, request, runner)
        for sequence in result.cancelled_local_activities:
            local = run.locals.get(sequence)
            if local is not None:
                runner.cancel(local)
        for sequence in result.forgotten_local_activities:
            local = run.locals.get(sequence)
            if local is not None:
                local.is_unwanted = True
        if result.forgotten_local_activities and run.finished:
            kept = [f for f in run.finished if f[0].sequence not in result.forgotten_local_activities]
            run.finished = deque(kept)

    def _start_local(self, run: CachedRun, request: LocalActivityRequest, runner: LocalActivities) -> None:
        assert run.task is not None, "local activities are asked for in an open task"
        take = functools.partial(self._take_outcome, run)
        local = LocalRun(request, run.task.token, run.task.workflow_type, run.key_generation, take)
        run.locals[request.sequence] = local
        runner.start(local)

    def _take_outcome(self, run: CachedRun, local: LocalRun, outcome: LocalActivityOutcome) -> None:
        request = local.request
        run.locals.pop(request.sequence, None)
        if not local.is_unwanted and not run.is_dropped:
            run.put_finished((request, outcome))
            self._go_on(run)

    def _take_finished_locals(self, run: CachedRun, task: WorkflowTask, finished: deque[Finished]) -> None:
        """Give the code what has finished: at once what it does not want durable, else once that is recorded."""
        if finished[0][0].input.durable == "batch":
            self._begin(run, LocalOutcome(run, finished.popleft()[1]))
            return
        markers, outcomes = run.take_steps()
        request = RecordMarkersRequest(
            token=task.token, markers=markers, after_event_id=run.position, identity=self._identity
        )
        run.is_recording = True
        if self._codec is not None:
            self._start_side_task(self._encode_and_record(run, task, request, outcomes, self._codec), task)
        else:
            self._record(run, task, request, outcomes)

    async def _encode_and_record(
        self,
        run: CachedRun,
        task: WorkflowTask,
        request: RecordMarkersRequest,
        outcomes: list[LocalActivityOutcome],
        codec: WorkflowCodec,
    ) -> None:
        encoded = await codec.encode_completion(request)
        if not run.is_dropped:
            self._record(run, task, encoded, outcomes)

    def _record(
        self, run: CachedRun, task: WorkflowTask, request: RecordMarkersRequest, outcomes: list[LocalActivityOutcome]
    ) -> None:
        sent_at = self._loop.time()

        def on_recorded(answer: RecordMarkersResponse) -> None:
            if run.is_dropped:
                return
            run.is_recording = False
            run.position = answer.last_event_id
            run.renewed_at = sent_at
            self._begin(run, RecordedSteps(run, outcomes, answer))

        def on_refused() -> None:
            # Somebody else has the task; what was recorded before stands in history.
            self._drop(run)
            self._go_on(run)

        self._answers.record(task, request, on_recorded, on_refused)

    def _wait_for_locals(self, run: CachedRun, task: WorkflowTask) -> None:
        if run.is_dropped:
            self._close_task(run)
            self._fail(task, Failure(message="The run left the worker's cache before the task was answered."))
        elif run.extension is None:
            self._await_extension(run, task)

    def _await_extension(self, run: CachedRun, task: WorkflowTask) -> None:
        """See to it that the task is answered before its time is over, which runs anew with each recorded step."""
        due = run.renewed_at + task.workflow_task_timeout.total_seconds() * EXTEND_SHARE
        left = due - self._loop.time()
        if left > 0:
            run.extension = self._loop.call_later(left, self._await_extension, run, task)
        else:
            run.extension = None
            run.put_job(ExtendTask())
            self._go_on(run)

    def _close_task(self, run: CachedRun) -> None:
        run.task = None
        run.is_early = False
        run.held = None
        run.unrecorded = []
        if run.extension is not None:
            run.extension.cancel()
            run.extension = None

    # --- answers --------------------------------------------------------------------------------------------

    def _complete(
        self, run: CachedRun, task: WorkflowTask, completion: CompleteWorkflowTaskRequest, *, is_closed: bool
    ) -> None:
        if self._metrics is not None:
            self._measure_answer(run, task, completion)
        keeps = False
        if not (is_closed or run.is_dropped):
            keeps = _has_locals(run) or (
                self._cached_runs_max > 0 and self._idle.is_worth_caching(completion.commands, run.position)
            )
        if not keeps:
            self._drop(run)
        completion = self._machines.sign(completion, is_sticky=keeps)
        if self._codec is not None:
            self._start_side_task(self._encode_and_send(run, task, completion, self._codec), task)
        else:
            self._send_completion(run, task, completion)

    def _measure_answer(self, run: CachedRun, task: WorkflowTask, completion: CompleteWorkflowTaskRequest) -> None:
        assert self._metrics is not None, "only where somebody wants to know"
        took = timedelta(seconds=self._loop.time() - run.began_at)
        attributes = {"workflow_type": task.workflow_type}
        self._metrics.record("workflow_task_execution_latency", took, attributes)
        if not task.is_partial and task.previous_started_event_id:
            self._metrics.record("workflow_task_replay_latency", took, attributes)
        if completion.commands:
            self._metrics.note_close(task, completion.commands[-1], run.started_at)

    def _answer(self, run: CachedRun, task: WorkflowTask, answer: AnswerQueryRequest) -> None:
        if self._cached_runs_max == 0 and not _has_locals(run):
            self._drop(run)
        if self._codec is not None:
            self._start_side_task(self._encode_and_send(run, task, answer, self._codec), task)
        else:
            self._send_answer(task, answer)

    async def _encode_and_send(self, run: CachedRun, task: WorkflowTask, completion: Any, codec: WorkflowCodec) -> None:
        try:
            encoded = await codec.encode_completion(completion)
        except Exception:
            self._drop(run)
            raise
        if isinstance(encoded, CompleteWorkflowTaskRequest):
            self._send_completion(run, task, encoded)
        else:
            self._send_answer(task, encoded)

    def _send_completion(self, run: CachedRun, task: WorkflowTask, completion: CompleteWorkflowTaskRequest) -> None:
        self._settle()
        # Refused, the machine stands where history does not: its run has to be replayed.
        self._answers.complete(task, completion, functools.partial(self._drop, run))
        self._trim()

    def _send_answer(self, task: WorkflowTask, answer: AnswerQueryRequest) -> None:
        self._settle()
        self._answers.answer_query(task, answer)
        self._trim()

    def _fail_open_task(self, run: CachedRun, failure: Failure, cause: WorkflowTaskFailedCause) -> None:
        task = run.task
        self._close_task(run)
        self._drop(run)
        if task is not None and run.is_void:
            self._settle()
        elif task is not None:
            self._fail(task, failure, cause)

    def _fail(self, task: WorkflowTask, failure: Failure | None, cause: WorkflowTaskFailedCause = _UNHANDLED) -> None:
        if self._metrics is not None and task.query is None:
            self._metrics.count("workflow_task_execution_failed", {"workflow_type": task.workflow_type})
        self._settle()
        self._answers.fail(task, failure, cause)

    def _settle(self) -> None:
        """One task has its answer: give its slot back."""
        self._open_count -= 1
        if self._metrics is not None:
            self._show_slots()
        settle_slot = self._settle_slot
        settle_slot()
        if self._open_count == 0 and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _show_slots(self) -> None:
        assert self._metrics is not None, "only where somebody wants to know"
        self._metrics.show_slots("WorkflowWorker", self._open_count, self.slots_max)
        self._metrics.show("sticky_cache_size", len(self._runs))

    # --- the cache ------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        excess = len(self._runs) - self._cached_runs_max
        if excess > 0:
            for run in list(itertools.islice(filter(_is_idle, self._runs.values()), excess)):
                self._let_go(run)
        self._idle.watch()

    def _let_go(self, run: CachedRun) -> None:
        if self._metrics is not None:
            self._metrics.count("sticky_cache_total_forced_eviction")
        self._drop(run)

    def _drop(self, run: CachedRun) -> None:
        """Forget a run; its machine is evicted when it has no turn (any more)."""
        run.is_dropped = True
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]
        if run.locals and self.local_activities is not None:
            for local in run.locals.values():
                self.local_activities.forget(local)
            run.locals.clear()
        run.finished = None
        if run.turn is None:
            if run.task is not None:
                # Left unanswered: the engine has given it to somebody else already, or its time will run out.
                self._close_task(run)
                self._settle()
            self._evict_machine(run)

    def _evict_machine(self, run: CachedRun) -> None:
        machine, run.machine = run.machine, None
        if machine is not None:
            self._threads.submit(Eviction(machine, run.workflow_type))

    # --- the end --------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Wait until every task that was offered is answered, at most `timeout` seconds."""
        if self._open_count == 0:
            return
        self._drained = self._loop.create_future()
        await asyncio.wait((self._drained,), timeout=timeout)

    async def close(self, timeout: float) -> None:
        """Evict every run and end the threads; bounded by `timeout` seconds."""
        self._threads.stop_lending()
        self._idle.close()
        for run in list(self._runs.values()):
            self._drop(run)
        for side_task in list(self._side_tasks):
            side_task.cancel()
        for stack in await self._threads.close(timeout):
            _log.warning("worker.workflow_thread_left; workflow code still holds its thread at:\n%s", stack)


def _no_slot() -> None:
    """Before the first task there is no slot to give back."""


def _is_idle(run: CachedRun) -> bool:
    """Whether nothing of the run is under way here, so that it may be dropped."""
    return run.turn is None and run.task is None and not _has_locals(run)


def _has_locals(run: CachedRun) -> bool:
    """Whether the run has local activities whose outcome would be lost with its machine."""
    return bool(run.locals or run.finished)


def _continues(task: WorkflowTask, machine: Machine) -> bool:
    """Whether the events of `task` begin where `machine` stands."""
    if not task.is_partial:
        return False
    if task.events:
        return task.events[0].event_id == machine.cached_through_event_id + 1
    return task.previous_started_event_id == machine.cached_through_event_id
