"""C075: deadlocks between sweepers, pollers and batch operations; a session that holds a hot row.

Two nodes work on the same runs, which are signalled, cancelled, terminated and completed through both at once, while
the sweep for lost tasks and retention run; a foreign session then holds the row of one run. No serialization failure
and no deadlock reaches a caller, every run closes, no task stays claimed, and other runs go on beside the held row.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from clew import activity, workflow
from clew.client import Client
from clew.exceptions import WorkflowFailureError
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.storage.postgres.driver import import_driver
from tests.cases.harness import ACTIVITY, QUEUE, worker
from tests.cases.two_nodes import two_nodes
from tests.postgres.databases import execute

RUNS = 24
HELD_SECONDS = 3.0
EXPECTED = {RejectionCode.WORKFLOW_NOT_FOUND, RejectionCode.WORKFLOW_ALREADY_COMPLETED}


@activity.defn
async def touch(n: int) -> int:
    return n


@workflow.defn
class Child:
    @workflow.run
    async def run(self, n: int) -> int:
        return await workflow.execute_activity(touch, n, **ACTIVITY)  # type: ignore[arg-type]


@workflow.defn
class Parent:
    def __init__(self) -> None:
        self.signals = 0

    @workflow.run
    async def run(self, n: int) -> int:
        await asyncio.gather(*[workflow.execute_child_workflow(Child.run, k, id=f"child-{n}-{k}") for k in range(2)])
        await workflow.wait_condition(lambda: self.signals >= 6)
        return self.signals

    @workflow.signal
    def note(self) -> None:
        self.signals += 1


async def unless_closed(call: Any) -> None:
    """Await a call that may find its run closed, and nothing worse."""
    try:
        await call
    except RPCError as error:
        if error.code not in EXPECTED:
            raise


async def trouble(clients: tuple[Client, Client], n: int) -> None:
    handles = [client.get_workflow_handle(f"parent-{n}") for client in clients]
    calls = [handles[k % 2].signal("note") for k in range(6)]
    if n % 4 == 1:
        calls.append(handles[0].cancel())
    if n % 4 == 2:
        calls.append(handles[1].terminate("enough"))
    await asyncio.gather(*map(unless_closed, calls))


async def test_no_deadlock_reaches_a_caller_and_no_task_stays_claimed() -> None:
    async with two_nodes() as (dsn, one, other):
        async with worker(one, [Parent, Child], [touch]), worker(other, [Parent, Child], [touch]):
            handles = [
                await (one, other)[n % 2].start_workflow(Parent.run, n, id=f"parent-{n}", task_queue=QUEUE)
                for n in range(RUNS)
            ]
            await asyncio.gather(*[trouble((one, other), n) for n in range(RUNS)])
            async with asyncio.timeout(60):
                ends = await asyncio.gather(*[handle.result() for handle in handles], return_exceptions=True)
            assert all(isinstance(end, int | WorkflowFailureError) for end in ends), ends
            assert [end for n, end in enumerate(ends) if n % 4 in (0, 3)] == [6] * (RUNS // 2)
        assert await execute(dsn, "SELECT count(*) FROM clew.tasks") == [0]


async def test_other_runs_go_on_beside_a_row_that_somebody_holds() -> None:
    async with two_nodes() as (dsn, one, other), worker(one, [Parent, Child], [touch]):
        held = await other.start_workflow(Parent.run, 0, id="held", task_queue=QUEUE)
        session = await import_driver().connect(dsn=dsn)
        try:
            await session.execute("BEGIN")
            await session.execute("SELECT 1 FROM clew.executions WHERE workflow_id = 'held' FOR UPDATE")
            began = time.monotonic()
            while time.monotonic() - began < HELD_SECONDS:
                free = await other.start_workflow(Child.run, 1, id="free", task_queue=QUEUE)
                async with asyncio.timeout(HELD_SECONDS):
                    assert await free.result() == 1
            await session.execute("ROLLBACK")
        finally:
            await session.close()
        for _ in range(6):
            await held.signal(Parent.note, rpc_timeout=timedelta(seconds=30))
        async with asyncio.timeout(30):
            assert await held.result() == 6
