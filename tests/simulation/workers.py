"""A simulated worker: the real side of workflow tasks and local activities, with simulated activities.

Owns: `SimWorker`, one incarnation of a worker process. Never: when it dies.

How it works: workflow tasks go through the worker's own `WorkflowTasks`, its cache, its answers and their repetition,
and the real workflow machine; only the threads are replaced by turns in the worker's lane. An activity is a coroutine
that waits, fails as often as its input says, and takes effect in the outside world (`outside`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from clew.converter import DataConverter, to_stored_payloads
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import (
    CancelActivityRequest,
    CompleteActivityRequest,
    FailActivityRequest,
    HeartbeatActivityRequest,
    TaskToken,
)
from clew.model.limits import LIMITS_DEFAULT
from clew.service.errors import RPCError
from clew.service.requests import ActivityTask, WorkerHello, WorkflowTask
from clew.worker._attempt import Attempt
from clew.worker._local_activities import LocalActivities, LocalRun
from clew.worker._machines import Machines
from clew.worker._reports import Report
from clew.worker._workflow_tasks import WorkflowTasks
from clew.workflow._definition import Definition
from tests.simulation.clock import EPOCH
from tests.simulation.deploys import DEFINITIONS, SECOND
from tests.simulation.loop import Lane, SimLoop
from tests.simulation.outside import Outside
from tests.simulation.places import MAIN
from tests.simulation.programs import FAST_RETRY, QUEUE, pause_after
from tests.simulation.wire import SessionEnd, Wire

CONVERTER = DataConverter.default.payload_converter
ATTACH_AGAIN_SECONDS = 0.1
REPORT_SECONDS_MAX = 60.0


class Turns:
    """Plays the worker's workflow threads: a turn is run in the lane, a moment after it was handed over."""

    def __init__(self, loop: SimLoop, finish: Callable[[Any], None]) -> None:
        self._loop = loop
        self._finish = finish

    def submit(self, turn: Any) -> None:
        self._loop.call_soon(self._run, turn)

    def _run(self, turn: Any) -> None:
        turn.run()
        self._finish(turn)


