"""The engine alone on its hot path: W2 without worker, threads, disk or clock, so that its work can be counted.

Owns: a store and a worker that cost next to nothing and always do the same, and the workflows driven through them.
Never: measures time, or counts (`opcodes` does).

How it works: the store answers every commit at the next turn of the loop and keeps the rows; the worker
answers a workflow task with the next command of a fixed list, and an activity with its input, in the turn in which it
was offered. What the engine then does is a function of its code alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from benchmarks import workflows
from clew.converter import DataConverter
from clew.engine import Engine
from clew.model.commands import Command, CompleteWorkflowExecution, RecordMarker, ScheduleActivityTask
from clew.model.events import WorkflowExecutionStarted
from clew.model.inputs import (
    CompleteActivityRequest,
    CompleteWorkflowTaskRequest,
    RecordMarkersRequest,
    StartWorkflowRequest,
)
from clew.model.limits import LIMITS_DEFAULT
from clew.model.payload import StoredPayload
from clew.ports.store import CommitStatus, NamespaceRow, RunWrite
from clew.replay import WorkflowMachine
from clew.service.requests import ActivityTask, GetHistoryRequest, WorkerHello, WorkflowTask
from clew.worker._machines import Machines
from clew.workflow._definition import Definition

QUEUE: Final = "bench"
STEPS: Final = 3
_START: Final = datetime(2030, 1, 1, tzinfo=UTC)
_PAYLOAD: Final = (StoredPayload(b"3"),)
_MARKER: Final = RecordMarker(marker_name="LocalActivity", details={"data": _PAYLOAD, "result": _PAYLOAD})


class FixedClock:
    """Each look is a microsecond later; nothing ever comes due."""

    def __init__(self) -> None:
        self._now = _START

    def now(self) -> datetime:
        """The present instant."""
        self._now += timedelta(microseconds=1)
        return self._now

    def call_at(self, when: datetime, callback: Callable[[], None]) -> FixedClock:
        """Nothing is called."""
        return self

    def cancel(self) -> None:
        """Nothing to take back."""


class CountingEntropy:
    """Ids in sequence."""

    def __init__(self) -> None:
        self._count = 0

    def uuid7(self) -> str:
        """The next id."""
        self._count += 1
        return f"{self._count:036d}"

    def token(self, size: int) -> bytes:
        """As many bytes."""
        return b"s" * size


class LoopStore:
    """Answers every commit in the next turn of the loop; a store for runs that stay in memory."""

    shard_count: Final = 16

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next_id = 1
        self._namespaces: list[NamespaceRow] = []
        self.log: list[tuple[RunWrite, ...]] = []

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        """Keep the rows."""
        self.log.extend(units)
        done: asyncio.Future[list[CommitStatus]] = self._loop.create_future()
        self._loop.call_soon(done.set_result, [CommitStatus.COMMITTED] * len(units))
        return done

    async def reserve_run_keys(self, count: int) -> int:
        """The first of `count` ids."""
        self._next_id += count
        return self._next_id - count

    reserve_task_ids = reserve_run_keys

    async def list_namespaces(self) -> list[NamespaceRow]:
        """Those put so far."""
        return self._namespaces

    async def put_namespace(self, row: NamespaceRow) -> bool:
        """Keep it."""
        self._namespaces.append(row)
        return True

    async def _nothing(self, *_: Any) -> list[Any]:
        return []

    list_deployments = find_busy_runs = find_due_runs = read_outbox = claim_tasks = _nothing

    async def close(self) -> None:
        """Nothing to let go of."""


class FixedWorker:
    """Answers what it is offered at once, always in the same way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._steps: dict[str, int] = {}
        self._commands: list[Command] = [
            ScheduleActivityTask(
                activity_id=f"no_op-{number}",
                activity_type="no_op",
                input=_PAYLOAD,
                start_to_close_timeout=timedelta(minutes=5),
            )
            for number in range(1, STEPS + 1)
        ]
        self._commands.append(CompleteWorkflowExecution(result=_PAYLOAD))
        self.session: Any = None
        self._offered: list[WorkflowTask | ActivityTask] = []

    async def attach(self) -> None:
        """Begin to work."""
        hello = WorkerHello(
            namespace="default",
            task_queue=QUEUE,
            identity="bench",
            instance_id="bench",
            workflow_types=("Sequence",),
            activity_types=("no_op",),
        )
        self.session = await self._engine.attach_worker(hello, self)
        self.session.grant(workflow_tasks=200, activity_tasks=200)

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        """Answer in the next turn."""
        self._offer(task)

    def offer_activity_task(self, task: ActivityTask) -> None:
        """Answer in the next turn."""
        self._offer(task)

    def _offer(self, task: WorkflowTask | ActivityTask) -> None:
        if not self._offered:
            self._loop.call_soon(self._answer_all)
        self._offered.append(task)

    def _answer_all(self) -> None:
        offered, self._offered = self._offered, []
        for task in offered:
            if isinstance(task, ActivityTask):
                self.session.grant(activity_tasks=1)
                done = CompleteActivityRequest(token=task.token, result=task.input, identity="bench")
                self._engine.complete_activity(done).listen(_expect_success)  # type: ignore[attr-defined]
            else:
                self._answer_workflow_task(task)

    def _answer_workflow_task(self, task: WorkflowTask) -> None:
        run_id = task.token.run_id
        step = self._steps.pop(run_id, 0)
        command = self._commands[step]
        is_last = step == STEPS
        if not is_last:
            self._steps[run_id] = step + 1
        assert (type(task.events[0]) is WorkflowExecutionStarted) == (step == 0), (
            "the run is cached from its first task"
        )
        self.session.grant(workflow_tasks=1)
        answer = CompleteWorkflowTaskRequest(
            token=task.token, commands=(command,), identity="bench", is_sticky=not is_last, waiting_on=("no_op",)
        )
        self._engine.complete_workflow_task(answer).listen(_expect_success)  # type: ignore[attr-defined]

    def cancel_activity(self, *_: Any) -> None:
        """Never comes."""
        raise AssertionError("nothing is cancelled here")

    evict_workflow = cancel_activity


