"""The service as one chaotic go of a test meets it.

Owns: bringing the fault about: which calls arrive, which workers live. Never: what a call means.

How it works: the object stands for the service towards client and workers, and outlives engines. A worker that is to
crash keeps its Python objects, but loses all that makes it a worker: its session ends, its reports no longer arrive,
its cached runs are dropped, and attempts that run become strays whose outcome nobody will know. Once the strays have
ended (an attempt that does not is cancelled after a while), the same worker attaches anew, as its successor would. A
client's call that was under way when the engine died goes to the next one, as the same request; a link does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast, final

import msgspec

from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service import requests as r
from clew.service.contract import Service, TaskSink, WorkerSession
from clew.service.errors import RPCError
from clew.testing.chaos._faults import REPORTS, Fault, FaultKind
from clew.testing.chaos._tape import Outcome, Report, RunTape, Tape

STRAY_SECONDS_MAX: Final = 1.0
"""How long attempts of a crashed worker may go on before they are cancelled."""

FAILED_TASKS_MAX: Final = 50
"""So often in a row may the workflow task of a run fail. Time is skipped, so the next attempt comes at once: without an
end the test would wait for ever, since a failed task is no failed run."""

_WORKER_CALLS: Final = REPORTS | {"answer_query", "release_activity", "heartbeat_activity"}
_CHANGES: Final = frozenset({
    "start_workflow", "signal_workflow", "signal_with_start", "request_cancel_workflow", "terminate_workflow",
    "update_workflow",
})  # fmt: skip


@final
class ChaosService:
    """Implements ``service.contract.Service``; all methods belong to the service loop.

    Args:
        engine: The first engine.
        tape: Where reports are taken down, and from which commits are heard.
        fault: What is to go wrong.
        next_engine: Kills the engine's process and starts the next on what was durable.
    """

    def __init__(
        self, engine: Service, tape: Tape, fault: Fault, next_engine: Callable[[], Awaitable[Service]]
    ) -> None:
        self._engine = engine
        self._tape = tape
        self._fault = fault
        self._next_engine = next_engine
        self._workers: list[_WorkerEnd] = []
        self._lives: dict[tuple[str, int, int], _Life] = {}
        self._keys: dict[tuple[str, int, int], tuple[str, str, int]] = {}
        self._down: asyncio.Future[None] | None = None
        """Done when the engine that crashed has a successor."""
        self._given_up: RPCError | None = None
        self._failed: dict[str, int] = {}
        """By run id, how often its workflow task has failed since one was answered."""
        self._waiting: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.has_struck = fault.kind in (FaultKind.NONE, FaultKind.COLD, FaultKind.DUPLICATES)
        self.problems: list[BaseException] = []
        """What went wrong with the chaos itself."""
        tape.on_commit = self._on_commit

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        call = self._call_of_worker if name in _WORKER_CALLS else self._call_of_client

        def method(request: Any) -> Awaitable[Any]:
            return call(name, request)

        method.__name__ = name
        return method

    async def attach_worker(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """As `Service.attach_worker`."""
        worker = _WorkerEnd(self, hello, sink)
        await worker.attach()
        self._workers.append(worker)
        return worker

    async def attach_to_engine(self, hello: r.WorkerHello, sink: TaskSink) -> WorkerSession:
        """Attach to whichever engine lives."""
        session: WorkerSession = await self._call_of_client("attach_worker", hello, sink)
        return session

    def give_up(self, reason: str) -> None:
        """End all waiting of clients, now and later, with an error."""
        self._given_up = RPCError(Rejection(code=RejectionCode.DEADLINE_EXCEEDED, message=reason))
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self._given_up)

    # --- calls ---------------------------------------------------------------------------------------------

    async def _call_of_client(self, name: str, *arguments: Any) -> Any:
        while True:
            if self._given_up is not None:
                raise self._given_up
            if self._down is not None:
                await asyncio.shield(self._down)
                continue
            engine = self._engine
            call = asyncio.ensure_future(getattr(engine, name)(*arguments))
            await self._wait(call)
            if call.done() and self._lives_still(engine):
                break
            call.cancel()
        if self._fault.kind is FaultKind.DUPLICATES and name in _CHANGES and call.exception() is None:
            await _ignored(getattr(self._engine, name)(*arguments))
        return call.result()

    def _lives_still(self, engine: Service) -> bool:
        return engine is self._engine and self._down is None

    async def _wait(self, call: asyncio.Future[Any]) -> None:
        """Wait for an answer, a crash of the engine, or the end of patience."""
        interrupted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(interrupted)
        try:
            await asyncio.wait((call, interrupted), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self._waiting.discard(interrupted)
        if interrupted.done() and interrupted.exception() is not None and not call.done():
            call.cancel()
            interrupted.result()
        interrupted.cancel()

    async def _call_of_worker(self, name: str, request: Any) -> Any:
        token = request.token
        life = self._lives.get(_key(token)) if isinstance(token, TaskToken) else None
        if name in REPORTS and isinstance(token, TaskToken):
            self._note_report(name, request, token)
            self._note_failed_task(name, request, token)
            if life is not None and not life.is_detached(token):
                life.ended(token)
        if life is not None and life.is_over and not life.is_detached(token):
            return r.HeartbeatActivityResponse() if name == "heartbeat_activity" else None
        if self._strikes_report(name, request):
            self._crash_workers()
            return None
        if name == "complete_workflow_task" and self._fault.kind is FaultKind.COLD:
            # So the next task comes with the whole history, from which a worker always starts anew.
            request = msgspec.structs.replace(request, is_sticky=False)
        answer = await self._call_of_client(name, request)
        if self._fault.kind is FaultKind.DUPLICATES and name in REPORTS:
            await _ignored(getattr(self._engine, name)(request))
        return answer

    async def detach_activity(self, token: TaskToken) -> None:
        """As `Service.detach_activity`: such an attempt does not end with its worker."""
        life = self._lives.get(_key(token))
        if life is not None:
            life.detach(token)
        await self._call_of_client("detach_activity", token)

    def _note_report(self, name: str, request: Any, token: TaskToken) -> None:
        run = self._tape.run_of(token.run_id)
        if run is not None:
            self._tape.reports.setdefault(_report(run, name, request))
        known = self._keys.get(_key(token))
        if name == "complete_activity" and known is not None:
            key, activity_type, attempt = known
            result = tuple(bytes(stored) for stored in request.result)
            self._tape.outcomes.setdefault(key, []).append(Outcome(activity_type, attempt, result))

    def _note_failed_task(self, name: str, request: Any, token: TaskToken) -> None:
        if name == "complete_workflow_task":
            self._failed.pop(token.run_id, None)
        elif name == "fail_workflow_task":
            count = self._failed[token.run_id] = self._failed.get(token.run_id, 0) + 1
            if count == FAILED_TASKS_MAX:
                run = self._tape.run_of(token.run_id)
                name = repr(run.workflow_id) if run is not None else "a run"
                self.give_up(
                    f"{name} does not get on: its workflow task has failed {count} times in a row, the last time with "
                    f"{_failure_text(request.failure)}. An error that is no failure exception fails the task, not the "
                    "run, and the task is tried again."
                )

    # --- the fault -----------------------------------------------------------------------------------------

    def _on_commit(self, run: RunTape, event_id: int) -> None:
        fault = self._fault
        if self.has_struck or run.number != fault.run or event_id < fault.event_id:
            return
        self.has_struck = True
        if fault.kind is FaultKind.WORKER:
            self._crash_workers()
        elif fault.kind is FaultKind.ENGINE:
            self._crash_engine()

    def _strikes_report(self, name: str, request: Any) -> bool:
        expected = self._fault.report
        if self.has_struck or expected is None or not isinstance(request.token, TaskToken):
            return False
        self.has_struck = _report(self._tape.run_of(request.token.run_id), name, request) == expected
        return self.has_struck

    def _crash_workers(self) -> None:
        for worker in self._workers:
            worker.crash(engine_is_gone=False)
        self._spawn(self._revive_workers())

    def _crash_engine(self) -> None:
        self._down = asyncio.get_running_loop().create_future()
        for worker in self._workers:
            worker.crash(engine_is_gone=True)
        # Begun now, so that the dead engine makes nothing more durable.
        starting = self._next_engine()
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)
        self._spawn(self._revive_engine(starting))

    async def _revive_engine(self, starting: Awaitable[Service]) -> None:
        self._engine = await starting
        down, self._down = self._down, None
        if down is not None:
            down.set_result(None)
        await self._revive_workers()

    async def _revive_workers(self) -> None:
        for worker in self._workers:
            await worker.revive()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception() if not task.cancelled() else None
        if error is not None:
            self.problems.append(error)
            self.give_up(f"the chaos itself failed: {error!r}")

    # --- tasks ---------------------------------------------------------------------------------------------

    def note_offer(self, life: _Life, token: TaskToken) -> None:
        """A worker got a task."""
        self._lives[_key(token)] = life

    def note_attempt(self, task: r.ActivityTask) -> None:
        """A worker got an attempt of an activity."""
        self._keys[_key(task.token)] = (task.idempotency_key, task.activity_type, task.attempt)


@final
class _Life:
    """A worker between two crashes: the sink that the engine knows, and what runs."""

    def __init__(self, service: ChaosService, sink: TaskSink) -> None:
        self._service = service
        self._sink = sink
        self.is_over = False
        self.running: dict[tuple[str, int, int], TaskToken] = {}
        self._detached: set[tuple[str, int, int]] = set()
        self.runs: set[tuple[str, str]] = set()
        self._strays_ended: asyncio.Future[None] | None = None

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        if not self.is_over:
            self._service.note_offer(self, task.token)
            self.runs.add((task.token.namespace, task.token.run_id))
            self._sink.offer_workflow_task(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        if not self.is_over:
            self._service.note_offer(self, task.token)
            self._service.note_attempt(task)
            self.running[_key(task.token)] = task.token
            self._sink.offer_activity_task(task)

    def cancel_activity(self, token: TaskToken, reason: r.ActivityCancelReason) -> None:
        if not self.is_over:
            self._sink.cancel_activity(token, reason)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        if not self.is_over:
            self._sink.evict_workflow(namespace, run_id)

    def ended(self, token: TaskToken) -> None:
        """An attempt has come to its end."""
        self.running.pop(_key(token), None)
        if not self.running:
            self.stop_waiting()

    def stop_waiting(self) -> None:
        """Wait for strays no longer."""
        if self._strays_ended is not None and not self._strays_ended.done():
            self._strays_ended.set_result(None)

    def detach(self, token: TaskToken) -> None:
        """An attempt goes on outside of the worker."""
        self._detached.add(_key(token))
        self.ended(token)

    def is_detached(self, token: Any) -> bool:
        """Whether an attempt goes on outside of the worker."""
        return isinstance(token, TaskToken) and _key(token) in self._detached

    def end(self) -> None:
        """The worker crashes."""
        self.is_over = True
        for namespace, run_id in self.runs:
            self._sink.evict_workflow(namespace, run_id)

    async def wait_strays(self, seconds_max: float) -> None:
        """Wait until nothing runs any more of a crashed worker, or it is told to stop."""
        if self.running:
            self._strays_ended = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._strays_ended,), timeout=seconds_max)

    def cancel_strays(self) -> None:
        """Stop what still runs of a crashed worker."""
        for token in list(self.running.values()):
            self._sink.cancel_activity(token, r.ActivityCancelReason.NOT_FOUND)
        self.running.clear()


@final
class _WorkerEnd:
    """One worker's session, through all its lives (implements ``service.contract.WorkerSession``)."""

    def __init__(self, service: ChaosService, hello: r.WorkerHello, sink: TaskSink) -> None:
        self._service = service
        self._hello = hello
        self._sink = sink
        self._life = _Life(service, sink)
        self._session: WorkerSession | None = None
        self._lives_count = 1
        self._credits: tuple[int, int] | None = None
        """What the worker granted at its start: all its slots."""
        self._is_polling = True
        self._is_detached = False
        self.session_id = ""

    async def attach(self) -> None:
        """Attach the present life to the engine."""
        instance_id = f"{self._hello.instance_id}/{self._lives_count}"
        hello = msgspec.structs.replace(self._hello, instance_id=instance_id)
        self._session = await self._service.attach_to_engine(hello, cast(TaskSink, self._life))
        self.session_id = self._session.session_id

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        """As `WorkerSession.grant`."""
        if self._credits is None:
            self._credits = (workflow_tasks, activity_tasks)
        if self._session is not None:
            self._session.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def stop_polling(self) -> None:
        """As `WorkerSession.stop_polling`."""
        self._is_polling = False
        self._life.stop_waiting()
        if self._session is not None:
            self._session.stop_polling()

    def note_unanswered(self, token: r.TaskToken) -> None:
        """As `WorkerSession.note_unanswered`."""
        if self._session is not None:
            self._session.note_unanswered(token)

    def suspend(self) -> None:
        """As `WorkerSession.suspend`."""
        if self._session is not None:
            self._session.suspend()

    def resume(self) -> None:
        """As `WorkerSession.resume`."""
        if self._session is not None:
            self._session.resume()

    def detach(self) -> None:
        """As `WorkerSession.detach`."""
        self._is_detached = True
        self._life.is_over = True
        if self._session is not None:
            self._session.detach()

    def crash(self, *, engine_is_gone: bool) -> None:
        """End the present life."""
        session, self._session = self._session, None
        self._life.end()
        if session is not None and not engine_is_gone:
            session.detach()

    async def revive(self) -> None:
        """Begin the next life, once the strays of the last are gone."""
        await self._life.wait_strays(STRAY_SECONDS_MAX)
        self._life.cancel_strays()
        if self._is_detached or not self._is_polling:
            return
        self._lives_count += 1
        self._life = _Life(self._service, self._sink)
        await self.attach()
        workflow_tasks, activity_tasks = self._credits or (0, 0)
        if self._session is not None and self._is_polling:
            self._session.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)


def _report(run: RunTape | None, name: str, request: Any) -> Report:
    return Report(
        run.number if run is not None else -1,
        name,
        request.token.scheduled_event_id,
        request.after_event_id if isinstance(request, r.RecordMarkersRequest) else 0,
    )


def _failure_text(failure: Failure | None) -> str:
    if failure is None:
        return "no reason"
    error_type = failure.info.type if isinstance(failure.info, ApplicationInfo) else ""
    return f"{error_type}: {failure.message}" if error_type else failure.message


def _key(token: TaskToken) -> tuple[str, int, int]:
    return token.run_id, token.scheduled_event_id, token.lease_id


async def _ignored(again: Awaitable[Any]) -> None:
    """Wait for the answer to a repeated call, which may well be a refusal."""
    try:
        await again
    except RPCError:
        return  # That the repeat is refused is one of two right answers; the other is to do nothing.
