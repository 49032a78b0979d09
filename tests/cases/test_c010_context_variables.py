"""C010: context variables hold in a run and its tasks, survive eviction, and do not leak through pooled threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from typing import Any

import pytest

from clew import activity, workflow
from clew.worker import Interceptor, WorkflowInboundInterceptor
from tests.cases.harness import ACTIVITY, QUEUE, engine, no_errors, parked, replay_check, settled, worker

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


class _Inbound(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: Any) -> Any:
        token = tenant.set(workflow.info().workflow_id)
        try:
            return await super().execute_workflow(input)
        finally:
            tenant.reset(token)

    async def handle_signal(self, input: Any) -> None:
        token = tenant.set(workflow.info().workflow_id)
        try:
            await super().handle_signal(input)
        finally:
            tenant.reset(token)


class SetsTenant(Interceptor):
    def workflow_interceptor_class(self, input: Any) -> type[WorkflowInboundInterceptor]:
        return _Inbound


@activity.defn
async def nothing() -> None:
    pass


@workflow.defn
class ReadsTenant:
    def __init__(self) -> None:
        self.read: list[str] = []
        self.steps = 0

    @workflow.run
    async def run(self) -> list[str]:
        self.read.append(tenant.get())
        child = asyncio.create_task(self.child())
        await workflow.wait_condition(lambda: self.steps >= 1)
        self.read.append(tenant.get())
        await asyncio.gather(self.child(), self.child())
        await workflow.wait_condition(lambda: self.steps >= 2)
        await child
        return self.read

    async def child(self) -> None:
        await workflow.execute_activity(nothing, **ACTIVITY)
        self.read.append(tenant.get())

    @workflow.signal
    async def step(self) -> None:
        self.read.append(tenant.get())
        await workflow.execute_activity(nothing, **ACTIVITY)
        self.read.append(tenant.get())
        self.steps += 1


@activity.defn
def leaves_a_value() -> None:
    tenant.set("leak")


@activity.defn
def reads_a_value() -> str:
    return tenant.get("none")


@workflow.defn
class LeaksInThreads:
    @workflow.run
    async def run(self) -> str:
        await workflow.execute_activity(leaves_a_value, **ACTIVITY)
        return await workflow.execute_activity(reads_a_value, **ACTIVITY)


async def test_each_run_reads_its_own_value_across_evictions(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as client, worker(client, [ReadsTenant], [nothing], cache=1, interceptors=[SetsTenant()]):
        handles = [await client.start_workflow(ReadsTenant.run, id=name, task_queue=QUEUE) for name in ("x", "y")]
        for _ in range(2):
            for handle in handles:
                await parked(handle)
                await handle.signal(ReadsTenant.step)
                await parked(handle)
        for handle in handles:
            read = await settled(handle)
            assert len(read) == 9
            assert set(read) == {handle.id}
    no_errors(caplog)
    assert not any("ValueError" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("has_executor", [True, False])
async def test_threads_do_not_leak_values(has_executor: bool) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        options: dict[str, Any] = {"activity_executor": pool} if has_executor else {"max_concurrent_activities": 1}
        async with engine() as client, worker(client, [LeaksInThreads], [leaves_a_value, reads_a_value], **options):
            handle = await client.start_workflow(LeaksInThreads.run, id="leaks", task_queue=QUEUE)
            assert await settled(handle) == "none"
            await replay_check(handle, LeaksInThreads)
