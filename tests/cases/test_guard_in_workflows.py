"""Clock, sleep, chance and I/O in workflow code, caught at the call in a running worker.

The run is neither lost nor silently stuck: describe says what was called, where, and what to use; with mended code it
goes on.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.testing import ManualClock
from tests.cases.harness import ACTIVITY, QUEUE, engine, eventually, replay_check, settled, worker

CALLS: dict[str, Any] = {
    "time": (lambda: time.time(), "workflow.now()"),
    "datetime": (lambda: datetime.now(), "workflow.now()"),
    "sleep": (lambda: time.sleep(0.01), "workflow.sleep"),
    "random": (lambda: random.random(), "workflow.random()"),
    "uuid": (lambda: uuid.uuid4(), "workflow.uuid4()"),
    "open": (lambda: Path("/etc/hostname").read_text(), "workflow.execute_activity"),
    "socket": (lambda: socket.create_connection(("127.0.0.1", 9)), "workflow.execute_activity"),
    "thread": (lambda: asyncio.to_thread(time.time), "activit"),
}


@activity.defn
async def reads_the_clock() -> bool:
    return time.time() > 0 and uuid.uuid4() is not None and datetime.now() is not None


@workflow.defn(name="Guarded")
class Careless:
    @workflow.run
    async def run(self, name: str) -> bool:
        found = CALLS[name][0]()
        if asyncio.iscoroutine(found):
            await found
        return await workflow.execute_activity(reads_the_clock, **ACTIVITY)


@workflow.defn(name="Guarded")
class Mended:
    @workflow.run
    async def run(self, name: str) -> bool:
        workflow.logger.info("a log line reads the clock, and that is its own affair")
        with workflow.unsafe.sandbox_unrestricted():
            time.time()
        return await workflow.execute_activity(reads_the_clock, **ACTIVITY)


@pytest.mark.parametrize("name", list(CALLS))
async def test_describe_says_what_and_where_and_mended_code_goes_on(name: str) -> None:
    clock = ManualClock()
    async with engine(clock) as client:
        async with worker(client, [Careless], [reads_the_clock]):
            handle = await client.start_workflow("Guarded", name, id=name, task_queue=QUEUE)
            told = await eventually(lambda: _told(handle))
            assert CALLS[name][1] in told, told
            if name != "thread":
                assert Path(__file__).name in told
        clock.advance(timedelta(minutes=1))  # Failing workflow tasks back off.
        async with worker(client, [Mended], [reads_the_clock]):
            assert await settled(handle) is True
        await replay_check(handle, Mended)


async def _told(handle: Any) -> str:
    text = "\n".join((await handle.describe()).waiting_for)
    return text if "failing" in text else ""