class SimWorker:
    """See the module docstring.

    Args:
        name: Unique for this incarnation.
        namespace: Which it works for.
        definitions: Its workflow code.
        slots: For each kind of task.
    """

    takes_early_tasks = False
    """Whether it says so to a node at the other end of a link."""

    def __init__(
        self,
        name: str,
        *,
        loop: SimLoop,
        lane: Lane,
        wire: Wire,
        chance: random.Random,
        outside: Outside,
        cached_runs: int,
        slots: int,
        namespace: str = MAIN,
        definitions: dict[str, Definition] | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.lane = lane
        self.wire = wire
        self._chance = chance
        self._outside = outside
        self._slots = slots
        self._namespace = namespace
        self._running: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._session: SessionEnd | None = None
        self._lost = asyncio.Event()
        machines = Machines(
            DEFINITIONS[SECOND] if definitions is None else definitions,
            namespace=namespace,
            task_queue=QUEUE,
            identity=name,
            data_converter=DataConverter.default,
            limits=LIMITS_DEFAULT,
            interceptors=(),
            failure_exception_types=(),
            deployment=None,
            runs_local_activities=True,
        )
        self.workflows = WorkflowTasks(
            loop,
            wire,  # type: ignore[arg-type]
            machines,  # type: ignore[arg-type]
            identity=name,
            cached_runs_max=cached_runs,
            blocked_timeout=None,
            post=loop.call_soon,
            on_error=self._bug,
        )
        self.workflows._threads = self.make_turns()  # type: ignore[assignment]
        self.workflows.local_activities = LocalActivities(
            loop,
            _LocalAttempts(self),  # type: ignore[arg-type]
            {None: object()},  # type: ignore[dict-item]
            task_queue=QUEUE,
            attempts_max=slots,
            now_ns=lambda: int((EPOCH.timestamp() + loop.time()) * 1e9),
        )
        self._is_sticky = cached_runs > 0

    def start(self) -> None:
        """Begin to work."""
        self.wire.on_lost = self._lost.set
        self.loop.spawn(self.lane, self._run())

    def make_turns(self) -> Turns:
        """What stands for the worker's threads."""
        return Turns(self.loop, self.workflows._finished.put)

    def make_sink(self) -> Sink:
        """The worker's end of its next session."""
        return Sink(self)

    async def _run(self) -> None:
        while True:
            self._lost.clear()
            hello = WorkerHello(
                namespace=self._namespace, task_queue=QUEUE, identity=self.name, instance_id=self.name,
                is_sticky=self._is_sticky, takes_early_tasks=self.takes_early_tasks,
            )  # fmt: skip
            try:
                session = await self.wire.attach_worker(hello, self.make_sink())
            except RPCError:
                await asyncio.sleep(ATTACH_AGAIN_SECONDS)
                continue
            self._session = session
            session.grant(workflow_tasks=self._slots, activity_tasks=self._slots)
            while session.is_alive:
                await self._lost.wait()
                self._lost.clear()

    def _bug(self, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": "the worker met a bug", "exception": error})

    def check_done(self, task: asyncio.Task[None]) -> None:
        """A task of the simulated worker itself must not fail."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug(error)

    # --- activities -------------------------------------------------------------------------------------------------

    def begin_activity(self, task: ActivityTask, session: SessionEnd | None) -> None:
        work = self.loop.create_task(_begun(self._attempt(task, session)))
        self._running[task.token.run_key, task.token.lease_id] = work
        work.add_done_callback(self.check_done)

    def cancel_activity(self, token: TaskToken) -> None:
        running = self._running.get((token.run_key, token.lease_id))
        if running is not None:
            _cancel(running)

    async def _attempt(self, task: ActivityTask, session: SessionEnd | None) -> None:
        values = CONVERTER.from_stored(task.input[0], dict)
        key = (task.token.run_key, task.token.lease_id)
        beat = None
        if task.heartbeat_timeout and not values.get("is_mute"):
            beat = self.loop.create_task(self._heartbeats(task))
        report: Any
        try:
            value = await self.perform(task, values)
            if task.activity_type == "outer":
                self._outside.hand_over(task, task.idempotency_key, values)
                if session is not None:
                    session.grant(activity_tasks=1)
                return
            report = CompleteActivityRequest(
                token=task.token, result=to_stored_payloads(CONVERTER, [value]), identity=self.name
            )
        except _Failed as failed:
            report = FailActivityRequest(token=task.token, failure=failed.failure, identity=self.name)
        except asyncio.CancelledError:
            report = CancelActivityRequest(token=task.token, identity=self.name)
        finally:
            self._running.pop(key, None)
            if beat is not None:
                beat.cancel()
        call = {
            CompleteActivityRequest: "complete_activity",
            FailActivityRequest: "fail_activity",
            CancelActivityRequest: "cancel_activity",
        }[type(report)]
        sent_at = self.loop.time()

        def on_verdict(error: BaseException | None) -> None:
            if call == "complete_activity":
                self._outside.note_verdict(task, error)
            elif call == "fail_activity" and error is None:
                self._outside.note_failure(task, sent_at)

        Report(
            self.loop,
            getattr(self.wire, call),
            report,
            task.activity_id,
            on_verdict,
            give_up_after=REPORT_SECONDS_MAX,
        ).send()
        if session is not None:
            session.grant(activity_tasks=1)

    async def perform(self, task: ActivityTask, values: dict[str, Any], local: LocalRun | None = None) -> int:
        """What the activity does."""
        takes = values.get("takes", 0.0)
        key = task.idempotency_key if local is None else local.make_key()
        self._outside.note_begin(task, key, values, None if local is None else local.token)
        if local is not None:
            self._outside.note_local(local, task, lambda attempt: pause_after(FAST_RETRY, attempt))
        if takes:
            await asyncio.sleep(takes * (0.5 + self._chance.random()))
        if task.attempt <= values.get("fails", 0):
            if local is not None:
                self._outside.note_local_failure(local, task)
            raise _Failed(Failure(message="as the program says", info=ApplicationInfo(type="Planned")))
        if task.activity_type == "outer":
            return 0
        if task.activity_type == "bank":
            return self._outside.move(key, values["account"], values["change"])
        return self._outside.count(key, values["value"])

    async def _heartbeats(self, task: ActivityTask) -> None:
        while True:
            await asyncio.sleep(task.heartbeat_timeout.total_seconds() * 0.4)
            try:
                answer = await self.wire.heartbeat_activity(
                    HeartbeatActivityRequest(token=task.token, identity=self.name)
                )
            except RPCError as error:
                if not error.is_retryable:
                    self.cancel_activity(task.token)
                    return
            else:
                if answer.cancel_requested:
                    self.cancel_activity(task.token)
                    return


HAS_BEGUN, CANCELLED_EARLY = "begun", "cancelled early"
"""Names of tasks that run an attempt; at first they have another."""


async def _begun(work: Coroutine[Any, Any, None]) -> None:
    """Do the work; a cancellation that comes before its first step is kept for it."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    if task.get_name() == CANCELLED_EARLY:
        asyncio.get_running_loop().call_soon(task.cancel)
    task.set_name(HAS_BEGUN)
    await work


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel it once it has begun: a task that is cancelled before would not run at all, and so report nothing."""
    if task.get_name() == HAS_BEGUN:
        task.cancel()
    else:
        task.set_name(CANCELLED_EARLY)


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Sink:
    """The worker's end of one session."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker

    def _session(self) -> SessionEnd | None:
        return self._worker._session

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        session = self._session()
        self._worker.workflows.offer(task, lambda: session.grant(workflow_tasks=1) if session is not None else None)

    def offer_activity_task(self, task: ActivityTask) -> None:
        self._worker.begin_activity(task, self._session())

    def cancel_activity(self, token: TaskToken, reason: Any) -> None:
        self._worker.cancel_activity(token)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self._worker.workflows.evict(run_id)


class _LocalAttempts:
    """Runs the attempts of local activities, in the place of the worker's `ActivityTasks`."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self._running: dict[Attempt, asyncio.Task[None]] = {}

    def run(self, attempt: Attempt) -> None:
        running = self._running[attempt] = self._worker.loop.create_task(_begun(self._run(attempt)))
        running.add_done_callback(self._worker.check_done)

    def cancel(self, attempt: Attempt, details: object) -> None:
        running = self._running.get(attempt)
        if running is not None:
            _cancel(running)

    async def _run(self, attempt: Attempt) -> None:
        task, local = attempt.task, attempt.local
        assert local is not None, "only attempts of local activities come here"
        values = CONVERTER.from_stored(task.input[0], dict)
        try:
            value = await self._worker.perform(task, values, local)
            attempt.report = CompleteActivityRequest(token=task.token, result=to_stored_payloads(CONVERTER, [value]))
        except _Failed as failed:
            attempt.report = FailActivityRequest(token=task.token, failure=failed.failure)
        except asyncio.CancelledError:
            attempt.report = CancelActivityRequest(token=task.token)
        self._running.pop(attempt, None)
        attempt.settle()
        local.take(attempt)
