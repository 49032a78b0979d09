"""A worker without workflow code: the test reads the tasks it is offered and answers them itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from clew.adapters import SystemEntropy, to_ns
from clew.engine import Engine
from clew.link import LinkClient, LinkServer
from clew.model.commands import Command
from clew.model.events import Event, event_type
from clew.model.payload import Payloads
from clew.model.policies import RetryPolicy
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.contract import Service, WorkerSession
from clew.service.errors import RPCError
from clew.stores import open_by_address
from clew.testing import ManualClock
from tests.link.memory import MemoryDial

T = TypeVar("T")

DEADLINE_SECONDS = 5.0


def payloads(*values: Any) -> Payloads:
    """Values as stored payloads."""
    return tuple(msgspec.Raw(msgspec.json.encode(value)) for value in values)


class ScriptedWorker:
    """A `TaskSink` that keeps what it is offered until the test takes it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.workflow_tasks: asyncio.Queue[r.WorkflowTask] = asyncio.Queue()
        self.activity_tasks: asyncio.Queue[r.ActivityTask] = asyncio.Queue()
        self.cancels: asyncio.Queue[tuple[r.TaskToken, r.ActivityCancelReason]] = asyncio.Queue()
        self.session: WorkerSession | None = None
        self.taken: list[r.WorkflowTask] = []

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        self.workflow_tasks.put_nowait(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self.activity_tasks.put_nowait(task)

    def cancel_activity(self, token: r.TaskToken, reason: r.ActivityCancelReason) -> None:
        self.cancels.put_nowait((token, reason))

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        raise AssertionError(f"nothing of this suite evicts {namespace}/{run_id}")

    async def attach(self, **hello: Any) -> WorkerSession:
        """Attach with ten credits of each kind, unless told otherwise."""
        credits = hello.pop("credits", 10)
        fields = {"namespace": "default", "task_queue": "q", "identity": "w", "instance_id": "w-1", **hello}
        self.session = await self.service.attach_worker(r.WorkerHello(**fields), self)
        self.session.grant(workflow_tasks=credits, activity_tasks=credits)
        return self.session

    async def workflow_task(self) -> r.WorkflowTask:
        """The next workflow task."""
        task: r.WorkflowTask = await soon(self.workflow_tasks.get())
        self.taken.append(task)
        return task

    async def activity_task(self) -> r.ActivityTask:
        """The next attempt of an activity."""
        return await soon(self.activity_tasks.get())

    async def complete(self, task: r.WorkflowTask, *commands: Command, sticky: bool = False, **more: Any) -> None:
        """Answer a workflow task with these commands, and be ready for another."""
        await soon(
            self.service.complete_workflow_task(
                r.CompleteWorkflowTaskRequest(
                    token=task.token, commands=commands, identity="w", is_sticky=sticky, **more
                )
            )
        )
        self.grant()

    async def complete_activity(self, task: r.ActivityTask, result: Any = None) -> None:
        """Answer an attempt with a result, and be ready for another."""
        await soon(self.service.complete_activity(r.CompleteActivityRequest(token=task.token, result=payloads(result))))
        self.grant()

    def grant(self) -> None:
        """Allow one more of each kind."""
        assert self.session is not None, "attach first"
        self.session.grant(workflow_tasks=1, activity_tasks=1)


class Shop:
    """One store with an engine on it that the test can stop and start."""

    def __init__(self, path: str, *, is_linked: bool = False) -> None:
        self.path = path
        self.clock = ManualClock()
        self._is_linked = is_linked
        self._link: tuple[LinkServer, LinkClient] | None = None

    async def open(self) -> None:
        """Open the store and start an engine on it."""
        clock = self.clock.attach(asyncio.get_running_loop())
        store, *_ = await open_by_address(self.path, clock=clock)
        self.engine = Engine(store, clock=clock, entropy=SystemEntropy())
        await self.engine.start()
        self.service: Service = self.engine
        if self._is_linked:
            await self._open_link()

    async def _open_link(self) -> None:
        entropy = SystemEntropy()
        server = LinkServer(self.engine, node="n", new_token=entropy.uuid7, now_ns=lambda: to_ns(self.clock.now()))
        client = LinkClient(MemoryDial(server), chance=lambda: 0.0)
        await soon(client.start())
        self._link = server, client
        self.service = client.service

    async def close(self) -> None:
        """Stop the engine, and the link to it."""
        if self._link is not None:
            server, client = self._link
            await soon(client.close())
            server.close()
        await self.engine.stop()

    async def restart(self) -> None:
        """Stop the engine and start another on the same store."""
        await self.close()
        await self.open()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(timedelta(seconds=seconds))

    async def worker(self, **hello: Any) -> ScriptedWorker:
        """An attached worker."""
        worker = ScriptedWorker(self.service)
        await worker.attach(**hello)
        return worker

    async def start(self, workflow_id: str = "w1", **fields: Any) -> r.StartWorkflowResponse:
        """Start a run."""
        values = {
            "namespace": "default",
            "workflow_id": workflow_id,
            "workflow_type": "W",
            "task_queue": "q",
            "request_id": SystemEntropy().uuid7(),
            **fields,
        }
        return await soon(self.service.start_workflow(r.StartWorkflowRequest(**values)))

    async def signal(self, name: str, *values: Any, workflow_id: str = "w1", **fields: Any) -> None:
        """Signal the run."""
        request_id = fields.pop("request_id", SystemEntropy().uuid7())
        await soon(
            self.service.signal_workflow(
                r.SignalWorkflowRequest(
                    namespace="default",
                    workflow_id=workflow_id,
                    signal_name=name,
                    request_id=request_id,
                    input=payloads(*values),
                    **fields,
                )
            )
        )

    async def history(self, workflow_id: str = "w1", run_id: str = "") -> list[Event]:
        """All events of the run."""
        response = await soon(
            self.service.get_history(
                r.GetHistoryRequest(namespace="default", workflow_id=workflow_id, run_id=run_id, events_max=100_000)
            )
        )
        return list(response.events)

    async def event_types(self, workflow_id: str = "w1", run_id: str = "") -> list[str]:
        """The names of all events of the run."""
        return [event_type(event) for event in await self.history(workflow_id, run_id)]

    async def describe(self, workflow_id: str = "w1") -> r.WorkflowDescription:
        """Everything about the run."""
        return await soon(
            self.service.describe_workflow(r.DescribeWorkflowRequest(namespace="default", workflow_id=workflow_id))
        )

    async def until_started(self, workflow_id: str = "w1") -> r.WorkflowDescription:
        """Describe the run again and again until there is one."""

        async def look() -> r.WorkflowDescription:
            while True:
                try:
                    return await self.describe(workflow_id)
                except RPCError as error:
                    if error.code is not RejectionCode.WORKFLOW_NOT_FOUND:
                        raise
                    await asyncio.sleep(0)

        return await soon(look())

    async def settle(self) -> None:
        """Wait until the engine has done all that was asked of it so far."""
        engine = self.engine
        for _ in range(3):
            await asyncio.sleep(0)
            while not (engine._matcher._background.is_idle and engine._funnel._background.is_idle):
                await asyncio.sleep(0)
            await engine._pipeline.wait_idle()
            await self._settle_link()

    async def _settle_link(self) -> None:
        if self._link is None:
            return
        server, client = self._link
        lanes = [client._lane, *(session.lane for session in server._sessions.values())]
        while any(lane is not None and lane._waiting for lane in lanes):
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def until_described(self, holds: Any, workflow_id: str = "w1") -> r.WorkflowDescription:
        """Describe the run again and again until the condition holds."""

        async def look() -> r.WorkflowDescription:
            while True:
                described = await self.describe(workflow_id)
                if holds(described):
                    return described
                await asyncio.sleep(0)

        return await soon(look())


async def soon(awaitable: Any) -> Any:
    """The result, within the deadline of this suite."""
    return await asyncio.wait_for(awaitable, DEADLINE_SECONDS)


ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)
