"""How a run ends, is cancelled, goes on as a new one, is retried, and outlives a change of its code."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, common, workflow
from temporalio.exceptions import ApplicationError, CancelledError

code = {"failures_left": 0}


@activity.defn
async def tidy() -> str:
    return "tidy"


@activity.defn
async def tell_attempt() -> int:
    return activity.info().attempt


@workflow.defn
class Waits:
    """Waits for an hour; what a cancel request finds is told by `how`."""

    @workflow.run
    async def run(self, how: str) -> str:
        try:
            await workflow.sleep(timedelta(hours=1))
        except asyncio.CancelledError:
            if how == "ignore":
                return "carried on"
            if how == "tidy":
                await workflow.execute_activity(tidy, start_to_close_timeout=timedelta(seconds=10))
            if how == "fail":
                raise ApplicationError("on cancel", type="OnCancel") from None
            raise
        return "slept"


@workflow.defn
class Counts:
    """Goes on as a new run until it has counted down."""

    @workflow.run
    async def run(self, left: int) -> str:
        if left:
            workflow.continue_as_new(left - 1, memo={"left": left - 1})
        return "zero"


@workflow.defn
class Fails:
    @workflow.run
    async def run(self, how: str) -> str:
        if how == "retry" and workflow.info().attempt == 3:
            return "third time"
        if how == "value":
            raise CancelledError("nobody asked")
        raise ApplicationError("no", {"how": how}, type="No", non_retryable=how == "final")


@workflow.defn
class HealsLater:
    """Raises an ordinary exception while its code is broken: the task fails, not the run."""

    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(milliseconds=50))
        if code["failures_left"]:
            code["failures_left"] -= 1
            raise RuntimeError("a bug in the workflow")
        return "healed"


@workflow.defn
class Patched:
    @workflow.run
    async def run(self, old: bool) -> str:
        if old:
            workflow.deprecate_patch("my-patch")
        elif not workflow.patched("my-patch"):
            return "unpatched"
        await workflow.execute_activity(tidy, start_to_close_timeout=timedelta(seconds=10))
        return "patched"


@workflow.defn
class Notes:
    @workflow.run
    async def run(self) -> Any:
        workflow.upsert_memo({"a": 1, "b": None})
        await workflow.sleep(timedelta(milliseconds=50))
        return workflow.memo()


@workflow.defn
class EmptyTask:
    @workflow.run
    async def run(self) -> None:
        return None


async def ends(bench: Any, run: Any, *args: Any, **options: Any) -> None:
    async with bench.worker([Waits, Counts, Fails, HealsLater, Patched, Notes, EmptyTask], [tidy, tell_attempt]):
        await bench.settled(await bench.start(run, *args, **options))


async def run_completes_at_once(bench: Any) -> None:
    await ends(bench, EmptyTask.run)


async def run_fails(bench: Any) -> None:
    await ends(bench, Fails.run, "plain")


async def run_fails_with_a_cancelled_error(bench: Any) -> None:
    await ends(bench, Fails.run, "value")


async def run_is_retried(bench: Any) -> None:
    await ends(bench, Fails.run, "retry", retry_policy=common.RetryPolicy(initial_interval=timedelta(seconds=1)))


async def run_is_not_retried_when_final(bench: Any) -> None:
    await ends(bench, Fails.run, "final", retry_policy=common.RetryPolicy(maximum_attempts=5))


async def run_uses_up_its_attempts(bench: Any) -> None:
    await ends(bench, Fails.run, "plain", retry_policy=common.RetryPolicy(maximum_attempts=2))


async def run_times_out(bench: Any) -> None:
    await ends(bench, Waits.run, "plain", run_timeout=timedelta(seconds=1))


async def run_times_out_with_its_chain(bench: Any) -> None:
    await ends(bench, Waits.run, "plain", execution_timeout=timedelta(seconds=1))


async def run_starts_later(bench: Any) -> None:
    await ends(bench, EmptyTask.run, start_delay=timedelta(milliseconds=300))


async def run_continues_as_new(bench: Any) -> None:
    await ends(bench, Counts.run, 2)


async def cancel(bench: Any, how: str) -> None:
    async with bench.worker([Waits], [tidy]):
        handle = await bench.start(Waits.run, how)
        await bench.seen(handle.id, "TimerStarted")
        await handle.cancel()
        await handle.cancel()
        await bench.settled(handle)


async def run_is_cancelled(bench: Any) -> None:
    await cancel(bench, "plain")


async def run_ignores_its_cancellation(bench: Any) -> None:
    await cancel(bench, "ignore")


async def run_fails_on_its_cancellation(bench: Any) -> None:
    await cancel(bench, "fail")


async def run_tidies_up_when_cancelled(bench: Any) -> None:
    await cancel(bench, "tidy")


async def run_is_cancelled_before_its_first_task(bench: Any) -> None:
    handle = await bench.start(Waits.run, "plain")
    await handle.cancel()
    async with bench.worker([Waits], [tidy]):
        await bench.settled(handle)


async def run_is_terminated(bench: Any) -> None:
    async with bench.worker([Waits], [tidy]):
        handle = await bench.start(Waits.run, "plain")
        await bench.seen(handle.id, "TimerStarted")
        await handle.terminate("enough", "one", 2)
        await bench.settled(handle)


async def run_is_terminated_before_its_first_task(bench: Any) -> None:
    handle = await bench.start(Waits.run, "plain")
    await handle.terminate("never mind")
    await bench.settled(handle)


async def task_fails(bench: Any, count: int) -> None:
    code["failures_left"] = count
    await ends(bench, HealsLater.run)


async def task_fails_once(bench: Any) -> None:
    await task_fails(bench, 1)


async def task_fails_three_times(bench: Any) -> None:
    await task_fails(bench, 3)


async def patch_is_recorded(bench: Any) -> None:
    await ends(bench, Patched.run, False)


async def patch_is_deprecated(bench: Any) -> None:
    await ends(bench, Patched.run, True)


async def memo_is_changed(bench: Any) -> None:
    await ends(bench, Notes.run, memo={"b": 2})


async def start_replaces_the_open_run(bench: Any) -> None:
    async with bench.worker([Waits], [tidy]):
        first = await bench.start(Waits.run, "plain")
        bench.watch(first.id, first.first_execution_run_id)
        await bench.seen(first.id, "TimerStarted")
        await asyncio.sleep(1.2)  # a start within a second of the one before is refused
        second = await bench.start(
            Waits.run, "plain", id_conflict_policy=common.WorkflowIDConflictPolicy.TERMINATE_EXISTING
        )
        await bench.seen(second.id, "TimerStarted")
        await second.terminate("end")
        await bench.settled(second)


PROGRAMS = [
    run_completes_at_once,
    run_fails,
    run_fails_with_a_cancelled_error,
    run_is_retried,
    run_is_not_retried_when_final,
    run_uses_up_its_attempts,
    run_times_out,
    run_times_out_with_its_chain,
    run_starts_later,
    run_continues_as_new,
    run_is_cancelled,
    run_ignores_its_cancellation,
    run_fails_on_its_cancellation,
    run_tidies_up_when_cancelled,
    run_is_cancelled_before_its_first_task,
    run_is_terminated,
    run_is_terminated_before_its_first_task,
    task_fails_once,
    task_fails_three_times,
    patch_is_recorded,
    patch_is_deprecated,
    memo_is_changed,
    start_replaces_the_open_run,
]
