"""C088: a draining worker with the same identity takes no work back, and what it had is not run twice at once."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, RPCError
from clew.common import RetryPolicy
from clew.model import events as e
from clew.model.rejection import RejectionCode
from clew.worker import Worker
from tests.cases.conftest import Recorded
from tests.cases.harness import QUEUE, Process, address, engine, events, eventually, settled, within, worker

ROUNDS = 25
"""The case has 50 rounds, half of them with a kill; those have a part of their own below."""
KILLS = 4
IDENTITY = "the-same-name"

running: set[str] = set()
overlaps: list[str] = []
tokens: dict[str, bytes] = {}


@activity.defn
async def step(seconds: float) -> int:
    info = activity.info()
    assert info.workflow_id
    if info.workflow_id in running:
        overlaps.append(info.workflow_id)
    running.add(info.workflow_id)
    tokens.setdefault(info.workflow_id, info.task_token)
    try:
        await asyncio.sleep(seconds if info.attempt == 1 else 0.02)
        return info.attempt
    finally:
        # It takes a moment to end, as real work does.
        await asyncio.shield(asyncio.sleep(0.01))
        running.discard(info.workflow_id)


@workflow.defn
class OneStep:
    @workflow.run
    async def run(self, seconds: float) -> int:
        return await workflow.execute_activity(
            step,
            seconds,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
        )


def _named(client: Client, **options: Any) -> Worker:
    return worker(client, [OneStep], [step], identity=IDENTITY, **options)


async def _start(client: Client, workflow_id: str, seconds: float) -> Any:
    return await client.start_workflow(OneStep.run, seconds, id=workflow_id, task_queue=QUEUE)


async def test_the_old_worker_drains_while_the_new_one_starts(recorded: Recorded) -> None:
    dice = random.Random(88)
    running.clear()
    overlaps.clear()
    tokens.clear()
    handles: list[Any] = []
    async with engine() as client:
        old = _named(client, graceful_shutdown_timeout=timedelta(seconds=0.05))
        old_run = asyncio.create_task(old.run())
        for number in range(ROUNDS):
            held = await _start(client, f"held-{number}", 30)
            await eventually(lambda number=number: f"held-{number}" in running, "the step runs")  # type: ignore[misc]
            draining = asyncio.create_task(old.shutdown())
            await asyncio.sleep(dice.uniform(0, 0.06))
            new = _named(client, graceful_shutdown_timeout=timedelta(seconds=0.05))
            new_run = asyncio.create_task(new.run())
            # Within the first moments of the new worker, and while the old one drains.
            await asyncio.sleep(dice.uniform(0, 0.05))
            early = await _start(client, f"early-{number}", 0.01)
            assert await settled(early) == 1, "not taken by the one that drains"
            assert await settled(held) == 2, "given back by the old worker, and done by the new"
            await within(draining)
            await within(old_run)
            handles += [held, early]
            old, old_run = new, new_run
        await old.shutdown()
        await old_run
        assert overlaps == []
        assert running == set()
        for handle in handles[::8]:
            await recorded.add(handle, OneStep)


async def test_a_claim_that_is_no_longer_held_is_refused() -> None:
    """Both attempts carry the same name; what counts is the token."""
    tokens.clear()
    running.clear()
    async with engine() as client:
        async with _named(client, graceful_shutdown_timeout=timedelta(0)):
            handle = await _start(client, "stale", 30)
            await eventually(lambda: "stale" in running, "the first attempt")
        stale = client.get_async_activity_handle(task_token=tokens["stale"])
        with_length = len(await events(handle))
        for report in (stale.complete(99), stale.fail(ValueError("stale")), stale.heartbeat()):
            with pytest.raises(RPCError) as caught:
                await report
            assert caught.value.code is RejectionCode.ACTIVITY_NOT_FOUND
        assert len(await events(handle)) == with_length
        async with _named(client):
            assert await settled(handle) == 2


async def drain(database: str, file: str) -> None:
    """The process that is killed while it drains."""
    async with await Client.connect(address(database), identity=IDENTITY) as client:
        one = _named(client, graceful_shutdown_timeout=timedelta(seconds=60))
        task = asyncio.create_task(one.run())
        await eventually(lambda: running, "it has a step", 20)
        shutdown = asyncio.create_task(one.shutdown())
        for _ in range(3):
            # What the worker has said before a call is answered has been heard before it.
            await client.count_workflows()
        # New work while it drains: it must not take it.
        await client.start_workflow(OneStep.run, 0.0, id=f"late-{Path(file).name}", task_queue=QUEUE)
        Path(file).write_text("draining")
        await asyncio.gather(task, shutdown)


async def test_the_draining_process_is_killed(tmp_path: Path) -> None:
    database = tmp_path / "clew.db"
    for kill in range(KILLS):
        async with engine(database=database) as client:
            await _start(client, f"held-{kill}", 30)
        file = tmp_path / str(kill)
        with Process(drain, str(database), str(file)) as process:
            await eventually(file.exists, "it drains", 20)
            process.kill()
        async with engine(database=database) as client, _named(client):
            held: Any = client.get_workflow_handle(f"held-{kill}")
            late: Any = client.get_workflow_handle(f"late-{kill}")
            assert await settled(held) == 2, "the first attempt died with its process"
            assert await settled(late) == 1, "the draining process did not take it"
            assert len(await events(held, e.ActivityTaskCompleted)) == 1
