"""C041: relative deadlines are anchored once, and survive restarts, signals and cold starts."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.model import events as e
from clew.testing import ManualClock
from tests.cases.harness import QUEUE, engine, events, eventually, parked, replay_check, settled, worker

SECOND = timedelta(seconds=1)


@activity.defn
async def fails_once() -> str:
    if activity.info().attempt == 1:
        raise ValueError("not yet")
    return "retried"


@workflow.defn
class FourWaits:
    def __init__(self) -> None:
        self.pokes = 0
        self.ended: dict[str, float] = {}

    @workflow.run
    async def run(self) -> dict[str, float]:
        began = workflow.time()

        async def timed(name: str, wait: object) -> None:
            with contextlib.suppress(TimeoutError):
                await wait  # type: ignore[misc]
            self.ended[name] = workflow.time() - began

        async def within_timeout() -> None:
            async with asyncio.timeout(10):
                await workflow.wait_condition(lambda: False)

        retry = RetryPolicy(initial_interval=timedelta(seconds=10), maximum_attempts=2)
        await asyncio.gather(
            timed("sleep", workflow.sleep(10)),
            timed("condition", workflow.wait_condition(lambda: False, timeout=timedelta(seconds=10))),
            timed("timeout", within_timeout()),
            timed(
                "retry",
                workflow.execute_activity(fails_once, start_to_close_timeout=timedelta(minutes=1), retry_policy=retry),
            ),
        )
        return self.ended

    @workflow.signal
    def poke(self) -> None:
        self.pokes += 1


async def test_all_four_fire_ten_seconds_after_the_first_scheduling(tmp_path: Path) -> None:
    clock = ManualClock()
    database = tmp_path / "clew.db"
    async with engine(clock, database=database) as client, worker(client, [FourWaits], [fails_once], cache=0):
        handle = await client.start_workflow(FourWaits.run, id="waits", task_queue=QUEUE)
        await parked(handle)
        await eventually(lambda: _has_failed_once(handle))
    for second in range(1, 10):
        clock.advance(SECOND)
        if second in (3, 4, 6, 8, 9):
            async with engine(clock, database=database) as client, worker(client, [FourWaits], [fails_once], cache=0):
                handle = client.get_workflow_handle_for(FourWaits.run, "waits")
                if second in (4, 8):
                    await handle.signal(FourWaits.poke)
                await parked(handle)
                assert not await events(handle, e.TimerFired)
    # The last second passes while no engine runs.
    clock.advance(SECOND)
    async with engine(clock, database=database) as client, worker(client, [FourWaits], [fails_once], cache=0):
        handle = client.get_workflow_handle_for(FourWaits.run, "waits")
        ended = await settled(handle)
        assert set(ended) == {"sleep", "condition", "timeout", "retry"}
        assert all(abs(seconds - 10) <= 0.5 for seconds in ended.values()), ended
        fired = await events(handle, e.TimerFired)
        assert len({event.started_event_id for event in fired}) == len(fired) == 3
        await replay_check(handle, FourWaits)


async def _has_failed_once(handle: object) -> bool:
    description = await handle.describe()  # type: ignore[attr-defined]
    return any(pending.attempt == 2 for pending in description.pending_activities)
