"""C091: a worker that does not know a type neither fails it nor sits on it, and no attempt is used up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.common import RetryPolicy
from tests.cases.harness import QUEUE, engine, eventually, replay_check, settled, worker

EACH = 50
attempts: list[int] = []
ONCE: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=10),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}


@activity.defn
async def a1() -> str:
    return "a1"


@activity.defn
async def a2() -> str:
    attempts.append(activity.info().attempt)
    return "a2"


@workflow.defn
class W1:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(a1, **ONCE)


@workflow.defn
class W2:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(a2, **ONCE)


@pytest.fixture(autouse=True)
def _clear() -> None:
    attempts.clear()


async def test_types_that_only_the_new_worker_knows_wait_for_it() -> None:
    async with engine() as client:
        async with worker(client, [W1], [a1]):
            new = [await client.start_workflow(W2.run, id=f"new-{n}", task_queue=QUEUE) for n in range(EACH)]
            old = [await client.start_workflow(W1.run, id=f"old-{n}", task_queue=QUEUE) for n in range(EACH)]
            assert [await settled(handle) for handle in old] == ["a1"] * EACH, "the old worker is not kept busy"
            assert [(await handle.describe()).history_length for handle in new] == [2] * EACH
            async with worker(client, [W1, W2], [a1, a2]):
                assert [await settled(handle) for handle in new] == ["a2"] * EACH
        assert attempts == [1] * EACH
        await replay_check(new[0], W2)


async def test_an_activity_with_one_attempt_waits_for_a_worker_that_knows_it() -> None:
    async with engine() as client:
        async with worker(client, [W2], [a1]):
            handle = await client.start_workflow(W2.run, id="one", task_queue=QUEUE)
            await eventually(lambda: _pending_activity(handle), "the activity")
            async with worker(client, [W2], [a1, a2]):
                assert await settled(handle) == "a2"
        assert attempts == [1]


async def test_describe_says_that_nobody_knows_the_type() -> None:
    async with engine() as client, worker(client, [W1, W2], [a1]):
        handle = await client.start_workflow(W2.run, id="nobody", task_queue=QUEUE)
        pending = await eventually(lambda: _pending_activity(handle), "the activity")
        assert "'a2' registered" in pending.waiting_reason
        assert pending.attempt <= 1
        unknown = await client.start_workflow("W3", id="unknown", task_queue=QUEUE)

        async def reason() -> str:
            return " ".join((await unknown.describe()).waiting_for)

        await eventually(lambda: asyncio.ensure_future(_contains(reason, "'W3'")), "the reason")


async def _contains(text: Any, part: str) -> bool:
    return part in await text()


async def _pending_activity(handle: Any) -> Any:
    found = (await handle.describe()).pending_activities
    return found[0] if found else None
