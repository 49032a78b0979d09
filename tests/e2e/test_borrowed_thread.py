"""Workflow code that the caller's own thread runs, as it does for a lone run, and that does not come to an end."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path

from clew import workflow
from clew.client import Client
from clew.worker import Worker

QUEUE = "borrowed"
SECONDS_MAX = 60.0

ran_in: list[str] = []
spins_left: list[int] = []


@workflow.defn
class Mostly:
    """Quick, but for one way through it."""

    def __init__(self) -> None:
        self._total = 0

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self._total < 0)
        return self._total

    @workflow.update
    async def add(self, number: int) -> int:
        ran_in.append(threading.current_thread().name)
        if number == 13 and spins_left:
            spins_left.pop()
            while True:
                number += 1
        self._total += number
        return self._total


async def test_a_turn_that_spins_on_the_callers_thread_is_interrupted_and_the_caller_goes_on(tmp_path: Path) -> None:
    async with await Client.connect(f"sqlite:{tmp_path / 'runs.db'}") as client:
        timeout = timedelta(milliseconds=300)
        async with Worker(client, task_queue=QUEUE, workflows=[Mostly], blocked_thread_timeout=timeout):
            handle = await client.start_workflow(Mostly.run, id="m", task_queue=QUEUE)
            until = time.monotonic() + SECONDS_MAX
            total = 0
            while "MainThread" not in ran_in:
                assert time.monotonic() < until, "no lone update was ever run by the thread that waits for it"
                total = await handle.execute_update(Mostly.add, 1)
            ran_in.clear()
            while not ran_in or "MainThread" not in ran_in:
                # Until the one that spins does so on this very thread; on another it harms nobody here.
                spins_left[:] = [1]
                assert time.monotonic() < until, "the code that spins was never run by the thread that waits for it"
                before = asyncio.get_running_loop()
                total += 13
                assert await asyncio.wait_for(handle.execute_update(Mostly.add, 13), SECONDS_MAX) == total
                assert asyncio.get_running_loop() is before
            assert spins_left == []
            # This thread is nobody's to end: it goes on, and so does everything else.
            assert await handle.execute_update(Mostly.add, 1) == total + 1
            history = await handle.fetch_history()
            assert any(type(event).__name__ == "WorkflowTaskFailed" for event in history.events)
