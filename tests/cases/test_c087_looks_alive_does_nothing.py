"""C087: a part of the worker that fails either goes on or ends the worker; it is never registered but idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from tests.cases.harness import QUEUE, engine, eventually, service_faults, settled, within, worker


def refused() -> RPCError:
    return RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message="the test refuses"))


ERRORS: dict[str, Callable[[], Exception]] = {
    "network": lambda: ConnectionResetError("the test cut the line"),
    "bug": lambda: TypeError("the test has a bug"),
    "refusal": refused,
}
CALLS = ["complete_workflow_task", "complete_activity", "heartbeat_activity", "get_history", "fail_activity"]


@activity.defn
async def beat_and_greet(name: str) -> str:
    if activity.info().attempt == 1:
        activity.heartbeat(1)
        await asyncio.sleep(0.05)
        if name == "fails":
            raise ValueError("once")
    return f"hello {name}"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        # Long enough for one try, short enough that a lost report is noticed in the time of this test.
        return await workflow.execute_activity(
            beat_and_greet, name, start_to_close_timeout=timedelta(seconds=2), heartbeat_timeout=timedelta(seconds=1)
        )


async def healthy(client: Client, workflow_id: str, name: str = "you") -> str:
    handle = await client.start_workflow(
        Greeting.run, name, id=workflow_id, task_queue=QUEUE, task_timeout=timedelta(seconds=1)
    )
    return str(await settled(handle, 20))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", list(ERRORS))
async def test_after_one_bad_answer_the_worker_still_serves(kind: str, call: str) -> None:
    async with engine() as client:
        faults = service_faults(client)
        # Without a cache every task needs its history, so that each of the calls is made.
        async with worker(client, [Greeting], [beat_and_greet], cache=0) as running:
            faults.fail(call, ERRORS[kind](), times=1)
            first = await healthy(client, "first", "fails" if call == "fail_activity" else "you")
            if (kind, call) == ("refusal", "complete_activity"):
                # The engine will not have this result, so the run is told, rather than left to time out.
                assert "failed" in first
            else:
                assert first.startswith("hello"), first
            assert await healthy(client, "second") == "hello you"
            assert running.is_running


async def test_a_closed_connection_ends_the_worker_with_an_error() -> None:
    async with engine() as client:
        running = worker(client, [Greeting], [beat_and_greet])
        task = asyncio.create_task(running.run())
        await eventually(lambda: running.is_running, "the start")
        assert await healthy(client, "first") == "hello you"
        await client.close()
        with pytest.raises(RuntimeError, match="was closed while it was needed"):
            await within(task, 15)
        assert not running.is_running


async def test_a_bug_in_a_part_ends_the_worker_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.worker._activity_tasks import ActivityTasks

    def broken(self: Any) -> None:
        raise TypeError("the sweep has a bug")

    async with engine() as client:
        monkeypatch.setattr(ActivityTasks, "_look", broken)
        running = worker(client, [Greeting], [beat_and_greet])
        task = asyncio.create_task(running.run())
        with pytest.raises(TypeError, match="the sweep has a bug"):
            await within(_keep_busy(client, task), 15)


async def _keep_busy(client: Client, task: asyncio.Task[None]) -> None:
    """Activities that run while the sweep comes round."""
    n = 0
    while not task.done():
        n += 1
        await client.start_workflow(Greeting.run, "you", id=f"busy-{n}", task_queue=QUEUE)
        await asyncio.wait((task,), timeout=0.1)
    await task
