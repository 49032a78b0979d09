"""C008: user code that catches everything must not hold the cache slot hostage."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from clew import workflow
from tests.cases.harness import QUEUE, engine, eventually, parked, replay_check, worker

ROUNDS = 20


@workflow.defn
class CatchesExceptions:
    def __init__(self) -> None:
        self.caught = 0
        self.pokes = 0

    @workflow.run
    async def run(self) -> None:
        while True:
            try:
                await workflow.sleep(3600)
            except Exception:  # noqa: BLE001 - the case
                self.caught += 1
                workflow.logger.error("caught in user code")

    @workflow.signal
    def poke(self) -> None:
        self.pokes += 1

    @workflow.query
    def counts(self) -> tuple[int, int]:
        return self.caught, self.pokes


@workflow.defn
class CatchesEverything:
    def __init__(self) -> None:
        self.caught = 0
        self.pokes = 0

    @workflow.run
    async def run(self) -> None:
        while True:
            try:
                await workflow.sleep(3600)
            except BaseException:  # noqa: BLE001 - the case
                self.caught += 1
                workflow.logger.error("caught in user code")
                continue

    @workflow.signal
    def poke(self) -> None:
        self.pokes += 1

    @workflow.query
    def counts(self) -> tuple[int, int]:
        return self.caught, self.pokes


async def test_eviction_runs_no_user_code_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    kinds = [CatchesExceptions] * 5 + [CatchesEverything] * 2
    async with engine() as client:
        running = worker(client, [CatchesExceptions, CatchesEverything], cache=1)
        async with running:
            handles = [
                await client.start_workflow(kind.run, id=f"run-{n}", task_queue=QUEUE) for n, kind in enumerate(kinds)
            ]
            for round_number in range(1, ROUNDS + 1):
                for handle, kind in zip(handles, kinds, strict=True):
                    await handle.signal(kind.poke)
                for handle in handles:
                    await parked(handle)
                assert round_number
            for handle, kind in zip(handles, kinds, strict=True):
                assert await handle.query(kind.counts) == (0, ROUNDS)
            clock = time.monotonic()
        assert time.monotonic() - clock < 4
        assert not any("caught in user code" in record.getMessage() for record in caplog.records)
        warnings = [record for record in caplog.records if record.levelname == "WARNING" and record.name == "clew"]
        assert len(warnings) <= 2 * (ROUNDS + 1)
        await replay_check(handles[0], CatchesExceptions)
        await replay_check(handles[-1], CatchesEverything)


@workflow.defn
class ContinuesInsideTry:
    @workflow.run
    async def run(self, is_first: bool) -> str:
        if not is_first:
            return "second run"
        try:
            workflow.continue_as_new(False)
        except Exception:  # noqa: BLE001 - the case
            return "caught"


async def test_continue_as_new_is_not_caught_by_except_exception() -> None:
    async with engine() as client, worker(client, [ContinuesInsideTry]):
        result = await client.execute_workflow(ContinuesInsideTry.run, True, id="again", task_queue=QUEUE)
        assert result == "second run"


@workflow.defn(name="Changed")
class Before:
    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(hours=1))
        return "done"


@workflow.defn(name="Changed")
class After:
    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.wait_condition(lambda: False)
        except Exception:  # noqa: BLE001 - the case
            return "caught the mismatch"
        return "never"

    @workflow.signal
    def poke(self) -> None:
        """Make a workflow task."""


async def test_a_mismatch_is_not_caught_by_except_exception() -> None:
    async with engine() as client:
        async with worker(client, [Before]):
            handle = await client.start_workflow("Changed", id="changed", task_queue=QUEUE)
            await parked(handle)
        await handle.signal("poke")
        async with worker(client, [After]):
            text = await eventually(lambda: _failing_text(handle))
        assert "ondeterminis" in text
        await handle.terminate()


async def _failing_text(handle: object) -> str:
    description = await handle.describe()  # type: ignore[attr-defined]
    text = "\n".join(description.waiting_for)
    return text if "ondeterminis" in text else ""
