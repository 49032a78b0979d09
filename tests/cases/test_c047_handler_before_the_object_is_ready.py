"""C047: handlers run after the object is made, in the order of arrival."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, WithStartWorkflowOperation
from clew.common import WorkflowIDConflictPolicy
from clew.worker import Interceptor, WorkflowInboundInterceptor
from tests.cases.harness import ACTIVITY, QUEUE, engine, events, eventually, replay_check, settled, within, worker


@activity.defn
async def slow() -> str:
    await asyncio.sleep(0.1)
    return "ready"


@workflow.defn
class InConstructor:
    @workflow.init
    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[str] = []

    @workflow.run
    async def run(self, name: str) -> list[str]:
        await workflow.wait_condition(lambda: len(self.log) == 4)
        return self.log

    @workflow.signal
    def note(self, text: str) -> None:
        self.log.append(f"{self.name} {text}")

    @workflow.update
    def count(self, text: str) -> int:
        self.log.append(f"{self.name} {text}")
        return len(self.log)


@workflow.defn
class InFirstLines:
    def __init__(self) -> None:
        self.name = ""
        self.log: list[str] = []

    @workflow.run
    async def run(self, name: str) -> list[str]:
        self.name = name
        await workflow.wait_condition(lambda: len(self.log) == 4)
        return self.log

    @workflow.signal
    async def note(self, text: str) -> None:
        await workflow.wait_condition(lambda: self.name != "")
        self.log.append(f"{self.name} {text}")

    @workflow.update
    async def count(self, text: str) -> int:
        await workflow.wait_condition(lambda: self.name != "")
        self.log.append(f"{self.name} {text}")
        return len(self.log)


@workflow.defn
class AfterAnActivity:
    def __init__(self) -> None:
        self.name = ""
        self.log: list[str] = []

    @workflow.run
    async def run(self, name: str) -> list[str]:
        await workflow.execute_activity(slow, **ACTIVITY)
        self.name = name
        await workflow.wait_condition(lambda: len(self.log) == 4)
        return self.log

    @workflow.signal
    async def note(self, text: str) -> None:
        await workflow.wait_condition(lambda: self.name != "")
        self.log.append(f"{self.name} {text}")

    @workflow.update
    async def count(self, text: str) -> int:
        await workflow.wait_condition(lambda: self.name != "")
        self.log.append(f"{self.name} {text}")
        return len(self.log)


class _Slow(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: Any) -> Any:
        await workflow.execute_activity(slow, **ACTIVITY)
        return await super().execute_workflow(input)


class SlowStart(Interceptor):
    def workflow_interceptor_class(self, input: Any) -> type[WorkflowInboundInterceptor]:
        return _Slow


@pytest.mark.parametrize("kind", [InConstructor, InFirstLines, AfterAnActivity])
@pytest.mark.parametrize("interceptors", [[], [SlowStart()]], ids=["plain", "slow-interceptor"])
async def test_signals_arrive_in_order_at_an_object_that_is_ready(kind: Any, interceptors: list[Any]) -> None:
    async with engine() as client:
        handle = await client.start_workflow(kind.run, "name", id="ready", task_queue=QUEUE)
        for text in ("1", "2", "3", "4"):
            await handle.signal(kind.note, text)
        async with worker(client, [kind], [slow], interceptors=interceptors):
            assert await settled(handle) == ["name 1", "name 2", "name 3", "name 4"]
        if not interceptors:
            await replay_check(handle, kind)


@pytest.mark.parametrize("interceptors", [[], [SlowStart()]], ids=["plain", "slow-interceptor"])
async def test_signal_with_start_reaches_the_object(interceptors: list[Any]) -> None:
    async with engine() as client:
        handle = await client.start_workflow(
            InConstructor.run, "name", id="with-start", task_queue=QUEUE, start_signal="note", start_signal_args=["1"]
        )
        for text in ("2", "3", "4"):
            await handle.signal(InConstructor.note, text)
        async with worker(client, [InConstructor], [slow], interceptors=interceptors):
            assert await settled(handle) == ["name 1", "name 2", "name 3", "name 4"]
        assert type((await events(handle))[1]).__name__ == "WorkflowExecutionSignaled"


@pytest.mark.parametrize("kind", [InConstructor, InFirstLines, AfterAnActivity])
@pytest.mark.parametrize("interceptors", [[], [SlowStart()]], ids=["plain", "slow-interceptor"])
async def test_signals_and_updates_arrive_in_the_order_sent(kind: Any, interceptors: list[Any]) -> None:
    async with engine() as client:
        handle = await client.start_workflow(kind.run, "name", id="mixed", task_queue=QUEUE)
        await handle.signal(kind.note, "1")
        first = asyncio.create_task(handle.execute_update(kind.count, "A", id="A"))
        await eventually(lambda: _is_admitted(handle, "A"))
        await handle.signal(kind.note, "2")
        second = asyncio.create_task(handle.execute_update(kind.count, "B", id="B"))
        await eventually(lambda: _is_admitted(handle, "B"))
        async with worker(client, [kind], [slow], interceptors=interceptors):
            assert await within(first) == 2
            assert await within(second) == 4
            assert await settled(handle) == ["name 1", "name A", "name 2", "name B"]
        if not interceptors:
            await replay_check(handle, kind)


@pytest.mark.parametrize("kind", [InConstructor, InFirstLines, AfterAnActivity])
@pytest.mark.parametrize("interceptors", [[], [SlowStart()]], ids=["plain", "slow-interceptor"])
async def test_update_with_start_reaches_the_object(kind: Any, interceptors: list[Any]) -> None:
    async with engine() as client:
        operation = WithStartWorkflowOperation(
            kind.run, "name", id="with-start", task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.FAIL
        )
        first = asyncio.create_task(
            client.execute_update_with_start_workflow(kind.count, "A", start_workflow_operation=operation)
        )
        handle: Any = client.get_workflow_handle("with-start")
        await eventually(lambda: _exists(client), "the run is there")
        for text in ("1", "2", "3"):
            await handle.signal(kind.note, text)
        async with worker(client, [kind], [slow], interceptors=interceptors):
            assert await within(first) == 1
            assert await settled(handle) == ["name A", "name 1", "name 2", "name 3"]


async def _exists(client: Client) -> bool:
    return bool([run.id async for run in client.list_workflows("WorkflowId = 'with-start'")])


async def _is_admitted(handle: Any, update_id: str) -> bool:
    return any(update_id in line for line in (await handle.describe()).waiting_for)