class LocalStepsWorker(FixedWorker):
    """Answers a workflow task after it has recorded so many local steps, one after the other."""

    def _answer_workflow_task(self, task: WorkflowTask) -> None:
        self.session.grant(workflow_tasks=1)
        self._record_step(task, task.started_event_id, 0)

    def _record_step(self, task: WorkflowTask, after_event_id: int, step: int) -> None:
        if step == STEPS:
            answer = CompleteWorkflowTaskRequest(token=task.token, commands=(self._commands[-1],), identity="bench")
            self._engine.complete_workflow_task(answer).listen(_expect_success)  # type: ignore[attr-defined]
            return
        request = RecordMarkersRequest(
            token=task.token, markers=(_MARKER,), after_event_id=after_event_id, identity="bench"
        )
        self._engine.record_markers(request).listen(  # type: ignore[attr-defined]
            lambda reply: self._record_step(task, reply.result().last_event_id, step + 1)
        )


class EarlyWorker(FixedWorker):
    """Takes workflow tasks before their cause is durable, as one does that shares the engine's process."""

    def offer_early_workflow_task(self, task: WorkflowTask) -> bool:
        """Answer in the next turn."""
        self._offer(task)
        return True

    def confirm_workflow_task(self, task: WorkflowTask) -> None:
        """Never comes: answers are there before the cause is written."""
        raise AssertionError("every answer joins its cause here")


class MachineWorker(EarlyWorker):
    """The same, with the machines of a real worker in the place of fixed commands."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._machines: dict[str, WorkflowMachine] = {}
        self._maker = Machines(
            {"Sequence": Definition.must_from_class(workflows.Sequence)},
            namespace="default",
            task_queue=QUEUE,
            identity="bench",
            data_converter=DataConverter(),
            limits=LIMITS_DEFAULT,
            interceptors=(),
            failure_exception_types=(),
            deployment=None,
            runs_local_activities=True,
        )

    def _answer_workflow_task(self, task: WorkflowTask) -> None:
        run_id = task.token.run_id
        machine = self._machines.get(run_id)
        if machine is None:
            machine = self._machines[run_id] = self._maker.make(task)
        result = machine.activate(task)
        self.session.grant(workflow_tasks=1)
        self._engine.complete_workflow_task(result.completion).listen(_expect_success)  # type: ignore[arg-type,union-attr]
        if result.is_closed:
            self._machines.pop(run_id).evict()


class NoExpress:
    """In the place of the express way: it takes nothing."""

    def start_workflow(self, request: object) -> None:
        """Leave it to the general way."""

    complete_activity = complete_workflow_task = record_markers = start_workflow


def _expect_success(reply: Any) -> None:
    reply.result()


class HotPath:
    """One engine with the store and the worker above."""

    def __init__(self, *, worker: type[FixedWorker] = FixedWorker, has_express: bool = True) -> None:
        self._worker = worker
        self._has_express = has_express

    async def __aenter__(self) -> HotPath:
        self.store = LoopStore()
        self.engine = Engine(self.store, clock=FixedClock(), entropy=CountingEntropy())  # type: ignore[arg-type]
        if not self._has_express:
            self.engine._express = NoExpress()  # type: ignore[assignment]
        await self.engine.start()
        await self._worker(self.engine).attach()
        self._number = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()

    async def run(self, count: int, *, in_flight: int = 50) -> None:
        """Drive `count` workflows from start to result."""
        gate = asyncio.Semaphore(in_flight)
        ended = [asyncio.ensure_future(self._one(gate)) for _ in range(count)]
        for task in ended:
            await task

    async def _one(self, gate: asyncio.Semaphore) -> None:
        async with gate:
            self._number += 1
            workflow_id = f"w-{self._number}"
            await self.engine.start_workflow(
                StartWorkflowRequest(
                    namespace="default",
                    workflow_id=workflow_id,
                    workflow_type="Sequence",
                    task_queue=QUEUE,
                    request_id=workflow_id,
                    input=_PAYLOAD,
                    identity="bench",
                )
            )
            request = GetHistoryRequest(
                namespace="default", workflow_id=workflow_id, wait_new_event=True, close_event_only=True
            )
            # Counted on a busy machine it may take longer than one long poll.
            while not (await self.engine.get_history(request)).events:
                pass
