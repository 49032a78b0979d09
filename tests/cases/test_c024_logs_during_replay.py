"""C024: logs, and "is replaying", during replay and queries."""

from __future__ import annotations

import logging

import pytest

from clew import activity, workflow
from tests.cases.conftest import Recorded
from tests.cases.harness import ACTIVITY, QUEUE, engine, eventually, parked, settled, within, worker

LINES = 5


@activity.defn
async def work() -> None:
    pass


@workflow.defn
class Logs:
    def __init__(self) -> None:
        self.allowed = 0
        self.line = 0
        self.flags: list[bool] = []

    @workflow.run
    async def run(self) -> int:
        for number in range(LINES):
            await workflow.wait_condition(lambda number=number: self.allowed > number)  # type: ignore[misc]
            await workflow.execute_activity(work, **ACTIVITY)
            workflow.logger.info("line %d", number)
            self.line = number + 1
        return self.line

    @workflow.signal
    def allow(self) -> None:
        self.allowed += 1

    @workflow.query
    def state(self) -> tuple[int, bool]:
        workflow.logger.info("asked")
        return self.line, workflow.unsafe.is_replaying()


@pytest.mark.parametrize("cache", [0, 100], ids=["cold", "warm"])
async def test_each_line_appears_once(cache: int, caplog: pytest.LogCaptureFixture, recorded: Recorded) -> None:
    caplog.set_level(logging.INFO, "clew.workflow")
    flags: list[bool] = []
    async with engine() as client:
        handle = await client.start_workflow(Logs.run, id="logs", task_queue=QUEUE)
        async with worker(client, [Logs], [work], cache=cache):
            await parked(handle)
            for number in range(LINES):
                # Asked while a task is pending or running, most likely.
                await handle.signal(Logs.allow)
                _, is_replaying = await within(handle.query(Logs.state))
                flags.append(is_replaying)

                async def has_come(number: int = number) -> bool:
                    line, is_replaying = await handle.query(Logs.state)
                    flags.append(is_replaying)
                    return bool(line > number)

                await eventually(has_come, f"line {number}")
            assert await settled(handle) == LINES
            for _ in range(3):
                line, is_replaying = await within(handle.query(Logs.state))
                assert line == LINES
                flags.append(is_replaying)
        await recorded.add(handle, Logs)
    assert len(flags) >= 10
    assert all(flags), "work that is done only to answer a query counts as replay"
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("clew.workflow")]
    for number in range(LINES):
        assert sum(message.startswith(f"line {number}") for message in messages) == 1, messages


live_flags: list[tuple[int, bool]] = []


@workflow.defn
class Flags:
    @workflow.run
    async def run(self) -> None:
        for number in range(3):
            await workflow.execute_activity(work, **ACTIVITY)
            with workflow.unsafe.sandbox_unrestricted():
                live_flags.append((number, workflow.unsafe.is_replaying()))


async def test_the_flag_is_false_once_for_each_step() -> None:
    live_flags.clear()
    async with engine() as client, worker(client, [Flags], [work], cache=0):
        handle = await client.start_workflow(Flags.run, id="flags", task_queue=QUEUE)
        await settled(handle)
    for number in range(3):
        assert [is_replaying for step, is_replaying in live_flags if step == number].count(False) == 1
        assert [is_replaying for step, is_replaying in live_flags if step == number].count(True) == 2 - number
