"""Activities with every outcome."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

running = asyncio.Event()
release = asyncio.Event()


def renew() -> None:
    """Events belong to the loop that waited for them first."""
    global running, release
    running, release = asyncio.Event(), asyncio.Event()


SECOND = timedelta(seconds=1)


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}"


@activity.defn
async def refuse(how: str) -> None:
    raise ApplicationError("no", how, type="Refused", non_retryable=how == "for good")


@activity.defn
async def third_time(name: str) -> str:
    if activity.info().attempt < 3:
        raise ApplicationError(f"attempt {activity.info().attempt}", type="NotYet")
    return name


@activity.defn
async def later() -> int:
    if activity.info().attempt == 1:
        raise ApplicationError("soon", type="Soon", next_retry_delay=timedelta(milliseconds=30))
    return activity.info().attempt


@activity.defn
async def hang() -> None:
    running.set()
    await asyncio.sleep(60)


@activity.defn
async def beat_once() -> None:
    activity.heartbeat("a", 1)
    await asyncio.sleep(60)


@activity.defn
async def beat_until_cancelled() -> str:
    running.set()
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        release.set()
        raise


@activity.defn
async def beat_and_ignore() -> str:
    running.set()
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return "done all the same"


@activity.defn
async def bug() -> None:
    raise ValueError("a bug")


@activity.defn
async def elsewhere() -> str:
    tokens.append(activity.info().task_token)
    running.set()
    activity.raise_complete_async()


tokens: list[bytes] = []
ACTIVITIES = [
    greet, refuse, third_time, later, hang, beat_once, beat_until_cancelled, beat_and_ignore, bug, elsewhere
]  # fmt: skip


@workflow.defn
class One:
    """One activity by name, and what came of it."""

    @workflow.run
    async def run(self, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        settings: dict[str, Any] = {
            key: timedelta(seconds=value) for key, value in options.items() if key.endswith("timeout")
        }
        if "attempts" in options:
            settings["retry_policy"] = RetryPolicy(
                maximum_attempts=options["attempts"],
                initial_interval=timedelta(milliseconds=options.get("interval_ms", 20)),
                non_retryable_error_types=options.get("final", []),
            )
        if "queue" in options:
            settings["task_queue"] = options["queue"]
        try:
            return await workflow.execute_activity(name, args=args, **settings)
        except ActivityError as error:
            return type(error.cause).__name__


@workflow.defn
class Cancels:
    """Starts an activity, is told when it runs, cancels it, and waits for what comes of it."""

    def __init__(self) -> None:
        self.go = False

    @workflow.run
    async def run(self, name: str, kind: int, queue: str | None) -> str:
        handle = workflow.start_activity(
            name,
            task_queue=queue,
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=5),
            cancellation_type=workflow.ActivityCancellationType(kind),
        )
        await workflow.wait_condition(lambda: self.go)
        handle.cancel()
        try:
            return str(await handle)
        except ActivityError as error:
            return type(error.cause).__name__

    @workflow.signal
    def cancel_it(self) -> None:
        self.go = True


@workflow.defn
class InOrder:
    @workflow.run
    async def run(self) -> list[str]:
        return [
            await workflow.execute_activity(greet, name, start_to_close_timeout=SECOND * 10) for name in ("a", "b", "c")
        ]


@workflow.defn
class TwoAtOnce:
    """Two activities in one task; the first can end only after the second did."""

    @workflow.run
    async def run(self) -> list[str]:
        slow = workflow.start_activity(await_release, start_to_close_timeout=SECOND * 10)
        fast = workflow.start_activity(greet, "fast", start_to_close_timeout=SECOND * 10)
        seen = [await fast]
        await workflow.execute_activity(let_go, start_to_close_timeout=SECOND * 10)
        seen.append(await slow)
        return seen


@activity.defn
async def await_release() -> str:
    await release.wait()
    await asyncio.sleep(0.3)  # so that the one that let it go is recorded, and its task done, before it
    return "slow"


@activity.defn
async def let_go() -> None:
    release.set()


@workflow.defn
class FailsOn:
    """An activity's failure that nobody catches fails the run."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(refuse, "for good", start_to_close_timeout=SECOND * 10)


async def one(bench: Any, name: str, *args: Any, **options: Any) -> None:
    async with bench.worker([One], ACTIVITIES):
        await bench.settled(await bench.start(One.run, name, list(args), options))


async def activity_completes(bench: Any) -> None:
    await one(bench, "greet", "Ada", start_to_close_timeout=10)


async def activity_fails_for_good(bench: Any) -> None:
    await one(bench, "refuse", "for good", start_to_close_timeout=10)


async def activity_uses_up_its_attempts(bench: Any) -> None:
    await one(bench, "refuse", "again", start_to_close_timeout=10, attempts=3)


async def activity_fails_with_a_final_type(bench: Any) -> None:
    await one(bench, "refuse", "again", start_to_close_timeout=10, attempts=5, final=["Refused"])


