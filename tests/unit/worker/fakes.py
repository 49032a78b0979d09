"""A scripted service, connection and client for tests of the worker: everything on one or two loops, nothing durable.

Owns: what the engine would say. Never: decides anything by itself; tests offer tasks and read `FakeService.calls`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from clew.model.inputs import TaskToken
from clew.model.limits import LIMITS_DEFAULT
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import ActivityTask, HeartbeatActivityResponse, WorkflowTask

DEADLINE_SECONDS = 30.0
# Tests end long before; children of a process pool take seconds to start on a machine that does ten things at once.
NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = DEADLINE_SECONDS) -> Any:
    """Await a condition with a deadline; gives its value."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert loop.time() < deadline, f"{what} did not come within {seconds} s"
        await asyncio.sleep(0.005)


def refusal(code: RejectionCode, message: str = "no") -> RPCError:
    """The error of a refused call."""
    return RPCError(Rejection(code=code, message=message))


class FakeSession:
    """Counts credits."""

    def __init__(self, hello: Any, sink: Any) -> None:
        self.session_id = hello.instance_id
        self.hello = hello
        self.sink = sink
        self.workflow_credits = 0
        self.activity_credits = 0
        self.is_polling = True
        self.is_detached = False

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        self.workflow_credits += workflow_tasks
        self.activity_credits += activity_tasks

    def stop_polling(self) -> None:
        self.is_polling = False

    def detach(self) -> None:
        self.is_detached = True


class FakeService:
    """Keeps every call; `faults` says what the next calls of a method raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[str, list[BaseException]] = {}
        self.sessions: list[FakeSession] = []
        self.histories: dict[str, tuple[Any, ...]] = {}
        self.heartbeat_answers: list[HeartbeatActivityResponse] = []
        self.are_faults_endless = False

    def of(self, method: str) -> list[Any]:
        """The requests of one method so far."""
        return [request for name, request in self.calls if name == method]

    def _answer(self, method: str, request: Any, result: Any = None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        faults = self.faults.get(method)
        if faults:
            future.set_exception(faults[0] if self.are_faults_endless else faults.pop(0))
        else:
            self.calls.append((method, request))
            future.set_result(result)
        return future

    async def attach_worker(self, hello: Any, sink: Any) -> FakeSession:
        session = FakeSession(hello, sink)
        self.sessions.append(session)
        return session

    def get_history(self, request: Any) -> Awaitable[Any]:
        from clew.service.requests import GetHistoryResponse

        events = [e for e in self.histories.get(request.run_id, ()) if e.event_id >= request.from_event_id]
        page = tuple(events[: request.events_max])
        more = len(events) > len(page)
        response = GetHistoryResponse(
            run_id=request.run_id, events=page, next_event_id=page[-1].event_id + 1 if more else 0
        )
        return self._answer("get_history", request, response)

    def heartbeat_activity(self, request: Any) -> Awaitable[Any]:
        faults = self.faults.get("heartbeat_activity")
        answer = self.heartbeat_answers.pop(0) if self.heartbeat_answers and not faults else HeartbeatActivityResponse()
        return self._answer("heartbeat_activity", request, answer)

    def __getattr__(self, method: str) -> Callable[[Any], Awaitable[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda request: self._answer(method, request)


class FakeConnection:
    """A service loop in a thread of its own, as the embedded one has it."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.service_loop = asyncio.new_event_loop()
        self.limits = LIMITS_DEFAULT
        self.address = "fake"
        self.is_closed = False
        self._thread = threading.Thread(target=self.service_loop.run_forever, name="fake-service", daemon=True)
        self._thread.start()

    def post(self, callback: Callable[[], None]) -> None:
        self.service_loop.call_soon_threadsafe(callback)

    post_last = post

    def now_ns(self) -> int:
        return 0

    def call(self, method: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        raise AssertionError("a worker does not call through the bridge")

    async def on_service_loop(self, function: Callable[[], Any]) -> Any:
        """Run a plain function on the service loop and give its result."""

        async def call() -> Any:
            return function()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self.service_loop))

    def stop(self) -> None:
        self.is_closed = True
        self.service_loop.call_soon_threadsafe(self.service_loop.stop)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the service loop does not end"
        self.service_loop.close()


class FakeClient:
    """What a worker needs of a client."""

    def __init__(self, connection: FakeConnection, data_converter: Any = None, interceptors: Any = ()) -> None:
        from clew.converter import DataConverter

        self.connection = connection
        self.namespace = "default"
        self.identity = "tester"
        self.data_converter = data_converter or DataConverter.default
        self.interceptors = interceptors


def token(run_id: str = "run-1", *, lease_id: int = 1, scheduled_event_id: int = 2, activity_id: str = "") -> TaskToken:
    """A token with as much as tests look at."""
    return TaskToken(
        namespace="default",
        workflow_id=f"wf-{run_id}",
        run_id=run_id,
        shard=0,
        run_key=abs(hash(run_id)) % 10_000,
        scheduled_event_id=scheduled_event_id,
        attempt=1,
        lease_id=lease_id,
        activity_id=activity_id,
    )


def workflow_task(run_id: str = "run-1", **changes: Any) -> WorkflowTask:
    """A workflow task."""
    facts: dict[str, Any] = {
        "token": token(run_id),
        "workflow_type": "W",
        "task_queue": "q",
        "workflow_task_timeout": timedelta(seconds=10),
    }
    return WorkflowTask(**{**facts, **changes})


def activity_task(activity_type: str, *, lease_id: int = 1, run_id: str = "run-1", **changes: Any) -> ActivityTask:
    """One attempt of an activity."""
    facts: dict[str, Any] = {
        "token": token(run_id, lease_id=lease_id, activity_id=f"{activity_type}-{lease_id}"),
        "activity_id": f"{activity_type}-{lease_id}",
        "activity_type": activity_type,
        "workflow_type": "W",
        "task_queue": "q",
        "attempt": 1,
        "idempotency_key": "key",
        "scheduled_time": NOW,
        "started_time": NOW,
    }
    return ActivityTask(**{**facts, **changes})
