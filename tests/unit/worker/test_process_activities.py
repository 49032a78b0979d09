"""Process activities: outcomes, heartbeats, cancellation, and children that die."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew.converter import DataConverter
from clew.model.inputs import ActivityCancelReason
from tests.unit.worker import activities_in_processes as child
from tests.unit.worker.fakes import activity_task, until
from tests.unit.worker.harness import Rig, running

PAYLOADS = DataConverter.default.payload_converter
ALL = [
    child.double,
    child.who_am_i,
    child.die,
    child.note_and_double,
    child.beat_until_cancelled,
    child.stubborn,
    child.raise_unpicklable,
    child.return_unpicklable,
]


def stored(*values: Any) -> Any:
    return tuple(PAYLOADS.to_stored(value) for value in values)


def value_of(request: Any) -> Any:
    (payload,) = request.result
    return PAYLOADS.from_stored(payload)


@pytest.fixture
def pool() -> Iterator[ProcessPoolExecutor]:
    executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    yield executor
    executor.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
async def rig(pool: ProcessPoolExecutor) -> AsyncIterator[Rig]:
    async with running(ALL, activity_executor=pool, max_concurrent_activities=2) as made:
        yield made


async def test_a_process_activity_has_its_info_and_completes(rig: Rig) -> None:
    await rig.offer(activity_task("who_am_i", input=stored("I am")))
    words = value_of(await rig.result_of("complete_activity")).split()
    assert words[:5] == ["I", "am", "who_am_i", "1", "key"]


async def test_it_heartbeats_and_is_cancelled(rig: Rig) -> None:
    task = activity_task("beat_until_cancelled", input=stored("at"), heartbeat_timeout=timedelta(seconds=20))
    await rig.offer(task)
    await rig.result_of("heartbeat_activity")
    await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
    await rig.result_of("cancel_activity")
    first = rig.service.of("heartbeat_activity")[0]
    assert PAYLOADS.from_stored(first.details[0]) == "at"


async def test_what_cannot_cross_the_border_is_told_as_text(rig: Rig) -> None:
    await rig.offer(activity_task("raise_unpicklable"))
    raised = await rig.result_of("fail_activity")
    assert raised.failure.info.type == "Unpicklable"
    await rig.offer(activity_task("return_unpicklable", lease_id=2))
    returned = (await rig.result_of("fail_activity", 2))[1]
    assert returned.failure.info.non_retryable
    await rig.offer(activity_task("double", lease_id=3, input=stored(2)))
    assert value_of(await rig.result_of("complete_activity")) == 4


async def test_a_dead_child_costs_its_own_attempt_and_the_pool_goes_on(rig: Rig, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")
    await rig.offer(activity_task("die", input=stored(marker)))
    failed = await rig.result_of("fail_activity")
    assert failed.failure.info.type == "ProcessDied"
    assert not failed.failure.info.non_retryable
    await rig.offer(activity_task("die", lease_id=2, input=stored(marker)))
    assert value_of(await rig.result_of("complete_activity")) == "survived"


async def test_calls_that_no_child_had_begun_are_not_lost_with_it(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        async with running(ALL, activity_executor=pool, max_concurrent_activities=1) as rig:
            # More than the credits allow, so that calls wait in the pool's own queue when the child dies.
            await rig.offer(
                activity_task("die", input=stored(str(tmp_path / "died"))),
                *(activity_task("note_and_double", lease_id=n, input=stored(n, str(tmp_path))) for n in range(2, 6)),
            )
            requests = await rig.result_of("complete_activity", 4)
            assert sorted(value_of(request) for request in requests) == [4, 6, 8, 10]
            assert len(rig.service.of("fail_activity")) == 1
    assert len(list(tmp_path.glob("*-*-*"))) == 4, "each of them ran once"


async def test_a_stubborn_child_is_killed_at_shutdown(pool: ProcessPoolExecutor) -> None:
    async with running(ALL, activity_executor=pool, max_concurrent_activities=2) as rig:
        await rig.offer(activity_task("stubborn", input=stored(30)))
        await until(lambda: any(c.pid for c in rig.worker._parts._processes._calls.values()), "its beginning")
        began = time.monotonic()
        await rig.worker.shutdown()
        assert time.monotonic() - began < 2
    assert (await rig.result_of("fail_activity")).failure.info.type == "WorkerShutdown"
