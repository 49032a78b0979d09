"""C053: a query when there is nobody, or only failing tasks: each ends soon with an error that tells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import WorkflowQueryFailedError
from clew.service.errors import RPCError
from tests.cases.harness import QUEUE, engine, eventually, parked, worker

ANSWER_SECONDS_MAX = 3.0


@workflow.defn(name="Asked")
class Asked:
    def __init__(self) -> None:
        self.pokes = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def poke(self) -> None:
        self.pokes += 1

    @workflow.signal
    def block(self) -> None:
        with workflow.unsafe.sandbox_unrestricted():
            time.sleep(1.0)
        self.pokes += 1

    @workflow.query
    def state(self) -> int:
        return self.pokes


@workflow.defn(name="Asked")
class Broken:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(1000)

    @workflow.signal
    def poke(self) -> None:
        """Make a task."""

    @workflow.query
    def state(self) -> int:
        return 0


async def _ask(handle: Any, name: Any = "state") -> Any:
    clock = time.monotonic()
    try:
        return await handle.query(name)
    except (RPCError, WorkflowQueryFailedError) as error:
        return error
    finally:
        assert time.monotonic() - clock < ANSWER_SECONDS_MAX


async def test_each_trouble_has_its_own_error() -> None:
    told: list[str] = []
    async with engine() as client:
        handle = await client.start_workflow("Asked", id="asked", task_queue=QUEUE)
        # (d) the first task has not run, and there is nobody to run it.
        told.append(str(await _ask(handle)))
        async with worker(client, [Asked]):
            await parked(handle)
            assert await _ask(handle) == 0
            # (e) an unknown query names those that exist.
            unknown = await _ask(handle, "colour")
            assert isinstance(unknown, WorkflowQueryFailedError)
            assert "state" in str(unknown)
            told.append(str(unknown))
        # (a) no worker.
        nobody = await _ask(handle)
        assert isinstance(nobody, RPCError)
        assert QUEUE in str(nobody)
        assert "worker" in str(nobody)
        told.append(str(nobody))
        # (b) a worker whose code mismatches.
        await handle.signal("poke")
        async with worker(client, [Broken]):
            await eventually(lambda: _is_failing(handle))
            mismatch = await _ask(handle)
            assert isinstance(mismatch, (RPCError, WorkflowQueryFailedError))
            assert "ondeterminis" in str(mismatch)
            told.append(str(mismatch))
        # (f) an unknown run.
        missing = await _ask(client.get_workflow_handle("nobody"))
        assert isinstance(missing, RPCError)
        assert "nobody" in str(missing)
        told.append(str(missing))
    assert len(set(told)) == len(told)


async def test_a_query_waits_for_the_running_task() -> None:
    async with engine() as client, worker(client, [Asked]):
        handle = await client.start_workflow(Asked.run, id="busy", task_queue=QUEUE)
        await parked(handle)
        await handle.signal(Asked.block)
        assert await _ask(handle) == 1


@pytest.mark.parametrize("has_worker", [True])
async def test_a_query_right_after_the_start_is_answered(has_worker: bool) -> None:
    async with engine() as client, worker(client, [Asked]):
        handle = await client.start_workflow(Asked.run, id="new", task_queue=QUEUE)
        assert await _ask(handle) == 0
        await asyncio.gather(*(_ask(handle) for _ in range(5)))


async def _is_failing(handle: Any) -> bool:
    return "ondeterminis" in "\n".join((await handle.describe()).waiting_for)