async def activity_fails_with_a_plain_exception(bench: Any) -> None:
    await one(bench, "bug", start_to_close_timeout=10, attempts=1)


async def activity_is_retried_until_it_completes(bench: Any) -> None:
    await one(bench, "third_time", "x", start_to_close_timeout=10, attempts=0)


async def activity_names_its_next_retry(bench: Any) -> None:
    await one(bench, "later", start_to_close_timeout=10, attempts=0, interval_ms=30_000)


async def activity_times_out_start_to_close(bench: Any) -> None:
    await one(bench, "hang", start_to_close_timeout=0.3, attempts=1)


async def activity_times_out_start_to_close_twice(bench: Any) -> None:
    await one(bench, "hang", start_to_close_timeout=0.3, attempts=2)


async def activity_times_out_schedule_to_start(bench: Any) -> None:
    await one(bench, "greet", "x", queue=bench.id("nobody"), start_to_close_timeout=10, schedule_to_start_timeout=0.3)


async def activity_times_out_schedule_to_close(bench: Any) -> None:
    await one(bench, "hang", schedule_to_close_timeout=0.4)


async def activity_times_out_between_attempts(bench: Any) -> None:
    await one(bench, "refuse", "again", schedule_to_close_timeout=1, attempts=0, interval_ms=3_000)


async def activity_misses_its_heartbeat(bench: Any) -> None:
    await one(bench, "beat_once", start_to_close_timeout=10, heartbeat_timeout=0.5, attempts=1)


async def activity_completes_elsewhere(bench: Any) -> None:
    renew()
    tokens.clear()
    async with bench.worker([One], ACTIVITIES):
        handle = await bench.start(One.run, "elsewhere", [], {"start_to_close_timeout": 10})
        await bench.until(running)
        await bench.client.get_async_activity_handle(task_token=tokens[0]).complete("from outside")
        await bench.settled(handle)


async def activity_fails_elsewhere(bench: Any) -> None:
    renew()
    tokens.clear()
    async with bench.worker([One], ACTIVITIES):
        handle = await bench.start(One.run, "elsewhere", [], {"start_to_close_timeout": 10, "attempts": 1})
        await bench.until(running)
        await bench.client.get_async_activity_handle(task_token=tokens[0]).fail(ApplicationError("bad", type="Bad"))
        await bench.settled(handle)


async def cancelled(bench: Any, name: str, kind: workflow.ActivityCancellationType, queue: str | None = None) -> None:
    renew()
    async with bench.worker([Cancels], ACTIVITIES):
        handle = await bench.start(Cancels.run, name, int(kind), queue)
        if queue is None:
            await bench.until(running)
        await bench.seen(handle.id, "WorkflowTaskCompleted")
        await handle.signal(Cancels.cancel_it)
        await bench.settled(handle)


async def activity_is_cancelled_and_waited_for(bench: Any) -> None:
    await cancelled(bench, "beat_until_cancelled", workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)


async def activity_ignores_its_cancellation(bench: Any) -> None:
    await cancelled(bench, "beat_and_ignore", workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)


async def activity_is_cancelled_and_left(bench: Any) -> None:
    await cancelled(bench, "beat_until_cancelled", workflow.ActivityCancellationType.TRY_CANCEL)


async def activity_is_abandoned(bench: Any) -> None:
    await cancelled(bench, "beat_until_cancelled", workflow.ActivityCancellationType.ABANDON)


async def activity_is_cancelled_before_it_starts(bench: Any) -> None:
    await cancelled(
        bench, "greet", workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED, queue=bench.id("nobody")
    )


async def activities_in_sequence(bench: Any) -> None:
    async with bench.worker([InOrder], ACTIVITIES):
        await bench.settled(await bench.start(InOrder.run))


async def activities_together(bench: Any) -> None:
    renew()
    async with bench.worker([TwoAtOnce], [*ACTIVITIES, await_release, let_go]):
        await bench.settled(await bench.start(TwoAtOnce.run))


async def activity_failure_fails_the_run(bench: Any) -> None:
    async with bench.worker([FailsOn], ACTIVITIES):
        await bench.settled(await bench.start(FailsOn.run))


PROGRAMS = [
    activity_completes,
    activity_fails_for_good,
    activity_uses_up_its_attempts,
    activity_fails_with_a_final_type,
    activity_fails_with_a_plain_exception,
    activity_is_retried_until_it_completes,
    activity_names_its_next_retry,
    activity_times_out_start_to_close,
    activity_times_out_start_to_close_twice,
    activity_times_out_schedule_to_start,
    activity_times_out_schedule_to_close,
    activity_times_out_between_attempts,
    activity_misses_its_heartbeat,
    activity_completes_elsewhere,
    activity_fails_elsewhere,
    activity_is_cancelled_and_waited_for,
    activity_ignores_its_cancellation,
    activity_is_cancelled_and_left,
    activity_is_abandoned,
    activity_is_cancelled_before_it_starts,
    activities_in_sequence,
    activities_together,
    activity_failure_fails_the_run,
]
